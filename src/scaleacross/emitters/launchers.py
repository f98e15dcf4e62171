"""The files that start a plan with torchrun or SLURM, for one rank order."""

from __future__ import annotations

from typing import Final

from scaleacross.emitters.rank_order import RankOrder
from scaleacross.emitters.shell import Launch, hosts_file, one_line, run_node
from scaleacross.emitters.slurm import host_of_every_rank, sbatch, submit


def launch_files(order: RankOrder, launch: Launch) -> dict[str, str]:
    """hosts.txt, run_node.sh, slurm_hostfile, slurm.sbatch, submit.sh and SUBMIT.md for one rank order.

    Where the ranks of a host are not one block, run_node.sh says so and stops: SLURM starts every rank by itself.

    Raises:
        EmitError: a host name with characters that a host file cannot carry.
    """
    return {
        "hosts.txt": hosts_file(order, launch),
        "run_node.sh": run_node(order, launch),
        "slurm_hostfile": host_of_every_rank(order),
        "slurm.sbatch": sbatch(order, launch),
        "submit.sh": submit(order, launch),
        "SUBMIT.md": submit_page(order, launch),
    }


def submit_page(order: RankOrder, launch: Launch) -> str:
    """SUBMIT.md: the three commands that run this folder under SLURM, and the one for any other launcher."""
    return _SUBMIT.format(
        name=one_line(launch.plan_name),
        hosts=len(order.hosts),
        world_size=len(order),
        framework=launch.framework,
        program="" if launch.torchrun_command != '"$@"' else " train.py",
    )


_SUBMIT: Final = """\
# Submit plan {name}: {world_size} processes on {hosts} hosts, in the rank order of {framework}

Column 1 of `hosts.txt` holds the names of the hosts as your cluster knows them. Where these are invented (`building-a-h00000`),
write the real ones there, or emit again with `scaleacross emit plan.json --hosts FILE`. Spare hosts stand at its end.

```bash
SBATCH_OPTIONS=--test-only ./submit.sh{program}   # does SLURM accept it?
./submit.sh{program}                              # sbatch on exactly these hosts, by --nodefile
squeue --me
```

Partition, account, time limit and container come from `slurm:` of the job, or from `SBATCH_OPTIONS`.
Without SLURM, run this on every host of `hosts.txt`, with the same folder: `./run_node.sh{program}`
"""
