"""A diagnosis for the terminal: the root cause first, then what follows from it."""

from __future__ import annotations

from rich.console import Group, RenderableType

from scaleacross.report.format import add, cell, columns, count, grid, plural, section
from scaleacross.spec.diagnosis import MEANINGS, Diagnosis, Fault
from scaleacross.units import human_seconds

SHOWN = 8


def diagnosis_report(found: Diagnosis) -> RenderableType:
    """Return verdict, evidence and victims, then other faults and unreadable files."""
    parts: list[RenderableType] = [grid(_facts(found))]
    if found.others:
        table = columns(("verdict", "at fault", "victims", "evidence"), right=("victims",), flexible=("evidence",))
        for fault in found.others[:SHOWN]:
            add(table, fault.verdict, at_fault(fault), count(fault.num_victims), fault.explanation)
        title = "Other faults, which do not follow from the root" + _more(len(found.others))
        parts.append(section(title, table))
    if found.unreadable:
        table = columns(("file", "reason"), flexible=("file", "reason"))
        for one in found.unreadable[:SHOWN]:
            add(table, one.file, one.reason)
        parts.append(section("Dumps that could not be read" + _more(len(found.unreadable)), table))
    if found.notes:
        parts.append(section("Notes", *(cell(note) for note in found.notes)))
    return Group(*parts)


def _more(number: int) -> str:
    return f" ({SHOWN} of {count(number)} shown)" if number > SHOWN else ""


def _facts(found: Diagnosis) -> list[tuple[str, str]]:
    facts = [("verdict", f"{found.verdict}: {MEANINGS[found.verdict]}")]
    root = found.root
    if root is not None:
        facts.append(("at fault", at_fault(root) + _hosts(found, root)))
        facts.append(("evidence", root.explanation))
        facts.append(("victims", f"{plural(root.num_victims, 'other rank')} held up by it"))
        if root.lost_s is not None:
            facts.append(("lost", human_seconds(root.lost_s)))
    stuck = f"; {plural(found.num_stuck_operations, 'operation')} stuck on {plural(found.num_waiting_ranks, 'rank')}"
    read = f"{count(found.num_operations)} operations in {count(found.num_dumps)} dumps of {plural(found.world_size, 'rank')}"
    facts.append(("read", read + (stuck if found.num_stuck_operations else "")))
    return facts


def at_fault(fault: Fault) -> str:
    """Describe what is at fault: ``link 3→4``, ``rank 7``, ``ranks 0, 1``."""
    if fault.link is not None:
        return f"link {fault.link[0]}→{fault.link[1]}" + (f" ({fault.level})" if fault.level else "")
    shown = ", ".join(map(str, fault.ranks[:SHOWN])) + (" …" if len(fault.ranks) > SHOWN else "")
    return f"rank {shown}" if len(fault.ranks) == 1 else f"{count(len(fault.ranks))} ranks: {shown}"


def _hosts(found: Diagnosis, fault: Fault) -> str:
    known = found.places or found.hosts
    hosts = [f"{rank} on {known[rank]}" for rank in fault.ranks[:SHOWN] if rank in known]
    return f" ({', '.join(hosts)})" if hosts else ""
