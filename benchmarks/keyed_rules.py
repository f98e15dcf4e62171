"""What every rule keyed by a name or a text of a row buys: errors in sample and with sources left out, each rule off in turn.

    python benchmarks/keyed_rules.py RUNS.csv

A rule is off where rows are read as if their framework, or what their notes say, were not stated. Measured values stay those
of the file; in sample are the catalogue's constants as they are, left out are fitted anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scaleacross.errors import InputError
from scaleacross.validation.fitting import Linearised, linearise
from scaleacross.validation.left_out import Floats, Truths, apart_from
from scaleacross.validation.mapping import Case, case_of
from scaleacross.validation.metrics import Errors, errors
from scaleacross.validation.runs import Run, read_runs
from scaleacross.validation.score import measured_s, usable_cases


@dataclass(frozen=True)
class Rule:
    """``text``, of a row's ``column``, is not read."""

    column: str
    text: str

    def without(self, run: Run) -> Run:
        """The row as if it did not say so."""
        stated = getattr(run, self.column)
        changed = stated.replace(self.text, "") if self.column == "notes" else "" if self.text in stated else stated
        return replace(run, **{self.column: changed})


RULES = (
    Rule("notes", "4x HDR"),
    Rule("notes", "RoCE 400G"),
    Rule("notes", "eager"),
    Rule("framework", "torchtitan"),
    Rule("framework", "Meta in-house"),
    Rule("framework", "Megatron-DeepSpeed"),
    Rule("framework", "DeepSpeed ZeRO-3"),
    Rule("framework", "Megatron-LM 2021"),
    Rule("framework", "Megatron-LM 2022"),
    Rule("framework", "Megatron-Core 0.8"),
    Rule("framework", "NeMo"),
    Rule("framework", "Megatron-Bridge"),
    Rule("framework", "MaxText"),
)


def main() -> None:
    """Print a table of Markdown, a rule a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    cases, _ = usable_cases(read_runs(parser.parse_args().runs))
    print_table(cases, RULES)


def print_table(cases: Sequence[Case], rules: Sequence[Rule]) -> Floats:
    """Print it, and return predicted seconds of every row with every rule on and its source left out, (rows,)."""
    measured = np.array([measured_s(case) for case in cases])
    linear = linearise(cases)
    print(
        "| not read | rows | in sample, median and p90 | these rows (on) | left out, median and p90 | these rows (on) |"
    )
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    before = _apart_s(cases, measured, linear)
    _print("every rule on", np.ones(len(cases), dtype=bool), measured, linear, before)
    for rule in rules:
        others, changed, lost = _without(rule, cases)
        rows = np.flatnonzero(changed)
        again = _with(linear, rows, linearise([others[row] for row in rows], linear.start))
        name = f"`{rule.text}`" + (f", {lost} rows stay" if lost else "")
        was = (_of(np.exp(linear.base), measured, changed), _of(before, measured, changed))
        _print(name, changed, measured, again, _apart_s(others, measured, again), was)
    causal = np.array([measured_s(replace(case, run=replace(case.run, framework=""))) for case in cases])
    changed = causal != measured
    was = (_of(np.exp(linear.base), measured, changed), _of(before, measured, changed))
    _print("formula of stated TFLOP/s", changed, causal, linear, _apart_s(cases, causal, linear), was)
    return before


def _without(rule: Rule, cases: Sequence[Case]) -> tuple[list[Case], Truths, int]:
    """All cases, which of them the rule changes, and how many cannot be read without it and stay."""
    others, changed, lost = list(cases), np.zeros(len(cases), dtype=bool), 0
    for row, case in enumerate(cases):
        run = rule.without(case.run)
        if run != case.run:
            changed[row] = True
            try:
                others[row] = replace(case_of(run), run=case.run)
            except InputError:
                lost += 1
    return others, changed, lost


def _with(linear: Linearised, rows: Sequence[int], other: Linearised) -> Linearised:
    base, jacobian = linear.base.copy(), linear.jacobian.copy()
    base[rows], jacobian[rows] = other.base, other.jacobian
    return replace(linear, base=base, jacobian=jacobian)


def _apart_s(cases: Sequence[Case], measured: Floats, linear: Linearised) -> Floats:
    """Predicted seconds of every row with its source left out, (rows,)."""
    return np.asarray(measured / np.exp(apart_from(tuple(cases), measured, linear).own_residuals()))


def _of(predicted: Floats, measured: Floats, rows: Truths) -> Errors:
    return errors(predicted[rows], measured[rows])


def _print(
    name: str,
    rows: Truths,
    measured: Floats,
    linear: Linearised,
    apart: Floats,
    was: tuple[Errors, Errors] | None = None,
) -> None:
    cells = [name, str(int(rows.sum()))]
    for number, predicted in enumerate((np.exp(linear.base), apart)):
        cells.append(_figures(errors(predicted, measured)))
        own = _figures(_of(predicted, measured, rows))
        cells.append(f"{own} ({_figures(was[number])})" if was else own)
    print("| " + " | ".join(cells) + " |", flush=True)


def _figures(found: Errors) -> str:
    return f"{found.median_abs * 100:.1f}, {found.p90_abs * 100:.1f} %"


if __name__ == "__main__":
    main()
