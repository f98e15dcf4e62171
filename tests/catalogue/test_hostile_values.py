"""Invalid values in every field of a job and its topology are refused by name in one sentence, or understood.

Other modules test interruptions, limits and files that are no YAML (``test_errors_in_files``, ``test_stopping``).
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cases import each
from scaleacross.catalogue import load_job
from scaleacross.cli import app
from scaleacross.errors import InputError

LINK = {"technology": "roce-400g", "one_way_latency_us": 3}
BUILDING = {
    "accelerator": "h100-sxm",
    "accelerators_per_host": 8,
    "hosts_per_rack": 2,
    "racks_per_zone": 4,
    "num_hosts": 1,
    "links": dict.fromkeys(("scale_up", "rack", "zone", "building"), LINK),
}
JOB: dict[str, Any] = {
    "name": "tiny",
    "workload": {
        "family": "dense_transformer",
        "name": "w",
        "num_layers": 4,
        "hidden_size": 512,
        "num_heads": 8,
        "num_kv_heads": 4,
        "head_dim": 64,
        "intermediate_size": 1024,
        "vocabulary_size": 4096,
        "gated_mlp": True,
        "tied_embedding": False,
    },
    "topology": {
        "name": "t",
        "regions": [{"name": "r", "buildings": [{"name": "a", **BUILDING}, {"name": "b", **BUILDING}]}],
        "trunks": [{"between": ["a", "b"], "bandwidth_gbit_per_s": 400, "one_way_latency_us": 20}],
    },
    "sequence_length": 512,
    "global_batch_sequences": 16,
    "precision": "bf16",
    "num_accelerators": 16,
    "micro_batch_sequences": [1],
    "recompute": ["none"],
    "schedules": ["1F1B"],
    "num_chunks": [1],
    "shard": ["none"],
    "objective": "step_time",
    "stages": "equal",
    "degrees": {"tp": 1, "cp": 1, "pp": 2},
    "network": {"max_channels": 4},
    "overlap": {"gradient_reduce": True},
    "optimizer": {"name": "adam"},
    "reliability": {"spares": 1},
    "failure_domains": {"level": "building", "max_replicas_lost": 8},
}
HOSTILE = (
    None, True, "x", "", -1, 0, 0.5, 1e30, math.nan, math.inf, [], {}, [[]], "1:30", 10**12, "a" * 5000, "../../etc", "\x00",
)  # fmt: skip


def paths(data: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Path of every place in nested mappings and lists, outermost first."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield (*above, key)
        yield from paths(value, (*above, key))


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """JOB with one place set to ``value``."""
    job = copy.deepcopy(JOB)
    inside: Any = job
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return job


# The second building repeats the first one's fields.
PLACES = [path for path in paths(JOB) if path[:5] != ("topology", "regions", 0, "buildings", 1)]
SECTIONS = sorted({str(path[0]) for path in PLACES})


@pytest.mark.parametrize("section", SECTIONS)
def test_a_hostile_value_is_refused_by_name_or_understood(section: str) -> None:
    for path in (path for path in PLACES if path[0] == section):
        for value in HOSTILE:
            try:
                load_job(changed(path, value))
            except InputError as refusal:
                text = str(refusal)
                named = any(str(key) in text for key in path if isinstance(key, str))
                assert named and len(text) < 2000, (path, value, text[:300])


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_key_is_refused_by_name(section: str) -> None:
    if isinstance(JOB[section], dict):
        with pytest.raises(InputError, match="mystery"):
            load_job(changed((section, "mystery"), 1))


CASES = [(path, value) for path in PLACES for value in HOSTILE]
DRAWN = random.Random(25).sample(range(len(CASES)), 220)


@pytest.mark.heavy
@each("case", quick=DRAWN[:20], proof=DRAWN, size=20)
def test_what_is_read_plans_or_is_refused_with_nothing_written(case: int, tmp_path: Path) -> None:
    """Valid input gives a plan; refused input writes nothing.

    A random part of the same cases runs through the command line.
    """
    (path, value), out = CASES[case], tmp_path / "out"
    (tmp_path / "job.json").write_text(json.dumps(changed(path, value)))
    arguments = ["plan", str(tmp_path / "job.json"), "--time-limit", "60", "-o", str(out), "--emit", "launch"]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code in (0, 2, 3), (path, value, run.output[-400:])
    if run.exit_code:
        assert "error: " in run.output and not out.exists(), (path, value, run.output[-400:])
        return
    for file in out.iterdir():
        file.unlink()
    out.rmdir()
