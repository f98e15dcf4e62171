"""Write an accelerator's catalogue file with fitted figures, in the units of the file that they replace.

The file is plain data here (key -> value, as YAML or JSON holds it). Figures that were not fitted stay as written,
under the keys and units of their author.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scaleacross.calibration.kernels import rounded
from scaleacross.calibration.result import taken_over
from scaleacross.spec.base import Provenance
from scaleacross.spec.kernel_model import AttentionModel, GemmModel
from scaleacross.units import si_key, user_keys

ATTENTION: Final = "attention_model"
PRODUCTS: Final = "gemm_models"


@dataclass(frozen=True)
class FittedFigure:
    """A fitted value in SI (or a kernel model) and its source."""

    value: float | Mapping[str, float] | GemmModel | AttentionModel
    source: str


def accelerator_data(
    stated: Mapping[str, Any], name: str, figures: Mapping[str, FittedFigure]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the data of an entry called ``name``, and the keys of figures kept from the base.

    Args:
        stated: data of the base's file, ``name`` included.
        figures: SI field, ``gemm_models.<kind>`` or ``attention_model`` -> its new value.
    """
    data: dict[str, Any] = {key: value for key, value in stated.items() if key != "provenance"} | {"name": name}
    origins = {key: Provenance.model_validate(one) for key, one in (stated.get("provenance") or {}).items()}
    new: dict[str, Provenance] = {}
    for field, figure in figures.items():
        new[_set(data, field, figure.value)] = Provenance(source=figure.source, status="fitted")
    kept = {key: one for key, one in origins.items() if key not in new}
    provenance = taken_over(kept, str(stated["name"]), name) | new
    ordered = {key: provenance[key] for key in (*origins, *new) if key in provenance}
    data["provenance"] = {key: one.model_dump() for key, one in ordered.items()}
    return data, tuple(kept)


def _set(data: dict[str, Any], field: str, value: Any) -> str:
    """Put a value into ``data`` under its spelling there; returns its key in provenance."""
    if isinstance(value, GemmModel | AttentionModel):
        owner, _, kind = field.partition(".")
        data[owner] = {**(data.get(owner) or {}), kind: _model_data(value)} if kind else _model_data(value)
        return field
    key = next((spelling for spelling in user_keys(field) if spelling in data), field)
    data[key] = (
        {part: each if isinstance(each, int) else rounded(each) for part, each in value.items()}
        if isinstance(value, Mapping)
        else _in_unit(key, value)
    )
    return key


def _model_data(model: GemmModel | AttentionModel) -> dict[str, Any]:
    """Fields of a kernel model that differ from their defaults, times in µs."""
    out: dict[str, Any] = {}
    for key, value in model.model_dump(mode="json", exclude_defaults=True).items():
        spelling = f"{key[:-2]}_us" if key.endswith("_s") else key
        out[spelling] = _in_unit(spelling, value) if key.endswith("_s") else value
    return out


def _in_unit(key: str, value: float) -> float:
    """Convert an SI value to the unit of the suffix of ``key``."""
    unit = si_key(key)
    return rounded(value / unit[1] if unit else value)
