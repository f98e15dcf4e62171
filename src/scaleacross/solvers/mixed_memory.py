"""How many layers fit on the ranks of a mixed pool, and how many some rank must hold, wherever the types lie.

Symbols       p  pipeline ranks;  v  chunks of each;  L  layers;  s[r], l[r]  layers that fit on rank r if its stage has an
              accelerator with less memory, or has only larger ones, were all of one block type k;  w[k]  bytes of one;
              Λ[k]  layers of lighter types in the model. n layers of a rank, c of them lighter, take (n − c)·w[k] or
              more. So it holds at most c more than s or l, and all ranks together at most Λ[k] more. That is so for
              every k, and the tightest counts
Given         A stage is dp·tp·cp accelerators, so at most q = ⌊larger ones / (dp·tp·cp)⌋ ranks have only larger ones.
              Every chunk holds a layer or more where there are as many layers; else none holds two
              (``spec.parallelism.split_layers``).
Room          Σ s[r] + the q largest l[r] − s[r] + Λ[k]; none where more than q ranks have s[r] < v of the lightest
              type, though each needs v
Fullest       The p − q ranks with less memory hold no more than the p − q largest s[r], and Λ[k]. So one of the q
              others, if there are any, holds ⌈(L − Σ of these)/q⌉ layers or more; some rank holds ⌈L/p⌉ anyhow. Some
              replica runs m micro-batches or more on that rank, so step ≥ m · that many layers, on the fastest type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats, Ints
from scaleacross.cost_models.memory import bytes_by_layer
from scaleacross.cost_models.stages import block_counts
from scaleacross.spec.job import Job
from scaleacross.spec.topology import Building
from scaleacross.workloads.layer_profile import ModelProfile

PARTS: Final = 8
"""Parts of a pipeline whose ranks are bounded together: each rank counts as light as the last one of its part."""


def layers_that_fit(
    job: Job, profile: ModelProfile, buildings: Sequence[Building], candidates: Candidates
) -> tuple[Floats, Floats]:
    """Return room and fullest rank of the module docstring, in layers, (n,) each, without embedding and head."""
    usable = {b.accelerator.name: b.accelerator.room_bytes(job.memory_headroom_fraction) for b in buildings}
    smaller, larger = min(usable.values()), max(usable.values())
    large = sum(b.num_accelerators for b in buildings if usable[b.accelerator.name] > smaller)
    room, fullest = np.empty(len(candidates)), np.empty(len(candidates))
    for pp, rows in by_pipeline(candidates):
        here = candidates.take(rows)
        # the last rank of a part has the fewest micro-batches in flight, so it needs least memory
        last = np.unique((np.arange(1, PARTS + 1) * pp) // PARTS - 1)
        last = last[last >= 0]
        ranks, none = np.diff(last, prepend=-1), np.zeros_like(last)
        fixed, each = bytes_by_layer(profile, job, here, last, none, none)
        chunks, one_each = here.num_chunks, pp * here.num_chunks <= profile.num_layers
        # all other ranks need a layer per chunk, too
        most = np.where(one_each, profile.num_layers - (pp - 1) * chunks, chunks)
        of_large = np.minimum(pp, large // (here.dp * here.tp * here.cp))
        holds, left = np.full(len(rows), np.inf), np.zeros(len(rows))
        for kind in range(len(profile.blocks)):
            lighter = np.array(block_counts(profile)) @ (each < each[:, kind : kind + 1]).any(axis=0)
            small, big = (_that_fit(size - fixed, each[:, kind], most) for size in (smaller, larger))
            at_most = _largest(small, ranks, np.full(len(rows), pp)) + _largest(big - small, ranks, of_large)
            holds = np.minimum(holds, at_most + lighter)
            left = np.maximum(left, profile.num_layers - lighter - _largest(small, ranks, pp - of_large))
        of_lightest = _that_fit(smaller - fixed, each.min(axis=1), most)
        too_small = (ranks[:, None] * (one_each & (of_lightest < chunks))).sum(axis=0)
        room[rows] = np.where(too_small > of_large, 0.0, holds)
        left = np.where(of_large > 0, left, 0.0)
        fullest[rows] = np.maximum(np.ceil(left / np.maximum(1, of_large) - 1e-9), -(-profile.num_layers // pp))
    return room, fullest


def _that_fit(left_bytes: Floats, layer_bytes: Floats, most: Ints) -> Floats:
    """Return the whole layers that fit, at most ``most``, (parts, n)."""
    return np.asarray(np.clip(np.floor(left_bytes / layer_bytes + 1e-9), 0.0, most))


def by_pipeline(candidates: Candidates) -> Iterator[tuple[int, Ints]]:
    """Yield (pp, row indices) for every pp."""
    yield from ((int(pp), np.flatnonzero(candidates.pp == pp)) for pp in np.unique(candidates.pp))


def _largest(layers: Floats, ranks: Ints, number: Ints) -> Floats:
    """Return the sum over the ``number`` (n,) ranks with the most ``layers`` (parts, n), ``ranks`` of each part."""
    order = np.argsort(-layers, axis=0)
    there = ranks[order]
    # ranks are taken from the parts with most layers on, until ``number`` of them are
    taken = np.clip(number - (np.cumsum(there, axis=0) - there), 0, there)
    return np.asarray((taken * np.take_along_axis(layers, order, axis=0)).sum(axis=0))
