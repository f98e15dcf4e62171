"""Read a CSV of reported training runs into ``Run`` objects: column names, types and blanks, nothing about the model.

Blank means "not stated". Unknown columns are ignored, and ``unread_columns`` names them. A file needs at least
``model``, ``gpu``, ``n_gpus``, ``seq`` and ``gbs``. If other columns are missing, ``mapping`` skips the rows with a
reason.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Final, get_args, get_type_hints

from scaleacross.errors import InputError, unreadable

REQUIRED: Final = ("model", "gpu", "n_gpus", "seq", "gbs")
LOSSES: Final = ("", "compiled")


@dataclass(frozen=True)
class Run:
    """One row. Fields are named as the columns of the file; None means blank.

    Attributes:
        id, source, source_ref, framework, notes: origin of the row; ``notes`` carries the source's caveats.
        model, arch: name of the model; ``dense`` or ``moe``.
        layers, hidden, ffn, gated, heads, kv_heads, head_dim, vocab, attn: dimensions as run; attn mha, gqa or mla.
        experts, topk, moe_ffn, shared_ffn, dense_layers: mixture of experts only.
        seq, gpu, n_gpus: tokens per sequence; accelerator; count.
        tp, cp, pp, vpp, ep, etp, dp, fsdp, sp: degrees; vpp chunks per stage; fsdp shard group, 0 none; sp 0 or 1.
        mbs, gbs: sequences per micro-batch and step.
        precision, recompute, overlap: text of the source.
        loss: one of LOSSES; ``compiled`` if torch.compile compiles the loss, too (torchtitan).
        step_time_s, tflops_per_gpu, mem_gib: measured: seconds per step, TFLOP/s by ``flops_convention``, peak GiB.
        exclude_from_fit: 1 if the file marks the row as one that cannot be expressed.
        unreadable: error in the row's own text (not a column); such a row is skipped with this reason.
    """

    id: str
    source: str
    source_ref: str
    framework: str
    model: str
    arch: str
    layers: int | None
    hidden: int | None
    ffn: int | None
    gated: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    vocab: int | None
    attn: str
    experts: int | None
    topk: int | None
    moe_ffn: int | None
    shared_ffn: int | None
    dense_layers: int | None
    seq: int
    gpu: str
    n_gpus: int
    tp: int | None
    cp: int | None
    pp: int | None
    vpp: int | None
    ep: int | None
    etp: int | None
    dp: int | None
    fsdp: int | None
    sp: int | None
    mbs: int | None
    gbs: int
    precision: str
    recompute: str
    overlap: str
    loss: str
    step_time_s: float | None
    tflops_per_gpu: float | None
    mem_gib: float | None
    flops_convention: str
    exclude_from_fit: int | None
    notes: str
    unreadable: str = ""

    @property
    def configuration(self) -> tuple[object, ...]:
        """Key of the experiment: everything but the software release and the measured values."""
        return (
            *(self.model, self.layers, self.gpu, self.precision, self.n_gpus, self.tp, self.cp, self.pp, self.vpp),
            *(self.ep, self.mbs, self.gbs, self.seq, self.recompute),
        )


MAX_LINES = 50_000


def read_runs(path: str | Path) -> list[Run]:
    """Read all rows of a CSV file.

    Raises:
        InputError: the file cannot be read, or a required column is missing. A row with a wrong number is ``unreadable``.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            return list(parse_runs(csv.DictReader(file), str(path)))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {unreadable(error)}") from None


def unread_columns(path: str | Path) -> str:
    """Message on the columns of a CSV file that are not read; "" if there are none.

    Each is shown with the nearest column name that the file lacks.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            stated = csv.DictReader(file).fieldnames or ()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {unreadable(error)}") from None
    lacking = [field.name for field in fields(Run) if field.name not in (*stated, "unreadable")]
    said = []
    for name in stated:
        if name not in Run.__dataclass_fields__:
            near = difflib.get_close_matches(name.strip().lower(), lacking, n=1)
            said.append(f"{name} (nearest that is read: {near[0]})" if near else name)
    return f"{path}: columns that nothing is read from: {', '.join(said)}" if said else ""


def parse_runs(rows: csv.DictReader[str], label: str) -> Iterator[Run]:
    """Yield the rows of a reader whose first line names the columns. Raises InputError."""
    missing = [name for name in REQUIRED if name not in (rows.fieldnames or ())]
    if missing:
        raise InputError(f"{label}: column {', '.join(missing)} is missing; a runs file has {', '.join(REQUIRED)}")
    for row in rows:
        if rows.line_num > MAX_LINES:
            raise InputError(f"{label}: more than {MAX_LINES:,} lines; split it (every row is predicted, some ms each)")
        yield _run(row, f"{label}, line {rows.line_num}", rows.line_num)


def _run(row: Mapping[str, str | None], place: str, line: int) -> Run:
    hints = get_type_hints(Run)
    values: dict[str, object] = {}
    wrong: list[str] = []
    for field in fields(Run):
        if field.name == "unreadable":
            continue
        text = (row.get(field.name) or "").strip()
        kind = hints[field.name]
        if kind is str:
            values[field.name] = text
            continue
        optional = isinstance(kind, UnionType)
        values[field.name] = None if optional else 0
        if not text:
            wrong += [] if optional else [f"{field.name} is blank"]
            continue
        try:
            values[field.name] = _number(text, get_args(kind)[0] if optional else kind, field.name)
        except InputError as error:
            wrong.append(str(error))
    if values["loss"] not in LOSSES:
        wrong.append(f"loss: {values['loss']!r} is not read: 'compiled' is, or a blank")
    values["id"] = values["id"] or f"line{line}"
    return Run(**values, unreadable=f"{place}: {'; '.join(wrong)}" if wrong else "")  # type: ignore[arg-type]


def _number(text: str, kind: type, place: str) -> float | int:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{place}: {text!r} is no number") from None
    if kind is float:
        if not 0 < value < float("inf"):
            raise InputError(f"{place}: {text!r} is no positive number")
        return value
    if value != int(value) or value < 0:
        raise InputError(f"{place}: {text!r} is no whole number")
    return int(value)
