"""Placement of the virtual stages of a pipeline on its ranks.

Virtual stages are numbered in model order, p per chunk: chunk c holds the stages c·p … c·p+p−1, one on each rank.

* ``loop``: every chunk runs down the ranks 0 … p−1; from one chunk to the next the activations go back from rank p−1 to
  rank 0 (interleaved schedules, arXiv 2104.04473).
* ``v``: odd chunks run up the ranks p−1 … 0, so that consecutive chunks meet on one rank and no message goes back. Two
  chunks form the V of ZB-V (arXiv 2405.15362), more chunks a wave.
"""

from __future__ import annotations

from typing import Literal, get_args

StagePlacement = Literal["loop", "v"]
STAGE_PLACEMENTS: tuple[StagePlacement, ...] = get_args(StagePlacement)


def virtual_stage(placement: StagePlacement, num_ranks: int, rank: int, chunk: int) -> int:
    """Return the virtual stage, 0 … p·v−1, of ``chunk`` on ``rank``."""
    upwards = placement == "v" and chunk % 2 == 1
    return chunk * num_ranks + (num_ranks - 1 - rank if upwards else rank)


def locate(placement: StagePlacement, num_ranks: int, stage: int) -> tuple[int, int]:
    """Return the (rank, chunk) that holds ``stage``; the inverse of ``virtual_stage``."""
    chunk, position = divmod(stage, num_ranks)
    upwards = placement == "v" and chunk % 2 == 1
    return (num_ranks - 1 - position if upwards else position), chunk
