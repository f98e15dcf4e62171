"""Whatever fails, every step is committed once and in order, with the sums of one epoch on all live replicas."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from scaleacross.runtime.replicas.membership import Epoch, Letter, Membership, Place


class Fleet:
    """Replicas in one process. Messages arrive at random times, in order per sender."""

    def __init__(self, seed: int, expected: int, shards: int) -> None:
        self.random, self.now = random.Random(seed), 0.0
        self.membership = Membership(expected, shards, silent_s=2.0)
        self.shards, self.born = shards, 0
        self.mail: dict[Place, list[dict[str, Any]]] = {}
        self.epochs: dict[Place, list[Epoch]] = {}
        self.step: dict[Place, int] = {}
        self.voted: dict[Place, Epoch | None] = {}
        self.taken: dict[Place, dict[int, Epoch]] = {}
        self.out: set[Place] = set()

    def born_replica(self, name: str, step: int = 0) -> None:
        for shard in range(self.shards):
            place = Place(name, shard)
            self.mail[place], self.epochs[place], self.taken[place] = [], [], {}
            self.step[place], self.voted[place] = step, None
            self.out.discard(place)
            self.post(self.membership.hello(place, step, self.now))

    def post(self, letters: Iterable[Letter]) -> None:
        for place, letter in letters:
            if place in self.mail:
                self.mail[place].append(letter)

    def epoch_of(self, place: Place) -> Epoch | None:
        return max((epoch for epoch in self.epochs[place] if epoch.begins <= self.step[place]), default=None)

    def read(self, place: Place) -> None:
        letter = self.mail[place].pop(0)
        if "epoch" in letter:
            self.epochs[place].append(Epoch(letter["epoch"], tuple(letter["members"]), letter["begins"]))
        elif "commit" in letter:
            assert letter["commit"] == self.step[place], "a commit of another step than the one that was reduced"
            epoch = self.voted[place]
            assert epoch is not None, "a commit without a sum"
            self.taken[place][self.step[place]] = epoch
            self.step[place], self.voted[place] = self.step[place] + 1, None
        elif "donate" in letter:  # the joiner gets all state at once, and later messages are forwarded
            for shard in range(self.shards):
                joiner = Place(letter["donate"], shard)
                if joiner in self.step:
                    self.step[joiner] = self.step[place]
                    self.post(self.membership.level(joiner, self.step[joiner], self.now))
        elif "gone" in letter:
            self.out.add(place)

    def follow(self) -> None:
        """Joiners get every sum that is committed, until they are members."""
        for place in self.mail:
            while self.epoch_of(place) is None and self.epochs[place] and self.step[place] < self.membership.step:
                self.step[place] += 1

    def vote(self, place: Place) -> None:
        epoch = self.epoch_of(place)
        if epoch is not None and self.voted[place] != epoch and place not in self.out:
            self.voted[place] = epoch
            samples = 1 + int(place.replica) % 5
            self.post(self.membership.done(place, epoch.number, self.step[place], samples, self.now))

    def kill(self, name: str) -> None:
        for place in [place for place in self.mail if place.replica == name]:
            del self.mail[place], self.epochs[place], self.step[place], self.voted[place]
        self.post(self.membership.lost([name], "dead", self.now))


@pytest.mark.parametrize("seed", range(40))
def test_every_step_is_committed_once_and_by_all_of_one_epoch(seed: int) -> None:
    fleet = Fleet(seed, 4, shards=1 + seed % 2)
    for name in range(4):
        fleet.born_replica(str(name))
    born, when_quiet = 4, 0
    for turn in range(1600):
        fleet.now += 0.001
        fleet.follow()
        alive = sorted({place.replica for place in fleet.mail})
        for place in fleet.mail:
            fleet.membership.heard(place, fleet.now)
        move, place = fleet.random.random(), fleet.random.choice(sorted(fleet.mail))
        doomed = fleet.random.choice(alive)
        if turn == 600:
            when_quiet = fleet.membership.step
        if (
            turn < 600 and move < 0.03 and fleet.membership.current.members != (doomed,)
        ):  # the last one takes the state with it
            fleet.kill(doomed)
        elif turn < 600 and move < 0.05 and len(alive) < 6:
            fleet.born_replica(str(born))
            born += 1
        elif move < 0.5 and fleet.mail[place]:
            fleet.read(place)
        else:
            fleet.vote(place)
    commits = [event for event in fleet.membership.history if event["event"] == "commit"]
    assert [event["step"] for event in commits] == list(range(len(commits)))
    assert len(commits) > when_quiet + 3, "no replica fails any more, but no step is committed"
    by_step = {event["step"]: event for event in commits}
    epochs = {e["epoch"]: tuple(e["members"]) for e in fleet.membership.history if e["event"] == "epoch"}
    for place, steps in fleet.taken.items():
        for step, epoch in steps.items():  # all that did a step used the same sums, divided by the same samples
            assert by_step[step]["epoch"] == epoch.number and place.replica in epochs[epoch.number]
            assert set(by_step[step]["samples"]) == set(epochs[epoch.number])


def at_work(members: int = 4, **how: Any) -> Membership:
    membership = Membership(members, silent_s=2.0, **how)
    for name in range(members):
        membership.hello(Place(str(name)), 7, 0.0, near="east" if name < 2 else "west")
    return membership


def told(letters: list[Letter], key: str) -> dict[str, Any]:
    return {place.replica: letter[key] for place, letter in letters if key in letter}


def test_a_death_before_the_sum_repeats_the_step_and_one_after_it_does_not() -> None:
    membership = at_work()
    membership.done(Place("0"), 1, 7, 10, 1.0)
    letters = membership.lost(["3"], "dead", 1.1)
    assert told(letters, "begins") == {"0": 7, "1": 7, "2": 7}
    for name in "01":
        assert membership.done(Place(name), 2, 7, 10, 1.2) == []
    membership.done(Place("0"), 1, 7, 99, 1.2)  # late, of the epoch before
    assert told(membership.done(Place("2"), 2, 7, 10, 1.2), "samples") == {"0": 30, "1": 30, "2": 30}
    for name in "12":
        membership.done(Place(name), 2, 8, 10, 1.3)
    assert membership.step == 8
    letters = membership.lost(["2"], "dead", 1.4)  # it has the sum of step 8, and replica 0 has not
    assert told(letters, "begins") == {"0": 8, "1": 8}


def test_half_of_the_members_that_are_silent_stop_the_others_until_they_are_back() -> None:
    membership = at_work()
    for name in "01":
        membership.heard(Place(name), 9.0)
    membership.tick(9.0)
    assert membership.paused and membership.current.members == ("0", "1", "2", "3")
    for name in "23":
        membership.heard(Place(name), 9.5)
    membership.tick(9.6)
    assert not membership.paused
    for name in "012":
        membership.heard(Place(name), 12.0)
    assert told(membership.tick(12.0), "gone") == {"3": "replica 3 is silent"}
    assert membership.current.members == ("0", "1", "2")


def test_a_cut_is_judged_when_all_behind_it_are_silent() -> None:
    """A partition is judged when all replicas behind it are silent.

    Each of three of five was heard last at another time. If they were given up one by one, a minority would continue.
    """
    membership = at_work(5)
    for name, heard in (("2", 8.0), ("3", 8.3), ("4", 8.6)):
        membership.heard(Place(name), heard)
    for now in (10.1, 10.4, 10.7):
        for name in "01":
            membership.heard(Place(name), now)
        assert membership.tick(now) == []
    assert membership.paused and membership.current.members == ("0", "1", "2", "3", "4")
    for name in "24":
        membership.heard(Place(name), 11.0)
    assert told(membership.tick(11.0), "gone") == {"3": "replica 3 is silent"}


def test_dead_ones_need_no_majority() -> None:
    membership = at_work()
    membership.lost(["1", "2", "3"], "dead", 1.0)
    assert membership.current.members == ("0",)


def test_members_that_cannot_reach_each_other_try_again_and_then_end() -> None:
    membership = at_work()
    letters: list[Letter] = []
    for attempt in range(3):
        now = 10.0 * (attempt + 1)
        for name in "0123":
            membership.heard(Place(name), now)
        membership.failed(Place("2"), membership.current.number, 7, "replica 1 is unreachable", now)
        for name in "0123":
            membership.heard(Place(name), now + 2.5)
        letters = membership.tick(now + 2.5)
    assert "replica 2: replica 1 is unreachable" in told(letters, "gone")["0"]
    assert membership.tick(now + 2.6) == [], "the members already have this message"


def test_a_joiner_gets_a_donor_near_it_and_nobody_waits_for_it() -> None:
    membership = at_work()
    letters = membership.hello(Place("9"), 0, 1.0, near="west", contact="here")
    assert told(letters, "donate") == {"2": "9"} and told(letters, "contact") == {"2": "here"}
    assert membership.current.members == ("0", "1", "2", "3")
    assert told(membership.level(Place("9"), 7, 2.0), "begins") == dict.fromkeys("01239", 8)
    for name in "0123":
        membership.done(Place(name), 1, 7, 1, 2.1)
    assert membership.current.members == ("0", "1", "2", "3", "9") and membership.step == 8
