"""Sensitivity of the estimated step time: the same decision timed again with one figure of its topology changed.

A *figure* is one number of ``Levels``: the bandwidth (per accelerator and of the whole child together) or the latency
of a level, an accelerator's FLOP/s, its HBM bandwidth, or its fixed host and launch times. With T(f) the step time when
the figure is multiplied by f, and h the relative change,

    elasticity = (T(1+h) − T(1−h)) / (2h · T(1))          % of step time per % of the figure

The same difference of one component names its bottleneck, the figure with the largest elasticity. A bandwidth has two
parts, the per-accelerator rate (the NIC) and the capacity of the child (its uplink or inter-building link). These are
lowered one at a time, and the one with the larger effect is named; the NIC if both are equal.

Measured curves of a scale-up domain have no parameters. Their time at the smallest size counts as latency, the rest as
bytes over bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scaleacross.cost_models.levels import CAMPUS, SCALE_UP, Levels, build_levels
from scaleacross.cost_models.plan_cost import PlanCost, plan_cost
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.explanation import Phase, Sensitivity
from scaleacross.spec.job import Job
from scaleacross.spec.network import LINK_LEVELS
from scaleacross.spec.plan import COMPONENTS, Decision, StageMemory
from scaleacross.spec.topology import Topology
from scaleacross.units import human_bytes
from scaleacross.workloads.layer_profile import ModelProfile

CHANGE: Final = 0.1
"""Relative change of a figure, either way."""
WORTH_NAMING: Final = 0.02
"""Least elasticity of a bottleneck; a component without a figure of this elasticity has no bottleneck."""

Change = Callable[[Levels, float], Levels]


@dataclass(frozen=True)
class Figure:
    """One number of the topology: its name, the resource that it stands for, and how to multiply it."""

    name: str
    resource: str
    change: Change
    level: int | None = None


@dataclass(frozen=True)
class Estimator:
    """Times one decision on changed levels."""

    job: Job
    profile: ModelProfile
    topology: Topology
    decision: Decision
    levels: Levels

    @classmethod
    def of(cls, job: Job, profile: ModelProfile, topology: Topology, decision: Decision) -> Estimator:
        """Repricer of a decision on its own topology. Raises ValueError when the decision has no placement."""
        return cls(job, profile, topology, decision, build_levels(topology, decision.placed.fill))

    def cost(self, change: Change | None = None, factor: float = 1.0) -> PlanCost:
        """The decision's ``PlanCost`` with a figure multiplied by ``factor``; unchanged without ``change``."""
        levels = _everywhere(change, self.levels, factor) if change else self.levels
        return plan_cost(self.job, self.profile, self.topology, self.decision, levels=levels)


def _everywhere(change: Change, levels: Levels, factor: float) -> Levels:
    """``levels`` with the figure multiplied, in the whole allocation and for each accelerator type alike."""
    by_type = {name: change(own, factor) for name, own in levels.by_type.items()}
    return replace(change(levels, factor), by_type=by_type)


def sensitivities(estimator: Estimator) -> tuple[tuple[Sensitivity, ...], tuple[Phase, ...]]:
    """Sensitivity of the step time to every figure and to memory, and the bottleneck of every component of the step."""
    own = estimator.cost()
    known = figures(estimator.levels)
    less = {figure.name: estimator.cost(figure.change, 1 - CHANGE) for figure in known}
    more = {figure.name: estimator.cost(figure.change, 1 + CHANGE) for figure in known}
    step_s = own.cost.step_s
    rows = [
        Sensitivity(
            figure=figure.name,
            change_fraction=CHANGE,
            elasticity=(more[figure.name].cost.step_s - less[figure.name].cost.step_s) / (2 * CHANGE * step_s),
            less_s=less[figure.name].cost.step_s - step_s,
            more_s=more[figure.name].cost.step_s - step_s,
            trunks_more_s=_of_trunks(estimator, figure, step_s),
        )
        for figure in known
    ]
    phases = [_phase(estimator, known, name, own, less, more) for name in COMPONENTS if own.cost.component(name) > 0]
    return (*rows, _memory_sensitivity(own)), (*phases, _memory_phase(own.memory))


def figures(levels: Levels) -> tuple[Figure, ...]:
    """Every figure of ``levels``; a level that the job does not cross has infinite capacity and is left out."""
    out = [
        Figure("accelerator FLOP/s", "compute", _accelerators(_faster)),
        Figure("HBM bandwidth", "HBM", _accelerators(_wider)),
        Figure("launch and host time", "host", _accelerators(_slower_host)),
    ]
    for level, name in enumerate(LINK_LEVELS):
        if np.isfinite(levels.capacity[level]):
            resource = "scale-up" if level == SCALE_UP else "NIC"
            out.append(Figure(f"{name} bandwidth", resource, _bandwidth(level, rate=True, capacity=True), level))
            out.append(Figure(f"{name} latency", f"latency of {name}", _latency(level), level))
    return tuple(out)


def _accelerators(change: Callable[[Accelerator, float], Accelerator]) -> Change:
    return lambda levels, factor: replace(
        levels, accelerators=tuple(change(accelerator, factor) for accelerator in levels.accelerators)
    )


def _faster(accelerator: Accelerator, factor: float) -> Accelerator:
    peaks = {precision: peak * factor for precision, peak in accelerator.peak_flop_per_s.items()}
    return accelerator.model_copy(update={"peak_flop_per_s": peaks})


def _wider(accelerator: Accelerator, factor: float) -> Accelerator:
    wider = accelerator.memory_bandwidth_bytes_per_s * factor
    return accelerator.model_copy(update={"memory_bandwidth_bytes_per_s": wider})


