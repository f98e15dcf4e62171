"""Accelerators by the names that drivers, schedulers and clouds print: ``NVIDIA H100 80GB HBM3``, ``HL-225``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from scaleacross.catalogue.load import load_accelerator

_OTHER_PARTS: Final = frozenset(("pcie", "nvl", "mig", "shared", "3e"))
"""Words in names of accelerators that are not standard types: cards, parts of an accelerator, another memory."""
_MEMORY: Final = re.compile(r"(\d+)gb?")
_SAME_MEMORY: Final = 0.1
"""Relative difference up to which a stated memory is that of an entry: GB, GiB, and what the driver keeps."""


def words_of(text: str) -> list[str]:
    """Return the words of a name, runs of letters and digits in lower case."""
    return re.findall(r"[a-z0-9]+", text.lower())


def standard_type(text: str, standard: Mapping[str, Any], *, only_known_words: bool = False) -> str | None:
    """Return the standard type that a name mentions, the most precise one; None if it mentions none or several.

    A name is of a type if it has all words of the type, or all words of one of its other ``names``. Words for boards,
    slices and shares (``…-MIG-1g.10gb``, ``…-SHARED``), or a memory of another size, make it no standard type.

    Args:
        standard: the standard building's file.
        only_known_words: whether all other words must be ``product_words`` of the file, such as ``nvidia`` and ``hbm3``.
    """
    words, named = set(words_of(text)), dict[str, set[str]]()
    for kind, own in standard["accelerators"].items():
        for name in (kind, *own.get("names", ())):
            if (parts := set(words_of(name))) <= words and len(parts) > len(named.get(kind, ())):
                named[kind] = parts
    kinds = [kind for kind, parts in named.items() if not any(parts < other for other in named.values())]
    if len(kinds) != 1:
        return None
    others = words - named[kinds[0]]
    sizes = {word for word in others if _MEMORY.fullmatch(word)}
    if _OTHER_PARTS & others or not all(_has(standard["accelerators"][kinds[0]]["entry"], size) for size in sizes):
        return None
    return kinds[0] if not only_known_words or others - sizes <= set(standard["product_words"]) else None


def _has(entry: str, size: str) -> bool:
    """Return whether a catalogue entry has the memory that a word such as ``80gb`` states."""
    stated, memory = int(size.rstrip("gb")), load_accelerator(entry).memory_bytes
    return any(abs(memory / unit - stated) <= _SAME_MEMORY * stated for unit in (1e9, 2**30))
