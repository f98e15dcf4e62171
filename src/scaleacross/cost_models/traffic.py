"""What is sent, how often and over which axis: bytes per collective, collectives per step.

Sizes (t = tokens of a micro-batch on a rank, h = hidden size, activations in 2 bytes):

* tp            t·h·2 gathered or scattered ``Work.tp_gathers`` times per micro-batch (sequence parallelism, Korthikanti
                2205.05198); without sequence parallelism a gather with its scatter is one all-reduce
* cp            per layer one of three exchanges. Keys and values of the whole sequence, t·cp·kv·2/tp, are gathered
                forward (or round a ring), and gathered and reduced backward (only reduced where autograd keeps them).
                Or all-to-alls of queries, keys, values and of outputs, 2 forward and 2 backward, of
                t·(2q + kv)/2·2/tp each in the mean (q, kv features of queries and outputs, of keys and values). Or
                both: all-to-alls inside groups of cp_inner, keys and values of 1/cp_inner of the heads between these
* ep            t·top_k·h·2/tp sent per all-to-all; dispatch and combine, forward and backward, per MoE layer
* pp            t·h·2/tp per message; every chunk boundary forward and backward, except at the ends of the pipeline
* gradients     held parameters · reduce_bytes: reduce-scatter over cp and dp_shard (all-reduce if nothing is sharded),
                then all-reduce of the shard over dp_replicate; routed experts over dp_shard/ep (folded: not over cp)
* parameters    held parameters · parameter_bytes gathered back over dp_shard and cp. If parameters are sharded, that is
                twice per micro-batch, or once if they are kept until its backward pass. Sharded gradients are reduced
                with every micro-batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import numpy as np

from scaleacross.cost_models.buckets import hidden_reductions
from scaleacross.cost_models.candidates import (
    ALL_TO_ALL,
    ALL_TO_ALL_RING,
    ANY_EXCHANGE,
    RING,
    Bools,
    Candidates,
    Floats,
    Ints,
)
from scaleacross.cost_models.memory import Held
from scaleacross.cost_models.pipeline.timed_bounds import folded
from scaleacross.cost_models.recomputation import keys_again, regathers, tokens_again
from scaleacross.cost_models.sharding import gathered_once, pass_gathers, reduced_every_pass
from scaleacross.cost_models.stragglers import busiest_load
from scaleacross.cost_models.work import Work
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import SHARD_LEVELS, Axis
from scaleacross.spec.step_work import Phase
from scaleacross.workloads.equal_copies import EqualCopies, equal_copies
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile

ACTIVATION_BYTES: Final = 2.0
"""Bytes of an activation or its gradient on the network: 16 bit."""

Op = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

HEADS: Final = "queries, keys, values and outputs"
"""Payload of an all-to-all over cp."""

TP_PARTS: Final[tuple[Op, ...]] = ("all_gather", "reduce_scatter")
TP_WHOLE: Final[tuple[Op, ...]] = ("all_reduce",)
"""Collectives of tp, as often as a gather with its scatter: TP_PARTS with sequence parallelism, TP_WHOLE without."""


@dataclass(frozen=True)
class Volumes:
    """Sizes of what candidates communicate, bytes.

    Attributes:
        launch_s: start-up time of a collective.
        order: pipeline order of its own that a single decision carries (``PipelineChoice.order``).
    """

    job: Job
    profile: ModelProfile
    candidates: Candidates
    work: Work
    launch_s: float
    order: tuple[str, ...] | None = None

    def take(self, rows: Ints | Bools) -> Volumes:
        """The rows selected by an index or mask array."""
        return replace(self, candidates=self.candidates.take(rows), work=self.work.take(rows))

    @property
    def tokens(self) -> Floats:
        """Tokens of one micro-batch on one rank before tp, (n,)."""
        return self.candidates.micro_batch * (self.job.sequence_length / self.candidates.cp)

    @property
    def hidden_bytes(self) -> Floats:
        """Bytes of the tensor between layers for one micro-batch on one rank of cp, not divided by tp, (n,)."""
        return self.tokens * self.profile.blocks[0][0].hidden_size * ACTIVATION_BYTES

    @property
    def kv_bytes(self) -> Floats:
        """Bytes of keys and values of the whole sequence in an exchanging layer (mean), after tp and cp_inner, (n,).

        A linear-attention or state-space layer moves its inputs and outputs between sequence and heads instead. That is
        an all-to-all of a rank's own tokens, which receives what a gather of 1/cp of all tokens would. Its backward
        pass moves as much once more, not twice, so it is counted too high here.
        """
        keys = self._mean_exchanged(lambda block: block.kv_features)
        moved = self._mean_exchanged(lambda block: block.recurrence.exchanged_features if block.recurrence else 0)
        features = self.candidates.cp * keys + moved
        return self.tokens * features * ACTIVATION_BYTES / (self.candidates.tp * self.candidates.cp_inner)

    def _mean_exchanged(self, features: Callable[[LayerProfile], float]) -> float:
        """Mean ``features`` of the layers that exchange over cp."""
        exchanging = [(block, count) for block, count in self.profile.blocks if block.exchanges_over_cp]
        return sum(features(block) * count for block, count in exchanging) / max(1, sum(n for _, n in exchanging))

    @property
    def regathers(self) -> Floats:
        """1 where the backward pass gathers keys and values again, 0 where they were kept, (n,)."""
        return regathers(self.candidates, self.job.kept.by)

    @property
    def overlaps_attention(self) -> Floats:
        """1 where keys and values travel concurrently with their layer's attention (a ring), 0 where it waits, (n,)."""
        context, ring_allowed = self.candidates.context, "ring" in self.job.context_exchange
        return ((context == RING) | (context == ALL_TO_ALL_RING) | ((context == ANY_EXCHANGE) & ring_allowed)).astype(
            float
        )

    @property
    def heads_bytes(self) -> Floats:
        """Bytes that one rank sends in an all-to-all over cp, (n,), the mean over the layers that exchange.

        It is also the mean of two exchanges, that of queries, keys and values and that of outputs.
        """
        features = self._mean_exchanged(lambda block: block.swapped_features)
        return self.tokens * features / 2 * ACTIVATION_BYTES / self.candidates.tp

    @property
    def routed_bytes(self) -> Floats:
        """Bytes that the busiest rank receives in one dispatch (or sends in one combine), (n,)."""
        copies = max(block.routed_tokens for block, _ in self.profile.blocks)
        load = busiest_load(self.job.experts.load_spread, self.profile.num_experts, self.candidates.expert_ranks)
        return self.hidden_bytes * copies / self.candidates.tp * load

    @property
    def equal_copies(self) -> EqualCopies:
        """Copies of a token that a dispatcher sends only once to one place."""
        return equal_copies(self.job, self.profile)

    @property
    def all_reduced(self) -> bool:
        """Whether gather and scatter over tp are one all-reduce: tp does not divide norms (no sequence parallelism)."""
        return any(block.replicated_elementwise_bytes for block, _ in self.profile.blocks)

    @property
    def keys_again(self) -> Floats:
        """Share of the exchanges over cp of a forward pass that the backward pass repeats, (n,)."""
        return keys_again(self.profile, self.candidates)

    @property
    def tokens_again(self) -> Floats:
        """1 where the backward pass repeats dispatch and combine, else 0, (n,)."""
        return tokens_again(self.profile, self.candidates)

    @property
    def replica_gradient_bytes(self) -> Floats:
        """Bytes of gradients that one rank reduces over dp_replicate, (n,)."""
        candidates, work = self.candidates, self.work
        held = Held(work.dense_parameters, work.expert_parameters).sharded(candidates)
        reduced: Floats = held * self.job.optimizer.reduce_bytes
        return reduced

    @property
    def received_concurrently_bytes(self) -> Floats:
        """Bytes of gradients and parameters that one rank receives in a step concurrently with computation, (n,)."""
        gradients, parameters, each = self.received_by_kind
        return gradients + parameters + each

    @property
    def received_by_kind(self) -> tuple[Floats, Floats, Floats]:
        """``received_concurrently_bytes`` by kind, (n,) each: gradients per step, parameters per step, traffic of every pass.

        A gather or reduction over d ranks receives (d−1)/d of the tensor, an all-reduce twice that; ``sharding`` says
        how often. Traffic that ``job.overlap`` does not overlap with computation is left out.
        """
        candidates, work, optimizer, overlap = self.candidates, self.work, self.job.optimizer, self.job.overlap
        whole, sharded = candidates.shard == SHARD_LEVELS.index("none"), reduced_every_pass(candidates)
        group = candidates.dp_shard * candidates.cp
        states = (1 - 1 / group) * work.dense_parameters
        states = states + (1 - 1 / np.maximum(1.0, group / candidates.experts_over)) * work.expert_parameters
        reduced, gathered = optimizer.reduce_bytes * states, self.job.gathered_bytes * states
        overlapped = hidden_reductions(overlap, candidates)
        once = overlapped * (1.0 + whole) * ~sharded * reduced
        parameters = overlap.parameter_gather * gathered_once(candidates) * gathered
        each = overlap.shard_prefetch * (pass_gathers(candidates) * gathered + sharded * reduced)
        replicas = overlapped * 2.0 * (1 - 1 / candidates.dp_replicate) * self.replica_gradient_bytes
        return once + replicas, parameters, candidates.num_micro_batches * each


