"""The verbs validate, score_files and cross_check: predictions held against what others measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from scaleacross.api.names import known_accelerator, known_network, listed
from scaleacross.calibration.file_scores import (
    FileScore,
    score_attention_file,
    score_collective_files,
    score_gemm_file,
)
from scaleacross.errors import InputError
from scaleacross.validation.crosscheck import CrossCheck
from scaleacross.validation.crosscheck import cross_check as validation_cross_check
from scaleacross.validation.runs import Run, read_runs
from scaleacross.validation.score import Validation, validate_runs


def validate(runs: str | Path | Sequence[Run]) -> Validation:
    """Predict measured training runs without looking at what was measured, then compare.

    Args:
        runs: a CSV file (columns as in ``validation.runs.Run``), or its rows.

    Raises:
        InputError: the file cannot be read, or none of its rows can be expressed.
    """
    return validate_runs(read_runs(runs) if isinstance(runs, str | Path) else runs)


def score_files(
    *,
    gemm: str | Path | None = None,
    attention: str | Path | None = None,
    collectives: str | Path | Sequence[str | Path] = (),
    network: str | None = None,
) -> tuple[FileScore, ...]:
    """Benchmark files held against the catalogue's kernel models and curves of collectives, one score per kind of file.

    Args:
        gemm: CSV with ``accelerator, gemm_dtype, m, n, k, time_us``, plain or gzip.
        attention: CSV with ``accelerator, batch_size, isl, num_heads, num_key_value_heads, head_dim, time_us``.
        collectives: CSVs with ``op, n_gpus, size_bytes, time_us`` or outputs of nccl-tests; ``OP=FILE`` or ``OP@RANKS=FILE``
            for an output that does not say these.
        network: catalogue entry of the link that all collectives ran on; None: the ``system`` of each row names it.

    Raises:
        InputError: a file cannot be read, or none of its rows can be used; the message counts the reasons.
    """

    def scores() -> Iterator[FileScore]:
        if gemm is not None:
            yield score_gemm_file(gemm, known_accelerator)
        if attention is not None:
            yield score_attention_file(attention, known_accelerator)
        if collectives:
            yield score_collective_files(listed(collectives), known_network, network)

    found = tuple(scores())
    if not found:
        raise InputError("nothing to score: give gemm, attention or collectives")
    return found


def cross_check(validation: Validation) -> CrossCheck:
    """Errors with parameters refitted without each row's model, and without its source (about a minute per 400 rows)."""
    return validation_cross_check(validation)
