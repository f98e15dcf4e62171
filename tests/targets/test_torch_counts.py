"""One rank's step as PyTorch itself counts it (tests/oracles/torch_counts.py) beside what the plan's models say for torchtitan."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from instances import plain_job

from scaleacross.cost_models.memory import PARTS, memory_parts
from scaleacross.cost_models.settings import Settings
from scaleacross.cost_models.stages import pipeline_groups
from scaleacross.cost_models.traffic import Flow, Volumes, flows
from scaleacross.cost_models.work import work_of
from scaleacross.spec.job import Job
from scaleacross.targets import behaving
from scaleacross.workloads.problem import problem_of

GOLDEN = Path(__file__).parents[1] / "golden" / "torch_counts.jsonl"
LLAMA = {"gated_mlp": True, "tied_embedding": False, "family": "dense_transformer"}
MOE = {"tied_embedding": False, "family": "moe_transformer"}
MODELS: dict[tuple[str, str], dict[str, Any]] = {
    ("llama3", "8B"): LLAMA | {
        "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocabulary_size": 128256,
    },
    ("llama3", "70B"): LLAMA | {
        "hidden_size": 8192, "num_heads": 64, "num_kv_heads": 8, "head_dim": 128, "intermediate_size": 28672, "vocabulary_size": 128256,
    },
    ("qwen3", "8B"): LLAMA | {
        "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocabulary_size": 151936,
        "qk_norm": True,
    },
    ("qwen3", "30B-A3B"): MOE | {
        "hidden_size": 2048, "num_heads": 32, "attention": {"kind": "gqa", "num_kv_heads": 4, "head_dim": 128, "qk_norm": True},
        "num_experts": 128, "top_k": 8, "expert_intermediate_size": 768, "vocabulary_size": 151936,
    },
    ("deepseek_v3", "16B"): MOE | {
        "hidden_size": 2048, "num_heads": 16,
        "attention": {"kind": "mla", "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
        "num_experts": 64, "top_k": 6, "expert_intermediate_size": 1408, "num_shared_experts": 2, "vocabulary_size": 102400,
        "num_dense_layers": 1, "dense_intermediate_size": 10944,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Counted:
    config: dict[str, Any]
    flop: dict[str, int]
    calls: list[tuple[str, str, int, int, int, int]]
    memory: dict[str, dict[str, int]]

    def degree(self, name: str) -> int:
        return int(self.config.get(f"{name}_degree", 1))


def counted() -> list[Counted]:
    return [Counted(**json.loads(line)) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


def ours(one: Counted):
    c = one.config
    tp, cp, pp, ep = (one.degree(n) for n in ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel"))
    shard, rep = one.degree("data_parallel_shard"), one.degree("data_parallel_replicate")
    m = c.get("micro_batches", 1)
    workload = {"name": "counted", "num_layers": c["layers"] * pp} | MODELS[tuple(c["model"])]
    job = plain_job(c["world"] // 8 or 1, workload=workload, sequence_length=c["seq"], global_batch_sequences=m * shard * rep, target="torchtitan", context_exchange="gather")
    job = behaving(job)
    profile = problem_of(job).profile
    one_ = lambda v: np.array([v])
    from machines import settings
    rows = settings(tp=tp, cp=cp, pp=pp, ep=ep, dp_shard=shard, dp_replicate=rep, micro_batch=1, num_micro_batches=m,
        shard="optimizer" if pp > 1 else "parameters", recompute=c.get("recompute", "none"), schedule="1F1B", num_chunks=1)
    from machines import accelerator
    work = work_of(profile, job, [accelerator()], rows)
    found = flows(Volumes(job, profile, rows, work, 0.0))
    (classes, _), = pipeline_groups(profile, rows)
    mem = memory_parts(profile, job, rows, classes)
    return profile, job, found, mem, classes
if __name__ == "__main__":
    import sys
    for one in counted():
        c = one.config
        print("==", c["name"])
        profile, job, found, mem, classes = ours(one)
        at = 0 if c.get("stage", 0) == 0 else -1
        mine = {k: float(np.broadcast_to(v, (len(classes.first_rank), 1))[at, 0]) for k, v in mem.items()}
        pk, fw, bw = one.memory["peak"], one.memory.get("forward"), one.memory["backward"]
        print("  mem", {k: f"{v/1e6:.0f}" for k, v in mine.items()}, "torch: param %d opt %d grad %d act %d temp %d"%(bw["param"]/1e6, pk["opt"]/1e6, bw["grad"]/1e6, (fw or pk)["act"]/1e6, (pk["total"]-pk["opt"]-pk["grad"]-bw["param"]-pk["buffer"]-(fw or pk)["act"])/1e6), "total %.3f"%(sum(mine.values())/pk["total"]))
        tokens = c["seq"] * c.get("micro_batches", 1)
        n = Counter()
        for k, v in one.flop.items():
            n[k.split()[0]] += v
        if "stage" not in c:
            cp=one.degree("context_parallel"); tp=one.degree("tensor_parallel")
            model = profile.model_flop_per_token(c["seq"]) * tokens/cp/tp
            att = sum(b.attention.flop_per_token(c["seq"])*k for b,k in profile.blocks)*3*tokens/cp/tp
            r = c.get("recompute")=="full"
            print("  gemm %.4f"%((model-att+ (sum(sum(g.flop_per_token for g in b.gemms)*k for b,k in profile.blocks)*tokens/cp/tp if r else 0))/(n["mm"]+n["grouped"])), "att %.4f"%((att*(4/3 if r else 1))/ (one.flop["attention forward"]/2*(4 if r else 3))))
        wire=Counter(); calls=Counter()
        for ph,op,g,st,size,k in one.calls:
            f={"all_reduce":2*(g-1)/g,"send":1,"receive":0}.get(op,(g-1)/g)
            wire[op,g,st]+=f*size*k; calls[op,g,st]+=k
        print("  torch", {k: (f"{v/1e6:.1f}",calls[k]) for k,v in sorted(wire.items())})
        print("  ours", [(f.axis,f.shape,f.op,f.what[:10],f"{f.size_bytes/1e6:.1f}",f.per_step) for f in found])
