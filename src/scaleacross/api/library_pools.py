"""Accelerator pools for tables: the buildings of each collective library, because libraries cannot join each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from scaleacross.cost_models.levels import collective_libraries
from scaleacross.errors import InfeasibleError, InputError
from scaleacross.spec.recommendation import OF_IDLE, RecommendationJob
from scaleacross.spec.topology import Building, Topology, with_buildings
from scaleacross.units import human_seconds

T = TypeVar("T")


@dataclass(frozen=True)
class LibraryPools(Generic[T]):
    """What a job makes of the buildings of each collective library.

    Attributes:
        topology: all buildings of the job.
        made: by library; buildings with most accelerators first.
        refused: why the job cannot run on the buildings of the other libraries, by library.
    """

    topology: Topology
    made: Mapping[str, T]
    refused: Mapping[str, str]

    def notes(self, used: str, step_s: Mapping[str, float]) -> tuple[str, ...]:
        """Return a note for every library whose buildings idle.

        Args:
            used: library of the plan.
            step_s: step time of the best plan of a library, s; inf where none was found.
        """
        out = []
        for library in collective_libraries(self.topology.buildings):
            if library == used:
                continue
            own, alone = _running(self.topology, library), step_s.get(library, inf)
            size, names = sum(one.num_accelerators for one in own), ", ".join(one.name for one in own)
            why = self.refused.get(library) or (
                f"they alone take {human_seconds(alone)} a step" if alone < inf else "no plan on them alone was found"
            )
            out.append(f"{OF_IDLE}{names} ({size:,} accelerators) run {library}, which cannot join {used}; {why}")
        return tuple(out)


def library_pools(
    job: RecommendationJob, topology: Topology, make: Callable[[RecommendationJob, Topology], T]
) -> LibraryPools[T]:
    """Return what ``make`` returns for the job on the buildings of each collective library.

    Args:
        job: a self-contained job.
        topology: its topology.
        make: raises InputError or InfeasibleError where the job cannot run on the given topology.

    Raises:
        InputError, InfeasibleError: the job can run on the buildings of no library; the reason is the largest pool's.
    """
    libraries = collective_libraries(topology.buildings)
    if len(libraries) == 1:
        return LibraryPools(topology, {libraries[0]: make(job, topology)}, {})
    parts = {
        library: with_buildings(topology, [one.name for one in _running(topology, library)]) for library in libraries
    }
    made: dict[str, T] = {}
    refused: dict[str, InputError | InfeasibleError] = {}
    for library, part in sorted(parts.items(), key=lambda one: -one[1].num_accelerators):
        own = job.model_copy(update={"topology": part.model_dump(mode="json")})
        try:
            made[library] = make(own, part)
        except (InputError, InfeasibleError) as error:
            refused[library] = error
    if not made:
        raise next(iter(refused.values()))
    return LibraryPools(topology, made, {library: str(error) for library, error in refused.items()})


def _running(topology: Topology, library: str) -> list[Building]:
    return [one for one in topology.buildings if collective_libraries([one]) == (library,)]
