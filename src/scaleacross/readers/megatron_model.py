"""Compare the model that Megatron-LM's arguments describe with the job's: figures that change time or memory must be
equal.

Both sides are options: those of the settings, and those that the emitter writes for the job's model. Defaults:
NVIDIA/Megatron-LM megatron/training/arguments.py (d98e8a64).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from scaleacross.emitters.megatron_model import decoder_arguments
from scaleacross.errors import InputError
from scaleacross.readers.megatron_arguments import Options
from scaleacross.readers.megatron_options import MODEL
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.workload import MAX_LAYERS

Figure = int | bool | str | tuple[int, ...]

HEADS: Final = "--num-attention-heads"
"""Megatron-LM requires this option, so settings that state it describe the whole model."""
WIDTH: Final = "--ffn-hidden-size"
"""Width of dense layers; also of experts where no other is stated for them."""
FLAGS: Final = (
    "--swiglu", "--quick-geglu", "--multi-latent-attention", "--untie-embeddings-and-output-weights", "--attention-output-gate",
    "--disable-bias-linear", "--qk-layernorm", "--qk-l2-norm",
)  # fmt: skip
OF_EXPERTS: Final = ("--moe-shared-expert-gate", "--moe-router-num-groups", "--moe-router-group-topk")
"""Options of expert layers: a gate of the shared experts, and groups of experts per token."""
BIAS: Final = "--add-qkv-bias"
"""Bias of queries, keys and values alone; where all products have one, these have it too."""
WINDOW: Final = "--window-size"
POSITIONS: Final = "--position-embedding-type"
WORDS: Final = {"--normalization": "LayerNorm", "--softmax-type": "vanilla", "--experimental-attention-variant": "none"}
"""Options of one word, with Megatron-LM's defaults."""
PERIODS: Final = {"--window-attn-skip-freq": WINDOW, "--linear-attention-freq": "--experimental-attention-variant"}
"""Options that state which layers have a feature (by default all), with the option that asks for it; n leaves out every
n-th layer.
"""
RANKS: Final = ("--q-lora-rank", "--kv-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim")
OF_LINEAR: Final = (
    "--linear-conv-kernel-dim", "--linear-key-head-dim", "--linear-num-key-heads", "--linear-num-value-heads",
    "--linear-value-head-dim",
)  # fmt: skip
VOCABULARY: Final = ("--padded-vocab-size", "--vocab-size")
UNFUSED: Final = ("--no-rope-fusion", "--no-bias-gelu-fusion")
DROPOUTS: Final = ("--hidden-dropout", "--attention-dropout")
VOCABULARY_TOLERANCE: Final = 0.01
"""Relative difference by which tokenizers and paddings differ; time and memory do not show it."""


def model_options(found: Options) -> dict[str, list[str]]:
    """Return the options that describe the model."""
    return {option: list(values) for option, values in found.items() if option in MODEL or option in _SHARED}


_SHARED: Final = ("--num-layers", "--hidden-size", "--num-experts", "--moe-shared-expert-intermediate-size")


def check_model(stated: Options, decoder: Decoder, length: int, tp: int, name: str) -> list[str]:
    """Compare the settings' model with the job's; return notes on what could not be compared.

    Args:
        stated: the settings' options of the model.
        decoder, length, tp: the job's model, and the sequence length and tp with which it is trained.
        name: name of the settings, for messages.

    Raises:
        InputError: a figure differs from that of the job's model.
    """
    wanted, notes = _options(decoder_arguments(decoder, length, tp)), list[str]()
    hidden, num_layers = decoder.hidden_size, len(decoder.layers)
    mine, unread = _figures(stated, hidden, num_layers)
    other, _ = _figures(wanted, hidden, num_layers)
    alone = {WIDTH} if WIDTH not in mine or WIDTH not in other else set()  # then layers with experts differ
    for option in dict.fromkeys((*other, *mine)):
        if option in unread or option in alone or (option not in stated and HEADS not in stated):
            continue
        if mine.get(option, 0) != other.get(option, 0):
            raise InputError(
                f"{name}: {_said(option, mine.get(option, 0))} is another model than the job's '{decoder.name}' with "
                f"{_said(option, other.get(option, 0))}"
            )
    _check_vocabulary(stated, decoder, tp, name)
    if unread:
        notes.append(f"not compared with the job's model, as a shell would tell its value: {', '.join(unread)}")
    if apart := [option for option in UNFUSED if option in stated and option not in wanted]:
        notes.append(f"kernels that are not fused are not modelled: {', '.join(apart)}")
    if HEADS in stated and not decoder.dropout and (kept := _dropouts(stated)):
        notes.append(f"masks of dropout are not modelled, as the job's model has none: {', '.join(kept)}")
    return notes


def _said(option: str, value: Figure) -> str:
    if isinstance(value, bool) or option in FLAGS or option == "--moe-grouped-gemm":
        return option if value else f"no {option}"
    if value == "none":
        return f"no {option}"
    if isinstance(value, tuple):
        return f"{option} of {sum(value)} layers" if value else f"no {option}"
    return f"{option} {value}"


