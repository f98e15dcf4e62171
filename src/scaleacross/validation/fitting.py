"""Fit a few parameters per accelerator generation to step times, and predict rows that the fit has not seen.

A generation shares its KNOBS, whatever the model, the source or the size of the job. Knobs are fitted in logarithms x
by minimising, over the rows of a generation,

    Σ w · ρ(log measured − log predicted(x)) + Σ ((x − x_prior) / σ)² / 2

with r the residual over SPREAD and c = TAIL. The weight is w = 1 / repeats of the configuration.

* Rows of many sources: ρ(r) = r² / (1 + (r/c)²) / 2 (Geman and McClure 1985). A row far off hardly pulls, because it
  ran in a way that its columns do not state. Three rows of one release that took 2.4 times as long as predicted tripled
  a parameter under a loss whose pull falls with 1/r.
* Own runs, which start from stated values: that loss with a pull that falls with 1/r, Cauchy's ρ(r) = c² log(1 +
  (r/c)²) / 2. Own runs are to be learned from, however far off.

x_prior is known without any step time of the generation: kernel sweeps, data sheets, the generation before it
(PARENTS). The method is Gauss-Newton with numerical derivatives and iteratively reweighted least squares. Every
iteration predicts each row once per knob that matters to it.

Leaving out a group (a model, a source) refits on the others with the predictions linearised around the catalogue's
values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleacross.cost_models.plan_cost import placed_groups, placed_shapes, step_seconds
from scaleacross.spec.topology import Topology
from scaleacross.validation.knobs import KNOBS, PARENTS, generation_of
from scaleacross.validation.mapping import Case
from scaleacross.validation.predict import Prediction, predict

Floats = NDArray[np.float64]

SPREAD: Final = 0.05
"""Relative error of a typical row: about the spread of repeats."""
TAIL: Final = 2.385
"""Scale of both losses in units of SPREAD: a row this far off pulls with a quarter or half of its weight.

The constant makes Cauchy's loss 95 % efficient on Gaussian errors (Holland & Welsch 1977, doi
10.1080/03610927708827533).
"""
STEP: Final = 0.05
"""Step of a logarithm for numerical derivatives."""
STANDS: Final = 1e-9
"""Change of a logarithm below which an iteration on linearised predictions changes no digit that is written."""
TRUST: Final = 0.35
"""Largest change of a logarithm in one iteration."""


@dataclass(frozen=True)
class Linearised:
    """Predictions linearised around the catalogue's parameters: log step = base + jacobian · (x − x0), x by generation.

    Attributes:
        base: log predicted seconds, (rows,).
        jacobian: derivative by the knobs of the row's own generation, (rows, knobs).
        start: log of the catalogue's knobs, [generation] -> (knobs,).
        generation: generation of every row.
    """

    base: Floats
    jacobian: Floats
    start: Mapping[str, Floats]
    generation: tuple[str, ...]


def linearise(cases: Sequence[Case], tell: Callable[[int], None] = lambda done: None) -> Linearised:
    """Predict every case once per knob, around the catalogue's values; ``tell`` gets the number of cases done."""
    generation, start = tuple(generation_of(case) for case in cases), stated_values(cases)
    predictions = [predict(case) for case in cases]
    base = np.log([prediction.step_s for prediction in predictions])
    jacobian = np.empty((len(cases), len(KNOBS)))
    for row, (case, prediction, name) in enumerate(zip(cases, predictions, generation, strict=True)):
        tell(row)
        jacobian[row] = _derivatives(case, prediction, start[name])
    return Linearised(base, jacobian, start, generation)


def stated_values(cases: Sequence[Case]) -> dict[str, Floats]:
    """Logs of the knobs by generation, (knobs,) each, as the cases' accelerators state them.

    A knob that none of them states has its prior.
    """
    generation = [generation_of(case) for case in cases]
    out: dict[str, Floats] = {}
    for name in dict.fromkeys(generation):
        members = {
            case.topology.buildings[0].accelerator.name: case.topology.buildings[0].accelerator
            for case, own in zip(cases, generation, strict=True)
            if own == name
        }
        out[name] = np.log([next((k.read(a) for a in members.values() if k.applies(a)), k.prior) for k in KNOBS])
    return out


def _derivatives(case: Case, prediction: Prediction, logs: Floats) -> Floats:
    """Derivatives of the log step time of one case by every knob, (knobs,)."""
    out = np.zeros(len(KNOBS))
    accelerator = case.topology.buildings[0].accelerator
    # a prediction may mix two recompute policies, by the share of layers that have each
    shares = ((prediction.decision, 1 - prediction.again_fraction), (prediction.again, prediction.again_fraction))
    priced = [(one, share, placed_shapes(case.topology, one)) for one, share in shares if one is not None]
    for column, knob in enumerate(KNOBS):
        if knob.applies(accelerator) and knob.matters(case):
            other = moved(case, logs + STEP * np.eye(len(KNOBS))[column])
            step_s = sum(
                share
                * step_seconds(case.job, case.profile, other.topology, one, placed_groups(other.topology, one, shapes))
                for one, share, shapes in priced
            )
            out[column] = np.log(step_s / prediction.step_s) / STEP
    return out


