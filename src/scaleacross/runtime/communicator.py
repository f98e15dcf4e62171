"""The links of one process group to its peers. Its collectives run one after the other, in the order of the queue:
in a thread of the group, or in that of a caller who waits (``turns``). ``collective_queue`` calls ``run``."""

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
    """The part of ``torch.distributed.Store`` that is used: one ``set`` per rank and group, one ``get`` per peer
    that is talked to, and ``check`` until the peer is there."""

    def set(self, key: str, value: str) -> None:
        """Publish ``value`` under ``key``."""

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value; raises after the store's own timeout."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there."""


@dataclass(frozen=True)
class LinkSettings:
    """Settings of the link to one peer.

    Attributes:
        window_bytes: largest number of bytes in flight.
        segment_bytes: largest size of a segment.
        share_memory: send payloads through shared memory if both processes have it.
    """

    window_bytes: int = 8 << 20
    segment_bytes: int = 1 << 20
    share_memory: bool = True


class Communicator:
    """One group as its member ``rank`` sees it.

    Args:
        group: name, equal on all members and unique in the job.
        rank, names: own rank in the group; the name of every rank in messages.
        store: the rendezvous of the group.
        address: where this process listens.
        process_id: this process; a forked process needs a listener of its own.
        settings: peer -> settings of the link to it.
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
        """End the thread once everything queued is done. With a ``reason`` the running collective gives up at once."""
        if reason is not None:
            self.abort(reason)
        self.drop()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=JOIN_S)

    def abort(self, reason: str) -> None:
        """Make the running collective and all queued ones give up at once, without waiting for them."""
        if self.broken is None:
            self.broken = CollectiveError(f"group {self.group} was aborted: {reason}")
            self._wake()

    def drop(self) -> None:
        """Release the group without waiting for its queue. Takes no lock and never waits, because the garbage
        collector may call it in any thread and at any point."""
        self._endpoint.unregister(self.contact)
        self._turns.end()

    def run(self, task: Task, deadline: float, cursor: Cursor) -> None:
        """Run one collective, in a turn of the group, until ``deadline`` (of ``time.monotonic``).

        Raises:
            CollectiveError: a peer is lost or runs another collective, or the time is over. The group is broken then.
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
        """Return (sent, received) payload bytes since the group began."""
        received = sum(link.received_bytes for link in self._incoming.values())
        return sum(self.bytes_by_peer().values()), received

    def bytes_by_peer(self) -> dict[int, int]:
        """Return the payload bytes sent to each peer since the group began, as encoded."""
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
            # wait for writability only while the socket is full; otherwise select would return at once
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
        """Read on from links whose next segment belonged to a later collective."""
        for link in self._incoming.values():
            if link.parked and not link.closed:
                self._read(link, run)

    def _greet(self, run: Run) -> None:
        """Read from the peers that have connected since the last call."""
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
        """Queue a caller for the group's thread; runs in the listener's thread."""
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
        """Wait until ``peer`` is in the group and return its contact. It polls, because a ``get`` that waits would
        keep the store from every other thread."""
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
        """Return the contact of ``peer``; None until it is in the group. Raises CollectiveError if the store fails."""
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
        """Ask ``peer`` what it is doing, in a thread of its own. Learn the contacts that it passes on."""
        try:
            contact = self._contact(peer)
        except CollectiveError:
            contact = self._contacts.get(peer)
        says = ABSENT if contact is None else ask(contact, self._watch.heartbeat_s, self.contact.address)
        for rank, known in () if isinstance(says, str) else says.contacts:
            self._contacts.setdefault(rank, Contact.from_json(known))
        return says

    def _status(self) -> Status:
        """Return the status of this rank, for a rank that asks."""
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
        """Return the ranks whose messages are missing, and those that do not accept what is sent to them."""
        peers = [peer for peer, _, _, _ in run.missing()] + [
            link.peer for link in self._outgoing.values() if not link.idle
        ]
        return list(dict.fromkeys(peers))

    def _blame(self, peer: int) -> None:
        """Raise PeerLostError if ``peer``, or a rank that it waits for, has given up."""
        found = self._watch.last_words([peer])
        if found is not None and found.word == GAVE_UP:
            raise PeerLostError(f"{self.names[found.rank]} gave up: {found.reason}", found.reason)

    def _wake(self) -> None:
        """Wake the thread of the group, if it has not ended."""
        with suppress(OSError):
            self._wake_up.send(b"x")

    def _require_peers(self, run: Run) -> None:
        """Raise PeerLostError if a message is missing from a peer that has hung up."""
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
        """Break the group, and send the reason to every connected peer."""
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
        """Add the peers that have connected meanwhile, so that they get the reason too."""
        while not self._callers.empty():
            caller = self._callers.get()
            self._incoming[caller.rank] = self._incoming_of(caller)

    def _incoming_of(self, caller: Caller) -> Incoming:
        return Incoming(caller.rank, self.names[caller.rank], caller.connection, caller.memory, caller.window_bytes)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
