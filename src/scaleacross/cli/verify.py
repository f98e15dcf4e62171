"""The command verify: check what a plan states, without the solver."""

from __future__ import annotations

from typing import Annotated

import typer

from scaleacross.cli.frame import answer, searching


def verify_command(
    source: Annotated[str, typer.Argument(metavar="PLAN", help="A plan.json.")],
    deep: Annotated[bool, typer.Option("--deep", help="Simulate the step too, and state the difference.")] = False,
    max_difference: Annotated[
        float | None,
        typer.Option(
            "--max-difference",
            metavar="SHARE",
            help="With --deep: how far stated and simulated step time may be apart. Default 0.1.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was checked as JSON and nothing else.")] = False,
) -> None:
    """Check everything that a plan states, without the solver, and say how each part was checked.

    Counted, without the cost model's step time: devices, rules, memory, groups, replicas and failure domains. Recomputed by
    the cost model on the groups that were counted: step time, traffic, collectives, proof, spending and network. An error of the
    cost model itself shows only against the simulation (--deep), which shares kernel times, bytes and calls with it, and against
    measured runs. Exit code 5, with a line for everything that is wrong, when the plan does not verify.

    \b
    Examples:
      scaleacross verify build/llama3_405b/plan.json
      scaleacross verify plan.json --deep
      scaleacross verify plan.json --deep --max-difference 0.05 --json | jq .simulated_step_s
    """
    from scaleacross.api import verify
    from scaleacross.catalogue import is_recommendation, load_plan
    from scaleacross.cli.recommendation import verify_recommendation_command
    from scaleacross.report.verification import verification_report

    if max_difference is not None and not deep:
        raise typer.BadParameter("--max-difference is of the simulation: give --deep too")
    if is_recommendation(source):
        verify_recommendation_command(source, deep, as_json)
        return
    plan = load_plan(source)
    limit = {} if max_difference is None else {"max_difference": max_difference}
    with searching() as show:
        found = verify(plan, deep=deep, progress=show, **limit)
    answer(found, as_json, verification_report)
