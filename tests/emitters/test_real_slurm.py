"""Emitted scripts under a real slurmctld with four hosts of unequal GPU counts, all of them on this machine."""

from __future__ import annotations

import csv
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from plans import make_plan, two_buildings

from scaleacross.emitters import emit
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.plan import Plan
from scaleacross.spec.topology import Topology

TOOLS = ("slurmctld", "slurmd", "munged", "mungekey", "sbatch", "squeue", "scontrol")
GPUS = {"east-h00000": 4, "east-h00001": 4, "west-h00000": 2, "west-h00001": 2}
PP_INSIDE: tuple[GridAxis, ...] = ("pp", "tp", "cp", "dp_shard", "dp_replicate")
PATIENCE_S = 60.0
CONFIG = """\
ClusterName=plans
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
GresTypes=gpu
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
PartitionName=west Nodes=west-h00000,west-h00001 State=UP
"""


class Cluster(NamedTuple):
    """Environment of SLURM's clients."""

    env: dict[str, str]

    def run(self, *words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=cwd, env={**self.env, **env}, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no SLURM here ({', '.join(missing)} missing): apt install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("a slurmctld of our own needs root")
    folder = tmp_path_factory.mktemp("slurm")
    first, *ports = free_ports(1 + len(GPUS))
    nodes = []
    for port, (name, gpus) in zip(ports, GPUS.items(), strict=True):
        for number in range(gpus):
            (folder / f"{name}.gpu{number}").touch()
        nodes.append(
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs={gpus} Gres=gpu:{gpus}"
        )
    gres = (f"NodeName={name} Name=gpu File={folder}/{name}.gpu[0-{gpus - 1}]\n" for name, gpus in GPUS.items())
    (folder / "gres.conf").write_text("".join(gres))
    (folder / "slurm.conf").write_text(
        CONFIG.format(host=socket.gethostname(), folder=folder, port=first, nodes="\n".join(nodes))
    )
    (folder / "state").mkdir()
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    subprocess.run(["mungekey", "-c", "-k", str(folder / "key")], check=True, capture_output=True)
    paths = {
        "socket": "munge.socket",
        "key-file": "key",
        "pid-file": "munge.pid",
        "log-file": "munge.log",
        "seed-file": "seed",
    }
    munged = ["munged", "-F", "-f", *(f"--{option}={folder / name}" for option, name in paths.items())]
    daemons = [munged, ["slurmctld", "-D", "-c"], *(["slurmd", "-D", "-N", name] for name in GPUS)]
    running = []
    try:
        for number, words in enumerate(daemons):
            log = (folder / f"daemon{number}.log").open("w")
            running.append(subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.STDOUT))
            if words is munged:
                wait_for((folder / "munge.socket").exists, "munged", folder)
        found = Cluster(env)
        wait_for(lambda: idle(found, folder) == len(GPUS), "four idle hosts", folder)
        yield found
    finally:
        for daemon in reversed(running):
            daemon.terminate()
        for daemon in running:
            daemon.wait(timeout=30)


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def idle(cluster: Cluster, folder: Path) -> int:
    return cluster.run("sinfo", "-h", "-N", "-p", "all", "-o", "%t", cwd=folder).stdout.split().count("idle")


