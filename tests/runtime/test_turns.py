"""Jobs of a group run in the order in which they were queued, one at a time, whichever thread runs them."""

from __future__ import annotations

import threading
import time

import pytest

from scaleacross.runtime.turns import Turns

LIMIT_S = 30.0


def test_a_caller_who_waits_runs_its_job_itself_where_nothing_else_is_queued() -> None:
    ran, ended = list[tuple[str, int]](), threading.Event()
    turns = Turns("turns", ended.set)
    mine = turns.submit(lambda: ran.append(("mine", threading.get_ident())), here=True)
    assert mine is not None
    turns.submit(lambda: ran.append(("queued", threading.get_ident())))
    assert turns.submit(lambda: ran.append(("late", threading.get_ident())), here=True) is None, "it must not overtake"
    time.sleep(0.2)
    assert not ran, "it is the caller's turn"
    mine()
    turns.end()
    assert ended.wait(LIMIT_S)
    thread = turns.thread.ident
    assert ran == [("mine", threading.get_ident()), ("queued", thread), ("late", thread)]


def test_an_interrupted_job_gives_its_turn_back() -> None:
    ended = threading.Event()
    turns = Turns("turns", ended.set)

    def interrupted() -> None:
        raise KeyboardInterrupt

    mine = turns.submit(interrupted, here=True)
    assert mine is not None
    with pytest.raises(KeyboardInterrupt):
        mine()
    again = turns.submit(lambda: None, here=True)
    assert again is not None
    again()
    turns.end()
    assert ended.wait(LIMIT_S) and turns.submit(lambda: None, here=True) is None, "nothing runs after the end"
