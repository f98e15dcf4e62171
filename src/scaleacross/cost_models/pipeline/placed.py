"""Times the pipeline of a placed decision, with computation and waits of every virtual stage.

An action of a stage lasts as long as its layers compute plus the exposed seconds of their collectives
(``stage_seconds``). The laws are those of ``axes``, which gives the same waits for a rank as a whole. Stages differ:
layers do not divide evenly over them, the first layers of a model may have no experts, the ends have embedding and
head, and replicas run on other accelerator types. So the longest rank is not the one with most computation, and ranks
wait for the longest stage in every round. The schedule is timed action by action for every kind of replica. The plan
takes the kind whose step, exposed traffic included, is longest.

    pipeline = Σ actions of the busiest rank of a kind + bubble (its idle time without delays) + delays of messages
             + what all ranks lose to contention on inter-building links (``shared_links``)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from scaleacross.cost_models.axes import Calls
from scaleacross.cost_models.candidates import Bools, Floats, Ints
from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.layout import Layout
from scaleacross.cost_models.least_waits import cp_waits_s, expert_waits_s, hidden_exchange_s
from scaleacross.cost_models.messages import NO_DELAYS, Boundary, boundary_kinds, boundary_times
from scaleacross.cost_models.pipeline.actions import Actions
from scaleacross.cost_models.pipeline.exact import compiled_schedule, virtual_boundaries
from scaleacross.cost_models.pipeline.shard_passes import ShardCalls
from scaleacross.cost_models.pipeline.shared_links import is_crowded
from scaleacross.cost_models.pipeline.timed_bounds import WHOLE
from scaleacross.cost_models.traffic import Volumes
from scaleacross.schedules.pipeline import SCHEDULES, Kind
from scaleacross.spec.parallelism import SCHEDULE_NAMES, PipelineChoice


class Waits(NamedTuple):
    """Seconds of one component that actions wait for, (p·v,) each: F, whole backward B, input gradient I alone, further
    seconds of the first forward and of the last backward, and weight gradients W alone."""

    forward_s: Floats
    backward_s: Floats
    input_s: Floats
    first_s: Floats
    last_s: Floats
    weight_s: Floats


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of the actions of every virtual stage, (p·v,): computation, and ``waits`` by component.

    ``replicated_s`` is for a single rank that scatters shards with every backward pass, else None. It is the seconds by
    which gradients between replicas outlast these passes.
    """

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    waits: Mapping[str, Waits]
    replicated_s: float | None = None

    def chosen(self, other: StageSeconds, here: Bools) -> StageSeconds:
        """These seconds, with those of ``other`` where ``here``, (p·v,), is true."""
        waits = {
            name: Waits(*(np.where(here, b, a) for a, b in zip(one, other.waits[name], strict=True)))
            for name, one in self.waits.items()
        }
        return StageSeconds(
            np.where(here, other.forward_s, self.forward_s),
            np.where(here, other.backward_s, self.backward_s),
            np.where(here, other.weight_s, self.weight_s),
            waits,
            other.replicated_s if here.all() else self.replicated_s,
        )

    def actions(
        self, choice: PipelineChoice, p: int, m: int, boundary: tuple[float, ...], blocking: bool = False
    ) -> Actions:
        """All actions of a schedule with the delays of a ``Boundary``.

        ``blocking``: a sender waits until its message has arrived.
        """
        name, v = choice.schedule, choice.num_chunks
        forward, backward, alone, first, last, weight = (
            sum(column) for column in zip(*self.waits.values(), strict=True)
        )
        latency, occupancy = (times[: p if v > 1 else p - 1] for times in boundary_times(p, boundary))
        if blocking:
            # a blocking send is part of the action that sends: forward to the next stage, backward to the one before
            delay = virtual_boundaries("delay_s", latency + occupancy, p, v, SCHEDULES[name].placement)
            forward = forward + np.append(delay, 0.0)
            backward, alone = backward + np.append(0.0, delay), alone + np.append(0.0, delay)
            latency = occupancy = np.zeros_like(latency)
        crossing = boundary_kinds(p, boundary)[: len(occupancy)] > 0
        return Actions(
            name,
            p,
            m,
            v,
            choice.order,
            self.forward_s + forward,
            self.backward_s + backward,
            np.maximum(0.0, self.backward_s - self.weight_s) + alone,
            self.weight_s + weight,
            np.stack([first, last]),
            latency,
            occupancy,
            crossing if occupancy[crossing].any() else None,
        )

    @property
    def pass_s(self) -> Floats:
        """Seconds of a forward and a whole backward pass with their waits, (p·v,)."""
        waited = sum((one.forward_s + one.backward_s for one in self.waits.values()), start=np.zeros(1))
        total: Floats = self.forward_s + self.backward_s + waited
        return total


