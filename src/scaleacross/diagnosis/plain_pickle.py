"""Reads pickles of plain values (dict, list, tuple, str, int, float, bool, None) and nothing else.

A pickle is a program for a small stack machine, and a few of its instructions import and call objects. This reader
lacks these instructions: it refuses every instruction that it does not list below, by name. A hostile file can
therefore neither run code nor use more memory than a small multiple of its size. (``pickle.Unpickler`` with a
forbidding ``find_class`` prevents only the former: one five-byte instruction can allocate tens of gigabytes.) It reads
protocols 2 to 5. Instruction set: ``pickletools`` of the standard library.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any, Final

Items = list[Any]
_UNPACK_U16 = struct.Struct("<H").unpack_from
_UNPACK_I32 = struct.Struct("<i").unpack_from
_UNPACK_U32 = struct.Struct("<I").unpack_from
_UNPACK_U64 = struct.Struct("<Q").unpack_from
_UNPACK_F64 = struct.Struct(">d").unpack_from
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False}  # NONE, NEWTRUE, NEWFALSE
_FIXED: Final = {0x4A: (_UNPACK_I32, 4), 0x4D: (_UNPACK_U16, 2), 0x47: (_UNPACK_F64, 8)}  # BININT, BININT2, BINFLOAT
_SIZED_STRINGS: Final = {0x58: (_UNPACK_U32, 4), 0x8D: (_UNPACK_U64, 8)}  # BINUNICODE, BINUNICODE8
_KEYS: Final = frozenset((str, int))
_NO_LIST: Final = "elements for something that is no list"


class RefusedError(ValueError):
    """The pickle holds an instruction that plain values never need."""


def loads(data: bytes) -> Any:
    """Return the value that the pickle ``data`` contains.

    Raises:
        RefusedError: an instruction that could import or call something, or that no dump needs.
        EOFError: the data end before the pickle does.
        ValueError: no pickle, or a damaged one.
    """
    if data[:1] != b"\x80":
        raise ValueError("it does not begin like a pickle of protocol 2 or later")
    try:
        return _run(data)
    except (IndexError, struct.error):
        raise EOFError("it ends in the middle, or is damaged") from None
    except KeyError as error:
        raise ValueError(f"damaged: nothing is stored as number {error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"damaged: {error}") from None


def _run(data: bytes) -> Any:
    """Run the instructions of a pickle. Branches are ordered by frequency, and frequent ones need no call."""
    stack: Items = []
    below_marks: list[Items] = []
    memo: dict[int, Any] = {}
    at = 2
    while True:
        code = data[at]
        at += 1
        if code == 0x68:  # BINGET
            stack.append(memo[data[at]])
            at += 1
        elif code == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif code == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif code == 0x61:  # APPEND
            item = stack.pop()
            target = stack[-1]
            if type(target) is not list:
                raise ValueError(_NO_LIST)
            target.append(item)
        elif code == 0x4B:  # BININT1
            stack.append(data[at])
            at += 1
        elif code == 0x8C:  # SHORT_BINUNICODE
            start, at = at + 1, at + 1 + data[at]
            stack.append(_text(data, start, at))
        elif code == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif code == 0x6A:  # LONG_BINGET
            stack.append(memo[_UNPACK_U32(data, at)[0]])
            at += 4
        elif code == 0x71:  # BINPUT
            memo[data[at]] = stack[-1]
            at += 1
        elif code in _FIXED:
            unpack, size = _FIXED[code]
            stack.append(unpack(data, at)[0])
            at += size
        elif code == 0x8A:  # LONG1
            start, at = at + 1, at + 1 + data[at]
            stack.append(int.from_bytes(_slice(data, start, at), "little", signed=True))
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code == 0x28:  # MARK
            below_marks.append(stack)
            stack = []
        elif code in _OF_MARK:
            above, stack = stack, below_marks.pop()
            _OF_MARK[code](stack, above)
        elif code == 0x72:  # LONG_BINPUT
            memo[_UNPACK_U32(data, at)[0]] = stack[-1]
            at += 4
        elif code == 0x2E:  # STOP
            return stack[-1]
        else:
            at = _rare(stack, code, data, at)


def _rare(stack: Items, code: int, data: bytes, at: int) -> int:
    """Run any other allowed instruction; return the index of the next one."""
    if code in _SIZED_STRINGS:
        unpack, size = _SIZED_STRINGS[code]
        end = at + size + int(unpack(data, at)[0])
        stack.append(_text(data, at + size, end))
        return end
    if code == 0x29:  # EMPTY_TUPLE
        stack.append(())
        return at
    if code in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
        count = code - 0x84
        if len(stack) < count:
            raise IndexError
        stack[-count:] = [tuple(stack[-count:])]
        return at
    if code == 0x73:  # SETITEM
        items = stack[-2:]
        del stack[-2:]
        _set_items(stack[-1], items)
        return at
    if code == 0x30:  # POP
        stack.pop()
        return at
    if code == 0x95:  # FRAME
        return at + 8
    known = next((one for one in pickletools.opcodes if one.code == chr(code)), None)
    if known is None:
        raise ValueError(f"damaged: byte {code:#04x} at {at - 1} is no instruction")
    raise RefusedError(f"instruction {known.name} at byte {at - 1}: only plain containers and scalars are read")


def _slice(data: bytes, start: int, end: int) -> bytes:
    if end > len(data):
        raise EOFError("it ends in the middle")
    return data[start:end]


def _text(data: bytes, start: int, end: int) -> str:
    return _slice(data, start, end).decode("utf-8", "surrogatepass")


def _set_items(target: Any, items: Items) -> None:
    keys = items[::2]
    if type(target) is not dict or len(items) % 2:
        raise ValueError("items for something that is no dict")
    if not _KEYS.issuperset(map(type, keys)):
        raise ValueError("a key that is neither text nor a whole number")
    target.update(zip(keys, items[1::2], strict=True))


def _extend(target: Any, items: Items) -> None:
    if type(target) is not list:
        raise ValueError(_NO_LIST)
    target.extend(items)


def _dict(stack: Items, above: Items) -> None:
    stack.append({})
    _set_items(stack[-1], above)


_OF_MARK: Final[dict[int, Callable[[Items, Items], None]]] = {
    0x75: lambda stack, above: _set_items(stack[-1], above),  # SETITEMS
    0x65: lambda stack, above: _extend(stack[-1], above),  # APPENDS
    0x74: lambda stack, above: stack.append(tuple(above)),  # TUPLE
    0x6C: lambda stack, above: stack.append(above),  # LIST
    0x64: _dict,  # DICT
}
"""Instruction -> function of the stack below the last mark and the items above it."""
