"""Readers of the two tuner files, which check emitted files against the grammars (``emitters.tuner_grammar``)."""

from __future__ import annotations

import re
from typing import Final

from scaleacross.emitters.tuner_grammar import TunerRow
from scaleacross.errors import EmitError

_INTERVAL: Final = re.compile(r"[\[(]\s*(\d*)\s*,\s*(\d*)\s*[\])]")


def read_nccl(text: str) -> list[TunerRow]:
    """Rows of NCCL's example plugin. Raises EmitError naming the line that the grammar refuses."""
    return [_nccl_row(number, line.split(",")) for number, line in _rule_lines(text)]


def read_ncclx(text: str) -> list[TunerRow]:
    """Rows of NCCLX, sizes as whole messages. Raises EmitError naming the line that the grammar refuses."""
    return [_ncclx_row(number, _fields(line)) for number, line in _rule_lines(text)]


def _nccl_row(number: int, fields: list[str]) -> TunerRow:
    if not 8 <= len(fields) <= 10:
        raise EmitError(f"line {number}: {len(fields)} fields, 8 to 10 are needed")
    low, high, channels, nodes, ranks = _ints(number, [*fields[1:3], *fields[5:8]])
    row = TunerRow(fields[0], low, high, fields[3], fields[4], nodes, ranks, channels or -1)
    row.check()
    return row


def _ncclx_row(number: int, fields: list[str]) -> TunerRow:
    if not 7 <= len(fields) <= 8:
        raise EmitError(f"line {number}: {len(fields)} fields, 7 or 8 are needed")
    low, high = _interval(number, fields[1])
    channels, nodes, local = _ints(number, fields[4:7])
    row = TunerRow(
        fields[0], low * nodes * local, high * nodes * local, fields[2], fields[3], nodes, nodes * local, channels
    )
    row.check()
    return row


def _rule_lines(text: str) -> list[tuple[int, str]]:
    stripped = ((number, line.split("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1))
    return [(number, line) for number, line in stripped if line]


def _fields(line: str) -> list[str]:
    """Split at commas outside brackets."""
    depth, fields = 0, [""]
    for character in line:
        depth += (character in "[(") - (character in "])")
        if character == "," and not depth:
            fields.append("")
        else:
            fields[-1] += character
    return [field.strip() for field in fields]


def _interval(number: int, text: str) -> tuple[int, int]:
    """Both ends are included; an open end is one byte further inside."""
    found = _INTERVAL.fullmatch(text)
    if not found or not all(found.groups()):
        raise EmitError(f"line {number}: '{text}' is no closed interval of bytes")
    low, high = int(found[1]) + text.startswith("("), int(found[2]) - text.endswith(")")
    return low, high


def _ints(number: int, texts: list[str]) -> list[int]:
    try:
        return [int(text) for text in texts]
    except ValueError:
        raise EmitError(f"line {number}: {texts} are not all whole numbers") from None
