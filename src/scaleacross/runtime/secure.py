"""TLS on connections that leave a network, off by default: both ends show a certificate signed by one authority.

``SCALEACROSS_TLS_CERTIFICATE``, ``SCALEACROSS_TLS_KEY`` and ``SCALEACROSS_TLS_AUTHORITY`` are paths of PEM files.
Connections stay unencrypted within a host, and within each network of ``SCALEACROSS_TLS_INSIDE``
(``10.1.0.0/16,10.2.0.0/16``, one per building).
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from scaleacross.errors import InputError

PATHS: Final = ("SCALEACROSS_TLS_CERTIFICATE", "SCALEACROSS_TLS_KEY", "SCALEACROSS_TLS_AUTHORITY")
INSIDE: Final = "SCALEACROSS_TLS_INSIDE"
WAY_OUT: Final = f"all ranks need {', '.join(PATHS)}, with certificates that the same authority has signed"
NEEDS_TLS: Final = b"\x02"
"""Answer to a hello that must come by TLS and does not."""
_CLIENT_HELLO: Final = b"\x16\x03\x01"


class SecureSocket(ssl.SSLSocket):
    """A TLS socket that behaves like a plain non-blocking one: BlockingIOError if nothing can move now."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Read like ``socket.recv``."""
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Read like ``socket.recv_into``, at most one record: fewer bytes than asked for mean that none are left."""
        try:
            return super().recv_into(buffer, nbytes, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def send(self, data: Any, flags: int = 0) -> int:
        """Send like ``socket.send``, record after record until no more is accepted."""
        left, sent = memoryview(data), 0
        try:
            while sent < len(left):
                sent += super().send(left[sent:], flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not sent:
                raise BlockingIOError from None
        return sent

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """Send like ``socket.sendmsg``: as much of the first buffers as is accepted."""
        sent = 0
        for buffer in buffers:
            try:
                count = self.send(buffer)
            except BlockingIOError:
                if not sent:
                    raise
                break
            sent += count
            if count < len(buffer):
                break
        return sent


def leaves_network(own: str, other: str) -> bool:
    """Return whether a connection between these addresses is secured."""
    if not os.environ.get(PATHS[0]) or own == other:
        return False
    here, there = _address(own), _address(other)
    inside = [part.strip() for part in os.environ.get(INSIDE, "").split(",") if part.strip()]
    try:
        networks = [ipaddress.ip_network(part) for part in inside]
    except ValueError as error:
        raise InputError(f"{INSIDE}: {error}; networks like 10.1.0.0/16 are expected, with commas between") from None
    return here is None or there is None or not any(here in one and there in one for one in networks)


def secured(connection: socket.socket, server: bool) -> socket.socket:
    """Return ``connection`` under TLS. A client's handshake is done here, a server's when it first reads.

    Raises:
        InputError: the files named are no PEM files.
        OSError: the other side does not accept the certificate, or shows none that is valid.
    """
    context = _context(server, *(os.environ.get(name, "") for name in PATHS))
    return context.wrap_socket(connection, server_side=server, do_handshake_on_connect=not server)


def asks_for_tls(connection: socket.socket) -> bool:
    """Return whether the first bytes, which must be there, begin a TLS handshake (no hello of ours is that long)."""
    return connection.recv(3, socket.MSG_PEEK) == _CLIENT_HELLO


def only_by_tls(where: str) -> str:
    """Return what the answer ``NEEDS_TLS`` means, in words."""
    return f"{where} takes connections by TLS only; {WAY_OUT}"


def refusal(error: OSError, where: str) -> str:
    """Return the failure of a handshake in words, with the way out."""
    what = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror or str(error)
    return f"no TLS with {where}: {what}; {WAY_OUT}"


@lru_cache(maxsize=8)
def _context(server: bool, certificate: str, key: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = SecureSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # ranks are reached by address; the authority signs nobody else
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        context.num_tickets = 0  # nobody comes back with one
    try:
        context.load_cert_chain(certificate, key or None)
        context.load_verify_locations(authority or None)
    except (OSError, TypeError) as error:
        raise InputError(
            f"TLS: {certificate}, {key}, {authority}: {error}; PEM files are expected in {', '.join(PATHS)}"
        ) from None
    return context


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
