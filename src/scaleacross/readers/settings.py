"""The result of reading settings, and the checks that all readers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaleacross.errors import InputError
from scaleacross.spec.parallelism import GridAxis
from scaleacross.spec.plan import Decision


@dataclass(frozen=True)
class Reading:
    """Settings in terms of a plan.

    Attributes:
        decision: everything but placement and network.
        job: dotted fields of a job that the settings state.
        model: figures of the model, by the names of ``layer_profile``; checked against the job's.
        order: the framework's rank order, fastest axis first.
        tuned: the settings hand over communicator settings.
        unsaid: job field -> option that switches it on without stating an amount; the job must state it above 0.
        notes: settings that were not read, or were read under an assumption.
        options: Megatron-LM's options of the model; compared with those of the job's (``megatron_model``).
    """

    decision: Decision
    job: dict[str, Any]
    model: dict[str, int]
    order: tuple[GridAxis, ...]
    tuned: bool = False
    unsaid: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)


def data_parallel(name: str, world: int, model_parallel: int) -> int:
    """Return the data-parallel degree of ``world`` processes.

    Raises:
        InputError: they do not divide.
    """
    if world < 1 or world % model_parallel:
        raise InputError(
            f"{name}: {world:,} processes do not divide by tp · cp · pp = {model_parallel:,}; state the processes of the job "
            "with --world or --hosts"
        )
    return world // model_parallel


def folded(name: str, ep: int, lanes: int, dp: int) -> tuple[int, int]:
    """Split ``ep`` ranks with whole experts into (ep inside dp_shard, lanes of tp and cp).

    Raises:
        InputError: the ranks are not a multiple of the lanes, or there is a single replica.
    """
    if lanes == 1:
        return ep, 1
    if ep % lanes or dp == 1:
        raise InputError(
            f"{name}: {ep} ranks with whole experts on tp · cp = {lanes} lanes and dp {dp}: tp · cp times a divisor of the "
            "shard group, which has several replicas, is modelled"
        )
    return ep // lanes, lanes


def stages(name: str, counts: Sequence[int], pp: int, num_layers: int) -> tuple[tuple[int, ...], ...]:
    """Return layers by [pipeline rank][chunk], from layers of virtual stages in model order (placed in a loop).

    Raises:
        InputError: as ``fill_ranks``.
    """
    fill_ranks(name, counts, pp, num_layers)
    return tuple(tuple(counts[rank::pp]) for rank in range(pp))


def fill_ranks(name: str, counts: Sequence[int], pp: int, num_layers: int) -> None:
    """Raise InputError where layers of stages do not add up to the model, or stages do not divide by the ranks."""
    if len(counts) % pp:
        raise InputError(f"{name}: {len(counts)} stages do not divide by pp {pp}: state {pp} of them, or a multiple")
    if sum(counts) != num_layers:
        raise InputError(f"{name}: {len(counts)} stages hold {sum(counts)} layers; the job's model has {num_layers}")