@dataclass(frozen=True)
class TimedPipeline:
    """The pipeline of one kind of replicas and the seconds of its busiest rank.

    Attributes:
        compute_s: seconds of computation of the busiest rank.
        waited_s: its waits by tp, cp, ep.
        replicas, rank: index of a replica class of this kind, and its busiest rank.
        passes: the actions with message delays, and with inter-building links where any action uses these.
        actions: the actions as the plan's pipeline is timed: with these links where they are crowded. None where one
            rank runs passes one after another.
        undelayed: the actions without delays and links; None where one rank runs passes one after another.
        queued_s: seconds by which contention on inter-building links lengthens the pipeline; part of ``waited_s``.
        replicated_s: as of ``StageSeconds``.
    """

    compute_s: float
    waited_s: Mapping[str, float]
    replicas: int
    rank: int
    passes: Actions
    actions: Actions | None = None
    undelayed: Actions | None = None
    queued_s: float = 0.0
    replicated_s: float | None = None

    @property
    def total_s(self) -> float:
        """Seconds of the pipeline."""
        return self._of_rank_s if self.actions is None else self.actions.total_s

    @property
    def alone_s(self) -> float:
        """Seconds of the pipeline if messages took no time."""
        return self._of_rank_s if self.undelayed is None else self.undelayed.total_s + self.queued_s

    @property
    def bubble_s(self) -> float:
        """Seconds that the busiest rank idles if messages took no time."""
        return max(0.0, self.alone_s - self._of_rank_s)

    @property
    def _of_rank_s(self) -> float:
        return self.compute_s + sum(self.waited_s.values())


def stage_seconds(
    volumes: Volumes,
    work: StageWork,
    calls: Sequence[Calls],
    shards: ShardCalls | None = None,
    inside: Sequence[Calls] = (),
) -> StageSeconds:
    """Seconds of the actions of one decision on one accelerator type.

    Args:
        volumes: of the decision (one row).
        calls: of tp, cp and dp_shard (``axes.axis_calls``), one row, or one for every pipeline rank.
        shards: gathers and scatters of its layers; None: there are none.
        inside: with shards, ``calls`` without the time of inter-building links.
    """
    tp, cp, exchange = calls
    waits = {
        "tp": _tp_waits(volumes, work, tp),
        "cp": _cp_waits(volumes, work, cp),
        "ep": _ep_waits(volumes, work, exchange),
    }
    replicated_s = None
    if shards is not None:
        forward, backward, inputs = np.sum([np.broadcast_arrays(*one[:3]) for one in waits.values()], axis=0)
        busy_s = np.sum(layers_busy_s(work, *inside), axis=0)
        replicated_s = shards.replicated_s(work, backward, busy_s[1])
        forward, backward, inputs, weight = shards.waited_s(work, forward, backward, inputs, busy_s)
        nothing = np.zeros(len(work.rank))
        waits["dp"] = Waits(forward, backward, inputs, nothing, nothing, weight)
    return StageSeconds(work.forward_s, work.backward_s, work.weight_s, waits, replicated_s)


def layers_busy_s(work: StageWork, tp: Calls, cp: Calls, exchange: Calls) -> tuple[Floats, ...]:
    """Seconds for which tp, cp and ep keep networks beyond domains busy, forward and backward, (2, p·v) each."""
    often = (
        (tp, 2 * work.tp_forward, 2 * work.tp_backward, 0.0),
        (cp, work.attention_layers, work.attention_layers, work.keys_again),
        (exchange, 2 * work.moe_layers, 2 * work.moe_layers, work.tokens_again),
    )

    def busy_s(calls: Calls, ahead: Floats, back: Floats, again: Floats | float) -> Floats:
        if calls.busy_s is None:
            return np.zeros((2, len(work.rank)))
        forward, backward = (_of_stages(each, work) for each in calls.busy_s)
        return np.stack(np.broadcast_arrays(ahead * forward, back * (backward + again * forward)))

    return tuple(busy_s(*one) for one in often)


