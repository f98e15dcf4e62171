"""Fit levels of a topology to outputs of ``scaleacross bench`` for a plan, and return catalogue entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaleacross.calibration.data_file import read_data_file
from scaleacross.calibration.levels import Bench, LevelFit, fit_levels
from scaleacross.calibration.result import FittedEntry
from scaleacross.catalogue import load_plan
from scaleacross.catalogue.validation import validate
from scaleacross.catalogue.write import entry_text
from scaleacross.catalogue.yaml_source import read_file
from scaleacross.cost_models.levels import accelerator_types
from scaleacross.cost_models.plan_cost import placed_shapes
from scaleacross.errors import InputError
from scaleacross.spec.network import NetworkTechnology
from scaleacross.spec.plan import Plan
from scaleacross.spec.runtime_bench import BenchResult
from scaleacross.spec.topology import Topology
from scaleacross.workloads.problem import problem_of

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def level_entries(benches: Sequence[str | Path], plan: Plan | str | Path, date: str) -> tuple[FittedEntry, ...]:
    """Return the plan's topology with the levels that its benchmarks determine, and the technologies of these levels.

    Args:
        benches: outputs of ``scaleacross bench --json`` for the launch file of the plan.
        plan: a Plan or the path of one.
        date: date written into the entries.

    Raises:
        InputError: a file is no such output, is of another plan or axis, or measures an operation without a cost model.
        TooFewError: a level has too few sizes.
    """
    found = plan if isinstance(plan, Plan) else load_plan(plan)
    problem = problem_of(found.job)
    shapes = placed_shapes(problem.topology, found.decision)
    rows = [_bench(path, found) for path in benches]
    used = accelerator_types([problem.topology.building(share.building) for share in found.placement.fill])
    launch_s = max(one.collective_start_s for one in used)
    topology, fits = fit_levels(problem.topology, found.decision, shapes, rows, launch_s, date)
    return fitted_entries(
        problem.topology, topology, fits, f"written by scaleacross calibrate from benches of plan {found.job.name}"
    )


def fitted_entries(
    base: Topology, topology: Topology, fits: Sequence[LevelFit], comment: str
) -> tuple[FittedEntry, ...]:
    """Return a topology with fitted levels, and the technologies of these levels, as catalogue entries."""
    # only technologies with new names were fitted; the others are still the catalogue's
    known = {one.name for one in _technologies(base)}
    fitted = {one.name: one for one in _technologies(topology) if one.name not in known}
    text = entry_text(_by_name(_plain(topology), set(fitted)), comment)
    residuals = tuple(fit.residual for fit in fits)
    kept = tuple(key for key, one in topology.provenance.items() if one.status != "fitted")
    out = [FittedEntry("topologies", topology.name, base.name, text, residuals, kept)]
    for name, technology in fitted.items():
        text = entry_text(_plain(technology), comment)
        stated = tuple(key for key, one in technology.provenance.items() if one.status != "fitted")
        out.append(FittedEntry("networks", name, name.rpartition("-")[0], text, (), stated))
    return tuple(out)


def _bench(path: str | Path, plan: Plan) -> Bench:
    file = read_data_file(path)
    try:
        result = validate(BenchResult, read_file(Path(path)))
    except InputError as error:
        raise InputError(f"no output of scaleacross bench --json: {error}") from None
    if result.plan_name != plan.job.name:
        raise InputError(f"{path}: a bench of plan '{result.plan_name}'; the plan is '{plan.job.name}'")
    if result.op not in OPERATIONS:
        raise InputError(f"{path}: {result.op} is not modelled: bench one of {', '.join(OPERATIONS)}")
    degrees = {axis: degree for axis, degree in plan.degrees.model_dump().items() if isinstance(degree, int)}
    if degrees.get(result.axis) != result.num_ranks:
        raise InputError(
            f"{path}: {result.num_ranks} ranks per group of {result.axis}; "
            f"the plan has {degrees.get(result.axis, 'no such axis')}"
        )
    if any(row.num_wrong for row in result.rows):
        raise InputError(f"{path}: some results were wrong (num_wrong): not used")
    sizes, times = zip(*((float(row.size_bytes), row.time_s) for row in result.rows), strict=True)
    where = f"{file.label} on {result.host}" if result.host else file.label
    return Bench(result.op, result.axis, sizes, times, where)


def _technologies(topology: Topology) -> list[NetworkTechnology]:
    levels = ("scale_up", "rack", "zone", "building")
    return [getattr(building.links, level).technology for building in topology.buildings for level in levels]


def _plain(entry: Topology | NetworkTechnology) -> dict[str, Any]:
    return entry.model_dump(mode="json", exclude_defaults=True)


def _by_name(data: Any, names: set[str]) -> Any:
    """Return ``data`` with each technology in ``names`` replaced by its name."""
    if isinstance(data, Mapping):
        return {
            key: value["name"]
            if key == "technology" and isinstance(value, Mapping) and value.get("name") in names
            else _by_name(value, names)
            for key, value in data.items()
        }
    return [_by_name(one, names) for one in data] if isinstance(data, list) else data
