# ruff: noqa: E402 - torchtitan reads its device when it is imported
"""Counts one rank's training step with torchtitan's own models and PyTorch's own parallelism: fake tensors, no GPU.

    python torch_counts.py < CONFIGURATIONS.jsonl > COUNTS.jsonl

Runs in an interpreter that has torch 2.13.0, torchtitan 0.3.0 and triton. FLOP, collectives with their bytes and ranks, and
memory by kind are PyTorch's; ``attention``, ``Norm`` and the count of tokens per expert stand in for kernels that only a GPU has.
Every configuration is a mapping: ``model`` (package, flavor), ``layers``, ``seq``, ``world``, degrees by torchtitan's names,
``recompute`` (none, selective or full), ``loss`` (plain or chunked), ``micro_batches``, ``stage`` (of a pipeline cut by hand),
``spmd_backend`` (partial_dtensor, or spmd_types without FSDP).
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import sys
import types
import weakref
from typing import Any

import torch
import torch.distributed as dist
import torchtitan.distributed.parallel_dims as pd
import torchtitan.tools.utils as tu

tu.device_type, tu.device_module, pd.device_type = "cpu", torch.cpu, "cpu"  # before any other import of torchtitan

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, shape_wrapper
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.config.configs import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import utils as titan
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.common.nn_modules import RMSNorm

COMMUNICATION = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
DEGREES = ("data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree",
           "context_parallel_degree", "pipeline_parallel_degree", "expert_parallel_degree")  # fmt: skip
CHECKPOINTING = {"full": FullAC.Config(), "selective": SelectiveAC.Config()}
CPU = torch.device("cpu")


def _grouped(a: Any, b: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return int(2 * a[0] * a[1] * b[-1])  # rows, or the contraction, are split over groups


FLOP = flop_registry | {torch.ops.aten._grouped_mm: shape_wrapper(_grouped)}


class Counter(TorchDispatchMode):
    """FLOP and collectives by phase; what DTensor runs to learn shapes is not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.flop: Any = collections.Counter()
        self.calls: Any = collections.Counter()
        self.phase, self.learning = "", False

    def learn(self) -> Any:
        """While it lasts, DTensor's runs at global shapes count nothing."""
        own = ShardingPropagator._propagate_tensor_meta_non_cached

        def quietly(propagator: Any, schema: Any) -> Any:
            self.learning = True
            try:
                return own(propagator, schema)
            finally:
                self.learning = False

        @contextlib.contextmanager
        def patched() -> Any:
            ShardingPropagator._propagate_tensor_meta_non_cached = quietly
            try:
                yield
            finally:
                ShardingPropagator._propagate_tensor_meta_non_cached = own

        return patched()

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is DTensor for kind in kinds):
            return NotImplemented  # let it become local operators first
        out, name = func(*args, **(kwargs or {})), func._schema.name.split("::")[1]
        if self.learning:
            return out
        if rule := FLOP.get(func._overloadpacket):
            kind = "grouped" if "grouped" in name else "attention" if "attention" in name else "mm"
            self.flop[self.phase, kind] += rule(*args, **(kwargs or {}), out_val=out)
        if func.namespace == "cplib":  # keys and values travel in one operator with two results
            operator = "reduce_scatter" if "backward" in name else "all_gather"
            for t in tree_leaves(args[:2] if "backward" in name else out):
                self.calls[self.phase, operator, _ranks(args), t.nbytes] += 1
        elif func.namespace in COMMUNICATION and "wait" not in name:
            size = max(map(_bytes, (*args, out)))
            self.calls[self.phase, _operator(name), _ranks(args), size] += 1
        return out


def _bytes(value: Any) -> int:
    """Of a tensor, or of all in a list: an all-to-all may have one tensor a rank."""
    return sum(t.nbytes for t in tree_leaves(value) if isinstance(t, torch.Tensor))


def _operator(name: str) -> str:
    for part, operator in (("reduce_scatter", "reduce_scatter"), ("allgather", "all_gather"), ("all_gather", "all_gather"),
                           ("alltoall", "all_to_all"), ("all_to_all", "all_to_all"), ("allreduce", "all_reduce"),
                           ("all_reduce", "all_reduce"), ("send", "send"), ("recv", "receive")):  # fmt: skip
        if part in name:
            return operator
    return name


def _ranks(args: Any) -> tuple[int, ...] | None:
    for a in reversed(args):
        try:
            if isinstance(a, torch.ScriptObject):
                return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(a)))
            if isinstance(a, str):
                return tuple(dist.get_process_group_ranks(_resolve_process_group(a)))
        except (RuntimeError, ValueError):
            continue  # a ReduceOp is a ScriptObject too, "sum" a string
    return None


