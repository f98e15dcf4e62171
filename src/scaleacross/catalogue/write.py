"""Write a catalogue entry as YAML text in the package's own layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from scaleacross.catalogue.yaml_source import parse_yaml
from scaleacross.errors import InputError

_ONE_LINE_EACH: Final = ("gemm_models", "provenance")
"""Mappings whose items get one line each."""


def entry_text(data: Mapping[str, Any], comment: str = "") -> str:
    """Return ``data`` as YAML with ``comment`` above it; keys keep their order.

    Each figure, kernel model, origin and innermost list or mapping takes one line.

    Raises:
        InputError: a value is no plain data.
    """
    lines = [f"# {comment}"] if comment else []
    for key, value in data.items():
        lines += _parts(key, value) if key in _ONE_LINE_EACH and value else [_entry(key, value)]
    text = "\n".join(lines) + "\n"
    # fails now rather than when a user reads the file
    parse_yaml(text, "the written entry")
    return text


def _parts(key: str, value: Mapping[str, Any]) -> Iterator[str]:
    yield f"{key}:"
    yield from (f"  {_line(part, each)}" for part, each in value.items())


def _entry(key: str, value: Any) -> str:
    return _dumped({key: value}, None).rstrip() if isinstance(value, dict | list) else _line(key, value)


def _line(key: str, value: Any) -> str:
    return _dumped({key: value}, True).strip()[1:-1]


def _dumped(data: dict[str, Any], flow: bool | None) -> str:
    """``data`` as YAML text. ``flow`` True: one line in braces; None: only the innermost containers in braces."""
    import yaml

    try:
        return yaml.safe_dump(data, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=float("inf"))
    except yaml.YAMLError as error:
        raise InputError(f"key '{next(iter(data))}' cannot be written: {error}") from None
