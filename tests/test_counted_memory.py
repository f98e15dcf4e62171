"""V3 counts memory layer by layer and action by action, and the result equals the cost model's formula."""

from __future__ import annotations

import random
from math import prod

from instances import moe, plain_job
from scaleacross.schedules.pipeline import SCHEDULES, is_legal
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import SHARD_LEVELS, Degrees, PipelineChoice, ScheduleName
from scaleacross.spec.placement import BuildingShare, Placement
from scaleacross.spec.plan import Decision
from scaleacross.spec.recomputation import RECOMPUTES
from scaleacross.verification import TOLERANCE, counted_memory, recompute
from scaleacross.verification.memory import v3_memory
from scaleacross.verification.shares import counted_layout
from scaleacross.workloads.problem import Problem, problem_of


def drawn(rng: random.Random, schedule: ScheduleName) -> tuple[Problem, Decision] | None:
    """A random decision in one building with any shard level and recomputation.

    The model is dense or has experts, and its layers may not divide.
    """
    pp, v, experts = rng.choice([1, 2, 4]), rng.choice([1, 2, 3]), rng.random() < 0.5
    shard, policy, ep = rng.choice(SHARD_LEVELS), rng.choice(RECOMPUTES), rng.choice([1, 2]) if experts else 1
    m = rng.choice([3, 5, 8])
    if not is_legal(schedule, pp, m, v) or pp * v > 8 or (shard == "none" and ep > 1):
        return None
    degrees = {"tp": rng.choice([1, 2]), "cp": rng.choice([1, 2]), "pp": pp, "dp_replicate": 1}
    degrees["dp_shard"] = 1 if shard == "none" else 2 * ep
    size = prod(degrees.values())
    dense = {"num_dense_layers": 1, "dense_intermediate_size": 768} if rng.random() < 0.5 else {}
    data = plain_job(8).model_dump(exclude_none=True) | {"global_batch_sequences": m * degrees["dp_shard"]}
    if rng.random() < 0.5:  # as torchtitan runs it
        compiled = rng.choice([(), ("model",), ("loss",), ("model", "loss")])
        kept = {"loss_chunks": rng.choice([1, 8]), "compiled": compiled, "autocast": rng.random() < 0.25}
        data |= {"kept": {"by": "pytorch", **kept}}
        data["optimizer"] = data.get("optimizer", {}) | {"gathered_from_master": True}
    else:
        data |= {"prediction_layers": rng.choice([0, 1])}
    job = Job.model_validate(data | ({"workload": moe(num_layers=13, **dense)} if experts else {}))
    placement = Placement(
        axis_order=("tp", "cp", "dp_shard", "pp", "dp_replicate"),
        fill=(BuildingShare(building="b0", num_accelerators=size),),
    )
    pipeline = PipelineChoice(schedule=schedule, num_chunks=v, micro_batch_sequences=1)
    decision = Decision(
        degrees=Degrees(**degrees, ep=ep), pipeline=pipeline, recompute=policy, shard=shard, placement=placement
    )
    if policy == "per_stage":
        own = tuple(rng.choice(("none", "full")) for _ in range(pp))
        decision = decision.model_copy(update={"stage_recompute": own})
    return problem_of(job), decision


def test_counted_bytes_are_the_cost_model_s() -> None:
    rng, seen = random.Random(22), set()
    for schedule in [name for name in SCHEDULES if name != "DualPipe"] * 8:
        found = drawn(rng, schedule)
        if found is None:
            continue
        problem, decision = found
        counted = counted_memory(problem, decision, counted_layout(problem.topology, decision))
        stated = recompute(problem, decision).memory
        wrong = list(v3_memory(stated, counted, TOLERANCE))
        assert not [line for line in wrong if "stated" in line], decision
        seen.add(
            (schedule, decision.shard, decision.recompute, problem.profile.num_experts > 0, decision.degrees.pp > 1)
        )
    for place, kinds in enumerate((8, 3, 3, 2, 2)):
        assert len({one[place] for one in seen}) >= kinds, (place, seen)
