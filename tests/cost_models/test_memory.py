"""Memory per stage: counted by hand, equal to published formulas, and monotone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import candidates, gpt, job

from scaleacross.catalogue import load_workload
from scaleacross.cost_models.candidates import Candidates, Floats
from scaleacross.cost_models.memory import PARTS, held_parameters, memory_parts
from scaleacross.cost_models.stages import block_counts, equal_stages, layers_of_ranks, rank_classes
from scaleacross.spec.job import Job
from scaleacross.workloads.layer_profile import ModelProfile

LLAMA = load_workload("llama3.1-405b").profile()
# q and output 2 · 16384², k and v 2 · 16384 · 1024, three matrices of the MLP; two norms that tp does not divide
MATRICES = 2 * 16_384**2 + 2 * 16_384 * 1024 + 3 * 16_384 * 53_248
NORMS = 2 * 16_384


def on_rank(profile: ModelProfile, of: Job, rows: Candidates, rank: int) -> dict[str, Floats]:
    """Parts on one pipeline rank, each (n,)."""
    classes = rank_classes(block_counts(profile), int(rows.pp[0]), int(rows.num_chunks[0]))
    split = equal_stages(profile.num_layers, int(rows.pp[0]), int(rows.num_chunks[0]))
    layers = layers_of_ranks(block_counts(profile), split).tolist()
    last = int(rows.pp[0]) - 1
    for index, first in enumerate(classes.first_rank):
        if layers[first] == layers[rank] and (first == 0) == (rank == 0) and (first == last) == (rank == last):
            return {name: values[index] for name, values in memory_parts(profile, of, rows, classes).items()}
    raise AssertionError(rank)


def llama_rows(**columns: object) -> Candidates:
    return candidates(**({"tp": 8, "pp": 16, "dp_shard": 64, "num_micro_batches": 32, "shard": "optimizer"} | columns))


def test_states_of_llama_405b_on_a_middle_stage() -> None:
    # 126 layers on 16 ranks: 7, 8 × 14, 7
    parts = on_rank(LLAMA, job(8192, 2048), llama_rows(), 1)
    held = 8 * (MATRICES / 8 + NORMS)
    assert parts["parameters"][0] == 2 * held
    assert parts["gradients"][0] == 4 * held
    assert parts["optimizer"][0] == 12 * held / 64
    assert parts["buffers"][0] == 0


def test_the_ends_hold_embedding_and_head() -> None:
    rows, of = llama_rows(), job(8192, 2048)
    table = 128_256 * 16_384 / 8
    assert on_rank(LLAMA, of, rows, 0)["parameters"][0] == 2 * (7 * (MATRICES / 8 + NORMS) + table)
    assert on_rank(LLAMA, of, rows, 15)["parameters"][0] == 2 * (7 * (MATRICES / 8 + NORMS) + table + 16_384)


def test_all_stages_together_hold_the_model() -> None:
    for pp, chunks in ((1, 1), (16, 1), (8, 4)):
        held = 0.0
        for rank in range(pp):
            held += on_rank(LLAMA, job(8192, 2048), candidates(pp=pp, num_chunks=chunks), rank)["parameters"][0] / 2
        assert held == LLAMA.total_parameters


def test_activations_in_flight_of_1f1b() -> None:
    # (12 + 4α)d + 8f + 4h bytes per token and layer, α = 8/128; rank s keeps p − s micro-batches
    of = job(8192, 2048)
    per_layer = ((12 + 4 * 8 / 128) * 16_384 + 8 * 53_248 + 4 * 128) / 8 * 8192
    assert on_rank(LLAMA, of, llama_rows(), 1)["activations"][0] == pytest.approx(15 * 8 * per_layer)
    few = llama_rows(num_micro_batches=4)
    assert on_rank(LLAMA, of, few, 1)["activations"][0] == pytest.approx(4 * 8 * per_layer)
    gpipe = llama_rows(schedule="GPipe")
    assert on_rank(LLAMA, of, gpipe, 1)["activations"][0] == pytest.approx(32 * 8 * per_layer)


def test_activations_in_flight_of_interleaved_1f1b() -> None:
    # v chunks of half the layers: (v − 1)p + 2(p − s − 1) + 1 chunks at once
    of, rows = job(512, 8), candidates(pp=4, num_chunks=2, schedule="Interleaved1F1B", num_micro_batches=8)
    per_layer = (34 - 2) * 1024 + 4 * 16  # no dropout masks
    profile = gpt().profile()
    embedding = profile.embedding.activations["none"].sharded
    chunks = 1 * 4 + 2 * 3 + 1
    assert on_rank(profile, of, rows, 0)["activations"][0] == pytest.approx(
        (2 * per_layer + embedding) * 512 * chunks / 2
    )


def test_a_gpt_block_with_dropout_holds_34_bytes_per_feature() -> None:
    # Korthikanti et al. (arXiv 2205.05198), section 4.1: 34·s·b·h without the attention square, tp divides all of it
    profile, of = gpt(dropout=True).profile(), job(512, 8)
    statistics = 4 * 16  # of the fused softmax, which the paper's unfused one does not keep
    rows = candidates(tp=[1, 4], pp=2, num_micro_batches=8, micro_batch=2)
    middle_free = on_rank(profile, of, rows, 1)["activations"]
    head = profile.head.activations["none"].sharded
    expected = [(4 * (34 * 1024 + statistics) + head) * 512 * 2 / tp for tp in (1, 4)]
    assert middle_free.tolist() == pytest.approx(expected)


def test_full_recomputation_keeps_two_bytes_per_feature_and_one_layer_at_work() -> None:
    profile, of = gpt().profile(), job(512, 8)
    rows = candidates(pp=2, num_micro_batches=8, recompute=["none", "full"])
    parts = on_rank(profile, of, rows, 0)
    embedding = profile.embedding.activations["none"].sharded
    assert parts["activations"][1] == pytest.approx(2 * (4 * 2 * 1024 + embedding) * 512)
    assert parts["buffers"].tolist() == pytest.approx([0, (32 * 1024 + 4 * 16 - 2 * 1024) * 512])


@pytest.mark.parametrize("dp", [2, 8, 64])
def test_bytes_per_parameter_of_megatron(dp: int) -> None:
    # Megatron-LM's distributed optimizer, bf16 parameters and fp32 gradients: 18 without, 6 + 12/d with
    profile, of = gpt().profile(), job(512, 64)
    rows = candidates(dp_replicate=[dp, 1], dp_shard=[1, dp], shard=["none", "optimizer"])
    parts = on_rank(profile, of, rows, 0)
    states = sum(parts[name] for name in ("parameters", "gradients", "optimizer"))
    assert (states / profile.total_parameters).tolist() == pytest.approx([18, 6 + 12 / dp])


def test_sharding_parameters_divides_all_states_and_gathers_two_layers() -> None:
    profile, of = gpt().profile(), job(512, 64)
    parts = on_rank(profile, of, candidates(dp_shard=8, cp=2, shard="parameters"), 0)
    states = sum(parts[name][0] for name in ("parameters", "gradients", "optimizer"))
    assert states == pytest.approx(18 * profile.total_parameters / 16), "context-parallel ranks share the states"
    assert parts["buffers"][0] == 2 * 2 * profile.blocks[0][0].num_parameters


def test_experts_are_divided_by_ep_and_sharded_over_the_rest() -> None:
    profile = load_workload("mixtral-8x22b").profile()
    block = profile.blocks[0][0]
    classes = rank_classes(block_counts(profile), 56, 1)
    held = held_parameters(profile, candidates(pp=56, dp_shard=16, ep=[1, 2, 8]), classes)
    assert held.expert[1].tolist() == [block.num_expert_parameters / ep for ep in (1, 2, 8)]
    assert len(set(held.dense[1].tolist())) == 1
    rows = candidates(pp=56, dp_shard=16, ep=[1, 2, 8], shard="optimizer", num_micro_batches=56)
    optimizer = on_rank(profile, job(4096, 1024), rows, 1)["optimizer"]
    assert optimizer.tolist() == pytest.approx([12 * block.total_parameters / 16] * 3), (
        "ep moves experts, it adds no shard"
    )


@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["none", "selective", "full"]),
)
def test_more_sharding_never_needs_more(tp: int, cp: int, dp: int, pp: int, recompute: str) -> None:
    profile, of = gpt().profile(), job(512, 64)
    common = {"tp": tp, "cp": cp, "pp": pp, "num_micro_batches": 8, "recompute": recompute}
    levels = candidates(
        dp_replicate=[dp, 1, 1], dp_shard=[1, dp, dp], shard=["none", "optimizer", "parameters"], **common
    )
    parts = on_rank(profile, of, levels, 0)
    states = sum(parts[name] for name in ("parameters", "gradients", "optimizer"))
    assert (np.diff(states) < 0).all()
    for axis, values in (("tp", [1, 2, 4, 8]), ("cp", [1, 2, 4])):
        rows = candidates(**(common | {axis: values, "dp_shard": dp, "shard": "optimizer"}))
        total = sum(on_rank(profile, of, rows, 0)[name] for name in PARTS)
        assert (np.diff(total) < 0).all(), axis


def test_policies_keep_less_and_less() -> None:
    rows = candidates(pp=2, num_micro_batches=8, recompute=["none", "selective", "full"])
    assert (np.diff(on_rank(gpt().profile(), job(), rows, 0)["activations"]) < 0).all()
