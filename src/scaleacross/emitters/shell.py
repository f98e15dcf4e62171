"""Shell files that every launcher needs: hosts.txt, run_node.sh (torchrun, once per host), slurm.sbatch (a task per accelerator).

Rank order is the whole point of these files:

* torchrun: the static rendezvous gives node R the ranks after those of nodes 0..R-1. The c10d rendezvous sorts nodes by address
  text and ignores --node-rank (torch 2.13, distributed/elastic/rendezvous/dynamic_rendezvous.py), so it is not used.
* Slurm: SLURM_HOSTFILE with --distribution=arbitrary starts task i on line i of the file (sbatch(1)).

Text that comes from the user never reaches a script unchecked: host names are refused unless they are plain, everything else is
quoted by ``shlex.quote`` or reduced to one comment line.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final

from scaleacross.emitters.rank_order import RankOrder
from scaleacross.errors import EmitError

PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Launch:
    """What is started on every rank.

    Attributes:
        plan_name: name of the job, free text.
        framework: whose rank order this is, for messages.
        torchrun_command: words after torchrun's own options, as shell text (already quoted).
        task_command: command line of one process when it is started without torchrun, as shell text (already quoted).
        preamble: shell lines run before either command; $here is the folder of these files.
    """

    plan_name: str
    framework: str
    torchrun_command: str
    task_command: str
    preamble: str = ""


def one_line(text: str) -> str:
    """``text`` as part of a comment: control characters and line breaks become spaces."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def plain(name: str) -> str:
    """``name`` if it is safe as a host name in files that know no quoting.

    Raises:
        EmitError: anything but letters, digits, dot, underscore and hyphen, or a leading punctuation mark.
    """
    if not PLAIN_NAME.fullmatch(name):
        raise EmitError(
            f"host name {name!r} cannot be written to a host file: rename the building to letters, digits, '.', '_' and '-' only"
        )
    return name


def launch_files(order: RankOrder, launch: Launch) -> dict[str, str]:
    """hosts.txt, run_node.sh, slurm_hostfile, slurm.sbatch for one rank order.

    Where the ranks of a host are not one block, run_node.sh says so and stops: Slurm starts every rank by itself.

    Raises:
        EmitError: a host name with characters that a host file cannot carry.
    """
    return {
        "hosts.txt": hosts_file(order, launch),
        "run_node.sh": _run_node(order, launch),
        "slurm_hostfile": _host_of_every_rank(order),
        "slurm.sbatch": _sbatch(order, launch),
        "SUBMIT.md": submit_page(order, launch),
    }


def hosts_file(order: RankOrder, launch: Launch) -> str:
    """Hosts in node-rank order with their process counts; the first column is for the user to edit."""
    lines = [
        f"# Hosts of plan {one_line(launch.plan_name)} in the rank order of {launch.framework}: line k is node rank k.",
        "# Column 1: host name, to be replaced by the real one. Column 2: processes. Column 3: the host's name in the plan.",
        *(f"{plain(host.name)} {host.num_ranks} {host.name}" for host in order.hosts),
        *(f"# Spare hosts of {name}: {' '.join(spares)}" for name, spares in order.spares.items()),
    ]
    return "\n".join(lines) + "\n"


def submit_page(order: RankOrder, launch: Launch) -> str:
    """SUBMIT.md: the three commands that run this folder under SLURM, and the one for any other launcher."""
    program = "" if launch.torchrun_command != '"$@"' else " train.py"
    return _SUBMIT.format(
        name=one_line(launch.plan_name),
        hosts=len(order.hosts),
        world_size=len(order),
        framework=launch.framework,
        program=program,
    )


_SUBMIT: Final = """\
# Submit plan {name}: {world_size} processes on {hosts} hosts, in the rank order of {framework}

Column 1 of `hosts.txt` holds the names of the hosts as your cluster knows them. Where these are invented (`building-a-h00000`),
write the real ones there, or emit again with `scaleacross emit plan.json --hosts FILE`. Spare hosts stand at its end.

```bash
sbatch --test-only --nodelist="$(grep -v '^#' hosts.txt | cut -d' ' -f1 | paste -sd,)" slurm.sbatch{program}
sbatch --nodelist="$(grep -v '^#' hosts.txt | cut -d' ' -f1 | paste -sd,)" slurm.sbatch{program}
squeue --me
```

Without SLURM, run this on every host of `hosts.txt`, with the same folder: `./run_node.sh{program}`
"""


def _host_of_every_rank(order: RankOrder) -> str:
    lines = [f"{plain(host.name)}\n" for host in order.hosts]
    return "".join([lines[host] for host in order.host.tolist()])


def _header(launch: Launch, purpose: str) -> str:
    return f"# Plan {one_line(launch.plan_name)}: {purpose}"


def _run_node(order: RankOrder, launch: Launch) -> str:
    split = order.split_host()
    if split is not None:
        message = (
            f"The ranks of host {plain(split)} are not consecutive in the rank order of {launch.framework}, and torchrun gives "
            "every host one block of ranks: use slurm.sbatch, which starts each rank by itself."
        )
        return f"#!/usr/bin/env bash\nset -euo pipefail\necho {shlex.quote(message)} >&2\nexit 2\n"
    return _RUN_NODE.format(
        header=_header(launch, "starts the processes of this host. Run it on every host, with the same files."),
        num_hosts=len(order.hosts),
        world_size=len(order),
        preamble=launch.preamble,
        command=launch.torchrun_command,
    )


