"""The networks of candidates that a search placed, each chosen once: the best plan and its alternatives share them."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaleacross.errors import InfeasibleError
from scaleacross.solvers.network_of_plan import Networked, with_network
from scaleacross.solvers.search_state import Placed, Search, decision_of


@dataclass
class PlacedNetworks:
    """Remembers the networks of placed candidates for one search."""

    state: Search
    _known: dict[int, tuple[Placed, Networked | InfeasibleError]] = field(default_factory=dict)

    def knows(self, placed: Placed) -> bool:
        """Whether the network of a candidate was chosen before."""
        return id(placed) in self._known

    def of(self, placed: Placed) -> Networked:
        """The candidate with the network that makes its step shortest.

        Raises:
            InfeasibleError: no network keeps to the budgets (``with_network``).
        """
        if not self.knows(placed):
            self._known[id(placed)] = (
                placed,
                self._chosen(placed),
            )  # holds the candidate, so that its number stays its own
        found = self._known[id(placed)][1]
        if isinstance(found, InfeasibleError):
            raise found
        return found

    def _chosen(self, placed: Placed) -> Networked | InfeasibleError:
        try:
            return with_network(self.state.problem, decision_of(placed), self.state.seed)
        except InfeasibleError as error:
            return error
