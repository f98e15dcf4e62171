"""Connections between full rate and the library's defaults, where the budgets of a job do not hold full rate for everybody.

A window of W bytes to one peer moves W per round trip, so half a budget should cost half the rate, not all of it. Where the
options of ``network_options`` leave the step longer than the fastest of them would, more are tried, in rounds:

1  of every communicator that goes beyond its scale-up domain: windows from its widest in steps of STEP down to the library's,
   FEWER_PAIRS queue pairs to spray over, and channels halved down to one
2… around the choice of the round before: windows a share wider and narrower, the share halved every round, and the window that
   takes all that the other communicators leave of the budget

A round keeps the windows that the one before chose, so none is worse; budgets that are lifted allow whatever was chosen before.
The finest share is the most by which a window that shares a budget misses its best; alone, it takes the budget whole.
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
"""By how much windows around the choice differ from it, round by round."""
FEWER_PAIRS: Final = (8, 4, 2)
"""Queue pairs to spray over where 16 are too many for the budget."""
SAME: Final = 1e-9
"""Relative difference of exposed seconds below which nothing is gained."""


class Made(Protocol):
    """A problem with what made it."""

    @property
    def problem(self) -> NetworkProblem:
        """The choice to make."""


Some = TypeVar("Some", bound=Made)
Maker = Callable[[Mapping[str, Between]], Some]


def chosen_between(make: Maker[Some], seed: int = 0) -> tuple[Some, NetworkSolution]:
    """The problem that ``make`` makes with the connections that the budgets ask for, and its solution.

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
    """The first round, by communicator, from the fastest choices."""
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
    """Powers of STEP below ``widest``, down to the library's window on one channel."""
    window = float(LIBRARY_SEGMENT_BYTES * LIBRARY_OUTSTANDING)
    while window < widest:
        yield window
        window *= STEP


def _around(
    between: Mapping[str, Between], problem: NetworkProblem, solution: NetworkSolution, share: float
) -> dict[str, Between]:
    """A later round: windows near those chosen, and those that take what is left of the budget."""
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
    """Buffers over the widest window of the options of a communicator: how many peers it has, one way or another."""
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
