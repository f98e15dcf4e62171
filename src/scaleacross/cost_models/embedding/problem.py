"""Tables with options over ranks, and the rest of a step, from a job, its model and its topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaleacross.cost_models.candidates import Floats, Ints
from scaleacross.cost_models.embedding.coded_exchange import ForwardSlopes, forward_slopes
from scaleacross.cost_models.embedding.exchange import (
    ExchangeGroups,
    Replicas,
    exchange_groups,
    exchange_of,
    start_s,
)
from scaleacross.cost_models.embedding.options import NUM_TIERS, Fleet, Option, ShardingProblem
from scaleacross.cost_models.embedding.sample_balance import sample_sharings
from scaleacross.cost_models.embedding.tiers import RankRates, Setting, table_options
from scaleacross.cost_models.embedding.torchrec import TorchRecMachine, torchrec_options
from scaleacross.cost_models.levels import build_levels, library_conflict
from scaleacross.cost_models.network.drivers import contention_fraction
from scaleacross.errors import InputError
from scaleacross.spec.exchange_codec import TableCodec
from scaleacross.spec.network_choice import Driver
from scaleacross.spec.placement import BuildingShare, first_accelerators
from scaleacross.spec.recommendation import BYTES_OF, EmbeddingCost, RecommendationJob, SampleSharing
from scaleacross.spec.topology import Building, Topology, with_host_shares
from scaleacross.workloads.recommendation import Dlrm, EmbeddingTable

_SIZE_BYTES = 8
"""Bytes that state the size of one coded message; they are sent ahead of it."""
_DENSE_STATE_BYTES = 16
"""fp32 weight, gradient and two moments of Adam, per weight of the dense networks."""


@dataclass(frozen=True)
class EmbeddingProblem:
    """Tables to place, and the rest of the step.

    Attributes:
        sharding: tables, options and ranks of one group.
        num_groups, replicas: number of replica groups, and how they lie (``exchange_groups``).
        top_s: interaction and top MLP, which wait for the vectors, forward and backward.
        bottom_s: bottom MLP, concurrent with look-ups and exchange.
        all_reduce_s: all-reduce of dense gradients over all ranks; exposed, as the exchange of gradients shares its
            links.
        start_s: latency and launch of the collectives.
        samples: ways to share out histories of unequal length, fastest first; ``top_s`` contains the first.
        taken: share of concurrent products' speed that reducing kernels take, and that the driver of all-to-alls takes.
    """

    job: RecommendationJob
    sharding: ShardingProblem
    num_groups: int
    replicas: Replicas
    top_s: float
    start_s: float
    bottom_s: float = 0.0
    all_reduce_s: float = 0.0
    samples: tuple[SampleSharing, ...] = ()
    taken: tuple[float, float] = (0.0, 0.0)

    def step_s(self, busiest_s: float) -> float:
        """Step time, s, if the busiest rank spends ``busiest_s`` on tables and without contention; grows with it."""
        return self.start_s + self.top_s + self.all_reduce_s + max(busiest_s, self.bottom_s)

    def cost(self, busiest_s: float, taken_s: float = 0.0) -> EmbeddingCost:
        """The step in parts.

        Args:
            taken_s: time that the exchange takes from products; only the bottom MLP is concurrent with it.
        """
        most = max(self.taken)
        # contention slows the bottom MLP only as long as it runs, however long the exchange is
        bottom_s = self.bottom_s + min(taken_s, self.bottom_s * most / (1 - most))
        step_s = self.start_s + self.top_s + self.all_reduce_s + max(busiest_s, bottom_s)
        dense_s = self.top_s + max(0.0, bottom_s - busiest_s)
        return EmbeddingCost(
            step_s=step_s,
            busiest_rank_s=busiest_s,
            dense_s=dense_s,
            all_reduce_s=self.all_reduce_s,
            start_s=self.start_s,
            samples_per_s=self.job.global_batch_samples / step_s,
            **({} if self.job.cost_model == "torchrec" else {"top_s": self.top_s, "bottom_s": self.bottom_s}),
        )


def allocation_of(job: RecommendationJob, topology: Topology) -> tuple[BuildingShare, ...]:
    """Allocation of the job: the first accelerators, building by building.

    Raises:
        InputError: more are asked for than there are, the batch is no multiple of them, or their buildings run several
            collective libraries.
    """
    wanted = job.num_accelerators or topology.num_accelerators
    if wanted > topology.num_accelerators:
        raise InputError(
            f"num_accelerators {wanted:,}: topology '{topology.name}' has {topology.num_accelerators:,}; ask for fewer"
        )
    if job.global_batch_samples % wanted:
        near = max(1, round(job.global_batch_samples / wanted)) * wanted
        raise InputError(
            f"global_batch_samples {job.global_batch_samples:,} is no multiple of {wanted:,} accelerators; nearest: {near:,}"
        )
    allocation = first_accelerators(topology.buildings, wanted)
    if conflict := library_conflict([topology.building(share.building) for share in allocation]):
        raise InputError(f"topology '{topology.name}': {conflict}")
    return allocation


@dataclass(frozen=True)
class GroupRanks:
    """The ranks of one replica group.

    Attributes:
        own: building of each rank, and its number there.
        units: ranks by host.
        unit: ranks of a host over which tables may be split, 0 where there is none.
        whole: ranks of all groups.
        groups: all process groups.
    """

    own: tuple[tuple[Building, int], ...]
    units: tuple[Ints, ...]
    unit: int
    whole: int
    groups: ExchangeGroups


def group_ranks(
    job: RecommendationJob,
    topology: Topology,
    num_groups: int,
    replicas: Replicas,
    driver: Driver = "multiprocessors",
) -> GroupRanks:
    """The ranks of the first group.

    Raises:
        InputError: the job does not fit the topology (``allocation_of``), groups do not tile the ranks, or the host drives
            and none is stated.
    """
    if driver == "host":
        topology = with_host_shares(topology)
    allocation = allocation_of(job, topology)
    positions = [
        (topology.building(share.building), rank) for share in allocation for rank in range(share.num_accelerators)
    ]
    if len(positions) % num_groups:
        raise InputError(f"replica_groups: {num_groups} groups do not divide {len(positions):,} accelerators")
    size = len(positions) // num_groups
    own = positions[:size] if replicas == "outer" else positions[::num_groups]
    units = _units(own)
    launch_s = max(b.accelerator.collective_start_s for b, _ in own)
    unit = len(units[0]) if units and size % len(units[0]) == 0 else 0
    groups = exchange_groups(build_levels(topology, allocation), num_groups, replicas, unit, launch_s, driver)
    return GroupRanks(tuple(own), units, unit, len(positions), groups)


def embedding_problem(
    job: RecommendationJob,
    model: Dlrm,
    topology: Topology,
    num_groups: int = 1,
    replicas: Replicas = "outer",
    codecs: Sequence[TableCodec] = (),
    driver: Driver = "multiprocessors",
) -> EmbeddingProblem:
    """The tables of a job over one group of ranks.

    Args:
        codecs: of the tables whose vectors travel coded.
        driver: of the all-to-alls of vectors and gradients.

    Raises:
        InputError: the job does not fit the topology (``allocation_of``), groups do not tile the ranks, TorchRec's estimator
            is given ranks, groups, codecs or drivers that it does not know, or the host drives and none is stated.
    """
    ranks = group_ranks(job, topology, num_groups, replicas, driver)
    own, unit = ranks.own, ranks.unit
    batch = job.global_batch_samples / ranks.whole
    kinds = list(dict.fromkeys(_kind(building) for building, _ in own))
    rates = tuple(_rates(next(b for b, _ in own if _kind(b) == kind)) for kind in kinds)
    dense = model.dense_parameters()
    _require_lengths(model)
    fleet = Fleet(
        rank_class=np.array([kinds.index(_kind(building)) for building, _ in own]),
        capacity=np.stack([_capacity(job, model, building, batch) for building, _ in own]),
        units=ranks.units,
        building=tuple(building.name for building, _ in own),
        host=tuple(rank // building.accelerators_per_host for building, rank in own),
    )
    tables = tuple(model.expanded())
    sent_bytes = batch * model.output_elements * BYTES_OF[job.exchange_precision]
    exchange = exchange_of(ranks.groups, sent_bytes, sent_bytes * len(own) / len(tables))
    forward = forward_slopes(ranks.groups, codecs)
    setting = Setting(job, len(own), unit, batch, rates, exchange, model.locality, num_groups, forward)
    if job.cost_model == "torchrec":
        if num_groups > 1:
            raise InputError("cost_model torchrec has no replica groups: leave replica_groups at 1, or use scaleacross")
        if job.compression is not None:
            raise InputError("cost_model torchrec has no compression: leave it out, or use scaleacross")
        if driver != "multiprocessors":
            raise InputError("cost_model torchrec has no drivers: leave it out, or use scaleacross")
        sharding = _by_torchrec(job, model, fleet, own[0][0], batch)
        return EmbeddingProblem(job, sharding, num_groups, replicas, 0.0, 0.0)
    options = _per_kind(tables, lambda table: table_options(table, setting), forward)
    flop_per_s = _flop_per_s(job, [b for b, _ in own])
    bottom_s, top_s = (6 * weights * batch / flop_per_s for weights in dense)
    allocation = allocation_of(job, topology)
    samples = sample_sharings(model, topology, allocation, round(batch), job.sample_rules, flop_per_s)
    top_s += samples[0].seconds if samples else 0.0
    all_reduce_s = float(ranks.groups.every.all_reduce(np.array(4.0 * model.dense_weights)).time_s)
    sizes_s = start_s(ranks.groups, _SIZE_BYTES * len(own)) if codecs else 0.0
    sharding = ShardingProblem(tables, options, fleet)
    started_s, accelerators = exchange.start_s + sizes_s, [building.accelerator for building, _ in own]
    taken = contention_fraction(accelerators), contention_fraction(accelerators, driver)
    return EmbeddingProblem(
        job, sharding, num_groups, replicas, top_s, started_s, bottom_s, all_reduce_s, samples, taken
    )


def _require_lengths(model: Dlrm) -> None:
    if model.sequence is not None and model.sequence.lengths is None:
        raise InputError(
            f"model '{model.name}' has layers over histories, but no lengths: state lengths in the job "
            "(a CSV with a column length, or e.g. {kind: uniform, longest: 4096})"
        )


def _per_kind(
    tables: Sequence[EmbeddingTable],
    make: Callable[[EmbeddingTable], tuple[Option, ...]],
    forward: Mapping[str, ForwardSlopes] | None = None,
) -> tuple[tuple[Option, ...], ...]:
    """Options of every table, computed once for tables that are equal and travel with equal slopes."""
    made: dict[tuple[EmbeddingTable, ForwardSlopes | None], tuple[Option, ...]] = {}
    out = []
    for table in tables:
        kind = table.model_copy(update={"name": "any"}), (forward or {}).get(table.name)
        if kind not in made:
            made[kind] = make(table)
        out.append(made[kind])
    return tuple(out)


def _kind(building: Building) -> tuple[object, ...]:
    """Key of ranks with equal rates."""
    return (
        building.accelerator.name,
        building.accelerator.memory_bandwidth_bytes_per_s,
        building.host,
        (building.accelerators_per_host),
    )


def _units(own: Sequence[tuple[Building, int]]) -> tuple[Ints, ...]:
    """Ranks of every host; empty where hosts have different numbers of ranks or only one."""
    hosts: dict[tuple[str, int], list[int]] = {}
    for rank, (building, at) in enumerate(own):
        hosts.setdefault((building.name, at // building.accelerators_per_host), []).append(rank)
    sizes = {len(ranks) for ranks in hosts.values()}
    return tuple(np.array(ranks) for ranks in hosts.values()) if len(sizes) == 1 and sizes != {1} else ()


def _rates(building: Building) -> RankRates:
    accelerator, host, sharers = building.accelerator, building.host, building.accelerators_per_host
    hbm = accelerator.memory_bandwidth_bytes_per_s * accelerator.memory_efficiency_fraction
    if host is None:
        return RankRates(hbm, 0.0, 0.0)
    link = min(host.link_bandwidth_bytes_per_s, host.memory_bandwidth_bytes_per_s / sharers)
    ssd = (host.ssd_bandwidth_bytes_per_s or 0.0) / sharers if host.ssd_bytes else 0.0
    return RankRates(hbm, link, min(ssd, link))


def _capacity(job: RecommendationJob, model: Dlrm, building: Building, batch: float) -> Floats:
    """Bytes per tier that tables may use on a rank; in HBM without the dense part, received vectors and the reserve."""
    accelerator, host = building.accelerator, building.host
    if job.cost_model == "torchrec":
        hbm = accelerator.memory_bytes * (1 - job.reserved_fraction)
    else:
        received = 2 * batch * model.output_elements * BYTES_OF[job.exchange_precision]
        hbm = (
            accelerator.usable_memory_bytes * (1 - job.reserved_fraction)
            - model.dense_weights * _DENSE_STATE_BYTES
            - received
        )
    room = np.zeros(NUM_TIERS)
    room[0] = max(0.0, hbm)
    if host is not None:
        room[1:] = host.memory_bytes / building.accelerators_per_host, host.ssd_bytes / building.accelerators_per_host
    return np.floor(room)


def _flop_per_s(job: RecommendationJob, used: Sequence[Building]) -> float:
    """FLOP/s of products on the slowest accelerator; a weight takes 6 FLOP per sample, both ways."""
    rates = []
    for accelerator in {building.accelerator.name: building.accelerator for building in used}.values():
        peak = accelerator.peak_flop_per_s.get(job.dense_precision)
        if peak is None:
            known = ", ".join(accelerator.peak_flop_per_s)
            raise InputError(f"dense_precision {job.dense_precision}: accelerator '{accelerator.name}' has {known}")
        rates.append(peak * accelerator.gemm_efficiency_fraction)
    return min(rates)


def machine_of(building: Building, num_ranks: int) -> TorchRecMachine:
    """These ranks as a ``Topology`` of TorchRec: two networks, rates in bytes per ms."""
    links, host = building.links, building.host
    inside, outside = (link.technology for link in (links.scale_up, links.zone))
    standard = TorchRecMachine(1, 1)
    return TorchRecMachine(
        world_size=num_ranks,
        local_world_size=min(building.accelerators_per_host, num_ranks),
        hbm=building.accelerator.memory_bandwidth_bytes_per_s / 1e3,
        host=host.memory_bandwidth_bytes_per_s / 1e3 if host else standard.host,
        hbm_to_host=host.link_bandwidth_bytes_per_s / 1e3 if host else standard.hbm_to_host,
        intra_host=inside.bandwidth_bytes_per_s * inside.efficiency_fraction / 1e3,
        inter_host=outside.bandwidth_bytes_per_s * outside.efficiency_fraction / 1e3,
    )


def _by_torchrec(
    job: RecommendationJob, model: Dlrm, fleet: Fleet, building: Building, batch: float
) -> ShardingProblem:
    if fleet.num_classes > 1:
        raise InputError(
            "cost_model torchrec knows one kind of rank: use scaleacross for unequal accelerators or hosts"
        )
    machine = machine_of(building, fleet.num_ranks)
    row, sent = BYTES_OF[job.table_precision], BYTES_OF[job.exchange_precision]
    kernels = tuple(
        k for k in job.kernels if k in ("dense", "fused") or (building.host is not None and k != "key_value")
    )
    tables = tuple(model.expanded())
    sizes, least = (row, sent, job.optimizer), job.least_column_width
    options = _per_kind(
        tables,
        lambda one: torchrec_options(
            one, machine, round(batch), job.shardings, kernels, *sizes, least, job.cache_fraction
        ),
    )
    return ShardingProblem(tables, options, fleet)
