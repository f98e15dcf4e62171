"""Inference jobs and plans: a recommendation model on the accelerator cards of one host."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from scaleacross.spec.base import Name, Spec, one_is_a_list

CopyPrecision = Literal["fp32", "fp16", "int8", "int4"]
COPY_BYTES: dict[CopyPrecision, float] = {"fp32": 4, "fp16": 2, "int8": 1, "int4": 0.5}
"""Bytes per element of a table's copy, without ``ROW_EXTRA_BYTES``."""
ROW_EXTRA_BYTES: dict[CopyPrecision, int] = {"fp32": 0, "fp16": 0, "int8": 8, "int4": 4}
"""Bytes of scale and bias per row: fp32 for int8, fp16 for int4 (FBGEMM's fused row-wise formats)."""

Transfers = Literal["peer", "host"]
DenseLayout = Literal["replicated", "split"]


class Cards(Spec):
    """Equal inference cards of one host, connected by one PCIe switch."""

    num_cards: PositiveInt
    memory_bytes: PositiveInt = Field(description="of a card")
    cores: PositiveInt = Field(ge=2, description="of a card; look-ups and dense work share them")
    memory_bandwidth_bytes_per_s: PositiveFloat = Field(description="of a card, all cores reading")
    dense_flop_per_s: PositiveFloat = Field(description="that a card reaches on the dense network, all cores computing")
    pcie_bandwidth_bytes_per_s: PositiveFloat = Field(description="of a card's port, each direction")
    uplink_bandwidth_bytes_per_s: PositiveFloat | None = Field(
        default=None, description="between switch and host, each direction; needed for transfers through the host"
    )
    hop_s: float = Field(default=0.0, ge=0, description="of a transfer between two devices, in addition to its bytes")


class InferenceJob(Spec):
    """A model, the cards that serve it, and the size of a request."""

    name: Name
    workload: str | dict[str, Any] = Field(description="as in a recommendation job: a name, a YAML, a CSV or a mapping")
    cards: Cards
    batch_samples: PositiveInt = Field(description="samples of a request")
    latency_bound_s: PositiveFloat | None = Field(default=None, description="of a request that finds the cards idle")
    table_precisions: tuple[CopyPrecision, ...] = Field(
        default=("fp16",), min_length=1, description="allowed copies of the tables; equally fast ones: the first"
    )
    dense_precision_bytes: PositiveFloat = Field(default=1.0, description="bytes per weight of the dense network")
    transfers: tuple[Transfers, ...] = Field(
        default=("peer",), min_length=1, description="peer: from card to card; host: through the host's memory"
    )
    dense_layouts: tuple[DenseLayout, ...] = Field(
        default=("replicated", "split"),
        min_length=1,
        description="replicated: whole on every card; split: cut over them",
    )

    _lists = field_validator("table_precisions", "transfers", "dense_layouts", mode="before")(one_is_a_list)


class InferenceDecision(Spec):
    """Everything that is chosen."""

    table_precision: CopyPrecision
    transfers: Transfers
    dense_layout: DenseLayout
    lookup_cores: PositiveInt = Field(description="cores of every card kept for look-ups")
    cards: dict[str, NonNegativeInt] = Field(description="table -> its card")


class CardLoad(Spec):
    """Memory of one card, and its work per request."""

    card: NonNegativeInt
    num_tables: NonNegativeInt
    memory_bytes: float = Field(description="tables and its part of the dense network")
    lookup_s: float
    sent_bytes: float


class InferenceVariant(Spec):
    """Best throughput with one combination of precision, transfers and layout."""

    table_precision: CopyPrecision
    transfers: Transfers
    dense_layout: DenseLayout
    queries_per_s: float | None = Field(default=None, description="of its best plan found; None: see reason")
    glow_queries_per_s: float | None = Field(
        default=None, description="of Glow's rule with its best split of the cores"
    )
    reason: str = ""


class InferencePlan(Spec):
    """A plan with its job, figures and proof."""

    schema_version: Literal["inference-1"] = "inference-1"
    job: InferenceJob
    decision: InferenceDecision
    queries_per_s: float
    samples_per_s: float
    latency_s: float
    bound_queries_per_s: float = Field(description="no plan of the allowed kinds answers more")
    gap: float = Field(description="(bound − queries) / bound")
    loads: tuple[CardLoad, ...]
    variants: tuple[InferenceVariant, ...]
    notes: tuple[str, ...] = Field(default=(), description="what idles, what ended the search, what is assumed")
