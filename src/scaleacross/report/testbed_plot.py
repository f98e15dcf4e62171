"""Steps measured in emulated buildings as bars, predictions as ticks on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from scaleacross.spec.testbed import TrainingSetting
from scaleacross.units import human_seconds

LEFT, WIDTH, ROW, GAP, MARGIN = 330, 420, 16, 14, 24
COLOURS: Final = ("#2b6cb0", "#b7791f", "#6b7280", "#9d174d", "#4d7c0f", "#7c3aed", "#0f766e")
"""Colours of plans in the order in which they first appear, ours first."""


def training_plot(settings: Sequence[TrainingSetting]) -> str:
    """Return an SVG with a bar per plan, grouped by setting, on one scale; a vertical stroke is the prediction."""
    longest = max(max(plan.measured_s, plan.predicted_s) for setting in settings for plan in setting.plans)
    lines: list[str] = []
    y = float(MARGIN + ROW)
    names = dict.fromkeys(plan.name for setting in settings for plan in setting.plans)
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    for setting in settings:
        lines += _group(setting, y, WIDTH / longest, colours)
        y += ROW * len(setting.plans) + GAP
    size = f'width="{LEFT + WIDTH + 140}" height="{y + MARGIN:g}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="{MARGIN}">median step (bar), predicted (stroke)</text>',
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def _group(setting: TrainingSetting, y: float, scale: float, colours: Mapping[str, str]) -> Iterator[str]:
    label = f"{setting.topology}: {'; '.join(dict.fromkeys(setting.trunks))}"
    yield f'<text x="8" y="{y + 12:g}">{escape(label)}</text>'
    for row, plan in enumerate(setting.plans):
        top, colour = y + ROW * row, colours[plan.name]
        length, at = plan.measured_s * scale, LEFT + plan.predicted_s * scale
        yield f'<rect x="{LEFT}" y="{top + 2:g}" width="{length:.1f}" height="{ROW - 4}" fill="{colour}"/>'
        yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top:g}" y2="{top + ROW:g}" stroke="black" stroke-width="2"/>'
        end = max(LEFT + length, at) + 6
        yield f'<text x="{end:.1f}" y="{top + 12:g}">{escape(plan.name)} {human_seconds(plan.measured_s)}</text>'
