"""Width of the search: lists that the job omits have their defaults (``space: quick``) or more values (``full``).

The module also writes and recognises notes about what a quick search has not tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from scaleacross.spec.job import Job
from scaleacross.spec.offloading import OFFLOADS
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES, EXPERT_FOLDINGS, PASS_GATHERS, SHARD_LEVELS
from scaleacross.spec.plan import Within
from scaleacross.spec.recomputation import EVERY, PLAIN
from scaleacross.spec.topology import Topology
from scaleacross.workloads.layer_profile import ModelProfile

QUARTERS: Final = (0.25, 0.5, 0.75)
"""Shares of the layers whose activations the full space may offload, rounded to whole layers."""
SOME_LAYERS: Final = ("full:1/3", "full:1/2", "full:2/3")
"""Partial recompute policies of the full space, if all layers are equal."""
STATES: Final = (0.0, 0.5, 1.0)
"""Shares of the optimizer states that the full space may offload."""


def full_space(job: Job, profile: ModelProfile, topology: Topology) -> dict[str, tuple[Any, ...]]:
    """Field of a job -> all values that the full space allows.

    Offloads are left out if a building states no host or the target has none.
    """
    partial = job.fine_tuning is not None and job.fine_tuning.partial
    out: dict[str, tuple[Any, ...]] = {
        "recompute": (
            *PLAIN,
            *((EVERY,) if profile.modules else ()),
            *(SOME_LAYERS if len(profile.blocks) == 1 else ()),
        ),
        "context_exchange": CONTEXT_EXCHANGES,
        "expert_folding": EXPERT_FOLDINGS if profile.num_experts else ("none",),
        "shard": tuple(level for level in SHARD_LEVELS if not (partial and level in PASS_GATHERS)),
    }
    if job.target != "torchtitan" and all(building.host_share for building in topology.buildings):
        layers = profile.num_layers
        some = dict.fromkeys(min(layers - 1, round(share * layers)) / layers for share in QUARTERS)
        out |= {"activation_offload": tuple(dict.fromkeys((0.0, *(round(share, 6) for share in some))))}
        out |= {"optimizer_offload": STATES}
    return out


def widened(job: Job, profile: ModelProfile, topology: Topology) -> Job:
    """Return the job; if it asks for the full space, every list that it omits gets all values."""
    if job.space == "quick":
        return job
    wider = full_space(job, profile, topology)
    return job.model_copy(update={name: wider[name] for name in wider.keys() - job.model_fields_set})


QUICK: Final = "not tried, as the space is quick: "
"""Prefix of the note of ``left_out``."""
EQUAL_STAGES: Final = "the bound is one on equal stages"
"""Prefix of the note of a search that has not tried all unequal stages."""
EQUAL_CHUNKS: Final = "the bound is one on layouts whose chunks are as equal as possible"
"""Prefix of the note of a search with several chunks per rank."""
NARROW: Final[dict[str, Within]] = {
    QUICK: "--space quick",
    EQUAL_STAGES: "equal stages",
    EQUAL_CHUNKS: "equal chunks",
}
"""Prefix of a note -> part of the space to which the proof is limited."""


def within(notes: Sequence[str]) -> tuple[Within, ...]:
    """Parts of the space to which a search's status and bound are limited, read from its notes."""
    found = [what for begins, what in NARROW.items() if any(note.startswith(begins) for note in notes)]
    # equal stages include equal chunks
    return tuple(what for what in found if what != "equal chunks" or "equal stages" not in found)


def left_out(job: Job, profile: ModelProfile, topology: Topology) -> str | None:
    """Sentence on what a quick search has not tried; None if it tried everything."""
    if job.space == "full":
        return None
    wider, missing = full_space(job, profile, topology), list[str]()
    for name, values in wider.items():
        default = Job.model_fields[name].default
        others = [value for value in values if value not in default]
        if others and tuple(getattr(job, name)) == default:
            missing.append(name if name in OFFLOADS else f"{name} {', '.join(map(str, others))}")
    return f"{QUICK}{'; '.join(missing)}; --space full tries them" if missing else None
