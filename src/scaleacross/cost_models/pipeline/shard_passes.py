"""Passes whose layers gather their parameters and scatter their gradients: exposed seconds beyond the layers' own.

A pass gathers the parameters of its first layer, and those of every next layer while one computes. It scatters the
gradients of a layer once they are computed. The next action begins when all are scattered (``step.program``). A layer
travels through its communicators in turn: gathers over experts, dp_shard, cp, reductions in reverse. Every communicator
runs its calls one after another. All calls share the network with a layer's own waits inside its building. Calls that
keep it busy for N seconds end no sooner than N seconds after the calls before them have left it. For layers i of a
pass, g and r the gathers and reductions through all communicators, c seconds that a layer computes and otherwise waits:

    begun(i) = max(ended(i−1), gathered(i))        gathered(i + 1) = g after begun(i)
    ended(i) = begun(i) + c                        reduced(i)      = r after ended(i)

Concurrent collectives hold multiprocessors, so a layer computes longer, at most by all its own calls. In the last
backward pass replicas reduce a layer's gradients once it has scattered them. The step waits for the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.chunk_work import StageWork
from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.overlap import BUSY, EVERY_PASS, GRADIENTS, WINDOW_NAMES
from scaleacross.cost_models.sharding import pass_gathers, reduced_every_pass
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.window_traffic import SHARDED, communicators, crosses_buildings

SAME: Final = 1e-12
"""Relative tolerance: where all moments of two consecutive layers differ by the same seconds, later layers repeat."""
Call = tuple[int, float, float]
"""Number of a communicator, seconds of a call, and seconds for which the call keeps the network busy."""


@dataclass(frozen=True)
class ShardCalls:
    """Calls of the mean layer of every stage by communicator, in the order of a reduction.

    Attributes:
        gather_s, reduce_s, replicate_s: (3, communicators, p·v): seconds, seconds with a busy network, and seconds that
            hold multiprocessors. ``replicate_s`` is for gradients between replicas, once in a step.
        gathers: passes of a micro-batch that gather: 0 none, 1 forward passes, 2 both.
        reduces: whether gradients are scattered with every micro-batch.
        taken: seconds of products lost for every second that a call holds multiprocessors.
    """

    gather_s: Floats
    reduce_s: Floats
    replicate_s: Floats
    gathers: int
    reduces: bool
    taken: float

    @classmethod
    def of(cls, volumes: Volumes, groups: Mapping[str, Group]) -> ShardCalls | None:
        """Calls of a decision on ``groups``, one row each.

        None where nothing travels with every pass, or nothing may overlap. ``volumes``: a row per virtual stage.
        """
        gathers, reduces = int(pass_gathers(volumes.candidates)[0]), bool(reduced_every_pass(volumes.candidates)[0])
        if not (gathers or reduces) or not volumes.job.overlap.shard_prefetch:
            return None
        axes = (*SHARDED, "dp_replicate")
        parts = [part for axis in axes for part in communicators(axis, volumes, groups[axis], groups["expert"])]
        traffic = np.stack(parts, axis=1).reshape(3, len(WINDOW_NAMES), len(parts), -1) / volumes.work.buckets
        # traffic states seconds that hold no multiprocessors; turn them into seconds that do
        traffic[2] = traffic[0] - traffic[2]
        forward, backward = traffic[:, EVERY_PASS].swapaxes(0, 1)
        # where both passes gather, the backward window repeats the gathers of the forward one
        reduce, replicate = backward - (forward if gathers > 1 else 0.0), traffic[:, GRADIENTS]
        work = volumes.work
        taken = float((work.contention_fraction * (1 - work.elementwise_fraction))[0])
        return cls(forward, reduce, replicate, gathers, reduces, taken)

    def keeping_busy(self, volumes: Volumes, inside: Mapping[str, Group]) -> ShardCalls:
        """The same calls with the busy seconds of ``inside``, the groups that no inter-building link limits."""
        busy = ShardCalls.of(volumes, inside)
        if busy is None:
            return self
        parts = zip(
            (self.gather_s, self.reduce_s, self.replicate_s),
            (busy.gather_s, busy.reduce_s, busy.replicate_s),
            strict=True,
        )
        gather, reduce, replicate = (np.stack([own[0], of[1], own[2]]) for own, of in parts)
        return replace(self, gather_s=gather, reduce_s=reduce, replicate_s=replicate)

    def waited_s(
        self, work: StageWork, forward_s: Floats, backward_s: Floats, input_s: Floats, busy_s: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Exposed seconds of F, B, I and W of every virtual stage beyond computation and other waits, (p·v,) each.

        ``busy_s`` (2, p·v): seconds for which other calls keep the network busy in a forward and a backward pass.
        """
        alone, again, (ahead, back) = np.maximum(0.0, work.backward_s - work.weight_s), self.gathers > 1, busy_s
        return (
            self._of_kind(work, work.forward_s, forward_s, ahead, gathers=self.gathers > 0, reduces=False),
            self._of_kind(work, work.backward_s, backward_s, back, gathers=again, reduces=self.reduces),
            self._of_kind(work, alone, input_s, back, gathers=again, reduces=False),
            self._of_kind(work, work.weight_s, 0 * back, 0 * back, gathers=False, reduces=self.reduces),
        )

    def replicated_s(self, work: StageWork, backward_s: Floats, busy_s: Floats) -> float:
        """Seconds by which gradients between replicas outlast the backward passes of all chunks of one rank.

        All chunks count as the first. They wait ``backward_s`` in addition and keep the network busy for ``busy_s``.
        """
        layers = int(np.maximum(1, work.num_layers).sum())
        layer = float((work.backward_s + backward_s).sum()) / layers, float(busy_s.sum()) / layers
        gathers = _calls(self.gather_s[..., 0])[::-1] if self.gathers > 1 else []
        reductions, replicas = _calls(self.reduce_s[..., 0]), _calls(self.replicate_s[..., 0])
        return sum(timed_s(layers, layer, gathers, reductions, replicas)) - sum(
            timed_s(layers, layer, gathers, reductions)
        )

    def _of_kind(
        self, work: StageWork, computed_s: Floats, waited_s: Floats, busy_s: Floats, *, gathers: bool, reduces: bool
    ) -> Floats:
        """Exposed seconds of one kind of action, (p·v,)."""
        if not (gathers or reduces):
            return np.zeros(len(work.rank))
        gather, reduce = gathers * self.gather_s, reduces * self.reduce_s
        layers = np.maximum(1, work.num_layers)
        held = (gather[2] + reduce[2]).sum(axis=0)
        # while computation is slowed, t seconds of it take t / (1 − taken), which caps the contention
        slower = self.taken * np.minimum(held, computed_s / layers / (1 - self.taken))
        layer_s = (computed_s + waited_s) / layers + slower
        columns = np.concatenate([np.stack([layers, layer_s, busy_s / layers]), *gather[:2], *reduce[:2]])
        _, examples, code = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        passes = [
            timed_s(
                int(layers[at]),
                (float(layer_s[at]), float(columns[2, at])),
                _calls(gather[..., at])[::-1],
                _calls(reduce[..., at]),
            )[0]
            for at in examples
        ]
        exposed: Floats = np.array(passes)[code.reshape(-1)] - (layer_s - slower) * layers
        return np.maximum(0.0, exposed)


