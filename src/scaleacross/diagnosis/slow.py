"""Finds a late rank or a slow link in a run that is not stuck but loses time; ``verdict`` calls it.

Only durations on one host's clock are compared, never times of two hosts.

*Slow rank.* The last rank to join a collective waits least in it. The difference to the second shortest wait is the
time that all others waited for that rank alone. The rank is blamed for it only as far as its program spent longer
outside of communication before than the others' did. Ranks that are late because they waited elsewhere are therefore
not blamed.

*Slow link.* The duration on the last rank contains no waiting, and is compared with the plan's prediction. A transfer
occupies both ends, a wait for the peer only one of them. The smaller of both ends' times is therefore the time of the
link. Its seconds per byte are compared with those of the median link of the same kind of group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

from scaleacross.diagnosis.align import Alignment, Instance
from scaleacross.spec.diagnosis import Fault
from scaleacross.spec.trace import RankTrace, TraceGroup

MIN_SHARE_OF_TRACE = 0.1
"""A loss below this share of the trace's duration gives no verdict."""
CLEARLY_MORE = 3.0
"""The culprit must have lost at least this many times the seconds of the next rank."""


@dataclass(slots=True)
class Loss:
    """Seconds lost to a rank or link, and the instance with the largest loss."""

    seconds: float = 0.0
    worst_s: float = 0.0
    worst: Instance | None = None

    def add(self, seconds: float, instance: Instance) -> None:
        """Add the loss of one instance."""
        self.seconds += seconds
        if seconds > self.worst_s:
            self.worst_s, self.worst = seconds, instance


def slow_faults(alignment: Alignment, slow_ratio: float) -> list[Fault]:
    """Return slow ranks and links, largest loss first.

    ``slow_ratio``: a link is slow if it takes this many times the predicted time, or that of the median link.
    """
    span_s = max((_span_s(trace) for trace in alignment.traces.values()), default=0.0)
    faults = _slow_ranks(alignment, span_s) + _slow_links(alignment, span_s, slow_ratio)
    return sorted(faults, key=lambda fault: -(fault.lost_s or 0.0))


def _span_s(trace: RankTrace) -> float:
    times = [one.completed_ns or one.created_ns for one in trace.operations]
    return (max(times) - trace.operations[0].created_ns) / 1e9 if times else 0.0


def _duration_s(instance: Instance, rank: int) -> float | None:
    """Return the seconds from the start (if unknown, from the call) to the end; None if it has not ended."""
    one = instance.operations[rank]
    begin = one.started_ns or one.created_ns
    return None if one.completed_ns is None else max(one.completed_ns - begin, 0) / 1e9


def _gaps(trace: RankTrace) -> dict[int, float]:
    """Return record -> seconds from the rank's last event to the call, in which its own program ran."""
    events: list[int] = sorted(
        time for one in trace.operations for time in (one.created_ns, one.completed_ns) if time is not None
    )
    gaps = {}
    for one in trace.operations[1:]:
        at = bisect_right(events, one.created_ns - 1) - 1
        gaps[one.record_id] = (one.created_ns - events[at]) / 1e9 if at >= 0 else 0.0
    return gaps


def _slow_ranks(alignment: Alignment, span_s: float) -> list[Fault]:
    gaps = {rank: _gaps(trace) for rank, trace in alignment.traces.items()}
    losses: defaultdict[int, Loss] = defaultdict(Loss)
    for instance in alignment.instances:
        if instance.pair is not None or len(instance.operations) < 2:
            continue
        waits = sorted(
            (wait, rank) for rank in instance.operations if (wait := _duration_s(instance, rank)) is not None
        )
        if len(waits) < 2:
            continue
        (least, last), (second, _) = waits[:2]
        own = {rank: gaps[rank].get(one.record_id, 0.0) for rank, one in instance.operations.items()}
        # blamed time: what the others waited for this rank alone, as far as its own program ran longer than theirs
        away = own.pop(last) - median(own.values())
        if min(second - least, away) > 0:
            losses[last].add(min(second - least, away), instance)
    ranked = sorted(losses.items(), key=lambda item: -item[1].seconds)
    if not ranked or ranked[0][1].seconds < MIN_SHARE_OF_TRACE * span_s:
        return []
    (rank, loss), *rest = ranked
    if rest and loss.seconds < CLEARLY_MORE * rest[0][1].seconds:
        return []
    return [_rank_fault(rank, loss, span_s)]


def _rank_fault(rank: int, loss: Loss, span_s: float) -> Fault:
    worst = loss.worst
    label = worst.label() if worst else ""
    return Fault(
        verdict="slow_rank",
        ranks=(rank,),
        group=worst.group.name if worst else None,
        sequence=worst.sequence if worst else None,
        op=worst.operations[rank].op if worst else None,
        num_victims=len(worst.operations) - 1 if worst else 0,
        lost_s=loss.seconds,
        explanation=f"rank {rank} came last after longer work of its own; others waited {loss.seconds:.3g} s for it alone in "
        f"{span_s:.3g} s of trace, most in {label} ({loss.worst_s:.3g} s)",
    )


