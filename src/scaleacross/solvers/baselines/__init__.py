"""Baselines: published rules for running a job, each written as a short program.

``BASELINES`` names them. Each takes a problem and a clock and returns an ``Outcome``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from scaleacross.plugins import Plugin, Registry, expect, guarded
from scaleacross.solvers.baselines import arnold, atlas, crosspipe, megatron_order, production, sailor
from scaleacross.solvers.baselines.outcome import Baseline, Clock, Outcome
from scaleacross.workloads.problem import Problem

__all__ = ["BASELINES", "Baseline", "Clock", "Outcome"]

_BUNDLED: Final[Mapping[str, Baseline]] = {
    "production": Baseline("HSDP replicas across buildings", "arXiv 2407.21783, 2510.20171", production.decide),
    "megatron_order": Baseline("Megatron-LM's default rank order", "Megatron-LM parallel_state", megatron_order.decide),
    "sailor": Baseline("Sailor: dp inside a region, pp across", "arXiv 2504.17096", sailor.decide),
    "atlas": Baseline("Atlas: stages walk through the sites", "arXiv 2411.14458", atlas.decide),
    "arnold": Baseline("Arnold: pipeline groups inside minipods", "arXiv 2509.15940", arnold.decide),
    "crosspipe": Baseline("CrossPipe: delay-aware pipeline across", "arXiv 2507.00217", crosspipe.decide),
}


def _accept(plugin: Plugin, baseline: Any) -> Baseline:
    stated = expect(baseline, Baseline)

    def decide(problem: Problem, clock: Clock) -> Outcome:
        return expect(stated.decide(problem, clock), Outcome)

    return replace(stated, decide=guarded(plugin, decide))


BASELINES: Final = Registry[str, Baseline]("baselines", _BUNDLED, _accept)
"""Every baseline by name: the bundled ones, then those of installed packages."""
