"""Fit step-time parameters to a user's own runs, and measure the fit on models, sources and runs left out.

The criterion is that of ``fitting``; the prior is what the entry states from which the fit starts. One run moves the
parameters a little, and many runs decide them. A parameter that no row depends on keeps its value. Users may have only
one or two runs; ``few_runs`` measures what these are worth, on sources left out. The shipped figures themselves are
fitted ``from_scratch``: from what is known without any step time (benchmarks/fit_step_times.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleacross.cost_models.step_interval import run_key
from scaleacross.errors import InputError
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.network import NetworkTechnology
from scaleacross.validation.crosscheck import SEEN
from scaleacross.validation.fitting import Linearised, in_building, iterate, leave_out, linearise, moved, stated_values
from scaleacross.validation.knobs import KNOBS, generation_of
from scaleacross.validation.machines import MACHINES, label_of
from scaleacross.validation.mapping import Case, case_of
from scaleacross.validation.predict import predict
from scaleacross.validation.runs import Run
from scaleacross.validation.score import measured_s, usable_cases

Floats = NDArray[np.float64]
Figure = float | Mapping[str, float]

MAX_SINGLE: Final = 20
"""Largest number of rows, over all generations, for which every run is also left out once."""
ITERATIONS: Final = 6
CONVERGED: Final = 2e-3
"""Relative change of parameters below which no further iteration is made."""
IMPLAUSIBLE_RATIO: Final = 10.0
"""Ratio of measured to predicted, or the inverse, that must be an error of units: published rows reach 3.4."""
LEFT_OUT: Final[Mapping[str, Callable[[Case], str]]] = {
    "models": lambda case: case.run.model,
    "sources": lambda case: case.run.source,
    "runs": lambda case: f"{case.run.id} {case.run.configuration}",
}


@dataclass(frozen=True)
class Machines:
    """Fitted entries that replace the catalogue's while step times are predicted.

    Attributes:
        accelerators, links: name of the entry that is replaced or added -> the fitted entry.
        base: accelerator whose hosts and networks stand in for those of an unknown ``gpu``.
    """

    accelerators: Mapping[str, Accelerator]
    links: Mapping[str, NetworkTechnology]
    base: str | None = None


@dataclass(frozen=True)
class Refit:
    """Fit of one generation: accelerator -> SI field -> value, and predicted seconds before, after and unseen.

    ``runs``: accelerator -> key of ``Accelerator.step_time_runs`` -> number of rows.
    """

    generation: str
    figures: Mapping[str, Mapping[str, Figure]]
    runs: Mapping[str, Mapping[str, int]]
    measured_s: Floats
    before_s: Floats
    fitted_s: Floats
    left_out_s: Mapping[str, Floats]


def cases_on(runs: Sequence[Run], machines: Machines) -> tuple[list[Case], list[tuple[Run, str]]]:
    """Place rows on ``machines``; returns the cases that can be fitted, and the other rows with the reason.

    Raises:
        InputError: no row can be used.
    """
    cases, skipped = usable_cases(runs, lambda run: _case_on(run, machines))
    if not cases:
        reasons = Counter(reason for _, reason in skipped).most_common()
        listed = "\n".join(f"- {number} rows: {reason}" for reason, number in reasons)
        raise InputError(f"none of {len(skipped)} rows can be used; a fit needs one:\n{listed}")
    return cases, skipped


def _case_on(run: Run, machines: Machines) -> Case:
    label = run.gpu.partition(" ")[0]
    found = label_of(run.gpu)
    known = found or _machine_with(machines.base)
    if known is None:
        raise InputError(
            f"no machine is known for gpu '{run.gpu}'; known: {', '.join(MACHINES)}; "
            "or name one of their accelerators with --base, whose hosts and networks then stand in"
        )
    case = case_of(run if found else replace(run, gpu=known))
    name = MACHINES[known].accelerator if found else label
    (building,) = case.topology.buildings
    accelerator = machines.accelerators.get(name) or building.accelerator.model_copy(update={"name": name})
    scale_up = building.links.scale_up
    technology = machines.links.get(scale_up.technology.name, scale_up.technology)
    links = building.links.model_copy(update={"scale_up": scale_up.model_copy(update={"technology": technology})})
    return _plausible(in_building(case, {"accelerator": accelerator, "links": links}))


def _plausible(case: Case) -> Case:
    """Return ``case`` unchanged.

    Raises:
        InputError: measured and predicted time differ by IMPLAUSIBLE_RATIO or more, so their units must differ.
    """
    measured, predicted = measured_s(case), predict(case).step_s
    if max(measured / predicted, predicted / measured) < IMPLAUSIBLE_RATIO:
        return case
    raise InputError(
        f"{case.run.id}: {measured:.3g} s measured, {predicted:.3g} s predicted: a factor of {IMPLAUSIBLE_RATIO:g} or more is no "
        "error that constants explain; step_time_s is in seconds, tokens_per_s_per_gpu per accelerator"
    )


def accelerator_of(gpu: str) -> str | None:
    """Catalogue entry that a ``gpu`` column means; None if no machine is known for it."""
    label = label_of(gpu)
    return None if label is None else MACHINES[label].accelerator


def _machine_with(accelerator: str | None) -> str | None:
    return next((label for label, machine in MACHINES.items() if machine.accelerator == accelerator), None)


def refit(
    cases: Sequence[Case], told: Callable[[int, int], None] = lambda _done, _total: None, *, from_scratch: bool = False
) -> tuple[Refit, ...]:
    """Fit parameters per generation to the measured step times of ``cases``.

    Args:
        told: called with passes done and passes in all; a pass predicts every row once per parameter.
        from_scratch: start from what is known without any step time, not from what the accelerators state.
    """
    measured = np.array([measured_s(case) for case in cases])
    before = np.array([predict(case).step_s for case in cases])
    priors = None if from_scratch else stated_values(cases)
    placed = list(cases)
    values: dict[str, Floats] = {}
    for number in range(ITERATIONS):
        told(number, ITERATIONS + 1)
        logs = iterate(placed, measured, priors)
        last, values = values, {name: np.exp(own) for name, own in logs.items()}
        placed = [moved(case, logs[generation_of(case)]) for case in placed]
        if last and max(np.abs(values[name] / last[name] - 1).max() for name in values) < CONVERGED:
            break
    told(ITERATIONS, ITERATIONS + 1)
    linear = linearise(placed)
    unseen = {
        what: leave_out(linear, placed, measured, group, priors)
        for what, group in LEFT_OUT.items()
        if len({group(case) for case in cases}) > 1 and (what != "runs" or len(cases) <= MAX_SINGLE)
    }
    out = []
    for generation in dict.fromkeys(linear.generation):
        rows = np.array(linear.generation) == generation
        figures = _figures(cases, linear, generation, values[generation])
        left_out = {what: seconds[rows] for what, seconds in unseen.items()}
        runs = _runs(case for case, own in zip(cases, rows, strict=True) if own)
        out.append(Refit(generation, figures, runs, measured[rows], before[rows], np.exp(linear.base[rows]), left_out))
    return tuple(out)


def _runs(cases: Iterable[Case]) -> dict[str, dict[str, int]]:
    """Accelerator -> key of model and precision -> number of rows."""
    out: dict[str, Counter[str]] = {}
    for case in cases:
        name = case.topology.buildings[0].accelerator.name
        out.setdefault(name, Counter())[run_key(case.run.model, case.job.precision)] += 1
    return {name: dict(found) for name, found in out.items()}


def _figures(
    cases: Sequence[Case], linear: Linearised, generation: str, values: Floats
) -> dict[str, dict[str, Figure]]:
    """Accelerator -> field -> fitted value, for fields on which some row of the generation depends."""
    rows = np.array(linear.generation) == generation
    seen = np.abs(linear.jacobian[rows]).max(axis=0) > SEEN
    out: dict[str, dict[str, Figure]] = {}
    for case, own in zip(cases, rows, strict=True):
        accelerator = case.topology.buildings[0].accelerator
        if not own or accelerator.name in out:
            continue
        fields = []
        for knob, value, counts in zip(KNOBS, values, seen, strict=True):
            if counts and knob.applies(accelerator):
                accelerator = knob.write(accelerator, float(value))
                fields.append(knob.name.partition(".")[0])
        out[accelerator.name] = {field: _value(accelerator, field) for field in dict.fromkeys(fields)}
    return out


def _value(accelerator: Accelerator, field: str) -> Figure:
    value = getattr(accelerator, field)
    if isinstance(value, Mapping):
        return {str(key): float(each) for key, each in value.items() if key in accelerator.peak_flop_per_s}
    return float(value)
