"""A verified plan passes, and every single change to it is found under the right number."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import scaleacross as sa
from instances import moe, plain_job, plain_topology
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Plan
from scaleacross.verification import TOLERANCE

NARROW: dict[str, Any] = {"schedules": ["1F1B", "Interleaved1F1B"], "recompute": ["none"], "micro_batch_sequences": [1]}
SIZES: dict[str, Any] = {"num_accelerators": 24, "global_batch_sequences": 24, "sequence_length": 6144}


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A dense plan over two buildings of 16 and 8 accelerators that uses every axis except dp_replicate."""
    return sa.plan(
        plain_job(4, 2, **SIZES, degrees={"tp": 2, "cp": 2, "pp": 2, "dp_shard": 3}, **NARROW),
        gap_tolerance=0.0,
        alternatives=False,
    )


def complaints(plan: Plan) -> list[str]:
    """Messages of verification, one per line; empty if the plan passes."""
    try:
        sa.verify(plan)
    except sa.VerificationError as error:
        return str(error).splitlines()[1:]
    return []


def changed(plan: Plan, path: str, value: Any) -> Plan:
    """A copy of ``plan`` with one value replaced, ``value`` a function of the old one or the new one."""
    data = plan.model_dump()
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    inner: Any = data
    for part in way:
        inner[part] = list(inner[part]) if isinstance(inner[part], tuple) else inner[part]
        inner = inner[part]
    inner[last] = value(inner[last]) if callable(value) else value
    return Plan.model_validate(data)


def test_a_plan_as_it_was_found_passes(plan: Plan) -> None:
    assert complaints(plan) == []
    assert len(plan.placement.fill) == 2


@pytest.mark.heavy
def test_plans_of_every_kind_pass() -> None:
    for job in (
        plain_job(2),
        plain_job(2, 2, workload=moe(), degrees={"ep": 2, "pp": 2}),
        plain_job(2, 2, degrees={"dp_replicate": 2, "pp": 4}, schedules="GPipe"),
        plain_job(topology=plain_topology(1, 1, 1, apart=True), num_accelerators=12, global_batch_sequences=12),
    ):
        assert complaints(sa.plan(job, gap_tolerance=0.1, alternatives=False)) == []


def test_a_plan_of_an_older_version_states_no_work(plan: Plan) -> None:
    assert plan.work is not None
    assert complaints(plan.model_copy(update={"work": None})) == []


def test_a_plan_survives_its_file(plan: Plan) -> None:
    assert complaints(Plan.model_validate_json(plan.model_dump_json())) == []


FIGURES = [
    "estimate.step_s",
    "estimate.compute_s",
    "estimate.bubble_s",
    "estimate.optimizer_s",
    "estimate.tokens_per_s",
    "estimate.model_flop_per_s",
    "estimate.mfu",
    "estimate.exposed_s.tp",
    "estimate.exposed_s.pp",
    "estimate.exposed_s.dp",
    "traffic.0.capacity_bytes_per_s",
    "traffic.0.utilisation",
    "traffic.0.bytes_per_step.tp",
    "collectives.0.bytes_per_rank",
    "collectives.0.per_step",
    "collectives.1.time_s",
]


@pytest.mark.parametrize("path", FIGURES)
def test_v5_every_figure(plan: Plan, path: str) -> None:
    wrong = complaints(changed(plan, path, lambda value: value * (1 + 10 * TOLERANCE)))
    assert wrong
    assert {line[2:4] for line in wrong} <= {"V5", "V6"}
    place = re.sub(r"\.(\d+)", r"[\1]", path).replace("estimate.", "step.")
    assert any(f"V5: {place} is stated as" in line for line in wrong)


def test_v6_every_bound_a_little_above_the_objective(plan: Plan) -> None:
    for index in range(len(plan.report.bounds)):
        wrong = complaints(changed(plan, f"report.bounds.{index}.step_s", plan.estimated.step_s * 1.01))
        assert any("exceeds the objective" in line for line in wrong), index


