"""Times of NCCL's rings and trees over nodes of one building; ``simulation`` and ``cost_models`` use them.

NCCL has three protocols: LL (a flag with every word: least latency, a fraction of the bandwidth), LL128 and Simple
(whole chunks). Symbols: n nodes (scale-up domains) of m ranks, d = n·m, S bytes, R the rate of a ring out of a node,
bytes/s. Protocol p has a base b, the latencies i of a hop within a node and e between nodes, and a reduced rate R_p:

* ring      b + (d−n)·i + (n−1)·e + (d−1)/d · S / R_p            of an all-reduce twice the hops and bytes
* tree      b + 2·(m−1)·i + 2·log2 n·e + x·S / R_p               a double tree: a node sends x·S in all, x = 1 of two nodes, each
                                                                 root of one tree and leaf of the other, 1.5 of three, else 2
* switched  25 µs + log2 n · 28 µs, then the node's own all-reduce in its switches (without its latency) and x·S / R;
            the shorter of both overlaps with the longer, except for the first of S / CHUNK chunks

Latencies are multiplied by a ratio: the measured time of a node's own small collective over the time by these
constants. It depends on accelerator and host, and comes from curves of the scale-up technology.

An all-to-all takes at least EXCHANGE_S, whatever it sends, unless its dispatcher sends a token only once to every
place.

All functions accept arrays, too. Sources: NCCL 2.27 to 2.31, ``tuning.cc``, whose results for nodes of 1 and 8 H100 are
published in meta-pytorch/autoparallel (``nccl_cost_model.py``). LL128_SHARE alone is fitted, to nccl-tests over 2 to 8 nodes
(tests/calibration/data/node_collectives.csv); NCCL says 0.92. Assumed: CHUNK, 16 channels of 8 heads of 256 KiB.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

US: Final = 1e-6


class Latency(NamedTuple):
    """Base, hop inside a node, hop between nodes, s."""

    base: float
    inside: float
    between: float


class Way(NamedTuple):
    """One protocol: fixed seconds, and seconds per byte of every limit on its rate; the largest applies."""

    fixed_s: Any
    s_per_byte: tuple[Any, ...]


RINGS: Final = (
    Latency(6.6 * US, 1.0 * US, 2.7 * US),
    Latency(14 * US, 1.9 * US, 4 * US),
    Latency(8.4 * US, 3.4 * US, 14 * US),
)
"""Latencies of LL, LL128 and Simple."""

TREES: Final = (
    Latency(6.8 * US, 0.6 * US, 5 * US),
    Latency(14 * US, 1.25 * US, 8.5 * US),
    Latency(8.4 * US, 4 * US, 14 * US),
)
SWITCHED: Final = Latency(25 * US, 0.0, 14 * US)
IN_NODE: Final = Latency(6.6 * US, 0.6 * US, 0.0)
"""Latencies of a ring with LL within one node."""

LL_BYTES_PER_S: Final = (39e9, 20.4e9)
"""Largest rate of LL out of a node, with two nodes and with more, bytes/s; it is also at most half of R."""

LL_TREE_SHARE: Final = 0.43
LL128_SHARE: Final = 0.3
CHUNK_BYTES: Final = 32 * 2**20
EXCHANGE_S: Final = ((2, 37 * US), (4, 42 * US), (8, 60 * US), (16, 98 * US), (32, 290 * US))
"""(nodes of 8 H100, seconds of an empty all-to-all), measured for meta-pytorch/autoparallel; more: as for 32."""

SMALL_BYTES: Final = 1024.0
"""Size of the node's own small collective."""


def tree_share(nodes: Any) -> Any:
    """Return x of the module docstring."""
    return 1 + 0.5 * (nodes > 2) + 0.5 * (nodes > 3)


def in_node_s(turns: int, ranks: Any) -> Any:
    """Return the seconds of a small collective among ``ranks`` of one node; ``turns``: 2 for an all-reduce, else 1."""
    return IN_NODE.base + turns * (ranks - 1) * IN_NODE.inside


def ring_ways(turns: int, degree: Any, nodes: Any, rate: Any, slower: Any) -> list[Way]:
    """Return a ring's protocols. ``turns``: 2 for an all-reduce, else 1; ``slower``: factor of latencies."""
    moved = turns * (degree - 1) / degree
    limits = ((2 * moved / rate, moved / _ll_rate(nodes)), (moved / (LL128_SHARE * rate),), (moved / rate,))
    hops = ((degree - nodes) * turns, (nodes - 1) * turns)
    return [
        Way(slower * (each.base + hops[0] * each.inside + hops[1] * each.between), limit)
        for each, limit in zip(RINGS, limits, strict=True)
    ]


def tree_ways(degree: Any, nodes: Any, doublings: Any, rate: Any, slower: Any) -> list[Way]:
    """Return protocols of a double tree's all-reduce without switches; ``doublings``: log2 n. Simple: 2·S per node."""
    share, ranks = tree_share(nodes), degree / nodes
    limits = (
        (2 * share / rate, 1 / (LL_TREE_SHARE * _ll_rate(nodes))),
        (share / (LL128_SHARE * rate),),
        (2 / rate,),
    )
    return [
        Way(slower * (each.base + 2 * (ranks - 1) * each.inside + 2 * doublings * each.between), limit)
        for each, limit in zip(TREES, limits, strict=True)
    ]


def switched_s(size: Any, inside_s: Any, nodes: Any, doublings: Any, rate: Any, slower: Any, least: Any = min) -> Any:
    """Return the seconds of a tree whose nodes reduce in switches within ``inside_s``; ``least``: element-wise min."""
    outside_s = tree_share(nodes) * size / rate
    chunks = least(1.0, CHUNK_BYTES / size)
    fixed_s = slower * (SWITCHED.base + 2 * doublings * SWITCHED.between)
    return fixed_s + inside_s + outside_s - (1 - chunks) * least(inside_s, outside_s)


def _ll_rate(nodes: Any) -> Any:
    two, more = LL_BYTES_PER_S
    return two - (two - more) * (nodes > 2)