def _options(words: Sequence[str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            out[word] = []
        else:
            out[next(reversed(out))].append(word)
    return out


def _figures(options: Options, hidden: int, num_layers: int) -> tuple[dict[str, Figure], list[str]]:
    """Map each option to its figure, with defaults for unstated ones; also return options whose value is not a number."""
    unread: list[str] = []

    def number(option: str, default: int = 0) -> int:
        values = options.get(option)
        if values is None:
            return default
        if len(values) != 1 or not values[0].isdigit():
            unread.append(option)
            return default
        return int(values[0])

    out: dict[str, Figure] = {flag: flag in options for flag in FLAGS}
    partial = HEADS not in options  # what it does not state is not compared
    experts = number("--num-experts")
    routed = experts > 0 or partial
    pattern = _pattern(options.get("--moe-layer-freq", ["1"]), num_layers) if routed else (0,) * num_layers
    if pattern is None:
        unread.append("--moe-layer-freq")
    width = number(WIDTH, _default_width(hidden, gated="--swiglu" in options))
    if partial or pattern is None or 0 in pattern:
        out[WIDTH] = width
    if routed:
        out["--num-experts"] = experts
        out["--moe-layer-freq"] = pattern or ()
        out["--moe-ffn-hidden-size"] = number("--moe-ffn-hidden-size", width)
        out["--moe-router-topk"] = number("--moe-router-topk", 2)
        out["--moe-shared-expert-intermediate-size"] = number("--moe-shared-expert-intermediate-size")
        out["--moe-grouped-gemm"] = "--moe-grouped-gemm" in options
        out |= {option: option in options if option.endswith("-gate") else number(option) for option in OF_EXPERTS}
    heads = number(HEADS)
    out[HEADS] = heads
    if "--multi-latent-attention" in options:
        out |= {option: number(option) for option in RANKS if option in options}
    else:
        grouped = partial or "--group-query-attention" in options
        out["--kv-channels"] = number("--kv-channels", hidden // max(heads, 1))
        out["--num-query-groups"] = number("--num-query-groups", 1) if grouped else heads
    out |= {option: number(option) for option in OF_LINEAR if option in options}
    out |= {option: " ".join(options.get(option) or [default]) for option, default in WORDS.items()}
    out[BIAS] = BIAS in options or "--disable-bias-linear" not in options
    out[POSITIONS] = _positions(options)
    for option, figure in _kinds(options, num_layers).items():
        unread += [option] if figure is None else []
        out[option] = figure or 0
    return out, unread


def _positions(options: Options) -> str:
    """Return whether positions are learned, which is Megatron-LM's default."""
    kind = " ".join(options.get(POSITIONS) or ["learned_absolute"])
    rotary = "--use-rotary-position-embeddings" in options
    return kind if kind == "learned_absolute" and not rotary else "rope or none"


def _kinds(options: Options, num_layers: int) -> dict[str, Figure | None]:
    """Return the window, and 1 per layer that has one or is linear; None where only a shell knows the value."""
    left = "".join(options.get(WINDOW, ["-1"])).strip("()").partition(",")[0]
    known = left.removeprefix("-").isdigit()
    window = f"{left},0" if known and int(left) >= 0 else "none"
    out: dict[str, Figure | None] = {WINDOW: window if known else None}
    for option, switch in PERIODS.items():
        asked = out[WINDOW] != "none" if switch == WINDOW else switch in options
        if option in options and (asked or HEADS not in options):
            out[option] = _pattern(options[option], num_layers, last=True)
        else:
            out[option] = (1,) * num_layers if asked else ()
    return out


def _default_width(hidden: int, *, gated: bool) -> int:
    """Return Megatron-LM's default of --ffn-hidden-size."""
    return int(hidden * 4 * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _pattern(values: Sequence[str], num_layers: int, *, last: bool = False) -> tuple[int, ...] | None:
    """Return 1 for every layer with a feature.

    A number n selects every n-th layer from the first on, or (``last``) all but every n-th; a list states 0 and 1.
    None: neither form.
    """
    text = "".join(values)
    if text.isdigit() and int(text) > 0:
        every = int(text)
        return tuple(int((layer + 1) % every != 0 if last else layer % every == 0) for layer in range(num_layers))
    try:
        return _list(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        return None


def _list(node: ast.expr) -> tuple[int, ...]:
    """Evaluate lists that are added and repeated. Raises ValueError for anything else."""
    if isinstance(node, ast.List):
        return tuple(int(ast.literal_eval(one)) for one in node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _list(node.left) + _list(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        times, left = int(ast.literal_eval(node.right)), _list(node.left)
        if 0 < times * len(left) <= MAX_LAYERS:
            return left * times
    raise ValueError(ast.unparse(node))


def _check_vocabulary(stated: Options, decoder: Decoder, tp: int, name: str) -> None:
    rows, divisor = decoder.vocabulary_size, (stated.get("--make-vocab-size-divisible-by") or ["128"])[0]
    padding = int(divisor) * tp if divisor.isdigit() else 0
    for option in VOCABULARY:
        text = " ".join(stated.get(option, []))
        if text.isdigit() and abs(int(text) - rows) > max(padding, VOCABULARY_TOLERANCE * rows):
            raise InputError(
                f"{name}: {option} {text} is another model than the job's '{decoder.name}' with {rows} tokens"
            )


def _dropouts(stated: Options) -> list[str]:
    """Return the dropout options that are not 0, with the default where none is stated."""
    shares = {option: " ".join(stated.get(option, ["0.1"])) for option in DROPOUTS}
    return [f"{option} {share}" for option, share in shares.items() if share.strip("0.")]
