from __future__ import annotations

import re
from collections.abc import Callable
from typing import get_args

import pytest
from rich.console import RenderableType

from scaleacross.report.cost import COMPONENT_MEANING, STATUS_MEANING, alternatives, proof, step
from scaleacross.report.memory import collapse, elide, memory, stacked_bar
from scaleacross.report.plan import decision, placement
from scaleacross.report.terminal import plan_report
from scaleacross.report.traffic import collectives, network, traffic
from scaleacross.spec.network_report import NetworkReport
from scaleacross.spec.plan import COMPONENTS, Alternative, CostBreakdown, Plan, SolveReport, StageMemory

GIB = 2.0**30
Render = Callable[..., str]
MakeStage = Callable[..., StageMemory]


def line_with(text: str, *words: str) -> str:
    """The only line that contains all ``words``, with runs of spaces reduced to one."""
    hits = [line for line in text.splitlines() if all(word in line for word in words)]
    assert len(hits) == 1, f"{len(hits)} lines with {words} in:\n{text}"
    return " ".join(hits[0].split())


def test_decision_shows_every_factor_and_the_layers(plan: Plan, render: Render) -> None:
    shown = render(decision(plan))
    assert "tp 8 · cp 1 · pp 4 · dp_shard 1 · dp_replicate 2 = 64" in shown
    assert "7, 8 × 2, 7 per stage" in shown
    assert "tiny-llama on pair" in shown
    assert "128 sequences × 8,192 tokens = 1,048,576 tokens per step, bf16" in shown


def test_layers_of_interleaved_stages_run_in_model_order(plan: Plan, render: Render) -> None:
    # 2 ranks × 2 chunks: rank 0 holds virtual stages 0 and 2, rank 1 holds 1 and 3
    pipeline = plan.decision.pipeline.model_copy(update={"schedule": "Interleaved1F1B", "num_chunks": 2})
    chosen = plan.decision.model_copy(update={"pipeline": pipeline})
    shown = render(decision(plan.model_copy(update={"decision": chosen, "layers_per_stage": ((1, 3), (2, 4))})))
    assert "1, 2, 3, 4 per virtual stage" in shown


def test_placement_shows_strides_levels_and_idle_accelerators(plan: Plan, render: Render) -> None:
    shown = render(placement(plan))
    assert line_with(shown, "pp", "pipeline").split()[-3:] == ["4", "8", "zone"]
    assert line_with(shown, "dp_replicate").split()[-3:] == ["2", "32", "campus"]
    assert line_with(shown, "east") == "east 0–39 40 64 24"
    assert line_with(shown, "west") == "west 40–63 24 24 0"


def test_placement_names_buildings_left_empty(plan: Plan, render: Render) -> None:
    allocation = (plan.placement.fill[0].model_copy(update={"num_accelerators": 64}),)
    chosen = plan.decision.model_copy(update={"placement": plan.placement.model_copy(update={"fill": allocation})})
    assert line_with(render(placement(plan.model_copy(update={"decision": chosen}))), "west") == "west – 0 24 24"


def test_step_shares_add_up_to_the_step(plan: Plan, render: Render) -> None:
    shown = render(step(plan))
    shares = [float(share) for share in re.findall(r"(\d+\.\d) %", shown.split("step ", 1)[0])][: len(COMPONENTS)]
    assert len(shares) == len(COMPONENTS)
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(COMPONENTS))
    assert "104.9 k tokens/s · 430 TFLOP/s per accelerator (model FLOP) · MFU 43.5 %" in shown


def test_bars_are_proportional_to_time(plan: Plan, render: Render) -> None:
    shown = render(step(plan))
    compute, bubble = (line_with(shown, name).count("█") for name in ("computation", "bubble"))
    assert (compute, bubble) == (21, 3)  # 7 s and 1 s of 10 s on 30 cells


@pytest.mark.parametrize("axis", ["tp", "cp", "ep", "pp", "dp"])
def test_exposed_communication_has_a_row_per_axis(plan: Plan, render: Render, axis: str) -> None:
    cost = CostBreakdown(**{**plan.cost.model_dump(), "compute_s": 0.0, "exposed_s": {axis: 10.0}})
    shown = render(step(plan.model_copy(update={"cost": cost})))
    assert line_with(shown, COMPONENT_MEANING[axis]) == f"{COMPONENT_MEANING[axis]} 10.00 s 100.0 % " + "█" * 30


def test_equal_stages_collapse(plan: Plan, render: Render) -> None:
    shown = render(memory(plan.memory))
    assert line_with(shown, "1–2").startswith("1–2 8 10.0 10.0 10.0 20.0 0.0 4.0 54.0 80.0 67.5 %")
    assert len(collapse(plan.memory)) == 3


def test_memory_table_is_readable_at_100_columns(plan: Plan, render: Render) -> None:
    assert "…" not in render(plan_report(plan), width=100)


def test_stacked_bar_fills_in_proportion(make_stage_memory: MakeStage) -> None:
    # 10, 10, 10, 20, 0, 4 of 80 GiB on 40 cells: two GiB a cell
    assert (
        stacked_bar(make_stage_memory(0, 8), width=40).plain
        == "P" * 5 + "G" * 5 + "O" * 5 + "A" * 10 + "R" * 2 + "·" * 13
    )


def test_overfull_stage_is_marked(make_stage_memory: MakeStage) -> None:
    assert stacked_bar(make_stage_memory(0, 8, activations=60.0), width=40).plain.endswith("A!")


