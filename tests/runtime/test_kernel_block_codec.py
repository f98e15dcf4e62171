"""Block codecs: the kernels write and read the very bytes of the references."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import same_bits  # sets the interpreter, so it stands first

import torch  # isort: skip

from scaleacross.errors import InputError
from scaleacross.runtime.block_codec import BlockCodec
from scaleacross.runtime.codecs import CODECS
from scaleacross.runtime.encoding import GRAIN
from scaleacross.runtime.kernels.block_codec import decode, encode

CODEC = [codec for codec in CODECS.values() if isinstance(codec, BlockCodec)]


def _written(codec: BlockCodec, values: torch.Tensor) -> torch.Tensor:
    data = torch.empty(codec.most_bytes(values.numel()), dtype=torch.uint8)
    codec.write(values, data)
    return data


def _check(codec: BlockCodec, values: torch.Tensor) -> None:
    expected = _written(codec, values)
    data = torch.full_like(expected, 99)
    encode(codec, values, data)
    assert torch.equal(data, expected)
    decoded = torch.empty(values.numel())
    decode(codec, data, decoded)
    assert same_bits(decoded, codec.read(data, values.numel()).contiguous())


@pytest.mark.parametrize("codec", CODEC, ids=lambda codec: codec.name)
@settings(max_examples=12, deadline=None)
@given(numel=st.integers(1, 20 * GRAIN + 5), seed=st.integers(0, 2**31), exponent=st.integers(-148, 125))
def test_same_bytes(codec: BlockCodec, numel: int, seed: int, exponent: int) -> None:
    values = torch.randn(numel, generator=torch.Generator().manual_seed(seed)).double() * 2.0**exponent
    _check(codec, values.float())


@pytest.mark.parametrize("codec", CODEC, ids=lambda codec: codec.name)
def test_every_exponent_and_the_edges_of_scales(codec: BlockCodec) -> None:
    powers = torch.cat([torch.arange(1, 512) * 2.0**-149, 2.0 ** torch.arange(-140, 128).double()]).float()
    edges = torch.cat(
        [powers, powers * 1.984375, powers * 1.75, torch.nextafter(powers * 1.75, torch.tensor(torch.inf))]
    )
    rows = torch.zeros(edges.numel(), GRAIN)
    rows[:, 7] = edges
    rows[:, 9] = -edges / 3
    _check(codec, rows.view(-1))


@pytest.mark.parametrize("codec", CODEC, ids=lambda codec: codec.name)
def test_ties_zeros_and_not_finite(codec: BlockCodec) -> None:
    grid = torch.arange(-512, 512) / 8.0
    rows = torch.cat([grid, torch.tensor([-0.0, 0.0, torch.inf, 1.0, torch.nan, 3e38, -torch.inf, -2.0])])
    _check(codec, rows)
    _check(codec, torch.zeros(GRAIN + 1))
    _check(codec, 2.0 ** torch.arange(-20, 9).float() * 1.0625)


def test_refuses_wrong_sizes() -> None:
    with pytest.raises(InputError, match="takes 257 bytes of uint8; got 256"):
        decode(CODEC[0], torch.empty(256, dtype=torch.uint8), torch.empty(256))


def test_codecs_take_the_kernels_where_these_run(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(5 * GRAIN + 1, generator=torch.Generator().manual_seed(1))
    expected = _written(CODEC[0], values)
    decoded = CODEC[0].read(expected, values.numel()).contiguous()
    used: list[torch.dtype] = []
    monkeypatch.setattr("scaleacross.runtime.block_codec.runs_kernels", lambda tensor: not used.append(tensor.dtype))
    data = _written(CODEC[0], values)
    assert torch.equal(data, expected)
    assert same_bits(CODEC[0].read(data, values.numel()), decoded)
    assert used == [torch.float32, torch.uint8]
