"""What shell files share, hosts.txt, and run_node.sh (torchrun, once per host).

Rank order is the whole point of run_node.sh: the static rendezvous gives node R the ranks after those of nodes 0..R-1. The c10d
rendezvous sorts nodes by address text and ignores --node-rank (torch 2.13, distributed/elastic/rendezvous/dynamic_rendezvous.py),
so it is not used.

Text that comes from the user never reaches a script unchecked: host names are refused unless they are plain, everything else is
quoted by ``shlex.quote`` or reduced to one comment line.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Final

from scaleacross.emitters.rank_order import RankOrder
from scaleacross.errors import EmitError
from scaleacross.spec.slurm import Slurm

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
        slurm: how the job is submitted.
        folder: where these files stand inside the launch folder.
    """

    plan_name: str
    framework: str
    torchrun_command: str
    task_command: str
    preamble: str = ""
    slurm: Slurm = field(default_factory=Slurm)
    folder: str = "torchrun"


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


def hosts_file(order: RankOrder, launch: Launch) -> str:
    """Hosts in node-rank order with their process counts; the first column is for the user to edit."""
    lines = [
        f"# Hosts of plan {one_line(launch.plan_name)} in the rank order of {launch.framework}: line k is node rank k.",
        "# Column 1: host name, to be replaced by the real one. Column 2: processes. Column 3: the host's name in the plan.",
        *(f"{plain(host.name)} {host.num_ranks} {host.name}" for host in order.hosts),
        *(f"# Spare hosts of {name}: {' '.join(spares)}" for name, spares in order.spares.items()),
    ]
    return "\n".join(lines) + "\n"


def header(launch: Launch, purpose: str) -> str:
    """The comment that says what a script is for."""
    return f"# Plan {one_line(launch.plan_name)}: {purpose}"


def run_node(order: RankOrder, launch: Launch) -> str:
    """run_node.sh. Where the ranks of a host are not one block it says so and stops: torchrun gives out blocks only."""
    split = order.split_host()
    if split is not None:
        message = (
            f"The ranks of host {plain(split)} are not consecutive in the rank order of {launch.framework}, and torchrun gives "
            "every host one block of ranks: use slurm.sbatch, which starts each rank by itself."
        )
        return f"#!/usr/bin/env bash\nset -euo pipefail\necho {shlex.quote(message)} >&2\nexit 2\n"
    return _RUN_NODE.format(
        header=header(launch, "starts the processes of this host. Run it on every host, with the same files."),
        num_hosts=len(order.hosts),
        world_size=len(order),
        preamble=launch.preamble,
        command=launch.torchrun_command,
    )


# Both scripts share the reading of hosts.txt: names[] and counts[] by node rank.
READ_HOSTS: Final = """\
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
    + READ_HOSTS
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
