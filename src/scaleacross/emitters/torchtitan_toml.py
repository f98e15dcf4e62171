"""The plan for torchtitan 0.2.2, whose configuration is a TOML file.

Its flavors fix norm, rotary embedding and experts, and no key of the file changes them. So a workload that states other
values is refused, and so are flavors with experts. Keys: torchtitan/config/job_config.py of 0.2.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scaleacross.emitters.model import workload_of
from scaleacross.emitters.shell import one_line
from scaleacross.emitters.torchtitan_identity import identity
from scaleacross.errors import EmitError
from scaleacross.spec.plan import Plan
from scaleacross.targets.torchtitan_models import Flavor

VERSION: Final = "0.2.2"
FILE: Final = "torchtitan_0_2_2.toml"
LLAMA3_ROPE: Final = {
    "theta": 500_000.0, "scaling": "llama", "scaling_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
OWN: Final[Mapping[str, dict[str, dict[str, Any]]]] = {
    "llama3": {"RMSNorm": {"eps": 1e-5}, "ComplexRoPE": LLAMA3_ROPE},
    "qwen3": {"RMSNorm": {"eps": 1e-6}, "CosSinRoPE": {"theta": 1_000_000.0, "scaling": "none"}},
}
"""Identity of each package's flavors, in 0.3.0's names: read from llama3_args and qwen3_args of 0.2.2."""
PIPELINED: Final = ("llama3",)
"""Packages that have a pipeline: their train_spec has a pipelining_fn."""
FLAVORS: Final = {
    "llama3": ("debugmodel", "8B", "70B", "405B"),
    "qwen3": ("0.6B", "1.7B", "4B", "8B", "14B", "32B"),
}


def toml_config(
    plan: Plan, flavor: Flavor, training: Mapping[str, Any], parallelism: Mapping[str, Any]
) -> tuple[str, str]:
    """Return (text of the file, '') or ('', why 0.2.2 cannot run the plan).

    0.3.0's settings have the same names in 0.2.2.
    """
    try:
        _require_flavor(plan, flavor)
    except EmitError as error:
        return "", str(error)
    degrees, path = dict(parallelism), plan.job.fine_tuning.checkpoint if plan.job.fine_tuning else None
    degrees.pop("spmd_backend")
    if "context_parallel_load_balancer" in degrees:
        degrees |= {"context_parallel_load_balancer": "headtail", "context_parallel_rotate_method": "allgather"}
    if "module_fqns_per_model_part" in degrees:
        stages: Sequence[Sequence[str]] = degrees["module_fqns_per_model_part"]
        degrees["module_fqns_per_model_part"] = [["output" if m == "lm_head" else m for m in part] for part in stages]
    tables: dict[str, dict[str, Any]] = {
        "job": {"description": one_line(plan.job.name)},
        "model": {"name": flavor.package, "flavor": flavor.name, "hf_assets_path": "./assets/hf"},
        "optimizer": {"name": "AdamW"},
        "training": {name: value for name, value in training.items() if name != "disable_cuda_graphs"},
        "parallelism": degrees,
        "activation_checkpoint": {"mode": "full" if plan.decision.recompute == "full" else "none"},
    }
    if path is not None:
        tables["checkpoint"] = {"enable": True, "initial_load_path": path, "initial_load_in_hf": True}
    return _HEAD + "".join(f"\n[{name}]\n{_lines(values)}" for name, values in tables.items()), ""


def _require_flavor(plan: Plan, flavor: Flavor) -> None:
    if plan.job.recipe is not None:
        raise EmitError(f"torchtitan {VERSION}: its converters differ from those of 0.3.0; set precision: bf16")
    if plan.decision.recompute == "selective":
        raise EmitError(
            f"torchtitan {VERSION}: its selective checkpointing counts other products; set recompute: none or full"
        )
    if plan.job.kept.loss_chunks > 1:
        raise EmitError(f"torchtitan {VERSION}: its loss holds all logits at once; set kept.loss_chunks: 1")
    if plan.job.kept.compiled:
        raise EmitError(f"torchtitan {VERSION}: what it compiles is not written; set kept.compiled: []")
    decoder = workload_of(plan).decoder()
    if flavor.name not in FLAVORS.get(flavor.package, ()):
        raise EmitError(
            f"torchtitan {VERSION}: {flavor.package} {flavor.name} is none of its dense llama3 and qwen3 models"
        )
    if plan.degrees.pp > 1 and flavor.package not in PIPELINED:
        raise EmitError(f"torchtitan {VERSION}: its {flavor.package} has no pipeline; set pp 1")
    for part, fields in identity(decoder, flavor.package).items():
        own = OWN[flavor.package].get(part, {})
        for name, value in fields.items():
            if own.get(name) != value:
                raise EmitError(
                    f"torchtitan {VERSION}: {flavor.package} {flavor.name} has {part}.{name} {own.get(name)}, not {value}"
                )


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


_HEAD: Final = """\
# torchtitan 0.2.2: TORCHTITAN_VERSION=0.2.2 ./run_node.sh, or --job.config_file with this file.
# Data set, learning rate, number of steps and tokenizer are not part of a plan: add them here or as further arguments.
# Options of NCCL's process groups are set by scaleacross_plan.py of 0.3.0 only.
"""
