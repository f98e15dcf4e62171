"""The step time of present settings, and what each change saves."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.cost import status
from scaleacross.report.format import add, cell, columns, grid, percent, section
from scaleacross.spec.improvement import Change, Improvement
from scaleacross.units import human_seconds

HEADS = ("change", "step alone", "saves", "from", "to")


def improvement_report(found: Improvement) -> RenderableType:
    """Return present step time, what every change saves alone, all together, and changes that cannot be made alone."""
    table = columns(HEADS, right=("step alone", "saves"), flexible=("from", "to"))
    now, best = found.present.cost.step_s, found.planned.cost.step_s
    add(table, "present", human_seconds(now), "", "", "")
    for change in found.changes:
        add(table, *_row(change, now), style="dim" if change.step_s is None or not change.fits else "")
    add(table, "all together", human_seconds(best), percent(found.saved_s / now), "", "", style="bold")
    facts: list[tuple[str, str | Text]] = [
        ("proof", status(found.planned.report)),
        ("gap", percent(found.planned.report.gap)),
        ("alone", cell("each change by itself, everything else as it is run; savings do not add up")),
    ]
    facts += [("not alone", cell(f"{one.what}: {one.reason}")) for one in found.changes if one.reason]
    facts += [("present", cell(note)) for note in found.present.report.notes]
    if not found.changes:
        facts.append(("keep", cell("the search found nothing faster than the present settings")))
    title = f"{found.planned.job.name}: what to change in the settings of {found.framework}"
    return Group(section(title, table), Text(), grid(facts))


def _row(change: Change, now: float) -> tuple[str, ...]:
    if change.step_s is None or change.saved_s is None:
        return change.what, "–", "–", change.before, change.after
    return change.what, human_seconds(change.step_s), percent(change.saved_s / now), change.before, change.after
