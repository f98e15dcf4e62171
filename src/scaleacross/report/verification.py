"""A verification as a table: what was checked, and how."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scaleacross.spec.verification import Verification


def verification_report(found: Verification) -> RenderableType:
    """Every check that the plan passed, one row each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("check", "how", "what"):
        table.add_column(heading, no_wrap=heading != "what")
    for check in found.checks:
        table.add_row(check.name, check.how, check.what)
    return Group(Text(f"{found.plan_name} verifies", style="bold"), table)