def _of_stages(seconds: Floats, work: StageWork) -> Floats:
    """``seconds`` per pipeline rank spread over virtual stages, (p·v,); one value for all stays (1,)."""
    return seconds[work.rank] if len(seconds) > 1 else seconds


def _tp_waits(volumes: Volumes, work: StageWork, calls: Calls) -> Waits:
    """Exposed seconds over tp by action, by the law of ``least_waits._tp_waits_s``. Reductions overlap with weight
    gradients only in whole backward passes."""
    overlap, nothing = volumes.job.overlap, np.zeros(len(work.rank))
    pair = nothing if calls.gather_s is None else 2 * _of_stages(calls.gather_s, work)
    back, hidden = work.tp_backward * pair, overlap.tp_fraction * work.tp_backward * pair
    if overlap.tp_reduce:
        reductions = work.tp_forward * pair * (1.0 if volumes.all_reduced else 0.5)
        overlapped = np.minimum(reductions, 0.5 * work.weight_s) * (1 - float(volumes.work.contention_fraction[0]))
        hidden = np.maximum(hidden, overlapped)
    left = 1 - overlap.tp_fraction
    return Waits(left * work.tp_forward * pair, back - hidden, left * back, nothing, nothing, nothing)


def _cp_waits(volumes: Volumes, work: StageWork, calls: Calls) -> Waits:
    """Exposed seconds over cp by action: exchanges beyond the attention of the same layers."""
    nothing = np.zeros(len(work.rank))
    if calls.gather_s is None or calls.both_s is None:
        return Waits(*(nothing,) * 6)
    gather, both = (_of_stages(seconds, work) for seconds in (calls.gather_s, calls.both_s))
    heads = None if calls.heads_s is None else _of_stages(calls.heads_s, work)
    forward, back = cp_waits_s(volumes, gather, both, heads, work.attention_layers, work.attention_s, work.keys_again)
    return Waits(forward, back, back, nothing, nothing, nothing)


def _ep_waits(volumes: Volumes, work: StageWork, calls: Calls) -> Waits:
    """Exposed seconds of all-to-alls by action. Input gradients of shared experts take as long as their forward pass
    (assumed)."""
    nothing = np.zeros(len(work.rank))
    if calls.exchange_s is None or calls.held_s is None:
        return Waits(*(nothing,) * 6)
    hidden_s = _of_stages(hidden_exchange_s(volumes, calls.exchange_s, calls.held_s), work)
    law = partial(expert_waits_s, volumes, _of_stages(calls.exchange_s, work), hidden_s, work.tokens_again)
    shared, inputs_s = (work.shared_s, work.shared_backward_s), work.backward_s - work.weight_s
    (forward, back), _ = law(shared, work.moe_layers, (work.forward_s, work.backward_s))
    (_, inputs), (first, last) = law((work.shared_s, work.shared_s), work.moe_layers, (work.forward_s, inputs_s))
    return Waits(forward, back, inputs, first, last, nothing)


def timed_pipelines(
    volumes: Volumes,
    by_type: Mapping[str, StageSeconds],
    rank_of: Ints,
    layout: Layout,
    micro_batches: Sequence[int],
    message: Boundary | None,
    busy_s: Mapping[str, Floats],
) -> list[TimedPipeline]:
    """The pipelines of one decision: one for every kind of replicas, by accelerator types and number of micro-batches.

    Args:
        by_type: seconds of stages by accelerator type.
        rank_of: pipeline rank of every virtual stage.
        micro_batches: of every class of ``layout``.
        busy_s: seconds for which F, B, I and W of every virtual stage use inter-building links, (4, p·v) by component.

    Raises:
        InputError: a pipeline is too long to be timed (``pipeline.exact.MAX_ACTIONS``).
    """
    first_index: dict[tuple[tuple[frozenset[str], ...], int], int] = {}
    for index, (one, m) in enumerate(zip(layout, micro_batches, strict=True)):
        first_index.setdefault((one.types, m), index)
    return [
        _timed(volumes, _slowest(by_type, rank_of, types), rank_of, m, message, index, busy_s)
        for (types, m), index in first_index.items()
    ]


