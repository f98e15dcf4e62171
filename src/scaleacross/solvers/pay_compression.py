"""Which gradients travel encoded: a codec stays only where it saves a stated share of the step.

The choice of the whole network uses whatever is fastest. Then codecs are removed one by one, the one with the least
loss first, while the best choice without it lengthens the step by less than ``min_saving_fraction``. The bound still
covers the removed codecs. Reports state the reason of every choice (``reason``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.network.codec import PLAIN_BYTES, crosses, encodings_of, is_encodable, offers
from scaleacross.cost_models.traffic import Flow
from scaleacross.solvers.choose_network import NetworkProblem, NetworkSolution, choose
from scaleacross.solvers.network_options import FlowOption
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.job import Job
from scaleacross.spec.network_report import CompressionReason

Key = tuple[str, str, str]
Options = Mapping[Key, Sequence[FlowOption]]


@dataclass(frozen=True)
class Paid:
    """A solution whose codecs are worth it.

    Attributes:
        saved_s: seconds of the step that the codec of each collective saves, removed or not.
        plain: collectives whose codec was removed.
    """

    solution: NetworkSolution
    saved_s: dict[Key, float] = field(default_factory=dict)
    plain: frozenset[Key] = frozenset()


def paying(
    job: Job,
    problem_without: Callable[[Iterable[Key]], NetworkProblem],
    solution: NetworkSolution,
    step_s: float,
    seed: int = 0,
) -> Paid:
    """``solution`` without the codecs that save less than the job asks for.

    Args:
        problem_without: keys of collectives -> the problem in which these are not encoded.
        step_s: step time of the plan under ``solution``.
    """
    asked = job.network.compression
    if asked is None:
        return Paid(solution)
    saved: dict[Key, float] = {}
    plain: frozenset[Key] = frozenset()
    kept = solution
    while True:
        losses = {}
        for key in _encoded(kept):
            other = choose(problem_without([*plain, key]), seed=seed)
            losses[key] = other.exposed_s - kept.exposed_s, other
            saved[key] = losses[key][0]
        if not losses:
            break
        least = min(losses, key=lambda key: losses[key][0])
        if losses[least][0] >= asked.min_saving_fraction * step_s:
            break
        plain, kept = plain | {least}, losses[least][1]
    if plain:
        kept = replace(kept, bound_s=min(kept.bound_s, solution.bound_s), status="feasible")
    return Paid(kept, saved, plain)


def _encoded(solution: NetworkSolution) -> list[Key]:
    chosen = (option.choice for one in solution.chosen for option in one.options)
    return [choice.key for choice in chosen if choice.compression is not None]


def reason(
    job: Job,
    flow: Flow,
    chosen: FlowOption,
    options: Sequence[FlowOption],
    shape: GroupShape,
    accelerators: Sequence[Accelerator],
    saved_s: float | None,
) -> CompressionReason | None:
    """Why a collective is encoded or not; None where the job does not ask for compression.

    Args:
        options: all options of the collective.
        saved_s: seconds of the step that its codec saves; None: the fastest network has no codec for it.
    """
    asked = job.network.compression
    if asked is None:
        return None
    plain = [one for one in options if one.choice.compression is None]
    coded = [one for one in options if one.choice.compression is not None]
    plain_s = min(one.time_s for one in plain)
    if chosen.choice.compression is not None:
        return _about("on", chosen, plain_s, saved_s)
    if not is_encodable(flow.op, flow.what):
        return CompressionReason(verdict="not_gradients")
    if job.optimizer.reduce_bytes != PLAIN_BYTES:
        return CompressionReason(verdict="not_fp32")
    if not crosses(shape, asked.levels):
        return CompressionReason(verdict="stays_near")
    if not coded:
        errors = [
            offer.relative_error * float(encodings_of(one.choice, shape, offer.levels))
            for offer in offers(job, accelerators)
            for one in plain
            if crosses(shape, offer.levels) and one.choice.algorithm in ("ring", "hierarchical")
        ]
        return CompressionReason(verdict="error", relative_error=min(errors, default=None))
    best = min(coded, key=lambda one: one.time_s)
    return _about("slower" if best.time_s >= plain_s else "saves_too_little", best, plain_s, saved_s or 0.0)


def _about(verdict: str, coded: FlowOption, plain_s: float, saved_s: float | None) -> CompressionReason:
    own = coded.choice.compression
    return CompressionReason.model_validate(
        {
            "verdict": verdict,
            "codec": own and own.codec,
            "levels": own.levels if own else (),
            "encoded_s": coded.time_s,
            "plain_s": plain_s,
            "saved_s": saved_s,
            "relative_error": own and own.relative_error,
        }
    )
