"""torchtitan: the module's values, its rank order, what is refused, and torchtitan 0.3.0 itself as a reader."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from plans import llama3_8b, make_plan, two_buildings

from interpreters import python_with
from scaleacross.emitters import EMITTERS, emit
from scaleacross.emitters.torchtitan import MODULE_NAME, config_module, layers_in_model_order, stage_modules
from scaleacross.errors import EmitError
from scaleacross.spec.parallelism import Degrees, GridAxis, ScheduleName, has_chunks
from scaleacross.spec.plan import Plan
from scaleacross.targets.torchtitan_models import FLAVORS

DP_INSIDE: tuple[GridAxis, ...] = ("tp", "dp_shard", "cp", "pp", "dp_replicate")


def ask_torchtitan(program: str, folder: Path, **env: str) -> Any:
    """Run ``program`` under torchtitan's interpreter with ``folder`` importable; its last line is JSON."""
    keep = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [python_with("torchtitan"), "-c", program],
        cwd=folder,
        env={**keep, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


READ_CONFIG = f"""
import dataclasses, json
from torchtitan.config import ConfigManager
config = ConfigManager().parse_args(["--module", "{MODULE_NAME}", "--config", "train"])
recompute = config.activation_checkpoint
print(json.dumps({{
    "training": dataclasses.asdict(config.training), "parallelism": dataclasses.asdict(config.parallelism),
    "flavor": [config.model_spec.name, config.model_spec.flavor], "recompute": recompute and type(recompute).__qualname__,
}}))
"""


@pytest.mark.consumer
@pytest.mark.parametrize(
    ("degrees", "changes", "expected"),
    [
        (
            Degrees(tp=2, dp_shard=2, dp_replicate=2, pp=3),
            {"schedule": "Interleaved1F1B", "num_chunks": 2, "num_micro_batches": 9, "recompute": "full"},
            {
                "tensor_parallel_degree": 2, "data_parallel_shard_degree": 2, "data_parallel_replicate_degree": 2,
                "pipeline_parallel_degree": 3, "pipeline_parallel_schedule": "Interleaved1F1B", "local_batch_size": 9,
                "global_batch_size": 36, "fsdp_reshard_after_forward": "never", "recompute": "FullAC.Config",
                "disable_cuda_graphs": True,
            },
        ),
        (
            Degrees(tp=2, pp=3),
            {"schedule": "ZBVZeroBubble", "num_chunks": 2, "num_micro_batches": 9},
            {"pipeline_parallel_degree": 3, "pipeline_parallel_schedule": "ZBVZeroBubble", "local_batch_size": 9},
        ),
        (
            Degrees(tp=2, cp=2, dp_shard=4),
            {"shard": "parameters", "recompute": "full", "context_exchange": "gather"},
            {
                "context_parallel_degree": 2, "context_parallel_load_balancer": "ptrr",
                "data_parallel_shard_degree": 4, "pipeline_parallel_degree": 1,
                "local_batch_size": 1, "global_batch_size": 32, "fsdp_reshard_after_forward": "always",
                "recompute": "FullAC.Config", "disable_cuda_graphs": False,
            },
        ),
        (
            Degrees(tp=4, dp_shard=2, dp_replicate=2),
            {"shard": "none", "num_micro_batches": 1},
            {"data_parallel_replicate_degree": 4, "data_parallel_shard_degree": 1, "recompute": None},
        ),
        (
            Degrees(tp=4, dp_shard=2),
            {"shard": "parameters", "recompute": "selective"},
            {"spmd_backend": "partial_dtensor", "recompute": "SelectiveAC.Config"},
        ),
        (
            Degrees(tp=4, dp_shard=2),
            {"shard": "parameters", "recompute": "selective", "kept": {"spmd_backend": "spmd_types"}},
            {"spmd_backend": "spmd_types", "recompute": "SelectiveAC.Config"},
        ),
    ],
)  # fmt: skip
def test_torchtitan_parses_the_module(
    degrees: Degrees, changes: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    emit(make_plan(degrees, **changes), "torchtitan", tmp_path)
    found = ask_torchtitan(READ_CONFIG, tmp_path / "torchtitan")
    assert found["flavor"] == ["llama3", "8B"]
    flat = {**found["training"], **found["parallelism"], "recompute": found["recompute"]}
    assert {key: flat[key] for key in expected} == expected
    assert flat["seq_len"] == 4096
    if degrees.pp > 1:
        modules = flat["module_fqns_per_model_part"]
        assert len(modules) == 6
        assert [name for part in modules for name in part] == [
            "tok_embeddings", *(f"layers.{k}" for k in range(32)), "norm", "lm_head",
        ]  # fmt: skip


COUNT_PARAMETERS = """
import importlib, json, os, torch
out = []
for package, flavor in json.loads(os.environ["FLAVORS"]):
    spec = importlib.import_module("torchtitan.models." + package).model_registry(flavor)
    with torch.device("meta"):
        model = spec.model.build()
    table = model.tok_embeddings.weight.shape
    out.append([package, flavor, len(spec.model.layers), table[1], table[0], sum(p.numel() for p in model.parameters())])
print(json.dumps(out))
"""


def test_a_chunked_loss_is_written_as_one() -> None:
    whole = make_plan(Degrees(dp_shard=8), DP_INSIDE, shard="parameters", num_micro_batches=1)
    chunked = make_plan(
        Degrees(dp_shard=8), DP_INSIDE, shard="parameters", num_micro_batches=1, kept={"loss_chunks": 8}
    )
    for plan, line in ((whole, "loss=CrossEntropyLoss.Config("), (chunked, "num_chunks=8,")):
        assert line in EMITTERS["torchtitan"](plan)["torchtitan/scaleacross_plan.py"]


@pytest.mark.parametrize(
    ("kept", "line"),
    [
        ({}, None),
        ({"compiled": ["loss", "model"]}, 'compile=CompileConfig(enable=True, components=["model", "loss"]),'),
        ({"compiled": ["loss"]}, 'compile=CompileConfig(enable=True, components=["loss"]),'),
    ],
)
def test_what_is_compiled_is_written(kept: dict[str, object], line: str | None) -> None:
    plan = make_plan(Degrees(dp_shard=8), DP_INSIDE, shard="parameters", num_micro_batches=1, kept=kept)
    text = EMITTERS["torchtitan"](plan)["torchtitan/scaleacross_plan.py"]
    assert line in text and "import CompileConfig" in text if line else "CompileConfig" not in text


@pytest.mark.consumer
@pytest.mark.slow
def test_flavors_are_torchtitans(tmp_path: Path) -> None:
    names = json.dumps([[flavor.package, flavor.name] for flavor in FLAVORS])
    found = ask_torchtitan(COUNT_PARAMETERS, tmp_path, FLAVORS=names)
    assert [tuple(row) for row in found] == [
        (f.package, f.name, f.num_layers, f.hidden_size, f.vocabulary_size, f.num_parameters) for f in FLAVORS
    ]


MESH = """
import json, os
os.environ.update(RANK="0", WORLD_SIZE=os.environ["WORLD"], LOCAL_RANK="0")
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=0, world_size=int(os.environ["WORLD"]), store=FakeStore())
from torchtitan.distributed import parallel_dims
parallel_dims.device_type = "cpu"
degrees = json.loads(os.environ["DEGREES"])
dims = parallel_dims.ParallelDims(**degrees, ep=1, world_size=int(os.environ["WORLD"]))
dims.build_mesh()
print(json.dumps({axis: dims.get_mesh(axis).mesh.flatten().tolist() for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp")}))
"""


@pytest.mark.consumer
def test_rank_order_is_torchtitans_own(tmp_path: Path) -> None:
    """First group of every axis, from torchtitan's ParallelDims on torch's fake process group."""
    degrees = {"pp": 2, "dp_replicate": 2, "dp_shard": 4, "cp": 2, "tp": 2}
    found = ask_torchtitan(MESH, tmp_path, DEGREES=json.dumps(degrees), WORLD="64")
    plan = make_plan(Degrees(**degrees), DP_INSIDE, context_exchange="gather")
    rows = list(csv.DictReader(EMITTERS["torchtitan"](plan)["torchtitan/ranks.csv"].splitlines()))
    for axis, ranks in found.items():
        others = [other for other in degrees if other != axis]
        assert [int(row["rank"]) for row in rows if all(row[other] == "0" for other in others)] == ranks


@pytest.mark.parametrize("order", [DP_INSIDE, ("pp", "tp", "dp_replicate", "cp", "dp_shard")])
def test_ranks_follow_torchtitans_formula(order: tuple[GridAxis, ...]) -> None:
    plan = make_plan(Degrees(tp=2, cp=2, dp_shard=2, dp_replicate=2, pp=2), order, context_exchange="gather")
    rows = list(csv.DictReader(EMITTERS["torchtitan"](plan)["torchtitan/ranks.csv"].splitlines()))
    for rank, row in enumerate(rows):
        pp, dpr, dps, cp, tp = (int(row[axis]) for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp"))
        assert rank == int(row["rank"]) == (((pp * 2 + dpr) * 2 + dps) * 2 + cp) * 2 + tp


def test_processes_land_on_the_plans_devices() -> None:
    """Processes run on the plan's devices.

    torchtitan has pp outermost, the plan has it inside a building. The host list is permuted, and every coordinate
    keeps its host.
    """
    plan = make_plan(
        Degrees(tp=4, pp=2, dp_shard=2), ("tp", "pp", "cp", "dp_shard", "dp_replicate"), topology=two_buildings((2, 2))
    )
    files = EMITTERS["torchtitan"](plan)
    hosts = [line.split()[0] for line in files["torchtitan/hosts.txt"].splitlines() if not line.startswith("#")]
    # plan: east-0 (dp 0, pp 0), east-1 (dp 0, pp 1), west-0 (dp 1, pp 0), west-1 (dp 1, pp 1); torchtitan: pp outermost
    assert hosts == ["east-h00000", "west-h00000", "east-h00001", "west-h00001"]


def test_stage_modules_by_hand() -> None:
    # two chunks on two ranks
    assert stage_modules([1, 3, 2, 1]) == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2", "layers.3"],
        ["layers.4", "layers.5"],
        ["layers.6", "norm", "lm_head"],
    ]


def test_stages_of_a_v_keep_the_models_order() -> None:
    plan = make_plan(Degrees(pp=3), schedule="ZBVZeroBubble", num_chunks=2, num_micro_batches=3)
    assert plan.layers_per_stage == ((5, 5), (6, 5), (6, 5))
    assert layers_in_model_order(plan) == [5, 6, 6, 5, 5, 5]
    assert "pipeline_parallel_schedule='ZBVZeroBubble'" in config_module(plan)


@pytest.mark.parametrize("schedule", ["Eager1F1B", "ZBH1", "ZBH2", "VHalf", "VMin", "DualPipe"])
def test_schedules_that_torchtitan_does_not_name(schedule: ScheduleName) -> None:
    chunks = 2 if has_chunks(schedule, 2) else 1
    plan = make_plan(Degrees(pp=2), schedule=schedule, num_chunks=chunks, num_micro_batches=8)
    with pytest.raises(EmitError, match=f"schedule {schedule}: torchtitan 0.3.0 names .*pipeline_csv"):
        config_module(plan)
    with pytest.raises(EmitError, match=f"schedule {schedule}: Megatron-LM has 1F1B and Interleaved1F1B only"):
        EMITTERS["megatron"](plan)


def test_module_compiles_under_any_job_name() -> None:
    plan = make_plan(Degrees(tp=4))
    for name in ('"""\nimport os', "\\", "a\x00b", "x" * 500):
        hostile = plan.model_copy(update={"job": plan.job.model_copy(update={"name": name})})
        hostile = hostile.model_copy(
            update={"num_micro_batches": 8, "decision": plan.decision.model_copy(update={"shard": "none"})}
        )
        assert "\nimport os\nimport" not in config_module(hostile)


@pytest.mark.parametrize(
    ("degrees", "changes", "message"),
    [
        (Degrees(tp=4), {"precision": "fp8"}, "precision fp8 with conversion.recipe delayed: .*torchao_rowwise"),
        (Degrees(tp=4), {"precision": "fp16"}, "precision fp16"),
        (
            Degrees(tp=4),
            {"precision": "fp8", "conversion": {"recipe": "torchao_mxfp8", "narrow_parameters": True}},
            "leave both out",
        ),
        (Degrees(tp=4), {"optimizer": {"name": "sgd"}}, "optimizer 'sgd'"),
        (Degrees(tp=4), {"optimizer": {"reduce_bytes": 2.0}}, "gradients of 2 bytes"),
        (Degrees(tp=4), {"optimizer": {"gradient_bytes": 2.0}}, "state_bytes 2, 2, 12: .*set 2, 4, 12"),
        (Degrees(tp=4), {"optimizer": {"state_bytes": 6.0}}, "state_bytes 2, 4, 6: .*set 2, 4, 12"),
        (
            Degrees(tp=4),
            {"overlap": {"shard_prefetch": False}},
            "overlap.shard_prefetch false: FSDP2 gathers a layer ahead",
        ),
        (Degrees(pp=4), {"overlap": {"pipeline_messages": False}}, "overlap.pipeline_messages false: .* leave it out"),
        (Degrees(tp=4), {"sequence_length": 4098}, "sequence length 4098 is no multiple of 4"),
        (Degrees(dp_shard=4), {}, "shard 'optimizer' with pp 1 and 8 micro-batches"),
        (Degrees(cp=4), {"shard": "none"}, "shard 'none' with cp 4"),
        (Degrees(cp=4), {}, "cp 4 with context_exchange ring"),
        (Degrees(pp=2, dp_shard=2), {"shard": "parameters"}, "shard 'parameters' with pp 2"),
        (Degrees(tp=4), {"recompute": "mlp"}, "recompute mlp: .*SelectiveAC.*target: torchtitan"),
        (
            Degrees(tp=4),
            {"recompute": "selective", "precision": "fp8", "conversion": {"recipe": "torchao_rowwise"}},
            "recompute selective with conversion.recipe torchao_rowwise: .* not modelled",
        ),
        (Degrees(tp=2, dp_shard=2, ep=2), {"shard": "parameters"}, "ep 2 with tp 2"),
        (Degrees(pp=4), {"num_micro_batches": 3}, "1F1B with 3 micro-batches on 4 stages"),
        (
            Degrees(pp=4),
            {"schedule": "Interleaved1F1B", "num_chunks": 2, "num_micro_batches": 13},
            "Interleaved1F1B with 13 micro-batches on pp 4: torch runs 3 rounds",
        ),
        (
            Degrees(tp=4),
            {"workload": llama3_8b().model_copy(update={"intermediate_size": 14208})},
            "is none of torchtitan",
        ),
    ],
)
def test_refused_by_name(degrees: Degrees, changes: dict[str, Any], message: str) -> None:
    plan: Plan = make_plan(degrees, **changes)
    with pytest.raises(EmitError, match=message):
        EMITTERS["torchtitan"](plan)
