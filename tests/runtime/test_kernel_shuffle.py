"""Rows by destination and back: kernels against references, order, capacity and its flag."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import same_bits  # sets the interpreter, so it stands first

import torch  # isort: skip

from scaleacross.errors import InputError
from scaleacross.runtime import rows as rows_module
from scaleacross.runtime.kernels import shuffle


def _destinations(num_rows: int, num_destinations: int, seed: int) -> torch.Tensor:
    return torch.randint(-1, num_destinations, (num_rows,), generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 90), st.integers(1, 7), st.integers(1, 20), st.integers(0, 2**31))
def test_rows_lie_in_order_up_to_the_capacity(num_rows: int, num_destinations: int, capacity: int, seed: int) -> None:
    destinations = _destinations(num_rows, num_destinations, seed)
    rows = torch.arange(1, num_rows + 1, dtype=torch.float32)[:, None].expand(-1, 3).contiguous()
    layout = rows_module.lay_out(destinations, num_destinations, capacity)
    packed = rows_module.pack_rows(rows, layout).view(num_destinations, capacity, 3)
    kept = torch.zeros(num_rows, dtype=torch.bool)
    for destination in range(num_destinations):
        wanted = (destinations == destination).nonzero()[:, 0]
        expected = torch.zeros(capacity, 3)
        expected[: min(len(wanted), capacity)] = rows[wanted[:capacity]]
        assert torch.equal(packed[destination], expected)
        assert layout.counts[destination] == len(wanted)
        kept[wanted[:capacity]] = True
    assert bool(layout.overflow) == bool((layout.counts > capacity).any())
    assert torch.equal(rows_module.unpack_rows(packed.view(-1, 3), layout), torch.where(kept[:, None], rows, 0.0))


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 90), st.integers(1, 5), st.integers(0, 2**31), st.integers(1, 300))
def test_kernels_equal_references(num_rows: int, num_destinations: int, seed: int, width: int) -> None:
    destinations = _destinations(num_rows, num_destinations, seed)
    ranks, counts = rows_module.rank_reference(destinations, num_destinations)
    got_ranks, got_counts = shuffle.rank_by_kernel(destinations, num_destinations, block=32)
    valid = destinations >= 0
    assert torch.equal(got_counts, counts) and torch.equal(got_ranks[valid], ranks[valid])
    layout = rows_module.lay_out(destinations, num_destinations, 9)
    rows = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    expected, got = rows.new_zeros(num_destinations * 9, width), rows.new_zeros(num_destinations * 9, width)
    rows_module.scatter_reference(rows, layout.slots, expected)
    shuffle.scatter_by_kernel(rows, layout.slots, got)
    assert same_bits(got, expected)
    back, got_back = torch.zeros_like(rows), torch.zeros_like(rows)
    rows_module.gather_reference(expected, layout.slots, back)
    shuffle.gather_by_kernel(expected, layout.slots, got_back)
    assert same_bits(got_back, back)


def test_refuses_what_makes_no_sense() -> None:
    with pytest.raises(InputError, match="int64, one per row"):
        rows_module.lay_out(torch.zeros(3, dtype=torch.int32), 2, 2)
    with pytest.raises(InputError, match="no place"):
        rows_module.lay_out(torch.zeros(3, dtype=torch.int64), 2, 0)
