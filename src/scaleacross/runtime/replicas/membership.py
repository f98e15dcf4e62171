"""Decides which replicas take part in which step, without sockets, clocks or torch. ``coordinator`` serves it.

An *epoch* is a set of replicas and the step at which it begins. The epoch in force at a step is the latest one that has
begun. A step is *committed* when every rank of every member of its epoch has its sum. Until then each rank keeps its
own gradients, which has three consequences:

* A member that is lost before costs no step: an epoch of the others begins at the same step, which they reduce again.
* A member that is lost after all had the sum has taken part: the step is committed with it, and the next one begins
  without it.
* A joiner that has caught up becomes a member one step ahead: nobody waits for it before.

*Majority*: a replica whose connection the kernel has closed is dead. A silent one may live on the other side of a
network partition. So those that are heard go on only if they are more than half of all that are not known to be dead;
otherwise they wait for the silent ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

MAX_ATTEMPTS: Final = 3
"""Number of failures at one step, with no member lost, after which the job ends."""


SILENT_S: Final = 10.0
BEATS_PER_SILENCE: Final = 5
QUIET_BEATS: Final = 2
"""A rank that has not been heard for so many beats has missed one, or is late with one."""
WAITING_FACTOR: Final = 12
"""A rank that is no member yet holds nobody up, so it may be silent for so many times longer."""


class Place(NamedTuple):
    """A rank: its replica, and the shard of the state that it holds there."""

    replica: str
    shard: int = 0


Letter = tuple[Place, dict[str, Any]]
"""(recipient, message)"""


class Epoch(NamedTuple):
    """The number of an epoch, its replicas in the order of their ranks, and its first step."""

    number: int
    members: tuple[str, ...]
    begins: int

    def letter(self) -> dict[str, Any]:
        """Return the message by which members learn of the epoch."""
        return {"epoch": self.number, "members": list(self.members), "begins": self.begins}


@dataclass
class _Rank:
    """A rank that has said hello."""

    step: int
    near: str
    contact: str
    heard: float
    level: bool = False


@dataclass
class Membership:
    """The coordinator's state. Every method returns letters to send; events are appended to ``history``.

    Args:
        expected: number of replicas that the first epoch waits for.
        shards: number of ranks of a replica.
        silent_s: seconds without a word after which a member counts as silent. A process that compiles or imports says
            nothing for seconds, so this is for hosts and processes that hang. A process that is killed is known at
            once.
    """

    expected: int
    shards: int = 1
    silent_s: float = SILENT_S
    history: list[dict[str, Any]] = field(default_factory=list)
    current: Epoch = field(default_factory=lambda: Epoch(0, (), 0))
    step: int = -1
    paused: bool = False
    _ranks: dict[Place, _Rank] = field(default_factory=dict)
    _planned: Epoch | None = None
    _number: int = 0
    _votes: dict[Place, int] = field(default_factory=dict)
    _failed: tuple[float, str] | None = None
    _attempts: int = 0
    _first_vote: float | None = None
    _donors: dict[str, str] = field(default_factory=dict)

    # --- what ranks say -----------------------------------------------------------------------------------------------

    def hello(self, place: Place, step: int, now: float, near: str = "", contact: str = "") -> list[Letter]:
        """Admit a rank with the state at ``step``; ``near`` names its location, ``contact`` is for a donor."""
        letters = self.lost([place.replica], "replaced", now) if place in self._ranks else []
        self._ranks[place] = _Rank(step, near, contact, now)
        if not self._is_whole(place.replica):
            return letters
        self._note(now, "hello", replica=place.replica, at_step=step)
        if self.current.members:
            return letters + self._find_donors(place.replica, now)
        whole = sorted({rank.replica for rank in self._ranks if self._is_whole(rank.replica)})
        return letters + (self._start(whole, now) if len(whole) >= self.expected else [])

    def heard(self, place: Place, now: float) -> None:
        """Record that a rank is alive."""
        if place in self._ranks:
            self._ranks[place].heard = now

    def done(self, place: Place, epoch: int, step: int, samples: int, now: float) -> list[Letter]:
        """Record that a rank has the sum of ``step``, to which its replica gave ``samples``."""
        self.heard(place, now)
        if (epoch, step) != (self.current.number, self.step):
            return []
        self._votes[place] = samples
        self._first_vote = now if len(self._votes) == 1 else self._first_vote
        return self._commit(now) if self._all_done(self.current.members) else []

    def failed(self, place: Place, epoch: int, step: int, why: str, now: float) -> list[Letter]:
        """Record that a rank could not reduce. A lost replica will be known soon; otherwise the members try again."""
        self.heard(place, now)
        if (epoch, step) == (self.current.number, self.step) and self._failed is None:
            self._failed = now, f"replica {place.replica}: {why}"
            self._note(now, "failed", step=step, epoch=epoch, replica=place.replica, why=why)
        return []

    def level(self, place: Place, step: int, now: float) -> list[Letter]:
        """Record that a joiner has applied all sums that its donor had, and is about to take ``step``."""
        self.heard(place, now)
        if place not in self._ranks or place.replica in self._coming():
            return []
        self._ranks[place].step, self._ranks[place].level = step, True
        if not all(self._ranks[Place(place.replica, shard)].level for shard in range(self.shards)):
            return []
        return self._plan([*self._coming(), place.replica], now)

    def donor_lost(self, place: Place, now: float) -> list[Letter]:
        """Find another donor for a joiner whose donor was lost before the joiner was level."""
        return [] if place.replica in self._coming() else self._find_donors(place.replica, now)

    def lost(self, replicas: Iterable[str], word: str, now: float) -> list[Letter]:
        """Remove replicas that are ``dead``, ``left``, ``silent`` or ``replaced``; tell their other ranks to end."""
        gone = {replica for replica in replicas if any(place.replica == replica for place in self._ranks)}
        if not gone:
            return []
        letters: list[Letter] = []
        for place in [place for place in self._ranks if place.replica in gone]:
            letters.append((place, {"gone": f"replica {place.replica} is {word}"}))
            del self._ranks[place]
        for replica in sorted(gone):
            self._donors.pop(replica, None)
            self._note(now, word, replica=replica)
        left = [member for member in self.current.members if member not in gone]
        if not left:
            self.current, self._planned, self.step = Epoch(self._number, (), 0), None, -1
        elif len(left) < len(self.current.members):
            if self._all_done(self.current.members):  # it has taken part
                letters += self._commit(now)
                left = [member for member in self.current.members if member not in gone]
            letters += self._begin(left, now, gone=gone)
        elif self._planned is not None and gone & set(self._planned.members):
            letters += self._plan([member for member in self._planned.members if member not in gone], now)
        return letters

    def tick(self, now: float) -> list[Letter]:
        """React to the passing of time: remove silent replicas, note who is awaited, repeat a failed step."""
        members = set(self.current.members)
        limits = {True: self.silent_s, False: WAITING_FACTOR * self.silent_s}
        silent = {p.replica for p, rank in self._ranks.items() if now - rank.heard > limits[p.replica in members]}
        # a cut takes many at once, and each was heard last at another time: they are judged together
        undecided = bool(members & silent) and bool(members & self._quiet(now) - silent)
        left, letters = len(members - silent), list[Letter]()
        if not undecided:
            # only a majority may remove silent members; silent joiners hold nobody up
            if silent and (not members & silent or 2 * left > len(members)):
                return self._pause(False, now) + self.lost(sorted(silent), "silent", now)
            letters = self._pause(bool(members & silent), now)
        if self._first_vote is not None and self._votes and now - self._first_vote >= self.silent_s:
            left_out = [place for place in self._places(self.current.members) if place not in self._votes]
            for replica in dict.fromkeys(place.replica for place in left_out):
                heard = min(self._ranks[place].heard for place in left_out if place.replica == replica)
                what = {"step": self.step, "epoch": self.current.number, "quiet_s": round(now - heard, 1)}
                self._note(now, "awaited", replica=replica, **what)
            self._first_vote = None  # said once
        if self._failed is not None and not (self.paused or undecided) and now - self._failed[0] >= self.silent_s:
            self._attempts += 1
            if self._attempts >= MAX_ATTEMPTS:
                why = f"step {self.step} failed {MAX_ATTEMPTS} times with all members alive; first {self._failed[1]}"
                self._failed = None  # said once
                return letters + [(place, {"gone": why}) for place in self._places(self.current.members)]
            letters += self._begin(self.current.members, now, self._attempts)
        return letters

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _start(self, replicas: Sequence[str], now: float) -> list[Letter]:
        """Begin the first epoch: replicas with the latest state are members, the others catch up."""
        at = {replica: self._ranks[Place(replica)].step for replica in replicas}
        self.step = max(at.values())
        letters = self._begin([replica for replica in replicas if at[replica] == self.step], now)
        for replica in replicas:
            if at[replica] < self.step:
                letters += self._find_donors(replica, now)
        return letters

    def _begin(
        self, members: Sequence[str], now: float, attempt: int = 0, gone: Collection[str] = frozenset()
    ) -> list[Letter]:
        """Begin an epoch at the present step. Replicas that were to join later still do."""
        joining = [m for m in self._coming() if m not in self.current.members and m not in gone]
        self._number += 1
        self.current, self._planned = Epoch(self._number, tuple(sorted(members)), self.step), None
        self._votes, self._failed, self._attempts = {}, None, attempt
        return self._announce(self.current, now) + (self._plan(joining, now) if joining else [])

    def _plan(self, joining: Sequence[str], now: float) -> list[Letter]:
        """Plan an epoch one step ahead, with the replicas that have caught up."""
        self._number += 1
        members = tuple(sorted({*self.current.members, *joining}))
        self._planned = Epoch(self._number, members, self.step + 1)
        return self._announce(self._planned, now)

    def _announce(self, epoch: Epoch, now: float) -> list[Letter]:
        self._note(now, "epoch", epoch=epoch.number, members=list(epoch.members), begins=epoch.begins)
        return [(place, epoch.letter()) for place in self._places(epoch.members)]

    def _commit(self, now: float) -> list[Letter]:
        """Commit the step, whose sum all members have."""
        samples = {place.replica: count for place, count in self._votes.items() if place.shard == 0}
        told = [place for place in self._places(self.current.members) if place in self._ranks]
        letters: list[Letter] = [(place, {"commit": self.step, "samples": sum(samples.values())}) for place in told]
        self._note(now, "commit", step=self.step, epoch=self.current.number, samples=samples)
        self.step += 1
        self._votes, self._failed, self._attempts = {}, None, 0
        if self._planned is not None and self._planned.begins == self.step:
            self.current, self._planned = self._planned, None
        return letters

    def _pause(self, wanted: bool, now: float) -> list[Letter]:
        if wanted == self.paused:
            return []
        self.paused = wanted
        self._note(now, "paused" if wanted else "resumed")
        if self._failed is not None:
            self._failed = now, self._failed[1]
        return []

    def _find_donors(self, replica: str, now: float) -> list[Letter]:
        """Let one member give its state to the joiner: of the same location if possible, else the least busy."""
        busy = Counter(self._donors.values())
        near = self._ranks[Place(replica)].near
        donor = min(
            self.current.members,
            key=lambda m: (self._ranks[Place(m)].near != near, busy[m], m),
            default=None,
        )
        if donor is None:
            return []
        self._donors[replica] = donor
        self._note(now, "donor", replica=replica, donor=donor)
        return [
            (Place(donor, shard), {"donate": replica, "contact": self._ranks[Place(replica, shard)].contact})
            for shard in range(self.shards)
        ]

    # --- looking up ---------------------------------------------------------------------------------------------------

    def _coming(self) -> tuple[str, ...]:
        """Return the members of the latest epoch, planned or current."""
        return (self._planned or self.current).members

    def _quiet(self, now: float) -> set[str]:
        """Return the replicas that have missed a beat: silent, or about to be."""
        missed_s = QUIET_BEATS * self.silent_s / BEATS_PER_SILENCE
        return {place.replica for place, rank in self._ranks.items() if now - rank.heard > missed_s}

    def _is_whole(self, replica: str) -> bool:
        return all(Place(replica, shard) in self._ranks for shard in range(self.shards))

    def _places(self, replicas: Iterable[str]) -> list[Place]:
        return [Place(replica, shard) for replica in replicas for shard in range(self.shards)]

    def _all_done(self, replicas: Iterable[str]) -> bool:
        return all(place in self._votes for place in self._places(replicas))

    def _note(self, now: float, event: str, **what: Any) -> None:
        self.history.append({"time_s": now, "event": event, **what})
