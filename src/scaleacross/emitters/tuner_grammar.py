"""The two tuner files as rows. Every row is checked before it is written.

* NCCL's example tuner plugin, ``NCCL_TUNER_CONFIG_FILE``:
  ``collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks`` with −1 for any (NCCL 2.31, plugins/tuner/example)
  The plugin silently reads an unknown name as allreduce, ring or simple, and a line longer than 255 bytes as several. A '#' is a
  comment only at the start of a line. So nothing of the kind is written. Where no row fits, and for -1 channels, it asks for one
  channel; 0 leaves the number to NCCL. So 0 is written, and ``catch_all`` covers the rest.
* NCCLX, ``NCCLX_TUNER_CONFIG_FILE``:
  ``collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks``; sizes here as an interval ``[a,b]``, ``(a,b]``, ...;
  the first row that fits wins (torchcomms 59426ba4)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from scaleacross.errors import EmitError

COLLECTIVES: Final = ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")
ANY_SIZE: Final = 2**62
# assumed: sizes up to which NCCL's own choice is the low-latency protocols; a row of the plugin has to name one.
LOW_LATENCY_BYTES: Final = 64 * 1024
LOW_LATENCY_128_BYTES: Final = 4 * 1024 * 1024
ALGORITHMS: Final = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS: Final = ("ll", "ll128", "simple")
MAX_CHANNELS: Final = 64


class TunerRow(NamedTuple):
    """One rule: the calls that it covers, and what to run there.

    Attributes:
        collective, algorithm, protocol: names of the grammar.
        min_bytes, max_bytes: size of the whole message, ends included.
        num_nodes, num_ranks: size of the communicator; −1, −1: any (NCCL's plugin only).
        channels: −1 leaves the number to NCCL.
    """

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    num_nodes: int
    num_ranks: int
    channels: int = -1

    def check(self) -> None:
        """Raise EmitError unless both grammars accept the row."""
        for value, known in ((self.collective, COLLECTIVES), (self.algorithm, ALGORITHMS), (self.protocol, PROTOCOLS)):
            if value not in known:
                raise EmitError(f"tuner row: '{value}' is none of {', '.join(known)}")
        if not 0 <= self.min_bytes <= self.max_bytes < 2**63:
            raise EmitError(f"tuner row: {self.min_bytes} to {self.max_bytes} bytes is no range")
        anywhere = (self.num_nodes, self.num_ranks) == (-1, -1)
        if not anywhere and not 1 <= self.num_nodes <= self.num_ranks:
            raise EmitError(f"tuner row: {self.num_ranks} ranks on {self.num_nodes} nodes")
        if self.channels != -1 and not 1 <= self.channels <= MAX_CHANNELS:
            raise EmitError(f"tuner row: {self.channels} channels; 1 to {MAX_CHANNELS}, or -1")


def catch_all() -> list[TunerRow]:
    """Return rows for all calls without another row: NCCL's own number of channels, ring, the protocol by size."""
    spans = (
        (0, LOW_LATENCY_BYTES, "ll"),
        (LOW_LATENCY_BYTES + 1, LOW_LATENCY_128_BYTES, "ll128"),
        (LOW_LATENCY_128_BYTES + 1, ANY_SIZE, "simple"),
    )
    return [
        TunerRow(name, low, high, "ring", protocol, -1, -1) for name in COLLECTIVES for low, high, protocol in spans
    ]


def nccl_text(rows: Sequence[TunerRow]) -> str:
    """Return the file of NCCL's example plugin."""
    lines = []
    for row in rows:
        row.check()
        where = f"{row.collective},{row.min_bytes},{row.max_bytes}"
        lines.append(f"{where},{row.algorithm},{row.protocol},{max(row.channels, 0)},{row.num_nodes},{row.num_ranks}")
    return "".join(
        f"{line}\n" for line in ["# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks", *lines]
    )


def ncclx_text(rows: Sequence[TunerRow]) -> str:
    """Return the file of NCCLX; sizes there are per rank."""
    lines = []
    for row in rows:
        row.check()
        size = f"[{row.min_bytes // row.num_ranks},{-(-row.max_bytes // row.num_ranks)}]"
        local = row.num_ranks // row.num_nodes
        lines.append(f"{row.collective},{size},{row.algorithm},{row.protocol},{row.channels},{row.num_nodes},{local}")
    return "".join(
        f"{line}\n" for line in ["# collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks", *lines]
    )
