"""Read the free text of a row: attention kernels, unfused operators, dispatcher of experts, and the FLOP convention."""

from __future__ import annotations

import re
from typing import Final

from scaleacross.spec.framework import Dispatch
from scaleacross.validation.machines import machine_of
from scaleacross.validation.runs import Run

# FlashAttention-2 against the kernels of Transformer Engine and FlashAttention-3 on Hopper: 1.5 to 2.0 times slower forward, 1.5
# to 1.75 backward (arXiv 2407.08608, abstract and section 4).
FLASH2_RATIO: Final = 1 / 1.6
# FlashAttention of 2022 against FlashAttention-2 on A100: around 2 times slower; Triton's of that time 1.3 to 1.5 times forward
# and 2 times backward, which is three quarters of the time (arXiv 2307.08691, section 4.1).
FLASH1_RATIO: Final = 1 / 2
TRITON_RATIO: Final = 1 / 1.85
FLASH2: Final = r"flash-?attention-2|flash-attn[ -]2|\bfa2\b"
FLASH1: Final = r"flash-?attention-1|flash-attn[ -]1"
TRITON: Final = r"triton flash-?attention"

COPIES: Final = r"all-?to-?all dispatcher|nccl all-?to-?all"
ONCE: Final = r"deepep|hybridep|flex dispatcher"


def attention_ratio(run: Run) -> float:
    """Speed of the row's attention kernel over that of the kernels from which the accelerator's constants come.

    Those are FlashAttention-2 on Ampere, and those of Transformer Engine and FlashAttention-3 on later machines.
    PyTorch's scaled_dot_product_attention, which torchtitan's rows ran, is FlashAttention-2.
    """
    later = 1.0 if machine_of(run).accelerator.startswith("a100") else FLASH2_RATIO
    if _says(run, FLASH1) or _says(run, TRITON):
        return (FLASH1_RATIO if _says(run, FLASH1) else TRITON_RATIO) * later
    return later if "torchtitan" in run.framework or _says(run, FLASH2) else 1.0


def is_eager(run: Run) -> bool:
    """Whether element-wise operators run one by one.

    They do if a row says ``eager``, and in Meta's own runs, as in its code of the model (meta-llama/llama3 0a3d717,
    llama/model.py): nothing published says that training fused them.
    """
    return "Meta" in run.framework or _says(run, r"\beager\b")


def stated_dispatch(run: Run) -> Dispatch | None:
    """Dispatch that a row names: a copy of a token per expert, or one per place; None if not stated."""
    if _says(run, COPIES):
        return "copies"
    return "deduplicated" if _says(run, ONCE) else None


def counts_causal_half(run: Run) -> bool:
    """Whether stated TFLOP/s count only the half of the attention square below the causal mask.

    ``flops_convention`` decides. Without it the framework does: Megatron-LM counted the whole square until 2025
    (megatron/training/training.py, num_floating_point_operations), others the half.
    """
    stated = run.flops_convention.lower()
    if re.search("whole square|full square|non-causal|not halved", stated):
        return False
    return "causal" in stated or "Mega" not in run.framework


def _says(run: Run, words: str) -> bool:
    return re.search(words, run.notes.lower()) is not None
