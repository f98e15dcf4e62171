"""Target ``hostfiles``: the hosts of the plan, in rank order, in the grammar of MPI launchers and DeepSpeed.

DeepSpeed 0.19 reads ``host slots=n`` and keeps the order of the file (launcher/runner.py). Open MPI reads the same,
slot by slot with ``--map-by slot``; MPICH and Intel MPI read ``host:n``. Only DeepSpeed sets the variables that torch's
rendezvous reads. For the others run_rank.sh translates theirs and sources the plan's settings. DeepSpeed passes on
variables whose names begin with NCCL and, to several hosts, the lines of the file DS_ENV_FILE, which knows no comments
(runner.py); on one host its processes inherit all. Names of ranks: Open MPI 5.0 and Hydra of MPICH 5.0 (both ran);
Intel MPI's Hydra has the same.
"""

from __future__ import annotations

import shlex

from scaleacross.emitters.filling import filled
from scaleacross.emitters.settings import process_settings
from scaleacross.emitters.shell import one_line, plain
from scaleacross.emitters.target_order import target_order
from scaleacross.errors import EmitError
from scaleacross.spec.launch import DEFAULT_PORT
from scaleacross.spec.plan import Plan


def render(plan: Plan) -> dict[str, str]:
    """Return deepspeed, openmpi and mpich host files, run_rank.sh, settings.env and SUBMIT.md, in folder hostfiles/.

    Raises:
        EmitError: the ranks of a host are not one block, which these launchers require.
    """
    order, whose = target_order(plan)
    split = order.split_host()
    if split is not None:
        raise EmitError(
            f"the ranks of host {split} are not consecutive: a host file gives every host one block of ranks"
        )
    stated = process_settings(plan)
    slots = "".join(f"{plain(host.name)} slots={host.num_ranks}\n" for host in order.hosts)
    return {
        "hostfiles/deepspeed": slots,
        "hostfiles/run_rank.sh": filled("run_rank.sh", size=len(order), port=DEFAULT_PORT),
        "hostfiles/settings.env": "".join(f"{one.name}={shlex.quote(one.value)}\n" for one in stated),
        "hostfiles/openmpi": slots,
        "hostfiles/mpich": "".join(f"{plain(host.name)}:{host.num_ranks}\n" for host in order.hosts),
        "hostfiles/SUBMIT.md": filled(
            "hostfiles.md",
            name=one_line(plan.job.name),
            size=len(order),
            whose=whose,
            before="".join(f"{one.name}={shlex.quote(one.value)} " for one in stated),
        ),
    }
