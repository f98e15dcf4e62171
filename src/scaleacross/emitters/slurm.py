"""slurm.sbatch, a task per accelerator in exact rank order, and submit.sh, which passes its hosts to sbatch.

* Order: SLURM_HOSTFILE with --distribution=arbitrary starts task i on line i of the file (sbatch(1)). In a
  heterogeneous job srun takes one such file per component (--nodelist with a path), and ranks run through the
  components in turn.
* Hosts of unequal GPU counts, or of several partitions, make a heterogeneous job: ``--gpus-per-node`` and
  ``--partition`` hold for a component. Where such hosts alternate in rank order, no order of components fits: one job
  asks for all GPUs together.
* CPUs: a cluster that binds tasks would bind a task per accelerator to one core. ``--cpu-bind=none`` leaves it those of
  its host, which --exclusive requests.
* ``--nodefile`` has no limit; a --nodelist of about 7,000 names no longer fits into one argument.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from scaleacross.emitters.filling import filled
from scaleacross.emitters.rank_order import RankOrder
from scaleacross.emitters.shell import Launch, header, plain, read_hosts
from scaleacross.errors import EmitError
from scaleacross.spec.launch import DEFAULT_PORT

MAX_COMPONENTS: Final = 16
"""Most components of a heterogeneous job. Each counts as a job; with more, one job asks for all GPUs together."""


def components(order: RankOrder, launch: Launch) -> list[tuple[int, ...]]:
    """Return the host indices of each component, in rank order, with equally many GPUs in one partition.

    All hosts are one component where their ranks alternate between components.

    Raises:
        EmitError: they alternate between partitions, which one job cannot ask for.
    """
    keys = [(host.num_ranks, launch.slurm.partition_of(host.building)) for host in order.hosts]
    runs = [tuple(dict.fromkeys(run)) for _, run in groupby(order.host.tolist(), key=lambda host: keys[host])]
    # a host that is in two runs alternates between components
    again = [host for host, times in Counter(host for run in runs for host in run).items() if times > 1]
    if not again and len(runs) <= MAX_COMPONENTS:
        return runs
    partitions = sorted({name for _, name in keys if name})
    if len(partitions) > 1:
        raise EmitError(
            f"slurm.partition {', '.join(partitions)}: ranks alternate between them, and no job of SLURM spans partitions out of "
            "turn; state one partition that holds all hosts, or pin degrees so that each building holds consecutive ranks"
        )
    return [tuple(range(len(order.hosts)))]


def host_of_every_rank(order: RankOrder) -> str:
    """Return slurm_hostfile: line i is the host of rank i, by its name in the plan."""
    lines = [f"{plain(host.name)}\n" for host in order.hosts]
    return "".join([lines[host] for host in order.host.tolist()])


def sbatch(order: RankOrder, launch: Launch) -> str:
    """Return the batch script."""
    parts = components(order, launch)
    sizes = [sum(order.hosts[host].num_ranks for host in part) for part in parts]
    return filled(
        "slurm.sbatch",
        options="#SBATCH hetjob\n".join(_options(order, launch, number, part) for number, part in enumerate(parts)),
        header=header(launch, "one task per accelerator, in exact rank order. Submit it with submit.sh."),
        read_hosts=read_hosts(order),
        world_size=len(order),
        port=DEFAULT_PORT,
        srun=_srun(sizes, launch),
        task=shlex.quote(_TASK.format(preamble=launch.preamble, command=launch.task_command)),
    )


def _options(order: RankOrder, launch: Launch, number: int, part: Sequence[int]) -> str:
    """Return #SBATCH lines of one component. Options that SLURM carries over to later components are in the first."""
    hosts, slurm = [order.hosts[host] for host in part], launch.slurm
    counts = {host.num_ranks for host in hosts}
    size = sum(host.num_ranks for host in hosts)
    partitions = list(dict.fromkeys(name for host in hosts if (name := slurm.partition_of(host.building))))
    job_name = re.sub(r"[^A-Za-z0-9._-]+", "-", launch.plan_name).strip("-") or "plan"
    lines = [f"--job-name={shlex.quote(job_name)}"] if number == 0 else []
    lines += [f"--account={slurm.account}"] if slurm.account and number == 0 else []
    lines += [f"--time={slurm.time}"] if slurm.time and number == 0 else []
    lines += [f"--partition={','.join(partitions)}"] if partitions else []
    lines += [f"--nodes={len(hosts)}", f"--ntasks={size}"]
    lines.append(f"--gpus-per-node={counts.pop()}" if len(counts) == 1 else f"--gpus={size}")
    lines += [f"--nodefile=nodes.{number}.txt", "--exclusive", *slurm.extra]
    return "".join(f"#SBATCH {line}\n" for line in lines)


def _srun(sizes: Sequence[int], launch: Launch) -> str:
    """Return the line that starts all tasks. Its command is the array ``task``."""
    container = ""
    if launch.slurm.container:
        mounts = '"$here:$here${CONTAINER_MOUNTS:+,$CONTAINER_MOUNTS}"'
        container = f" --container-image={shlex.quote(launch.slurm.container)} --container-mounts={mounts}"
    common = f"--distribution=arbitrary --cpu-bind=none --kill-on-bad-exit=1{container}"
    if len(sizes) == 1:
        return f'SLURM_HOSTFILE="$PLAN_HOSTFILE" srun --ntasks={sizes[0]} {common} "${{task[@]}}"'
    steps = []
    for number, size in enumerate(sizes):
        file = f"$PLAN_HOSTFILE.{number}"
        steps.append(f'--het-group={number} --ntasks={size} --nodelist="{file}" {common} "${{task[@]}}"')
    cut = "\n".join(_cut(sizes))
    return f"{cut}\nsrun {' : '.join(steps)}"


def _cut(sizes: Sequence[int]) -> list[str]:
    """Return lines that split the host file into one file per component."""
    out, first = [], 1
    for number, size in enumerate(sizes):
        out.append(f'sed -n "{first},{first + size - 1}p" "$PLAN_HOSTFILE" > "$PLAN_HOSTFILE.{number}"')
        first += size
    return out


def submit(order: RankOrder, launch: Launch) -> str:
    """Return submit.sh, which writes column 1 of hosts.txt to one file per component and then calls sbatch."""
    parts = components(order, launch)
    component = {host: number for number, part in enumerate(parts) for host in part}
    counts = [component[host] for host in range(len(order.hosts))]
    return filled(
        "submit.sh",
        header=header(launch, "submits slurm.sbatch on exactly the hosts of hosts.txt, column 1."),
        read_hosts=read_hosts(order),
        runs=" ".join(f"{number}:{len(list(run))}" for number, run in groupby(counts)),
        required="".join(
            f': "${{{name}:?set {name} to {what}, as every host sees it}}"\n' for name, what in launch.required
        ),
    )


_TASK: Final = """\
set -euo pipefail
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"
export LOCAL_WORLD_SIZE="$(grep -cxF -- "$(sed -n "$((RANK + 1))p" "$PLAN_HOSTFILE")" "$PLAN_HOSTFILE")"
{preamble}exec {command}
"""
