"""A prediction layer, which predicts a further token, is counted, placed, written and read back as in Megatron-LM."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import scaleacross as sa
from instances import mixed_job, plain_job, random_job
from oracles.exhaustive import exhaustive
from scaleacross.catalogue import load_workload
from scaleacross.emitters import EMITTERS, emit
from scaleacross.errors import EmitError, InputError
from scaleacross.readers.megatron import read
from scaleacross.solvers.bounds import arithmetic_bounds
from scaleacross.solvers.joint import search
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision, Plan, StageMemory
from scaleacross.verification import recompute
from scaleacross.workloads.layer_profile import ModelProfile
from scaleacross.workloads.problem import problem_of

sys.path.append(str(Path(__file__).parent / "emitters"))
from plans import make_plan

PIPELINE: dict[str, Any] = {
    "degrees": {"tp": 1, "cp": 1, "pp": 4, "dp_shard": 2, "dp_replicate": 1}, "schedules": ["1F1B"], "recompute": ["none"],
    "micro_batch_sequences": [1], "num_accelerators": 8, "shard": ["optimizer"], "target": "megatron",
}  # fmt: skip


def profiles(name: str) -> tuple[ModelProfile, ModelProfile]:
    """The profile without and with a prediction layer."""
    decoder = load_workload(name).decoder()
    return decoder.profile(), decoder.profile(1)


def job(**changes: Any) -> Job:
    """A job of eight layers and a heavy head on eight accelerators with Megatron-LM."""
    wide = {**plain_job(2).workload, "vocabulary_size": 16_000}  # type: ignore[dict-item]
    return plain_job(2, **{**PIPELINE, "workload": wide, "prediction_layers": 1, **changes})


def test_deepseek_v3_has_the_parameters_of_its_checkpoint() -> None:
    """The prediction layer of DeepSeek-V3 has the parameters of its checkpoint.

    README_WEIGHTS.md states 11.5 billion of its own. The file of 684.5 billion holds embedding and head twice, and 41.6
    million scales.
    """
    main, predicting = profiles("deepseek-v3")
    d, moe = 7168, main.blocks[-1][0].total_parameters
    own = moe + 2 * d * d + 3 * d  # projection; norms of both inputs and before the head
    assert predicting.total_parameters == main.total_parameters + own == 682_636_487_424
    assert own / 1e9 == pytest.approx(11.5, rel=0.01)
    assert predicting.total_parameters + 2 * 129_280 * d == pytest.approx(684.531e9 - 41.6e6, rel=1e-5)


def test_flop_are_those_that_megatron_counts() -> None:
    """FLOP equal Megatron-LM's num_floating_point_operations (megatron/training/training.py).

    They are those of a layer, 2h² of the projection and hV of the logits.
    """
    main, predicting = profiles("deepseek-v3")
    d, rows = 7168, 129_280
    layer = main.blocks[-1][0].forward_flop_per_token(4096)
    more = predicting.model_flop_per_token(4096) - main.model_flop_per_token(4096)
    assert more == pytest.approx(3 * (layer + 2 * (2 * d * d + d * rows)), rel=1e-12)


def memory(pp: int, predicted: int) -> tuple[StageMemory, ...]:
    problem = problem_of(job(prediction_layers=predicted))
    decision = Decision(
        degrees=Degrees(tp=2, pp=pp, dp_shard=2), pipeline=PipelineChoice(schedule="1F1B"), recompute="none", shard="none",
        placement=Placement(
            axis_order=("tp", "cp", "dp_shard", "pp", "dp_replicate"),
            fill=(BuildingShare(building="b0", num_accelerators=4 * pp),),
        ),
        layers_per_stage=None if pp == 1 else ((4,), (4 + predicted,)),
    )  # fmt: skip
    return recompute(problem, decision).memory


@pytest.mark.parametrize(("pp", "tables"), [(1, 0), (2, 1)])
def test_the_stage_of_the_head_copies_the_embedding_unless_it_has_it(pp: int, tables: int) -> None:
    """The stage of the head holds a copy of the embedding, unless it has the embedding itself.

    Parameters have 2 bytes on tp 2: a layer, the projection, three norms that tp does not divide, and the table.
    """
    layer, table, d = problem_of(job()).profile.blocks[0][0], 16_000 * 256, 256
    divided = layer.num_parameters - layer.num_replicated_parameters + 2 * d * d + tables * table
    own = divided / 2 + layer.num_replicated_parameters + 3 * d
    before, after = memory(pp, 0), memory(pp, 1)
    assert after[-1].parameters_bytes - before[-1].parameters_bytes == 2 * own
    assert after[-1].gradients_bytes - before[-1].gradients_bytes == pytest.approx(4 * own)
    assert after[-1].num_layers == before[-1].num_layers + 1
    if pp > 1:
        assert after[0].parameters_bytes == before[0].parameters_bytes


@pytest.fixture(scope="module")
def plan() -> Plan:
    return sa.plan(job(), gap_tolerance=0.0, alternatives=False)  # verifies itself


@pytest.mark.heavy
def test_layers_leave_the_stage_that_predicts(plan: Plan) -> None:
    without = sa.plan(job(prediction_layers=0), gap_tolerance=0.0, alternatives=False)
    equal = sa.plan(job(stages="equal"), gap_tolerance=0.0, alternatives=False)
    assert sum(map(sum, plan.layers_per_stage)) == 9
    assert plan.layers_per_stage[-1][-1] - 1 < without.layers_per_stage[-1][-1]
    assert plan.cost.step_s < 0.97 * equal.cost.step_s
    assert without.cost.step_s < plan.cost.step_s


@pytest.mark.heavy
def test_estimate_and_simulation_agree_above_the_bound(plan: Plan) -> None:
    step = sa.simulate(plan)
    assert abs(step.difference) < 0.03
    assert plan.report.bound_s <= plan.estimated.step_s * (1 + 1e-9)
    assert plan.report.status == "optimal"
    bounds = list(arithmetic_bounds(problem_of(plan.job)))
    assert bounds and all(bound.step_s <= step.step_s for bound in bounds)


@pytest.mark.parametrize(
    ("make", "seed"),
    [
        (random_job, 3),
        *(pytest.param(*one, marks=pytest.mark.heavy) for one in ((random_job, 19), (random_job, 26), (mixed_job, 2))),
    ],
)
def test_search_equals_brute_force(make: Any, seed: int) -> None:
    """The search equals brute force.

    Seed 3 has a plan only without the prediction layer, because with it no chunk may be empty.
    """
    problem = problem_of(make(seed).model_copy(update={"prediction_layers": 1}))
    oracle, found = exhaustive(problem), search(problem, time_limit_s=600, gap_tolerance=0.0)
    assert found.bound_violation_s <= 1e-12
    assert (found.best is None) == (oracle.decision is None) == (seed == 3)
    if found.best is not None:
        assert found.best.step_s == pytest.approx(oracle.step_s, rel=1e-9)
        assert found.bound_s <= found.best.step_s


@pytest.mark.heavy
def test_the_plan_is_written_and_read_back(plan: Plan, tmp_path: Path) -> None:
    emit(plan, "megatron", tmp_path)
    text = (tmp_path / "megatron" / "megatron_args.sh").read_text()
    assert "--mtp-num-layers 1\n" in text and "--num-layers 8\n" in text and "mL" in text
    other = job(prediction_layers=0, global_batch_sequences=32)
    settings = tmp_path / "megatron" / "megatron_args.sh"
    back = sa.evaluate_settings("megatron", settings, other, world=8)
    assert back.job.prediction_layers == 1
    assert back.layers_per_stage == plan.layers_per_stage
    assert back.estimated.step_s == pytest.approx(plan.estimated.step_s, rel=5e-3)
    settings.write_text(text.replace("  --mtp-num-layers 1\n", "").replace("mL", "L"))
    assert sa.evaluate_settings("megatron", settings, job(), world=8).job.prediction_layers == 0


BASE = "--micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --bf16 --use-distributed-optimizer --num-layers 8"
LAYOUT = "--pipeline-model-parallel-layout"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", ((2,), (2,), (2,), (3,))),
        ("--decoder-last-pipeline-num-layers 2", ((2,), (2,), (2,), (3,))),
        (f"{LAYOUT} 'Et*3|t*3|tt|mL'", ((3,), (3,), (2,), (1,))),
        ("--num-layers-per-virtual-pipeline-stage 1", ((1, 1), (1, 1), (1, 1), (1, 2))),
    ],
)
def test_a_prediction_layer_is_beside_the_loss(more: str, expected: tuple[tuple[int, ...], ...]) -> None:
    stated = f"{BASE} --pipeline-model-parallel-size 4 --mtp-num-layers 1 --mtp-loss-scaling-factor 0.3 {more}"
    found = read(stated, "x", 8, 8)
    assert found.decision.layers_per_stage == expected
    assert found.job["prediction_layers"] == 1
    assert found.notes == ()


@pytest.mark.parametrize(
    "more", ["--mtp-num-layers 1", f"--mtp-num-layers 1 {LAYOUT} 'Et*4|t*4m|L'", f"{LAYOUT} 'Et*4|t*4mL'"]
)
def test_a_prediction_layer_elsewhere_is_refused(more: str) -> None:
    layout = more if LAYOUT in more else f"{more} {LAYOUT} 'Et*4|t*4L'"
    with pytest.raises(InputError, match=r"in the last stage are modelled, as m before L"):
        read(f"{BASE} --pipeline-model-parallel-size {layout.count('|') + 1} {layout}", "x", 12, 8)


@pytest.mark.parametrize("number", [-1, 2])
def test_other_numbers_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="prediction_layers"):
        job(prediction_layers=number)


def test_what_pytorch_keeps_is_refused() -> None:
    with pytest.raises(InputError, match=r"prediction_layers 1 with kept.by pytorch.*target: megatron"):
        problem_of(job(kept={"by": "pytorch"}))


def test_frameworks_that_cannot_say_so() -> None:
    other = make_plan(Degrees(pp=2), prediction_layers=1)
    other = other.model_copy(update={"layers_per_stage": ((16,), (17,))})
    with pytest.raises(EmitError, match=r"prediction_layers 1: torchtitan 0\.3\.0 trains its models without"):
        EMITTERS["torchtitan"](other)
    gpt = make_plan(Degrees(pp=2), prediction_layers=1, workload=load_workload("gpt3-175b"))
    gpt = gpt.model_copy(update={"layers_per_stage": ((48,), (49,))})
    with pytest.raises(EmitError, match="prediction_layers 1 with learned positions or yarn"):
        EMITTERS["megatron"](gpt)


@pytest.mark.heavy
def test_a_last_chunk_without_the_prediction_layer_does_not_verify(plan: Plan) -> None:
    stages = ((3,), (3,), (3,), (0,))
    empty = plan.model_copy(
        update={"layers_per_stage": stages, "decision": plan.decision.model_copy(update={"layers_per_stage": stages})}
    )
    with pytest.raises(sa.VerificationError, match="prediction layers run next to the head"):
        sa.verify(empty)


@pytest.mark.heavy
def test_the_plan_that_improves_settings_trains_the_layers_that_they_train(tmp_path: Path) -> None:
    arguments = "--num-layers 8 --micro-batch-size 1 --global-batch-size 16 --seq-length 2048 --bf16 --use-distributed-optimizer"
    (tmp_path / "args.sh").write_text(f"torchrun pretrain_gpt.py {arguments} --pipeline-model-parallel-size 4")
    found = sa.improve_settings("megatron", tmp_path / "args.sh", job(), world=8, time_limit_s=5, alternatives=False)
    assert (found.present.job.prediction_layers, found.planned.job.prediction_layers) == (0, 0)
