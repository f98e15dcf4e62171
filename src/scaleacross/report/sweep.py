"""A study's outcome: progress bar, summary, and the points as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from string import ascii_lowercase
from textwrap import shorten
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from scaleacross.report.format import add, columns, count, grid, large, percent, section
from scaleacross.spec.parallelism import GRID_AXES
from scaleacross.spec.progress import Progress
from scaleacross.spec.recommendation import SHARDINGS
from scaleacross.spec.study import SPEEDS, speed_of
from scaleacross.units import human_seconds

if TYPE_CHECKING:
    from scaleacross.api.sweeping import SweepResult

REASON = 160
"""Most characters of the reason why a point has no plan; the CSV has all."""
MAX_ROWS = 40


class SweepBar:
    """A context manager that is also the ``progress`` callback of ``sweep``: one bar, on terminals only."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task("points", total=None)

    def __call__(self, progress: Progress) -> None:
        """Show ``progress``."""
        self._bars.update(self._task, completed=progress.done, total=progress.total)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


def sweep_report(result: SweepResult) -> RenderableType:
    """Return counts, then the points with their varied fields."""
    counts = f"{count(len(result.rows))}, {count(result.num_distinct)} distinct"
    facts = grid(
        [
            ("study", result.study.name),
            ("points", f"{counts}: {count(result.num_run)} run, {count(result.num_reused)} were there already"),
            ("status", ", ".join(f"{count(number)} {status}" for status, number in result.statuses.items())),
        ]
    )
    shown = result.rows[:MAX_ROWS]
    more = [Text(f"… and {count(len(result.rows) - MAX_ROWS)} more in the CSV")] if len(result.rows) > MAX_ROWS else []
    return Group(facts, section("Points", _table(result, shown), *more))


def _table(result: SweepResult, rows: Sequence[dict[str, Any]]) -> RenderableType:
    """Return the points as a table with a letter per varied path, because paths are long; a legend follows."""
    varied = [path for path in result.study.paths if len({repr(row[path]) for row in result.rows}) > 1]
    varied = (["base"] if len({row["base"] for row in result.rows}) > 1 else []) + varied
    letters = [ascii_lowercase[index] if index < 26 else f"a{index}" for index in range(len(varied))]
    currency = next((row["currency"] for row in result.rows if row.get("currency")), None)
    money = (f"{currency} per M tokens", "as owned") if currency else ()
    speed = speed_of(result.rows)
    numbers = ("step", "estimate", SPEEDS[speed], *(("MFU",) if speed == "tokens_per_s" else ()), "gap", *money)
    table = columns((*letters, *numbers, "status", "plan"), right=(*letters, *numbers), flexible=("plan",))
    for row in rows:
        fields = (row[path] if isinstance(row[path], str) else json.dumps(row[path]) for path in varied)
        add(table, *fields, *_outcome(row, len(numbers), len(money)), style="bold" if row is result.best else "")
    return Group(table, Text(), grid(zip(letters, varied, strict=True)))


def _outcome(row: dict[str, Any], num_figures: int, num_prices: int) -> tuple[str, ...]:
    if "step_s" not in row:
        return *("–",) * num_figures, str(row["status"]), shorten(str(row["reason"]), REASON, placeholder=" … (CSV)")
    if "samples_per_s" in row:
        split = ", ".join(f"{row[name]} {name}" for name in SHARDINGS if row[name])
        groups = f"{row['replica_groups']} groups: " if row["replica_groups"] > 1 else ""
        figures = *_steps(row), large(row["samples_per_s"]), percent(row["gap"])
        return *figures, str(row["status"]), groups + split
    prices = (row.get(name) for name in ("cost_per_million_tokens", "owned_cost_per_million_tokens")[:num_prices])
    degrees = [f"{axis} {row[axis]}" for axis in (*GRID_AXES, "ep", "expert_lanes") if row[axis] > 1]
    crossing = row["crossing"].replace(":", ": ")
    plan = " ".join(degrees) + (f" ({crossing})" if crossing else "")
    return (
        *_steps(row),
        large(row["tokens_per_s"]),
        percent(row["mfu"]),
        percent(row["gap"]),
        *("–" if price is None else f"{price:,.4g}" for price in prices),
        str(row["status"]),
        plan,
    )


def _steps(row: dict[str, Any]) -> tuple[str, str]:
    """Return the simulated step, and the estimate, to which the gap refers. A row of an older version has no estimate."""
    estimate = human_seconds(row["estimate_s"]) if "estimate_s" in row else "–"
    return "–" if row.get("step_of") == "estimate" else human_seconds(row["step_s"]), estimate


def sweep_json(result: SweepResult, files: Sequence[object]) -> str:
    """The summary for programs."""
    data = {
        "study": result.study.name,
        "points": len(result.rows),
        "distinct": result.num_distinct,
        "run": result.num_run,
        "reused": result.num_reused,
        "status": result.statuses,
        "best": result.best,
        "files": [str(path) for path in files],
        "note": result.note,
    }
    return json.dumps(data, indent=2, ensure_ascii=False)
