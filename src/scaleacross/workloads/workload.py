"""Base class of the model families; a job's ``workload`` is an instance of one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scaleacross.errors import InputError
from scaleacross.spec.base import Name, Spec
from scaleacross.workloads.layer_profile import ModelProfile

if TYPE_CHECKING:  # that module imports this one
    from scaleacross.workloads.decoder import Decoder

MAX_LAYERS = 10_000
"""Far above any model: a larger number is a misprint, and tables of layers would not fit in memory."""


class Workload(Spec):
    """Base of every model family. A family file subclasses it with a literal ``family`` and implements ``profile``."""

    name: Name
    family: str

    def decoder(self) -> Decoder:
        """The model as layer kinds, from which targets write their settings.

        Raises:
            InputError: the family states only its ``profile``.
        """
        raise InputError(f"workload '{self.name}' of family '{self.family}' does not say its layer kinds")

    def remarks(self) -> tuple[tuple[str, str], ...]:
        """(topic, sentence) for each property of the published model that the plan ignores."""
        return ()

    def profile(self) -> ModelProfile:
        """Profile of the model. Every family implements it."""
        raise NotImplementedError(f"{type(self).__name__} has no profile()")
