"""Step-time parameters that the accelerators of one generation share, and their priors.

Each knows how to read and set its value. A prior is what is known before any step time of the generation is seen:
kernel sweeps, data sheets, the generation before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from scaleacross.spec.accelerator import Accelerator, Precision
from scaleacross.validation.mapping import Case

SIXTEEN_BIT: Final[tuple[Precision, ...]] = ("fp16", "bf16")


@dataclass(frozen=True)
class Knob:
    """A parameter of an accelerator: functions to read and set it, and its prior.

    ``prior`` is the value without step times, ``sigma`` its standard deviation as a logarithm. ``applies`` selects
    accelerators and ``matters`` selects cases; no row is predicted for a knob that does not matter to it.
    """

    name: str
    unit: str
    meaning: str
    prior: float
    sigma: float
    read: Callable[[Accelerator], float]
    write: Callable[[Accelerator, float], Accelerator]
    applies: Callable[[Accelerator], bool] = lambda _: True
    matters: Callable[[Case], bool] = lambda _: True


def _has_experts(case: Case) -> bool:
    return case.profile.num_experts > 0


def _grace(accelerator: Accelerator) -> bool:
    return accelerator.name.startswith(("gb", "gh"))


def _ratio(name: str, precisions: tuple[Precision, ...], sigma: float) -> Knob:
    def write(accelerator: Accelerator, value: float) -> Accelerator:
        stated = {**accelerator.training_gemm_ratio, **dict.fromkeys(precisions, value)}
        return accelerator.model_copy(update={"training_gemm_ratio": stated})

    return Knob(
        name=name,
        unit="–",
        meaning=f"rate of {'/'.join(precisions)} products in a training step over that of the kernel alone",
        prior=0.9,
        sigma=sigma,
        read=lambda accelerator: accelerator.training_gemm_ratio.get(precisions[-1], 1.0),
        write=write,
        matters=lambda case: case.job.precision in precisions or precisions == SIXTEEN_BIT,
    )


def _field(
    name: str,
    unit: str,
    meaning: str,
    prior: float,
    sigma: float,
    applies: Callable[[Accelerator], bool] = lambda _: True,
    matters: Callable[[Case], bool] = lambda _: True,
) -> Knob:
    return Knob(
        *(name, unit, meaning, prior, sigma),
        applies=applies,
        matters=matters,
        read=lambda accelerator: float(getattr(accelerator, name)) or prior,
        write=lambda accelerator, value: accelerator.model_copy(update={name: value}),
    )


KNOBS: Final[tuple[Knob, ...]] = (
    _ratio("training_gemm_ratio.bf16", SIXTEEN_BIT, 0.1),
    _ratio("training_gemm_ratio.fp8", ("fp8",), 0.2),
    _ratio("training_gemm_ratio.nvfp4", ("nvfp4",), 0.2),
    _field(
        "training_attention_ratio",
        "–",
        "rate of attention in a training step over that of the forward kernel",
        1.0,
        0.3,
    ),
    # pytorch/ao: element-wise Triton kernels reach 0.92 of an H100's bandwidth (torchao/testing/training/roofline_utils.py), its
    # conversions to 8 bit 0.78 to 0.83 (benchmarks/prototype/blockwise_fp8_training); CUDA's own copies on an H100 0.77
    # (NVIDIA/nccl issue 1264). The highest lies 1.4 standard deviations above the prior.
    _field("memory_efficiency_fraction", "–", "share of HBM bandwidth that element-wise kernels reach", 0.8, 0.1),
    _field("kernel_launch_s", "s", "fixed cost of a product, an attention kernel or a collective", 4e-6, 0.15),
    _field(
        *(
            "host_moe_pass_s",
            "s",
            "host time to launch the forward pass of a layer with routed experts and five products, x86",
            2e-3,
            0.3,
        ),
        applies=lambda accelerator: not _grace(accelerator),
        matters=_has_experts,
    ),
    _field(
        *(
            "host_moe_pass_s",
            "s",
            "host time to launch the forward pass of a layer with routed experts and five products, Grace",
            2e-3,
            0.3,
        ),
        applies=_grace,
        matters=_has_experts,
    ),
    _field("speed_spread_fraction", "–", "standard deviation of the speed of accelerators of one type", 0.01, 0.5),
    _field("step_overhead_s", "s", "exposed host work per step", 0.05, 0.5),
)

GENERATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Ampere": ("a100-80gb",),
    "Hopper": ("h100-sxm", "h200", "gh200"),
    "Hopper, 500 W": ("h100-96gb",),
    "Blackwell": ("b200", "gb200-nvl72"),
    "Blackwell Ultra": ("b300", "gb300-nvl72"),
}


POWER_RATIO: Final = 500 / 700
"""Board power of the 96 GB H100 over that of the 80 GB SXM part (NVIDIA data sheets)."""
ULTRA_POWER_RATIO: Final = 1400 / 1200
"""Board power of GB300 over that of GB200 (NVIDIA data sheets)."""
POWER_EXPONENT: Final = math.log(1600 / 617) / math.log(1400 / 500)
"""Exponent 0.93 of sustained rates of computation over board power.

cuBLAS products on one GB300 ran at 617 TFLOP/s under a limit of 500 W and at 1,600 to 2,174 under 1,400 W
(facebookexperimental/triton pull request 2023; the lower figure).
"""
PARENTS: Final[Mapping[str, tuple[str, float]]] = {
    "Hopper, 500 W": ("Hopper", POWER_RATIO**POWER_EXPONENT),
    "Blackwell Ultra": ("Blackwell", ULTRA_POWER_RATIO**POWER_EXPONENT),
}
"""Generation -> (generation whose fitted knobs are its priors, factor on rates of computation for its power)."""


def generation_of(case: Case) -> str:
    """Generation of a case's accelerator, or the accelerator's own name if it has none."""
    name = case.topology.buildings[0].accelerator.name
    return next((generation for generation, members in GENERATIONS.items() if name in members), name)
