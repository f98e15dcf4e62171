"""Layers of Megatron-LM's pipeline stages, for every way in which arguments can divide the model.

Source: NVIDIA/Megatron-LM d98e8a64: megatron/training/arguments.py (virtual stages) and
core/transformer/transformer_block.py (get_num_layers_to_build). A layout lists the layers. Otherwise first and last
rank hold the stated numbers, and the ranks between share the rest. Otherwise embedding and loss count as layers of the
first and last stage, where an option says so. Chunks of a rank are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scaleacross.errors import InputError
from scaleacross.readers.settings import stages

LAYOUT: Final = "--pipeline-model-parallel-layout"
PER_STAGE: Final = "--num-layers-per-virtual-pipeline-stage"
CHUNKS: Final = "--num-virtual-stages-per-pipeline-rank"
ENDS: Final = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
COUNTED: Final = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
_CLASHES: Final = (
    *((LAYOUT, other) for other in (PER_STAGE, CHUNKS, *ENDS, *COUNTED)),
    *((PER_STAGE, other) for other in (CHUNKS, *ENDS)),
    *((end, counted) for end in ENDS for counted in COUNTED),
)
"""Pairs of options that exclude each other."""

Number = Callable[[str], int]


def layers_of_stages(
    found: Mapping[str, Sequence[str]], name: str, pp: int, num_layers: int, number: Number, predicted: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Return layers by [rank][chunk]; empty for one chunk of equal stages.

    The last stage has ``predicted`` layers more.

    Raises:
        InputError: options exclude each other, layers do not divide, or the layout has prediction layers elsewhere.
    """
    if LAYOUT in found:
        if not found[LAYOUT]:
            raise InputError(f"{name}: {LAYOUT} is empty: the stages of the pipeline are needed, as Et*4|t*4L")
        letters = expand(found[LAYOUT][0])
        if not letters.count("m") == letters.rpartition("|")[2].count("m") == predicted:
            raise InputError(
                f"{name}: {LAYOUT} {found[LAYOUT][0]}: {predicted} prediction layer(s) (--mtp-num-layers) in the last stage are "
                "modelled, as m before L"
            )
    counts = _main_layers(found, name, pp, num_layers, number)
    if not predicted or pp == 1:
        return counts
    counts = counts or ((num_layers // pp,),) * pp
    return (*counts[:-1], (*counts[-1][:-1], counts[-1][-1] + predicted))


def _main_layers(
    found: Mapping[str, Sequence[str]], name: str, pp: int, num_layers: int, number: Number
) -> tuple[tuple[int, ...], ...]:
    """Return ``layers_of_stages`` without prediction layers."""
    for pair in _CLASHES:
        if found.keys() >= set(pair):
            raise InputError(f"{name}: {' and '.join(pair)}: Megatron-LM takes one of them; leave the other out")
    if LAYOUT in found:
        counts = [stage.count("t") for stage in expand(found[LAYOUT][0]).split("|")]
        return stages(name, counts, pp, num_layers)
    ranks = _ranks(found, name, pp, num_layers, number)
    if not found.keys() & {PER_STAGE, CHUNKS, *ENDS, *COUNTED}:
        return ()
    chunks = number(CHUNKS) if CHUNKS in found else 1
    if PER_STAGE in found:
        each = number(PER_STAGE)
        if ranks[0] % each:
            raise InputError(
                f"{name}: {each} layers per virtual stage do not divide {ranks[0]} layers of a pipeline rank"
            )
        chunks = ranks[0] // each
    if odd := [count for count in ranks if count % chunks]:
        raise InputError(f"{name}: {CHUNKS} {chunks} does not divide {odd[0]} layers of a pipeline rank")
    counts = [count // chunks for count in ranks] * chunks
    # embedding and loss were counted as layers of the first and last stage
    for option, stage in zip(COUNTED, (0, -1), strict=True):
        counts[stage] -= option in found
    return stages(name, counts, pp, num_layers)


def _ranks(found: Mapping[str, Sequence[str]], name: str, pp: int, num_layers: int, number: Number) -> list[int]:
    """Return layers of every pipeline rank, including embedding and loss where they count as layers."""
    ends = {option: number(option) for option in ENDS if option in found}
    if pp == 1 and ends:
        raise InputError(f"{name}: {next(iter(ends))} on pp 1: all layers are in one stage; leave it out")
    weighted = num_layers + sum(option in found for option in COUNTED)
    left, between = weighted - sum(ends.values()), pp - len(ends)
    if left < between or (left % between if between else left):
        what = f" with {', '.join(f'{option} {count}' for option, count in ends.items())}" if ends else ""
        counted = "".join(f" and {option}" for option in COUNTED if option in found)
        raise InputError(
            f"{name}: {num_layers} layers do not divide by pp {pp}{what}{counted}, and Megatron-LM stops; state {LAYOUT}"
        )
    first, last = (ends.get(option) for option in ENDS)
    # one stated end leaves pp - 1 ranks, two leave pp - 2
    middle = [left // between] * between if between else []
    return [*([] if first is None else [first]), *middle, *([] if last is None else [last])]


def expand(layout: str) -> str:
    """Expand the repeats of a pipeline layout: ``(…)*n`` first, then ``x*n`` of one letter, as Megatron Core reads it."""
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda found: found[1] * int(found[2]), layout.replace(",", ""))
    return re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), text)