def test_long_pipelines_keep_ends_and_the_fullest_stage(make_stage_memory: MakeStage) -> None:
    stages = [make_stage_memory(stage, 2, activations=30.0 - abs(stage - 40) / 4) for stage in range(64)]
    shown = elide(collapse(stages), limit=9)
    kept = [run[0].stage if run else None for run in shown]
    assert kept == [0, 1, 2, 3, None, 40, None, 60, 61, 62, 63]


def test_traffic_row(plan: Plan, render: Render) -> None:
    assert line_with(render(traffic(plan)), "campus").startswith("campus 25.0 GiB 300 GB/s 0.9 %")


def test_collectives_are_sorted_by_total_time(plan: Plan, render: Render) -> None:
    shown = render(collectives(plan))
    assert shown.index("dp_replicate all_reduce") < shown.index("tp all_gather")
    assert line_with(shown, "tp all_gather") == "tp all_gather 8 256.0 MiB scale_up ring 600 µs 1,024 614 ms"


def test_proof_states_bound_gap_and_reasons(plan: Plan, render: Render) -> None:
    shown = render(proof(plan))
    assert "9.50 s (gap 5.0 % of the step)" in shown
    assert "3,412 candidates: 3,012 refused, 390 excluded by their lower bound, 10 placed exactly" in shown
    assert "3,000 memory; 12 heads not divisible" in shown
    assert line_with(shown, "compute").startswith("compute 6.00 s 60.0 %")


def test_every_status_has_words_of_its_own(plan: Plan, render: Render) -> None:
    seen = set()
    for status in get_args(SolveReport.model_fields["status"].annotation):
        report = plan.report.model_copy(update={"status": status})
        line = line_with(render(proof(plan.model_copy(update={"report": report}))), "status")
        assert status.replace("_", " ") in line
        seen.add(line)
    assert len(seen) == len(STATUS_MEANING)


def test_three_best_alternatives_in_order_with_reasons(plan: Plan, render: Render) -> None:
    shown = render(alternatives(plan))
    assert [shown.index(label) for label in ("first", "second", "fourth")] == sorted(
        shown.index(label) for label in ("first", "second", "fourth")
    )
    assert line_with(shown, "first") == "first 10.21 s 212 ms dp across: exposed reduce"
    assert "too-big" not in shown
    assert line_with(render(alternatives(plan, limit=4)), "too-big") == "too-big – infeasible 4.2 GiB short"


def test_names_are_not_read_as_markup(plan: Plan, render: Render) -> None:
    job = plan.job.model_copy(update={"name": "[bold]a[/bold]\x1b[2J", "workload": {"name": "[/red]"}})
    shown = render(plan_report(plan.model_copy(update={"job": job})))
    assert "[bold]a[/bold]" in shown
    assert "[/red] on pair" in shown
    assert "\x1b" not in shown


def test_no_section_is_printed_empty(plan: Plan, render: Render) -> None:
    report = plan.report.model_copy(update={"alternatives": (), "notes": (), "bounds": ()})
    shown = render(plan_report(plan.model_copy(update={"traffic": (), "collectives": (), "report": report})))
    for title in ("Traffic", "Collectives", "alternatives", "Notes"):
        assert title not in shown


def test_report_holds_every_section(plan: Plan, render: Render) -> None:
    whole = render(plan_report(plan))
    parts: list[RenderableType] = [decision(plan), placement(plan), step(plan), memory(plan.memory), traffic(plan)]
    parts += [collectives(plan), proof(plan), alternatives(plan)]
    for part in parts:
        assert render(part).strip() in whole
    assert "24 accelerators stay idle" in whole


def test_same_settings_placed_otherwise_are_shown_whatever_their_rank(plan: Plan, render: Render) -> None:
    order = plan.placement.axis_order
    swapped = plan.placement.model_copy(update={"axis_order": (*order[1:], order[0])})
    placed = Alternative(
        label="cp across the buildings",
        decision=plan.decision.model_copy(update={"placement": swapped}),
        step_s=9 * plan.cost.step_s,
        reason="+1 s exposed",
    )
    faster = [
        placed.model_copy(
            update={
                "label": f"other recompute {rank}",
                "decision": plan.decision.model_copy(update={"recompute": "full"}),
                "step_s": plan.cost.step_s * (1 + rank / 10),
            }
        )
        for rank in range(1, 5)
    ]
    report = plan.report.model_copy(update={"alternatives": (*faster, placed)})
    shown = render(alternatives(plan.model_copy(update={"report": report})))
    assert "other recompute 3" in shown
    assert "other recompute 4" not in shown
    assert "cp across the buildings" in shown


@pytest.mark.parametrize(
    ("library_s", "said"), [(1.6, "100 ms more than the 1.50 s"), (1.4, "100 ms less than the 1.50 s")]
)
def test_the_library_s_defaults_are_compared_by_estimate(
    plan: Plan, render: Render, library_s: float, said: str
) -> None:
    """The library's defaults are compared with the plan's estimate.

    The plan's own step is simulated, so its comparison with an estimate would mix two clocks.
    """
    report = NetworkReport(
        status="optimal",
        step_s=1.5,
        bound_s=1.5,
        library_step_s=library_s,
        num_options=1,
        held_channels=1,
        held_queue_pairs=1,
        held_buffer_bytes=1,
        terms=(),
    )
    text = " ".join(render(network(plan.model_copy(update={"network": report}))).split())
    assert (
        f"by estimate the step takes {library_s:.2f} s under the library's defaults, {said} with this network" in text
    )
