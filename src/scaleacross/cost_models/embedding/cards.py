"""Embedding tables over the inference cards of one host: busy seconds per request, and the latency of one request.

A card looks rows up on ``cores`` of its cores and runs the dense network on the others. The slowest of four parts of a
request sets the rate of queries. They are the look-ups of a card; the dense network, which the cards run in turn; the
bytes that leave and enter a card over its port; and, with transfers through the host, the bytes of all cards over the
switch's uplink. *Replicated*: every card holds the dense network. *Split*: each holds a part of it, all vectors go to
card 0 and activations from card to card. Latency is the slowest look-up, the travel of vectors, the dense network on
one card, and the stated time per hop; no queue. Derived from arXiv 2107.04140 and Glow's partitioner; no measurement
supports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from scaleacross.cost_models.candidates import Floats


@dataclass(frozen=True)
class InferenceTable:
    """A table on an inference card: bytes held, and per request seconds of look-up on one core and bytes sent on."""

    name: str
    memory_bytes: int
    lookup_core_s: float
    output_bytes: float


@dataclass(frozen=True)
class CardHost:
    """Equal cards behind one PCIe switch.

    Attributes:
        dense_bytes, dense_core_s: of the whole dense network.
        uplink_bytes_per_s: between switch and host, where vectors go through the host; None: from card to card.
        hop_s: time of a transfer from one device to another, besides that of its bytes.
        latency_bound_s: limit on the latency of a request.
        split: whether the dense network is divided over the cards.
        activation_bytes: bytes that then go from part to part, per request.
    """

    num_cards: int
    memory_bytes: int
    cores: int
    pcie_bytes_per_s: float
    dense_bytes: int
    dense_core_s: float
    uplink_bytes_per_s: float | None = None
    hop_s: float = 0.0
    latency_bound_s: float = inf
    split: bool = False
    activation_bytes: float = 0.0

    @property
    def room_bytes(self) -> int:
        """Bytes of a card that tables may use."""
        return self.memory_bytes - -(-self.dense_bytes // (self.num_cards if self.split else 1))

    @property
    def leaving(self) -> Floats:
        """Share of each card's vectors that leave it, (cards,).

        The vectors of a request go to the card with its dense part: to any card in turn where each holds all of it,
        else to card 0.
        """
        each = np.full(self.num_cards, 1.0 if self.split else (self.num_cards - 1) / self.num_cards)
        if self.split:
            each[0] = 0.0
        return each

    def dense_s(self, cores: int) -> float:
        """Busy seconds of the dense part per request and card, with ``cores`` reserved for look-ups."""
        return self.dense_core_s / (self.num_cards * (self.cores - cores))

    def fixed_latency_s(self, cores: int, all_output_bytes: float) -> float:
        """Seconds of latency that no placement changes: dense network, hops, and the uplink."""
        through_host = self.uplink_bytes_per_s is not None
        hops = (0 if self.num_cards == 1 else 2 if through_host else 1) + (self.num_cards - 1 if self.split else 0)
        seconds = self.dense_core_s / (self.cores - cores) + hops * self.hop_s
        if self.uplink_bytes_per_s is not None and self.num_cards > 1:
            seconds += all_output_bytes / self.uplink_bytes_per_s
        if self.split:
            seconds += (self.num_cards - 1) * self.activation_bytes / self.pcie_bytes_per_s
        return seconds


def _by_card(host: CardHost, cards: Sequence[int], figures: Sequence[float]) -> Floats:
    out = np.zeros(host.num_cards)
    np.add.at(out, np.asarray(cards), np.asarray(figures, dtype=np.float64))
    return out


def seconds_per_request(tables: Sequence[InferenceTable], host: CardHost, cards: Sequence[int], cores: int) -> float:
    """Busy seconds of the slowest part per request, with table i on ``cards[i]``."""
    lookups = _by_card(host, cards, [table.lookup_core_s for table in tables]) / cores
    sent = _by_card(host, cards, [table.output_bytes for table in tables])
    leaves, total = sent * host.leaving, float(sent.sum())
    comes = (total - sent) / host.num_cards
    passed = host.activation_bytes if host.split and host.num_cards > 1 else 0.0
    if host.split:
        comes = np.zeros(host.num_cards)
        comes[0] = total - sent[0]
    # ports carry both directions at once
    ports = np.maximum(leaves, comes) + passed
    uplink = float(leaves.sum()) / host.uplink_bytes_per_s if host.uplink_bytes_per_s is not None else 0.0
    return max(host.dense_s(cores), float(lookups.max()), float(ports.max()) / host.pcie_bytes_per_s, uplink)


def latency_s(tables: Sequence[InferenceTable], host: CardHost, cards: Sequence[int], cores: int) -> float:
    """Latency, s, of a request that finds all cards idle."""
    lookups = _by_card(host, cards, [table.lookup_core_s for table in tables]) / cores
    sent = _by_card(host, cards, [table.output_bytes for table in tables])
    to = sent[:1] if host.split else sent
    comes = float(sent.sum() - to.min()) / host.pcie_bytes_per_s
    return float(lookups.max()) + comes + host.fixed_latency_s(cores, float(sent.sum()))