def _calls(seconds: Floats) -> list[Call]:
    """The calls of one layer, from (3, communicators); communicators without calls are left out."""
    own = enumerate(seconds[:2].T.tolist())
    return [(number, call_s, busy_s) for number, (call_s, busy_s) in own if call_s > 0]


def timed_s(
    layers: int,
    layer: tuple[float, float],
    gathers: Sequence[Call],
    reductions: Sequence[Call],
    replicas: Sequence[Call] = (),
) -> tuple[float, float]:
    """Seconds of a pass of ``layers`` layers, and the seconds by which ``replicas`` outlast it.

    ``layer``: seconds that a layer lasts, and seconds for which its own waits keep the network busy. ``replicas`` are
    calls after the reductions of every layer, which use the part of the network that the others leave.
    """
    every, concurrent = (*gathers, *reductions, *replicas), [(number, call_s, 0.0) for number, call_s, _ in replicas]
    free, network = [0.0] * (1 + max((number for number, *_ in every), default=0)), 0.0

    def run(start: float, calls: Sequence[Call]) -> float:
        nonlocal network
        for number, call_s, busy_s in calls:
            begun = max(start, free[number])
            start = begun + call_s
            if busy_s > 0:
                network = max(network, begun) + busy_s
                start = max(start, network)
            free[number] = start
        return start

    gathered, ended, reduced, replicated, done = run(0.0, gathers), 0.0, 0.0, 0.0, 0
    before: list[float] = []
    while done < layers:
        begun = max(ended, gathered)
        gathered = run(begun, gathers) if done + 1 < layers else begun
        ended = begun + layer[0]
        if layer[1] > 0:
            network = max(network, begun) + layer[1]
            ended = max(ended, network)
        reduced = run(ended, reductions)
        replicated = run(reduced, concurrent)
        done += 1
        now = [gathered, ended, reduced, replicated, network, *free]
        steps = [a - b for a, b in zip(now, before, strict=True) if a] if before else []
        # all moments moved by the same seconds: skip to the last layer, which gathers nothing after it
        if done + 1 < layers and steps and max(steps) - min(steps) <= SAME * replicated:
            more = (layers - 1 - done) * steps[0]
            gathered, ended, network = gathered + more, ended + more, network + more
            free[:] = [each + more for each in free]
            done = layers - 1
        before = now
    passed, busy_s = max(ended, reduced), layers * (layer[1] + sum(busy_s for *_, busy_s in every))
    return passed, max(replicated, busy_s if replicas else 0.0, passed) - passed


def passes_busy_s(volumes: Volumes, groups: Mapping[str, Group], ranks: int) -> Floats:
    """Least seconds for which gathers and reductions keep inter-building links busy, a rank's share of all ``ranks``.

    The shape is (4, p·v): F, B, I and W of every virtual stage.

    Args:
        volumes: a row for every virtual stage.
        groups: one row each, with the links shared by all groups.
    """
    ahead, back = np.zeros((2, len(volumes.candidates)))
    for axis in SHARDED:
        parts = communicators(axis, volumes, groups[axis], groups["expert"])
        for name, part in zip((axis, "expert"), parts, strict=False):
            if crosses_buildings(groups[name].shape).any():
                forward, backward = part[BUSY][EVERY_PASS] / ranks
                ahead, back = ahead + forward, back + backward
    again = ahead if int(pass_gathers(volumes.candidates)[0]) > 1 else 0 * ahead
    return np.stack([ahead, back, again, back - again])
