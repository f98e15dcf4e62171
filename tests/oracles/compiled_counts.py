"""What PyTorch holds of a Llama under autocast, and what torch.compile keeps of a layer and of the loss; counted on a CPU.

    python tests/oracles/compiled_counts.py > tests/golden/compiled_counts.json

``eager``: MemTracker's bytes of the steps of benchmarks/one_gpu_step.py, with fake tensors of full size. ``compiled``: tensors
that the forward graph hands to the backward graph, as AOTAutograd divides them for Inductor (min-cut). Attention and the norm
stand in for a GPU's kernels: they keep what those keep. On a CPU autocast leaves norms in the type of their input; a GPU's runs
them in fp32, so that is done by hand.
"""

from __future__ import annotations

import functools
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import one_gpu_step

CPU = torch.device("cpu")
EAGER = (0, 4, 3, 6)  # indices of one_gpu_step.CASES


class FusedNorm(torch.autograd.Function):
    """RMSNorm by a kernel that keeps its input and a number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x[..., :1].float())
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _statistic = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def plain_norm(norm: nn.RMSNorm, x: Tensor, *, autocast: bool) -> Tensor:
    """RMSNorm as operators that Inductor fuses."""
    x = x.float() if autocast else x
    with torch.autocast("cpu", enabled=False):
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
        return (scaled * norm.weight.float()).to(x.dtype)


def attention(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
    kernel = torch.ops.aten._scaled_dot_product_cudnn_attention
    return kernel(query, key, value, None, True, 0.0, True)[0]


class Memory(MemTracker):
    """Bytes by category; statistics by module refuse a second micro-batch."""

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        self._track_module_params_and_buffers(module, install_grad_hooks=True)
        if self._mod_tracker.is_bw and self._ac_mod is None:
            self._ac_mod, self._in_ac = weakref.ref(module), True

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self._ac_mod is not None and self._ac_mod() is module:
            self._ac_mod, self._in_ac = None, False

    def _pre_bw_hook(self, module: nn.Module, args: Any) -> None:
        pass

    _post_bw_hook = _pre_bw_hook


def eager(index: int) -> dict[str, Any]:
    """Two micro-batches of a case, operator by operator, after a step that left states of the optimizer."""
    case = one_gpu_step.CASES[index]._replace(compiled=False)
    nn.RMSNorm.forward = lambda norm, x: FusedNorm.apply(x.float(), norm.weight)
    with FakeTensorMode(allow_non_fake_inputs=True):
        net = one_gpu_step.Net(case)
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        tokens = torch.zeros(case.micro_batch, case.sequence + 1, dtype=torch.int64)

        def loss() -> Tensor:
            return one_gpu_step.loss_of(net(tokens[:, :-1]), tokens[:, 1:])

        with torch.autocast("cpu", torch.bfloat16):
            loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        memory = Memory()
        memory.track_external(net, optimizer)
        with memory:
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16):
                    last = loss()
                    forward = memory.get_tracker_snapshot()[CPU]
                    last.backward()
            peak = memory.get_tracker_snapshot("peak")[CPU]["Total"]
            optimizer.step()
            stepped = memory.get_tracker_snapshot("peak")[CPU]["Total"]
    kept = next(size for kind, size in forward.items() if getattr(kind, "value", kind) == "Activation")
    return {"case": index, "kept": kept, "peak": peak, "peak_with_optimizer": stepped}


def divided(function: Any, *inputs: Any) -> list[Tensor]:
    """What the forward graph passes to the backward graph: a tensor per storage, without the function's inputs."""
    graphs = []

    def compiler(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    partition = functools.partial(min_cut_rematerialization_partition, compiler="inductor")
    out = aot_function(function, compiler, compiler, partition, select_decomp_table())(*inputs)
    out.sum().backward()
    returned = next(node for node in graphs[0].graph.nodes if node.op == "output").args[0]
    kept = {
        node.meta["val"].untyped_storage()._cdata: node.meta["val"]
        for node in returned[1:]
        if node is not None and node.op != "placeholder" and isinstance(node.meta.get("val"), Tensor)
    }
    return list(kept.values())


def compiled(*, autocast: bool) -> dict[str, Any]:
    """Bytes per token that a compiled layer of Llama 3 8B keeps besides its input, and bytes of its weights' copies."""
    tokens = 3072  # as no side of a weight
    case = one_gpu_step.Case("layer", 1, 4096, 14336, 32, 8, tokens, 1, False)
    nn.RMSNorm.forward = functools.partialmethod(plain_norm, autocast=autocast)
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(torch.float32 if autocast else torch.bfloat16)
        layer, x = one_gpu_step.Layer(case), torch.empty(1, tokens, case.hidden, requires_grad=True)
        torch.set_default_dtype(torch.float32)
        angles = torch.empty(tokens, 64, dtype=torch.complex64)

        def forward(weights: dict[str, Tensor], x: Tensor, angles: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast, cache_enabled=False):
                return torch.func.functional_call(layer, weights, (x, angles))

        kept = divided(forward, dict(layer.named_parameters()), x, angles)
    of_tokens = [one for one in kept if tokens in one.shape and not one.is_complex()]
    copies = sum(one.nbytes for one in kept if one.dim() == 2 and tokens not in one.shape)
    return {
        "autocast": autocast,
        "per_token": sum(one.nbytes for one in of_tokens) / tokens,
        "copies": copies if autocast else 0,
    }


def compiled_loss() -> dict[str, Any]:
    """Bytes per entry of the vocabulary for a compiled loss.

    They are those that it keeps besides the logits, of the logits, and of the gradient that it returns.
    """
    entries = (1, 3072, one_gpu_step.VOCABULARY)
    with FakeTensorMode(allow_non_fake_inputs=True):
        logits = torch.empty(entries, dtype=torch.bfloat16, requires_grad=True)
        kept = divided(one_gpu_step.loss_of, logits, torch.zeros(entries[:2], dtype=torch.int64))
        size = sum(one.nbytes for one in kept if one.numel() >= logits.numel())
        return {"kept": size / logits.numel(), "logits": logits.element_size(), "gradient": logits.grad.element_size()}


def main() -> None:
    torch.autograd.set_multithreading_enabled(False)
    for name in ("kaiming_uniform_", "normal_", "ones_"):  # values do not matter
        setattr(nn.init, name, lambda weight, *_, **__: weight)
    nn.functional.scaled_dot_product_attention = attention
    counted = {
        "torch": torch.__version__.partition("+")[0],
        "eager": [eager(index) for index in EAGER],
        "layer": [compiled(autocast=autocast) for autocast in (True, False)],
        "loss": compiled_loss(),
    }
    print("{\n" + ",\n".join(f' "{name}": {json.dumps(value)}' for name, value in counted.items()) + "\n}")


if __name__ == "__main__":
    main()
