"""The files that start a plan with torchrun or SLURM, for one rank order."""

from __future__ import annotations

from scaleacross.emitters.filling import filled
from scaleacross.emitters.rank_order import RankOrder
from scaleacross.emitters.shell import Launch, hosts_file, one_line, run_node, settings_file
from scaleacross.emitters.slurm import host_of_every_rank, sbatch, submit
from scaleacross.emitters.wrappers import RAY_FILE, SKYPILOT_FILE, ray_script, skypilot_task


def launch_files(order: RankOrder, launch: Launch) -> dict[str, str]:
    """Return hosts.txt, settings.env, run_node.sh, slurm_hostfile, slurm.sbatch, submit.sh and SUBMIT.md.

    Where the ranks of a host are not one block, run_node.sh prints that and exits; SLURM starts every rank by itself.

    Raises:
        EmitError: a host name has characters that a host file cannot carry.
    """
    ray, (skypilot, no_task) = ray_script(order, launch), skypilot_task(order, launch)
    return {
        "hosts.txt": hosts_file(order, launch),
        "settings.env": settings_file(launch),
        "run_node.sh": run_node(order, launch),
        "slurm_hostfile": host_of_every_rank(order),
        "slurm.sbatch": sbatch(order, launch),
        "submit.sh": submit(order, launch),
        **({RAY_FILE: ray} if ray else {}),
        **({SKYPILOT_FILE: skypilot} if skypilot else {}),
        "SUBMIT.md": submit_page(order, launch, bool(ray), no_task),
    }


def submit_page(order: RankOrder, launch: Launch, ray: bool, no_task: str) -> str:
    """Return SUBMIT.md: the three commands that run this folder under SLURM, and the one for any other launcher.

    Args:
        order: rank order of the framework.
        launch: what is started.
        ray: whether submit_ray.py is there.
        no_task: why skypilot.yaml is not there; '' where it is.
    """
    program = "" if launch.torchrun_command != '"$@"' else " /path/on/every/host/train.py"
    return filled(
        "launchers.md",
        name=one_line(launch.plan_name),
        hosts=len(order.hosts),
        world_size=len(order),
        framework=launch.framework,
        program="" if launch.torchrun_command != '"$@"' else " train.py",
        left_out=_left_out(launch),
        ray=f"On a Ray cluster: `python {RAY_FILE}{program}`\n" if ray else "",
        skypilot=f"{SKYPILOT_FILE} is not written: {no_task}.\n"
        if no_task
        else "With SkyPilot: `sky launch skypilot.yaml`\n",
    )


def _left_out(launch: Launch) -> str:
    """Return lines on inputs that the program needs and no plan states; '' where any program may be started."""
    lines = [f"Set `{name}` to {what}, as every host sees it." for name, what in launch.required]
    return "".join(f"{line}\n" for line in [*lines, *([launch.left_out] if launch.left_out else [])])
