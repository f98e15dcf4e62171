"""Target ``torchrun``: run scripts for any program that numbers its ranks as the plan does (fastest axis first, host by host)."""

from __future__ import annotations

from scaleacross.emitters.launchers import launch_files
from scaleacross.emitters.rank_order import rank_order, ranks_csv
from scaleacross.emitters.settings import process_settings
from scaleacross.emitters.shell import Launch
from scaleacross.spec.plan import Plan


def render(plan: Plan) -> dict[str, str]:
    """Return hosts.txt, settings.env, run_node.sh, slurm_hostfile, slurm.sbatch and ranks.csv, in folder torchrun/.

    The scripts take the training program and its arguments: ``run_node.sh train.py --flag``.

    Raises:
        EmitError: a host name that a host file cannot carry.
    """
    order = rank_order(plan)
    launch = Launch(
        plan_name=plan.job.name,
        slurm=plan.job.slurm,
        settings=process_settings(plan),
        framework="the plan",
        torchrun_command='"$@"',
        task_command='"${PYTHON:-python}" "$@"',
    )
    files = {**launch_files(order, launch), "ranks.csv": ranks_csv(order)}
    return {f"torchrun/{name}": text for name, text in files.items()}
