"""Llama's steps under autocast, compiled or not, agree with PyTorch's own counts (tests/oracles/compiled_counts.py)."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines import candidates

import scaleacross as sa
from instances import plain_job
from interpreters import python_with
from scaleacross.api.problems import problem_of as problem_of_names
from scaleacross.cost_models.candidates import ANY_POLICY
from scaleacross.cost_models.memory import memory_parts
from scaleacross.cost_models.stages import pipeline_groups
from scaleacross.workloads.problem import problem_of

GOLDEN = Path(__file__).parents[1] / "golden" / "compiled_counts.json"
COUNTED: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
VOCABULARY = 128256
LLAMA_1B = {"num_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64}
EIGHT_LAYERS = {"num_layers": 8, "hidden_size": 4096, "intermediate_size": 14336, "head_dim": 128}
CASES = {  # of benchmarks/one_gpu_step.py: model, sequence, micro-batch, recomputation
    0: (LLAMA_1B, 4096, 2, "none"),
    1: (LLAMA_1B, 4096, 2, "none"),
    3: (LLAMA_1B, 2048, 8, "full"),
    4: (EIGHT_LAYERS, 4096, 1, "none"),
    5: (EIGHT_LAYERS, 4096, 1, "none"),
    6: (EIGHT_LAYERS, 4096, 2, "full"),
}
MEASURED_GIB = {1: 38.5, 3: 32.9, 5: 53.5, 6: 47.8}
"""Peaks that were allocated on one H100 where layers and loss are compiled (docs/results/one_h100_steps.csv)."""
FP32_STATES = {"parameter_bytes": 2.0, "gradient_bytes": 4.0, "state_bytes": 10.0}


def parts(sizes: dict[str, int], tokens: tuple[int, int], recompute: str | None, **kept: Any) -> dict[str, float]:
    """Bytes of one GPU by kind, and parameters of a ``layer``.

    ``tokens`` are those of a sequence and the sequences of a micro-batch. ``recompute`` is None if the policy is not
    yet chosen.
    """
    heads = {
        "num_heads": 32,
        "num_kv_heads": 8,
        "vocabulary_size": VOCABULARY,
        "tied_embedding": False,
        "gated_mlp": True,
    }
    job = plain_job(
        1, workload={"name": "counted", "family": "dense_transformer", **heads, **sizes}, sequence_length=tokens[0],
        global_batch_sequences=4 * tokens[1], optimizer=FP32_STATES, kept={"by": "pytorch", **kept},
    )  # fmt: skip
    rows = candidates(
        dp_shard=1, pp=1, tp=1, cp=1, ep=1, dp_replicate=1, micro_batch=tokens[1], num_micro_batches=4, shard="none",
        recompute=recompute or "none", schedule="1F1B", num_chunks=1,
    )  # fmt: skip
    if recompute is None:
        rows = replace(rows, recompute=np.array([ANY_POLICY]))
    profile = problem_of(job).profile
    ((classes, _),) = pipeline_groups(profile, rows)
    of_kinds = {part: float(size.max()) for part, size in memory_parts(profile, job, rows, classes).items()}
    return of_kinds | {"layer": float(profile.blocks[0][0].total_parameters)}


def planned(case: int, **kept: Any) -> dict[str, float]:
    sizes, sequence, micro_batch, recompute = CASES[case]
    out = parts(sizes, (sequence, micro_batch), recompute, **kept)
    del out["layer"]
    return out


def cached(case: int) -> float:
    """Bytes of the 16-bit logits, which the allocator caches and no tensor holds."""
    _, sequence, micro_batch, _ = CASES[case]
    return 2.0 * VOCABULARY * sequence * micro_batch


@pytest.mark.parametrize("one", COUNTED["eager"], ids=lambda one: f"case {one['case']}")
def test_peaks_under_autocast_are_pytorch_s(one: dict[str, Any]) -> None:
    """Peaks under autocast agree with PyTorch.

    The peak is in the loss, with everything that the layers keep. The fused optimizer step needs no more.
    """
    ours = planned(one["case"], autocast=True)
    assert sum(ours.values()) - cached(one["case"]) == pytest.approx(one["peak"], rel=5e-3)
    assert one["peak_with_optimizer"] == one["peak"]


@pytest.mark.parametrize("case", MEASURED_GIB)
def test_compiled_peaks_are_those_of_a_gpu(case: int) -> None:
    ours = planned(case, autocast=True, compiled=["model", "loss"])
    assert sum(ours.values()) / 2**30 == pytest.approx(MEASURED_GIB[case], rel=5e-3)


@pytest.mark.parametrize("one", COUNTED["layer"], ids=lambda one: "autocast" if one["autocast"] else "bf16")
def test_a_compiled_layer_keeps_what_its_graphs_hand_over(one: dict[str, Any]) -> None:
    """A compiled layer keeps its input and what its graphs save for the backward pass.

    This includes autocast's copies of the weights.
    """
    two, three = (
        parts(EIGHT_LAYERS | {"num_layers": number}, (1024, 1), "none", autocast=one["autocast"], compiled=["model"])
        for number in (2, 3)
    )
    of_input = 4096 * (4 if one["autocast"] else 2)
    kept = (three["activations"] - two["activations"]) / 1024
    assert kept == pytest.approx(one["per_token"] + of_input, rel=1e-3)
    copies = three["parameters"] - two["parameters"] - 2.0 * two["layer"]
    assert copies == pytest.approx(one["copies"], rel=1e-3, abs=1.0)


@pytest.mark.parametrize("compiled", [(), ("model",), ("model", "loss")])
def test_a_policy_that_is_still_open_holds_the_least_of_all(compiled: tuple[str, ...]) -> None:
    """A policy that is not yet chosen holds the least memory of all policies.

    Otherwise the search would drop candidates that fit. With full recomputation compiled layers keep no copies of their
    weights.
    """
    least, *others = (
        parts(EIGHT_LAYERS, (1024, 1), policy, autocast=True, compiled=compiled)
        for policy in (None, "none", "selective", "full")
    )
    for other in others:
        assert all(least[part] <= other[part] for part in least)


def test_a_compiled_loss_keeps_the_logits_alone() -> None:
    """A compiled loss keeps only the logits: 2 bytes per entry, and 2 for their gradient.

    Operator by operator it keeps 12 bytes, and 2 in the allocator's cache.
    """
    loss = COUNTED["loss"]
    assert (loss["kept"], loss["logits"], loss["gradient"]) == (0.0, 2, 2)
    entries = cached(0) / 2.0
    whole, compiled = (planned(0, compiled=of) for of in ((), ("loss",)))
    saved = {part: (whole[part] - compiled[part]) / entries for part in whole}
    assert saved["activations"] == pytest.approx(2.0) and saved["buffers"] == pytest.approx(8.0)


@pytest.mark.parametrize("stated", ["kept.compiled=[model]", "kept.autocast=true", "kept.loss_chunks=8"])
def test_megatron_s_memory_has_none_of_it(stated: str) -> None:
    with pytest.raises(sa.InputError, match=r"is PyTorch's alone: set target: torchtitan or kept.by: pytorch"):
        problem_of_names("configs/jobs/llama3_405b_two_buildings.yaml", (stated,))


def test_autocast_is_refused_beside_fsdp_which_converts_parameters_itself() -> None:
    """Autocast is refused with FSDP, which converts parameters itself.

    Memory then counted neither whole nor gathered parameters.
    """
    job = "configs/jobs/llama3_405b_two_buildings.yaml"
    stated = ("target=scaleacross", "kept.by=pytorch", "kept.autocast=true")
    with pytest.raises(sa.InputError, match=r"shard 'parameters', which is FSDP: state shard: \[none, optimizer\]"):
        problem_of_names(job, stated)
    assert problem_of_names(job, (*stated, "shard=[none,optimizer]")).job.kept.autocast


@pytest.mark.consumer
@pytest.mark.slow
def test_pytorch_still_counts_so() -> None:
    script = Path(__file__).parents[1] / "oracles" / "compiled_counts.py"
    done = subprocess.run([python_with("torch"), str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    now = json.loads(done.stdout)
    assert now["loss"] == COUNTED["loss"]
    for kind in ("eager", "layer"):
        for one, then in zip(now[kind], COUNTED[kind], strict=True):
            assert one == pytest.approx(then, rel=1e-3)