@dataclass(frozen=True)
class Flow:
    """One kind of collective of a single decision.

    Attributes:
        shape: name of the group: a grid axis, ``ep`` or ``expert``.
        size_bytes: the full tensor, or what a rank sends for all_to_all and send.
        phases: one rank's calls in a step, by the phase that issues them.
        per_border: for messages, those that pass a border of two stages in a step, both ways; 0: as many as a rank
            sends.
    """

    axis: Axis
    op: Op
    what: str
    shape: str
    size_bytes: float
    phases: Mapping[Phase, float]
    per_border: float = 0.0

    @property
    def per_step(self) -> float:
        """Calls of one rank in a step."""
        return sum(self.phases.values())


class Sent(NamedTuple):
    """One kind of collective of many candidates: the fields of ``Flow`` in arrays, (n,). Its size or its calls are 0
    where a candidate has none."""

    axis: Axis
    op: Op
    what: str
    shape: str
    size_bytes: Floats
    phases: Mapping[Phase, Floats]
    per_border: Floats = np.zeros(1)


def flows(volumes: Volumes) -> list[Flow]:
    """All collectives of a single decision, without groups of one rank.

    The first row of ``volumes`` is the rank whose calls are stated; others may follow. What the first one never calls is
    stated for the rank that calls it most often: a stage of dense layers may be the busiest of a model with experts.
    """
    candidates, out = volumes.candidates, []
    degree = {axis: int(getattr(candidates, axis)[0]) for axis in ("tp", "cp", "dp_shard", "dp_replicate", "pp")}
    degree |= {"ep": int(candidates.expert_ranks[0]), "expert": degree["dp_shard"] // int(candidates.ep[0])}
    degree["cp_inner"] = int(candidates.cp_inner[0])
    degree["cp_outer"] = degree["cp"] // degree["cp_inner"]
    for axis, op, what, shape, size, phases, border in sent(volumes):
        often = (size > 0) * np.sum(list(phases.values()), axis=0)
        row = 0 if often[0] > 0 else int(often.argmax())
        issued = {phase: float(calls[row]) for phase, calls in phases.items() if calls[row] > 0}
        if degree[shape] > 1 and often[row] > 0:
            each = float(np.broadcast_to(border, often.shape)[row])
            out.append(Flow(axis, op, what, shape, float(size[row]), issued, each))
    return out


def sent(volumes: Volumes) -> Iterator[Sent]:
    """All collectives of candidates; an exchange over cp that is still to be chosen counts as none."""
    candidates, work, context = volumes.candidates, volumes.work, volumes.candidates.context
    m, forward = candidates.num_micro_batches.astype(np.float64), work.tp_forward
    pairs: dict[Phase, Floats] = {"forward": forward * m, "backward": (work.tp_gathers / 2 - forward) * m}
    for op in TP_WHOLE if volumes.all_reduced else TP_PARTS:
        yield Sent("tp", op, "activations", "tp", volumes.hidden_bytes, pairs)
    layers, keys, kv = work.layers * m, volumes.keys_again, volumes.kv_bytes
    calls: dict[Phase, Floats] = {"forward": 2 * layers, "backward": 2 * layers * (1 + keys)}
    gathers: dict[Phase, Floats] = {"forward": layers, "backward": layers * (keys + volumes.regathers)}
    inside, swapped = candidates.cp_inner > 1, context == ALL_TO_ALL
    for shape, here in (("cp_inner", inside), ("cp", swapped)):
        yield Sent("cp", "all_to_all", HEADS, shape, here * volumes.heads_bytes, calls)
    for shape, here in (("cp_outer", inside), ("cp", ~inside & ~swapped & (context != ANY_EXCHANGE))):
        yield Sent("cp", "all_gather", "keys and values", shape, here * kv, gathers)
        yield Sent("cp", "reduce_scatter", "key and value gradients", shape, here * kv, {"backward": layers})
    layers = 2 * work.moe_layers * m
    exchanges: dict[Phase, Floats] = {"forward": layers, "backward": layers * (1 + volumes.tokens_again)}
    yield Sent("ep", "all_to_all", "tokens", "ep", volumes.routed_bytes, exchanges)
    messages, border = m * _messages(candidates), 2 * m * candidates.num_chunks
    yield Sent("pp", "send", "activations", "pp", volumes.hidden_bytes / candidates.tp, {"message": messages}, border)
    yield from _of_states(volumes)
    gradients, pieces = volumes.replica_gradient_bytes, work.buckets
    yield Sent("dp_replicate", "all_reduce", "gradients", "dp_replicate", gradients / pieces, {"gradients": pieces})


def _messages(candidates: Candidates) -> Floats:
    """Messages that a rank sends per micro-batch, (n,): 2v for a middle rank of v chunks.

    Of two ranks each is an end. It sends v on and v−1 back in a loop, and v in all in a V, where the two meet.
    """
    v = candidates.num_chunks.astype(np.float64)
    return np.where(candidates.pp > 2, 2 * v, np.where(folded(candidates.schedule), v, 2 * v - 1))


def _of_states(volumes: Volumes) -> Iterator[Sent]:
    """Gradients and parameters over cp, dp_shard and the experts' part of dp_shard."""
    candidates, work, optimizer = volumes.candidates, volumes.work, volumes.job.optimizer
    dense, expert, contexts = work.dense_parameters, work.expert_parameters, candidates.expert_contexts
    held: tuple[tuple[Axis, str, Floats], ...] = (
        ("cp", "cp", dense + expert * (contexts == candidates.cp)),
        ("dp_shard", "dp_shard", dense / candidates.cp),
        ("dp_shard", "expert", expert / contexts),
    )
    once, every = work.buckets, work.buckets * candidates.num_micro_batches
    whole, scattered = candidates.shard == SHARD_LEVELS.index("none"), reduced_every_pass(candidates)
    reduced: dict[Phase, Floats] = {"backward": scattered * every, "gradients": ~scattered * once}
    gathered: dict[Phase, Floats] = {
        "forward": (pass_gathers(candidates) > 0) * every,
        "backward": (pass_gathers(candidates) > 1) * every,
        "parameters": gathered_once(candidates) * once,
    }
    for axis, shape, parameters in held:
        what, each = "expert " if shape == "expert" else "", parameters / once
        gradients = each * optimizer.reduce_bytes
        yield Sent(axis, "all_reduce", f"{what}gradients", shape, whole * gradients, reduced)
        yield Sent(axis, "reduce_scatter", f"{what}gradients", shape, ~whole * gradients, reduced)
        yield Sent(axis, "all_gather", f"{what}parameters", shape, each * volumes.job.gathered_bytes, gathered)
