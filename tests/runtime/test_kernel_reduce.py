"""The sum of k buffers: kernel against reference, bit for bit."""

from __future__ import annotations

import pytest
from interpreted import same_bits  # sets the interpreter, so it stands first

import torch  # isort: skip

from scaleacross.errors import InputError
from scaleacross.runtime.kernels.reduce import launch_sum, sum_buffers, sum_reference

TYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("out_dtype", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("k", "numel"), [(1, 1), (2, 4096), (3, 5001), (8, 777)])
def test_equals_reference(k: int, numel: int, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(k * numel)
    buffers = [(torch.randn(numel, generator=generator) * 10.0 ** (i % 3)).to(dtype) for i in range(k)]
    expected, got = torch.empty(numel, dtype=out_dtype), torch.full((numel,), 7.0, dtype=out_dtype)
    sum_reference(buffers, expected, 1 / 3)
    launch_sum(buffers, got, 1 / 3, block=4096)
    assert same_bits(got, expected)


def test_order_is_from_left_to_right_in_fp32() -> None:
    buffers = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
    for summed in (launch_sum, sum_reference):
        out = torch.empty(1)
        summed(buffers, out)
        assert out.item() == 0.0
        summed([buffers[0], buffers[2], buffers[1]], out)
        assert out.item() == 1.0


def test_sum_in_place_and_not_finite() -> None:
    buffers = [torch.tensor([1.0, torch.inf, torch.nan, 3e38]), torch.tensor([2.0, 1.0, 1.0, 3e38])]
    narrow = torch.empty(4, dtype=torch.bfloat16)
    launch_sum(buffers, narrow)
    assert narrow[0] == 3 and narrow[1] == torch.inf and bool(narrow[2].isnan()) and narrow[3] == torch.inf
    launch_sum(buffers, buffers[0])
    assert buffers[0][0] == 3


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(InputError, match="at least one"):
        sum_buffers([], torch.empty(1))
    with pytest.raises(InputError, match="buffer 1 has 2 elements"):
        sum_buffers([torch.ones(3), torch.ones(2)], torch.empty(3))
    with pytest.raises(InputError, match=r"not torch\.int32"):
        sum_buffers([torch.ones(3, dtype=torch.int32)], torch.empty(3))
    with pytest.raises(InputError, match="not contiguous"):
        sum_buffers([torch.ones(3, 2).T], torch.empty(2, 3))
