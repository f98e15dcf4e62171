"""Number of distinct ranks, hosts or buildings that the copies of one token reach in an all-to-all over experts.

A token visits k experts. If they are spread over C equal places (ranks, hosts, buildings), they behave like k
independent choices and hit C·(1 − (1 − 1/C)^k) places. A router limited to groups (DeepSeek-V2, arXiv 2405.04434
§2.2.2; node-limited routing of DeepSeek-V3, arXiv 2412.19437 §2.1.2) first chooses g of G groups, contiguous blocks of
experts, by the sum of the k/g best scores in each. It then chooses k experts in these groups alone. So about k/g of
them lie in every chosen group, and the places hit are

* C ≥ G  those of k/g independent choices among the C/G places of a group, g times: g·C/G·(1 − (1 − G/C)^(k/g))
* C < G  all that hold a chosen group, G/C groups being in a place: C·(1 − Π_{i<g} (G − G/C − i)/(G − i))

where that is fewer than without groups. Both agree at C = G, and more places never mean fewer hits. Scores are assumed
to be distributed alike in all groups. A router of independent scores hits as many within 3 %
(``tests/workloads/test_equal_copies.py``).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scaleacross.spec.job import Job
from scaleacross.workloads.layer_profile import ModelProfile


class EqualCopies(NamedTuple):
    """Copies of a token that are equal, so that every place needs only one of them.

    ``number`` is k; 0 means that every copy is sent. The experts lie in ``chosen_groups`` (g) of ``groups`` (G).
    """

    number: float = 0.0
    groups: int = 1
    chosen_groups: int = 1

    def distinct_share(self, places: Any) -> Any:
        """Expected number of distinct places of a token's copies, divided by the number of copies; 1 for no copies.

        Args:
            places: (...) floats: number of equal places that the experts are spread over, C ≥ 1.
        """
        if not self.number:
            return places * 0.0 + 1.0
        hit = places * (1.0 - (1.0 - 1.0 / places) ** self.number)
        if self.chosen_groups < self.groups:
            hit = -_larger(-hit, -self._limited(places))
        return hit / self.number

    def _limited(self, places: Any) -> Any:
        """Expected distinct places in the chosen groups, (...); every chosen group gets the same number of copies."""
        each, missed = _larger(places, float(self.groups)) / self.groups, 1.0
        inside = each * (1.0 - (1.0 - 1.0 / each) ** (self.number / self.chosen_groups))
        together = self.groups / places
        for chosen in range(self.chosen_groups):
            missed = missed * _larger(self.groups - together - chosen, 0.0) / (self.groups - chosen)
        # both cases are computed for every element, so that arrays need no branch
        several = places < self.groups
        return several * places * (1.0 - missed) + (1 - several) * self.chosen_groups * inside


EVERY_COPY: Final = EqualCopies()
"""Dispatch that sends every copy."""


def equal_copies(job: Job, profile: ModelProfile) -> EqualCopies:
    """Copies of a token that the job's dispatcher sends only once to a place."""
    if job.experts.dispatch == "copies":
        return EVERY_COPY
    routed = max(block.routed_tokens for block, _ in profile.blocks)
    return EqualCopies(float(routed), profile.expert_groups, profile.chosen_groups)


def _larger(one: Any, other: Any) -> Any:
    """Element-wise maximum of numbers or arrays."""
    # arithmetic alone, so that this room does not import numpy
    return (one + other + abs(one - other)) / 2
