"""The verbs verify and emit: what happens to a finished plan."""

from __future__ import annotations

from pathlib import Path

from scaleacross import catalogue
from scaleacross import verification as checks
from scaleacross.emitters import emit as write_target
from scaleacross.spec.plan import Plan


def verify(plan: Plan) -> None:
    """Recompute everything a plan states, without the solver. Raises VerificationError listing what is wrong."""
    checks.verify(plan)


def emit(plan: Plan | str | Path, target: str, directory: str | Path) -> list[Path]:
    """Verify a plan and write the files of one target into ``directory``.

    Raises:
        EmitError: the target cannot express the plan; the message names what.
        InputError: unknown target, or not a plan.
        VerificationError: the plan does not verify.
    """
    loaded = plan if isinstance(plan, Plan) else catalogue.load_plan(plan)
    checks.verify(loaded)
    return write_target(loaded, target, directory)
