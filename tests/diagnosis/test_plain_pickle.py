"""The reader of plain pickles equals ``pickle`` on plain values and ignores everything else."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.diagnosis.plain_pickle import RefusedError, loads

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text()
    | st.text(min_size=250, max_size=300),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.lists(inner, max_size=5).map(tuple)
        | inner.map(lambda one: [one, one])
    ),
    max_leaves=20,
)


@given(PLAIN, st.integers(2, 5))
def test_plain_values_are_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


def test_many_shared_values_and_long_texts() -> None:
    value = [{"key": f"{number % 400}" * (number % 300), "same": "x"} for number in range(2_000)]
    for protocol in range(2, 6):
        assert loads(pickle.dumps(value, protocol)) == value


class Runs:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(2, 6))
def test_nothing_is_imported_or_called(tmp_path: Path, protocol: int) -> None:
    witness = tmp_path / "witness"
    data = pickle.dumps({"version": "2.10", "entries": [Runs(os.mkdir, str(witness))]}, protocol)
    with pytest.raises(RefusedError, match=r"instruction (STACK_)?GLOBAL at byte \d+: only plain containers"):
        loads(data)
    assert not witness.exists()
    pickle.loads(data)
    assert witness.exists()  # the attack works


@pytest.mark.parametrize(
    "body",
    [
        b"cposix\nsystem\n.",
        b"(iposix\nsystem\n.",
        b"\x82\x01.",
        b"Pname\n.",
        b"}Q.",
        b"N}b.",
        b"\x97.",
        b"B\x01\x00\x00\x00x.",
    ],
    ids=["GLOBAL", "INST", "EXT1", "PERSID", "BINPERSID", "BUILD", "NEXT_BUFFER", "BINBYTES"],
)
def test_instructions_beyond_plain_values_are_refused(body: bytes) -> None:
    with pytest.raises(RefusedError):
        loads(b"\x80\x04" + body)


def test_a_memo_number_of_four_billion_costs_nothing() -> None:
    """A large memo number uses no memory.

    The C unpickler of the standard library allocates an array of that size.
    """
    tracemalloc.start()
    assert loads(b"\x80\x02}r\xff\xff\xff\xff.") == {}
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("opcode", [b"X" + struct.pack("<I", 2**31), b"\x8d" + struct.pack("<Q", 2**60), b"\x8c\xff"])
def test_a_text_longer_than_the_file_is_cut_short(opcode: bytes) -> None:
    with pytest.raises(EOFError):
        loads(b"\x80\x04" + opcode + b"abc")


def test_every_cut_of_a_pickle_is_an_error() -> None:
    data = pickle.dumps({"entries": [{"a": (1, 2), "b": [3.5, None, "text" * 100, 2**70]}] * 3}, 4)
    for end in range(len(data)):
        with pytest.raises((EOFError, ValueError)):
            loads(data[:end])


@given(st.binary(max_size=60), st.sampled_from([b"\x80\x02", b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00"]))
def test_arbitrary_bytes_are_read_or_refused(data: bytes, head: bytes) -> None:
    with contextlib.suppress(ValueError, EOFError):
        loads(head + data)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x1f\x8b\x08", b"(dp0\n."])
def test_other_files_are_no_pickles(data: bytes) -> None:
    with pytest.raises(ValueError, match="does not begin like a pickle"):
        loads(data)