def _slowest(by_type: Mapping[str, StageSeconds], ranks: Ints, types: Sequence[frozenset[str]]) -> StageSeconds:
    """Seconds of the stages with every rank on the slowest of its types."""
    names = list(by_type)
    out = by_type[names[0]]
    if len(names) == 1:
        return out
    passes = np.stack([np.bincount(ranks, by_type[name].pass_s, len(types)) for name in names])
    # a type that a rank does not have must never win the maximum
    there = np.array([[name in here for here in types] for name in names])
    slowest = np.where(there, passes, -1.0).argmax(axis=0)
    for index, name in enumerate(names[1:], 1):
        out = out.chosen(by_type[name], (slowest == index)[ranks])
    return out


def _timed(
    volumes: Volumes,
    seconds: StageSeconds,
    ranks: Ints,
    m: int,
    message: Boundary | None,
    replicas: int,
    busy_s: Mapping[str, Floats],
) -> TimedPipeline:
    candidates = volumes.candidates
    name, v, p = SCHEDULE_NAMES[int(candidates.schedule[0])], int(candidates.num_chunks[0]), int(candidates.pp[0])
    choice = PipelineChoice(schedule=name, num_chunks=v, order=volumes.order)
    counts = _counts(choice, p, m)
    waited = {each: np.bincount(ranks, _waited_s(one, counts), p) for each, one in seconds.waits.items()}
    computed = np.bincount(
        ranks,
        counts[0] * seconds.forward_s
        + (counts[1] + counts[2]) * seconds.backward_s
        + (counts[3] - counts[2]) * seconds.weight_s,
        p,
    )
    rank = int((computed + sum(waited.values())).argmax())
    busiest = float(computed[rank]), {each: float(one[rank]) for each, one in waited.items()}
    replicated_s = seconds.replicated_s
    alone = seconds.actions(choice, p, m, NO_DELAYS)
    # kinds of actions that the schedule never runs use no link
    links = (counts > 0) * sum(busy_s.values(), start=np.zeros(counts.shape))
    if message is None or (p == 1 and name in WHOLE and volumes.order is None):  # passes one after another
        passes = replace(alone, link_s=links if links.any() else None)
        timed = TimedPipeline(*busiest, replicas, rank, passes, replicated_s=replicated_s)
        return _queued(timed, m * sum(float(each[:2].sum()) for each in busy_s.values()) - timed.total_s, busy_s)
    near = tuple(float(np.broadcast_to(part, 1)[0]) for part in message)
    blocking = not volumes.job.overlap.messages(chunked=choice.num_chunks > 1)
    delayed = seconds.actions(choice, p, m, near, blocking) if any(near[:6]) else alone
    passes = replace(delayed, link_s=links if links.any() else None)
    timed = TimedPipeline(*busiest, replicas, rank, passes, delayed, alone, replicated_s=replicated_s)
    if not is_crowded(delayed.seconds, links, ranks):
        return timed
    return _queued(replace(timed, actions=passes), passes.total_s - delayed.total_s, busy_s)


def _queued(timed: TimedPipeline, queued_s: float, busy_s: Mapping[str, Floats]) -> TimedPipeline:
    """``timed`` lengthened by ``queued_s``, if positive, and split over components by their ``busy_s``."""
    passes = {name: float(each[:2].sum()) for name, each in busy_s.items()}
    total = sum(passes.values())
    if queued_s <= 0 or total <= 0:
        return timed
    longer = {name: timed.waited_s.get(name, 0.0) + queued_s * own / total for name, own in passes.items()}
    return replace(timed, waited_s={**timed.waited_s, **longer}, queued_s=queued_s)


def _counts(choice: PipelineChoice, p: int, m: int) -> Floats:
    """Number of times that a stage runs F, B, I and W in a step, (4, p·v)."""
    if choice.schedule in WHOLE and choice.order is None:
        return np.array([m, m, 0.0, 0.0])[:, None] * np.ones(p * choice.num_chunks)
    compiled = compiled_schedule(choice, p, m)
    out = np.zeros((len(Kind), p * choice.num_chunks))
    np.add.at(out, (compiled.kind, compiled.stage), 1.0)
    return out


def _waited_s(waits: Waits, counts: Floats) -> Floats:
    """Seconds that every stage waits in a step, (p·v,)."""
    often: Floats = counts[0] * waits.forward_s + counts[1] * waits.backward_s + counts[2] * waits.input_s
    return often + counts[3] * waits.weight_s + waits.first_s + waits.last_s
