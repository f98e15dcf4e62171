"""The reason why a collective is encoded or not, in one line."""

from __future__ import annotations

from scaleacross.spec.network_report import CompressionReason
from scaleacross.units import human_seconds


def why_encoded(reason: CompressionReason) -> str:
    """Return one line with the numbers that decided."""
    if reason.codec is None:
        return _never(reason)
    error = f"error {reason.relative_error or 0.0:.2%} of a block's largest"
    times = f"{human_seconds(reason.encoded_s or 0.0)} against {human_seconds(reason.plain_s or 0.0)} as it is"
    saved = human_seconds(max(0.0, reason.saved_s or 0.0))
    if reason.verdict == "on":
        return f"{reason.codec} across {', '.join(reason.levels)}: {times}, saves {saved} of the step; {error}"
    if reason.verdict == "slower":
        return f"not encoded: {reason.codec} would take {times}"
    return f"not encoded: {reason.codec} would take {times}, but saves {saved} of the step, less than the job asks for"


def _never(reason: CompressionReason) -> str:
    if reason.verdict == "error":
        least = "" if reason.relative_error is None else f": the least is {reason.relative_error:.2%}"
        return f"not encoded: no codec keeps the job's error{least}"
    return {
        "stays_near": "not encoded: it crosses none of the job's levels",
        "not_gradients": "not encoded: only sums of gradients are",
        "not_fp32": "not encoded: codecs take fp32, and gradients are not reduced in 4 bytes",
    }[reason.verdict]
