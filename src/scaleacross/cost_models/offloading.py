"""Offload to host memory: bytes off the accelerator, bytes of the host, and seconds of copies over the host link.

activations  A share φ of every chunk's layers keeps its activations on the host from the forward to the backward pass.
             They are copied out while the chunk runs forward and back while it runs backward, spread over the pass. A
             pass lasts as long as the longer of computation and copies, φ · kept bytes / link. The accelerator holds
             1 − φ of its layers' kept activations, and two layers in transit. Embedding and head stay on it.
             (TransformerEngine pytorch/cpu_offload_v1.py.)
states       The host holds a share of the optimizer states and updates it while the accelerator updates the rest. For
             every parameter the fp32 gradient comes over the link, the host updates it, and its value goes back; the
             longest of the three sets the pace. (Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py,
             overlap_cpu_optimizer_d2h_h2d.)

Accelerators state their share of the host (``Accelerator.host``); ``problem_of`` refuses jobs that offload without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from scaleacross.cost_models.candidates import Candidates, Floats
from scaleacross.cost_models.recomputation import kept_by_block
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.offloading import MILLIONTHS
from scaleacross.workloads.layer_profile import ModelProfile

if TYPE_CHECKING:  # paces what is made there
    from scaleacross.cost_models.layer_seconds import StackedTimes

GRADIENT_BYTES: Final = 4.0
"""Bytes of a gradient on the host, which has the type of its fp32 parameter."""
ON_THE_WAY: Final = 2
"""Layers whose activations are copied while others compute."""


def activation_share(candidates: Candidates) -> Floats:
    """Share of the layers whose activations wait on the host, (n,)."""
    return candidates.activation_offload / MILLIONTHS


def state_share(candidates: Candidates) -> Floats:
    """Share of the optimizer states that the host holds, (n,)."""
    return candidates.optimizer_offload / MILLIONTHS


def most_activation_share(job: Job, candidates: Candidates) -> Floats:
    """``activation_share``, or the largest share that the job allows where it is still to be chosen, (n,)."""
    return np.where(candidates.policy_open, max(job.activation_offload), activation_share(candidates))


def most_state_share(job: Job, candidates: Candidates) -> Floats:
    """``state_share``, or the largest share that the job allows where it is still to be chosen, (n,)."""
    return np.where(candidates.policy_open, max(job.optimizer_offload), state_share(candidates))


def paced(
    times: StackedTimes,
    recomputed_s: Floats,
    profile: ModelProfile,
    job: Job,
    candidates: Candidates,
    accelerator: Accelerator,
) -> StackedTimes:
    """Layer times with passes that last at least as long as their copies to and from the host.

    Args:
        recomputed_s: part of the backward passes, (types + 2, n).
    """
    if accelerator.host is None or not candidates.activation_offload.any():
        return times
    tokens = candidates.micro_batch * (job.sequence_length / candidates.cp)
    kept = np.concatenate([kept_by_block(profile, candidates), np.zeros((2, len(candidates)))])
    copied_s = kept * tokens * activation_share(candidates) / accelerator.host.link_bandwidth_bytes_per_s
    return replace(
        times,
        forward_s=np.maximum(times.forward_s, copied_s),
        backward_s=np.maximum(times.backward_s, copied_s - recomputed_s),
    )


def host_update_s(job: Job, accelerator: Accelerator, candidates: Candidates, updated: Floats) -> Floats:
    """Seconds in which the host updates its share of ``updated`` parameters, (n,)."""
    if accelerator.host is None or not candidates.optimizer_offload.any():
        return np.zeros(len(candidates))
    host, optimizer = accelerator.host, job.optimizer
    moved = 2 * optimizer.state_bytes + GRADIENT_BYTES + optimizer.parameter_bytes
    per_parameter = max(
        GRADIENT_BYTES / host.link_bandwidth_bytes_per_s,
        moved / host.memory_bandwidth_bytes_per_s,
        optimizer.parameter_bytes / host.link_bandwidth_bytes_per_s,
    )
    return np.asarray(updated * state_share(candidates) * per_parameter)


def on_the_way_bytes(profile: ModelProfile, candidates: Candidates, tokens: Floats) -> Floats:
    """Accelerator memory for activations in transit, those of the largest layer, (n,)."""
    if not candidates.activation_offload.any():
        return np.zeros(len(candidates))
    largest = kept_by_block(profile, candidates).max(axis=0)
    return ON_THE_WAY * largest * tokens * (candidates.activation_offload > 0)


def host_room_bytes(accelerators: Sequence[Accelerator]) -> float:
    """Host memory per accelerator that a job may use, the least of some types; infinite where none states a host."""
    return min((one.host.memory_bytes for one in accelerators if one.host is not None), default=float("inf"))
