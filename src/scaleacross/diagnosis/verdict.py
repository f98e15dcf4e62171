"""Returns the diagnosis of a run's traces: stuck operations if there are any, otherwise slow ranks and links."""

from __future__ import annotations

from collections.abc import Sequence

from scaleacross.diagnosis.align import Alignment, align
from scaleacross.diagnosis.slow import slow_faults
from scaleacross.diagnosis.waiting import waiting_roots
from scaleacross.spec.diagnosis import Diagnosis, Fault, UnreadableDump
from scaleacross.spec.trace import RankTrace

DEFAULT_SLOW_RATIO = 2.0


def diagnosis(
    traces: Sequence[RankTrace], unreadable: Sequence[UnreadableDump] = (), slow_ratio: float = DEFAULT_SLOW_RATIO
) -> Diagnosis:
    """Return the verdict on ``traces``; see ``spec.diagnosis``.

    Args:
        traces: one per rank, at least one.
        unreadable: files that exist but could not be read; mentioned if the rank of one is the root.
        slow_ratio: a link is slow if it takes this many times the predicted time, or that of the median link.
    """
    alignment = align(traces)
    stuck = alignment.stuck()
    faults = waiting_roots(alignment) if stuck else slow_faults(alignment, slow_ratio)
    faults = [_with_file(fault, unreadable) for fault in faults]
    root = faults[0] if faults else None
    at_fault = {rank for fault in faults[:16] for rank in fault.ranks[:16]}
    waiting = {rank for instance in stuck for rank in instance.pending}
    return Diagnosis(
        verdict=root.verdict if root else "all_good" if _judged(alignment, unreadable) else "not_judged",
        root=root,
        others=tuple(faults[1:]),
        num_dumps=len(alignment.traces),
        world_size=alignment.world_size,
        num_operations=sum(len(trace.operations) for trace in alignment.traces.values()),
        num_stuck_operations=sum(len(instance.pending) for instance in stuck),
        num_waiting_ranks=len(waiting),
        missing_ranks=alignment.missing_ranks,
        unreadable=tuple(unreadable),
        hosts={rank: host for rank in sorted(at_fault) if (host := _host(alignment, rank))},
        notes=_notes(alignment, root),
    )


def _judged(alignment: Alignment, unreadable: Sequence[UnreadableDump]) -> bool:
    """Return whether the evidence is complete: every rank has a readable dump, and the dumps contain operations.

    A rank that was killed while the others computed has no dump, although no rank waits for it.
    """
    seen = any(instance.operations for instance in alignment.instances)
    return seen and not unreadable and not alignment.missing_ranks


def _with_file(fault: Fault, unreadable: Sequence[UnreadableDump]) -> Fault:
    """Mention the unreadable file of a rank that counts as dead because it has no trace."""
    if fault.verdict != "process_dead":
        return fault
    own = next((one for one in unreadable if one.rank == fault.ranks[0]), None)
    if own is None:
        return fault
    said = fault.explanation.replace("left no dump", f"left a dump that cannot be read ({own.file}: {own.reason})")
    return fault.model_copy(update={"explanation": said})


def _host(alignment: Alignment, rank: int) -> str | None:
    trace = alignment.traces.get(rank)
    return trace.host if trace else None


def _notes(alignment: Alignment, root: Fault | None) -> tuple[str, ...]:
    notes = []
    if alignment.missing_ranks and (root is None or root.verdict != "process_dead"):
        missing = alignment.missing_ranks
        shown = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        notes.append(f"no readable dump of ranks {shown}; nobody is seen to wait for them")
    cut = sum(not trace.complete_from_start for trace in alignment.traces.values())
    if cut:
        notes.append(f"{cut} traces have lost their oldest operations; what those were is not judged")
    if not any(instance.operations for instance in alignment.instances):
        notes.append("the dumps hold no operation")
    return tuple(notes)
