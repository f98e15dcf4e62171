"""The links of one group. Its collectives run one after the other in the order in which they were queued: in a thread of the
group, or in that of a caller who waits."""

from __future__ import annotations

import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from scaleacross.runtime.endpoint import Caller, Contact, Member, ask, call, endpoint_of_process
from scaleacross.runtime.engine import Cursor, Outbound, Run, Task
from scaleacross.runtime.faults import CollectiveError, CollectiveTimeoutError, PeerLostError
from scaleacross.runtime.incoming import Incoming
from scaleacross.runtime.liveness import ABSENT, GAVE_UP, MEANINGS, Status
from scaleacross.runtime.outgoing import Outgoing
from scaleacross.runtime.turns import Turns
from scaleacross.runtime.watch import Watch

MAX_MISSING_SHOWN: Final = 6
MAX_CONTACTS: Final = 32
JOIN_S: Final = 2.0
MAX_SHARED_BYTES: Final = 1 << 28
POLL_S: Final = 0.05


class Store(Protocol):
    """What is used of ``torch.distributed.Store``: one ``set`` per rank and group, one ``get`` per peer that is talked to, and
    ``check`` until the peer is there."""

    def set(self, key: str, value: str) -> None:
        """Publish."""

    def get(self, key: str) -> bytes:
        """Wait for a key and read it; raises after the store's own timeout."""

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""


@dataclass(frozen=True)
class LinkSettings:
    """How the link to one peer is used.

    Attributes:
        window_bytes: most bytes in flight.
        segment_bytes: most bytes of a segment.
        share_memory: payloads through shared memory if both processes have it.
    """

    window_bytes: int = 8 << 20
    segment_bytes: int = 1 << 20
    share_memory: bool = True


