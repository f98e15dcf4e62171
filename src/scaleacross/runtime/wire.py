"""The bytes between two ranks. A link is one TCP connection in one direction: segments forward, credit backward.

A segment is a header and its payload. The payload follows in the stream or, between processes of one host, lies in
shared memory at the place that the header names. The header identifies its collective, so ranks that do not run the
same one find out at the first message. A receiver returns credit for what it has accepted; a sender keeps at most a
window in flight.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from scaleacross.runtime.faults import CollectiveError

MAGIC: Final = 0x5CA1
INLINE: Final = (1 << 64) - 1
"""``place`` of a payload that follows in the stream."""

_HEADER: Final = struct.Struct("<HBBIQQIIQQQQQ")
HEADER_BYTES: Final = _HEADER.size
_CREDIT: Final = struct.Struct("<Q")
CREDIT_BYTES: Final = _CREDIT.size
GOODBYE: Final = (1 << 64) - 1
"""Credit that says that the receiver gave up; a reason follows."""
MAX_REASON_BYTES: Final = 1500

SEGMENT, ABORT = 0, 1


class Identity(NamedTuple):
    """What all ranks of a group must agree on.

    Attributes:
        sequence: number of the collective in its group, from 0.
        code: hash of ``text``.
        num_elements: elements of the collective's tensor; 0 for an all-to-all, whose ranks may differ.
        text: operation, type, reduction and algorithm in words; not sent.
    """

    sequence: int
    code: int
    num_elements: int
    text: str


def code_of(text: str) -> int:
    """Return the hash of a collective's description."""
    return zlib.crc32(text.encode())


class Header(NamedTuple):
    """The header of one segment.

    Attributes:
        kind: SEGMENT or ABORT (the payload is a reason then).
        sequence, code, num_elements: fields of ``Identity``.
        channel, message: the segment belongs to the ``message``-th message from this sender to this receiver on
            ``channel``.
        message_elements: elements of the whole message.
        segment_elements: elements of this segment; segments of a message come in order.
        num_bytes: payload of this segment; a codec may need more or fewer for the same elements.
        place: offset in the shared memory, or INLINE.
        used_bytes: credit to return for it.
    """

    kind: int
    sequence: int
    code: int
    num_elements: int
    channel: int
    message: int
    message_elements: int
    segment_elements: int
    num_bytes: int
    place: int
    used_bytes: int


def pack_segment(
    identity: Identity,
    channel: int,
    message: int,
    message_elements: int,
    segment_elements: int,
    num_bytes: int,
    place: int,
    used_bytes: int,
) -> bytes:
    """Return the header of a segment as it travels; see ``Header``."""
    return _HEADER.pack(
        MAGIC,
        SEGMENT,
        0,
        identity.code,
        identity.sequence,
        identity.num_elements,
        channel,
        message,
        message_elements,
        segment_elements,
        num_bytes,
        place,
        used_bytes,
    )


def unpack(data: bytes | bytearray | memoryview, at: int = 0) -> Header:
    """Read the header at byte ``at``. Raises CollectiveError if the stream is not ours."""
    magic, kind, _, code, sequence, *others = _HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise CollectiveError(f"a header begins with {magic:#06x}, expected {MAGIC:#06x}: the stream is out of step")
    return Header(kind, sequence, code, *others)


def pack_abort(reason: str) -> bytes:
    """Return a segment that ends the conversation."""
    text = reason.encode()[:MAX_REASON_BYTES]
    return _HEADER.pack(MAGIC, ABORT, 0, 0, 0, 0, 0, 0, 0, 0, len(text), INLINE, 0) + text


def pack_credit(num_bytes: int) -> bytes:
    """Return the credit message for ``num_bytes``."""
    return _CREDIT.pack(num_bytes)


def unpack_credit(data: bytes | bytearray | memoryview) -> int:
    """Return the bytes of a credit, or GOODBYE."""
    return int(_CREDIT.unpack(data)[0])
