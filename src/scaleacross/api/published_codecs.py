"""Reproduce dual_level: the compressor of arXiv 2407.04272 on its authors' figures, and the links on which it pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from scaleacross.catalogue.codec_table import codec_rows
from scaleacross.cost_models.embedding.coded_exchange import (
    aggregate_ratio,
    break_even_bytes_per_s,
    end_to_end_speed_up,
    message_speed_up,
)
from scaleacross.spec.exchange_codec import CodecFigures
from scaleacross.spec.published import PublishedFigure, PublishedStudy, PublishedTable

PAPER: Final = "arXiv 2407.04272, abstract"
ARTIFACT: Final = "github allenfengjr/dlrm_comp f55790b"
STEP_SHARES: Final[Mapping[str, float]] = {
    "forward": 0.313,
    "backward": 0.313,
    "all_reduce": 0.229,
    "computation": 0.145,
}
"""Fractions of a step on 32 GPUs, from the artifact's breakdown."""
FORWARD_AFTER: Final[Mapping[str, float]] = {"kaggle": 0.0503, "terabyte": 0.0364}
"""Forward all-to-all with compression, as a fraction of the uncompressed step (artifact)."""
LINKS_GBYTE_PER_S: Final = (0.01, 0.03, 0.1, 0.2, 1.0, 3.1, 6.25, 12.5, 25.0, 50.0, 100.0)


def dual_level() -> PublishedStudy:
    """Return published ratios and end-to-end speed-ups next to ours, and the fastest encoder by link rate."""
    rows = tuple(CodecFigures.model_validate(one) for one in codec_rows("sc24-dlrm", None))
    by_encoder: dict[str, list[CodecFigures]] = {}
    for one in rows:
        by_encoder.setdefault(one.encoder, []).append(one)
    same, third = "the same; 1.30 in some readings of the paper", f"{PAPER} as read by a third party"
    parts = "computed from the step's parts before and after (artifact); only the forward all-to-all is compressed"
    ratios = (
        ("end to end, Terabyte", 1.38, _end_to_end("terabyte"), PAPER, parts),
        ("end to end, Kaggle", 1.36, _end_to_end("kaggle"), ARTIFACT, same),
        ("forward all-to-all, Terabyte", 8.6, STEP_SHARES["forward"] / FORWARD_AFTER["terabyte"], third, ""),
        ("forward all-to-all, Kaggle", 6.22, STEP_SHARES["forward"] / FORWARD_AFTER["kaggle"], third, ""),
    )
    return PublishedStudy(
        name="dual_level",
        figures=tuple(
            PublishedFigure(what=what, published=published, computed=computed, unit="x", source=source, note=note)
            for what, published, computed, source, note in ratios
        ),
        tables=(_ratios(by_encoder), _by_link(by_encoder)),
        notes=(
            f"ratios and rates of 26 tables: {ARTIFACT}, comp_benchmark (theirs); means, choices, break-even rates: ours",
            "rates are taken as rates of fp32 vectors; were they of int8 codes, encoders would pay on links four times as fast",
        ),
    )


def _end_to_end(data: str) -> float:
    return end_to_end_speed_up(STEP_SHARES, {"forward": FORWARD_AFTER[data]})


def best_per_table(rows: Sequence[CodecFigures], encoders: Sequence[str]) -> dict[str, CodecFigures]:
    """Map every table to the one of ``encoders`` with the highest compression ratio."""
    out: dict[str, CodecFigures] = {}
    for one in rows:
        if one.encoder in encoders and (one.table not in out or one.ratio > out[one.table].ratio):
            out[one.table] = one
    return out


def _ratios(by_encoder: Mapping[str, Sequence[CodecFigures]]) -> PublishedTable:
    rows = [one for own in by_encoder.values() for one in own]
    out = []
    choices = [(name,) for name in by_encoder] + [("gpulz", "huffman"), tuple(by_encoder)]
    for names in choices:
        best = best_per_table(rows, names)
        ratio = aggregate_ratio([1.0] * len(best), [one.ratio for one in best.values()])
        taken = {name: sum(one.encoder == name for one in best.values()) for name in names}
        said = "" if len(names) == 1 else ", ".join(f"{number} {name}" for name, number in taken.items())
        out.append((" or ".join(names), f"{ratio:.2f}x", said))
    return PublishedTable(
        title="Ratio over 26 tables of equal size (harmonic mean), shortest encoder per table",
        heads=("encoder", "ratio", "tables"),
        rows=tuple(out),
    )


def _by_link(by_encoder: Mapping[str, Sequence[CodecFigures]]) -> PublishedTable:
    """Return a table with the fastest encoder of every embedding table, and the gain of all messages, per link rate."""
    tables = len(next(iter(by_encoder.values())))
    out = []
    for link in LINKS_GBYTE_PER_S:
        plain, spent, taken = 0.0, 0.0, dict.fromkeys((*by_encoder, "none"), 0)
        for table in range(tables):
            speed = {name: _speed_up(own[table], link * 1e9) for name, own in by_encoder.items()} | {"none": 1.0}
            best = max(speed, key=lambda name: speed[name])
            # tables have equal sizes, so each message counts 1
            plain, spent = plain + 1, spent + 1 / speed[best]
            taken[best] += 1
        out.append(
            (f"{link:g} GB/s", f"{plain / spent:.2f}x", ", ".join(f"{n} {name}" for name, n in taken.items() if n))
        )
    limits = []
    for name, own in by_encoder.items():
        rates = sorted(
            float(break_even_bytes_per_s(one.ratio, one.encode_bytes_per_s, one.decode_bytes_per_s)) for one in own
        )
        limits.append(f"{name} {rates[0] / 1e9:.3g}–{rates[-1] / 1e9:.3g}")
    title = f"Fastest encoder of every table by link rate per rank (break-even, GB/s: {'; '.join(limits)})"
    return PublishedTable(title=title, heads=("link per rank", "all messages", "tables"), rows=tuple(out))


def _speed_up(one: CodecFigures, link: float) -> float:
    return float(message_speed_up(one.ratio, link, one.encode_bytes_per_s, one.decode_bytes_per_s))
