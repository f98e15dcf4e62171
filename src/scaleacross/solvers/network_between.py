"""Connections between full rate and the library's defaults, for budgets that do not allow full rate everywhere.

A window of W bytes to one peer moves W per round trip, so half a budget should cost half the rate, not all of it. Where
the options of ``network_options`` leave the step longer than the fastest of them would, more are tried, in rounds:

1  for every communicator that leaves its scale-up domain: windows from its widest in steps of STEP down to the
   library's, FEWER_PAIRS queue pairs to spray over, and channels halved down to one
2… near the choice of the round before: windows a share wider and narrower, the share halved every round, and the
   window that uses all that the other communicators leave of the budget

A round keeps the windows chosen in the one before, so no round is worse. Lifting a budget allows whatever was chosen
before. A window that shares a budget misses its best by at most the last share; a single window uses the whole budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from scaleacross.errors import InfeasibleError
from scaleacross.solvers.choose_network import NetworkProblem, NetworkSolution, choose, held_by, within
from scaleacross.solvers.network_combinations import Combination
from scaleacross.solvers.network_options import Between, FlowOption
from scaleacross.spec.network_choice import LIBRARY_OUTSTANDING, LIBRARY_SEGMENT_BYTES

STEP: Final = 2.0
"""Ratio of neighbouring windows in the first round."""
SHARES: Final = (0.4, 0.2, 0.1, 0.05, 0.025)
"""Relative distance between the windows of a round and those chosen before, round by round."""
FEWER_PAIRS: Final = (8, 4, 2)
"""Queue pairs to spray over where 16 (``network_options.SPREAD``) exceed the budget."""
SAME: Final = 1e-9
"""Relative difference of exposed seconds below which two solutions count as equal."""


class Made(Protocol):
    """A network problem together with what it was made from."""

    @property
    def problem(self) -> NetworkProblem:
        """The choice to make."""


Some = TypeVar("Some", bound=Made)
Maker = Callable[[Mapping[str, Between]], Some]


def chosen_between(make: Maker[Some], seed: int = 0) -> tuple[Some, NetworkSolution]:
    """The problem that ``make`` makes with the connections that the budgets call for, and its solution.

    Raises:
        InfeasibleError: no choice keeps to the budgets.
    """
    made = make({})
    fastest = tuple(block[0] for block in made.problem.blocks)
    try:
        solution = choose(made.problem, seed=seed)
    except InfeasibleError:
        solution = None
    least_s = made.problem.exposed_s(fastest)
    # where full rate keeps to the budgets, or costs no time to give up, nothing can be gained
    if solution is not None and (
        within(held_by(fastest), made.problem.budgets) or solution.exposed_s <= least_s * (1 + SAME)
    ):
        return made, solution
    between = _everywhere(fastest)
    made = make(between)
    solution = choose(made.problem, seed=seed)
    for share in SHARES:
        finer = _around(between, made.problem, solution, share)
        other = make(finer)
        better = choose(other.problem, seed=seed)
        if better.exposed_s <= solution.exposed_s:
            made, solution = other, better
    return made, solution


def _everywhere(fastest: Sequence[Combination]) -> dict[str, Between]:
    """Settings of the first round by communicator, derived from the fastest choices."""
    found: dict[str, Between] = {}
    for choice in (option.choice for one in fastest for option in one.options):
        if choice.connections:
            old = found.get(choice.communicator, Between())
            windows = {*old.windows, *_halved(float(max(one.window_bytes for one in choice.connections)))}
            channels = {
                *old.channels,
                *(choice.num_channels >> bits for bits in range(choice.num_channels.bit_length())),
            }
            found[choice.communicator] = Between(
                tuple(sorted(windows, reverse=True)), FEWER_PAIRS, tuple(sorted(channels, reverse=True))
            )
    return found


def _halved(widest: float) -> Iterator[float]:
    """Yield windows in bytes, from the library's on one channel upwards by factors of STEP, below ``widest``."""
    window = float(LIBRARY_SEGMENT_BYTES * LIBRARY_OUTSTANDING)
    while window < widest:
        yield window
        window *= STEP


def _around(
    between: Mapping[str, Between], problem: NetworkProblem, solution: NetworkSolution, share: float
) -> dict[str, Between]:
    """Settings of a later round: windows near those chosen, and windows that use the rest of the budget."""
    chosen = [option for one in solution.chosen for option in one.options]
    left = problem.budgets.buffer_bytes - held_by(solution.chosen).buffer_bytes
    out = {}
    for name in between:
        own = [option for option in chosen if option.choice.communicator == name and option.choice.connections]
        all_left = left + max(option.held.buffer_bytes for option in own)
        windows = {all_left / peers for peers in _num_windows(problem, name)}
        for widest in map(_widest_bytes, own):
            windows |= {widest, widest * (1 + share), widest / (1 + share)}
        pairs = {min(one.queue_pairs for one in option.choice.connections) for option in own}
        channels = {option.choice.num_channels for option in own}
        out[name] = Between(tuple(sorted(windows)), tuple(sorted(pairs & set(FEWER_PAIRS))), tuple(sorted(channels)))
    return out


def _num_windows(problem: NetworkProblem, communicator: str) -> set[float]:
    """Ratios of buffer bytes to the widest window over a communicator's options: its possible numbers of peers."""
    every = {
        (option.held.buffer_bytes, _widest_bytes(option))
        for block in problem.blocks
        for one in block
        for option in one.options
        if option.choice.communicator == communicator and option.choice.connections
    }
    return {held / widest for held, widest in every}


def _widest_bytes(option: FlowOption) -> float:
    return float(max(one.window_bytes for one in option.choice.connections))
