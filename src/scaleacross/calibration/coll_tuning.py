"""Read NCCLX's own predictions, ``ncclQueryCollTuning`` of a communicator saved as JSON, as if they were measurements.

torchcomms' binding ``query_coll_tuning(comm)`` returns a mapping. Saved with ``json.dump`` it is one export; a list of
them is several communicators. Read here: ``n_ranks``, ``n_nodes`` and ``best_by_size``, {function: [[size_bytes,
algorithm, protocol, channels, threads, time_us], ...]}. The time is what NCCL's model, with its own corrections, gives
the choice it would make, for 1 B to 1 GiB. Sizes are full tensors, as in nccl-tests. An algorithm of null (time −1)
means that the communicator has none. The model is linear between sizes, so curves through its points are the model.
Only measurements tell whether it is right.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from scaleacross.errors import InputError
from scaleacross.spec.network import CurveOp

PREDICTED: Final = "predicted by NCCL (ncclQueryCollTuning)"
VERSION: Final = 1

_OPS: Final[Mapping[str, CurveOp]] = {
    "AllGather": "all_gather",
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
}
_CELLS: Final = 6

Add = Callable[[str, CurveOp, int, int, float], None]


def is_export(text: str) -> bool:
    """Whether a file looks like JSON."""
    return text.lstrip()[:1] in ("{", "[")


def read_export(path: Path, text: str, add: Add, left_out: Counter[tuple[str, str]]) -> None:
    """Pass every usable time to ``add`` (place, operation, ranks, bytes, seconds) and count the others in ``left_out``.

    Raises:
        InputError: no JSON, no export of this version, or a figure is missing or no number.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: no JSON: {error}") from None
    exports = data if isinstance(data, list) else [data]
    for number, export in enumerate(exports):
        place = f"{path}" + (f", communicator {number}" if len(exports) > 1 else "")
        for op, num_ranks, size_bytes, time_us in _times(place, export, left_out):
            add(place, op, num_ranks, size_bytes, time_us * 1e-6)


def _times(place: str, export: Any, left_out: Counter[tuple[str, str]]) -> Iterator[tuple[CurveOp, int, int, float]]:
    if not isinstance(export, dict) or not {"n_ranks", "n_nodes", "best_by_size"} <= set(export):
        raise InputError(
            f"{place}: no export of ncclQueryCollTuning: expected n_ranks, n_nodes and best_by_size, as torchcomms' "
            "query_coll_tuning(comm) returns them"
        )
    if export.get("version", VERSION) != VERSION:
        raise InputError(f"{place}: export of version {export['version']}; version {VERSION} is known")
    several = isinstance(export["n_nodes"], int) and export["n_nodes"] > 1
    for function, entries in export["best_by_size"].items():
        for entry in entries:
            op = _OPS.get(function)
            if op is None:
                left_out["", f"no curve is kept for operation '{function}'"] += 1
            elif several:
                left_out["", "more than one node: curves are of one scale-up domain"] += 1
            elif not isinstance(entry, list) or len(entry) != _CELLS:
                raise InputError(f"{place}: {function}: expected {_CELLS} figures per size, got {entry!r}")
            elif entry[1] is None:
                left_out["", "no algorithm available"] += 1
            else:
                try:
                    yield op, int(export["n_ranks"]), int(entry[0]), float(entry[5])
                except (TypeError, ValueError) as error:
                    raise InputError(f"{place}: {function}, {entry!r}: {error}") from None
