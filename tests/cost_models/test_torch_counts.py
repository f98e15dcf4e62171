"""One rank's step as PyTorch counts it (tests/oracles/torch_counts.py) agrees with the plan's models for torchtitan."""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines import accelerator, candidates

from instances import plain_job
from interpreters import python_with
from scaleacross.cost_models.memory import PARTS, memory_parts
from scaleacross.cost_models.stages import pipeline_groups
from scaleacross.cost_models.traffic import Flow, Volumes, flows
from scaleacross.cost_models.work import work_of
from scaleacross.targets import behaving
from scaleacross.workloads.problem import problem_of

GOLDEN = Path(__file__).parents[1] / "golden" / "torch_counts.jsonl"
LLAMA = {"gated_mlp": True, "tied_embedding": False, "family": "dense_transformer"}
MOE = {"tied_embedding": False, "family": "moe_transformer"}
MODELS: dict[tuple[str, str], dict[str, Any]] = {
    ("llama3", "8B"): LLAMA | {
        "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128,
        "intermediate_size": 14336, "vocabulary_size": 128256,
    },
    ("llama3", "70B"): LLAMA | {
        "hidden_size": 8192, "num_heads": 64, "num_kv_heads": 8, "head_dim": 128,
        "intermediate_size": 28672, "vocabulary_size": 128256,
    },
    ("qwen3", "8B"): LLAMA | {
        "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128,
        "intermediate_size": 12288, "vocabulary_size": 151936, "qk_norm": True,
    },
    ("qwen3", "30B-A3B"): MOE | {
        "hidden_size": 2048, "num_heads": 32, "attention": {"kind": "gqa", "num_kv_heads": 4, "head_dim": 128, "qk_norm": True},
        "num_experts": 128, "top_k": 8, "expert_intermediate_size": 768, "vocabulary_size": 151936,
    },
    ("deepseek_v3", "16B"): MOE | {
        "hidden_size": 2048, "num_heads": 16,
        "attention": {
            "kind": "mla", "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        "num_experts": 64, "top_k": 6, "expert_intermediate_size": 1408, "num_shared_experts": 2, "vocabulary_size": 102400,
        "num_dense_layers": 1, "dense_intermediate_size": 10944,
    },
    # the oracle's attention has no window
    ("gpt_oss", "20b"): {
        "family": "decoder", "hidden_size": 2880, "vocabulary_size": 201088, "tied_embedding": False,
        "layers": ["block", "block"],
        "kinds": {"block": {
            "mixer": {
                "kind": "attention", "num_heads": 64, "num_kv_heads": 8, "head_dim": 64, "qkv_bias": True, "output_bias": True,
                "sinks": True,
            },
            "feed_forward": {
                "kind": "experts", "num_experts": 32, "top_k": 4, "width": 2880, "activation": "clamped_silu", "bias": True,
                "router_bias": "learned",
            },
        }},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Counted:
    """What PyTorch counted.

    A key of ``calls`` has phase, operator, ranks of the group, their distance, bytes and number.
    """

    config: dict[str, Any]
    flop: dict[str, int]
    calls: list[tuple[str, str, int, int, int, int]]
    memory: dict[str, dict[str, int]]

    def degree(self, name: str) -> int:
        return int(self.config.get(f"{name}_degree", 1))

    @property
    def typed(self) -> bool:
        """Whether the run uses spmd_types, for which the oracle leaves out FSDP."""
        return self.config.get("spmd_backend") == "spmd_types"


COUNTED = {
    one["config"]["name"]: Counted(**one) for one in map(json.loads, GOLDEN.read_text(encoding="utf-8").splitlines())
}
LIVE = (
    "fsdp 8, chunked loss", "tp 2, fsdp 4", "deepseek 16B, fsdp 8, ep 4", "pp 2, fsdp 4, last stage",
    "tp 2, fsdp 4, selective", "deepseek 16B, fsdp 8, ep 4, selective", "spmd_types, tp 2, selective",
    "spmd_types, qwen3 30B-A3B, tp 4, ep 4, selective", "deepseek 16B, tp 2, fsdp 2, ep 4, selective",
)  # fmt: skip
"""Counted again in CI: about 40 s of one core."""


@dataclass(frozen=True)
class Planned:
    """What the plan's models say of the same step: FLOP of one rank by kind, flows, bytes by kind."""

    gemm_flop: float
    attention_flop: float
    flows: list[Flow]
    memory: dict[str, float]


def planned(config: dict[str, Any]) -> Planned:
    def degree(name: str) -> int:
        return int(config.get(f"{name}_degree", 1))

    tp, cp, pp = (degree(name) for name in ("tensor_parallel", "context_parallel", "pipeline_parallel"))
    m = config.get("micro_batches", 1)
    shard, replicate = degree("data_parallel_shard"), degree("data_parallel_replicate")
    workload = {"name": "counted", **MODELS[tuple(config["model"])]}
    workload |= {} if "layers" in workload else {"num_layers": config["layers"] * pp}
    job = behaving(plain_job(
        1, workload=workload, sequence_length=config["seq"], global_batch_sequences=m * shard * replicate, target="torchtitan",
        context_exchange="gather", kept={
            "loss_chunks": 8 if config.get("loss") == "chunked" else 1,
            "spmd_backend": config.get("spmd_backend", "partial_dtensor"),
        },
    ))  # fmt: skip
    profile, recompute = problem_of(job).profile, config.get("recompute", "none")
    lanes = min(tp, degree("expert_parallel"))
    rows = candidates(
        tp=tp, cp=cp, pp=pp, ep=degree("expert_parallel") // lanes, expert_lanes=lanes,
        dp_shard=shard, dp_replicate=replicate, micro_batch=1,
        num_micro_batches=m, shard="optimizer" if pp > 1 else "parameters", recompute=recompute, schedule="1F1B", num_chunks=1,
    )  # fmt: skip
    ((classes, _),) = pipeline_groups(profile, rows)
    at = -1 if config.get("stage") else 0
    parts = memory_parts(profile, job, rows, classes)
    layers = [layer for layer, count in profile.blocks for _ in range(count)]
    layers = layers[config["stage"] * config["layers"] :][: config["layers"]] if pp > 1 else layers
    tokens, passes = m * config["seq"] / cp / tp, 4 if recompute == "full" else 3
    again = (lambda gemm: gemm.selective) if recompute == "selective" else lambda gemm: 0.0
    on = {gemm: tp if gemm.shard == "none" and gemm.name != "router" else 1 for layer in layers for gemm in layer.gemms}
    gemm = sum((passes + again(gemm)) * on[gemm] * gemm.flop_per_token for layer in layers for gemm in layer.gemms)
    if pp == 1 or config["stage"] == pp - 1:
        gemm += 3 * profile.head.forward_flop_per_token(config["seq"])
    attention = passes * sum(layer.attention.flop_per_token(config["seq"]) for layer in layers if layer.attention)
    work = work_of(profile, job, [accelerator()], rows)
    return Planned(
        gemm_flop=gemm * tokens,
        attention_flop=attention * tokens,
        flows=flows(Volumes(job, profile, rows, work, 0.0)),
        memory={part: float(np.broadcast_to(parts[part], (len(classes.first_rank), 1))[at, 0]) for part in PARTS},
    )


@pytest.mark.parametrize("name", COUNTED)
def test_flop_are_pytorch_s(name: str) -> None:
    """FLOP agree with PyTorch's.

    PyTorch counts whole attention, and its backward pass as 2.5 forward passes (latent attention: 2.6). The plan's
    models count the causal half, and backward twice. Products of experts are grouped ones. If tp divides experts, every
    tp rank routes all tokens, 0.5 % of the FLOP here. The plan counts a share of them.
    """
    one, ours = COUNTED[name], planned(COUNTED[name].config)
    of = Counter[str]()
    for key, flop in one.flop.items():
        of[key.partition(" ")[0]] += flop
    experts = "num_experts" in MODELS[tuple(one.config["model"])]
    whole = experts and one.degree("tensor_parallel") > one.degree("expert_parallel")
    assert ours.gemm_flop == pytest.approx(of["mm"] + of["grouped"], rel=1e-2 if whole else 1e-3)
    if "attention forward" in one.flop:
        passes = 4 if one.config.get("recompute") == "full" else 3
        assert ours.attention_flop == pytest.approx(one.flop["attention forward"] / 2 * passes, rel=1e-3)
    else:  # a pipeline runs forward and backward passes in turn
        assert ours.attention_flop == pytest.approx(of["attention"] / 3.5 / 2 * 3, rel=1e-3)


@pytest.mark.parametrize("name", COUNTED)
def test_bytes_and_calls_are_pytorch_s(name: str) -> None:
    """Bytes that a rank sends agree with PyTorch's, by the ranks it sends to.

    A gather sends (n - 1) / n, and an all-reduce twice that.

    Two calls differ by design. FSDP units of embedding and of norm and head are separate calls. The plan's models
    spread these over the layers. Keys and values are a call each, and one call in the plan.

    The loss and norms reduce a few kB, and experts exchange their counts. Gradients of weights that tp does not divide
    (latents, routers) are reduced over tp, 2 MB each at most. A chunked loss gathers the head once more.

    Over tp SelectiveAC repeats only gathers. The plan makes half as many pairs of gather and scatter, and the test
    counts both together. Under spmd_types SelectiveAC repeats both. It has one more scatter than gathers if routed and
    shared experts that tp divides read one gathered tensor.
    """
    one, ours = COUNTED[name], planned(COUNTED[name].config)
    found, calls = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for _phase, op, ranks, apart, size, number in one.calls:
        if size > SMALL and op != "receive":
            axis = axis_of(one, op, ranks, apart)
            if (axis, op) == ("tp", "all_reduce"):
                assert size <= UNDIVIDED
                continue
            found[axis, op] += sent(op, ranks, size) * number
            calls[axis, op] += number
    expected, times = defaultdict[tuple[str, str], float](float), defaultdict[tuple[str, str], float](float)
    degrees = {"tp": "tensor_parallel", "cp": "context_parallel", "ep": "expert_parallel", "pp": "pipeline_parallel"}
    degrees |= {"dp_shard": "data_parallel_shard", "dp_replicate": "data_parallel_replicate"}
    for flow in ours.flows:
        states = flow.what not in ("activations", "tokens", "keys and values", "key and value gradients")
        ranks = one.degree(degrees.get(flow.shape, ""))
        if flow.shape == "expert":
            ranks = one.degree("data_parallel_shard") // one.degree("expert_parallel")
        axis = flow.shape if not states or flow.axis == "dp_replicate" else "states"
        if axis == "states" and one.typed:
            continue
        expected[axis, flow.op] += sent(flow.op, ranks, flow.size_bytes) * flow.per_step
        times[axis, flow.op] += flow.per_step
    if one.config.get("loss") == "chunked":
        head = (
            2
            * MODELS[tuple(one.config["model"])]["vocabulary_size"]
            * MODELS[tuple(one.config["model"])]["hidden_size"]
        )
        shard = one.degree("data_parallel_shard")
        expected["states", "all_gather"] += sent("all_gather", shard, head / one.degree("tensor_parallel"))
    divided = one.degree("tensor_parallel") > one.degree("expert_parallel")
    if one.config.get("recompute") == "selective" and (divided or not one.typed):
        for counter in (found, calls, expected, times):
            counter["tp", "both"] = sum(counter.pop(("tp", op), 0) for op in ("all_gather", "reduce_scatter"))
    assert set(found) == set(expected)
    for key, moved in found.items():
        assert expected[key] == pytest.approx(moved, rel=5e-3), key
        if key[0] in ("tp", "ep", "pp"):
            assert round(times[key]) == calls[key], key
        elif key[0] == "cp":
            assert round(2 * times[key]) == calls[key], key


@pytest.mark.parametrize("name", COUNTED)
def test_memory_is_pytorch_s(name: str) -> None:
    """Memory agrees with PyTorch's, by kind.

    If parameters are sharded, PyTorch counts their fp32 master as parameter, as the plan does. In a pipeline the plan
    counts it with the optimizer states. Temporaries are those at the peak, if PyTorch's peak is the loss.
    """
    one, ours = COUNTED[name], planned(COUNTED[name].config).memory
    peak, end = one.memory["peak"], one.memory["backward"]
    if "stage" in one.config:
        states = peak["param"] + peak["opt"] + 4 * (peak["param"] - end["param"]) / 2
        assert ours["parameters"] + ours["optimizer"] + ours["gradients"] == pytest.approx(states, rel=5e-2)
        assert sum(ours.values()) == pytest.approx(peak["total"], rel=5e-2)
        return
    kept = one.memory["forward"]["act"]
    if one.typed:
        assert ours["activations"] == pytest.approx(kept, rel=5e-2)
        return
    resident = end["param"] + peak["opt"] + peak["buffer"] + kept
    assert ours["parameters"] == pytest.approx(end["param"], rel=5e-2)
    assert ours["optimizer"] == pytest.approx(peak["opt"], rel=5e-2)
    assert ours["gradients"] == pytest.approx(end["grad"], rel=5e-2)
    assert ours["activations"] == pytest.approx(kept, rel=5e-2)
    if one.config["name"] != MIDWAY:
        held = peak["grad"] if one.config.get("micro_batches", 1) > 1 else 0
        assert ours["buffers"] - cached(one) == pytest.approx(peak["total"] - resident - held, rel=5e-2)


def cached(one: Counted) -> float:
    """Bytes of the 16-bit logits in the allocator's cache, which no tensor holds.

    They are there if the loss runs in one piece.
    """
    whole = one.config.get("loss") != "chunked" and "stage" not in one.config
    entries = int(MODELS[tuple(one.config["model"])]["vocabulary_size"]) / one.degree("tensor_parallel")
    return 2.0 * entries * one.config["seq"] / one.degree("context_parallel") if whole else 0.0


MIDWAY = "70B, tp 8, hsdp 2 x 2"
"""A run whose peak is in the backward pass of a layer.

The head's tensors are freed by then, and some gradients exist.
"""
SMALL = 50_000
"""Smaller calls, in bytes, are left out.

One of the counted calls is close to it: routing weights of 49,152 bytes.
"""
UNDIVIDED = 2_400_000
"""Largest gradient, in bytes, that tp reduces because it does not divide the weight.

Those of latents have 2,359,296.
"""


def sent(op: str, ranks: int, size: float) -> float:
    return size * {"send": 1.0, "all_reduce": 2 * (ranks - 1) / ranks}.get(op, (ranks - 1) / ranks)


def axis_of(one: Counted, op: str, ranks: int, apart: int) -> str:
    """The plan's group that a process group is, by its size and the distance of its ranks.

    torchtitan's order is pp, dp_replicate, dp_shard, cp, tp from outside to inside. Experts are spread over the
    innermost ranks of a shard group.
    """
    tp, cp = one.degree("tensor_parallel"), one.degree("context_parallel")
    if op in ("send", "all_to_all"):
        return "pp" if op == "send" else "ep"
    if tp > 1 and (ranks, apart) == (tp, 1):
        return "tp"
    if cp > 1 and (ranks, apart) == (cp, tp):
        return "cp"
    replicas = one.degree("data_parallel_replicate")
    return "dp_replicate" if replicas > 1 and op == "all_reduce" and ranks == replicas else "states"


@pytest.mark.consumer
@pytest.mark.slow
def test_pytorch_still_counts_so() -> None:
    """The golden counts equal what torch and torchtitan count today."""
    asked = "".join(json.dumps(COUNTED[name].config) + "\n" for name in LIVE)
    script = Path(__file__).parents[1] / "oracles" / "torch_counts.py"
    done = subprocess.run(
        [python_with("torchtitan"), str(script)], input=asked, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for line in done.stdout.splitlines():
        now = json.loads(line)
        then = COUNTED[now["config"]["name"]]
        assert (now["flop"], [tuple(call) for call in now["calls"]]) == (
            then.flop,
            [tuple(call) for call in then.calls],
        )
        assert now["memory"]["peak"]["total"] == pytest.approx(then.memory["peak"]["total"], rel=1e-3)
