"""The listener of this process, and how ranks connect to each other.

One listener per process serves all of its groups. Its address and a random token of the group go into the rendezvous
store. A connection that does not begin with such a token is dropped, so only those who can read the store can talk to
this process. torch reuses names of groups, but a token is used once: a caller for a group that is gone never reaches
its namesake.

The process listens on one address: ``SCALEACROSS_LISTEN`` if set, else that of the interface ``GLOO_SOCKET_IFNAME``,
else the one from which ``MASTER_ADDR`` is reached. For a job on one host that is the loopback, where no other host can
connect.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import mmap
import os
import secrets
import socket
import struct
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from scaleacross.runtime.faults import CollectiveError, CollectiveTimeoutError, PeerLostError
from scaleacross.runtime.greeting import HELLO_TIMEOUT_S, LENGTH, Greeter
from scaleacross.runtime.liveness import Status, ask_at
from scaleacross.runtime.secure import NEEDS_TLS, leaves_network, only_by_tls, refusal, secured

SHARED_FOLDER: Final = Path("/dev/shm")
SHARED_PREFIX: Final = "scaleacross-"
_SIOCGIFADDR: Final = 0x8915
WITH_MEMORY, WITHOUT_MEMORY = b"\x01", b"\x00"


class Contact(NamedTuple):
    """How a process is reached.

    Attributes:
        address, port: where it listens.
        token: what a connection must begin with; it identifies the group within the process.
        machine: equal for processes that share memory.
    """

    address: str
    port: int
    token: str
    machine: str

    def to_json(self) -> str:
        """Return the contact as text for the store."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Contact:
        """Read what ``to_json`` writes."""
        return cls(**json.loads(text))


class Caller(NamedTuple):
    """A rank that has connected.

    Attributes:
        rank: its rank in the group.
        connection: the socket.
        memory: memory that both share; None for none.
        window_bytes: largest number of bytes that it keeps in flight.
        contact: where it is reached, so that nobody needs the store to ask it: the store may be what hangs.
    """

    rank: int
    connection: socket.socket
    memory: mmap.mmap | None
    window_bytes: int = 0
    contact: str = ""


class Member(NamedTuple):
    """A group of this process, as the listener calls it. All three run in the accepting thread, ``leave`` at exit.

    Attributes:
        called: takes over a caller.
        status: returns the answer to a rank that asks; None: no answer.
        leave: ends what the group is running, because the process ends.
    """

    called: Callable[[Caller], None]
    status: Callable[[], Status] | None = None
    leave: Callable[[], None] | None = None


class Endpoint:
    """The listener of this process. It accepts in a thread of its own, so that connecting never waits for a collective.

    It has no lock: the garbage collector may drop a group, and so call ``unregister``, in the middle of ``register``.
    """

    def __init__(self, address: str) -> None:
        try:
            self._listener = socket.create_server((address, 0), backlog=1024)
        except OSError as error:
            raise CollectiveError(
                f"cannot listen on {address}: {error.strerror or error}. Set SCALEACROSS_LISTEN to an address of this host"
            ) from None
        self._address, self._port = address, self._listener.getsockname()[1]
        self._machine, self._process_id = machine_identity(), os.getpid()
        self._members: dict[str, Member] = {}
        self._greeter = Greeter(self._listener, self._greet)
        atexit.register(self._leave)

    def register(self, member: Member) -> Contact:
        """Hand callers to ``member``. Return the new contact at which they reach it."""
        contact = Contact(self._address, self._port, secrets.token_hex(16), self._machine)
        self._members[contact.token] = member
        return contact

    def unregister(self, contact: Contact) -> None:
        """Accept no more callers at ``contact``; a second call has no effect."""
        self._members.pop(contact.token, None)

    def _greet(self, hello: bytes, connection: socket.socket) -> bool:
        """Return whether the caller belongs to a group of this process and is kept; runs in the listener's thread."""
        said = json.loads(hello)
        member = self._members.get(str(said["token"]))
        if member is None:
            return False
        if said.get("ask"):
            connection.sendall(b"" if member.status is None else member.status().to_json())
            return False
        memory = _open_memory(said.get("memory"))
        window, contact = max(int(said.get("window_bytes", 0)), 0), str(said.get("contact", ""))
        caller = Caller(int(said["rank"]), connection, memory, window, contact)
        connection.sendall(WITH_MEMORY if memory is not None else WITHOUT_MEMORY)
        connection.settimeout(HELLO_TIMEOUT_S)
        member.called(caller)
        return True

    def _leave(self) -> None:
        """End what groups are running at exit, so that no thread is inside torch when the interpreter goes."""
        if os.getpid() == self._process_id:  # a forked process has none of the threads
            for member in list(self._members.values()):
                if member.leave is not None:
                    member.leave()


