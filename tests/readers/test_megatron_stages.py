"""Layers of Megatron-LM's pipeline stages, for every way to divide a model.

They equal get_num_layers_to_build (d98e8a64).
"""

from __future__ import annotations

import pytest

import scaleacross as sa
from scaleacross.readers.megatron import read

BASE = "--micro-batch-size 1 --global-batch-size 256 --seq-length 4096 --bf16 --use-distributed-optimizer"
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
EMBEDDING, LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
CHUNKS, PER_STAGE = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"


def words(layers: int, pp: int, more: str) -> str:
    return f"--num-layers {layers} --pipeline-model-parallel-size {pp} {BASE} {more}"


@pytest.mark.parametrize(
    ("layers", "pp", "more", "expected"),
    [
        (94, 8, f"{FIRST} 11 {LAST} 11", [[11]] + [[12]] * 6 + [[11]]),
        (61, 4, f"{LAST} 13", [[16]] * 3 + [[13]]),
        (27, 2, f"{FIRST} 13 {LAST} 14", [[13], [14]]),
        (94, 4, f"{FIRST} 22 {LAST} 22 {CHUNKS} 1", [[22], [25], [25], [22]]),
        (28, 4, f"{FIRST} 6 {LAST} 6 {CHUNKS} 2", [[3, 3], [4, 4], [4, 4], [3, 3]]),
        (94, 8, f"{EMBEDDING} {LOSS}", [[11]] + [[12]] * 6 + [[11]]),
        (94, 8, f"{EMBEDDING} {LOSS} {CHUNKS} 3", [[3, 4, 4]] + [[4, 4, 4]] * 6 + [[4, 4, 3]]),
        (63, 4, f"{LOSS} {PER_STAGE} 4", [[4] * 4] * 3 + [[4, 4, 4, 3]]),
    ],
)
def test_stages_hold_what_megatron_builds(layers: int, pp: int, more: str, expected: list[list[int]]) -> None:
    decision = read(words(layers, pp, more), "x", pp * 2, layers).decision
    assert decision.layers_per_stage == tuple(map(tuple, expected))
    assert decision.pipeline.num_chunks == len(expected[0])


def test_virtual_stages_by_number_are_those_by_layers() -> None:
    number, size = (read(words(32, 4, more), "x", 8, 32).decision for more in (f"{CHUNKS} 2", f"{PER_STAGE} 4"))
    assert number == size
    assert number.pipeline.schedule == "Interleaved1F1B"
    assert read(words(32, 4, f"{CHUNKS} 1"), "x", 8, 32).decision == read(words(32, 4, ""), "x", 8, 32).decision


@pytest.mark.parametrize(
    ("layers", "more", "message"),
    [
        (
            32,
            f"{FIRST} 7",
            "32 layers do not divide by pp 4 with --decoder-first-pipeline-num-layers 7, and Megatron-LM",
        ),
        (32, EMBEDDING, "do not divide by pp 4 and --account-for-embedding-in-pipeline-split"),
        (30, "", "30 layers do not divide by pp 4, and Megatron-LM stops; state --pipeline-model-parallel-layout"),
        (32, f"{CHUNKS} 3", "--num-virtual-stages-per-pipeline-rank 3 does not divide 8 layers of a pipeline rank"),
        (32, f"{CHUNKS} 2 {PER_STAGE} 4", "Megatron-LM takes one of them; leave the other out"),
        (32, f"{FIRST} 8 {LOSS}", "Megatron-LM takes one of them; leave the other out"),
        (32, f"{FIRST} 8 --pipeline-model-parallel-layout Et*8|t*8|t*8|t*8L", "Megatron-LM takes one of them"),
        (32, f"{FIRST} 30", "32 layers do not divide by pp 4 with"),
    ],
)
def test_cuts_that_megatron_refuses_are_named(layers: int, more: str, message: str) -> None:
    with pytest.raises(sa.InputError, match=message):
        read(words(layers, 4, more), "x", 8, layers)


def test_an_empty_layout_is_refused() -> None:
    with pytest.raises(sa.InputError, match="--pipeline-model-parallel-layout is empty"):
        read(words(8, 2, "--pipeline-model-parallel-layout --overlap-grad-reduce"), "x", 2, 8)


def test_ends_without_a_pipeline_are_refused() -> None:
    with pytest.raises(sa.InputError, match=f"{LAST} on pp 1"):
        read(words(32, 1, f"{LAST} 32"), "x", 8, 32)
