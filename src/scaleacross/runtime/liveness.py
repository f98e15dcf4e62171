"""Finds the rank that holds a collective up: ranks that wait ask those that they wait for, until one does not wait.

A rank that has seen nothing move for a heartbeat connects to the listener of a peer and asks what it is doing. The
peer's kernel answers even if its process cannot, which separates three cases. A process is dead if nobody listens,
stopped if the connection is accepted but nobody answers, and its host is unreachable if there is no connection. A peer
that waits names those that it waits for; they are asked next. Nothing is sent while collectives move.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from scaleacross.errors import InputError
from scaleacross.runtime.secure import NEEDS_TLS, leaves_network, only_by_tls, refusal, secured

HEARTBEAT_S: Final = 1.0
"""Seconds without progress before a rank asks, and seconds to wait for an answer (``SCALEACROSS_HEARTBEAT_S``)."""
PATIENCE_S: Final = 30.0
"""Seconds after which a group gives up on a stopped or unreachable rank (``SCALEACROSS_PATIENCE_S``)."""
MAX_ASKED: Final = 64
MAX_ANSWER_BYTES: Final = 1 << 14

DEAD, STOPPED, UNREACHABLE, ABSENT, LATE, GAVE_UP = "dead", "stopped", "unreachable", "absent", "late", "gave up"
SILENT: Final = (STOPPED, UNREACHABLE)
MEANINGS: Final = {
    DEAD: "is dead: its host answers, and nothing listens there any more",
    STOPPED: "is stopped: its host answers, the process does not",
    UNREACHABLE: "is unreachable: its host does not answer",
    ABSENT: "is not here yet: it has not made the group, or has left it",
    LATE: "is not here yet: it has not come to this collective",
    GAVE_UP: "has given up",
}


class Status(NamedTuple):
    """What a rank reports about itself.

    Attributes:
        sequence: number of the collective that it runs, or will run next.
        running: whether it is in that collective.
        waits_for: ranks of the group whose messages are missing, or that do not accept what is sent to them.
        reason: why the group is broken here; None if it is not.
        contacts: (rank, contact) of the ranks in ``waits_for``, as far as they are known.
    """

    sequence: int
    running: bool
    waits_for: tuple[int, ...] = ()
    reason: str | None = None
    contacts: tuple[tuple[int, str], ...] = ()

    def to_json(self) -> bytes:
        """Return the status as it travels."""
        return json.dumps(self).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Status:
        """Read what ``to_json`` writes. Raises ValueError or TypeError for anything else."""
        sequence, running, waits_for, reason, contacts = json.loads(data)
        known = tuple((int(rank), str(contact)) for rank, contact in contacts)
        return cls(int(sequence), bool(running), tuple(int(rank) for rank in waits_for), reason and str(reason), known)


class Found(NamedTuple):
    """The rank that holds everybody up.

    Attributes:
        rank: its rank in the group.
        word: DEAD, STOPPED, UNREACHABLE, ABSENT, LATE or GAVE_UP.
        path: chain of ranks that wait for one another, from the own rank to ``rank``.
        reason: why it gave up.
    """

    rank: int
    word: str
    path: tuple[int, ...]
    reason: str | None = None

    def text(self, names: Sequence[str]) -> str:
        """Return a description for messages; ``names`` are those of all ranks of the group."""
        chain = ", which waits for ".join(names[rank] for rank in self.path[1:])
        waits = f" ({names[self.path[0]]} waits for {chain})" if len(self.path) > 2 else ""
        return f"{names[self.rank]} {MEANINGS[self.word]}{waits}"


Ask = Callable[[int], Status | str]
"""rank of the group -> its status, or DEAD, STOPPED, UNREACHABLE or ABSENT"""


def find(rank: int, sequence: int, waits_for: Sequence[int], ask: Ask) -> Found | None:
    """Follow the chain of ranks that wait.

    Args:
        rank: own rank in the group, which is in collective ``sequence`` and waits for ``waits_for``.

    Returns:
        the rank that everybody waits for; None if all are at work. A dead rank comes before one that gave up, a silent
        one, and one that is not here yet.
    """
    paths: dict[int, tuple[int, ...]] = {peer: (rank, peer) for peer in waits_for if peer != rank}
    waiting, found = list(paths), list[Found]()
    while waiting and len(paths) <= MAX_ASKED:
        peer = waiting.pop(0)
        says = ask(peer)
        if isinstance(says, str):
            found.append(Found(peer, says, paths[peer]))
        elif says.reason is not None:
            found.append(Found(peer, GAVE_UP, paths[peer], says.reason))
        elif says.sequence < sequence or (says.sequence == sequence and not says.running):
            # one that is in an earlier collective waits for somebody there, who is to blame
            if says.running and says.waits_for:
                waiting += _new(peer, says.waits_for, paths)
            else:
                found.append(Found(peer, LATE, paths[peer]))
        elif says.sequence == sequence:
            waiting += _new(peer, says.waits_for, paths)
    order = (DEAD, GAVE_UP, *SILENT, ABSENT, LATE)
    return min(found, key=lambda one: order.index(one.word), default=None)


def _new(peer: int, waits_for: Sequence[int], paths: dict[int, tuple[int, ...]]) -> list[int]:
    """Return those of ``waits_for`` that have not been asked, and add the path to each to ``paths``."""
    own = next(iter(paths.values()))[0]
    new = [other for other in waits_for if other not in paths and other != own]
    paths.update({other: (*paths[peer], other) for other in new})
    return new


def ask_at(address: str, port: int, hello: bytes, timeout_s: float, own: str = "") -> Status | str:
    """Return the answer of the process at this address, or what is wrong with it; ``own`` is where this one listens."""
    try:
        connection = socket.create_connection((address, port), timeout=timeout_s)
    except ConnectionRefusedError:
        return DEAD
    except ConnectionResetError:  # taken and closed before connect was told of it: the host answers
        return STOPPED
    except OSError:
        return UNREACHABLE
    with connection:
        connection.settimeout(timeout_s)
        try:
            if leaves_network(own or connection.getsockname()[0], address):
                connection = secured(connection, server=False)
            connection.sendall(hello)
            data = b""
            while more := connection.recv(MAX_ANSWER_BYTES):
                data += more
            if data == NEEDS_TLS:
                return Status(0, False, (), only_by_tls(address))
            return Status.from_json(data) if data else ABSENT
        except ssl.SSLError as error:
            return Status(0, False, (), refusal(error, address))
        except OSError:  # a connection that is reset proves nothing: too many may be asking at once
            return STOPPED
        except (ValueError, TypeError):
            return ABSENT


def seconds_of(variable: str, default: float) -> float:
    """Return a positive number of seconds from the environment. Raises InputError for anything else."""
    text: Any = os.environ.get(variable)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise InputError(f"{variable}={text}: a number of seconds above 0 is expected, e.g. {default:g}")
    return seconds
