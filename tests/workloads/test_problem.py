"""The model as the job's framework runs it."""

from __future__ import annotations

import pytest

from published import CONFIGS
from scaleacross import catalogue
from scaleacross.errors import InputError
from scaleacross.spec.job import Job
from scaleacross.workloads.huggingface import from_hf_config
from scaleacross.workloads.problem import profile_of, uncompiled
from scaleacross.workloads.variants import with_eager_operators, with_lean_activations

EAGER = catalogue.load_job("llama3_405b_two_buildings").model_copy(update={"eager_operators": True})


def test_a_job_may_run_operators_one_by_one() -> None:
    llama = catalogue.load_workload("llama3.1-405b")
    kept = with_lean_activations(llama.profile(), narrow=False)
    assert profile_of(EAGER, llama) == with_eager_operators(kept, uncompiled(llama))
    assert profile_of(EAGER.model_copy(update={"eager_operators": False}), llama) == kept


@pytest.mark.parametrize(
    ("name", "precision", "more"),
    [("gpt-oss-120b", "bf16", (28 + 40) / 3), ("gpt-oss-120b", "fp8", (28 + 40) / 3 + 8), ("mixtral-8x7b", "fp8", 8)],
)
def test_plans_move_what_experts_of_megatron_core_move(name: str, precision: str, more: float) -> None:
    """Bytes that experts of Megatron Core move, per feature and copy of a token, as in measured runs.

    Kernels of their own add biases. For 8-bit products tokens are copied into and out of padded batches.
    """
    job, workload = catalogue.load_job("llama3_405b_two_buildings"), catalogue.load_workload(name)
    plain, found = (
        one.blocks[-1][0]
        for one in (workload.profile(), profile_of(job.model_copy(update={"precision": precision}), workload))
    )
    assert found.elementwise_bytes - plain.elementwise_bytes == pytest.approx(
        more * plain.hidden_size * plain.routed_tokens
    )


@pytest.mark.parametrize(("precision", "expected"), [("bf16", 139_392), ("fp8", 120_960)])
def test_plans_hold_what_transformer_engine_holds(precision: str, expected: int) -> None:
    """Plans hold what Transformer Engine keeps, per token and layer of Llama 3 8B without recomputation, by hand.

    Sizes are h 4096, k, v 1024 each, f 14336 and 32 heads. Each norm keeps its input (2h) and its result, which is the
    input of the next product (2h; 8 bit: h).

    Attention keeps q, k, v (2·(h + 2·1024)), its result and its statistics (4 per head). The result has 2h, in 8 bit h
    more, converted for the next product.

    The feed-forward part keeps gate and up (4f), and their product (2f; 8 bit: f). The fused kernel computes SiLU(gate)
    again.
    """
    job = Job.model_validate({**EAGER.model_dump(), "eager_operators": False, "precision": precision})
    (layer, _), *_ = profile_of(job, catalogue.load_workload("llama3.1-8b")).blocks
    h, f, heads = 4096, 14336, 32
    norms, attention, gated = (8 * h, 2 * (h + 2048) + 2 * h + 4 * heads, 6 * f)
    if precision == "fp8":
        norms, attention, gated = norms - 2 * h, attention + h, gated - f
    assert layer.activations["none"].sharded == norms + attention + gated == expected


def test_nothing_is_saved_of_an_activation_without_a_gate() -> None:
    """An activation without a gate keeps nothing more.

    The shared expert of Nemotron 3 Nano is as wide (3712) as gate and up of its experts (1856), which have no gate.
    """
    nano = from_hf_config(CONFIGS["Nemotron-3-Nano-30B"], "nano").profile()
    assert with_lean_activations(nano, narrow=False) == nano


def test_one_kernel_operators_stay_as_they_are_without_compilation() -> None:
    """Compilation changes no operator that is one kernel already.

    GPT-3 has LayerNorm, learned positions and GELU. PyTorch runs one kernel for each, compiled or not.
    """
    gpt = catalogue.load_workload("gpt3-175b")
    assert profile_of(EAGER, gpt) == profile_of(EAGER.model_copy(update={"eager_operators": False}), gpt)


def test_operators_of_other_mixers_are_not_known_one_by_one() -> None:
    nano = from_hf_config(CONFIGS["Nemotron-3-Nano-30B"], "nano")
    with pytest.raises(InputError, match=r"known for softmax attention; .* other mixers: .*mamba2"):
        profile_of(EAGER, nano)