def test_v5_noise_is_no_difference(plan: Plan) -> None:
    assert complaints(changed(plan, "estimate.compute_s", lambda value: value * (1 + TOLERANCE / 100))) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("layers_per_stage", ((2, 3), (2, 1))),
        ("num_micro_batches", lambda m: m + 1),
        ("decision.placement.spans", {}),
        ("collectives.0.op", "all_reduce"),
        ("collectives.0.algorithm", "tree"),
        ("collectives.0.level", "region"),
        ("collectives.0.group_size", 7),
        ("collectives", lambda all_of_them: all_of_them[1:]),
        ("traffic", lambda all_of_them: all_of_them[:-1]),
        ("collectives.0.phases", {"gradients": 1.0}),
        (
            "work",
            lambda work: {name: {**one, "optimizer_s": [9.0] * len(one["optimizer_s"])} for name, one in work.items()},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_v5_every_fact(plan: Plan, path: str, value: Any) -> None:
    assert any("V5:" in line for line in complaints(changed(plan, path, value)))


def test_v5_components_must_add_up(plan: Plan) -> None:
    wrong = complaints(changed(plan, "cost.bubble_s", lambda seconds: seconds + 0.1))
    assert any("V5: the components add up to" in line for line in wrong)


def placed(plan: Plan, *shares: tuple[str, int]) -> Plan:
    allocation = tuple(BuildingShare(building=name, num_accelerators=count) for name, count in shares)
    placement = Placement(axis_order=plan.placement.axis_order, fill=allocation, spans=plan.placement.spans)
    return plan.model_copy(update={"decision": plan.decision.model_copy(update={"placement": placement})})


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([("b0", 12), ("b1", 12)], "building 'b1' has 8 of 12 accelerators"),
        ([("b0", 16), ("elsewhere", 8)], "there is no building 'elsewhere'"),
        ([("b0", 18), ("b1", 6)], "6 accelerators of 'b1' cut a host of 4"),
        ([("b0", 16)], "the placement holds 16 accelerators, the degrees need"),
        ([("b0", 8), ("b1", 8), ("b0", 8)], "building 'b0' stands 2 times in placement.fill"),
    ],
    ids=str,
)
def test_v1_devices(plan: Plan, shares: list[tuple[str, int]], words: str) -> None:
    wrong = complaints(placed(plan, *shares))
    assert any(line.startswith("- V1: ") and words in line for line in wrong)
    assert all(line.startswith("- V1: ") for line in wrong)


def test_v1_one_collective_library(plan: Plan) -> None:
    mixed = changed(plan, "job.topology.regions.0.buildings.1.accelerator.collective_library", "rccl")
    assert any(
        "V1: b0, b1 run NCCL and RCCL, whose collectives cannot join each other" in line for line in complaints(mixed)
    )


def test_v1_no_placement(plan: Plan) -> None:
    bare = plan.model_copy(update={"decision": plan.decision.model_copy(update={"placement": None})})
    assert complaints(bare) == ["- V1: there is no placement"]


def decided(plan: Plan, job: Job | None = None, **changes: Any) -> Plan:
    return plan.model_copy(update={"decision": plan.decision.model_copy(update=changes), "job": job or plan.job})


def free(plan: Plan) -> Job:
    """The plan with a job without fixed choices, so that only the rules themselves can object."""
    return plan.job.model_copy(update={"degrees": plan.job.degrees.model_validate({})})


def pipeline(**changes: Any) -> PipelineChoice:
    return PipelineChoice(**({"schedule": "1F1B", "num_chunks": 1, "micro_batch_sequences": 1} | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"degrees": Degrees(tp=3, pp=2, dp_shard=4)}, "tp 3 does not divide 4 heads"),
        ({"degrees": Degrees(cp=5, dp_shard=3)}, "6144 tokens do not divide by 2·cp 5 and tp 1"),
        ({"degrees": Degrees(tp=2, pp=2, dp_shard=6, ep=2)}, "ep 2 does not divide 0 experts"),
        ({"degrees": Degrees(tp=2, pp=12), "pipeline": pipeline()}, "8 layers cannot fill pp 12 × 1 chunks"),
        ({"pipeline": pipeline(micro_batch_sequences=5)}, r"24 sequences does not divide by dp · micro-batch = 15"),
        ({"degrees": Degrees(pp=8, dp_shard=3), "pipeline": pipeline(micro_batch_sequences=8)}, "V2: .*1 "),
        ({"shard": "none"}, "dp_shard 3 with nothing sharded"),
    ],
    ids=str,
)
def test_v2_rules(plan: Plan, changes: dict[str, Any], words: str) -> None:
    wrong = complaints(decided(plan, free(plan), **changes))
    assert any(re.search(words, line) for line in wrong), wrong
    assert all(line.startswith(("- V2: ", "- V1: ")) for line in wrong)


def restricted(plan: Plan, **pins: Any) -> Plan:
    return plan.model_copy(update={"job": plan.job.model_copy(update=pins)})


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"degrees": {"tp": 4}}, "pins degrees.tp to 4, the decision has 2"),
        ({"num_accelerators": 16}, "asks for 16 accelerators, the decision uses 24"),
        ({"schedules": ("GPipe",)}, "allows schedules GPipe"),
        ({"recompute": ("full",)}, "allows recompute full"),
        ({"shard": ("none",)}, "allows shard none"),
    ],
    ids=str,
)
def test_v2_what_the_job_pins(plan: Plan, pins: dict[str, Any], words: str) -> None:
    if "degrees" in pins:
        pins = {"degrees": plan.job.degrees.model_validate(pins["degrees"])}
    wrong = complaints(restricted(plan, **pins))
    assert any(line.startswith("- V2: ") and words in line for line in wrong), wrong


