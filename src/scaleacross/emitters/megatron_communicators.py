"""Settings of Megatron-LM's process groups, for ``--nccl-communicator-config-path``: channels, and sockets across TCP.

The file maps groups to options of ``ncclConfig_t`` (core/parallel_state.py, d98e8a64). Megatron-LM silently ignores
unknown groups and options, so only known ones are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scaleacross.emitters.crossed_levels import axes_over_sockets
from scaleacross.emitters.group_settings import SOCKETS, most_channels
from scaleacross.emitters.shell import one_line
from scaleacross.spec.parallelism import Axis
from scaleacross.spec.plan import Plan

FILE: Final = "nccl_communicators.yaml"
OPTIONS: Final = ("min_ctas", "max_ctas", "net_name")
DP: Final[tuple[Axis, ...]] = ("dp_shard", "dp_replicate")
AXES_OF: Final[Mapping[str, tuple[Axis, ...]]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "hcp": ("cp",),
    "pp": ("pp",),
    "embd": ("pp",),
    "mp": ("tp", "pp"),
    "tp_cp": ("tp", "cp"),
    "dp": DP,
    "dp_cp": ("cp", *DP),
    "intra_dp_cp": ("cp", "dp_shard"),
    "tp_dp": ("tp", *DP),
    "tp_dp_cp": ("tp", "cp", *DP),
    "intra_dist_opt_instance": ("tp", "cp", "pp", "dp_shard"),
    "ep": ("ep",),
    "ep_tp": ("tp",),
    "tp_ep_mp": ("tp", "ep"),
    "tp_ep_pp": ("tp", "ep", "pp"),
    "ep_dp": DP,
    "intra_ep_dp": ("dp_shard",),
    "inter_ep_dp": ("dp_replicate",),
}
"""Group key -> the axes along which its ranks differ. Expert replicas run inside dp."""


def group_keys(plan: Plan) -> dict[str, str]:
    """Map each communicator of the plan to the key of the group that carries its traffic.

    Gradients run on ``dp_cp``, those of experts on ``ep_dp``. With several optimizer instances they run on
    ``intra_dp_cp`` and ``intra_ep_dp`` inside one (core/distributed/distributed_data_parallel.py). Between instances
    ``inter_ep_dp`` is the only group, for dense and expert layers.
    """
    several = plan.degrees.dp_replicate > 1 and plan.decision.shard != "none"
    shard, expert, replicate = ("intra_dp_cp", "intra_ep_dp", "inter_ep_dp") if several else ("dp_cp", "ep_dp", "dp_cp")
    return {
        "tp": "tp",
        "cp": "cp",
        "cp_inner": "hcp",
        "cp_outer": "hcp",
        "pp": "pp",
        "ep": "ep",
        "dp_shard": shard,
        "dp_replicate": replicate,
        "expert": expert,
    }


def communicators(plan: Plan) -> dict[str, dict[str, int | str]]:
    """Map each group key to its options: the most channels decided for its collectives, and sockets across TCP.

    Empty where nothing was decided and no inter-building link is TCP. A group with one rank is left out.
    """
    keys, channels = group_keys(plan), dict[str, int]()
    for communicator, number in most_channels(plan).items():
        channels[keys[communicator]] = max(channels.get(keys[communicator], 0), number)
    out: dict[str, dict[str, int | str]] = {
        key: {"min_ctas": number, "max_ctas": number} for key, number in channels.items()
    }
    sockets = axes_over_sockets(plan)
    for key, axes in AXES_OF.items():
        if sockets & {axis for axis in axes if plan.degrees.of(axis) > 1}:
            out.setdefault(key, {})["net_name"] = SOCKETS
    return out


def communicators_file(plan: Plan) -> str:
    """Return the YAML file; empty text where nothing is to be set."""
    lines = []
    for key, options in communicators(plan).items():
        lines += [f"{key}:", *(f"  {option}: {value}" for option, value in options.items())]
    head = [f"# NCCL options of each process group of plan {one_line(plan.job.name)}: channels as decided."]
    if axes_over_sockets(plan):
        head += [
            "# net_name Socket: the group crosses an inter-building link over tcp. The default group, which Megatron-LM uses",
            "# for barriers, takes no options: hosts of all sites must reach each other by NCCL's own choice of network too.",
        ]
    return "\n".join([*head, *lines]) + "\n" if lines else ""
