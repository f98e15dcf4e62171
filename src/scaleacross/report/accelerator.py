"""One accelerator type: its figures and their sources."""

from __future__ import annotations

from rich.console import Group, RenderableType

from scaleacross.report.format import grid, large, percent, rate
from scaleacross.report.provenance import provenance_counts, sources
from scaleacross.spec.accelerator import Accelerator
from scaleacross.units import human_bytes, human_seconds


def accelerator_report(accelerator: Accelerator) -> RenderableType:
    """Return peak rates, memory and stated efficiencies, then source and status of each."""
    peaks = ", ".join(f"{name} {large(peak)}FLOP/s" for name, peak in accelerator.peak_flop_per_s.items())
    memory = (
        f"{human_bytes(accelerator.memory_bytes)} ({human_bytes(accelerator.usable_memory_bytes)} after "
        f"{human_bytes(accelerator.reserved_memory_bytes)} reserved) at {rate(accelerator.memory_bandwidth_bytes_per_s)}"
    )
    efficiencies = (
        f"GEMM {percent(accelerator.gemm_efficiency_fraction)}, attention {percent(accelerator.attention_efficiency_fraction)}, "
        f"memory {percent(accelerator.memory_efficiency_fraction)}"
    )
    tile = f"{accelerator.gemm_tile_rows} × {accelerator.gemm_tile_cols}"
    facts = grid(
        [
            ("accelerator", accelerator.name),
            ("peak, dense", peaks),
            ("memory", memory),
            ("of peak reached", efficiencies),
            ("GEMM shape", f"{accelerator.num_multiprocessors} multiprocessors, tiles of {tile}"),
            ("fitted kernels", _fitted(accelerator)),
            ("kernel launch", human_seconds(accelerator.kernel_launch_s)),
            ("collective launch", human_seconds(accelerator.collective_start_s)),
            ("collectives by", accelerator.collective_library.upper()),
            ("figures", provenance_counts(accelerator)),
        ]
    )
    return Group(facts, sources(accelerator.provenance)) if accelerator.provenance else facts


def _fitted(accelerator: Accelerator) -> str:
    names = [*accelerator.gemm_models, *(("attention",) if accelerator.attention_model else ())]
    return ", ".join(names) or "none: the efficiencies above hold at every shape"
