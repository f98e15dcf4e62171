"""Modules of a layer that recompute by name: their parts, the memory they free, and what they repeat or resend.

As Megatron-Core runs them with Transformer Engine (megatron/core/transformer, d98e8a64: transformer_layer.py, mlp.py,
multi_latent_attention.py, moe/moe_layer.py):

* core_attn        attention alone: its statistics per row are not kept; cp exchanges keys and values once more
* layernorm        the norm before latent attention and the one before experts; others are inside the product that follows them,
                   which keeps their result
* mla_up_proj      up-projections and rotary embedding of latent attention; tp gathers the latents once more
* mlp              a dense feed-forward with its norm; one gather and scatter over tp
* moe_act          the activation of routed experts
* shared_experts   shared experts; one gather and scatter over tp
* moe              router, experts and shared experts; dispatch and combine, and what both gather and scatter over tp
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scaleacross.spec.recomputation import MODULES, Module
from scaleacross.workloads.layer_profile import ModuleShare

if TYPE_CHECKING:  # that module imports this one
    from scaleacross.workloads.transformer_parts import Part

NORM_OUTPUT: Final = "norm output"
FEED_FORWARDS: Final[frozenset[Module]] = frozenset({"mlp", "shared_experts"})
"""Modules with a gather before and a scatter after them over tp."""


def recomputed_by(part: Part, module: Module, *names: str) -> Part:
    """Return the part, marked as rerun by ``module``, which frees its held tensors ``names``."""
    return replace(part, modules=(*part.modules, module), frees={**part.frees, module: names})


def whole(parts: Sequence[Part], module: Module) -> tuple[Part, ...]:
    """Mark ``parts`` as rerun by ``module``, which frees all of their held tensors."""
    return tuple(recomputed_by(part, module, *(tensor.name for tensor in part.held)) for part in parts)


def cheap(part: Part, module: Module) -> Part:
    """Mark a part as rerun by ``module``, which frees only what ``selective`` drops of it."""
    return recomputed_by(part, module, *(tensor.name for tensor in part.held if tensor.recomputed))


def module_shares(parts: Sequence[Part], hidden_size: int) -> Mapping[Module, ModuleShare]:
    """Memory freed and work repeated for every module of a layer."""
    found = (module for module in MODULES if any(module in part.modules or module in part.frees for part in parts))
    return {module: _share(module, parts, hidden_size) for module in found}


def _share(module: Module, parts: Sequence[Part], hidden_size: int) -> ModuleShare:
    again = [part for part in parts if module in part.modules]
    freed = [(part, t.num_bytes) for part in parts for t in part.held if t.name in part.frees.get(module, ())]
    gathers = float(any(module == one or one in part.modules for part in again for one in FEED_FORWARDS))
    if module == "mla_up_proj":  # gathers latents alone, and scatters nothing
        gathers = sum(gemm.in_features for part in again for gemm in part.gemms) / hidden_size / 2
    return ModuleShare(
        freed_bytes=sum(size for _, size in freed),
        elementwise_bytes=sum(part.elementwise_bytes for part in again),
        stream_freed_bytes=sum(size for part, size in freed if part.on_stream),
        stream_elementwise_bytes=sum(part.elementwise_bytes for part in again if part.on_stream),
        tp_gathers=gathers,
        attention=module == "core_attn",
        experts=module == "moe",
    )
