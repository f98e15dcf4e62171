"""Turn the dimension columns of a row into a workload of the package's families."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from scaleacross.catalogue import load_workload
from scaleacross.catalogue.find import letters, names
from scaleacross.errors import InputError
from scaleacross.validation.runs import Run
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.layer_profile import LayerProfile
from scaleacross.workloads.moe_transformer import GroupedQueryAttention, LatentAttention, MoeTransformer
from scaleacross.workloads.workload import Workload

# The columns hold heads and head_dim only; every published MLA model of this size has the latent widths of DeepSeek-V3
# (arXiv 2412.19437 §4.2; Kimi-K2's config.json states the same).
MLA_QUERY_RANK: Final = 1536
MLA_KV_RANK: Final = 512
MLA_ROPE_DIM: Final = 64

DENSE_COLUMNS: Final = ("layers", "hidden", "ffn", "gated", "heads", "kv_heads", "head_dim", "vocab")
MOE_COLUMNS: Final = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "experts", "topk", "moe_ffn")


def workload_of(run: Run) -> Workload:
    """Return the model of a row: from its dimension columns, or the catalogue's workload of its name.

    The latter is used if all of these columns are blank, or if they state its very products (``_published``).

    GPT-like rows (multi-head attention, plain MLP) get LayerNorm, biases, dropout, learned positions and a tied output
    matrix. Other plain-MLP rows (Nemotron-4) get LayerNorm without biases. Gated ones get RMSNorm and an output matrix
    of their own.

    Raises:
        InputError: a dimension is missing or they contradict each other.
    """
    if all(getattr(run, name) is None for name in {*DENSE_COLUMNS, *MOE_COLUMNS}):
        return _by_name(run)
    missing = [name for name in (MOE_COLUMNS if run.arch == "moe" else DENSE_COLUMNS) if getattr(run, name) is None]
    if missing:
        raise InputError(f"dimensions not stated: {', '.join(missing)}")
    try:
        return _published(run, _moe(run) if run.arch == "moe" else _dense(run))
    except ValidationError as error:
        raise InputError("; ".join(item["msg"] for item in error.errors())) from None


def _by_name(run: Run) -> Workload:
    known = [name for name, _ in names("workloads")]
    if run.model not in known:
        columns = ", ".join(MOE_COLUMNS if run.arch == "moe" else DENSE_COLUMNS)
        raise InputError(
            f"model '{run.model}' is no workload of the catalogue ({', '.join(known)}), and its dimensions are "
            f"not stated: {columns}"
        )
    return load_workload(run.model)


def _published(run: Run, stated: Workload) -> Workload:
    """Return the catalogue's workload of the row's name if it has the products that the columns state, else ``stated``.

    Columns say nothing of sliding windows, sinks, biases of experts and norms of q and k; published models of that name
    do.
    """
    named = (name for name, _ in names("workloads") if letters(name) == letters(run.model))
    return next((each for name in named if _products(each := load_workload(name)) == _products(stated)), stated)


def _products(workload: Workload) -> tuple[object, ...]:
    """Vocabulary, number of experts, and the matrix products and heads of every layer, in order."""
    profile = workload.profile()
    layers = [
        (tuple((gemm.in_features, gemm.out_features, gemm.tokens_per_token) for gemm in block.gemms), _heads(block))
        for block, count in profile.blocks
        for _ in range(count)
    ]
    return (profile.vocabulary_size, profile.num_experts, *layers)


def _heads(block: LayerProfile) -> tuple[int, ...]:
    core = block.attention
    return () if core is None else (core.num_heads, core.num_kv_heads, core.qk_head_dim, core.v_head_dim)


def _name(run: Run) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in run.model).lstrip("._-")[:64] or "model"


def _dense(run: Run) -> DenseTransformer:
    gpt = not run.gated and run.attn == "mha"
    return DenseTransformer.model_validate(
        {
            "name": _name(run),
            "num_layers": run.layers,
            "hidden_size": run.hidden,
            "num_heads": run.heads,
            "num_kv_heads": run.kv_heads,
            "head_dim": run.head_dim,
            "intermediate_size": run.ffn,
            "vocabulary_size": run.vocab,
            "gated_mlp": bool(run.gated),
            "tied_embedding": gpt,
            "norm": "rmsnorm" if run.gated else "layernorm",
            "bias": gpt,
            "num_learned_positions": run.seq if gpt else 0,
            "dropout": gpt,
        }
    )


def _moe(run: Run) -> MoeTransformer:
    attention: GroupedQueryAttention | LatentAttention
    if run.attn == "mla":
        attention = LatentAttention(
            q_lora_rank=MLA_QUERY_RANK,
            kv_lora_rank=MLA_KV_RANK,
            qk_nope_head_dim=run.head_dim or 0,
            qk_rope_head_dim=MLA_ROPE_DIM,
            v_head_dim=run.head_dim or 0,
        )
    else:
        attention = GroupedQueryAttention(num_kv_heads=run.kv_heads or 0, head_dim=run.head_dim or 0)
    return MoeTransformer.model_validate(
        {
            "name": _name(run),
            "num_layers": run.layers,
            "hidden_size": run.hidden,
            "num_heads": run.heads,
            "attention": attention,
            "num_dense_layers": run.dense_layers or 0,
            "dense_intermediate_size": run.ffn if run.dense_layers else None,
            "num_experts": run.experts,
            "top_k": run.topk,
            "expert_intermediate_size": run.moe_ffn,
            "num_shared_experts": 1 if run.shared_ffn else 0,
            "shared_intermediate_size": run.shared_ffn or None,
            "vocabulary_size": run.vocab,
            "tied_embedding": False,
        }
    )