@lru_cache(maxsize=8)
def endpoint_of_process(address: str, process_id: int) -> Endpoint:
    """Return the one listener of this process on ``address``; a forked process gets its own."""
    del process_id
    return Endpoint(address)


def call(
    contact: Contact, rank: int, share_bytes: int, timeout_s: float, window_bytes: int = 0, own: str = ""
) -> Caller:
    """Connect to ``contact`` as ``rank`` of its group.

    Args:
        share_bytes: memory to share for payloads; 0 for none. If there is no room for it, payloads travel in the
            stream.
        window_bytes: largest number of bytes that the caller keeps in flight; the receiver returns credit in parts of
            it.
        own: JSON of the caller's own contact.

    Raises:
        PeerLostError: nobody listens there, or they do not accept us.
        CollectiveTimeoutError: there is no answer in time.
    """
    where = f"{contact.address}:{contact.port}"
    tls, (path, memory) = False, _create_memory(share_bytes) if share_bytes else (None, None)
    try:
        connection = socket.create_connection((contact.address, contact.port), timeout=max(timeout_s, 0.001))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            here = Contact.from_json(own).address if own else connection.getsockname()[0]
            tls = leaves_network(here, contact.address)
            connection = secured(connection, server=False) if tls else connection
            hello = {"token": contact.token, "rank": rank, "memory": path and path.name}
            hello |= {"window_bytes": window_bytes, "contact": own}
            text = json.dumps(hello).encode()
            connection.sendall(LENGTH.pack(len(text)) + text)
            answer = connection.recv(1)
            if not answer:
                raise ConnectionError("the other side hung up")
            if answer == NEEDS_TLS:
                raise PeerLostError(only_by_tls(where))
        except BaseException:
            connection.close()  # the error's traceback would keep it open
            raise
    except TimeoutError:
        raise CollectiveTimeoutError(f"no answer from {where} within {timeout_s:.1f} s") from None
    except OSError as error:
        if tls:
            raise PeerLostError(refusal(error, where)) from None
        raise PeerLostError(f"cannot connect to {where}: {error.strerror or error}") from None
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
    return Caller(rank, connection, memory if answer == WITH_MEMORY else None, window_bytes)


def ask(contact: Contact, timeout_s: float, own: str = "") -> Status | str:
    """Return what the group of ``contact`` is doing, or what is wrong with its process (``liveness.MEANINGS``)."""
    text = json.dumps({"token": contact.token, "ask": True}).encode()
    return ask_at(contact.address, contact.port, LENGTH.pack(len(text)) + text, timeout_s, own)


def listen_address(towards: str | None = None) -> str:
    """Return the address to listen on, as the module docstring says; ``towards`` replaces ``MASTER_ADDR``.

    Raises:
        CollectiveError: the environment names none that works.
    """
    if stated := os.environ.get("SCALEACROSS_LISTEN"):
        return stated
    if interface := os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]:
        return _address_of_interface(interface)
    master = towards or os.environ.get("MASTER_ADDR", "localhost")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, 9))  # sends nothing: only asks for the route
        except OSError as error:
            raise CollectiveError(
                f"no route to MASTER_ADDR {master}: {error.strerror or error}. Set SCALEACROSS_LISTEN to an address of this host"
            ) from None
        return str(probe.getsockname()[0])


def machine_identity() -> str:
    """Return a text that is equal for processes of one kernel, one network namespace and one shared-memory folder."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    for name in ("/proc/self/ns/net", str(SHARED_FOLDER)):
        with contextlib.suppress(OSError):
            status = Path(name).stat()
            parts.append(f"{status.st_dev}-{status.st_ino}")
    return "/".join(parts) if len(parts) == 3 else f"alone-{secrets.token_hex(8)}"


def _address_of_interface(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise CollectiveError(f"interface {name} of GLOO_SOCKET_IFNAME: {error.strerror or error}") from None
    return socket.inet_ntoa(answer[20:24])


def _create_memory(num_bytes: int) -> tuple[Path | None, mmap.mmap | None]:
    """Create a file in shared memory with its bytes reserved: a write without room for it would kill the process."""
    try:
        handle, name = tempfile.mkstemp(prefix=SHARED_PREFIX, dir=SHARED_FOLDER)
    except OSError:
        return None, None
    try:
        os.posix_fallocate(handle, 0, num_bytes)
        return Path(name), mmap.mmap(handle, num_bytes)
    except OSError:
        Path(name).unlink(missing_ok=True)
        return None, None
    finally:
        os.close(handle)


def _open_memory(name: object) -> mmap.mmap | None:
    """Map the file of that name in the shared folder, and no other file."""
    if not isinstance(name, str) or not name.startswith(SHARED_PREFIX) or "/" in name:
        return None
    try:
        handle = os.open(SHARED_FOLDER / name, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return mmap.mmap(handle, 0)
    finally:
        os.close(handle)
