"""Proof of one rank of collectives among thousands: CPU seconds per rank, and messages that it sends and receives.

    python benchmarks/collective_proofs.py [--ranks 4096] [--sample 8]

``check_rank`` reads one rank's steps and its peers' side of every message; nothing of the other ranks is kept. The bar is one
second per rank. Ranks are spread evenly over the group; the slowest of the sample is shown.
"""

from __future__ import annotations

import argparse
import time

from scaleacross.schedules import collective as c
from scaleacross.schedules.collective.check import check_rank
from scaleacross.schedules.collective.transfer import CollectiveSchedule, Operation

BUILDINGS, HOST = 4, 8


def schedules(n: int) -> dict[str, CollectiveSchedule]:
    """Every generator that a plan of this size could use, on n ranks."""
    size = n // BUILDINGS
    buildings = tuple(tuple(range(size * b, size * b + size)) for b in range(BUILDINGS))
    hosts = tuple(tuple(tuple(range(a, a + HOST)) for a in range(b[0], b[-1], HOST)) for b in buildings)
    unequal = (tuple(range(n // 4 - 1)), tuple(range(n // 4 - 1, n)))
    reduce, gather = Operation.ALL_REDUCE, Operation.ALL_GATHER
    return {
        "ring all-reduce": c.flat(reduce, "ring", n),
        "bidirectional ring all-gather": c.flat(gather, "bidirectional_ring", n),
        "halving-doubling all-reduce": c.flat(reduce, "halving_doubling", n),
        "Bruck all-gather": c.flat(gather, "bruck", n),
        "direct all-reduce": c.flat(reduce, "direct", n),
        "double tree all-reduce, 8 chunks": c.tree_all_reduce(n, 8),
        "two levels all-reduce": c.layered(reduce, buildings, ["ring", "ring"]),
        "two levels all-reduce, 8 chunks": c.layered(reduce, buildings, ["ring", "halving_doubling"], 8),
        "three levels all-reduce": c.layered(reduce, hosts, ["direct", "ring", "direct"]),
        "uneven buildings all-reduce": c.layered(reduce, unequal, ["direct", "ring"]),
        "broadcast tree, 8 chunks": c.broadcast(n, "tree", 8),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4096, help=f"a multiple of {BUILDINGS * HOST}")
    parser.add_argument("--sample", type=int, default=8, help="ranks proved of every schedule")
    given = parser.parse_args()
    if given.ranks % (BUILDINGS * HOST):
        parser.error(f"--ranks: a multiple of {BUILDINGS * HOST} is needed")
    print(f"{'schedule':<36}{'messages of a rank':>20}{'blocks buffered':>17}{'s per rank, slowest':>21}")
    for name, schedule in schedules(given.ranks).items():
        slowest = buffered = messages = 0.0
        for rank in range(0, given.ranks, max(1, given.ranks // given.sample)):
            began = time.process_time()
            buffered = max(buffered, check_rank(schedule, rank))
            slowest = max(slowest, time.process_time() - began)
            own = sum(len(step) for channel in range(schedule.num_channels) for step in schedule.steps(rank, channel))
            messages = max(messages, own)
        print(f"{name:<36}{messages:>20,.0f}{buffered:>17,.0f}{slowest:>21.3f}")


if __name__ == "__main__":
    main()
