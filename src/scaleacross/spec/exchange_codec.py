"""Compression of the embedding vectors that ranks exchange: measured codecs, what a job allows, what a plan chose."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from scaleacross.spec.base import Name, Spec
from scaleacross.spec.network import LinkLevel

ANY_TABLE: Final = "any"
CLASSES: Final = ("tight", "base", "loose")
ClassName = Literal["none", "tight", "base", "loose"]
Fraction = Annotated[float, Field(gt=0, le=1)]


class CodecFigures(Spec):
    """Ratio and rates of one encoder on the vectors of one table, measured or published."""

    table: Name = Field(description="name of the table; any: every table without rows of its own")
    encoder: Name
    bound_fraction: Fraction | None = Field(
        default=None, description="bound over the range of the table's values; None: the bound of the table's class"
    )
    ratio: PositiveFloat = Field(description="bytes of the fp32 vectors over bytes sent")
    encode_bytes_per_s: PositiveFloat = Field(description="of the vectors as they are, on one accelerator")
    decode_bytes_per_s: PositiveFloat = Field(description="likewise")
    merged_fraction: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="distinct vectors of a batch that the bound makes equal to others (homogenisation)",
    )


class ErrorDecay(Spec):
    """Looser error bounds early in training.

    The factor of the bound is ``start`` at step 0 and 1 from ``stage_steps`` on.
    """

    shape: Literal["step", "linear", "log"]
    start: float = Field(ge=1, description="factor of the bound at step 0")
    stage_steps: PositiveInt = Field(description="first step with the bound itself")


class ExchangeCompressionRequest(Spec):
    """Permission to compress the vectors that ranks exchange forward; gradients travel uncompressed."""

    max_mean_bound_fraction: Fraction = Field(
        description="accuracy budget: mean over elements exchanged of bound over range of their table; uncoded ones count 0"
    )
    measured: str | tuple[CodecFigures, ...] = Field(
        description="ratios and rates of encoders: a CSV that scaleacross codec writes, a name of the catalogue, or a list"
    )
    classes: dict[ClassName, Fraction] = Field(
        default={"tight": 0.01, "base": 0.03, "loose": 0.05},
        description="largest bound of each class over the range of a table's values (github allenfengjr/dlrm_comp f55790b)",
    )
    tables: dict[str, ClassName] = Field(default={}, description="class of a table; none: it travels as it is")
    default_class: ClassName = Field(default="base", description="class of the tables that are not named")
    max_merged_fraction: float | None = Field(
        default=None, ge=0, le=1, description="bounds that make a larger share of distinct vectors equal are left out"
    )
    levels: tuple[LinkLevel, ...] = Field(
        default=("rack", "zone", "building", "campus", "region"),
        min_length=1,
        description="levels across which vectors may travel coded; the plan chooses among them",
    )
    decay: ErrorDecay | None = Field(default=None, description="None: the same bounds in every step")

    @field_validator("classes")
    @classmethod
    def _tight_is_least(cls, value: dict[ClassName, float]) -> dict[ClassName, float]:
        bounds = [value[name] for name in ("tight", "base", "loose") if name in value]
        if len(bounds) != len(CLASSES) or bounds != sorted(bounds) or "none" in value:
            raise ValueError("state bounds of tight, base and loose, each no smaller than the one before")
        return value

    @model_validator(mode="after")
    def _something_was_measured(self) -> ExchangeCompressionRequest:
        if not self.measured:
            raise ValueError("measured is empty: give a CSV of scaleacross codec, or a name of the catalogue")
        stated = isinstance(self.measured, str) or any(one.merged_fraction is not None for one in self.measured)
        if self.max_merged_fraction is not None and not stated:
            raise ValueError("max_merged_fraction needs measured rows that state merged_fraction")
        return self

    def limit_of(self, table: str) -> float:
        """Largest bound of a table over its range; 0: its vectors are not compressed."""
        name = self.tables.get(table, self.default_class)
        return 0.0 if name == "none" else self.classes[name]


class TableCodec(Spec):
    """Encoder of the vectors of one table across some levels."""

    table: Name
    encoder: Name
    bound_fraction: Fraction = Field(description="bound over the range of the table's values")
    ratio: PositiveFloat
    encode_bytes_per_s: PositiveFloat
    decode_bytes_per_s: PositiveFloat
    levels: tuple[LinkLevel, ...] = Field(
        min_length=1, description="outermost levels of the group, coded between ranks apart by them"
    )


class LevelCompression(Spec):
    """Compression across one level."""

    level: LinkLevel
    rank_bytes_per_s: float = Field(description="of one rank, when all exchange, in one direction")
    num_tables: NonNegativeInt = Field(description="tables whose vectors travel coded across it")
    reason: str = Field(default="", description="why none do")


class EncoderUse(Spec):
    """Tables that share encoder, bound and levels."""

    encoder: Name
    bound_fraction: Fraction
    levels: tuple[LinkLevel, ...]
    num_tables: PositiveInt
    ratio: float = Field(description="of all their vectors together")
    break_even_bytes_per_s: float = Field(
        description="link rate of a rank below which it pays, of the table where it is least"
    )


class ExchangeCompression(Spec):
    """The chosen compression, with reasons."""

    status: Literal["optimal", "feasible"] = Field(description="whether no other choice of the offers is proved faster")
    mean_bound_fraction: float
    ratio: float = Field(
        description="bytes of all vectors over bytes sent, across the outermost level that the group crosses"
    )
    plain_step_s: float = Field(description="step of the same placement with vectors as they are")
    encoders: tuple[EncoderUse, ...]
    levels: tuple[LevelCompression, ...]
    early_mean_bound_fraction: float | None = Field(default=None, description="at step 0, where bounds decay")
