"""A batch sampler for ``torch.utils.data`` that gives every rank samples of about the same cost in every step.

Every rank computes the same assignment from the lengths of all samples, so nothing is exchanged. A rank reads the
samples that the assignment gives it. If data lie in buildings, ``homes`` keeps every sample in its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch.utils.data import Sampler

from scaleacross.errors import InputError
from scaleacross.samples.balance import Ints, balanced, sample_costs


class BalancedBatchSampler(Sampler[list[int]]):
    """Lists of sample numbers, one per step, for ``DataLoader(dataset, batch_sampler=…)``; only whole steps.

    Args:
        lengths: lengths of all samples of the data set, e.g. in tokens.
        batch_size: samples per rank and step; None: as many documents as fit the packs of ``max_tokens`` (packing).
        linear, quadratic: a sample costs linear · length + quadratic · length².
        fixed_counts: every rank gets ``batch_size`` samples; otherwise that many in the mean, by cost.
        max_tokens: largest number of tokens of a rank's batch; not with fixed counts.
        num_replicas, rank: number of ranks that read different samples, and own rank among them; default: those of the
            default process group.
        homes: building of every sample, with ``rank_homes`` of every rank. Samples are then balanced inside buildings
            only; a building gives ``batch_size`` samples, or one pack, per rank.
        shuffle: draw samples in another order in every epoch (``set_epoch``), the same on all ranks.

    Raises:
        InputError: figures that make no sense together, no samples for one step, or a document longer than a pack.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        batch_size: int | None = None,
        linear: float = 1.0,
        quadratic: float = 0.0,
        fixed_counts: bool = True,
        max_tokens: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        homes: ArrayLike | None = None,
        rank_homes: Sequence[Any] | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.float64)
        self.costs = sample_costs(self.lengths, linear, quadratic)
        self.num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
        self.batch_size, self.max_tokens = batch_size, max_tokens
        self.fixed_counts, self.shuffle, self.seed, self.epoch = (
            fixed_counts and batch_size is not None,
            shuffle,
            seed,
            0,
        )
        if not 0 <= self.rank < self.num_replicas:
            raise InputError(f"rank {self.rank} of {self.num_replicas}")
        if batch_size is None and max_tokens is None:
            raise InputError(
                "give batch_size (samples per rank), or max_tokens (packing), or both with fixed_counts=False"
            )
        for name, asked in (("batch_size", batch_size), ("max_tokens", max_tokens)):
            if asked is not None and not (1 <= asked < np.inf and int(asked) == asked):
                raise InputError(f"{name} is a whole number of 1 or more, got {asked}")
        if self.fixed_counts and max_tokens is not None:
            raise InputError(
                "max_tokens goes with fixed_counts=False: with fixed counts a batch is as long as its samples"
            )
        if max_tokens is not None and len(self.lengths) and self.lengths.max() > max_tokens:
            longest = int(self.lengths.argmax())
            raise InputError(
                f"sample {longest} has {self.lengths[longest]:,.0f} tokens, max_tokens is {max_tokens:,}: cut it before"
            )
        self._parts = self._by_home(homes, rank_homes)
        self._counted: tuple[int, int] | None = None
        if not len(self):
            raise InputError(f"{len(self.lengths):,} samples fill no step of {self.num_replicas} ranks")

    def set_epoch(self, epoch: int) -> None:
        """Select another order of the samples. Call it before every epoch, with the same number on all ranks."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of steps of the epoch."""
        if self.batch_size is not None:
            return min(len(samples) // (self.batch_size * len(ranks)) for samples, ranks in self._parts)
        if self._counted is None or self._counted[0] != self.epoch:
            self._counted = self.epoch, sum(1 for _ in self._steps())
        return self._counted[1]

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's samples of every step."""
        for step in self._steps():
            yield step[self.rank]

    def assignments(self) -> Iterator[list[list[int]]]:
        """Yield the samples of every rank, step by step."""
        return self._steps()

    def _steps(self) -> Iterator[list[list[int]]]:
        orders = [self._order(samples) for samples, _ in self._parts]
        takers = [
            self._counted_steps(order, len(ranks))
            if self.batch_size is not None
            else self._packed_steps(order, len(ranks))
            for order, (_, ranks) in zip(orders, self._parts, strict=True)
        ]
        for parts in zip(*takers, strict=False):
            out: list[list[int]] = [[] for _ in range(self.num_replicas)]
            for (_, ranks), (samples, place) in zip(self._parts, parts, strict=True):
                for number, rank in enumerate(ranks):
                    out[rank] = samples[place == number].tolist()
            yield out

    def _counted_steps(self, order: Ints, num_ranks: int) -> Iterator[tuple[Ints, Ints]]:
        size = (self.batch_size or 0) * num_ranks
        capacity = np.inf if self.max_tokens is None else float(self.max_tokens)
        for first in range(0, len(order) - size + 1, size):
            samples = order[first : first + size]
            yield samples, self._placed(samples, num_ranks, capacity)

    def _packed_steps(self, order: Ints, num_ranks: int) -> Iterator[tuple[Ints, Ints]]:
        """Yield steps of as many documents as fit one pack per rank by their sum, less those that cannot be placed."""
        capacity, first = float(self.max_tokens or 0), 0
        while first < len(order):
            ends = np.cumsum(self.lengths[order[first:]])
            count = int(np.searchsorted(ends, capacity * num_ranks, side="right"))
            if count < num_ranks or (first + count >= len(order) and ends[-1] < capacity * num_ranks / 2):
                return  # less than a document each, or less than half of a step, is left
            placed = None
            while placed is None:
                samples = order[first : first + count]
                try:
                    placed = self._placed(samples, num_ranks, capacity)
                except InputError:
                    # a sum that fits need not be placeable pack by pack, so fewer documents are tried
                    count -= max(1, count // 64)
            yield samples, placed
            first += count

    def _placed(self, samples: Ints, num_ranks: int, capacity: float) -> Ints:
        costs, tokens = self.costs[samples], self.lengths[samples]
        return balanced(costs, num_ranks, fixed_counts=self.fixed_counts, tokens=tokens, capacity=capacity)

    def _order(self, samples: Ints) -> Ints:
        return np.random.default_rng((self.seed, self.epoch)).permutation(samples) if self.shuffle else samples

    def _by_home(self, homes: ArrayLike | None, rank_homes: Sequence[Any] | None) -> list[tuple[Ints, list[int]]]:
        """Return (samples, ranks) of every building; one part if samples may go anywhere."""
        if (homes is None) != (rank_homes is None):
            raise InputError("homes of samples and rank_homes go together")
        if homes is None or rank_homes is None:
            return [(np.arange(len(self.lengths)), list(range(self.num_replicas)))]
        where = np.asarray(homes)
        if where.shape != self.lengths.shape or len(rank_homes) != self.num_replicas:
            raise InputError(
                f"{where.size:,} homes for {self.lengths.size:,} samples, {len(rank_homes)} for {self.num_replicas} ranks"
            )
        known = list(dict.fromkeys(rank_homes))
        strange = sorted(set(where.tolist()) - set(known), key=str)
        if strange:
            raise InputError(f"samples lie in '{strange[0]}', where no rank is")
        return [(np.flatnonzero(where == home), [r for r, at in enumerate(rank_homes) if at == home]) for home in known]
