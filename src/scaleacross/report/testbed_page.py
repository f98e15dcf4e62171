"""docs/results/testbed.md: measurements in emulated buildings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from scaleacross.report.testbed import conditions_rows, degraded_rows, place_of
from scaleacross.spec.testbed import (
    Bar,
    CollectiveResults,
    CollectiveSetting,
    Conditions,
    TrainingResults,
    TrainingSetting,
)
from scaleacross.units import human_seconds

PROTOCOL: Final = """\
Every host is a network namespace with a network adapter of its own, shaped by a token bucket; every building is a router; trunks
are shaped by a token bucket, and a relay in user space (or netem) holds their packets for the stated time. Hosts run on fixed
cores and, where control groups can be written, on a fixed share of them. Nothing else of the network is modelled: TCP, its
buffers and the kernel's queues are real.

Links and computation are measured first: all-gathers and all-reduces of two hosts for every level, an all-reduce of 4 KiB among
all hosts in more and more chunks (what a message costs), and one host that trains alone. All else is predicted: degrees,
pipeline, collectives of more hosts and bytes, the step. Ranks begin a timed collective at an instant that they have agreed on. A
step is the time between the ends of two steps on the rank that ends last; the first is left out. Gradients are fp32 and reduced
after the last backward pass; layers pass on bf16."""


def results_page(training: TrainingResults, collectives: CollectiveResults, command: str) -> str:
    """The page as Markdown."""
    lines = [
        "# Testbed: emulated buildings on one machine\n",
        f"Written on {training.conditions.date} by the command below; do not edit.\n",
        f"```bash\n{command}\n```\n",
        PROTOCOL,
        *_bars((*training.bars, *collectives.bars)),
        "\n## Training\n",
        "![Steps, measured and predicted](testbed.svg)",
        *(line for setting in training.settings for line in _training(setting)),
    ]
    if training.degraded is not None:
        lines += ["\n## A trunk halved in mid-run\n", "| | |\n|---|---|"]
        lines += [f"| {name} | {text} |" for name, text in degraded_rows(training.degraded)]
    lines += [
        "\n## All-reduce",
        "\n**Bold** is the planner's choice; what has no prediction is no way that a plan offers.",
    ]
    lines += [line for setting in collectives.settings for line in _collective(setting)]
    lines += _where("training", training.conditions)
    lines += _where("collectives", collectives.conditions)
    return "\n".join(lines) + "\n"


def results_json(training: TrainingResults, collectives: CollectiveResults) -> str:
    """Return all results as JSON."""
    both = {"training": training.model_dump(mode="json"), "collectives": collectives.model_dump(mode="json")}
    return json.dumps(both, indent=1) + "\n"


def results_of(text: str) -> tuple[TrainingResults, CollectiveResults]:
    """Parse the text of ``results_json``."""
    both = json.loads(text)
    return TrainingResults.model_validate(both["training"]), CollectiveResults.model_validate(both["collectives"])


def _bars(bars: Sequence[Bar]) -> Iterator[str]:
    yield "\n## Bars\n\n| bar | wanted | measured | |\n|---|---|---|---|"
    for bar in bars:
        yield f"| {bar.what} | {bar.wanted} | {bar.measured} | {'met' if bar.is_met else '**missed**'} |"


def _training(setting: TrainingSetting) -> Iterator[str]:
    trunks = "; ".join(dict.fromkeys(setting.trunks))
    yield f"\n### {setting.topology}, {trunks}\n"
    yield "| plan | degrees | across buildings | schedule | measured | fastest – slowest | predicted | off | speed-up of ours |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for plan in setting.plans:
        span = f"{human_seconds(plan.fastest_s)} – {human_seconds(plan.slowest_s)}"
        gain = "" if plan is setting.ours else f"{plan.measured_s / setting.ours.measured_s:.2f}x"
        times = (
            f"{human_seconds(plan.measured_s)} | {span} | {human_seconds(plan.predicted_s)} | {plan.off_fraction:+.1%}"
        )
        yield f"| {plan.label} | {plan.degrees} | {plan.across} | {plan.schedule} | {times} | {gain} |"
    for name, reason in setting.refused.items():
        yield f"\n{name} is not trained: {reason}."
    first, last = setting.ours.losses[0], setting.ours.losses[-1]
    apart = setting.loss_difference_fraction
    yield f"\nMedian of {setting.ours.num_steps} steps. Loss {first:.3f} → {last:.3f}, between plans at most {apart:.1e} apart."


def _collective(setting: CollectiveSetting) -> Iterator[str]:
    yield f"\n### {place_of(setting)}: S/B {human_seconds(setting.cut_s)}\n"
    yield "| way | measured | fastest – slowest | predicted | off | largest error |\n|---|---|---|---|---|---|"
    for row in setting.rows:
        name = f"**{row.name}**" if row.name == setting.chosen else row.name
        predicted = "–" if row.predicted_s is None else human_seconds(row.predicted_s)
        off = "–" if row.off_fraction is None else f"{row.off_fraction:+.1%}"
        span = f"{human_seconds(row.fastest_s)} – {human_seconds(row.slowest_s)}"
        yield f"| {name} | {human_seconds(row.measured_s)} | {span} | {predicted} | {off} | {row.error_fraction:.1e} |"


def _where(what: str, found: Conditions) -> Iterator[str]:
    yield f"\n## Where: {what}\n"
    yield from (f"- {name}: {text}" for name, text in conditions_rows(found))