def _sbatch(order: RankOrder, launch: Launch) -> str:
    job_name = re.sub(r"[^A-Za-z0-9._-]+", "-", launch.plan_name).strip("-") or "plan"
    return _SBATCH.format(
        header=_header(launch, "one task per accelerator, in exact rank order."),
        job_name=shlex.quote(job_name),
        num_hosts=len(order.hosts),
        world_size=len(order),
        most_per_host=max(host.num_ranks for host in order.hosts),
        task=shlex.quote(_TASK.format(preamble=launch.preamble, command=launch.task_command)),
    )


# Both scripts share the reading of hosts.txt: names[] and counts[] by node rank.
_READ_HOSTS: Final = """\
hosts_file="${{HOSTS_FILE:-$here/hosts.txt}}"
if [[ -f "$here/../nccl.env" ]]; then set -a; source "$here/../nccl.env"; set +a; fi
names=(); counts=(); planned=()
while read -r name count plan_name _ || [[ -n "$name" ]]; do
  [[ -z "$name" || "$name" == \\#* ]] && continue
  names+=("$name"); counts+=("$count"); planned+=("$plan_name")
done < "$hosts_file"
total=0; for count in "${{counts[@]}}"; do total=$((total + count)); done
if (( ${{#names[@]}} != {num_hosts} || total != {world_size} )); then
  echo "$hosts_file: ${{#names[@]}} hosts with $total processes; the plan has {num_hosts} hosts with {world_size}" >&2; exit 2
fi
twice="$(printf '%s\\n' "${{names[@]}}" | sort | uniq -d | head -n 1)"
if [[ -n "$twice" ]]; then echo "$hosts_file: host $twice is listed twice" >&2; exit 2; fi
"""

_RUN_NODE: Final = (
    """\
#!/usr/bin/env bash
{header}
# Settings: HOSTS_FILE (default: hosts.txt beside this script), NODE_NAME (default: this host's name), MASTER_PORT (29500),
# TORCHRUN (torchrun). Arguments are passed on to the training program.
#
# The rendezvous is static on purpose: c10d would sort the hosts by address and so undo the plan's rank order.
set -euo pipefail
here="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
"""
    + _READ_HOSTS
    + """\
long_name="${{NODE_NAME:-$(hostname)}}"
short_name="${{NODE_NAME:-${{long_name%%.*}}}}"
node_rank=-1
for k in "${{!names[@]}}"; do
  if [[ "${{names[k]}}" == "$long_name" || "${{names[k]}}" == "$short_name" ]]; then node_rank=$k; fi
done
if (( node_rank < 0 )); then
  echo "host $long_name is not in $hosts_file: write its name into column 1, or set NODE_NAME" >&2; exit 2
fi
{preamble}exec "${{TORCHRUN:-torchrun}}" --nnodes {num_hosts} --nproc-per-node "${{counts[node_rank]}}" \\
  --node-rank "$node_rank" --rdzv-backend static --master-addr "${{MASTER_ADDR:-${{names[0]}}}}" \\
  --master-port "${{MASTER_PORT:-29500}}" \\
  {command}
"""
)

_SBATCH: Final = (
    """\
#!/usr/bin/env bash
#SBATCH --job-name={job_name}
#SBATCH --nodes={num_hosts}
#SBATCH --ntasks={world_size}
#SBATCH --gpus-per-node={most_per_host}
#SBATCH --exclusive
{header}
# Submit from this directory (shared by all hosts), on the hosts of column 1:
#   sbatch --nodelist="$(grep -v '^#' hosts.txt | cut -d' ' -f1 | paste -sd,)" slurm.sbatch [arguments of the training program]
# Task i runs on line i of the host file: --distribution=arbitrary, stated because a topology plugin would reorder tasks.
set -euo pipefail
here="${{PLAN_DIR:-${{SLURM_SUBMIT_DIR:-$PWD}}}}"
"""
    + _READ_HOSTS
    + """\
export PLAN_HOSTFILE="$here/.slurm_hostfile.${{SLURM_JOB_ID:?run this under sbatch}}"
trap 'rm -f -- "$PLAN_HOSTFILE"' EXIT
declare -A real=()
for k in "${{!names[@]}}"; do real["${{planned[k]}}"]="${{names[k]}}"; done
while read -r plan_name; do
  [[ -n "${{real[$plan_name]:-}}" ]] || {{ echo "$hosts_file: column 3 has no host $plan_name" >&2; exit 2; }}
  printf '%s\\n' "${{real[$plan_name]}}"
done < "$here/slurm_hostfile" > "$PLAN_HOSTFILE"
missing="$(comm -23 <(printf '%s\\n' "${{names[@]}}" | sort) <(scontrol show hostnames "$SLURM_JOB_NODELIST" | sort) | head -n 1)"
if [[ -n "$missing" ]]; then
  echo "host $missing of $hosts_file is not in this allocation: submit with --nodelist as shown above" >&2; exit 2
fi
export MASTER_ADDR="${{MASTER_ADDR:-$(head -n 1 "$PLAN_HOSTFILE")}}" MASTER_PORT="${{MASTER_PORT:-29500}}"
export WORLD_SIZE={world_size}
export SLURM_HOSTFILE="$PLAN_HOSTFILE" here
srun --ntasks={world_size} --distribution=arbitrary --kill-on-bad-exit=1 bash -c {task} task "$@"
"""
)

_TASK: Final = """\
set -euo pipefail
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"
export LOCAL_WORLD_SIZE="$(grep -cxF -- "$(sed -n "$((RANK + 1))p" "$PLAN_HOSTFILE")" "$PLAN_HOSTFILE")"
{preamble}exec {command}
"""
