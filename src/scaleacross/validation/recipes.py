"""What published recipes say of rows whose columns are silent.

How a release of Megatron-Bridge ran routed experts: NVIDIA-NeMo/Megatron-Bridge (Apache-2.0), scripts/performance/configs at
commits 0fa501a (2025), 01b2977 (Qwen3), 0426418 (DeepSeek-V3), 07eea52 (GPT-OSS), 013180a (Kimi-K2), and the release notes of
0.5.1 with src/megatron/bridge/perf_recipes (whole-iteration CUDA graphs, fused grouped MLPs and overlapped all-to-alls for MXFP8
from container 26.06 on). The release of a row is the last word of its ``source_ref``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from scaleacross.spec.framework import ExpertRuntime
from scaleacross.validation.runs import Run

Release = tuple[int, int]

OVERLAPPED_FRACTION: Final = 0.5
"""Share of the all-to-alls that runs beside another micro-batch where the recipe asks for it. Assumed, as for userbuffers."""


@dataclass(frozen=True)
class ExpertRecipe:
    """Experts as run from a release on.

    Attributes:
        model: beginning of the row's model.
        gpus: beginnings of its gpu.
        since: year and month of the container.
        runtime: dispatcher, overlap and graphs.
        fused: activation and conversion inside the products; MXFP8 only.
    """

    model: str
    gpus: tuple[str, ...]
    since: Release
    runtime: ExpertRuntime
    fused: bool = False


_DEDUPLICATED: Final = ExpertRuntime(dispatch="deduplicated")
_PARTIAL: Final = ExpertRuntime(dispatch="deduplicated", graphs="partial")
_WHOLE: Final = ExpertRuntime(dispatch="deduplicated", overlap_fraction=OVERLAPPED_FRACTION, graphs="full")
_ALL: Final = ("H100", "B", "GB")

# Newest first: the first that fits counts.
EXPERT_RECIPES: Final[tuple[ExpertRecipe, ...]] = (
    ExpertRecipe("qwen3_30b", ("B", "GB"), (26, 6), _WHOLE, fused=True),
    ExpertRecipe("qwen3_30b", ("B", "GB"), (26, 2), _PARTIAL),
    ExpertRecipe("qwen3_30b", ("H100",), (26, 4), _DEDUPLICATED),
    ExpertRecipe("qwen3_235b", ("GB",), (26, 6), _WHOLE, fused=True),
    ExpertRecipe("qwen3_235b", ("GB",), (26, 2), _PARTIAL),
    ExpertRecipe("qwen3_235b", ("H100",), (25, 11), ExpertRuntime(overlap_fraction=OVERLAPPED_FRACTION)),
    ExpertRecipe("deepseek_v3", ("GB300",), (25, 11), _PARTIAL),
    ExpertRecipe("deepseek_v3", _ALL, (25, 9), _DEDUPLICATED),
    ExpertRecipe("kimi_k2", _ALL, (26, 2), _DEDUPLICATED),
    ExpertRecipe("gpt_oss", ("GB",), (26, 6), _WHOLE, fused=True),
    ExpertRecipe("gpt_oss", ("GB",), (26, 2), ExpertRuntime(graphs="partial")),
)

_TOKEN_DROP: Final = ExpertRecipe("", ("",), (0, 0), ExpertRuntime(graphs="partial"))
DEFAULT_RECIPE: Final = ExpertRecipe("", ("",), (0, 0), ExpertRuntime())


def expert_recipe(run: Run) -> ExpertRecipe:
    """The recipe of a row: the newest whose model, machine and release it has, else the defaults of Megatron-Core."""
    release = _release(run)
    if "tokendrop" in run.notes:  # expert batches of fixed size: the host need not wait for the router's counts
        return _TOKEN_DROP
    if run.arch != "moe" or release is None:
        return DEFAULT_RECIPE
    for recipe in EXPERT_RECIPES:
        if run.model.startswith(recipe.model) and run.gpu.startswith(recipe.gpus) and release >= recipe.since:
            return recipe
    return DEFAULT_RECIPE


def _release(run: Run) -> Release | None:
    found = re.fullmatch(r"(\d\d)\.(\d\d)(\.\d\d)?", run.source_ref.rpartition(" ")[2])
    return (int(found[1]), int(found[2])) if found and "Megatron-Bridge" in run.source else None
