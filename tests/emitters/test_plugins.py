"""Packages that extend scaleacross: the example works everywhere, and a broken one gives an error that names it.

Entry points are read once per process, so each test starts one. Packages are installed as pip leaves them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
Points = dict[str, dict[str, str]]


def install(folder: Path, points: Points, package: str) -> None:
    """What pip leaves of a package: its name, its version, its entry points."""
    info = folder / f"{package.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
    sections = (f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in points.items())
    (info / "entry_points.txt").write_text("\n".join(sections))


def python(folder: Path, program: str, given: Any) -> Any:
    """What ``program`` prints last, as JSON, in a process where the packages in ``folder`` are installed."""
    path = os.pathsep.join(map(str, (folder, EXAMPLE / "src", ROOT / "src")))
    environ = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(given)], cwd=folder, env=environ, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


COMMANDS = """
import json, sys
from typer.testing import CliRunner
from scaleacross.cli import app
out = []
for arguments, text in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, arguments, input=text)
    out.append([done.exit_code, done.stdout, done.stderr])
print(json.dumps(out))
"""
JOB = f"""
name: added
workload: {{family: classic_transformer, name: classic, num_layers: 8, hidden_size: 1024, vocabulary_size: 8192}}
topology: {ROOT / "configs/topologies/one_building.yaml"}
sequence_length: 1024
global_batch_sequences: 16
num_accelerators: 16
degrees: {{tp: 1, cp: 1, pp: 4}}
schedules: [OneAtATime]
recompute: [none]
shard: [optimizer]
"""


@pytest.mark.slow
def test_the_example_works_in_every_place(tmp_path: Path) -> None:
    points: Points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    install(tmp_path, points, "scaleacross-example")
    few = ["--work-limit", "20"]
    commands = [
        [["plan", "-", "--quiet", *few, "-o", "out", "--emit", "launch,markdown,pipeline_csv"], JOB],
        [["verify", "out/plan.json", "--deep"], None],
        [["compare", "-", *few], JOB.replace("[OneAtATime]", "[1F1B]").replace("pp: 4", "pp: 1")],
        [["catalogue"], None],
    ]
    planned, verified, compared, listed = python(tmp_path, COMMANDS, commands)
    assert (planned[0], verified[0], compared[0]) == (0, 0, 0), (planned, verified, compared)
    assert "| pp | 4 |" in (tmp_path / "out/plan.md").read_text()
    assert json.loads((tmp_path / "out/plan.json").read_text())["decision"]["pipeline"]["schedule"] == "OneAtATime"
    assert "data_parallel" in compared[1]
    assert listed[0] == 0, listed
    for kind, names in points.items():
        assert f"added {kind.removeprefix('scaleacross.')}" in listed[1]
        assert all(name in listed[1] for name in names)
    assert "broken" not in listed[1]
    assert python(tmp_path, PROVE, None) == 27


PROVE = """
from scaleacross.schedules.collective import Operation, flat, layered
from scaleacross.schedules.collective.check import check
proved = 0
for operation in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER):
    for ranks in range(1, 9):
        check(flat(operation, "backward_ring", ranks))
        proved += 1
    check(layered(operation, ((0, 1, 2), (3, 4)), ["ring", "backward_ring"]))
    proved += 1