def _slower_host(accelerator: Accelerator, factor: float) -> Accelerator:
    """The accelerator with all fixed times multiplied: of a kernel, a layer and a step, fitted models included."""
    names = ("kernel_launch_s", "host_moe_pass_s", "step_overhead_s")
    gemms = {
        kind: model.model_copy(update={"launch_s": model.launch_s * factor})
        for kind, model in accelerator.gemm_models.items()
    }
    attention = accelerator.attention_model
    if attention is not None:
        attention = attention.model_copy(update={"launch_s": attention.launch_s * factor})
    fixed = {name: getattr(accelerator, name) * factor for name in names}
    return accelerator.model_copy(update={**fixed, "gemm_models": gemms, "attention_model": attention})


def _bandwidth(level: int, *, rate: bool, capacity: bool) -> Change:
    def change(levels: Levels, factor: float) -> Levels:
        scale = np.where(np.arange(len(LINK_LEVELS)) == level, factor, 1.0)
        curves = levels.curves
        if curves is not None and level == SCALE_UP:
            # the time at the smallest size is latency, which no bandwidth shortens
            fixed = curves[..., :1]
            curves = fixed + (curves - fixed) / factor
        return replace(
            levels,
            bandwidth=levels.bandwidth * (scale if rate else 1.0),
            capacity=levels.capacity * (scale if capacity else 1.0),
            uplink=levels.uplink * (scale if capacity else 1.0),
            curves=curves,
        )

    return change


def _latency(level: int) -> Change:
    def change(levels: Levels, factor: float) -> Levels:
        scale = np.where(np.arange(len(LINK_LEVELS)) == level, factor, 1.0)
        curves = levels.curves
        if curves is not None and level == SCALE_UP:
            curves = curves + (factor - 1) * curves[..., :1]
        return replace(levels, latency=levels.latency * scale, curves=curves)

    return change


def _of_trunks(estimator: Estimator, figure: Figure, step_s: float) -> float | None:
    """Change of the step time, s, with a level's inter-building links widened, NICs unchanged; else None."""
    if figure.level is None or figure.level < CAMPUS or not figure.name.endswith("bandwidth"):
        return None
    wider = estimator.cost(_bandwidth(figure.level, rate=False, capacity=True), 1 + CHANGE)
    return wider.cost.step_s - step_s


def _phase(
    estimator: Estimator,
    known: tuple[Figure, ...],
    name: str,
    own: PlanCost,
    less: Mapping[str, PlanCost],
    more: Mapping[str, PlanCost],
) -> Phase:
    seconds = own.cost.component(name)
    shares = {
        figure.name: abs(more[figure.name].cost.component(name) - less[figure.name].cost.component(name))
        / (2 * CHANGE * seconds)
        for figure in known
    }
    ranked = sorted(shares, key=lambda figure: -shares[figure])
    named = {figure: shares[figure] for figure in ranked if shares[figure] >= WORTH_NAMING}
    by_name = {figure.name: figure for figure in known}
    resource = _resource(estimator, by_name[ranked[0]], name) if named else "none"
    why = ", ".join(f"{figure} {share:.2f}" for figure, share in list(named.items())[:3])
    return Phase(
        name=name, seconds=seconds, resource=resource, shares=named, why=why or "no figure of the topology changes it"
    )


def _resource(estimator: Estimator, figure: Figure, component: str) -> str:
    """Resource of a figure; for a bandwidth, the narrower of the accelerator's NIC and the child's uplink."""
    if figure.level in (None, SCALE_UP) or not figure.name.endswith("bandwidth"):
        return figure.resource
    level = figure.level or 0
    rate = estimator.cost(_bandwidth(level, rate=True, capacity=False), 1 - CHANGE).cost.component(component)
    shared = estimator.cost(_bandwidth(level, rate=False, capacity=True), 1 - CHANGE).cost.component(component)
    if rate >= shared:
        return "NIC"
    return "trunk" if level >= CAMPUS else f"{LINK_LEVELS[level]} uplink"


def _memory_sensitivity(own: PlanCost) -> Sensitivity:
    """Sensitivity to memory capacity, which changes no step time but decides whether the decision fits."""
    fullest = max(own.memory, key=lambda stage: stage.total_bytes / stage.capacity_bytes)
    smaller = fullest.capacity_bytes * (1 - CHANGE)
    fits = fullest.total_bytes <= smaller
    need = f"stage {fullest.stage} needs {human_bytes(fullest.total_bytes)}"
    note = f"{need}; {'still fits' if fits else 'does not fit'} into {human_bytes(smaller)}"
    return Sensitivity(
        figure="memory capacity",
        change_fraction=CHANGE,
        elasticity=0.0 if fits else None,
        less_s=0.0 if fits else None,
        more_s=0.0,
        note=note,
    )


def _memory_phase(memory: tuple[StageMemory, ...]) -> Phase:
    fullest = max(memory, key=lambda stage: stage.total_bytes / stage.capacity_bytes)
    parts = ("parameters", "gradients", "optimizer", "activations", "buffers", "reserved")
    shares = {part: getattr(fullest, f"{part}_bytes") / fullest.capacity_bytes for part in parts}
    largest = max(shares, key=lambda part: shares[part])
    used = fullest.total_bytes / fullest.capacity_bytes
    why = f"stage {fullest.stage} uses {used:.0%} of {human_bytes(fullest.capacity_bytes)}, most of it {largest}"
    binds = used > 1 - CHANGE
    return Phase(name="memory", seconds=None, resource="memory" if binds else "none", shares=shares, why=why)
