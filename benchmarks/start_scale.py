"""Store operations that one rank needs to start, against the number of ranks: ours and torch's gloo. Control plane only.

    python benchmarks/start_scale.py [--sizes 2 4 ... 65536] [--write docs/results]

Three counts, all of real code:

* ``ring``: every one of N simulated ranks runs ``runtime.agreement.ring_agreement`` against one store and one ring in this
  process.
* ``groups``: sampled ranks run torch's ``init_process_group`` and ``new_group`` with backend ``scaleacross`` at world size N, on
  a store that counts, and answers as if the other ranks were there. Up to three groups per rank (8, 64 and N/512 ranks).
* ``gloo``: torch's own eager gloo group, all ranks as threads, up to 64 ranks; beyond that the line through these points, and
  marked so.
"""

from __future__ import annotations

import argparse
import csv
import socket
import sys
import threading
import time
from collections import defaultdict, deque
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from scaleacross.runtime.agreement import Look, Pass, Publish, Take, Token, ring_agreement
from scaleacross.runtime.process_group import Options
from scaleacross.runtime.start import _Lines
from scaleacross.runtime.trace import FlightRecorder

SIZES = (2, 4, 8, 16, 32, 64, 256, 1024, 4096, 16384, 65536)
GLOO_MOST = 64
SAMPLED = 3
SERIAL_RANKS = 96_000


class CountingStore(dist.Store):
    """Counts what a rank asks of ``inner``; with ``others`` it answers waits and counters as if all of them had been here."""

    def __init__(self, inner: dist.Store, others: int = 0) -> None:
        super().__init__()
        self._inner, self._others, self.operations = inner, others, 0

    def set(self, key: str, value: str) -> None:
        self.operations += 1
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        self.operations += 1
        return self._inner.get(key)

    def add(self, key: str, amount: int) -> int:
        self.operations += 1
        return self._inner.add(key, amount) + self._others

    def check(self, keys: list[str]) -> bool:
        self.operations += 1
        return bool(self._others) or self._inner.check(keys)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self.operations += 1
        if not self._others:
            self._inner.wait(keys, *timeout)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self.operations += 1
        return self._inner.compare_set(key, expected, desired)

    def has_extended_api(self) -> bool:
        return False


def ring_counts(world: int) -> tuple[int, int, float]:
    """(most store operations of any rank, most messages of any rank, seconds for all ranks together)."""
    begin = time.perf_counter()
    store: dict[str, str] = {}
    waiting: defaultdict[str, list[int]] = defaultdict(list)
    inbox: list[deque[Any]] = [deque() for _ in range(world)]
    blocked, operations, messages, ended = [False] * world, [0] * world, [0] * world, 0
    ranks = [ring_agreement(rank, world, "plan", f"10.0.0.1:{rank}") for rank in range(world)]
    ready: deque[tuple[int, Any]] = deque((rank, None) for rank in range(world))
    while ready:
        rank, answer = ready.popleft()
        try:
            step = ranks[rank].send(answer)
        except StopIteration as end:
            ended += end.value.stranger is None and end.value.seen == world
            continue
        if isinstance(step, Publish):
            store[step.key], operations[rank] = step.value, operations[rank] + 1
            ready.append((rank, None))
            ready.extend((other, step.value) for other in waiting.pop(step.key, ()))
        elif isinstance(step, Look):
            operations[rank] += 1
            if step.key in store:
                ready.append((rank, store[step.key]))
            else:
                waiting[step.key].append(rank)
        elif isinstance(step, Pass):
            messages[rank] += 1
            following = (rank + 1) % world
            ready.append((rank, None))
            if blocked[following]:
                blocked[following] = False
                ready.append((following, step.token))
            else:
                inbox[following].append(step.token)
        elif isinstance(step, Take):
            if inbox[rank]:
                ready.append((rank, inbox[rank].popleft()))
            else:
                blocked[rank] = True
    if ended != world:
        raise SystemExit(f"only {ended} of {world} ranks ended")
    return max(operations), max(messages), time.perf_counter() - begin


def hop_s(hops: int = 20_000) -> float:
    """Seconds that a token takes from one rank to the next: written, through a socket, read. Both ends are in one process."""
    here, there = socket.socketpair()
    lines, token = _Lines(there), Token("0" * 64, 1, None)
    begin = time.perf_counter()
    for _ in range(hops):
        here.sendall(token.to_bytes())
        token = Token.from_bytes(lines.next())._replace(seen=token.seen + 1)
    took = (time.perf_counter() - begin) / hops
    here.close()
    there.close()
    return took


