"""Training steps of a Llama measured on the GPU at hand, as rows that ``scaleacross validate`` predicts without having seen them.

    python benchmarks/one_gpu_step.py -o measured.csv --gpu "H100-80GB SXM (700W)"
    scaleacross validate measured.csv

The net is what torchtitan trains on one GPU: query, key and value by products of their own, gate and up too, RMSNorm, rotary
positions, causal attention by PyTorch's own kernel, parameters in fp32 under autocast to bf16, fused AdamW. Layers are recomputed
whole or not at all, each compiled by ``torch.compile`` or run operator by operator. A row is the median of STEPS steps of
MICRO_BATCHES micro-batches after WARM_UP ones, of random tokens.
"""

from __future__ import annotations

import argparse
import csv
import gc
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

STEPS, WARM_UP, MICRO_BATCHES = 5, 2, 4
VOCABULARY = 128256


class Case(NamedTuple):
    """One row: sizes of the net, tokens, and how layers run."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    sequence: int
    micro_batch: int
    compiled: bool
    recompute: bool = False


LLAMA_1B = ("llama_1b", 16, 2048, 8192, 32, 8)
EIGHT_LAYERS = ("llama3_8b_of_8_layers", 8, 4096, 14336, 32, 8)
CASES = (
    Case(*LLAMA_1B, 4096, 2, False),
    Case(*LLAMA_1B, 4096, 2, True),
    Case(*LLAMA_1B, 8192, 1, True),
    Case(*LLAMA_1B, 2048, 8, True, True),
    Case(*EIGHT_LAYERS, 4096, 1, False),
    Case(*EIGHT_LAYERS, 4096, 1, True),
    Case(*EIGHT_LAYERS, 4096, 2, True, True),
    Case(*EIGHT_LAYERS, 8192, 1, True, True),
)


class Layer(nn.Module):
    """Attention with grouped heads and a gated feed-forward net, each behind a norm."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = case.heads, case.kv_heads, case.hidden // case.heads
        width = self.kv_heads * self.size
        self.query, self.out = (nn.Linear(case.hidden, case.hidden, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(case.hidden, width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(case.hidden, case.ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(case.ffn, case.hidden, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(case.hidden, eps=1e-5) for _ in range(2)])

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        batch, length, _ = x.shape
        normed = self.norms[0](x)
        query, key, value = (
            project(normed).view(batch, length, heads, self.size)
            for project, heads in ((self.query, self.heads), (self.key, self.kv_heads), (self.value, self.kv_heads))
        )
        query, key = rotated(query, angles), rotated(key, angles)
        mixed = nn.functional.scaled_dot_product_attention(
            *(one.transpose(1, 2) for one in (query, key, value)), is_causal=True, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        normed = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions, pairs as complex numbers, as torchtitan has them."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[None, :, None, :]).flatten(3).type_as(x)


class Net(nn.Module):
    """Embedding, layers, norm and head."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.recompute = case.recompute
        self.embed = nn.Embedding(VOCABULARY, case.hidden)
        self.layers = nn.ModuleList([Layer(case) for _ in range(case.layers)])
        self.norm, self.head = nn.RMSNorm(case.hidden, eps=1e-5), nn.Linear(case.hidden, VOCABULARY, bias=False)
        size = case.hidden // case.heads
        turns = torch.outer(torch.arange(case.sequence), 500000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("angles", torch.polar(torch.ones_like(turns), turns))
        if case.compiled:
            for layer in self.layers:
                layer.compile()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, self.angles, use_reentrant=False) if self.recompute else layer(x, self.angles)
        return self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def step_seconds(case: Case) -> tuple[float, float, float]:
    """(median seconds of a step, GiB at most, parameters)."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.device("cuda"):
        net = Net(case)
    parameters = sum(parameter.numel() for parameter in net.parameters())
    loss = torch.compile(loss_of) if case.compiled else loss_of
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    seconds = []
    torch.cuda.reset_peak_memory_stats()
    for step in range(WARM_UP + STEPS):
        tokens = torch.randint(VOCABULARY, (MICRO_BATCHES, case.micro_batch, case.sequence + 1), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        for one in tokens:
            with torch.autocast("cuda", torch.bfloat16):
                loss(net(one[:, :-1]), one[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), torch.cuda.max_memory_allocated() / 2**30, parameters


def row_of(number: int, case: Case, gpu: str, seconds: float, gib: float, parameters: float) -> dict[str, object]:
    """The columns of measured runs that this script knows."""
    sequences = MICRO_BATCHES * case.micro_batch
    return {
        "id": f"one{number:02d}", "source": "benchmarks/one_gpu_step.py", "source_ref": torch.cuda.get_device_name(),
        "seen": "yes", "framework": "torchtitan", "model": case.name, "arch": "dense", "params_b": f"{parameters / 1e9:.4g}",
        "layers": case.layers, "hidden": case.hidden, "ffn": case.ffn, "gated": 1, "heads": case.heads,
        "kv_heads": case.kv_heads, "head_dim": case.hidden // case.heads, "vocab": VOCABULARY, "attn": "gqa",
        "seq": case.sequence, "gpu": gpu, "n_gpus": 1, "tp": 1, "cp": 1, "pp": 1, "dp": 1, "fsdp": 1,
        "mbs": case.micro_batch, "gbs": sequences, "precision": "bf16", "recompute": "full" if case.recompute else "none",
        "loss": "compiled" if case.compiled else "",
        "step_time_s": f"{seconds:.5g}", "mem_gib": f"{gib:.1f}",
        "tokens_per_s_per_gpu": round(sequences * case.sequence / seconds), "exclude_from_fit": 0,
        "notes": f"{'torch.compile' if case.compiled else 'eager'}; torch {torch.__version__}",
    }  # fmt: skip


def measured(gpu: str) -> Iterator[dict[str, object]]:
    """One row per case that fits; the others are named on stderr."""
    for number, case in enumerate(CASES):
        try:
            yield row_of(number, case, gpu, *step_seconds(case))
        except torch.OutOfMemoryError:
            print(f"{case}: out of memory", file=sys.stderr)
        gc.collect()
        torch.cuda.empty_cache()


def main() -> int:
    """Write the rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV to write")
    parser.add_argument("--gpu", required=True, help="what the rows call the GPU, as the catalogue knows it")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no GPU: nothing was measured", file=sys.stderr)
        return 1
    with arguments.output.open("w", newline="", encoding="utf-8") as file:
        writer = None
        for row in measured(arguments.gpu):
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            print(
                row["model"],
                row["seq"],
                row["mbs"],
                row["recompute"],
                row["notes"],
                row["step_time_s"],
                "s",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
