"""NCCL options of torchtitan's process groups, by mesh axis: the plan's decision for each communicator.

torchtitan 0.3.0 has no field for them. Its mesh comes from ``DeviceMesh._unflatten``, which takes options by axis name
(torch 2.13.0, torch/distributed/device_mesh.py). The emitted module passes them there.
"""

from __future__ import annotations

from typing import Final

from scaleacross.emitters.crossed_levels import axes_over_sockets
from scaleacross.emitters.filling import filled
from scaleacross.emitters.group_settings import SOCKETS, most_channels, traffic_classes, zero_cta
from scaleacross.emitters.nccl_variables import ZERO_CTA
from scaleacross.errors import EmitError
from scaleacross.spec.plan import Plan
from scaleacross.targets.torchtitan import MESHES, TYPED_SHARDS


def group_options(plan: Plan) -> dict[str, dict[str, int | str]]:
    """Map each mesh axis to fields of ``ncclConfig_t`` in torch's names; empty where all defaults hold.

    Raises:
        EmitError: options for a group that fully_shard creates by itself.
    """
    channels, classes, sockets = most_channels(plan), traffic_classes(plan), axes_over_sockets(plan)
    engines = zero_cta(plan)
    meshes: dict[str, dict[str, int | str]] = {}
    for axis, mesh in {**MESHES, "expert": "efsdp"}.items():
        options = meshes.setdefault(mesh, {})
        if axis in channels:
            options |= {"min_ctas": channels[axis], "max_ctas": channels[axis]}
        if axis in classes:
            options["traffic_class"] = classes[axis]
        if axis in engines:
            options["cta_policy"] = ZERO_CTA
        if ("dp_shard" if axis == "expert" else axis) in sockets:
            options["net_name"] = SOCKETS
    if "cp" in sockets and plan.degrees.cp > 1:
        meshes["fsdp"]["net_name"] = SOCKETS  # torchtitan folds cp into the axis fsdp
    if plan.job.kept.spmd_backend == "spmd_types" and (options := meshes.pop("fsdp")):
        if plan.degrees.cp > 1:
            raise EmitError(
                f"cp {plan.degrees.cp} with kept.spmd_backend spmd_types: no options of NCCL ({', '.join(options)}) reach "
                "the group over dp_shard and cp; set kept.spmd_backend: partial_dtensor, or network.settings: library"
            )
        meshes[TYPED_SHARDS] = options
    return {mesh: options for mesh, options in meshes.items() if options}


def group_lines(plan: Plan) -> tuple[str, str]:
    """Return (imports, code) of the config module that give the groups their options; both empty where there are none."""
    options = group_options(plan)
    if not options:
        return "", ""
    sockets = SOCKETS_NOTE if any("net_name" in fields for fields in options.values()) else ""
    stated = "".join(f"    {mesh!r}: {fields!r},\n" for mesh, fields in options.items())
    return IMPORTS, filled("torchtitan_groups.py.txt", stated=stated, sockets=sockets)


IMPORTS: Final = "import torch.distributed as dist\nfrom torch.distributed.device_mesh import DeviceMesh\n"
SOCKETS_NOTE: Final = """\
# net_name Socket: the group crosses an inter-building link of transport tcp. The default group and the loss's take no
# options: hosts of all sites must reach each other by NCCL's own choice of network too.
"""
