"""The exported JSON Schemas accept what reading accepts and refuse what it refuses."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import Field

from scaleacross.catalogue import SCHEMA_KINDS, schema, schema_text
from scaleacross.errors import InputError
from scaleacross.spec.base import Spec
from scaleacross.spec.json_schema import json_schema

CONFIGS = Path(__file__).parents[2] / "configs"
FOLDERS = {
    "accelerator": "accelerators",
    "network": "networks",
    "topology": "topologies",
    "workload": "workloads",
    "job": "jobs",
    "decision": "plans",
    "study": "studies",
}
FILES = [(kind, path) for kind, folder in FOLDERS.items() for path in sorted((CONFIGS / folder).glob("*.yaml"))]
SPACES = [pair for pair in FILES if "\ncommand: reproduce\n" in pair[1].read_text()]
FILES = [pair for pair in FILES if pair not in SPACES] + [("design_space", path) for _, path in SPACES]


def errors(kind: str, data: Any) -> list[str]:
    return [error.message for error in validator(kind).iter_errors(data)]


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(schema(kind))


@pytest.mark.parametrize("kind", SCHEMA_KINDS)
def test_written_schema_is_current(kind: str) -> None:
    path = CONFIGS / "schemas" / f"{kind}.schema.json"
    assert path.read_text() == schema_text(kind), f"write it anew: scaleacross schema {kind} > {path}"
    Draft202012Validator.check_schema(schema(kind))


@pytest.mark.parametrize(("kind", "path"), FILES, ids=[path.stem for _, path in FILES])
def test_bundled_file_names_its_schema_and_meets_it(kind: str, path: Path) -> None:
    text = path.read_text()
    assert text.splitlines()[0] == f"# yaml-language-server: $schema=../schemas/{kind}.schema.json"
    assert errors(kind, yaml.safe_load(text)) == []


def bundled(name: str) -> Any:
    return yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())


@pytest.mark.parametrize("key", ["memory_gib", "memory_gb", "memory_bytes"])
def test_quantity_in_any_unit(key: str) -> None:
    data = bundled("accelerators/h100-sxm")
    data[key] = data.pop("memory_mib")
    assert errors("accelerator", data) == []


@pytest.mark.parametrize(
    ("kind", "name", "change", "refusal"),
    [
        ("accelerator", "accelerators/h100-sxm", {"memory_mib": None}, "is not of type 'number'"),
        ("accelerator", "accelerators/h100-sxm", {"memory_parsec": 3}, "'memory_parsec' was unexpected"),
        (
            "accelerator",
            "accelerators/h100-sxm",
            {"memory_bandwidth_tbyte_per_s": -1},
            "less than or equal to the minimum of 0",
        ),
        ("job", "jobs/llama3_8b_one_building", {"global_batch_tokens": 8192}, "is valid under each of"),
        ("job", "jobs/llama3_8b_one_building", {"precision": "fp64"}, "'fp64' is not one of"),
        ("workload", "workloads/llama3.1-8b", {"family": "rnn"}, "is not valid under any of the given schemas"),
        ("topology", "topologies/one_building", {"building_default": {}}, "'building_default' was unexpected"),
    ],
)
def test_wrong_file_is_refused(kind: str, name: str, change: dict[str, Any], refusal: str) -> None:
    data = bundled(name)
    assert errors(kind, data) == []
    assert any(refusal in message for message in errors(kind, {**data, **change}))


def test_required_quantity_must_stand_in_some_unit() -> None:
    data = bundled("accelerators/h100-sxm")
    del data["memory_mib"]
    assert any("is not valid under any of the given schemas" in message for message in errors("accelerator", data))


def test_job_accepts_tokens_and_single_values() -> None:
    job = bundled("jobs/llama3_8b_one_building")
    del job["global_batch_sequences"]
    assert errors("job", job) != []
    assert errors("job", {**job, "global_batch_tokens": 4_194_304, "recompute": "full", "num_chunks": 2}) == []
    assert errors("job", {**job, "global_batch_tokens": "4M", "sequence_length": "8K"}) == []
    assert errors("job", {**job, "global_batch_tokens": "4X"})


def test_topology_accepts_objects_where_names_stand() -> None:
    data = bundled("topologies/one_building")
    data["building_defaults"]["accelerator"] = bundled("accelerators/h200")
    assert errors("topology", data) == []
    del data["building_defaults"]["accelerator"]["num_multiprocessors"]
    assert errors("topology", data) != []


def test_bound_that_would_need_conversion_is_an_error() -> None:
    class Slow(Spec):
        delay_s: float = Field(ge=1)

    with pytest.raises(ValueError, match="'delay_s' has a unit and a bound other than 0"):
        json_schema(Slow, "slow")


def test_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(
        InputError, match="there are: accelerator, network, topology, graph, workload, job, plan, decision"
    ):
        schema("building")
