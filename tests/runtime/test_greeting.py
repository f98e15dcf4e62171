"""The listener survives a lack of descriptors and slow or silent callers, and uses no thread for them."""

from __future__ import annotations

import errno
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

from scaleacross.runtime import greeting
from scaleacross.runtime.greeting import LENGTH, Greeter

LIMIT_S = 60.0


class Listener:
    """A listening socket whose ``accept`` can fail."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.failures: list[OSError] = []
        self.failed = threading.Event()

    def accept(self) -> Any:
        if self.failures:
            self.failed.set()
            raise self.failures.pop()
        return self.socket.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)


@pytest.fixture
def heard() -> queue.SimpleQueue[bytes]:
    return queue.SimpleQueue()


@pytest.fixture
def listener(heard: queue.SimpleQueue[bytes]) -> Iterator[Listener]:
    listening = Listener()

    def answer(hello: bytes, connection: socket.socket) -> bool:
        heard.put(hello)
        if hello == b"break":
            raise AttributeError("the group is not ready")
        connection.sendall(b"!")
        return False

    Greeter(listening, answer)  # type: ignore[arg-type]
    yield listening
    listening.close()


def test_a_group_that_fails_to_take_its_caller_keeps_nobody_from_the_others(listener: Listener) -> None:
    assert say(listener, LENGTH.pack(5), b"break") == b""
    assert say(listener, LENGTH.pack(5), b"hello") == b"!"


def say(listener: Listener, *parts: bytes) -> bytes:
    with socket.create_connection(listener.getsockname(), timeout=LIMIT_S) as connection:
        for part in parts:
            connection.sendall(part)
        return connection.recv(1)


def test_four_hundred_silent_callers_and_one_that_speaks(listener: Listener, heard: queue.SimpleQueue[bytes]) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(listener.getsockname(), timeout=LIMIT_S) for _ in range(400)]
    assert say(listener, LENGTH.pack(5), b"he", b"llo") == b"!"
    assert heard.get(timeout=LIMIT_S) == b"hello"
    assert threading.active_count() == before
    turned_away = silent[: 400 + 1 - greeting.MAX_PENDING]
    for connection in turned_away:  # the newest caller replaced the oldest
        assert connection.recv(1) == b""
    for connection in silent:
        connection.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOMEM])
def test_a_listener_that_cannot_accept_for_a_moment_goes_on(listener: Listener, number: int) -> None:
    listener.failures = [OSError(number, "not now") for _ in range(3)]
    assert say(listener, LENGTH.pack(0)) == b"!"
    assert listener.failed.is_set() and not listener.failures


@pytest.mark.parametrize("hello", [LENGTH.pack(greeting.MAX_HELLO_BYTES + 1), b"GET / HTTP/1.1\r\n\r\n"])
def test_a_hello_that_is_none_is_dropped(listener: Listener, hello: bytes) -> None:
    with socket.create_connection(listener.getsockname(), timeout=LIMIT_S) as connection:
        connection.sendall(hello)
        with suppress(ConnectionResetError):  # what was not read is lost with the connection
            assert connection.recv(1) == b""
    assert say(listener, LENGTH.pack(0)) == b"!"