@pytest.mark.parametrize(
    "path",
    [
        *("0.parameters_bytes", "0.gradients_bytes", "1.optimizer_bytes", "1.activations_bytes", "0.buffers_bytes"),
        *("0.capacity_bytes", "1.reserved_bytes", "0.num_layers"),
    ],
)
def test_v3_every_byte(plan: Plan, path: str) -> None:
    wrong = complaints(changed(plan, f"memory.{path}", lambda value: value + 1 if "num" in path else value * 1.001 + 1))
    assert len(wrong) == 1
    assert wrong[0].startswith(f"- V3: {path[2:]} of stage {path[0]} is stated as ")


def test_v3_every_stage(plan: Plan) -> None:
    wrong = complaints(changed(plan, "memory", lambda all_of_them: all_of_them[:1]))
    assert wrong == ["- V3: memory is stated of 1 stages, there are 2"]


def test_v3_memory(plan: Plan) -> None:
    data = plan.model_dump()
    for building in data["job"]["topology"]["regions"][0]["buildings"]:
        building["accelerator"]["memory_bytes"] = 40 * 2**20
    wrong = complaints(Plan.model_validate(data))
    assert any(re.search(r"V3: stage 0 needs [\d.]+ MiB of 40.0 MiB per accelerator", line) for line in wrong)


def test_v4_another_order_is_another_cost(plan: Plan) -> None:
    """Figures of one axis order do not verify under another, because shapes are counted again from the device list."""
    order = tuple(reversed(plan.placement.axis_order))
    placement = plan.placement.model_copy(update={"axis_order": order})
    wrong = complaints(decided(plan, placement=placement))
    assert any("V5: step.step_s" in line for line in wrong)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("report.objective_s", lambda s: s * 1.01, "the objective is"),
        ("report.bound_s", lambda s: s * 1.01, "a lower bound of .* exceeds the objective"),
        ("report.bounds.1.step_s", lambda s: s + 1.0, "a lower bound of .* exceeds the objective"),
        ("report.gap", 0.1, "the gap is stated as 0.1"),
    ],
    ids=["objective", "bound", "other bound", "gap"],
)
def test_v6_proof(plan: Plan, path: str, value: Callable[[float], float] | float, words: str) -> None:
    wrong = complaints(changed(plan, path, value))
    assert any(re.search(f"V6: {words}", line) for line in wrong), wrong
    assert all("V6" in line for line in wrong)


def test_v6_optimal_means_no_gap() -> None:
    plan = sa.plan(plain_job(2, schedules=["1F1B"], recompute=["none"]), gap_tolerance=0.0, alternatives=False)
    assert plan.report.status == "optimal"
    loose = changed(changed(plan, "report.bound_s", plan.estimated.step_s * 0.9), "report.gap", 0.1)
    [wrong] = complaints(loose)
    assert "V6: called optimal with a gap of 0." in wrong
    assert complaints(changed(loose, "report.status", "gap_tolerance")) == []


def far_choice(plan: Plan) -> str:
    """Path of the first network choice that leaves the scale-up domain."""
    network = plan.decision.network or ()
    return f"decision.network.{next(i for i, choice in enumerate(network) if choice.connections)}"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "compression",
            {"codec": "int8_block", "levels": ("campus",), "ratio": 3.98, "relative_error": 0.01}
            | {"encode_bytes_per_s": 1e12, "decode_bytes_per_s": 1e12},
            "compression by int8_block, which job.network.compression does not allow",
        ),
        ("chunk_bytes", lambda size: size / 2, "1 chunks of .* bytes are not the .* that are sent"),
        ("num_channels", 0, "0 channels for a group that leaves its domain"),
        ("num_channels", 10_000, "communicators hold .* channels on an accelerator, the job allows 64"),
        ("connections", (), "connections for none; the group crosses"),
        ("payload", "nothing", "the plan has no .* of nothing"),
    ],
)
def test_v9_choices(plan: Plan, name: str, value: Any, words: str) -> None:
    wrong = complaints(changed(plan, f"{far_choice(plan)}.{name}", value))
    assert any(re.search(f"V9: .*{words}|V9: {words}", line) for line in wrong), wrong


@pytest.mark.parametrize("path", ["network.step_s", "network.library_step_s", "network.terms.0.time_s"])
def test_v9_figures(plan: Plan, path: str) -> None:
    wrong = complaints(changed(plan, path, lambda seconds: seconds * 1.01))
    assert any("V9: " in line and "recomputes as" in line for line in wrong), wrong


def test_everything_wrong_is_listed_at_once(plan: Plan) -> None:
    twice = changed(changed(plan, "estimate.mfu", 0.99), "report.gap", 0.5)
    wrong = complaints(twice)
    assert any("V5: step.mfu" in line for line in wrong)
    assert any("V6: the gap" in line for line in wrong)
