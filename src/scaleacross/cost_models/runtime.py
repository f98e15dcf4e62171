"""What a job's framework decides about kernels: expert permutation, sorting and host time, and gradients' results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.conversions import moved_bytes
from scaleacross.cost_models.kernels import RESULT_BYTES
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.conversion import MovedBytes, Recipe
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import CONTEXT_EXCHANGES, ContextExchange
from scaleacross.workloads.layer_profile import LayerProfile

HOST_BACKWARD_RATIO: Final = 2.0
"""Kernels that the host launches backward over forward: two gradients per product and per element-wise operation."""
HOST_SHARES: Final[Mapping[str, float]] = {"none": 1.0, "partial": 0.5, "full": 0.0}
"""Share of the host's time to launch a layer with experts that remains with CUDA graphs, by
``ExpertRuntime.graphs``. ``partial`` graphs hold attention, router and dispatch preprocessing, about half of the
kernels (assumed)."""
ROUTING_OPERATORS: Final = 10
"""Operators that the host launches in the forward pass of a layer with routed experts, besides its products and what
comes with each of these (a norm, attention, an activation, an addition). They are softmax, top-k, counts per expert,
permutation, dispatch, sorting and their counterparts on the way back (Megatron-Core's MoELayer; the number is
assumed)."""
HOST_OPERATORS: Final = 20
"""Operators of the layer that ``host_moe_pass_s`` is stated for: five products (grouped-query attention, router,
experts), as many others, and ROUTING_OPERATORS. Latent attention and shared experts have more."""
LOCAL_EXPERT_OPERATORS: Final = 0.12
"""Share of an operator's host time for each product of every further expert of a rank. Transformer Engine's grouped
linear launches the products expert by expert, from C++ (pytorch/module/grouped_linear.py; the share is assumed).
Narrow products take as much again for the conversion of each expert's rows."""
SORTING_BYTES: Final = 8.0
"""HBM bytes per feature of a token copy, forward. With several experts on a rank, copies are sorted by expert when
they arrive and back before they return, read and written in 16 bit each (Megatron-Core, sort_chunks_by_idxs of
MoEAlltoAllTokenDispatcher). Dispatchers that send a token once write copies in the order of experts to begin with."""
UNFUSED_GATHER_BYTES: Final = 2.0
"""HBM bytes per feature that an unfused permutation moves beyond a fused one, in either pass, for every copy of a
token but the first. A gather by index reads a row of the input for every copy, where the fused kernel reads each
token once (Megatron-Core, ``permute`` of moe_utils.py: index_select)."""
UNFUSED_SCATTER_BYTES: Final = 4.0
"""HBM bytes per feature and copy that adding the copies up moves beyond a fused kernel. Each copy is added to the
sum in memory, which is read and written in 16 bit (``unpermute``: scatter_add). Its backward pass is a gather by
index, and the backward pass of a gather is such a sum."""
UNFUSED_OPERATORS: Final = 12
"""Operators that the host launches additionally for an unfused permutation, forward: 6 to sort the map of routes and
to take the weights by it, 2 to clear and cast the sum, 4 to cut and join the chunks by expert (counted in
moe_utils.py)."""


@dataclass(frozen=True)
class Runtime:
    """What a job's framework decides about kernels.

    Attributes:
        gradient_result_bytes: HBM bytes per parameter that the product of a weight gradient moves for its result.
        host_share: share of ``host_moe_pass_s`` that remains with CUDA graphs.
        sorts_copies: whether copies that arrive are sorted where a rank has several experts.
        moved: bytes moved to convert the operands of narrow products.
        recipe: recipe of narrow products, which names their kernels.
        load_spread: of experts (``stragglers.busiest_load``).
        fused_permutation: one kernel orders the copies of tokens by expert, and one adds them up.
        exchanges: exchanges over cp that candidates without one may choose.
    """

    gradient_result_bytes: float = RESULT_BYTES
    host_share: float = 1.0
    sorts_copies: bool = True
    moved: MovedBytes = field(default_factory=MovedBytes)
    recipe: Recipe | None = None
    exchanges: tuple[ContextExchange, ...] = CONTEXT_EXCHANGES
    load_spread: float = 0.0
    fused_permutation: bool = True


def runtime_of(job: Job) -> Runtime:
    """The runtime that a job states.

    Fused accumulation reads and writes the accumulated gradient (Megatron-LM's gradient_accumulation_fusion).
    """
    optimizer = job.optimizer
    moved = 2.0 * optimizer.gradient_bytes if optimizer.fused_accumulation else RESULT_BYTES
    experts, graphs = job.experts, HOST_SHARES[job.experts.graphs]
    copies = experts.dispatch == "copies"
    return Runtime(
        gradient_result_bytes=moved,
        host_share=graphs,
        sorts_copies=copies,
        moved=moved_bytes(job),
        recipe=job.recipe,
        exchanges=job.context_exchange,
        load_spread=experts.load_spread,
        fused_permutation=experts.fused_permutation,
    )


def host_s(layer: LayerProfile, accelerator: Accelerator, runtime: Runtime, launches: Floats) -> Floats:
    """Host time, s, to launch the forward pass of a layer with routed experts; 0 for others, whose host runs ahead.

    Args:
        launches: kernels for further experts of the rank, (n,).
    """
    routing = ROUTING_OPERATORS + (0 if runtime.fused_permutation else UNFUSED_OPERATORS)
    operators = 2 * len(layer.gemms) + routing + LOCAL_EXPERT_OPERATORS * launches
    share = runtime.host_share * bool(layer.routed_tokens)
    return np.asarray(share * accelerator.host_moe_pass_s * operators / HOST_OPERATORS, dtype=np.float64)


def sorting_bytes(layer: LayerProfile, runtime: Runtime) -> float:
    """HBM bytes per token, forward, for sorting copies by expert where a rank has several experts."""
    return SORTING_BYTES * layer.hidden_size * layer.routed_tokens * runtime.sorts_copies


def permutation_bytes(layer: LayerProfile, runtime: Runtime) -> float:
    """HBM bytes per token and pass that the permutation moves beyond a fused one.

    A dispatcher that sends a token once per accelerator gathers fewer copies there, so its gathers are left out.
    """
    copies = layer.routed_tokens
    if runtime.fused_permutation or not copies:
        return 0.0
    gathered = UNFUSED_GATHER_BYTES * (copies - 1) * runtime.sorts_copies
    return layer.hidden_size * (gathered + UNFUSED_SCATTER_BYTES * copies)
