"""What tracing costs: nanoseconds per collective and per chunk in the flight recorder, beside a bare Python call.

    python benchmarks/trace_cost.py [--records 200000]

Needs the extra ``runtime``. Quote the ratio to the bare call; nanoseconds depend on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from scaleacross.runtime.trace import FlightRecorder


def nanoseconds_per_call(call: Callable[[], object], calls: int, repeats: int = 5) -> tuple[float, float]:
    """Minimum and median over ``repeats`` of the mean time of one call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        times.append((time.perf_counter_ns() - start) / calls)
    return min(times), statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    calls = parser.parse_args().records
    recorder = FlightRecorder(0, 8)
    group = recorder.group("dp", range(8))
    running = recorder.begin(group, "all_reduce", 1, 1, "float32")

    def collective() -> None:
        record = recorder.begin(group, "all_reduce", 1024, 1024, "float32", num_bytes=4096, algorithm="ring")
        record.start()
        record.end()

    def chunk() -> None:
        running.sent(1, 1 << 20, 1000)

    rows = {"bare call": lambda: None, "one collective (begin, start, end)": collective, "one chunk (sent)": chunk}
    bare = None
    for name, call in rows.items():
        least, middle = nanoseconds_per_call(call, calls)
        bare = bare or least
        print(f"{name:36s} min {least:7.0f} ns   median {middle:7.0f} ns   {least / bare:5.1f}x a bare call")


if __name__ == "__main__":
    main()
