"""Measures rate and latency between two hosts, by one TCP connection.

``python -m scaleacross.testbed.probe serve ADDRESS`` runs on one, ``python -m scaleacross.testbed.probe call ADDRESS
SECONDS`` on the other. The latter prints ``{"round_trip_s": …, "least_round_trip_s": …, "bytes_per_s": …}``: the median
and the least round trip of small messages, and the bytes that arrive per second after the first tenth of the time.
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import sys
import time
from typing import Final

PORT: Final = 5999
NUM_PINGS: Final = 21
BLOCK_BYTES: Final = 1 << 18
CONNECT_S: Final = 10.0
LISTENING: Final = "listening"
WARM_UP_FRACTION: Final = 0.1
_WORD: Final = struct.Struct("<d")


def serve(address: str) -> None:
    """Serve one caller: echo its words, then count its bytes and report their rate."""
    with socket.create_server((address, PORT)) as listener:
        sys.stdout.write(f"{LISTENING}\n")
        sys.stdout.flush()
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(NUM_PINGS):
            connection.sendall(_word(connection))
        (seconds,) = _WORD.unpack(_word(connection))
        connection.sendall(_WORD.pack(_rate(connection, seconds)))


def call(address: str, seconds: float) -> dict[str, float]:
    """Measure towards ``address``; return the three figures."""
    with socket.create_connection((address, PORT), timeout=CONNECT_S) as connection:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(NUM_PINGS):
            began = time.perf_counter()
            connection.sendall(_WORD.pack(0))
            _word(connection)
            trips.append(time.perf_counter() - began)
        connection.sendall(_WORD.pack(seconds))
        block, until = bytes(BLOCK_BYTES), time.perf_counter() + seconds
        while time.perf_counter() < until:
            connection.sendall(block)
        connection.shutdown(socket.SHUT_WR)
        (rate,) = _WORD.unpack(_word(connection))
    return {"round_trip_s": statistics.median(trips), "least_round_trip_s": min(trips), "bytes_per_s": rate}


def _rate(connection: socket.socket, seconds: float) -> float:
    """Return the bytes per second that arrive between the end of the warm-up and the end of the stream."""
    buffer = bytearray(BLOCK_BYTES)
    began, total, first, since = time.perf_counter(), 0, 0, 0.0
    while count := connection.recv_into(buffer):
        total, now = total + count, time.perf_counter()
        if not since and now - began > WARM_UP_FRACTION * seconds:
            first, since = total, now
    return (total - first) / (time.perf_counter() - since)


def _word(connection: socket.socket) -> bytes:
    data = b""
    while len(data) < _WORD.size:
        more = connection.recv(_WORD.size - len(data))
        if not more:
            raise ConnectionError("the other side hung up")
        data += more
    return data


def main() -> None:
    """Run one end, as the module docstring says."""
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.stdout.write(json.dumps(call(sys.argv[2], float(sys.argv[3]))) + "\n")


if __name__ == "__main__":
    main()
