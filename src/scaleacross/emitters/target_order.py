"""The rank order of a job's target, for launchers that start any program."""

from __future__ import annotations

from scaleacross.emitters.megatron import megatron_order
from scaleacross.emitters.rank_order import RankOrder, rank_order
from scaleacross.emitters.torchtitan import TORCHTITAN_ORDER
from scaleacross.spec.plan import Plan

_OWN = (
    "Ranks run as in the plan (ranks.csv next to plan.json). Megatron-LM and torchtitan number theirs otherwise: plan with "
    "target: megatron or torchtitan for either."
)


def target_order(plan: Plan) -> tuple[RankOrder, str]:
    """Return the processes in the order of the job's target, and a sentence that names this order.

    A framework gives rank i its coordinates by its own order, whatever host rank i is on.

    Raises:
        EmitError: as ``rank_order``.
    """
    if plan.job.target == "megatron":
        option, order = megatron_order(plan)
        stated = f" with {' '.join(option)}" if option else ""
        return order, f"Ranks are those of Megatron-LM{stated}: the arguments of megatron/megatron_args.sh, unchanged."
    if plan.job.target == "torchtitan":
        return rank_order(
            plan, TORCHTITAN_ORDER
        ), "Ranks are those of torchtitan: its module is torchtitan/scaleacross_plan.py."
    return rank_order(plan), _OWN
