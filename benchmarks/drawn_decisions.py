"""How far estimated step times agree with the simulation, on decisions drawn anew: no rule was chosen on them.

    python benchmarks/drawn_decisions.py [--seed 1] [--number 120] [--worst 12]

A decision of ``decisions.jsonl`` keeps its job, buildings, degrees of tp, cp, pp and ep, and recomputation. Axis order, schedule,
chunks, shard level and, for half of them, how dp is shared out are drawn; what cannot run is drawn again, as is what takes over
``LONGEST_S`` seconds to estimate and simulate. About a second of CPU each.
"""

from __future__ import annotations

import argparse
import copy
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from agreement import Row, decisions, evaluated, farthest, summary

from scaleacross.api.simulating import simulated_step_s
from scaleacross.errors import InputError
from scaleacross.spec.job import Job

AXES: Final = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
CHUNKS: Final = {
    "1F1B": (1,),
    "ZBH1": (1,),
    "Interleaved1F1B": (2, 2, 3, 4),
    "InterleavedZeroBubble": (2, 2, 3, 4),
    "ZBVZeroBubble": (2,),
    "DualPipeV": (2,),
}
SHARDS: Final = ("optimizer", "optimizer", "parameters", "gradients", "none")
REPLICAS: Final = (1, 2, 3, 4, 6, 8, 16)
LONGEST_S: Final = 60


class TooLongError(Exception):
    """A decision takes too long to simulate."""


def drawn(rng: random.Random, row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table with another decision."""
    out = copy.deepcopy(row)
    decision = out["decision"] = {
        name: out["decision"][name]
        for name in ("degrees", "pipeline", "recompute", "placement")
        if name in row["decision"]
    }
    decision["placement"].pop("spans", None)
    order = list(AXES)
    rng.shuffle(order)
    if rng.random() < 0.5:
        order.remove("tp")
        order.insert(0, "tp")
    decision["placement"]["axis_order"] = order
    degrees = decision["degrees"]
    schedule = "1F1B" if degrees.get("pp", 1) == 1 else rng.choice(list(CHUNKS))
    decision["pipeline"] |= {"schedule": schedule, "num_chunks": rng.choice(CHUNKS[schedule])}
    decision["shard"] = rng.choice(SHARDS)
    whole = degrees.get("dp_shard", 1) * degrees.get("dp_replicate", 1)
    shards = [whole // k for k in REPLICAS if whole % k == 0 and whole // k % degrees.get("ep", 1) == 0]
    if shards and rng.random() < 0.5:
        degrees["dp_shard"] = rng.choice(shards)
        degrees["dp_replicate"] = whole // degrees["dp_shard"]
    return out


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise ``TooLongError`` after so many seconds."""

    def stop(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def rows(seed: int, number: int) -> Iterator[Row]:
    """So many decisions with what estimate and simulation say of each."""
    rng, table = random.Random(seed), list(decisions())
    found = 0
    while found < number:
        at, row, job = rng.choice(table)
        one = drawn(rng, row)
        try:
            with limited(LONGEST_S):
                made = _row(at, one, job)
        except (InputError, TooLongError) as error:
            print(f"  {at:4d} left out: {str(error).splitlines()[0] if str(error) else 'too long'}", file=sys.stderr)
            continue
        found += 1
        print(f"{found:4d} {made.off:+8.1%}", file=sys.stderr, flush=True)
        yield made


def _row(number: int, row: dict[str, Any], job: Job) -> Row:
    plan = evaluated(row, job)
    return Row(
        number,
        "drawn",
        row["point"],
        plan.decision,
        plan.cost.step_s,
        plan.cost.compute_s,
        simulated_step_s(plan),
        0.0,
        0.0,
    )


def main() -> None:
    """Print the summary and the decisions that are farthest off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=120)
    parser.add_argument("--worst", type=int, default=12)
    options = parser.parse_args()
    found = list(rows(options.seed, options.number))
    print("\n".join([summary(found), "", *farthest(found, options.worst)]))


if __name__ == "__main__":
    main()