class Memory(MemTracker):
    """The categories only: its statistics by module refuse a second micro-batch."""

    def _pre_fw_hook(self, module: Any, inputs: Any) -> None:
        self._track_module_params_and_buffers(module, install_grad_hooks=True)
        if self._mod_tracker.is_bw and self._ac_mod is None:
            self._ac_mod, self._in_ac = weakref.ref(module), True

    def _post_fw_hook(self, module: Any, inputs: Any, outputs: Any) -> None:
        if self._ac_mod is not None and self._ac_mod() is module:
            self._ac_mod, self._in_ac = None, False

    def _pre_bw_hook(self, module: Any, args: Any) -> None:
        pass

    _post_bw_hook = _pre_bw_hook


def attention(
    self: Any, q_BLNH: Any, k_BLNH: Any, v_BLNH: Any, *, scale: Any = None, is_causal: bool = True, out_transform: Any = None,
    **_: Any,
) -> Any:  # fmt: skip
    """The fused kernel, whose shapes fake tensors know; torchtitan reads the names of the arguments."""
    q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH))
    op = torch.ops.aten._scaled_dot_product_cudnn_attention
    out, statistics = (x.transpose(1, 2) for x in op(q, k, v, None, True, 0.0, is_causal, scale=scale)[:2])
    return out if out_transform is None else out_transform(out, statistics.reshape(out.shape[:-1]))


