"""Measures of pipeline schedules in papers, other than the end of the step."""

from __future__ import annotations

from scaleacross.cost_models.pipeline.timing import PipelineTimes


def longest_span_s(times: PipelineTimes) -> float:
    """Seconds per step of a rank when steps follow each other without a barrier, as zero-bubble papers count them."""
    return max(float(finish[-1] - start[0]) for start, finish in zip(times.start_s, times.finish_s, strict=True))
