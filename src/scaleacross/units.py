"""SI inside, the user's units at the edge.

Every physical field of the package ends in an SI suffix (``_s``, ``_bytes``, ``_bytes_per_s``, ``_flop_per_s``, ``_watt``, ...).
A YAML key may end in one of the user's suffixes below instead; the value is converted once, when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# user suffix -> (SI suffix, factor). Longest suffixes are matched first.
USER_UNITS: dict[str, tuple[str, float]] = {
    "_gbit_per_s": ("_bytes_per_s", 1e9 / 8),
    "_tbit_per_s": ("_bytes_per_s", 1e12 / 8),
    "_gbyte_per_s": ("_bytes_per_s", 1e9),
    "_tbyte_per_s": ("_bytes_per_s", 1e12),
    "_tflop_per_s": ("_flop_per_s", 1e12),
    "_pflop_per_s": ("_flop_per_s", 1e15),
    "_kib": ("_bytes", 2.0**10),
    "_mib": ("_bytes", 2.0**20),
    "_gib": ("_bytes", 2.0**30),
    "_tib": ("_bytes", 2.0**40),
    "_gb": ("_bytes", 1e9),
    "_tb": ("_bytes", 1e12),
    "_us": ("_s", 1e-6),
    "_ms": ("_s", 1e-3),
    "_kilowatt": ("_watt", 1e3),
    "_per_gb": ("_per_byte", 1e-9),
    "_per_tb": ("_per_byte", 1e-12),
}
SI_SUFFIXES = ("_bytes_per_s", "_flop_per_s", "_bytes", "_watt", "_per_byte", "_s")
UNCONVERTED_SUFFIXES = ("_per_hour", "_hours", "_per_1000_node_days")
"""Units kept as stated: prices per hour, mean times between failures and failure rates have one spelling only."""


def si_key(key: str) -> tuple[str, float] | None:
    """The SI spelling of ``key`` and the factor to it, or None when the key carries no user unit.

    >>> si_key("one_way_latency_us")
    ('one_way_latency_s', 1e-06)
    """
    for suffix in sorted(USER_UNITS, key=len, reverse=True):
        if key.endswith(suffix) and len(key) > len(suffix):
            si_suffix, factor = USER_UNITS[suffix]
            return key[: -len(suffix)] + si_suffix, factor
    return None


def is_quantity(key: str) -> bool:
    """Whether the value under ``key`` is a physical figure: it carries a unit, or is a fraction or a ratio."""
    return key.endswith((*USER_UNITS, *SI_SUFFIXES, *UNCONVERTED_SUFFIXES, "_fraction", "_ratio"))


def user_keys(key: str) -> list[str]:
    """Spellings of an SI field that a YAML file may use, the SI one first; ``[key]`` for a field without a unit."""
    for suffix in SI_SUFFIXES:
        if key.endswith(suffix):
            stem = key[: -len(suffix)]
            return [key, *(stem + user for user, (si, _) in USER_UNITS.items() if si == suffix)]
    return [key]


def to_si(mapping: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """A copy of ``mapping`` whose user-unit keys are renamed to the SI fields they stand for, values converted.

    Only keys whose SI spelling is one of ``fields`` are touched; anything else is left for validation to refuse.
    Non-numeric values are passed on unconverted under the SI name (validation then says what is wrong with them).

    Raises:
        ValueError: the same quantity is stated twice in different units.
    """
    known = set(fields)
    out: dict[str, Any] = {}
    for key, value in mapping.items():
        name, factor = key, 1.0
        if key not in known and isinstance(key, str) and (hit := si_key(key)) and hit[0] in known:
            name, factor = hit
        if name in out:
            raise ValueError(f"'{name}' is stated twice (as '{key}' too): keep one")
        out[name] = _scaled(value, factor)
    return out


def _scaled(value: Any, factor: float) -> Any:
    if factor == 1.0 or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value * factor
    if isinstance(value, dict):
        return {k: _scaled(v, factor) for k, v in value.items()}
    if isinstance(value, str):  # a quoted number: validation would read it, so it must be converted like any other
        try:
            return float(value) * factor
        except ValueError:
            return value
    return value


SIZE_UNITS = {"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12} | {
    f"{prefix}IB": 1024.0**power for power, prefix in enumerate("KMGT", start=1)
}
"""Units of a size in capitals, and their bytes: decimal prefixes (KB, MB, …) and binary ones (KIB, MIB, …)."""


def parse_bytes(text: str) -> float:
    """Bytes of a size as people write it: ``512MiB``, ``4 GB``, ``65536``.

    Raises:
        ValueError: not a number with one of these units.
    """
    stripped = text.strip()
    number = stripped.rstrip("BKMGTIbkmgti ")
    unit = stripped[len(number) :].strip().upper()
    try:
        return float(number) * SIZE_UNITS[unit]
    except (ValueError, KeyError):
        raise ValueError(
            f"'{text}' is no size: write a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
        ) from None


TOKEN_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
"""Suffixes of token counts: powers of two, as batches are divided by powers of two (4M tokens = 512 sequences of 8K)."""


def parse_tokens(text: str) -> int:
    """A count of tokens as people write it: ``8192``, ``8K``, ``4M``.

    Raises:
        ValueError: no whole number above 0.
    """
    hit = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMG]?)", text.strip().replace(",", "").replace("_", "").upper()
    )
    value = float(hit[1]) * TOKEN_UNITS[hit[2]] if hit else 0.0
    if not value.is_integer() or value < 1:
        raise ValueError(
            f"{text[:40]!r}: write a whole number of tokens, e.g. 8192, 8K or 4M (K = 1,024, M = 1,048,576)"
        )
    return int(value)


def human_bytes(num_bytes: float) -> str:
    """``num_bytes`` with a binary prefix: 91.2 GiB."""
    for prefix in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(num_bytes) < 1024 or prefix == "TiB":
            return f"{num_bytes:.0f} B" if prefix == "B" else f"{num_bytes:.1f} {prefix}"
        num_bytes /= 1024
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """``seconds`` in the unit that a reader expects: 5.86 s, 212 ms, 20 µs."""
    if abs(seconds) >= 1 or seconds == 0:
        return f"{seconds:.2f} s"
    if abs(seconds) >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"
