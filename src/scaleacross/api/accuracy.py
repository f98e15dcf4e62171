"""The verbs validate, leave_sources_out, score_files and cross_check: compare predictions with published measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path

from scaleacross.api.names import known_accelerator, known_network, listed
from scaleacross.api.node_collectives import link_of, node_errors
from scaleacross.calibration.data_file import read_data_file
from scaleacross.calibration.file_scores import (
    FileScore,
    score_attention_file,
    score_collective_files,
    score_gemm_file,
)
from scaleacross.catalogue.write import entry_text
from scaleacross.errors import InputError
from scaleacross.spec.progress import Progress
from scaleacross.validation import runs as run_files
from scaleacross.validation.crosscheck import CrossCheck
from scaleacross.validation.crosscheck import cross_check as validation_cross_check
from scaleacross.validation.left_out import Apart, apart
from scaleacross.validation.runs import Run, read_runs
from scaleacross.validation.score import Validation, validate_runs
from scaleacross.validation.step_errors import SourcesLeftOut, sources_left_out, step_errors


def validate(runs: str | Path | Sequence[Run]) -> Validation:
    """Predict measured training runs without using their measured times, then compare.

    Args:
        runs: a CSV file (columns as in ``validation.runs.Run``), or its rows.

    Returns:
        A Validation. Errors are predicted / measured − 1; times are in seconds. Rows that cannot be expressed are
        listed with a reason.

    Raises:
        InputError: the file cannot be read, or none of its rows can be expressed.
    """
    if not isinstance(runs, str | Path):
        return validate_runs(runs)
    rows = read_runs(runs)
    try:
        return validate_runs(rows)
    except InputError as error:
        raise InputError(f"{runs}: {error}") from None


def score_files(
    *,
    gemm: str | Path | None = None,
    attention: str | Path | None = None,
    collectives: str | Path | Sequence[str | Path] = (),
    network: str | None = None,
) -> tuple[FileScore, ...]:
    """Compare benchmark files with the catalogue's kernel models and collective curves; one score per kind of file.

    Args:
        gemm: CSV with ``accelerator, gemm_dtype, m, n, k, time_us``, plain or gzip.
        attention: CSV with ``accelerator, batch_size, isl, num_heads, num_key_value_heads, head_dim, time_us``.
        collectives: CSVs with ``op, n_gpus, size_bytes, time_us`` or outputs of nccl-tests; ``OP=FILE`` or
            ``OP@RANKS=FILE`` for an output that does not state these.
        network: catalogue entry of the link that all collectives within one node ran on; None: the ``system`` of each
            row names it. Rows over several nodes (``n_nodes``) are compared with the planner's estimate on the machine
            that ``system`` or ``gpu`` and ``fabric`` name.

    Raises:
        InputError: a file cannot be read, or none of its rows can be used; the message counts the reasons.
    """

    def scores() -> Iterator[FileScore]:
        if gemm is not None:
            yield score_gemm_file(gemm, known_accelerator)
        if attention is not None:
            yield score_attention_file(attention, known_accelerator)
        if collectives:
            yield score_collective_files(listed(collectives), known_network, network, node_errors, link_of)

    found = tuple(scores())
    if not found:
        raise InputError("nothing to score: give gemm, attention or collectives")
    return found


def unread_columns(runs: str | Path) -> str:
    """Return a sentence on columns of a runs file that are not read; "" where there are none. Raises InputError."""
    return run_files.unread_columns(runs)


def apart_of(
    validation: Validation,
    judges: Validation | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Apart:
    """Prepare the rows of ``validation`` for ``leave_sources_out`` and ``cross_check`` (about a minute per 400 rows).

    Rows of ``judges`` are prepared too; no parameter is fitted to them.
    """
    return apart(validation, judges, progress)


def leave_sources_out(rows: Validation | Apart) -> SourcesLeftOut:
    """Return the errors with each source left out whole, and how well intervals and a user's own runs do there.

    Args:
        rows: a Validation, or its prepared rows (``apart_of``).
    """
    return sources_left_out(rows if isinstance(rows, Apart) else apart(rows))


def step_errors_text(rows: Apart, paths: Sequence[str | Path], today: date) -> str:
    """Return the constants of prediction intervals from ``rows``, as in ``configs/standard/step_errors.yaml``.

    Args:
        rows: prepared rows of the files at ``paths``.
        paths: files, named in the provenance.
        today: date written into it.

    Raises:
        InputError: too few sources.
    """
    files = " and ".join(read_data_file(path).label for path in paths)
    found = step_errors(rows, f"{files}, {len(rows.cases)} rows, {today.isoformat()}")
    comment = (
        "written by scaleacross validate RUNS.csv --left-out --table FILE; what the figures mean: spec/step_errors.py"
    )
    data = found.model_dump(mode="json")
    origins = data.pop("provenance")
    return entry_text({**data, "provenance": origins}, comment)


def cross_check(validation: Validation | Apart) -> CrossCheck:
    """Return the errors with parameters refitted without each row's model, and without its source.

    Args:
        validation: a Validation, or its prepared rows (``apart_of``).
    """
    return validation_cross_check(validation if isinstance(validation, Apart) else apart(validation))
