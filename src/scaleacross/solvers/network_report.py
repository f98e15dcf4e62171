"""How a plan's network was chosen, with the reason of every choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from scaleacross.cost_models.axes import group_of, network_of
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.network.drivers import contention_fraction
from scaleacross.cost_models.network.reasons import decided_by
from scaleacross.cost_models.plan_cost import placed_shapes
from scaleacross.cost_models.plan_traffic import time_of
from scaleacross.cost_models.step import one_row
from scaleacross.solvers.choose_network import held_by
from scaleacross.solvers.network_of_plan import Networked
from scaleacross.solvers.network_options import FlowOption
from scaleacross.solvers.pay_compression import reason
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.network_choice import MOVES, CommunicatorChoice
from scaleacross.spec.network_report import DriverReason, NetworkReport, NetworkTerm
from scaleacross.workloads.problem import Problem

ROUNDING: Final = 1e-12
"""Relative tolerance: bound and step time add up the same seconds in a different order."""


def network_report(problem: Problem, networked: Networked) -> NetworkReport | None:
    """How the network was chosen, with the reason of every choice; None where the library's defaults are in use."""
    decision, solution = networked.decision, networked.solution
    if solution is None or decision.network is None or decision.placement is None:
        return None
    held = held_by(solution.chosen)
    step_s = networked.cost.cost.step_s
    return NetworkReport(
        status="optimal" if networked.least_step_s >= step_s * (1 - ROUNDING) else "feasible",
        step_s=step_s,
        bound_s=networked.least_step_s,
        library_step_s=networked.library_step_s,
        library_kept=networked.library_kept,
        num_options=networked.num_options,
        held_channels=held.channels,
        held_queue_pairs=held.queue_pairs,
        held_buffer_bytes=held.buffer_bytes,
        terms=tuple(_terms(problem, networked)),
    )


def _terms(problem: Problem, networked: Networked) -> Iterator[NetworkTerm]:
    """Yield the times of every choice and the reasons for it."""
    decision, cost = networked.decision, networked.cost
    if decision.placement is None:
        return
    levels = build_levels(problem.topology, decision.placement.fill)
    links = links_of(levels)
    stated = {choice.key: choice for choice in decision.network or ()}
    shapes = placed_shapes(problem.topology, decision)
    for flow, predicted in zip(cost.sent, cost.collectives, strict=True):
        choice = stated[flow.shape, flow.op, flow.what]
        options = networked.options[choice.key]
        shape, launch_s = one_row(shapes[flow.shape]), cost.volumes.launch_s
        chosen = group_of(network_of(decision), flow.shape, shape, links, launch_s)
        library = group_of("library", flow.shape, shape, links, launch_s)
        other = min(
            (one for one in options if one.choice.label != choice.label),
            key=lambda one: one.time_s,
            default=None,
        )
        yield NetworkTerm(
            communicator=choice.communicator,
            op=choice.op,
            payload=choice.payload,
            time_s=predicted.time_s,
            library_s=float(time_of(flow, library, cost.volumes.equal_copies).time_s[0]),
            decided_by=decided_by(flow, chosen, cost.volumes.equal_copies),
            instead=None if other is None else other.choice.label,
            instead_s=None if other is None else other.time_s,
            compression=reason(
                problem.job,
                flow,
                next(one for one in options if one.choice == choice),
                options,
                shapes[flow.shape],
                levels.accelerators,
                networked.saved_s.get(choice.key),
            ),
            driver=_driver(problem, levels.accelerators, choice, options),
        )


def _driver(
    problem: Problem, accelerators: Sequence[Accelerator], choice: CommunicatorChoice, options: Sequence[FlowOption]
) -> DriverReason | None:
    """Why a driver moves the bytes; None where there was nothing to choose."""
    plain = choice.model_copy(update={"driver": "multiprocessors"})
    kernels = next((one for one in options if one.choice == plain), None)
    if len(problem.job.network.drivers) == 1 or choice.op not in MOVES or kernels is None:
        return None
    return DriverReason(
        driver=choice.driver,
        held_fraction=contention_fraction(accelerators, choice.driver),
        kernels_s=kernels.time_s,
        kernels_held_fraction=contention_fraction(accelerators),
    )
