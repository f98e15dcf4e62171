"""A verification as a table: the checks and how each was made."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from scaleacross.report.format import add, columns
from scaleacross.spec.verification import Verification


def verification_report(found: Verification) -> RenderableType:
    """Every check that the plan passed, one row each."""
    table = columns(("check", "how", "what"), flexible=("what",))
    for check in found.checks:
        add(table, check.name, check.how, check.what)
    return Group(Text(f"{found.plan_name} verifies", style="bold"), table)
