"""run_node.sh under the real torchrun: two hosts of unequal size, started in the wrong order, get the plan's ranks."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from plans import make_plan, two_buildings
from shells import BASH, needs_bash, stand_in

from interpreters import python_with
from scaleacross.emitters import emit
from scaleacross.spec.parallelism import Degrees

WORKER = """
import os
text = " ".join(os.environ[key] for key in ("RANK", "NODE_NAME", "LOCAL_RANK", "WORLD_SIZE"))
open(os.path.join(os.environ["RECORD"], os.environ["RANK"]), "w").write(text)
"""


@needs_bash
@pytest.mark.consumer
def test_torchrun_gives_the_plans_ranks(tmp_path: Path) -> None:
    plan = make_plan(Degrees(tp=2, pp=3), topology=two_buildings((1, 1)), allocation=[("west", 4), ("east", 2)])
    emit(plan, "torchrun", tmp_path)
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "ranks").mkdir()
    stand_in(tmp_path / "bin", "torchrun", f'exec {python_with("torch")} -m torch.distributed.run "$@"')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path), "MASTER_PORT": port}
    env |= {"MASTER_ADDR": "127.0.0.1", "RECORD": str(tmp_path / "ranks")}
    command = [str(BASH), str(tmp_path / "torchrun/run_node.sh"), str(tmp_path / "worker.py")]
    # east first, although it is node rank 1; sorted by name it would also come first
    running = [subprocess.Popen(command, env={**env, "NODE_NAME": name}) for name in ("east-h00000", "west-h00000")]
    try:
        assert [process.wait(timeout=120) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
    found = [(tmp_path / "ranks" / str(rank)).read_text() for rank in range(6)]
    west = [f"{rank} west-h00000 {rank} 6" for rank in range(4)]
    assert found == [*west, "4 east-h00000 0 6", "5 east-h00000 1 6"]
