"""Where the equal copies of a token go: to how many ranks, hosts or buildings of an all-to-all over experts.

A token visits k experts. Spread over C equal places (ranks, hosts, buildings) they are as good as k independent choices and hit
C·(1 − (1 − 1/C)^k) of them. A router limited to groups (DeepSeek-V2, arXiv 2405.04434 §2.2.2; node-limited routing of
DeepSeek-V3, arXiv 2412.19437 §2.1.2) first chooses g of G groups, contiguous blocks of experts, by the sum of the k/g best scores
in each, and then k experts in these alone. So about k/g of them lie in every chosen group, and the places hit are

* C ≥ G  those of k/g independent choices among the C/G places of a group, g times: g·C/G·(1 − (1 − G/C)^(k/g))
* C < G  all that hold a chosen group, G/C groups being in a place: C·(1 − Π_{i<g} (G − G/C − i)/(G − i))

where that is fewer than without groups. Both agree at C = G, and more places are never fewer hit. Scores are taken for alike in
all groups. A router of independent scores hits as many within 3 % (``tests/workloads/test_equal_copies.py``).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scaleacross.spec.job import Job
from scaleacross.workloads.layer_profile import ModelProfile


class EqualCopies(NamedTuple):
    """Equal copies per token of which every place gets one at most (``number``, k; 0: a place gets all that are meant for it).

    Their experts lie in ``chosen_groups`` (g) of ``groups`` (G).
    """

    number: float = 0.0
    groups: int = 1
    chosen_groups: int = 1

    def distinct_share(self, places: Any) -> Any:
        """Expected number of distinct places of a token's copies, over their number; 1 for no copies.

        Args:
            places: (...) equal places that the experts are spread over, C ≥ 1, of floats.
        """
        if not self.number:
            return places * 0.0 + 1.0
        hit = places * (1.0 - (1.0 - 1.0 / places) ** self.number)
        if self.chosen_groups < self.groups:
            hit = -_larger(-hit, -self._limited(places))
        return hit / self.number

    def _limited(self, places: Any) -> Any:
        """Distinct places in the chosen groups, which share the copies evenly."""
        each, missed = _larger(places, float(self.groups)) / self.groups, 1.0
        inside = each * (1.0 - (1.0 - 1.0 / each) ** (self.number / self.chosen_groups))
        together = self.groups / places
        for chosen in range(self.chosen_groups):
            missed = missed * _larger(self.groups - together - chosen, 0.0) / (self.groups - chosen)
        several = places < self.groups
        return several * places * (1.0 - missed) + (1 - several) * self.chosen_groups * inside


EVERY_COPY: Final = EqualCopies()
"""Every copy is sent."""


def equal_copies(job: Job, profile: ModelProfile) -> EqualCopies:
    """The copies of a token that the job's dispatcher sends once to a place."""
    if job.experts.dispatch == "copies":
        return EVERY_COPY
    routed = max(block.routed_tokens for block, _ in profile.blocks)
    return EqualCopies(float(routed), profile.expert_groups, profile.chosen_groups)


def _larger(one: Any, other: Any) -> Any:
    """The larger of both, of arrays too."""
    return (one + other + abs(one - other)) / 2
