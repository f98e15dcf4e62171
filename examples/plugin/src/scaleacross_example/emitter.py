"""A page that says what the plan is, for a pull request."""

from scaleacross.errors import EmitError
from scaleacross.spec.plan import Plan


def render(plan: Plan) -> dict[str, str]:
    """File name -> text. What cannot be expressed is refused with an EmitError that names the way out."""
    if plan.decision.batch_shares:
        raise EmitError("replicas with unequal micro-batches: this page has no column for them; emit torchrun instead")
    rows = "".join(f"| {axis} | {plan.degrees.of(axis)} | {level} |\n" for axis, level in plan.placement.spans.items())
    head = f"# {plan.job.name}\n\nStep time {plan.cost.step_s:.3f} s.\n\n| axis | degree | outermost level |\n|---|---|---|\n"
    return {"plan.md": head + rows}
