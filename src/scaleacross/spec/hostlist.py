"""Host lists as cluster tools write them: ``node[001-064,70],login1`` (SLURM's grammar, one pair of brackets or several)."""

from __future__ import annotations

import re
from itertools import product
from typing import Final

MAX_HOSTS: Final = 131_072
_PART: Final = re.compile(r"(?:[^,\[\]\s]|\[[0-9,\s-]*\])+")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the host names that ``text`` lists, in its order, with leading zeros kept.

    >>> expand_hosts("n[08-10],gpu1")
    ('n08', 'n09', 'n10', 'gpu1')

    Raises:
        ValueError: no host list, or one of more than ``MAX_HOSTS``.
    """
    parts = _PART.findall(text)
    if not parts or re.sub(r"[,\s]", "", "".join(parts)) != re.sub(r"[,\s]", "", text):
        raise ValueError(f"{text[:60]!r} is no host list: write names, or ranges such as node[001-064]")
    names: list[str] = []
    for part in parts:
        pieces = [
            _numbers(piece[1:-1]) if piece.startswith("[") else [piece]
            for piece in re.findall(r"\[[^\]]*\]|[^\[]+", part)
        ]
        size = 1
        for piece in pieces:
            size *= len(piece)
        if len(names) + size > MAX_HOSTS:
            raise ValueError(f"{text[:60]!r} names more than {MAX_HOSTS:,} hosts")
        names += ["".join(choice) for choice in product(*pieces)]
    return tuple(names)


def _numbers(inside: str) -> list[str]:
    out: list[str] = []
    for part in inside.split(","):
        hit = _RANGE.fullmatch(part.strip())
        if hit is None:
            raise ValueError(f"[{inside[:40]}] is no range of numbers: write e.g. [001-064,70]")
        first, last = int(hit[1]), int(hit[2] or hit[1])
        if last < first or len(out) + last - first >= MAX_HOSTS:
            raise ValueError(f"[{inside[:40]}] is empty, or more than {MAX_HOSTS:,} numbers")
        out += [f"{number:0{len(hit[1])}d}" for number in range(first, last + 1)]
    return out