class Communicator:
    """One group as its member ``rank`` sees it.

    Args:
        group: name, equal on all members and unique in the job.
        rank, names: own rank in the group; how every rank is called in messages.
        store: the rendezvous of the group.
        address: where this process listens.
        settings: peer -> how the link to it is used.
    """

    def __init__(
        self,
        group: str,
        rank: int,
        names: Sequence[str],
        store: Store,
        address: str,
        process_id: int,
        settings: Callable[[int], LinkSettings],
    ) -> None:
        self.group, self.rank, self.names = group, rank, names
        self.broken: CollectiveError | None = None
        self._store, self._settings = store, settings
        self._endpoint = endpoint_of_process(address, process_id)
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: dict[int, Incoming] = {}
        self._writing: set[int] = set()
        self._busy: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._callers: queue.SimpleQueue[Caller] = queue.SimpleQueue()
        self._wake_up, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._deadline = 0.0
        self._run: Run | None = None
        self._contacts: dict[int, Contact] = {}
        self._watch = Watch(group, rank, names, self._ask, self._wake)
        self.contact = self._endpoint.register(Member(self._called, self._status, self.close))
        store.set(f"contact/{rank}", self.contact.to_json())
        self._turns = Turns(f"scaleacross-{group}", self._hang_up)
        self.submit, self._thread = self._turns.submit, self._turns.thread

    def close(self, reason: str | None = None) -> None:
        """End the thread when what is queued is done. With a ``reason`` the collective under way gives up at once."""
        if reason is not None:
            self.abort(reason)
        self.drop()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=JOIN_S)

    def abort(self, reason: str) -> None:
        """The collective under way, and all that are queued, give up at once; nobody waits for it."""
        if self.broken is None:
            self.broken = CollectiveError(f"group {self.group} was aborted: {reason}")
            self._wake()

    def drop(self) -> None:
        """The same without a look at how it ends. Takes no lock and never waits: the garbage collector calls it, in any thread
        and in the middle of anything."""
        self._endpoint.unregister(self.contact)
        self._turns.end()

    def run(self, task: Task, deadline: float, cursor: Cursor) -> None:
        """Run one collective, in a turn of the group, until ``deadline`` (of ``time.monotonic``).

        Raises:
            CollectiveError: it cannot end: a peer is lost or runs something else, or the time is over. The group is broken then.
        """
        if self.broken is not None:
            raise self.broken
        self._deadline = deadline
        self._watch.begin(task.identity.sequence)
        run = self._run = Run(task, self._post, cursor)
        try:
            run.start()
            self._resume(run)
            self._loop(run)
        except CollectiveError as error:
            self._give_up(error, task)
            raise self.broken from None  # type: ignore[misc]
        except BaseException as error:  # nobody may be left waiting for this rank, not even where Ctrl-C has hit it
            self._give_up(CollectiveError(f"{type(error).__name__}: {error}"), task)
            raise
        finally:
            self._run = None
            self._watch.end()

    def exchanged_bytes(self) -> tuple[int, int]:
        """(sent, received) bytes of payload since the group began."""
        received = sum(link.received_bytes for link in self._incoming.values())
        return sum(self.bytes_by_peer().values()), received

    def bytes_by_peer(self) -> dict[int, int]:
        """Bytes of payload sent to each peer since the group began, as they travelled."""
        return {peer: link.sent_bytes for peer, link in self._outgoing.items()}

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _hang_up(self) -> None:
        for link in self._links():
            link.close()
        self._selector.close()
        self._wake_up.close()
        self._woken.close()

    def _loop(self, run: Run) -> None:
        while True:
            self._pump()
            if run.finished:
                return
            self._require_peers(run)
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise CollectiveTimeoutError(self._overdue(run))
            self._watch.look(lambda: self._waits_for(run))
            for key, events in self._selector.select(min(left, self._watch.heartbeat_s)):
                link = key.data
                if link is None:
                    self._greet(run)
                    continue
                self._watch.moved()
                if isinstance(link, Incoming):
                    if link.parked:  # left registered, as most often the collective ends before more comes
                        self._listen(link, False)
                    else:
                        self._read(link, run)
                elif events & selectors.EVENT_READ:
                    link.read_credit()
                    if link.closed:
                        self._selector.unregister(link.connection)
                    self._busy.add(link.peer)
                else:
                    self._busy.add(link.peer)

    def _pump(self) -> None:
        while self._busy:
            link = self._outgoing[self._busy.pop()]
            full = link.pump()
            if full != (link.peer in self._writing):
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
                self._selector.modify(link.connection, events, link)
                self._writing ^= {link.peer}

    def _read(self, link: Incoming, run: Run) -> None:
        link.read(run.wanted, run.place, run.take)
        self._listen(link, not link.closed)

    def _listen(self, link: Incoming, wanted: bool) -> None:
        if wanted and not link.is_watched:
            self._selector.register(link.connection, selectors.EVENT_READ, link)
        elif link.is_watched and not wanted:
            self._selector.unregister(link.connection)
        link.is_watched = wanted

    def _resume(self, run: Run) -> None:
        """Go on with links whose next segment belonged to a later collective."""
        for link in self._incoming.values():
            if link.parked and not link.closed:
                self._read(link, run)

    def _greet(self, run: Run) -> None:
        """Take in those who have connected."""
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        if self.broken is not None:
            raise self.broken
        while not self._callers.empty():
            caller = self._callers.get()
            link = self._incoming_of(caller)
            self._incoming[caller.rank] = link
            self._read(link, run)

    def _called(self, caller: Caller) -> None:
        """In the thread of the listener."""
        if not 0 <= caller.rank < len(self.names):
            caller.connection.close()
            return
        if caller.contact:
            self._contacts.setdefault(caller.rank, Contact.from_json(caller.contact))
        self._callers.put(caller)
        self._wake()

    # --- links --------------------------------------------------------------------------------------------------------

    def _post(self, peer: int, message: Outbound) -> None:
        link = self._outgoing.get(peer) or self._connect(peer)
        link.post(message)
        self._busy.add(peer)

    def _connect(self, peer: int) -> Outgoing:
        contact = self._await_contact(peer)
        settings = self._settings(peer)
        shared = settings.share_memory and contact.machine == self.contact.machine
        left = max(self._deadline - time.monotonic(), 0.001)
        window = min(settings.window_bytes, MAX_SHARED_BYTES) if shared else settings.window_bytes
        try:
            caller = call(contact, self.rank, window if shared else 0, left, window, self.contact.to_json())
        except CollectiveError as error:
            self._blame(peer)
            raise type(error)(f"{self.names[peer]}: {error}") from None
        link = Outgoing(
            peer,
            self.names[peer],
            caller.connection,
            caller.memory,
            window,
            settings.segment_bytes,
        )
        self._outgoing[peer] = link
        self._selector.register(link.connection, selectors.EVENT_READ, link)
        return link

    def _await_contact(self, peer: int) -> Contact:
        """Where ``peer`` is reached, once it is in the group. Asked again and again: a ``get`` that waits would keep the store
        from every other thread."""
        while (contact := self._contact(peer)) is None:
            if self.broken is not None:
                raise self.broken
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise CollectiveTimeoutError(f"the time limit is over; {self.names[peer]} {MEANINGS[ABSENT]}")
            self._watch.look(lambda: [peer])
            time.sleep(min(POLL_S, left))
        return contact

    def _contact(self, peer: int) -> Contact | None:
        """Where ``peer`` is reached; None where it is not in the group yet. Raises CollectiveError: the store is gone."""
        if peer not in self._contacts:
            key = f"contact/{peer}"
            try:
                if not self._store.check([key]):
                    return None
                self._contacts[peer] = Contact.from_json(self._store.get(key))
            except (RuntimeError, OSError, ValueError) as error:
                raise CollectiveError(
                    f"the store, asked where {self.names[peer]} is reached, does not answer: {_first_line(error)}"
                ) from None
        return self._contacts[peer]

    def _ask(self, peer: int) -> Status | str:
        """In a thread of its own: what ``peer`` is doing. Those who wait say where those are reached for whom they wait."""
        try:
            contact = self._contact(peer)
        except CollectiveError:
            contact = self._contacts.get(peer)
        says = ABSENT if contact is None else ask(contact, self._watch.heartbeat_s, self.contact.address)
        for rank, known in () if isinstance(says, str) else says.contacts:
            self._contacts.setdefault(rank, Contact.from_json(known))
        return says

    def _status(self) -> Status:
        """For a rank that asks."""
        error, run = self.broken, self._run
        try:
            waits_for = [] if run is None else self._waits_for(run)
        except RuntimeError:  # the thread of the group has changed a table meanwhile: it is at work
            waits_for = []
        reason = None if error is None else getattr(error, "reason", None) or str(error)
        status = self._watch.status(waits_for, reason)
        known = [(peer, self._contacts[peer].to_json()) for peer in status.waits_for if peer in self._contacts]
        return status._replace(contacts=tuple(known[:MAX_CONTACTS]))

    def _waits_for(self, run: Run) -> list[int]:
        """Ranks of the group from which something is missing, or that take nothing."""
        peers = [peer for peer, _, _, _ in run.missing()] + [
            link.peer for link in self._outgoing.values() if not link.idle
        ]
        return list(dict.fromkeys(peers))

    def _blame(self, peer: int) -> None:
        """Raise PeerLostError where ``peer``, or whom it waits for, has given up and says why."""
        found = self._watch.last_words([peer])
        if found is not None and found.word == GAVE_UP:
            raise PeerLostError(f"{self.names[found.rank]} gave up: {found.reason}", found.reason)

    def _wake(self) -> None:
        """The thread of the group looks what is new; nothing where it has ended."""
        with suppress(OSError):
            self._wake_up.send(b"x")

    def _require_peers(self, run: Run) -> None:
        """Nobody can send who has hung up."""
        if not any(link.closed for link in self._incoming.values()):
            return
        for peer, channel, got, expected in run.missing():
            link = self._incoming.get(peer)
            if link is not None and link.closed:
                raise PeerLostError(
                    f"{self.names[peer]} closed the connection after {got} of {expected} elements on channel {channel}"
                )

    def _overdue(self, run: Run) -> str:
        missing = run.missing()
        shown = "; ".join(
            f"{got} of {expected} elements of {self.names[peer]} on channel {channel}"
            + ("" if peer in self._incoming else " (never connected)")
            for peer, channel, got, expected in missing[:MAX_MISSING_SHOWN]
        )
        unsent = [self.names[link.peer] for link in self._outgoing.values() if not link.idle]
        more = f", and {len(missing) - MAX_MISSING_SHOWN} more" if len(missing) > MAX_MISSING_SHOWN else ""
        parts = [f"missing: {shown}{more}"] if missing else []
        parts += [f"not taken by: {', '.join(unsent[:MAX_MISSING_SHOWN])}"] if unsent else []
        found = self._watch.last_words(self._waits_for(run))
        if found is not None and found.word == GAVE_UP:
            raise PeerLostError(f"{self.names[found.rank]} gave up: {found.reason}", found.reason)
        parts[:0] = [found.text(self.names)] if found is not None else []
        return f"the time limit is over; {'; '.join(parts) or 'nothing is missing'}"

    def _give_up(self, error: CollectiveError, task: Task) -> None:
        """Break the group, and say why to everybody who is connected."""
        if self.broken is None:
            identity = task.identity
            self.broken = type(error)(
                f"group {self.group}, {self.names[self.rank]}, collective {identity.sequence} ({identity.text}): {error}"
            )
        reason = getattr(error, "reason", None) or str(self.broken)
        self._greet_quietly()
        for link in self._links():
            with suppress(KeyError, ValueError):
                self._selector.unregister(link.connection)
            link.abort(reason)

    def _links(self) -> list[Outgoing | Incoming]:
        return [*self._outgoing.values(), *self._incoming.values()]

    def _greet_quietly(self) -> None:
        """Whoever connected in the meantime gets the reason too."""
        while not self._callers.empty():
            caller = self._callers.get()
            self._incoming[caller.rank] = self._incoming_of(caller)

    def _incoming_of(self, caller: Caller) -> Incoming:
        return Incoming(caller.rank, self.names[caller.rank], caller.connection, caller.memory, caller.window_bytes)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
