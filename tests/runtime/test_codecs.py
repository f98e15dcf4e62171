"""Codecs keep their error bound on every element, encode what they decoded unchanged, and leave all ranks with equal bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_pool import RankPool, join_job

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import codec_cases as cases
import torch
from codec_cases import codec_of

from scaleacross.runtime.codecs import BOUNDED, CODECS, settling
from scaleacross.runtime.encoding import GRAIN

NAMES = (*sorted(CODECS), BOUNDED)
SIZES = {"bf16": 0.5, "int4_block": 129 / 1024, BOUNDED: 13.2 / 32}
"""of what fp32 takes; sums of normal values need 13 bits at the bound of these cases, one more or less in a few blocks"""


@given(
    st.sampled_from(NAMES),
    st.integers(1, 3 * GRAIN + 5),
    st.integers(0, 2**31),
    st.sampled_from([1e-30, 1e-3, 1.0, 3e4, 1e30]),
)
def test_error_bound_and_exact_repetition(name: str, numel: int, seed: int, magnitude: float) -> None:
    codec = codec_of(name)
    values = torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * magnitude
    data = torch.empty(codec.most_bytes(numel), dtype=torch.uint8)
    decoded = codec.read(data[: codec.write(values, data)], numel).float()
    assert bool(((decoded - values).abs() <= cases.error_bound(name, values)).all())
    again = decoded.clone()
    settling(codec)(again)
    assert torch.equal(again, decoded)
    part = decoded[: numel // 2 // GRAIN * GRAIN or (0 if name == BOUNDED else 1)].clone()
    settling(codec)(part)
    assert torch.equal(part, decoded[: part.numel()])


def test_edges() -> None:
    for name in ("int8_block", "fp8_block", "int4_block"):
        for values in (torch.zeros(300), torch.full((300,), 127.0), torch.full((300,), -(2.0**-140))):
            data = torch.empty(CODECS[name].most_bytes(300), dtype=torch.uint8)
            CODECS[name].write(values, data)
            assert bool(((CODECS[name].read(data, 300) - values).abs() <= cases.error_bound(name, values)).all())
        values = torch.ones(2 * GRAIN)
        values[3] = torch.inf
        data = torch.empty(CODECS[name].most_bytes(2 * GRAIN), dtype=torch.uint8)
        CODECS[name].write(values, data)
        decoded = CODECS[name].read(data, 2 * GRAIN)
        assert bool(decoded[:GRAIN].isnan().all()) and torch.equal(decoded[GRAIN:], torch.ones(GRAIN))


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(4)
    ranks.run(join_job)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("codec", NAMES)
def test_compressed_collectives(pool: RankPool, codec: str) -> None:
    results = pool.run(cases.compressed, codec)
    sums = [result["checksums"] for result in results]
    assert all(one == sums[0] for one in sums), "ranks end with different bits"
    for result in results:
        assert result["worst_ratio"] <= 1, "an error bound is broken"
        realised = result["far_bytes"] / result["plain_bytes"]
        assert realised == pytest.approx(SIZES.get(codec, 257 / 1024), rel=0.02)
        assert result["ratio_in_trace"] == pytest.approx(1 / realised)


@pytest.mark.parametrize("codec", ["int4_block", BOUNDED])
def test_compressed_collectives_over_send_and_receive(pool: RankPool, codec: str) -> None:
    linked, sent = (pool.run(cases.compressed, codec, over) for over in (False, True))
    assert [one["checksums"] for one in sent] == [one["checksums"] for one in linked], (
        "other bits than over our own links"
    )
    assert sent[0]["ratio_in_trace"] == pytest.approx(1024 / 129 if codec == "int4_block" else 1, rel=0.04)
