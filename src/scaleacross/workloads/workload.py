"""The base of every model family: what a job's ``workload`` is, whichever family it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scaleacross.errors import InputError
from scaleacross.spec.base import Name, Spec
from scaleacross.workloads.layer_profile import ModelProfile

if TYPE_CHECKING:  # a decoder is a workload itself
    from scaleacross.workloads.decoder import Decoder

MAX_LAYERS = 10_000
"""Far beyond any model; what lies above is a misprint, and tables of layers would not fit."""


class Workload(Spec):
    """Base of every model family. A family file subclasses it with a literal ``family`` and implements ``profile``."""

    name: Name
    family: str

    def decoder(self) -> Decoder:
        """The model as layer kinds, from which targets are written.

        Raises:
            InputError: the family says its costs only (``profile``).
        """
        raise InputError(f"workload '{self.name}' of family '{self.family}' does not say its layer kinds")

    def remarks(self) -> tuple[tuple[str, str], ...]:
        """(what, sentence) about the published model that the plan leaves out."""
        return ()

    def profile(self) -> ModelProfile:
        """The model as layers. Every family implements it."""
        raise NotImplementedError(f"{type(self).__name__} has no profile()")