def moved(case: Case, logs: Floats) -> Case:
    """Return the case with the knobs of its accelerator set to ``exp(logs)``."""
    accelerator = case.topology.buildings[0].accelerator
    for knob, value in zip(KNOBS, np.exp(logs), strict=True):
        if knob.applies(accelerator):
            accelerator = knob.write(accelerator, float(value))
    return in_building(case, {"accelerator": accelerator})


def in_building(case: Case, update: Mapping[str, object]) -> Case:
    """Return the case with fields of its only building changed."""
    (building,) = case.topology.buildings
    region = case.topology.regions[0].model_copy(update={"buildings": (building.model_copy(update=update),)})
    topology: Topology = case.topology.model_copy(update={"regions": (region,)})
    return replace(case, topology=topology)


def refit(
    linear: Linearised,
    log_measured: Floats,
    weights: Floats,
    rows: NDArray[np.bool_],
    priors: Mapping[str, Floats] | None = None,
) -> dict[str, Floats]:
    """Optimal knobs (logs) per generation from the selected rows, on the linearised predictions.

    ``priors``: logs by generation; None: knowledge of the generation without any step time (KNOBS, PARENTS).
    """
    out: dict[str, Floats] = {}
    names = np.array(linear.generation)
    for name in sorted(linear.start, key=lambda each: each in PARENTS):  # parents first: their fit is the child's prior
        start = linear.start[name]
        chosen = rows & (names == name)
        residual = (log_measured - linear.base)[chosen]
        toward = (_prior(name, out) if priors is None else priors[name]) - start
        rejects = priors is None
        out[name] = start + best_change(linear.jacobian[chosen], residual, weights[chosen], toward, rejects=rejects)
    return out


def best_change(
    jacobian: Floats, residual: Floats, weights: Floats, toward: Floats, *, rejects: bool = False
) -> Floats:
    """Change of the logs of KNOBS that minimises the criterion of this module on linearised predictions, (knobs,).

    Args:
        jacobian, residual, weights: of the rows: (rows, knobs), log measured − log predicted (rows,), (rows,).
        toward: the prior, as a change from the point of linearisation, (knobs,).
        rejects: rows of many sources, of which those far off hardly pull; False: own runs, which all do.
    """
    precision = np.array([1 / knob.sigma**2 for knob in KNOBS])
    step: Floats = np.zeros(len(KNOBS))
    for _ in range(100):
        left = residual - jacobian @ step
        # ρ'(r) / r of the loss: exponent 2 is Geman-McClure's, 1 is Cauchy's
        pull = weights / SPREAD**2 / (1 + (left / (TAIL * SPREAD)) ** 2) ** (2 if rejects else 1)
        normal = jacobian.T @ (pull[:, None] * jacobian) + np.diag(precision)
        last, step = step, np.asarray(np.linalg.solve(normal, jacobian.T @ (pull * residual) + precision * toward))
        if np.abs(step - last).max() < STANDS:
            break
    return step


def _prior(generation: str, fitted: Mapping[str, Floats]) -> Floats:
    """Logs of the priors of a generation, (knobs,): its parent's fitted knobs if it has one, else those of KNOBS."""
    parent, slower = PARENTS.get(generation, ("", 1.0))
    if parent not in fitted:
        return np.log([knob.prior for knob in KNOBS])
    # another power limit changes rates of computation alone
    prior: Floats = fitted[parent] + np.array([np.log(slower) * knob.name.startswith("training_") for knob in KNOBS])
    return prior


def row_weights(cases: Sequence[Case]) -> Floats:
    """1 / number of rows with the same configuration, (rows,): a configuration counts once, with all its repeats."""
    repeats = Counter(case.run.configuration for case in cases)
    return np.array([1 / repeats[case.run.configuration] for case in cases])


def iterate(cases: Sequence[Case], measured_s: Floats, priors: Mapping[str, Floats] | None) -> dict[str, Floats]:
    """Knobs (logs) per generation after one iteration, starting from the cases' accelerators.

    ``priors`` is as in ``refit``.
    """
    linear, everything = linearise(cases), np.ones(len(cases), dtype=bool)
    best = refit(linear, np.log(measured_s), row_weights(cases), everything, priors)
    # the linearised predictions hold near their start only
    return {name: start + np.clip(best[name] - start, -TRUST, TRUST) for name, start in linear.start.items()}


def leave_out(
    linear: Linearised,
    cases: Sequence[Case],
    measured_s: Floats,
    group: Callable[[Case], str],
    priors: Mapping[str, Floats] | None = None,
) -> Floats:
    """Predicted seconds of every row, with parameters fitted without any row of its group, (rows,)."""
    keys = np.array([group(case) for case in cases])
    weights, log_measured = row_weights(cases), np.log(measured_s)
    predicted = np.empty(len(cases))
    for key in dict.fromkeys(keys.tolist()):
        held = keys == key
        values = refit(linear, log_measured, weights, ~held, priors)
        for row in np.flatnonzero(held):
            name = linear.generation[row]
            predicted[row] = linear.base[row] + linear.jacobian[row] @ (values[name] - linear.start[name])
    return np.exp(predicted)
