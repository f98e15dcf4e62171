"""Channels of Megatron-LM's process groups, for ``--nccl-communicator-config-path``.

The file maps groups to options of ``ncclConfig_t`` (core/parallel_state.py, d98e8a64). Groups and options that it does not know
are ignored without a word, so only known ones are written.
"""

from __future__ import annotations

from typing import Final

from scaleacross.emitters.shell import one_line
from scaleacross.spec.plan import Plan

FILE: Final = "nccl_communicators.yaml"
OPTIONS: Final = ("min_ctas", "max_ctas")


def group_keys(plan: Plan) -> dict[str, str]:
    """Communicator of the plan -> the key of the group that carries its traffic.

    Gradients run on ``dp_cp``; with several optimizer instances on ``intra_dp_cp`` inside one and on ``inter_ep_dp`` between
    them, which is the one group between instances, of dense and of expert layers.
    """
    several = plan.degrees.dp_replicate > 1 and plan.decision.shard != "none"
    shard, replicate = ("intra_dp_cp", "inter_ep_dp") if several else ("dp_cp", "dp_cp")
    return {
        "tp": "tp",
        "cp": "cp",
        "pp": "pp",
        "ep": "ep",
        "dp_shard": shard,
        "dp_replicate": replicate,
        "expert": "ep_dp",
    }


def communicators(plan: Plan) -> dict[str, int]:
    """Group key -> channels: the most that was decided for any of its collectives; empty where nothing was decided."""
    keys, out = group_keys(plan), dict[str, int]()
    for choice in plan.decision.network or ():
        if choice.connections and choice.num_channels and choice.communicator in keys:
            key = keys[choice.communicator]
            out[key] = max(out.get(key, 0), choice.num_channels)
    return out


def communicators_file(plan: Plan) -> str:
    """The YAML file. Empty text where nothing was decided."""
    lines = []
    for key, channels in communicators(plan).items():
        lines += [f"{key}:", *(f"  {option}: {channels}" for option in OPTIONS)]
    head = f"# Blocks of threads (channels) of each process group, as plan {one_line(plan.job.name)} decided them."
    return "\n".join([head, *lines]) + "\n" if lines else ""
