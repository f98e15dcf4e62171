"""The verb calibrate: fit a user's own measurements into catalogue entries, each with its errors on held-out rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path

from scaleacross import catalogue
from scaleacross.api.calibration_entries import KernelFits, LinkFits, StepFits, assembled, with_kernels
from scaleacross.api.level_calibration import level_entries
from scaleacross.api.names import AcceleratorTarget, Bases, bases_of, listed
from scaleacross.api.node_collectives import link_of, node_entries
from scaleacross.calibration.collective_data import read_stated
from scaleacross.calibration.data_file import read_data_file
from scaleacross.calibration.file_scores import SMALL, Skipped, dtype_refused
from scaleacross.calibration.kernel_data import read_attention_times, read_gemm_times
from scaleacross.calibration.kernel_fits import KernelFit, fit_calls, fit_products
from scaleacross.calibration.kernels import MIN_GEMM_FLOP
from scaleacross.calibration.link_fits import fit_link
from scaleacross.calibration.result import Calibration, FittedEntry
from scaleacross.calibration.systems import ACCELERATOR_OF, SCALE_UP_OF
from scaleacross.cost_models.kernels import ELEMENT_BYTES
from scaleacross.errors import InputError, TooFewError
from scaleacross.spec.plan import Plan
from scaleacross.spec.progress import Progress, telling
from scaleacross.validation.refit import Machines, accelerator_of, cases_on, refit
from scaleacross.validation.runs import read_runs


@dataclass(frozen=True)
class _Request:
    """Options that every fit needs in addition to its file."""

    bases: Bases
    only: tuple[str, ...]
    date: str
    tell: Callable[[str, int, int | None], None]

    def wants(self, label: str, entry: str | None) -> bool:
        return not self.only or label in self.only or entry in self.only


@dataclass(frozen=True)
class _Task:
    """A kernel fit still to be run: ``what`` (an element type of products, or "attention") from the rows of ``label``."""

    target: AcceleratorTarget
    label: str
    what: str
    rows: int
    fit: Callable[[], KernelFit]


def calibrate(
    *,
    gemm: str | Path | None = None,
    attention: str | Path | None = None,
    collectives: str | Path | Sequence[str | Path] = (),
    runs: str | Path | None = None,
    bench: str | Path | Sequence[str | Path] = (),
    plan: Plan | str | Path | None = None,
    base: str | Sequence[str] = (),
    network: str | None = None,
    only: str | Sequence[str] = (),
    today: date | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Calibration:
    """Fit accelerators and links to measurements, cross-validated, and return entries for SCALEACROSS_CONFIGS.

    Kernels are fitted first, then curves of collectives, then what a training step adds to both.

    Args:
        gemm: measured matrix products, a file as in ``score_files``.
        attention: measured attention, a file as in ``score_files``.
        collectives: measured collectives, one or more files as in ``score_files``.
        runs: CSV of measured training runs, with columns as in ``validation.runs.Run``. One run moves the stated
            figures a little; many runs determine them.
        bench: outputs of ``scaleacross bench --json``. They calibrate the levels of the plan's topology outside a
            scale-up domain.
        plan: the plan whose launch file these benchmarks ran; required with ``bench``.
        base: catalogue names or files of an accelerator, a link or both. They supply unfitted figures for names that
            the catalogue lacks; an entry of the catalogue starts from itself.
        network: link of all ``collectives``, where no column names it.
        only: labels of the files (accelerator, system, gpu) to use, or names of their catalogue entries; () uses all.
        today: date written into the entries.
        progress: called before every fit.

    Raises:
        InputError: a file cannot be read; a name is not in the catalogue and has no base; measurements are impossible;
            or there are too few, in which case the message states how many a fit needs.
    """
    benches = listed(bench)
    if gemm is None and attention is None and not collectives and runs is None and not benches:
        raise InputError("nothing to fit: give gemm, attention, collectives, runs or bench")
    if benches and plan is None:
        raise InputError("bench says nothing of the levels that its groups cross: give the plan that it ran too")
    request = _Request(
        bases_of(listed(base)),
        tuple(listed(only)),
        (today or date.today()).isoformat(),
        telling(progress),
    )
    skipped: list[Skipped] = []
    tasks = [
        *(_product_tasks(request, Path(gemm), skipped) if gemm is not None else ()),
        *(_call_tasks(request, Path(attention)) if attention is not None else ()),
    ]
    links, nodes = _link_fits(request, listed(collectives), network, skipped) if collectives else ([], [])
    kernels = _kernel_fits(request, tasks, skipped)
    steps = _step_fits(request, Path(runs), kernels, links, skipped) if runs is not None else None
    found = assembled(kernels, links, steps, skipped)
    found = replace(found, entries=(*found.entries, *nodes))
    if not benches or plan is None:
        return found
    request.tell("fitting levels", 0, len(benches))
    return replace(found, entries=(*found.entries, *level_entries(benches, plan, request.date)))


def _product_tasks(request: _Request, path: Path, skipped: list[Skipped]) -> list[_Task]:
    source, tasks = read_data_file(path).label, []
    sweeps = {
        key: times for key, times in read_gemm_times(path).items() if request.wants(key[0], ACCELERATOR_OF.get(key[0]))
    }
    targets = request.bases.accelerator_targets(dict.fromkeys(label for label, _ in sweeps))
    for (label, kind), times in sweeps.items():
        target = targets[label]
        if reason := dtype_refused(target.base, kind):
            raise InputError(f"{path}: rows of {label}: {reason}")
        small = int((times.flop < MIN_GEMM_FLOP).sum())
        if small:
            skipped.append(Skipped(label, small, SMALL))
        known = next(one for one in ELEMENT_BYTES if one == kind)
        fit = partial(fit_products, label, known, times, target.base, source, request.date)
        tasks.append(_Task(target, label, kind, len(times.time_s) - small, fit))
    return _checked(tasks, path, request)


def _call_tasks(request: _Request, path: Path) -> list[_Task]:
    source, tasks = read_data_file(path).label, []
    sweeps = {
        label: times
        for label, times in read_attention_times(path).items()
        if request.wants(label, ACCELERATOR_OF.get(label))
    }
    for label, target in request.bases.accelerator_targets(sweeps).items():
        if reason := dtype_refused(target.base, "bf16"):
            raise InputError(f"{path}: rows of {label}: {reason}")
        fit = partial(fit_calls, label, sweeps[label], target.base, source, request.date)
        tasks.append(_Task(target, label, "attention", len(sweeps[label].time_s), fit))
    return _checked(tasks, path, request)


def _checked(tasks: list[_Task], path: Path, request: _Request) -> list[_Task]:
    """Return ``tasks``. Raises InputError where there is none, or where two labels are fits of the same figure."""
    if not tasks:
        raise InputError(f"{path}: no row of {', '.join(request.only)} (--only)")
    for (name, what), number in Counter((task.target.name, task.what) for task in tasks).items():
        if number > 1:
            labels = ", ".join(task.label for task in tasks if (task.target.name, task.what) == (name, what))
            raise InputError(f"{path}: {labels} all mean {what} of {name}: use one name, or choose with --only")
    return tasks


def _kernel_fits(request: _Request, tasks: Sequence[_Task], skipped: list[Skipped]) -> KernelFits:
    """Run ``tasks``; those with too few rows are skipped. Raises TooFewError when none succeeds."""
    fits: KernelFits = []
    few: list[str] = []
    for number, task in enumerate(tasks):
        request.tell("fitting kernels", number, len(tasks))
        try:
            fits.append((task.target, task.fit()))
        except TooFewError as error:
            few.append(f"- {task.label}, {task.what}, {task.rows} rows: {error}")
            skipped.append(Skipped(f"{task.label} {task.what}", task.rows, str(error)))
    if few and not fits:
        raise TooFewError("no kernel can be fitted:\n" + "\n".join(few))
    return fits


def _link_fits(
    request: _Request, given: Sequence[str | Path], network: str | None, skipped: list[Skipped]
) -> tuple[LinkFits, list[FittedEntry]]:
    """Return fits within a scale-up domain by technology, and entries of topologies fitted to multi-node rows."""
    contents = [read_stated(one) for one in given]
    source = ", ".join(content.label for content in contents)
    rows = [row for content in contents for row in content.rows if request.wants(row.label, link_of(row))]
    if not rows:
        raise InputError(f"{source}: no row of {', '.join(request.only)} (--only)")
    for content in contents:
        skipped += [
            Skipped(label, n, why)
            for (label, why), n in content.left_out.items()
            if request.wants(label, SCALE_UP_OF.get(label))
        ]
    across = [row for row in rows if row.num_nodes > 1]
    nodes = list(node_entries(across, source, request.date, skipped)) if across else []
    rows = [row for row in rows if row.num_nodes == 1]
    if not rows and not nodes:
        reasons = "\n".join(f"- {one.rows} rows of '{one.label}': {one.reason}" for one in skipped)
        raise InputError(f"{source}: no collective can be fitted:\n{reasons}")
    if not rows:
        return [], nodes
    targets = request.bases.network_targets({row.label: network or link_of(row) for row in rows})
    fits: LinkFits = []
    chosen = {target.name: target for target in targets.values()}
    for number, target in enumerate(chosen.values()):
        request.tell("fitting collectives", number, len(chosen))
        own = [row for row in rows if targets[row.label].name == target.name]
        systems = ", ".join(filter(None, dict.fromkeys(row.label for row in own)))
        origin = f"{source}, {len(own)} rows" + (f" of {systems}" if systems else "")
        fits.append((target, fit_link(target.base, target.name, own, origin, request.date)))
    return fits, nodes


def _step_fits(request: _Request, path: Path, kernels: KernelFits, links: LinkFits, skipped: list[Skipped]) -> StepFits:
    everything = read_runs(path)
    runs = [run for run in everything if request.wants(run.gpu.partition(" ")[0], accelerator_of(run.gpu))]
    if not runs:
        raise InputError(f"{path}: no row" + (f" of {', '.join(request.only)} (--only)" if everything else "s"))
    base = request.bases.accelerator
    machines = Machines(
        accelerators=with_kernels(kernels),
        links={target.name: fit.technology for target, fit in links},
        base=None if base is None else catalogue.load_accelerator(base).name,
    )
    request.tell("placing runs", 0, len(runs))
    cases, left = cases_on(runs, machines)
    for (label, reason), number in Counter((run.gpu.partition(" ")[0], reason) for run, reason in left).items():
        skipped.append(Skipped(label, number, reason))
    fits = refit(cases, partial(request.tell, "fitting step times"))
    targets = request.bases.accelerator_targets(dict.fromkeys(name for fit in fits for name in fit.figures))
    return StepFits(read_data_file(path).label, request.date, fits, targets)
