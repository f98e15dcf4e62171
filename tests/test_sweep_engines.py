"""Studies on clusters give the same rows as local ones, and errors name a fix.

The test starts the worker processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import scaleacross as sa
from instances import plain_job
from scaleacross.api.engines import Engine, outcome, run_points
from scaleacross.cli import app

HERE = Path(__file__).parent
STUDY: dict[str, Any] = {
    "name": "small",
    "base": [
        plain_job(2, degrees={"tp": 1, "cp": 1}, schedules=["1F1B"], recompute=["none"]).model_dump(
            mode="json", exclude_none=True
        )
    ],
    "grid": {"global_batch_sequences": [8, 16, 24], "degrees.tp": [1, 3]},
}
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}


def breaks_at_one(point: int) -> dict[str, Any]:
    """A task whose second point kills its worker."""
    if point == 1:
        os._exit(3)
    return {"status": "optimal", "pid": os.getpid()}


def without_time(result: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in result.rows]


@pytest.fixture(scope="module")
def dask_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler and two workers of one thread, each a process of its own with a nanny that starts it again."""
    pytest.importorskip("distributed", reason="extra dask is not installed")
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    quiet: dict[str, Any] = {
        "env": ENVIRONMENT,
        "cwd": folder,
        "stderr": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "start_new_session": True,
    }
    scheduler = ["dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    worker = ["dask_worker", "--nthreads", "1", "--nanny"]
    processes = []
    try:
        for module, *options in (scheduler, worker, worker):
            command = [sys.executable, "-m", f"distributed.cli.{module}", *options, "--no-dashboard"]
            processes.append(subprocess.Popen([*command, "--scheduler-file", str(file)], **quiet))
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield str(json.loads(file.read_text())["address"])
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in reversed(processes):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # a nanny and its worker


@pytest.fixture(scope="module")
def ray_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A head node of two cores with its own worker processes."""
    ray = pytest.importorskip("ray", reason="extra ray is not installed")
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = ENVIRONMENT["PYTHONPATH"]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        yield str(cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_dask_gives_the_same_rows(dask_address: str, tmp_path: Path) -> None:
    seen: list[int] = []
    result = sa.sweep(
        STUDY, directory=tmp_path, engine="dask", address=dask_address, progress=lambda p: seen.append(p.done)
    )
    assert without_time(result) == without_time(sa.sweep(STUDY))
    assert [row["status"] for row in result.rows] == ["optimal", "infeasible"] * 3
    assert seen == list(range(7))
    again = sa.sweep(STUDY, directory=tmp_path)
    assert (again.num_run, again.num_reused) == (0, 6)  # the file equals that of local processes


@pytest.mark.slow
def test_a_dask_worker_that_dies_costs_its_point_only(dask_address: str) -> None:
    records: dict[int, dict[str, Any]] = {}
    run_points(breaks_at_one, range(4), Engine("dask", address=dask_address), records.__setitem__)
    assert [records[index]["status"] for index in range(4)] == ["optimal", "failed", "optimal", "optimal"]
    assert "KilledWorker" in records[1]["reason"]
    assert all(records[index]["pid"] != os.getpid() for index in (0, 2, 3))


def test_dask_blames_no_point_for_its_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask does not blame a point for its neighbour.

    The scheduler may blame point 3 for workers that point 1 killed. Point 3 runs again, alone, and succeeds.
    """
    distributed = pytest.importorskip("distributed", reason="extra dask is not installed")
    from scaleacross.api.engines import dask_cluster as engine

    def answer(point: int, together: int) -> dict[str, Any]:
        if point == 1 or (point == 3 and together > 1):
            raise distributed.KilledWorker(f"point {point}", SimpleNamespace(address="tcp://worker"), 3)
        return {"status": "optimal"}

    class Cluster(SimpleNamespace):
        def submit(self, task: Any, point: int, pure: bool) -> SimpleNamespace:
            self.together.append(point)
            return Blamed(result=lambda: task(point, len(self.together)))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def cancel(self, futures: list[Any]) -> None:
            self.together.clear()

    class Blamed(SimpleNamespace):
        __hash__ = object.__hash__

    cluster = Cluster(together=[], loop=None)
    monkeypatch.setattr(engine, "Client", lambda *_, **__: cluster)
    monkeypatch.setattr(engine, "_check", lambda *_: None)
    monkeypatch.setattr(engine, "as_completed", lambda futures, loop: futures)
    records: dict[int, dict[str, Any]] = {}
    engine.run_points(answer, range(4), "tcp://head:8786", records.__setitem__)
    assert [records[index]["status"] for index in range(4)] == ["optimal", "failed", "optimal", "optimal"]


@pytest.mark.slow
def test_ray_gives_the_same_rows(ray_address: str, tmp_path: Path) -> None:
    result = sa.sweep(STUDY, directory=tmp_path, engine="ray", address=ray_address)
    assert without_time(result) == without_time(sa.sweep(STUDY))
    assert result.num_run == 6


@pytest.mark.slow
def test_a_ray_worker_that_dies_costs_its_point_only(ray_address: str) -> None:
    records: dict[int, dict[str, Any]] = {}
    run_points(breaks_at_one, range(4), Engine("ray", address=ray_address), records.__setitem__)
    assert [records[index]["status"] for index in range(4)] == ["optimal", "failed", "optimal", "optimal"]
    assert "WorkerCrashedError" in records[1]["reason"]
    assert all(records[index]["pid"] != os.getpid() for index in (0, 2, 3))


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (Engine("spark"), "no engine 'spark'; engines: local, dask, ray"),
        (Engine("local", address="tcp://head:8786"), r"an address \(tcp://head:8786\) needs an engine: dask or ray"),
        (Engine("local", 0), "0 processes: at least 1 is needed"),
    ],
)
def test_an_engine_that_cannot_run_says_why(engine: Engine, message: str) -> None:
    with pytest.raises(sa.InputError, match=message):
        engine.check()


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_a_missing_package_or_address_says_the_way_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleacross.api.engines.find_spec", lambda _: None)
    with pytest.raises(sa.InputError, match=rf"pip install 'scaleacross\[{name}\]'"):
        Engine(name, address="somewhere:1").check()
    monkeypatch.setattr("scaleacross.api.engines.find_spec", lambda _: object())
    with pytest.raises(sa.InputError, match="needs the address of a running cluster"):
        Engine(name).check()


@pytest.mark.skipif(find_spec("distributed") is None, reason="extra dask is not installed")
def test_a_dask_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("scaleacross.api.engines.dask_cluster.CONNECT_S", 0.5)
    command = [
        "sweep",
        "two_buildings_trunk",
        "-o",
        str(tmp_path),
        "--engine",
        "dask",
        "--address",
        "tcp://127.0.0.1:9",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in result.stderr


def test_workers_of_another_version_are_refused() -> None:
    outcome.check_versions({"a": outcome.package_version()})
    with pytest.raises(sa.InputError, match=r"1 of 2 workers run another scaleacross than .*: b has 0.0.1"):
        outcome.check_versions({"a": outcome.package_version(), "b": "0.0.1"})
