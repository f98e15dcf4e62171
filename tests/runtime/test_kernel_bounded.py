"""The error-bounded quantiser: the bound holds on every element, packing again loses nothing, kernels equal references."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import same_bits  # sets the interpreter, so it stands first

import torch  # isort: skip

from scaleacross.errors import InputError
from scaleacross.runtime.bounded_codec import pack, pack_reference, unpack, unpack_reference
from scaleacross.runtime.encoding import GRAIN
from scaleacross.runtime.kernels.bounded import pack_by_kernel, unpack_by_kernel


def _random(numel: int, seed: int) -> torch.Tensor:
    """Blocks of very different magnitude."""
    generator = torch.Generator().manual_seed(seed)
    magnitudes = 10.0 ** (torch.rand(-(-numel // GRAIN), generator=generator) * 12 - 6)
    return torch.randn(numel, generator=generator) * magnitudes.repeat_interleave(GRAIN)[:numel]


@settings(deadline=None)
@given(st.integers(0, 5 * GRAIN + 3), st.integers(0, 2**31), st.floats(1e-9, 1e6))
def test_bound_holds_and_packing_again_changes_nothing(numel: int, seed: int, bound: float) -> None:
    values = _random(numel, seed)
    packed = pack(values, bound)
    decoded = unpack(packed)
    assert decoded.shape == values.shape
    assert bool(((decoded.double() - values.double()).abs() <= bound).all())
    again = pack(decoded, bound)
    assert same_bits(unpack(again), decoded)
    assert again.num_bytes <= packed.num_bytes


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 5 * GRAIN + 3), st.integers(0, 2**31), st.sampled_from([1e-5, 1e-3, 0.3, 40.0]))
def test_kernels_equal_references(numel: int, seed: int, bound: float) -> None:
    values = _random(numel, seed)
    expected, got = pack_reference(values, bound), pack_by_kernel(values, bound)
    assert torch.equal(got.widths, expected.widths)
    assert torch.equal(got.words, expected.words)
    assert same_bits(unpack_by_kernel(got), unpack_reference(expected))


def test_what_no_step_counts_is_stored_as_it_is() -> None:
    values = torch.zeros(4 * GRAIN)
    values[3], values[5], values[GRAIN], values[2 * GRAIN + 1] = torch.inf, -0.7, 2.0**22, 2.0**22 - 1
    values[3 * GRAIN] = torch.nan
    for packed in (pack_reference(values, 0.5), pack_by_kernel(values, 0.5)):
        assert packed.widths.tolist() == [32, 32, 23, 32]
        for decoded in (unpack_reference(packed), unpack_by_kernel(packed)):
            assert same_bits(decoded, values)


def test_bits_are_what_the_elements_need() -> None:
    values = torch.zeros(5 * GRAIN)
    values[GRAIN], values[2 * GRAIN], values[3 * GRAIN], values[4 * GRAIN] = -1.0, 1.0, -2.0, 100.0
    packed = pack(values, 0.5)
    assert packed.widths.tolist() == [0, 1, 2, 2, 8]
    assert packed.num_bytes == 13 * GRAIN // 8 + 5


def test_refuses_bounds_without_a_meaning() -> None:
    for bound in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="positive and finite"):
            pack(torch.zeros(1), bound)
    with pytest.raises(InputError, match="between"):
        pack(torch.zeros(1), 1e-40)
    with pytest.raises(InputError, match="takes fp32"):
        pack(torch.zeros(1, dtype=torch.float64), 1.0)
