"""Reads pickles of plain values (dict, list, tuple, str, int, float, bool, None) and nothing else.

A pickle is a program for a small stack machine, and a few of its instructions import and call things. This reader has no such
instruction: what it does not list below is refused by name, so a hostile file can neither run code nor take memory beyond a small
multiple of its size. (``pickle.Unpickler`` with a forbidding ``find_class`` stops the first, but lets one five-byte instruction
allocate tens of gigabytes.) Protocols 2 to 5; instruction set: ``pickletools`` of the standard library.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any, Final

_UNPACK_U16 = struct.Struct("<H").unpack_from
_UNPACK_I32 = struct.Struct("<i").unpack_from
_UNPACK_U32 = struct.Struct("<I").unpack_from
_UNPACK_U64 = struct.Struct("<Q").unpack_from
_UNPACK_F64 = struct.Struct(">d").unpack_from
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False}  # NONE, NEWTRUE, NEWFALSE
_EMPTY: Final[dict[int, Callable[[], Any]]] = {
    0x7D: dict,
    0x5D: list,
    0x29: tuple,
}  # EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE
_SIZED_STRINGS: Final = {0x58: (_UNPACK_U32, 4), 0x8D: (_UNPACK_U64, 8)}  # BINUNICODE, BINUNICODE8


class RefusedError(ValueError):
    """The pickle holds an instruction that plain values never need."""


class _Machine:
    """The stack, the marks and the memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below_marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def above_mark(self) -> list[Any]:
        """Values since the last mark; the mark is gone."""
        items = self.stack
        self.stack = self.below_marks.pop()
        return items

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise ValueError("items for something that is no dict")
        for key in items[::2]:
            if type(key) is not str and type(key) is not int:
                raise ValueError(f"a key of type {type(key).__name__}")
        target.update(zip(items[::2], items[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError("elements for something that is no list")
        self.stack[-1].extend(items)

    def to_tuple(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) < count:
            raise IndexError
        self.stack[-count:] = [items]


def loads(data: bytes) -> Any:
    """The value that ``data`` holds.

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
    """Instructions in the order of how often they occur; the frequent ones without a call."""
    machine, at = _Machine(), 2
    memo = machine.memo
    while True:
        code = data[at]
        at += 1
        if code == 0x68:  # BINGET
            machine.stack.append(memo[data[at]])
            at += 1
        elif code == 0x4B:  # BININT1
            machine.stack.append(data[at])
            at += 1
        elif code == 0x94:  # MEMOIZE
            memo[len(memo)] = machine.stack[-1]
        elif code == 0x71:  # BINPUT
            memo[data[at]] = machine.stack[-1]
            at += 1
        elif code == 0x28:  # MARK
            machine.below_marks.append(machine.stack)
            machine.stack = []
        elif code == 0x8C:  # SHORT_BINUNICODE
            end = at + 1 + data[at]
            machine.stack.append(_text(data, at + 1, end))
            at = end
        elif code in _CONSTANTS:
            machine.stack.append(_CONSTANTS[code])
        elif code in _EMPTY:
            machine.stack.append(_EMPTY[code]())
        elif code == 0x2E:  # STOP
            return machine.stack[-1]
        else:
            at = _rare(machine, code, data, at)


def _rare(machine: _Machine, code: int, data: bytes, at: int) -> int:
    """Every other allowed instruction; returns where the next one stands."""
    simple = _SIMPLE.get(code)
    if simple is not None:
        simple(machine)
        return at
    if code in _FIXED:
        unpack, size = _FIXED[code]
        machine.stack.append(unpack(data, at)[0])
        return at + size
    if code in _SIZED_STRINGS:
        unpack, size = _SIZED_STRINGS[code]
        end = at + size + int(unpack(data, at)[0])
        machine.stack.append(_text(data, at + size, end))
        return end
    if code == 0x8A:  # LONG1
        end = at + 1 + data[at]
        machine.stack.append(int.from_bytes(_slice(data, at + 1, end), "little", signed=True))
        return end
    if code == 0x6A:  # LONG_BINGET
        machine.stack.append(machine.memo[_UNPACK_U32(data, at)[0]])
        return at + 4
    if code == 0x72:  # LONG_BINPUT
        machine.memo[_UNPACK_U32(data, at)[0]] = machine.stack[-1]
        return at + 4
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


def _set_item(machine: _Machine) -> None:
    items = machine.stack[-2:]
    del machine.stack[-2:]
    machine.set_items(items)


def _list_of_mark(machine: _Machine) -> None:
    items = machine.above_mark()
    machine.stack.append(items)


def _tuple_of_mark(machine: _Machine) -> None:
    items = machine.above_mark()
    machine.stack.append(tuple(items))


def _dict_of_mark(machine: _Machine) -> None:
    items = machine.above_mark()
    machine.stack.append({})
    machine.set_items(items)


_FIXED: Final = {
    0x4A: (_UNPACK_I32, 4),  # BININT
    0x4D: (_UNPACK_U16, 2),  # BININT2
    0x47: (_UNPACK_F64, 8),  # BINFLOAT
}
_SIMPLE: Final[dict[int, Callable[[_Machine], object]]] = {
    0x75: lambda machine: machine.set_items(machine.above_mark()),  # SETITEMS
    0x73: _set_item,  # SETITEM
    0x65: lambda machine: machine.extend(machine.above_mark()),  # APPENDS
    0x61: lambda machine: machine.extend([machine.stack.pop()]),  # APPEND
    0x74: _tuple_of_mark,  # TUPLE
    0x85: lambda machine: machine.to_tuple(1),  # TUPLE1
    0x86: lambda machine: machine.to_tuple(2),  # TUPLE2
    0x87: lambda machine: machine.to_tuple(3),  # TUPLE3
    0x6C: _list_of_mark,  # LIST
    0x64: _dict_of_mark,  # DICT
    0x30: lambda machine: machine.stack.pop(),  # POP
}