print(proved)
"""
MODULE = """
from scaleacross.schedules.pipeline import PipelineSchedule, ScheduleFamily, one_f_one_b
from scaleacross.solvers.baselines import Baseline
from scaleacross.workloads.dense_transformer import DenseTransformer as Model
THREE = 3
ILLEGAL = ScheduleFamily(lambda p, m, v: PipelineSchedule("illegal", p, m, 1, ((),) * p), lambda p, m, v: None)
FEWER = ScheduleFamily(lambda p, m, v: one_f_one_b.generate(p, m - 1, v), lambda p, m, v: None)
OTHER = ScheduleFamily(one_f_one_b.generate, lambda p, m, v: None)
def failing(problem, clock): raise KeyError("key")
CRASHES = Baseline("Crashes", "nowhere", failing)
NOTHING = Baseline("Nothing", "nowhere", lambda problem, clock: None)
RAISES = ScheduleFamily(lambda p, m, v: 1 / 0, lambda p, m, v: None)
def nonsense(plan): return plan.nonsense
def outside(plan): return {"../x": ""}
def number(plan): return 3
def nothing(plan): return {}
"""
REAL = JOB.replace(JOB.splitlines()[2], "workload: llama3.1-8b").replace("[OneAtATime]", "[1F1B]")
BROKEN: dict[str, tuple[str, str, str]] = {  # name: kind, object, what is said
    "gone": ("schedules", "nowhere:FAMILY", "ModuleNotFoundError"),
    "missing": ("schedules", "broken:MISSING", "AttributeError"),
    "three": ("schedules", "broken:THREE", "ScheduleFamily is expected, not a int"),
    "illegal": ("schedules", "broken:ILLEGAL", "VerificationError"),
    "fewer": ("schedules", "broken:FEWER", "num_microbatches 1 where 2 is asked for"),
    "other": ("schedules", "broken:OTHER", "name '1F1B' where 'other' is asked for"),
    "raises": ("schedules", "broken:RAISES", "ZeroDivisionError"),
    "nonsense": ("emitters", "broken:nonsense", "AttributeError"),
    "outside": ("emitters", "broken:outside", "'../x'"),
    "number": ("emitters", "broken:number", "dict is expected"),
    "nothing": ("emitters", "broken:nothing", "it returns no file"),
    "renamed": ("workloads", "broken:Model", "not 'renamed'"),
}


@pytest.mark.slow
def test_a_broken_package_is_named_and_the_rest_works(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(MODULE)
    points: Points = {}
    for name, (kind, value, _) in BROKEN.items():
        points.setdefault(f"scaleacross.{kind}", {})[name] = value
    points["scaleacross.schedules"]["1F1B"] = "nowhere:FAMILY"
    install(tmp_path, points, "broken-package")
    install(tmp_path, {"scaleacross.schedules": {"gone": "nowhere:FAMILY"}}, "another")
    shape = ["--stages", "2", "--microbatches", "2"]
    job = f"{JOB.replace('classic_transformer', 'renamed')}"
    use: dict[str, Any] = {
        "schedules": lambda name: [["schedule", "--name", name, *shape], None],
        "emitters": lambda name: [["emit", "real/plan.json", "--to", name, "-o", "out"], None],
        "workloads": lambda name: [["plan", "-"], job.replace("[OneAtATime]", "[1F1B]")],
    }
    commands = [use[kind](name) for name, (kind, _, _) in BROKEN.items()]
    real = [["plan", "-", "--work-limit", "1", "-o", "real", "--emit", "launch"], REAL]
    planned, *failed, listed = python(tmp_path, COMMANDS, [real, *commands, [["catalogue"], None]])
    assert planned[0] == 0, planned
    for (name, (_, _, said)), (code, _, text) in zip(BROKEN.items(), failed, strict=True):
        assert code == 2 and f"plugin '{name}' of broken-package 0.1.0" in text, (name, text)
        assert ("one name, two packages" if name == "gone" else said) in text, (name, text)
    assert not (tmp_path / "out").exists()
    shown = " ".join(listed[1].split())
    assert shown.count("broken: ") >= 5
    assert "broken-package 0.1.0; ignored: a bundled one has this name" in shown


@pytest.mark.slow
def test_broken_baselines_are_named_and_the_others_compared(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(MODULE)
    broken = {
        "crashes": ("broken:CRASHES", "KeyError: 'key'"),
        "no-outcome": ("broken:NOTHING", "Outcome is expected, not a NoneType"),
        "no-baseline": ("nowhere:BASELINE", "ModuleNotFoundError"),
    }
    install(tmp_path, {"scaleacross.baselines": {name: value for name, (value, _) in broken.items()}}, "broken-package")
    job = REAL.replace("pp: 4", "pp: 1")
    ((code, text, messages),) = python(tmp_path, COMMANDS, [[["compare", "-", "--json", "--work-limit", "20"], job]])
    assert code == 0, messages
    results = {one["name"]: one for one in json.loads(text)["rivals"]}
    assert results["production"]["decision"]
    for name, (_, said) in broken.items():
        assert results[name]["decision"] is None
        assert f"plugin '{name}' of broken-package 0.1.0" in results[name]["reason"] and said in results[name]["reason"]
