"""Recommendation models: embedding tables, two small dense networks, and layers over user histories.

They have no pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from scaleacross.spec.base import Name, SourcedSpec, Spec, one_is_a_list
from scaleacross.workloads.sequences import SequenceLayers

Family = Literal["dlrm", "sequence_rec"]
ID_BYTES = 8
"""Bytes of one row number of a look-up, as TorchRec sends it (int64)."""


class ReuseBin(Spec):
    """Rows that are read about equally often: their share of all rows that a batch reads, and of all its reads."""

    row_share: Annotated[float, Field(ge=0, le=1)]
    read_share: Annotated[float, Field(ge=0, le=1)]


class Locality(Spec):
    """Distribution of reads over rows: uniform, a power law over ranked rows, or a measured histogram of reuse."""

    kind: Literal["uniform", "power_law", "histogram"] = "uniform"
    exponent: PositiveFloat | None = Field(default=None, description="α: the k-th row is read in proportion to k^−α")
    bins: tuple[ReuseBin, ...] = Field(default=(), description="coldest rows first, as reuse histograms are printed")

    @model_validator(mode="after")
    def _kind_has_its_figures(self) -> Locality:
        if (self.kind == "power_law") != (self.exponent is not None):
            raise ValueError("exponent belongs to kind power_law, and power_law needs it")
        if (self.kind == "histogram") != bool(self.bins):
            raise ValueError("bins belong to kind histogram, and histogram needs them")
        for key in ("row_share", "read_share"):
            total = sum(getattr(one, key) for one in self.bins)
            if self.bins and abs(total - 1) > 0.02:
                raise ValueError(f"{key} of all bins adds up to {total:.3f}; it should be 1 (shares, not percent)")
        return self

    def read_share(self, row_share: float, rows: int) -> float:
        """Share of the reads that go to the hottest ``row_share`` of ``rows`` rows, in [0, 1].

        A power law is integrated over ranks: (1 − (1 + k)^(1−α)) / (1 − (1 + H)^(1−α)) for k of H rows. A histogram is
        linear inside a bin.
        """
        share = min(1.0, max(0.0, row_share))
        if self.kind == "power_law" and self.exponent is not None:
            return _power_law(share * rows, self.exponent) / _power_law(rows, self.exponent)
        if self.kind == "histogram":
            return self._by_bins(share)
        return share

    def _by_bins(self, share: float) -> float:
        hot = sorted((one for one in self.bins if one.row_share > 0), key=lambda one: -one.read_share / one.row_share)
        # a bin whose row share rounds to 0 holds the hottest rows: its reads count for any share
        reads = sum(one.read_share for one in self.bins if one.row_share == 0)
        left = share * sum(one.row_share for one in hot)
        for one in hot:
            taken = min(left, one.row_share)
            reads, left = reads + one.read_share * taken / one.row_share, left - taken
        return min(1.0, reads / sum(one.read_share for one in self.bins)) if share > 0 else 0.0


def _power_law(count: float, exponent: float) -> float:
    """∫ from 1 to 1 + count of x^−α."""
    if math.isclose(exponent, 1.0):
        return math.log1p(count)
    return (1.0 - math.pow(1.0 + count, 1.0 - exponent)) / (exponent - 1.0)


class EmbeddingTable(Spec):
    """One table, or ``num_tables`` equal ones. A table that several features read has one pooling per feature."""

    name: Name
    rows: PositiveInt
    dimension: PositiveInt = Field(description="elements of a row")
    pooling: tuple[PositiveFloat, ...] = Field(
        default=(1.0,), min_length=1, description="mean row numbers per sample, of each feature that reads the table"
    )
    num_tables: PositiveInt = Field(default=1, description="so many tables alike, numbered from 0 behind the name")
    weighted: bool = Field(default=False, description="rows are weighted before they are added up")
    pooled: bool = Field(
        default=True,
        description="rows of a sample are added up; false: each is sent. Of sequence_rec, pooling is then per token",
    )

    _lists = field_validator("pooling", mode="before")(one_is_a_list)

    @property
    def reads_per_sample(self) -> float:
        """Row numbers per sample."""
        return sum(self.pooling)

    @property
    def outputs_per_sample(self) -> float:
        """Vectors per sample that the look-up returns: at most one per feature if rows are pooled."""
        return sum(min(1.0, pooling) for pooling in self.pooling) if self.pooled else self.reads_per_sample

    @property
    def num_elements(self) -> int:
        """Elements of one table."""
        return self.rows * self.dimension


class Dlrm(SourcedSpec):
    """A deep learning recommendation model: dense features through a bottom MLP, tables, their interaction, a top MLP.

    DLRM (arXiv 1906.00091) with ``dot`` interaction; ``cat`` concatenates, ``dcn`` is MLPerf's low-rank cross network
    (v2). Family ``sequence_rec`` has layers over histories instead of the interaction; one vector per history goes on
    to the top MLP.
    """

    name: Name
    family: Family = "dlrm"
    description: str = ""
    source: str = Field(default="", description="where the list of tables comes from")
    num_dense_features: NonNegativeInt = 0
    bottom_mlp: tuple[PositiveInt, ...] = ()
    top_mlp: tuple[PositiveInt, ...] = ()
    interaction: Literal["dot", "cat", "dcn"] = "cat"
    cross_layers: NonNegativeInt = Field(default=0, description="layers of the cross network")
    cross_rank: NonNegativeInt = Field(default=0, description="rank of its products")
    sequence: SequenceLayers | None = Field(default=None, description="of sequence_rec: layers over histories")
    tables: tuple[EmbeddingTable, ...] = Field(min_length=1)
    locality: Locality = Locality()

    @model_validator(mode="after")
    def _fits_together(self) -> Dlrm:
        if (self.family == "sequence_rec") != (self.sequence is not None):
            raise ValueError("sequence belongs to family sequence_rec, and sequence_rec needs it")
        names = [table.name for table in self.expanded()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two tables are called '{twice}': names must differ")
        if (self.interaction == "dcn") != (self.cross_layers > 0 and self.cross_rank > 0):
            raise ValueError("cross_layers and cross_rank belong to interaction dcn, and dcn needs both")
        if self.bottom_mlp and not self.num_dense_features:
            raise ValueError("bottom_mlp without num_dense_features has no input")
        return self

    def _read(self) -> Iterator[EmbeddingTable]:
        """Tables with pooling per sample. In sequence_rec, tables that are not pooled are read once per token."""
        lengths = self.sequence.lengths if self.sequence else None
        tokens = lengths.moment(1) if lengths else 1.0
        for table in self.tables:
            many = tuple(pooling * tokens for pooling in table.pooling)
            yield table if table.pooled or tokens == 1 else table.model_copy(update={"pooling": many})

    def expanded(self) -> Iterator[EmbeddingTable]:
        """Every table on its own (``num_tables`` 1), with pooling per sample."""
        for table in self._read():
            if table.num_tables == 1:
                yield table
            else:
                width = len(str(table.num_tables - 1))
                for index in range(table.num_tables):
                    yield table.model_copy(update={"name": f"{table.name}_{index:0{width}d}", "num_tables": 1})

    @property
    def num_tables(self) -> int:
        """Number of tables, with repeats."""
        return sum(table.num_tables for table in self.tables)

    @property
    def embedding_parameters(self) -> int:
        """Elements of all tables."""
        return sum(table.num_tables * table.num_elements for table in self.tables)

    @property
    def reads_per_sample(self) -> float:
        """Row numbers per sample, all tables."""
        return sum(table.num_tables * table.reads_per_sample for table in self._read())

    @property
    def output_elements(self) -> float:
        """Elements per sample that the look-ups return."""
        return sum(table.num_tables * table.outputs_per_sample * table.dimension for table in self._read())

    @property
    def dense_weights(self) -> int:
        """Weights outside the tables, whose gradients all ranks add up."""
        return sum(self.dense_parameters()) + (self.sequence.num_weights if self.sequence else 0)

    def dense_parameters(self) -> tuple[int, int]:
        """Weights (no biases) of the bottom MLP, and of interaction and top MLP: a sample needs 2 FLOP each, forward.

        Layers over histories are left out.
        """
        bottom = _weights((self.num_dense_features, *self.bottom_mlp)) if self.bottom_mlp else 0
        first = self.bottom_mlp[-1] if self.bottom_mlp else self.num_dense_features
        if self.sequence is not None:  # input: one vector per history, the pooled features, the bottom MLP's output
            width = (
                self.sequence.hidden_size
                + first
                + round(
                    sum(
                        table.num_tables * table.outputs_per_sample * table.dimension
                        for table in self.tables
                        if table.pooled
                    )
                )
            )
            return bottom, _weights((width, *self.top_mlp)) if self.top_mlp else 0
        width = round(self.output_elements) + first
        cross = 2 * width * self.cross_rank * self.cross_layers
        if self.interaction == "dot":
            vectors = round(sum(table.num_tables * table.outputs_per_sample for table in self.tables)) + 1
            width = vectors * (vectors - 1) // 2 + first
        return bottom, cross + (_weights((width, *self.top_mlp)) if self.top_mlp else 0)


def _weights(widths: tuple[int, ...]) -> int:
    return sum(inner * outer for inner, outer in pairwise(widths))