class Norm(torch.autograd.Function):
    """Keeps what the fused kernel of a GPU keeps."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, eps: float) -> Any:
        ctx.save_for_backward(x, weight, x[..., :1].float())
        ctx.eps = eps
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors[:2])
        with torch.enable_grad():
            y = torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, ctx.eps)
        return *torch.autograd.grad(y, (x, weight), grad), None


ScaledDotProductAttention.forward = FlexAttention.forward = attention
RMSNorm.forward = lambda self, x: Norm.apply(x, self.weight, self.eps)


def _spec(config: dict[str, Any], parallelism: Any) -> Any:
    package, flavor = config["model"]
    registry = importlib.import_module(f"torchtitan.models.{package}").model_registry
    experts = "B-A" in flavor or package in ("deepseek_v3", "gpt_oss")
    spec = registry(flavor, attn_backend="flex", **({"moe_comm_backend": "standard"} if experts else {}))
    spec.model.layers = spec.model.layers[: config["layers"]]
    for layer in spec.model.layers:
        if config.get("context_parallel_degree", 1) == 1:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
        if getattr(layer.attention, "rope", None) is not None:
            layer.attention.rope.max_seq_len = config["seq"]
    spec.model.update_from_config(config=types.SimpleNamespace(parallelism=parallelism))
    return spec


def _balance(config: dict[str, Any], top_k: int) -> None:
    from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher

    ep = config.get("expert_parallel_degree", 1)
    each = config["seq"] // config.get("tensor_parallel_degree", 1) * top_k // ep
    AllToAllTokenDispatcher._sync_token_count_exchange = lambda self, local, remote, group: (
        remote.reshape(-1), [each] * ep, [each] * ep,
    )  # fmt: skip


def _leave_out_fsdp(package: str) -> None:
    """Leave parameters whole in 16 bit, as FSDP would gather them.

    fully_shard of torch 2.13.0 accepts no parameters of spmd_types.
    """
    module = importlib.import_module(f"torchtitan.models.{package}.parallelize")
    for name in dir(module):
        if name.startswith("apply_fsdp"):
            setattr(module, name, lambda model, *_, **__: model.to(torch.bfloat16))


class Step:
    """One training step of one rank."""

    def __init__(self, config: dict[str, Any], model: Any, loss: Any, dims: Any, tokens: Any) -> None:
        self.config, self.model, self.loss, self.tokens, self.dims = config, model, loss, tokens, dims
        self.optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        self.counter, self.memory, self.snaps = Counter(), Memory(), {}

    def run(self, snap: bool) -> None:
        m = self.config.get("micro_batches", 1)
        for micro in range(m):
            self.counter.phase = "forward"
            with titan.get_spmd_context(parallel_dims=self.dims)():
                loss, _ = self.loss(self.model(self.tokens), self.tokens)
                if snap and micro == m - 1:
                    self.snaps["forward"] = self.memory.get_tracker_snapshot()
                self.counter.phase = "backward"
                loss.backward()
            del loss
        if snap:
            self.snaps["backward"] = self.memory.get_tracker_snapshot()
            self.snaps["peak"] = self.memory.get_tracker_snapshot("peak")
        self.counter.phase = "optimizer"
        self.optimizer.step()
        self.optimizer.zero_grad()

    def counted(self) -> None:
        with self.counter.learn():
            self.run(snap=False)  # uncounted: from here on the optimizer has states
            self.memory.track_external(self.model, self.optimizer)
            with self.counter, self.memory:
                self.run(snap=True)


class StageStep(Step):
    """One training step of a stage of a pipeline that was cut by hand."""

    def __init__(self, config: dict[str, Any], model: Any, loss: Any, dims: Any, tokens: Any) -> None:
        super().__init__(config, model, loss, dims, tokens)
        pp, stage, m = config["pipeline_parallel_degree"], config["stage"], config["micro_batches"]
        hidden = torch.empty(1, config["seq"], config["hidden"], dtype=torch.bfloat16, requires_grad=True)
        inputs = (tokens,) if stage == 0 else (hidden,)
        outputs = (
            (hidden,) if stage < pp - 1 else (torch.empty(1, config["seq"], config["vocab"], dtype=torch.bfloat16),)
        )
        group = dims.get_mesh("pp").get_group()
        one = PipelineStage(model, stage, pp, CPU, input_args=inputs, output_args=outputs, group=group)
        self.schedule = Schedule1F1B(one, m, loss_fn=lambda out, target: loss(out, target)[0])
        self.schedule._warmup_p2p = lambda stages, *_: [
            setattr(s, "_inference_mode", InferenceMode.STATIC) for s in stages
        ]
        self.whole, self.first, self.last = tokens.repeat(m, 1), stage == 0, stage == pp - 1

    def run(self, snap: bool) -> None:
        self.counter.phase = "step"
        inputs = (self.whole,) if self.first else ()
        self.schedule.step(*inputs, return_outputs=False, **({"target": self.whole, "losses": []} if self.last else {}))
        if snap:
            self.snaps["backward"] = self.memory.get_tracker_snapshot()
            self.snaps["peak"] = self.memory.get_tracker_snapshot("peak")
        self.counter.phase = "optimizer"
        self.optimizer.step()
        self.optimizer.zero_grad()


def _loss(config: dict[str, Any], model: Any, vocabulary: int) -> Any:
    if config.get("loss", "plain") == "plain":
        return CrossEntropyLoss.Config(global_vocab_size=vocabulary).build()
    loss = ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=vocabulary)).build()
    loss.set_lm_head(model.lm_head)
    model._skip_lm_head = True
    return loss


def count(config: dict[str, Any]) -> dict[str, Any]:
    """FLOP, calls and bytes of one rank of one configuration."""
    world, pp = config["world"], config.get("pipeline_parallel_degree", 1)
    rank = config.get("stage", 0) * (world // pp)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    torch.autograd.set_multithreading_enabled(False)
    degrees = {name: config[name] for name in DEGREES if name in config}
    backend = config.get("spmd_backend", "partial_dtensor")
    par = ParallelismConfig(spmd_backend=backend, fsdp_reshard_after_forward="never" if pp > 1 else "always", **degrees)
    dims = pd.ParallelDims.from_config(par, world)
    titan.set_spmd_backend(par.spmd_backend)
    dims.build_mesh()  # before the fake mode: it reads ranks out of tensors
    spec = _spec(config, par)
    top_k = max((layer.moe.router.top_k for layer in spec.model.layers if getattr(layer, "moe", None)), default=0)
    if top_k:
        _balance(config, top_k)
    with torch.device("meta"):
        model = spec.model.build()
    if "stage" in config:
        if config["stage"] > 0:
            model.tok_embeddings = None
        if config["stage"] < pp - 1:
            model.norm = model.lm_head = None
    if backend == "spmd_types":
        _leave_out_fsdp(config["model"][0])
    model = spec.parallelize_fn(
        model, parallel_dims=dims, training=TrainingConfig(local_batch_size=1, seq_len=config["seq"]), parallelism=par,
        compile_config=CompileConfig(), dump_folder="",
        ac_config=CHECKPOINTING.get(config.get("recompute")),
    )  # fmt: skip
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")  # never init_weights: it reads values
        cp = config.get("context_parallel_degree", 1)
        tokens = torch.zeros((1, config["seq"] // cp), dtype=torch.int64)
        loss = _loss(config, model, spec.model.vocab_size)
        step = (StageStep if "stage" in config else Step)(config, model, loss, dims, tokens)
        step.counted()
    dist.destroy_process_group()
    return {
        "config": config,
        "flop": _sum(step.counter.flop),
        "calls": [[*key[:2], *_shape(key[2]), key[3], n] for key, n in sorted(step.counter.calls.items(), key=str)],
        "memory": {when: _by_kind(snap) for when, snap in step.snaps.items()},
    }


def _shape(ranks: tuple[int, ...] | None) -> tuple[int, int]:
    """Size of a group and the distance between its ranks."""
    if ranks is None:
        raise ValueError("a collective whose group is not known")
    return len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 0


def _sum(flop: Any) -> dict[str, int]:
    out: Any = collections.Counter()
    for (phase, kind), value in flop.items():
        out[f"{kind} {phase}"] += value
    return dict(sorted(out.items()))


def _by_kind(snapshot: Any) -> dict[str, int]:
    return {getattr(kind, "name", str(kind)).lower(): size for kind, size in snapshot[CPU].items()}


def main() -> None:
    """Count every configuration of standard input, a line each, and print a line of JSON each."""
    for line in sys.stdin:
        print(json.dumps(count(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
