"""The first lines of a report: their number and their content."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from scaleacross.report.explanation import explanation_line, explanation_report, explanation_summary
from scaleacross.report.plan import decision
from scaleacross.report.summary import MAX_LINES, effect, plan_line, plan_summary
from scaleacross.spec.explanation import Explanation, Phase, RunnerUp, Sensitivity
from scaleacross.spec.plan import Alternative, Finalist, Plan, SolveReport
from scaleacross.spec.summary import PlanSummary, TokenCost
from scaleacross.workloads.space import EQUAL_STAGES, QUICK

Render = Callable[..., str]
SLOW = Sensitivity(figure="campus bandwidth", change_fraction=0.1, elasticity=-0.25, less_s=0.3, more_s=-0.2)
FLOP = Sensitivity(figure="accelerator FLOP/s", change_fraction=0.1, elasticity=-0.8, less_s=0.9, more_s=-0.7)
FOUND = PlanSummary(
    bottlenecks=(FLOP, SLOW),
    money=TokenCost(unit="EUR", used=0.25, owned=1.5, useful=False),
    energy=TokenCost(unit="kWh", used=0.125, useful=False),
)


def facts(text: str) -> dict[str, str]:
    """Label -> the text after it, with folded lines joined."""
    out: dict[str, str] = {}
    label = ""
    for line in text.splitlines():
        label = line[:12].strip() or label
        out[label] = f"{out.get(label, '')} {line[12:].strip()}".strip()
    return out


def test_first_lines_say_what_decides(plan: Plan, render: Render) -> None:
    said = facts(render(plan_summary(plan, FOUND)))
    assert said["plan"] == "demo: tp 8 · dp_replicate 2 · pp 4 = 64 accelerators; 1F1B; recompute selective, shard none"
    assert said["step time"] == "10.00 s · 104.9 k tokens/s · MFU 43.5 % · 430 TFLOP/s each"
    assert said["memory"] == "26.0 of 80.0 GiB free (32.5 %) on the fullest stage, 0"
    assert said["buildings"] == "east 40 of 64; west 24 of 24"
    assert said["bottleneck"] == (
        "10 % more accelerator FLOP/s saves 7.00 % of the step; 10 % more campus bandwidth saves 2.00 % of the step"
    )
    assert said["next best"] == "+212 ms with first: dp across: exposed reduce"
    assert said["proof"] == "optimal; estimate 10.00 s, bound 9.50 s, gap 5.0 %"
    assert said["cost"] == "0.25 EUR per million tokens; 1.5 EUR as owned, idle parts paid too"
    assert said["energy"] == "0.125 kWh per million tokens"


def test_the_proof_says_that_it_is_one_of_the_quick_space(plan: Plan, render: Render) -> None:
    noted = plan.report.model_copy(update={"notes": (f"{QUICK}shard gradients",)})
    said = facts(render(plan_summary(plan.model_copy(update={"report": noted}), FOUND)))
    assert said["proof"] == "optimal (--space quick); estimate 10.00 s, bound 9.50 s, gap 5.0 %"


def test_the_proof_says_that_it_is_one_on_equal_stages(plan: Plan, render: Render) -> None:
    report = plan.report.model_copy(update={"notes": (f"{QUICK}shard gradients", f"{EQUAL_STAGES}, others were tried")})
    said = facts(render(plan_summary(plan.model_copy(update={"report": report}), FOUND)))
    assert said["proof"] == "optimal (--space quick, equal stages); estimate 10.00 s, bound 9.50 s, gap 5.0 %"


def test_a_bound_that_is_reached_is_said_once(plan: Plan, render: Render) -> None:
    report = plan.report.model_copy(update={"bound_s": plan.report.objective_s})
    said = facts(render(plan_summary(plan.model_copy(update={"report": report}), FOUND)))
    assert said["proof"] == "optimal; estimate and bound 10.00 s"


@pytest.mark.parametrize(("simulated_s", "words"), [(10.4, "4.0 % above"), (9.5, "5.0 % below"), (10.05, "")])
def test_the_proof_says_how_far_the_simulated_step_is_from_the_estimate(
    plan: Plan, render: Render, simulated_s: float, words: str
) -> None:
    """Bound and gap concern the estimate of 10 s. A difference below 1 % is not worth a line."""
    said = facts(render(plan_summary(plan.model_copy(update={"simulated_s": simulated_s}), FOUND), width=200))
    told = f"; the simulated step is {words} the estimate" if words else ""
    assert said["proof"].endswith(f"gap 5.0 %{told}")


def test_keys_of_the_model_s_file_that_nothing_reads_are_named(plan: Plan, render: Render) -> None:
    job = plan.job.model_copy(update={"workload": {"name": "odd", "unread_keys": ["num_local_experts 8"]}})
    odd = plan.model_copy(update={"job": job})
    assert facts(render(plan_summary(odd, FOUND)))["not read"] == "of the model's file: num_local_experts 8"
    assert "of the model's file: num_local_experts 8" in render(decision(odd))
    assert "not read" not in facts(render(plan_summary(plan, FOUND)))


def test_nothing_is_said_of_prices_that_nobody_stated(plan: Plan, render: Render) -> None:
    said = facts(render(plan_summary(plan, PlanSummary(bottlenecks=()))))
    assert not {"cost", "energy"} & set(said)
    assert said["bottleneck"] == "more of no figure of the topology changes the step time"


def test_a_building_alone_says_what_the_other_one_brings(plan: Plan, render: Render) -> None:
    alone = Alternative(label="east alone", decision=plan.decision, step_s=12.5, reason="40 accelerators")
    report = plan.report.model_copy(update={"alternatives": (alone,)})
    said = facts(render(plan_summary(plan.model_copy(update={"report": report}), FOUND)))
    assert said["buildings"].startswith("west brings 25.0 % more tokens/s than east alone (12.50 s)")
    assert "next best" not in said
    lost = alone.model_copy(update={"step_s": None, "reason": "needs 90 GiB"})
    report = plan.report.model_copy(update={"alternatives": (lost,)})
    said = facts(render(plan_summary(plan.model_copy(update={"report": report}), FOUND)))
    assert said["buildings"].startswith("east alone cannot run the job (needs 90 GiB): west makes it possible")


def test_a_building_with_another_library_says_why_it_is_left_out(plan: Plan, render: Render) -> None:
    data = plan.model_dump()
    data["job"]["topology"]["regions"][0]["buildings"][0]["accelerator"]["collective_library"] = "rccl"
    data["decision"]["placement"]["fill"] = data["decision"]["placement"]["fill"][1:]
    said = facts(render(plan_summary(Plan.model_validate(data), FOUND)))
    assert said["buildings"] == "east 0 of 64 (runs RCCL, which cannot join the others); west 24 of 24"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("written", [False, True])
def test_there_are_never_more_lines_than_fifteen(plan: Plan, render: Render, width: int, written: bool) -> None:
    """A summary has at most fifteen lines, with the longest names and reasons, and with the next command."""
    long = Alternative(label="other " * 30, decision=plan.decision, step_s=11.0, reason="a reason; " * 40)
    finalist = Finalist(decision=plan.decision, price_s=10.0, replayed_s=10.5)
    report = plan.report.model_copy(update={"alternatives": (long,), "finalists": (finalist,) * 2})
    topology = {**plan.job.topology, "description": "assumed buildings " * 8}  # type: ignore[dict-item]
    job = plan.job.model_copy(update={"name": "a-job-with-a-name-" * 4, "topology": topology})
    text = render(plan_summary(plan.model_copy(update={"report": report, "job": job}), FOUND, written), width=width)
    assert len(text.splitlines()) <= MAX_LINES - written
    assert max(map(len, text.splitlines())) <= width
    assert "proof" in text and "bottleneck" in text


def test_reasons_are_cut_before_decisions(plan: Plan, render: Render) -> None:
    long = Alternative(label="other", decision=plan.decision, step_s=11.0, reason="a reason; " * 60)
    report = plan.report.model_copy(update={"alternatives": (long,)})
    said = facts(render(plan_summary(plan.model_copy(update={"report": report}), FOUND), width=80))
    assert said["next best"].endswith("…")
    assert said["plan"].endswith("shard none")


def test_one_line_has_no_markup_and_no_escape_codes(plan: Plan) -> None:
    job = plan.job.model_copy(update={"name": "[b]x\x1b[2J\n"})
    line = plan_line(plan.model_copy(update={"job": job}))
    assert "\x1b" not in line
    assert "10.00 s, 104.9 k tokens/s, MFU 43.5 %" in line
    assert line.endswith("gap 5.0 %")


def test_one_line_of_an_evaluation_states_no_gap(plan: Plan) -> None:
    """Its bound is that of arithmetic alone: the gap was 81 % where the search of the same plan had said 44 %."""
    report = plan.report.model_copy(update={"status": "evaluated"})
    line = plan_line(plan.model_copy(update={"report": report}))
    assert line.endswith("nothing searched")
    assert "gap" not in line


def test_sensitivities_say_what_trunks_alone_bring(render: Render) -> None:
    """Sensitivities state the gain of inter-building links alone.

    Earlier only the line "bottleneck" of a plan stated it, not the section of ``explain``.
    """
    wider = SLOW.model_copy(update={"trunks_more_s": -0.12})
    found = Explanation(name="demo", step_s=10.0, runner_ups=(), phases=(), sensitivities=(wider, FLOP), seconds=1.0)
    (row,) = [line for line in render(explanation_report(found)).splitlines() if "campus bandwidth" in line]
    assert "−120 ms with wider inter-building links alone" in row


def test_a_gap_names_the_objective_that_it_is_of(plan: Plan) -> None:
    """A gap names its objective.

    Next to bound_s, which is always a step time, it was read as a gap of the step time.
    """
    assert plan.report.gap_of == "step_time"
    data = plan.report.model_dump(mode="json", exclude={"gap_of"})
    value = {"name": "tokens_per_s_per_megawatt", "value": 1.0, "bound": 2.0, "unit": "J", "spent_per_step": 4.0}
    data["objective"] = {**value, "spent_bound_per_step": 2.0, "parts": {}}
    assert SolveReport.model_validate(data).gap_of == "tokens_per_s_per_megawatt"
    for wrong in ({**data, "gap_of": "step_time"}, {**data, "objective": None, "gap_of": "useful_tokens_per_s"}):
        with pytest.raises(ValidationError, match="gap_of: the gap is of "):
            SolveReport.model_validate(wrong)


def test_explanation_begins_with_what_matters_most(plan: Plan, render: Render) -> None:
    runner_ups = tuple(
        RunnerUp(
            decision=name,
            chosen="8",
            runner_up="4",
            step_s=10 + late,
            difference_s=late,
            difference_fraction=late / 10,
            status="proved",
            reason="",
        )
        for name, late in (("tp", 2.0), ("pp", 0.5), ("ep", 5.0), ("cp", 1.0))
    )
    phases = tuple(
        Phase(name=name, seconds=seconds, resource=resource, why="")
        for name, seconds, resource in (("dp", 1.0, "trunk"), ("compute", 7.0, "compute"), ("memory", None, "memory"))
    )
    found = Explanation(
        name="demo", step_s=10.0, runner_ups=runner_ups, phases=phases, sensitivities=(SLOW, FLOP), seconds=1.0
    )
    shown = render(explanation_summary(found))
    assert shown.index("accelerator FLOP/s saves 7.00 %") < shown.index("campus bandwidth saves 2.00 %")
    assert shown.index("computation of the busiest stage 7.00 s: compute") < shown.index(
        "data-parallel, exposed 1.00 s"
    )
    assert shown.index("pp 4, not 8: +500 ms") < shown.index("cp 4") < shown.index("tp 4")
    assert "ep 4" not in shown
    assert len(shown.splitlines()) <= MAX_LINES
    assert "demo: 10.00 s per step\n" in shown
    simulated = render(explanation_summary(found.model_copy(update={"simulated_s": 9.0})))
    assert "demo: 9.00 s per step, simulated; what follows is of its estimate, 10.00 s" in simulated
    assert explanation_line(found) == "demo: 10.00 s; 10 % more accelerator FLOP/s saves 7.00 % of the step"


def test_more_of_a_time_costs_and_more_of_a_rate_saves() -> None:
    host = SLOW.model_copy(update={"figure": "launch and host time", "less_s": -0.02, "more_s": 0.018})
    rate = SLOW.model_copy(update={"figure": "HBM bandwidth", "less_s": 0.05, "more_s": -0.03})
    assert effect(host, 2.0) == "10 % more launch and host time costs 0.90 % of the step"
    assert "(" not in effect(SLOW.model_copy(update={"trunks_more_s": -0.195}), 10.0)
    nics = SLOW.model_copy(update={"trunks_more_s": 0.0})
    assert effect(nics, 10.0).endswith("saves 2.00 % of the step (0.00 % where inter-building links alone are wider)")
    assert effect(rate, 2.0) == "10 % more HBM bandwidth saves 1.50 % of the step"


@pytest.mark.parametrize(("alone_s", "little"), [(10.1, True), (9.9, True), (12.5, False), (None, False)])
def test_a_building_that_brings_little_is_said_with_the_way_out(
    plan: Plan, render: Render, alone_s: float | None, little: bool
) -> None:
    reason = "needs 90 GiB" if alone_s is None else "40 accelerators"
    alone = Alternative(label="east alone", decision=plan.decision, step_s=alone_s, reason=reason)
    found = plan.model_copy(update={"report": plan.report.model_copy(update={"alternatives": (alone,)})})
    said = facts(render(plan_summary(found, FOUND)))
    assert ("little won" in said) is little
    if little:
        share = 1 - plan.placement.fill[0].num_accelerators / plan.degrees.world_size
        more = "1.0 %" if alone_s == 10.1 else "0.0 %"
        assert said["little won"].startswith(f"{more} more tokens/s for {share * 100:.1f} % of the accelerators")
        assert "num_accelerators:" in said["little won"] and "objective" in said["little won"]
