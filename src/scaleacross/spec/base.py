"""Common base classes of all specs: frozen, no unknown keys, units converted on input, figures with provenance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from scaleacross.units import to_si

Status = Literal["datasheet", "paper", "measured", "fitted", "assumed"]

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
HOST_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$"
"""A host's full name may have 253 characters (RFC 1035, section 2.3.4, as text)."""


def _checked_name(value: str, pattern: str = NAME_PATTERN) -> str:
    if re.fullmatch(pattern, value) is None:
        longest = 64 if pattern == NAME_PATTERN else 253
        raise ValueError(
            f"{value!r} is no name: use 1 to {longest} letters, digits, '.', '_' or '-', starting with a letter or digit "
            "(names reach file names and launch scripts)"
        )
    return value


# Names end up in file names, host names and shell scripts, so nothing there ever needs quoting.
Name = Annotated[str, AfterValidator(_checked_name), Field(json_schema_extra={"pattern": NAME_PATTERN})]
HostName = Annotated[
    str,
    AfterValidator(lambda value: _checked_name(value, HOST_PATTERN)),
    Field(json_schema_extra={"pattern": HOST_PATTERN}),
]


def one_is_a_list(value: Any) -> Any:
    """Validator (mode before): turn a single value into a tuple of one."""
    return (value,) if isinstance(value, str | int | float | dict) else value


def each_once(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Validator of lists of allowed values: remove repeats and keep the order.

    Raises:
        ValueError: the list is empty.
    """
    if not value:
        raise ValueError("an empty list allows nothing: leave the key out to allow everything")
    return tuple(dict.fromkeys(value))


class Spec(BaseModel):
    """A frozen pydantic model that accepts its ``*_s``/``*_bytes``/... fields under user-unit keys too (``units.USER_UNITS``)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _convert_units(cls, data: Any) -> Any:
        return _truth_as_text(cls, to_si(data, cls.model_fields)) if isinstance(data, dict) else data

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other fields, which pydantic does not validate.

        Raises:
            ValueError: ``update`` names what is no field; pydantic would keep it as an attribute that nobody reads.
        """
        if update and not update.keys() <= type(self).model_fields.keys():
            unknown = ", ".join(sorted(update.keys() - type(self).model_fields.keys()))
            raise ValueError(f"{type(self).__name__} has no field {unknown}")
        return super().model_copy(update=update, deep=deep)


def _truth_as_text(model: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """Return ``data`` with true and false under numeric fields turned into text.

    Otherwise pydantic would read them as 1 and 0 instead of refusing them.
    """
    numeric = _numeric_fields(model)
    return {key: _as_text(value) if key in numeric else value for key, value in data.items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return [_as_text(item) for item in value]
    return {key: _as_text(item) for key, item in value.items()} if isinstance(value, dict) else value


@cache
def _numeric_fields(model: type[BaseModel]) -> frozenset[str]:
    """Names of the fields whose type includes a number but no truth value."""
    kinds = {name: set(_scalars(field.annotation)) for name, field in model.model_fields.items()}
    return frozenset(name for name, found in kinds.items() if found & {int, float} and bool not in found)


def _scalars(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _scalars(part)


class Provenance(Spec):
    """Origin of a figure; the status of a guess is ``assumed``."""

    source: str = Field(min_length=3, description="publication, datasheet or measurement, precise enough to look up")
    status: Status = Field(description="datasheet | paper | measured | fitted | assumed")


class SourcedSpec(Spec):
    """A spec whose physical numbers carry their origin in ``provenance``.

    Keys of ``provenance`` are the field names as written in the file (user units allowed), dotted from the object that
    holds ``provenance``: ``memory_gib``, ``links.zone.one_way_latency_us``, ``trunks.oversubscription_ratio``. List
    indices, region and building levels and ``building_defaults`` are left out, so one entry covers all buildings or
    inter-building links with that figure. Objects built in a launch script may leave it empty. Every file of the
    bundled catalogue must state it for each key with a unit, ``*_fraction``, ``*_ratio``, and an accelerator's
    multiprocessors and tile. A kernel model counts as one figure, ``gemm_models.bf16``
    (tests/catalogue/test_bundled.py).
    """

    provenance: dict[str, Provenance] = Field(default_factory=dict, description="figure -> its source and status")
