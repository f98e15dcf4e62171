"""Read settings that somebody runs into a plan's terms: the inverse of ``emitters``, under the same laws (``targets``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from scaleacross.readers import megatron, torchtitan
from scaleacross.readers.settings import Reading

READERS: Final[Mapping[str, Callable[[str, str, int, int], Reading]]] = {
    "megatron": megatron.read,
    "torchtitan": torchtitan.read,
}
"""Framework -> reader of (text, file name, processes, layers of the model)."""
