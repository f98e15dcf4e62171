"""Turn pydantic's errors into ``file:line:column: key 'x': message`` with the nearest right spelling.

pydantic names SI fields and union branches, but the user wrote user-unit keys in a file. ``validate`` maps one to the
other.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from scaleacross.catalogue.yaml_source import KeyPath, Source
from scaleacross.errors import InputError
from scaleacross.units import SI_SUFFIXES, si_key, user_keys

MAX_ERRORS_SHOWN: Final = 8

ExtraKeys = Mapping[type[BaseModel], tuple[str, ...]]

M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], source: Source, extra_keys: ExtraKeys | None = None) -> M:
    """Return ``source.data`` as ``model``; before-validators accept ``extra_keys`` in addition to the fields.

    Raises:
        InputError: with one line per error, each at its place in the file.
    """
    if not isinstance(source.data, dict):
        shown = type(source.data).__name__
        raise InputError(f"{source.place(())}: a mapping (key: value) is expected here, not a {shown}")
    try:
        return model.model_validate(source.data)
    except ValidationError as error:
        raise InputError(_describe(error.errors(include_url=False), model, source, extra_keys or {})) from None


def known_keys(model: type[BaseModel], extra_keys: ExtraKeys | None = None) -> list[str]:
    """Every spelling that a mapping of ``model`` accepts, user units included."""
    return [key for name in model.model_fields for key in user_keys(name)] + list((extra_keys or {}).get(model, ()))


def nearest(word: str, known: Iterable[str], noun: str = "key", plural: str = "keys") -> str:
    """Advice for a misspelt ``word``.

    It lists the known words that begin with it, else the nearest one, else one that it begins with, else all of
    ``known``.
    """
    known = list(known)
    if begun := [one for one in known if word and one.startswith(f"{word}-")]:
        return f"{plural} that begin so: {', '.join(begun)}"
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close := close or sorted((one for one in known if word.startswith(f"{one}-")), key=len):
        return f"nearest known {noun}: '{close[-1]}'"
    stems = [key for key in known if si_key(key) is None]
    return f"known {plural}: {', '.join(stems) if stems else 'none'}"


def advice_for_key(key: str, model: type[BaseModel], extra_keys: ExtraKeys) -> str:
    """Advice on replacing the unknown ``key`` in a mapping of ``model``."""
    for name in model.model_fields:
        spellings = user_keys(name)
        stem = next((name.removesuffix(suffix) for suffix in SI_SUFFIXES if name.endswith(suffix)), None)
        if len(spellings) > 1 and stem and (key == stem or key.startswith(stem + "_")):
            return f"unknown unit; accepted: {', '.join(spellings)}"
    return nearest(key, known_keys(model, extra_keys))


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Pydantic models that a field annotation mentions, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def models_at(model: type[BaseModel], path: Iterable[str | int]) -> list[type[BaseModel]]:
    """Models that may appear at ``path`` below ``model`` (SI or user spelling, list indices, union branches)."""
    here = [model]
    for part in path:
        here = _step(here, part)
    return here


def _si_name(key: Any) -> str | None:
    """SI spelling of a key in a user unit; None for other keys."""
    hit = si_key(key) if isinstance(key, str) else None
    return hit[0] if hit else None


def _fields(models: list[type[BaseModel]], part: str | int) -> list[FieldInfo]:
    if not isinstance(part, str):
        return []
    names = {part, _si_name(part)}
    return [field for model in models for name, field in model.model_fields.items() if name in names]


def _step(models: list[type[BaseModel]], part: str | int) -> list[type[BaseModel]]:
    """Models one step down: in a field, or in the union branch of that name; a list index changes nothing."""
    if fields := _fields(models, part):
        return [model for field in fields for model in models_in(field.annotation)]
    return [model for model in models if model.__name__ == part] or models


def _describe(errors: list[ErrorDetails], model: type[BaseModel], source: Source, extra_keys: ExtraKeys) -> str:
    located = [(_user_path(error["loc"], source.data, model), error) for error in errors]
    lines: dict[tuple[str, KeyPath, str], str] = {}  # report an error in building_defaults once, not per building
    located.sort(key=lambda item: item[1]["type"] != "extra_forbidden")  # a misspelling explains the rest
    for path, error in located:
        if _has_better(path, error, located):
            continue
        place, key, text = _message(path, error, model, source, extra_keys)
        lines.setdefault((place, path[-1:], text), f"{place}: {key}{text}")
    return _joined(list(lines.values()), source.label)


def _joined(lines: list[str], label: str) -> str:
    if len(lines) == 1:
        return lines[0]
    shown = lines[:MAX_ERRORS_SHOWN]
    if len(lines) > MAX_ERRORS_SHOWN:
        shown.append(f"... and {len(lines) - MAX_ERRORS_SHOWN} more")
    return f"{label}: {len(lines)} errors\n" + "\n".join(f"  {line}" for line in shown)


def _has_better(path: KeyPath, error: ErrorDetails, located: list[tuple[KeyPath, ErrorDetails]]) -> bool:
    """Whether another error says more about the same value: of another union branch, or of a missing part of it."""
    below = [(at, other) for at, other in located if other is not error and at[: len(path)] == path]
    if error["type"] == "too_short":
        return any(len(at) > len(path) for at, _ in below)
    return error["type"].endswith("_type") and any(not other["type"].endswith("_type") for _, other in below)


def _user_path(loc: tuple[str | int, ...], data: Any, model: type[BaseModel]) -> KeyPath:
    """``loc`` in the user's own keys: without union branches, and cut after a field that the user omitted."""
    path: list[str | int] = []
    here, models = data, [model]
    for part in loc:
        key: str | int | None = None
        if isinstance(here, dict):
            key = part if part in here else next((k for k in here if _si_name(k) == part), None)
        elif isinstance(here, list | tuple) and isinstance(part, int) and part < len(here):
            key = part
        if key is None and _fields(models, part):
            return (*path, part)
        models = _step(models, part)
        if key is not None:
            path.append(key)
            here = here[key]
    return tuple(path)


def _message(
    path: KeyPath, error: ErrorDetails, model: type[BaseModel], source: Source, extra_keys: ExtraKeys
) -> tuple[str, str, str]:
    """(place, key, error text with a way out)."""
    place, key = source.place(path), source.key(path)
    if error["type"] == "missing":
        spellings = user_keys(str(error["loc"][-1]))
        also = f" (or {', '.join(spellings[1:])})" if len(spellings) > 1 else ""
        return place, key, f"missing{also}"
    if error["type"] == "extra_forbidden":
        owners = models_at(model, error["loc"][:-1])
        advice = advice_for_key(str(error["loc"][-1]), owners[0], extra_keys) if owners else "remove it"
        return place, key, f"unknown key; {advice}"
    text = error["msg"].removeprefix("Value error, ")
    value = _value_at(path, source.data)
    if error["type"] != "value_error" and error["loc"][-1:] != ("[key]",) and isinstance(value, str | int | float):
        text += f", got {value!r:.80}"
    below = {
        mark
        for at, mark in source.marks.items()
        if at[: len(path)] == path and mark.startswith("--set") and mark != place
    }
    return place, key, text + (f" (changed by {', '.join(sorted(below))})" if below else "")


def _value_at(path: KeyPath, data: Any) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data
