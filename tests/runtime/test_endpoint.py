"""torch reuses names of groups and drops groups late. Neither disturbs the group that is alive."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import torch.distributed as dist

from scaleacross.errors import InputError
from scaleacross.runtime.communicator import Communicator, LinkSettings
from scaleacross.runtime.endpoint import Contact, Member, ask, call, endpoint_of_process
from scaleacross.runtime.faults import CollectiveError
from scaleacross.runtime.liveness import ABSENT, Status
from scaleacross.runtime.secure import NEEDS_TLS, PATHS

LIMIT_S = 30.0


def member_of(store: dist.Store, rank: int) -> Communicator:
    """A member of the only group of this test; torch calls every second group of a job "1"."""
    names = ["rank 0", "rank 1"]
    return Communicator("1/0", rank, names, store, "127.0.0.1", os.getpid(), lambda peer: LinkSettings())


def test_a_group_that_goes_late_leaves_its_namesake_alone() -> None:
    old = member_of(dist.HashStore(), 0)
    new = member_of(dist.HashStore(), 0)
    assert old.contact.token != new.contact.token
    old.drop()
    assert ask(new.contact, LIMIT_S) == Status(0, False)
    old._thread.join(LIMIT_S)
    assert not old._thread.is_alive() and ask(old.contact, LIMIT_S) == ABSENT
    new.close()


def test_a_caller_for_a_group_that_is_gone_never_reaches_its_namesake() -> None:
    old = member_of(dist.HashStore(), 0)
    gone = old.contact
    old.close()
    new = member_of(dist.HashStore(), 0)
    assert ask(gone, LIMIT_S) == ABSENT
    new.close()


@pytest.mark.parametrize("wrong", ["silent", "tls", "no certificate"])
def test_a_caller_that_fails_hangs_up(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that fails closes its connection.

    The other side sees the end although groups keep the error as their reason.
    """
    if wrong == "no certificate":
        monkeypatch.setenv(PATHS[0], "/nowhere.pem")
    with socket.create_server(("127.0.0.2", 0)) as listener:
        contact = Contact("127.0.0.2", listener.getsockname()[1], "token", "elsewhere")
        with ThreadPoolExecutor(1) as pool, pytest.raises((CollectiveError, InputError)) as held:
            calling = pool.submit(call, contact, 0, 0, 0.2, 0, contact._replace(address="127.0.0.1").to_json())
            with listener.accept()[0] as taken:
                if wrong == "tls":
                    taken.sendall(NEEDS_TLS)
                calling.exception(LIMIT_S)
                taken.settimeout(1.0)
                while taken.recv(4096):
                    pass
            calling.result()
    assert held.value.__traceback__ is not None


def test_a_group_may_be_dropped_in_the_middle_of_anything() -> None:
    """A group may be dropped at any moment.

    The collector runs in any thread that creates an object, also during registration.
    """
    endpoint = endpoint_of_process("127.0.0.1", os.getpid())
    old, contacts = member_of(dist.HashStore(), 0), list[Contact]()

    class Dropping(dict[str, Member]):
        def __setitem__(self, token: str, member: Member) -> None:
            old.drop()
            super().__setitem__(token, member)

    members, endpoint._members = endpoint._members, Dropping(endpoint._members)
    register = threading.Thread(
        target=lambda: contacts.append(endpoint.register(Member(lambda caller: None))), daemon=True
    )
    register.start()
    register.join(LIMIT_S)
    endpoint._members = members
    assert contacts, "registration waits for the dropped group"