def _slow_links(alignment: Alignment, span_s: float, slow_ratio: float) -> list[Fault]:
    """Return, per kind of group, the fault of its slowest link, or of instances slower than predicted."""
    kinds: defaultdict[str, list[Instance]] = defaultdict(list)
    for instance in alignment.instances:
        kinds[instance.group.desc or instance.group.name].append(instance)
    faults = []
    for kind, instances in kinds.items():
        found = _against_prediction(instances)
        link = _worst_link(instances, slow_ratio)
        slow = found.predicted_s > 0 and found.measured_s > slow_ratio * found.predicted_s
        least_s = MIN_SHARE_OF_TRACE * span_s
        if link is not None and link.lost_s >= least_s and (slow or found.predicted_s == 0):
            faults.append(_link_fault(kind, link, found))
        elif slow and found.measured_s - found.predicted_s >= least_s:
            faults.append(_group_fault(kind, found, slow_ratio))
    return faults


@dataclass(slots=True)
class Against:
    """Measured and predicted seconds, summed over operations with a prediction.

    Attributes:
        measured_s: shortest duration on any member, which is that of the last rank.
        by_group: group -> (measured, predicted) seconds.
        worst: the operation with the largest loss, and its seconds.
    """

    measured_s: float = 0.0
    predicted_s: float = 0.0
    by_group: dict[TraceGroup, tuple[float, float]] = field(default_factory=dict)
    worst: Loss = field(default_factory=Loss)


def _against_prediction(instances: list[Instance]) -> Against:
    """Compare measured with predicted times, for instances that ended on all members.

    Without the dump of the last rank, the shortest duration would contain a wait for it.
    """
    found = Against()
    for instance in instances:
        says = max((one.predicted_s or 0.0 for one in instance.operations.values()), default=0.0)
        durations = [took for rank in instance.operations if (took := _duration_s(instance, rank)) is not None]
        if says > 0 and len(durations) == len(instance.members):
            took = min(durations)
            found.measured_s, found.predicted_s = found.measured_s + took, found.predicted_s + says
            measured, predicted = found.by_group.get(instance.group, (0.0, 0.0))
            found.by_group[instance.group] = measured + took, predicted + says
            found.worst.add(max(took - says, 0.0), instance)
    return found


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link and the median link of its kind."""

    ends: tuple[int, int]
    group: TraceGroup
    s_per_byte: float
    median_s_per_byte: float
    lost_s: float

    @property
    def ratio(self) -> float:
        """Seconds per byte over those of the median link."""
        return self.s_per_byte / self.median_s_per_byte


def _worst_link(instances: list[Instance], slow_ratio: float) -> SlowLink | None:
    """Return the link with most seconds per byte in its median operation.

    None if there are fewer than three links, or if it takes less than ``slow_ratio`` times the median link.
    """
    transfers: defaultdict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    groups: dict[tuple[int, int], TraceGroup] = {}
    for instance in instances:
        for source, one in instance.operations.items():
            for target, cursor in one.cursors.items():
                back = instance.operations[target].cursors.get(source) if target in instance.operations else None
                if back is None or not cursor.sent_bytes or not cursor.send_ns or not back.receive_ns:
                    continue
                transfers[source, target].append((min(cursor.send_ns, back.receive_ns) / 1e9, cursor.sent_bytes))
                groups[source, target] = instance.group
    if len(transfers) < 3:
        return None
    cost = {ends: median(seconds / moved for seconds, moved in each) for ends, each in transfers.items()}
    ends = max(cost, key=lambda one: cost[one])
    usual = median(cost.values())
    lost_s = sum(seconds - moved * usual for seconds, moved in transfers[ends])
    link = SlowLink(ends, groups[ends], cost[ends], usual, lost_s)
    return link if link.ratio >= slow_ratio else None


def _link_fault(kind: str, link: SlowLink, found: Against) -> Fault:
    source, target = link.ends
    beside = "; the trace has no prediction"
    if found.predicted_s:
        beside = f"; {kind} took {found.measured_s:.3g} s, predicted {found.predicted_s:.3g} s"
    return Fault(
        verdict="slow_link",
        ranks=link.ends,
        link=link.ends,
        group=link.group.name,
        num_victims=max(len(link.group.ranks) - 2, 0),
        lost_s=link.lost_s,
        explanation=f"link {source}→{target} moved {1 / link.s_per_byte / 1e6:.3g} MB/s where the median link of "
        f"{kind} moved {1 / link.median_s_per_byte / 1e6:.3g} MB/s ({link.ratio:.1f}x slower){beside}",
    )


def _group_fault(kind: str, found: Against, slow_ratio: float) -> Fault:
    slow = [group for group, (measured, predicted) in found.by_group.items() if measured > slow_ratio * predicted]
    where = f"{len(slow)} of {len(found.by_group)} groups" if len(found.by_group) > 1 else "its one group"
    worst = found.worst.worst
    return Fault(
        verdict="slow_link",
        ranks=tuple(sorted({rank for group in slow for rank in group.ranks})),
        group=worst.group.name if worst else None,
        sequence=worst.sequence if worst else None,
        num_victims=0,
        lost_s=found.measured_s - found.predicted_s,
        explanation=f"{kind} took {found.measured_s:.3g} s where {found.predicted_s:.3g} s were predicted "
        f"({found.measured_s / found.predicted_s:.1f}x) in {where}, most in {worst.label() if worst else kind}; "
        "no single link explains it, or the trace has no transfer times",
    )
