"""Effects of a failure, counted rank by rank, and times that come from the plan."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest

from instances import plain_job, plain_topology
from scaleacross.cost_models.goodput import fault_model, goodput_of, unit_loss
from scaleacross.cost_models.goodput.recovery import recovery_times, state_bytes
from scaleacross.cost_models.goodput.share import useful_share
from scaleacross.cost_models.goodput.strikes import Laid, strikes_of, units_cut_off, units_hit
from scaleacross.errors import InputError
from scaleacross.spec.goodput import Goodput
from scaleacross.spec.parallelism import Degrees, PipelineChoice
from scaleacross.spec.placement import BuildingShare, Placement, coordinates, devices
from scaleacross.spec.plan import Decision
from scaleacross.spec.reliability import Failures, Recovery
from scaleacross.spec.topology import Topology
from scaleacross.workloads.problem import problem_of

DEGREES = Degrees(tp=2, pp=2, dp_shard=2, dp_replicate=2)
FILL = (BuildingShare(building="b0", num_accelerators=12), BuildingShare(building="b1", num_accelerators=4))


def test_units_hit_equal_counting_rank_by_rank() -> None:
    topology = Topology.model_validate(plain_topology(3, 2))
    for order in permutations(("tp", "pp", "dp_shard", "dp_replicate")):
        axes = ("cp", *order)
        placement = Placement(axis_order=axes, fill=FILL)  # type: ignore[arg-type]
        for level in ("accelerator", "host", "rack", "zone", "building"):
            hit: dict[tuple[object, ...], set[int]] = {}
            for position, device in enumerate(devices(topology, placement)):
                part = {
                    "accelerator": (device.host, device.local),
                    "host": (device.host,),
                    "rack": (device.zone, device.rack),
                    "zone": (device.zone,),
                }.get(level, ())
                group = coordinates(DEGREES, axes, position)["dp_replicate"]  # type: ignore[arg-type]
                hit.setdefault((device.building, *part), set()).add(group)
            counted = Counter(len(groups) for groups in hit.values())
            assert units_hit(Laid(topology, FILL, DEGREES, axes), level) == counted  # type: ignore[arg-type]


def test_a_link_takes_what_it_cuts_off() -> None:
    topology = Topology.model_validate(plain_topology(3, 2))
    apart = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
    even = (BuildingShare(building="b0", num_accelerators=8), BuildingShare(building="b1", num_accelerators=8))
    laid = Laid(topology, even, DEGREES, apart)  # type: ignore[arg-type]
    assert units_cut_off(laid) == [(("b0", "b1"), 1)]
    assert units_cut_off(laid._replace(axis_order=apart[::-1])) == [(("b0", "b1"), 2)]
    twice = topology.model_copy(update={"trunks": topology.trunks * 2})
    assert {hit for _, hit in units_cut_off(laid._replace(topology=twice))} == {0}


def test_rates_add_up_to_those_of_all_nodes() -> None:
    topology = Topology.model_validate(plain_topology(3, 2))
    failures = Failures(failures_per_1000_node_days=4.0, accelerator_mtbf_hours=1000, zone_mtbf_hours=100)
    for order in (("dp_replicate", "tp", "cp", "pp", "dp_shard"), ("tp", "cp", "pp", "dp_shard", "dp_replicate")):
        strikes = strikes_of(failures, Laid(topology, FILL, DEGREES, order))  # type: ignore[arg-type]
        by_cause = Counter[str]()
        for strike in strikes:
            by_cause[strike.cause] += strike.rate_per_s  # type: ignore[assignment]
        assert by_cause["host"] == pytest.approx(4e-3 * 2 / 86_400)
        assert by_cause["accelerator"] == pytest.approx(16 / 3.6e6)
        worst = max(strike.units_hit for strike in strikes if strike.cause == "host")
        assert worst == (2 if order[0] == "dp_replicate" else 1)


def test_times_come_from_the_plan() -> None:
    problem = problem_of(plain_job(2, 2))
    states = state_bytes(problem.job, problem.profile)
    assert states == problem.profile.total_parameters * 14
    few = recovery_times(problem.job, problem.profile, 1024, 1, 8)
    many = recovery_times(problem.job, problem.profile, 1024, 16, 8)
    assert many.recover_s < few.recover_s, "a unit sets up only its own connections"
    assert many.restart_s >= few.restart_s
    hot = plain_job(2, 2, reliability={"policy": "hot_spare"})
    assert recovery_times(hot, problem.profile, 1024, 1, 8).recover_s == pytest.approx(few.recover_s - 320)
    stated = plain_job(2, 2, reliability={"recover_s": 9, "stall_s": 7})
    times = recovery_times(stated, problem.profile, 1024, 4, 8)
    assert (times.recover_s, times.stall_s) == (9, 7)
    times = recovery_times(plain_job(2, 2, reliability={"stall_s": 1e5}), problem.profile, 1024, 4, 8)
    assert times.stall_s == times.recover_s < 1e5, "nobody stalls longer than the recovery lasts"


def test_who_takes_over_takes_whole_micro_batches() -> None:
    keep = Recovery(batch_policy="keep")
    assert unit_loss(Recovery(), 4, 6) == 0.25
    assert unit_loss(keep, 4, 6) == 0.25, "8 micro-batches instead of 6"
    assert unit_loss(keep, 4, 1) == 0.5, "2 instead of 1"
    assert unit_loss(keep, 1, 5) == 1


@pytest.mark.heavy
def test_goodput_of_a_plan_names_what_it_assumes() -> None:
    topology = plain_topology(2, 2) | {"reliability": {"host_mtbf_hours": 10}}
    problem = problem_of(plain_job(topology=topology, reliability={"detect_s": 5}))
    decision = sa_decision(problem)
    found = goodput_of(problem, decision, 2.0)
    assert found.goodput_fraction == pytest.approx(1 - sum(found.lost.values()))
    assert found.useful_tokens_per_s == pytest.approx(found.goodput_fraction * problem.job.tokens_per_step / 2)
    assert "detect_s" not in found.assumed
    assert "failures_per_1000_node_days" not in found.assumed
    assert "(second-hand)" in found.assumed["first_step_s"]
    shares = [rate.goodput_fraction for rate in found.at_published_rates]
    assert shares == sorted(shares), "highest rate first"
    placement = decision.placement
    assert placement is not None
    laid = Laid(problem.topology, placement.fill, decision.degrees, placement.axis_order)
    assert useful_share(fault_model(problem.job, problem.profile, laid, 4))[0] == pytest.approx(found.goodput_fraction)


def test_checkpoints_stated_sooner_than_storage_has_them_are_taken_as_it_can() -> None:
    """Checkpoints are no more frequent than storage allows.

    A state of 14 bytes per parameter goes to storage at a rate per host. The report states the interval that it uses.
    """
    topology = plain_topology(2, 2) | {"reliability": {"host_mtbf_hours": 10}}

    decision = Decision(
        degrees=Degrees(tp=2, pp=2, dp_shard=2),
        pipeline=PipelineChoice(schedule="1F1B", num_chunks=1, micro_batch_sequences=1),
        recompute="none",
        shard="optimizer",
        placement=Placement(
            axis_order=("tp", "cp", "pp", "dp_shard", "dp_replicate"),
            fill=(BuildingShare(building="b0", num_accelerators=8),),
        ),
    )

    def found(**recovery: float) -> Goodput:
        job = plain_job(topology=topology, reliability={"load_bytes_per_s": 1e8, **recovery})
        return goodput_of(problem_of(job), decision, 2.0)

    sooner = found(checkpoint_interval_s=1e-3)
    least = sooner.model.checkpoint_interval_s
    assert least is not None and least > 1e-3
    assert "of the 0.001 stated" in sooner.assumed["checkpoint_interval_s"]
    later = found(checkpoint_interval_s=2 * least)
    assert later.model.checkpoint_interval_s == 2 * least
    assert "checkpoint_interval_s" not in later.assumed


def test_failures_that_leave_no_time_are_refused() -> None:
    topology = plain_topology(2, 2) | {"reliability": {"host_mtbf_hours": 1e-4}}
    problem = problem_of(plain_job(topology=topology))
    with pytest.raises(
        InputError,
        match=r"nothing is ever trained: something fails every \S+ s and takes \S+ s to restart; "
        r"of the time are lost: .*restart 100\.0 %\. .* a shorter checkpoint_interval_s",
    ):
        goodput_of(problem, sa_decision(problem_of(plain_job(2, 2, schedules="1F1B", recompute="none"))), 2.0)


def sa_decision(problem):  # type: ignore[no-untyped-def]
    import scaleacross as sa

    return sa.plan(problem.job, time_limit_s=5, alternatives=False).decision