def group_counts(world: int) -> tuple[int, float]:
    """(most store operations of a sampled rank for the default group, most per further group)."""
    first = further = 0.0
    for rank in sorted({0, world // 2, world - 1})[:SAMPLED]:
        store = CountingStore(dist.HashStore(), others=world - 1)
        options = Options(recorder=FlightRecorder(rank, world))
        dist.init_process_group("cpu:scaleacross", store=store, rank=rank, world_size=world, pg_options=options)
        begin = store.operations
        groups = _groups(rank, world)
        for ranks in groups:
            dist.new_group(ranks, backend="cpu:scaleacross", pg_options=options, use_local_synchronization=True)
        first = max(first, begin)
        further = max(further, (store.operations - begin) / max(len(groups), 1))
        dist.destroy_process_group()
    return int(first), further


def _groups(rank: int, world: int) -> list[list[int]]:
    """Of 8 neighbours, of 64 ranks 8 apart, of every 512th rank, as far as there are that many."""
    shapes = ((8, 1), (64, 8), (world // 512, 512))
    groups = []
    for degree, stride in shapes:
        if degree > 1 and world % (degree * stride) == 0:
            base = rank - (rank // stride % degree) * stride
            groups.append([base + index * stride for index in range(degree)])
    return groups


def gloo_count(world: int) -> int:
    """Most store operations of any rank in an eager gloo group of ``world`` ranks, each a thread."""
    base = dist.HashStore()
    stores = [CountingStore(base) for _ in range(world)]
    made: list[Any] = [None] * world

    def join(rank: int) -> None:
        made[rank] = dist.ProcessGroupGloo(stores[rank], rank, world, timedelta(seconds=120))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(store.operations for store in stores)


def rows(sizes: list[int]) -> list[dict[str, Any]]:
    """One row per world size."""
    gloo = {size: gloo_count(size) for size in sizes if size <= GLOO_MOST}
    low, high = min(gloo), max(gloo)
    slope = (gloo[high] - gloo[low]) / (high - low) if high > low else 2.0
    out = []
    for size in sizes:
        operations, messages, seconds = ring_counts(size)
        first, further = group_counts(size)
        out.append(
            {
                "ranks": size,
                "ring_store_operations": operations,
                "ring_messages": messages,
                "ring_simulated_s": round(seconds, 2),
                "default_group_store_operations": first,
                "further_group_store_operations": round(further, 1),
                "gloo_group_store_operations": round(gloo.get(size, gloo[low] + slope * (size - low))),
                "gloo_is": "measured" if size in gloo else "extrapolated",
            }
        )
        print(out[-1], file=sys.stderr, flush=True)
    return out


def svg(table: list[dict[str, Any]]) -> str:
    """Both axes logarithmic: store operations of one rank for one group."""
    from math import log10

    width, height, left, bottom = 640, 380, 60, 50
    most = log10(max(row["gloo_group_store_operations"] for row in table)) + 0.2

    def at(ranks: float, operations: float) -> str:
        x = left + (width - left - 150) * log10(ranks) / log10(table[-1]["ranks"])
        return f"{x:.1f},{height - bottom - (height - bottom - 20) * log10(max(operations, 1)) / most:.1f}"

    def line(points: list[str], colour: str, dash: str = "") -> str:
        style = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"{style}/>'

    measured = [row for row in table if row["gloo_is"] == "measured"]
    beyond = [measured[-1], *(row for row in table if row["gloo_is"] != "measured")] if measured else table
    ours = [
        at(row["ranks"], row["further_group_store_operations"] or row["default_group_store_operations"])
        for row in table
    ]
    ring = [at(row["ranks"], row["ring_store_operations"]) for row in table]
    end = table[-1]

    def text(place: str, words: str) -> str:
        x, y = place.split(",")
        return f'<text x="{float(x) + 6:.1f}" y="{float(y) + 4:.1f}">{words}</text>'

    parts = [
        line([at(row["ranks"], row["gloo_group_store_operations"]) for row in measured], "#b03030"),
        line([at(row["ranks"], row["gloo_group_store_operations"]) for row in beyond], "#b03030", "5 4"),
        line(ours, "#205090"),
        line(ring, "#308050"),
        text(at(end["ranks"], end["gloo_group_store_operations"]), "gloo, per group"),
        text(ours[-1], "scaleacross, per group"),
        text(ring[-1], "bootstrap ring, once"),
    ]
    for row in table[::2]:
        x = at(row["ranks"], 1).split(",")[0]
        parts.append(f'<text x="{x}" y="{height - bottom + 18}" text-anchor="middle">{row["ranks"]:,}</text>')
    for power in range(int(most) + 1):
        y = at(1, 10**power).split(",")[1]
        parts.append(f'<line x1="{left}" x2="{width - 150}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    parts.append(
        f'<text x="{left}" y="{height - 10}">ranks; upward: store operations of one rank (dashed: extrapolated)</text>'
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--write", type=Path, metavar="DIR", help="write start_scale.csv and start_scale.svg there")
    options = parser.parse_args()
    hop = hop_s()
    print(
        f"a hop takes {1e6 * hop:.1f} µs; {SERIAL_RANKS:,} ranks, two laps: {2 * SERIAL_RANKS * hop:.2f} s",
        file=sys.stderr,
    )
    table = rows(sorted(options.sizes))
    target = (options.write / "start_scale.csv").open("w", newline="") if options.write else sys.stdout
    with target:
        writer = csv.DictWriter(target, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    if options.write:
        (options.write / "start_scale.svg").write_text(svg(table), encoding="utf-8")


if __name__ == "__main__":
    main()
