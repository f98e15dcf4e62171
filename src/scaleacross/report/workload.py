"""A workload as numbers: parameters, layers, FLOP per token."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

from rich.console import Group, RenderableType

from scaleacross.report.format import add, columns, count, grid, interval, large, percent, section
from scaleacross.workloads.layer_profile import LayerProfile, ModelProfile
from scaleacross.workloads.workload import Workload

MANY_RUNS: Final = 8
"""Most runs of equal layers shown one by one. Alternating layers make a run each; with more runs the table has a row
per kind.
"""


def workload_report(workload: Workload, sequence_length: int) -> RenderableType:
    """Return totals, then one row per run of equal layers.

    Args:
        workload: any model family.
        sequence_length: tokens per sequence for which attention is counted.
    """
    profile = workload.profile()
    total, active = profile.total_parameters, profile.active_parameters
    parameters = count(total)
    if profile.num_experts:
        parameters += f", {count(active)} active per token ({percent(active / total)})"
    training = profile.model_flop_per_token(sequence_length)
    facts = grid(
        [
            ("workload", f"{workload.name} ({workload.family})"),
            ("parameters", parameters),
            ("layers", f"{profile.num_layers} + embedding and head, vocabulary {count(profile.vocabulary_size)}"),
            (
                "model FLOP",
                f"{large(training)}FLOP per token, forward and backward, {count(sequence_length)}-token sequences",
            ),
            *workload.remarks(),
        ]
    )
    return Group(facts, _layers(profile, sequence_length))


def workload_data(workload: Workload, sequence_length: int) -> dict[str, Any]:
    """Return totals, then one mapping per run of equal layers, in model order."""
    profile = workload.profile()
    rows = [(profile.embedding, 1), *profile.blocks, (profile.head, 1)]
    return {
        "name": workload.name,
        "family": workload.family,
        "parameters": profile.total_parameters,
        "active_parameters": profile.active_parameters,
        "num_layers": profile.num_layers,
        "vocabulary_size": profile.vocabulary_size,
        "sequence_length": sequence_length,
        "model_flop_per_token": profile.model_flop_per_token(sequence_length),
        "remarks": {key: str(text) for key, text in workload.remarks()},
        "layers": [
            {
                "name": layer.name,
                "number": number,
                "parameters": layer.total_parameters,
                "expert_parameters": layer.num_expert_parameters,
                "forward_flop_per_token": layer.forward_flop_per_token(sequence_length),
            }
            for layer, number in rows
        ],
    }


def _layers(profile: ModelProfile, sequence_length: int) -> RenderableType:
    """Return a row per run of equal layers, or per kind of layer where there are more than MANY_RUNS runs."""
    heads = ("layer", "index", "parameters each", "of them in experts", "forward FLOP/token", "share of FLOP")
    table = columns(heads, right=heads[1:])
    whole = profile.model_flop_per_token(sequence_length) / 3.0
    rows = _runs(profile) if len(profile.blocks) <= MANY_RUNS else _kinds(profile)
    for layer, shown, number in ((profile.embedding, "–", 1), *rows, (profile.head, "–", 1)):
        flop = layer.forward_flop_per_token(sequence_length)
        experts = count(layer.num_expert_parameters) if layer.num_expert_parameters else "–"
        share = percent(flop * number / whole)
        add(table, layer.name, shown, count(layer.total_parameters), experts, large(flop), share)
    return section("Layers, in model order", table)


def _runs(profile: ModelProfile) -> list[tuple[LayerProfile, str, int]]:
    ends = list(accumulate(number for _, number in profile.blocks))
    return [
        (layer, interval(end - number, end - 1), number)
        for (layer, number), end in zip(profile.blocks, ends, strict=True)
    ]


def _kinds(profile: ModelProfile) -> list[tuple[LayerProfile, str, int]]:
    numbers: dict[str, int] = {}
    for layer, number in profile.blocks:
        numbers[layer.name] = numbers.get(layer.name, 0) + number
    layers = {layer.name: layer for layer, _ in profile.blocks}
    return [(layers[name], f"{number} of {profile.num_layers}", number) for name, number in numbers.items()]
