"""Finds and reads the dumps of a run: pickles through ``plain_pickle``, or JSON, up to a maximum size.

A file that is cut short, damaged, refused or too large is reported by name, and the others are still read. After a
crash the broken dump is often the one that matters.
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from scaleacross.diagnosis.entries import GroupTable, rank_trace
from scaleacross.diagnosis.plain_pickle import loads
from scaleacross.errors import InputError
from scaleacross.spec.diagnosis import UnreadableDump
from scaleacross.spec.trace import RankTrace, TraceGroup

MAX_DUMP_BYTES: Final = 256 * 2**20
_RANK_IN_NAME: Final = re.compile(r"(\d{1,9})(?:\.(?:json|pkl|pickle))?$")


def find_dumps(paths: Iterable[str | Path]) -> list[Path]:
    """Return files whose name ends in a rank (``trace_rank_3``, ``trace_rank_3.json``), sorted by rank.

    They are ``paths`` that are files, and the files directly inside ``paths`` that are directories.

    Raises:
        InputError: a path does not exist, or no file is a dump by its name.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"{path}: no such file or directory; give the directory that the ranks dumped into")
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found += [one for one in files if _RANK_IN_NAME.search(one.name) and not one.name.startswith(".")]
    if not found:
        where = ", ".join(map(str, paths))
        raise InputError(
            f"{where}: no dump found; a dump's name ends in its rank, like trace_rank_0 or trace_rank_0.json"
        )
    return sorted(found, key=lambda one: (rank_in_name(one), one.name))


def rank_in_name(path: Path) -> int:
    """Return the rank at the end of the file's name. Raises InputError if there is none."""
    match = _RANK_IN_NAME.search(path.name)
    if match is None:
        raise InputError(f"{path}: the name does not end in a rank")
    return int(match[1])


def read_dumps(
    files: Iterable[Path], progress: Callable[[int], None] = lambda _: None
) -> tuple[list[RankTrace], list[UnreadableDump]]:
    """Return all readable traces in order of rank, and the files that cannot be read.

    Raises:
        InputError: none is readable; the message gives the reason of the first.
    """
    groups = GroupTable()
    traces: dict[int, RankTrace] = {}
    unreadable: list[UnreadableDump] = []
    for number, path in enumerate(files):
        if number % 64 == 0:
            progress(number)
        rank = rank_in_name(path)
        try:
            if rank in traces:
                raise ValueError(f"a second dump of rank {rank}; {traces[rank].source} was read")
            traces[rank] = rank_trace(_content(path), rank, str(path), groups)
        except (ValueError, EOFError, OSError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            unreadable.append(UnreadableDump(file=str(path), rank=rank if rank not in traces else None, reason=reason))
    if not traces:
        first = unreadable[0]
        raise InputError(f"none of {len(unreadable)} dumps can be read; {first.file}: {first.reason}")
    _fill_open_groups(list(traces.values()))
    return [traces[rank] for rank in sorted(traces)], unreadable


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch the garbage collector off while dumps are read and judged: it takes a fifth of the time in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _content(path: Path) -> Any:
    """Return the plain data of a dump. Raises ValueError or EOFError: no regular file, too large, empty or damaged."""
    if not path.is_file():  # a pipe or device planted among the dumps would be read for ever
        raise ValueError("no regular file")
    with path.open("rb") as stream:
        num_bytes = os.fstat(stream.fileno()).st_size
        if num_bytes > MAX_DUMP_BYTES:
            raise ValueError(f"larger than {MAX_DUMP_BYTES >> 20} MiB, which no flight recorder writes")
        data = stream.read(num_bytes)
    if not data:
        raise EOFError("the file is empty")
    if data[:1] in (b"{", b" ", b"\n"):
        try:
            return json.loads(data)
        except json.JSONDecodeError as error:
            cut = error.pos >= len(data.rstrip()) - 1 or "Unterminated" in error.msg
            raise ValueError(f"JSON {'ends in the middle' if cut else 'is damaged'}: {error}") from None
    return loads(data)


def _fill_open_groups(traces: list[RankTrace]) -> None:
    """Set the ranks of groups whose dumps do not state them (gloo's) to the ranks that used them."""
    users: dict[TraceGroup, set[int]] = {}
    for trace in traces:
        for group in trace.groups:
            if not group.ranks:
                users.setdefault(group, set()).add(trace.rank)
    for group, ranks in users.items():
        group.ranks = tuple(sorted(ranks))
