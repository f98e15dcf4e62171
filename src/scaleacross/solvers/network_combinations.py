"""Combinations of the options of a block of flows, without those that cannot be part of the best choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from scaleacross.cost_models.candidates import Floats
from scaleacross.cost_models.network.resources import NOTHING_HELD, Held
from scaleacross.solvers.network_options import FlowOption

SAME_TIME: Final = 9
"""Significant digits to which times are compared; smaller differences count as equal."""


class Times(NamedTuple):
    """Seconds that a combination adds to a step.

    Attributes:
        serial_s: exposed seconds beyond those of the block's fastest options; for blocks outside windows.
        window_s: seconds of its communicator's calls, per window.
        busy_s: of these, seconds in which the network is busy.
        free_s: of these, seconds that hold no multiprocessors.
    """

    serial_s: float
    window_s: tuple[float, ...]
    busy_s: tuple[float, ...]
    free_s: tuple[float, ...]

    @property
    def held_s(self) -> tuple[float, ...]:
        """Seconds that hold multiprocessors, per window."""
        return tuple(calls - free for calls, free in zip(self.window_s, self.free_s, strict=True))


class Combination(NamedTuple):
    """One option for every flow of a block, their times, and their loads on inter-building links in one row.

    A block that falls into windows belongs to one communicator.
    """

    options: tuple[FlowOption, ...]
    times: Times
    trunk_load: tuple[int, ...] = ()

    @property
    def communicator(self) -> str:
        """The communicator of the block, whose calls follow one another."""
        return self.options[0].choice.communicator

    @property
    def every_s(self) -> tuple[float, ...]:
        """All its times; the step grows with each of them."""
        return (self.times.serial_s, *self.times.window_s, *self.times.busy_s, *self.times.held_s)

    @property
    def amounts(self) -> tuple[float, ...]:
        """All its times, then the resources and link loads of each option: a smaller value is never worse."""
        return (*self.every_s, *(amount for option in self.options for amount in option.amounts))

    @property
    def held(self) -> dict[str, Held]:
        """The resources that it holds, by communicator."""
        return most_held(self.options)


def most_held(options: Iterable[FlowOption]) -> dict[str, Held]:
    """The largest amount of every resource that any of the options holds, by communicator."""
    most: dict[str, Held] = {}
    for option in options:
        own = most.get(option.choice.communicator, NOTHING_HELD)
        most[option.choice.communicator] = Held(*map(max, own, option.held))
    return most


def combined(
    options: Sequence[Sequence[FlowOption]],
    price: Callable[[tuple[FlowOption, ...]], Times],
    on_trunks: Callable[[tuple[FlowOption, ...]], tuple[int, ...]] = lambda _: (),
) -> tuple[Combination, ...]:
    """Combinations of the options of a block's flows (each ``undominated``) that no other one dominates, fastest first.

    The first of equals is kept, so the order of options is one of preference.
    """
    every = [Combination(one, price(one), on_trunks(one)) for one in product(*options)]
    # the sort is stable, so options of equal time stay in the order of preference
    every.sort(key=lambda each: rounded_s(each.times.serial_s + sum(each.times.window_s)))
    return tuple(every[row] for row in _unbeaten(np.array([one.amounts for one in every])))


def undominated(options: Sequence[FlowOption]) -> list[FlowOption]:
    """Options that no earlier or faster option equals or betters in its times and in everything it holds."""
    kept: list[FlowOption] = []
    for one in sorted(options, key=lambda option: rounded_s(option.time_s)):
        if not any(
            rounded_s(other.busy_s) <= rounded_s(one.busy_s)
            and rounded_s(other.held_s) <= rounded_s(one.held_s)
            and all(a <= b for a, b in zip(other.amounts, one.amounts, strict=True))
            for other in kept
        ):
            kept.append(one)
    return kept


def uncontended(
    blocks: list[list[list[FlowOption]]], in_windows: Sequence[bool], budgets: Held
) -> list[list[list[FlowOption]]]:
    """Options of every block; where budgets cannot bind, only the fastest options of flows that the step waits for.

    That is so where the largest holdings of all options keep to the budgets together. A longer collective never
    shortens a step, unless it holds multiprocessors for less time.
    """
    own = [
        block if inside else [_fastest_by_held(options) for options in block]
        for block, inside in zip(blocks, in_windows, strict=True)
    ]
    most = most_held(option for block in own for options in block for option in options)
    if all(sum(column) <= limit for *column, limit in zip(*most.values(), budgets, strict=True)):
        return own
    return blocks


def _fastest_by_held(options: Sequence[FlowOption]) -> list[FlowOption]:
    """Options that hold multiprocessors for less time than every faster one; ``options`` are sorted, fastest first."""
    kept = [options[0]]
    for one in options[1:]:
        if rounded_s(one.held_s) < rounded_s(kept[-1].held_s):
            kept.append(one)
    return kept


def fastest_everywhere(combinations: Sequence[Combination]) -> bool:
    """Whether the first combination takes no longer than any other in every component of its time."""
    first = combinations[0].every_s
    return all(all(a <= b for a, b in zip(first, one.every_s, strict=True)) for one in combinations)


def _unbeaten(amounts: Floats) -> list[int]:
    """Indices of the rows of ``amounts`` (rows, columns) that no earlier kept row equals or betters in every column."""
    kept: list[int] = []
    of_kept = np.empty_like(amounts)
    for row, own in enumerate(amounts):
        if not (of_kept[: len(kept)] <= own).all(axis=1).any():
            of_kept[len(kept)] = own
            kept.append(row)
    return kept


def rounded_s(seconds: float) -> float:
    """Seconds, rounded to the digits to which they are compared."""
    return float(f"{seconds:.{SAME_TIME}e}")
