"""Tables and cards of an inference job, in bytes and seconds per request."""

from __future__ import annotations

from math import ceil, inf
from typing import Final

from scaleacross.cost_models.embedding.cards import CardHost, InferenceTable
from scaleacross.errors import InputError
from scaleacross.spec.inference import (
    COPY_BYTES,
    ROW_EXTRA_BYTES,
    CopyPrecision,
    DenseLayout,
    InferenceJob,
    Transfers,
)
from scaleacross.workloads.recommendation import Dlrm

VECTOR_BYTES: Final = 2
"""Bytes per element of a vector between cards, and of an activation: fp16."""


def card_problem(
    job: InferenceJob, model: Dlrm, precision: CopyPrecision, transfers: Transfers, layout: DenseLayout
) -> tuple[list[InferenceTable], CardHost]:
    """Tables and cards of one combination.

    Raises:
        InputError: transfers through the host without the rate of its uplink.
    """
    cards, batch = job.cards, job.batch_samples
    if transfers == "host" and cards.uplink_bandwidth_bytes_per_s is None:
        raise InputError("transfers through the host: cards.uplink_bandwidth_gbyte_per_s is missing")
    tables = []
    for table in model.expanded():
        row = table.dimension * COPY_BYTES[precision] + ROW_EXTRA_BYTES[precision]
        read = batch * table.reads_per_sample * row
        sent = batch * table.outputs_per_sample * table.dimension * VECTOR_BYTES
        seconds = read * cards.cores / cards.memory_bandwidth_bytes_per_s
        tables.append(InferenceTable(table.name, ceil(table.rows * row), seconds, sent))
    weights = sum(model.dense_parameters())
    widest = max((*model.bottom_mlp, *model.top_mlp, 1))
    host = CardHost(
        num_cards=cards.num_cards,
        memory_bytes=cards.memory_bytes,
        cores=cards.cores,
        pcie_bytes_per_s=cards.pcie_bandwidth_bytes_per_s,
        dense_bytes=ceil(weights * job.dense_precision_bytes),
        dense_core_s=2 * weights * batch * cards.cores / cards.dense_flop_per_s,
        uplink_bytes_per_s=cards.uplink_bandwidth_bytes_per_s if transfers == "host" else None,
        hop_s=cards.hop_s,
        latency_bound_s=job.latency_bound_s if job.latency_bound_s is not None else inf,
        split=layout == "split",
        activation_bytes=batch * widest * VECTOR_BYTES if layout == "split" else 0.0,
    )
    return tables, host
