"""Options for how much of a report is printed: its first lines, all of it, some sections, or one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from scaleacross.cli.frame import Found, display

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scaleacross.spec.plan import Plan
    from scaleacross.spec.summary import PlanSummary

PLAN_SECTIONS: Final = (
    *("decision", "placement", "step", "memory", "traffic", "collectives", "network", "goodput", "failures", "proof"),
    *("referee", "alternatives", "notes"),
)
RECOMMENDATION_SECTIONS: Final = ("decision", "step", "tables", "samples", "compression", "ranks", "proof")
EXPLANATION_SECTIONS: Final = ("runner-ups", "phases", "sensitivities", "network", "failures")

Full = Annotated[bool, typer.Option("--full", help="Print the whole report, not its first lines.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print one line.")]
PlanSections = Annotated[
    list[str] | None,
    typer.Option(
        "--section",
        metavar="NAME",
        help=f"Print a part: {', '.join(PLAN_SECTIONS)}; of recommendation models {', '.join(RECOMMENDATION_SECTIONS)}. "
        "Repeatable.",
    ),
]
ExplanationSections = Annotated[
    list[str] | None,
    typer.Option("--section", metavar="NAME", help=f"Print a part: {', '.join(EXPLANATION_SECTIONS)}. Repeatable."),
]


@dataclass(frozen=True)
class View:
    """The part of a report to print; at most one field is set."""

    full: bool = False
    sections: tuple[str, ...] = ()
    quiet: bool = False

    def show(
        self,
        found: Found,
        as_json: bool,
        *,
        first: Callable[[Found], RenderableType],
        whole: Callable[[Found], RenderableType],
        parts: Callable[[Found, Sequence[str]], RenderableType],
        line: Callable[[Found], str],
    ) -> None:
        """Print ``found`` as JSON, or the requested part of its report; no other part is computed."""
        if as_json:
            typer.echo(found.model_dump_json(indent=2))
        elif self.quiet:
            typer.echo(line(found))
        elif self.sections:
            display(parts(found, self.sections))
        else:
            display((whole if self.full else first)(found))


def view_of(full: bool, sections: Sequence[str] | None, quiet: bool, known: Sequence[str]) -> View:
    """Return the view that the options ask for.

    Raises:
        typer.BadParameter: an unknown section, or options that exclude each other.
    """
    named = tuple(sections or ())
    for name in named:
        if name not in known:
            parts = (
                f"there is no such part; there are {', '.join(known)}" if known else "this report has one part: --full"
            )
            raise typer.BadParameter(f"--section {name}: {parts}")
    if full + bool(named) + quiet > 1:
        raise typer.BadParameter("--full, --section and --quiet exclude each other: give one of them")
    return View(full, named, quiet)


def show_plan(plan: Plan, as_json: bool, view: View, found: Callable[[], PlanSummary], submit: str) -> None:
    """Print a plan.

    Args:
        found: computes the bottlenecks and costs of the first lines; called only where these are printed.
        submit: the command that starts the plan, where launch files were written.
    """
    from scaleacross.report.summary import plan_line, plan_summary
    from scaleacross.report.terminal import plan_report, plan_sections

    view.show(
        plan,
        as_json,
        first=lambda plan: plan_summary(plan, found(), bool(submit)),
        whole=plan_report,
        parts=plan_sections,
        line=plan_line,
    )
    if submit and view == View() and not as_json:
        typer.echo(submit)