def wait_for(test: Callable[[], bool], what: str, folder: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not test():
        logs = "".join(path.read_text()[-600:] for path in sorted(folder.glob("*.log")))
        assert time.monotonic() < end, f"no {what} within {PATIENCE_S:g} s:\n{logs}"
        time.sleep(0.2)


def unequal(axis_order: tuple[GridAxis, ...], degrees: Degrees, **slurm: object) -> Plan:
    """Two hosts of four GPUs in east, two of two in west."""
    pair = two_buildings((2, 2))
    (region,) = pair.regions
    east, west = region.buildings
    region = region.model_copy(update={"buildings": (east, west.model_copy(update={"accelerators_per_host": 2}))})
    topology = Topology.model_validate(pair.model_copy(update={"regions": (region,)}).model_dump())
    return make_plan(
        degrees, axis_order, topology=topology, allocation=[("east", 8), ("west", 4)], num_micro_batches=4, slurm=slurm
    )


@pytest.mark.consumer
@pytest.mark.parametrize(
    ("target", "plan", "het"),
    [
        ("torchrun", unequal(PP_INSIDE, Degrees(dp_shard=12)), True),
        ("torchrun", unequal(PP_INSIDE, Degrees(dp_shard=12), partition={"east": "all", "west": "west"}), True),
        ("torchtitan", unequal(PP_INSIDE, Degrees(dp_shard=6, pp=2)), False),
    ],
    ids=["unequal hosts", "a partition each", "hosts that alternate"],
)
def test_slurm_starts_every_rank_on_its_host(
    cluster: Cluster, target: str, plan: Plan, het: bool, tmp_path: Path
) -> None:
    emit(plan, target, tmp_path)
    folder, program = tmp_path / target, tmp_path / "python"
    program.write_text('#!/usr/bin/env bash\necho "$RANK $SLURMD_NODENAME $LOCAL_RANK $WORLD_SIZE" >> "$RECORD"\n')
    program.chmod(0o755)
    record = tmp_path / "record"
    assert ("#SBATCH hetjob" in (folder / "slurm.sbatch").read_text()) == het
    tried = cluster.run("./submit.sh", "train.py", cwd=folder, SBATCH_OPTIONS="--test-only")
    assert tried.returncode == 0, tried.stderr
    done = cluster.run("./submit.sh", "train.py", cwd=folder, PYTHON=str(program), RECORD=str(record))
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not cluster.run("squeue", "-h", cwd=folder).stdout.strip(), "end of the job", folder)
    told = "".join(path.read_text() for path in folder.glob("slurm-*.out"))
    assert record.exists(), told
    rows = sorted(tuple(line.split()) for line in record.read_text().splitlines())
    with (folder / "ranks.csv").open(encoding="utf-8") as file:
        planned = sorted((row["rank"], row["host"], row["local"], "12") for row in csv.DictReader(file))
    assert rows == planned, told


@pytest.mark.consumer
def test_slurm_accepts_the_plan_on_a_topology_read_from_its_own_files(cluster: Cluster, tmp_path: Path) -> None:
    """SLURM accepts the plan on a topology imported from its own files.

    ``import slurm`` reads the cluster's topology.conf and the output of scontrol. sbatch then accepts the plan
    unchanged.
    """
    (tmp_path / "topology.conf").write_text(
        "SwitchName=core Switches=east,west\nSwitchName=east Nodes=east-h0000[0-1]\nSwitchName=west Nodes=west-h0000[0-1]\n"
    )
    (tmp_path / "nodes.txt").write_text(cluster.run("scontrol", "show", "node", cwd=tmp_path).stdout)
    read = ["import", "slurm", "topology.conf", "nodes.txt", "--accelerator", "h100", "--trunk", "400G", "--km", "10"]
    read += [
        "--building",
        "east=east-h0000[0-1]",
        "--building",
        "west=west-h0000[0-1]",
    ]  # two leaves may be racks of one
    asked = [
        "--model",
        "llama3.1-8b",
        "--topology",
        "topology.yaml",
        "--tokens",
        "192K",
        "--seq",
        "2048",
        "--cpu-limit",
        "5",
    ]
    for words in ((*read, "-o", "topology.yaml"), ("plan", *asked, "-o", "build", "--quiet")):
        ran = cluster.run(sys.executable, "-m", "scaleacross", *words, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
    folder = tmp_path / "build" / "torchrun"
    names = {line.split()[0] for line in (folder / "hosts.txt").read_text().splitlines() if not line.startswith("#")}
    assert names <= set(GPUS) and len(names) >= 2
    tried = cluster.run("./submit.sh", "train.py", cwd=folder, SBATCH_OPTIONS="--test-only")
    assert tried.returncode == 0, tried.stderr
