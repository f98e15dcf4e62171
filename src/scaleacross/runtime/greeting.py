"""Accepts the connections of a process in one thread, however many come and however slowly they speak.

A connection has ``HELLO_TIMEOUT_S`` to send its hello. At most ``MAX_PENDING`` may be doing so at once; a new one
replaces the oldest. If the process has no descriptors left, connections wait in the kernel's queue until it has some
again.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from scaleacross.runtime.secure import NEEDS_TLS, PATHS, SecureSocket, asks_for_tls, leaves_network, refusal, secured

logger = logging.getLogger("scaleacross.runtime")

HELLO_TIMEOUT_S: Final = 10.0
MAX_HELLO_BYTES: Final = 4096
MAX_PENDING: Final = 256
RETRY_S: Final = 0.1
LENGTH: Final = struct.Struct("<I")

Answer = Callable[[bytes, socket.socket], bool]
"""(hello, connection) -> whether the connection is kept. It must not wait; it may raise only OSError and ValueError."""


class Greeter:
    """Accepts connections until its listener is closed.

    Args:
        listener: connections to it begin with a hello: its length, then so many bytes.
        answer: takes over a connection that has sent its hello.
    """

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        listener.setblocking(False)
        self._listener, self._answer = listener, answer
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._pending: dict[socket.socket, tuple[float, bytearray]] = {}
        self._rests_until = 0.0
        self._said = False
        threading.Thread(target=self._work, name="scaleacross-accept", daemon=True).start()

    def _work(self) -> None:
        while True:
            now = time.monotonic()
            if self._rests_until and now >= self._rests_until:
                self._rests_until = 0.0
                self._selector.register(self._listener, selectors.EVENT_READ)
            for connection in [one for one, (end, _) in self._pending.items() if end <= now]:
                self._drop(connection)
            for key, _ in self._selector.select(RETRY_S if self._rests_until else 1.0 if self._pending else None):
                if key.fileobj is self._listener:
                    if not self._accept():
                        return
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._pending:
                    self._hear(key.fileobj)

    def _accept(self) -> bool:
        """Accept one connection. Return False if the listener is closed."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return True
        except OSError as error:
            if self._listener.fileno() < 0:
                return False
            # no descriptors or no memory left, or the caller gave up: none of it lasts
            if not self._said:
                self._said = True
                logger.warning("a connection cannot be taken now (%s): it waits until it can", error.strerror or error)
            self._selector.unregister(self._listener)
            self._rests_until = time.monotonic() + RETRY_S
            return True
        if len(self._pending) == MAX_PENDING:
            self._drop(next(iter(self._pending)))
        connection.setblocking(False)
        self._pending[connection] = time.monotonic() + HELLO_TIMEOUT_S, bytearray()
        self._selector.register(connection, selectors.EVENT_READ)
        return True

    def _hear(self, connection: socket.socket) -> None:
        """Read what is there of a hello, and no byte of what follows it."""
        end, said = self._pending[connection]
        try:
            if os.environ.get(PATHS[0]) and not said:
                connection = self._secured(connection, end)
            while True:
                length = LENGTH.unpack_from(said)[0] if len(said) >= LENGTH.size else 0
                if length > MAX_HELLO_BYTES:
                    raise ValueError("hello too long")
                wanted = LENGTH.size + length - len(said)
                if len(said) >= LENGTH.size and wanted == 0:
                    break
                more = connection.recv(wanted)
                if not more:
                    raise ConnectionError("hung up")
                said += more
            self._selector.unregister(connection)
            del self._pending[connection]
            if not self._answer(bytes(said[LENGTH.size :]), connection):
                connection.close()
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            self._drop(connection)
        except Exception:  # whatever one group does with its caller, the others go on being reached
            logger.exception("a caller could not be taken over")
            self._drop(connection)

    def _secured(self, connection: socket.socket, end: float) -> socket.socket:
        """Return the connection, under TLS if its caller begins so; refuse one that lacks TLS. Raises OSError."""
        where = connection.getpeername()[0]
        if not isinstance(connection, SecureSocket):
            if not asks_for_tls(connection):
                if leaves_network(connection.getsockname()[0], where):
                    connection.send(NEEDS_TLS)
                    raise ConnectionError("TLS is needed")
                return connection
            self._selector.unregister(connection)
            del self._pending[connection]
            connection = secured(connection, server=True)
            self._pending[connection] = end, bytearray()
            self._selector.register(connection, selectors.EVENT_READ)
        if isinstance(connection, SecureSocket):
            try:
                connection.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None
            except OSError as error:
                logger.warning("%s", refusal(error, where))
                self._drop(connection)
                raise
        return connection

    def _drop(self, connection: socket.socket) -> None:
        if self._pending.pop(connection, None) is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(connection)
        connection.close()
