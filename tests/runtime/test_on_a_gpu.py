"""The runtime on a GPU: kernels without the interpreter, and schedules over NCCL's send and receive, four ranks on one card."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from rank_pool import RankPool

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import gpu_cases as cases
import torch

from scaleacross.row_codec.message import RowCodec, read_rows
from scaleacross.runtime.block_codec import BlockCodec
from scaleacross.runtime.bounded_codec import pack_reference, unpack_reference
from scaleacross.runtime.codecs import CODECS
from scaleacross.runtime.device_rows import read_rows_on, write_rows
from scaleacross.runtime.encoding import GRAIN

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1",
        reason="Triton's interpreter is on: run this file by itself (make gpu)",
    ),
]
RANKS, STEPS = 4, 8
BLOCK_CODECS = [codec for codec in CODECS.values() if isinstance(codec, BlockCodec)]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(RANKS)
    ranks.run(cases.set_up, RANKS)
    yield ranks
    ranks.close()


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    left, right = left.cpu().contiguous(), right.cpu().contiguous()
    return left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def values_of_every_magnitude() -> torch.Tensor:
    """Normal numbers, denormals, ties, infinities and NaN, with blocks of very different magnitude and a partial block."""
    generator = torch.Generator().manual_seed(3)
    blocks = torch.randn(400, GRAIN, generator=generator).double() * 2.0 ** torch.linspace(-148, 125, 400)[:, None]
    edges = torch.cat(
        [torch.arange(-512, 512) / 8.0, torch.tensor([-0.0, torch.inf, 1.0, torch.nan, 3e38, -torch.inf])]
    )
    return torch.cat([blocks.float().flatten(), edges, 2.0 ** torch.arange(-149, 128).double().float()])


@pytest.mark.parametrize("codec", BLOCK_CODECS, ids=lambda codec: codec.name)
def test_block_codecs_write_the_bytes_of_the_references(codec: BlockCodec) -> None:
    values = values_of_every_magnitude()
    here = torch.empty(codec.most_bytes(values.numel()), dtype=torch.uint8)
    there = torch.full_like(here, 99, device="cuda")
    codec.write(values, here)
    codec.write(values.cuda(), there)
    assert same_bits(there, here)
    assert same_bits(codec.read(there, values.numel()), codec.read(here, values.numel()))


@pytest.mark.parametrize("bound", [1e-5, 1e-3, 0.3, 40.0])
def test_the_bounded_codec_packs_as_its_reference(bound: float) -> None:
    from scaleacross.runtime.kernels.bounded import pack_by_kernel, unpack_by_kernel

    generator = torch.Generator().manual_seed(7)
    values = torch.randn(300 * GRAIN + 3, generator=generator) * 10.0 ** (torch.rand(1, generator=generator) * 6 - 3)
    values[5], values[9] = torch.inf, torch.nan
    expected, got = pack_reference(values, bound), pack_by_kernel(values.cuda(), bound)
    assert same_bits(got.widths, expected.widths)
    assert same_bits(got.words, expected.words)
    assert same_bits(unpack_by_kernel(got), unpack_reference(expected))


def test_rows_are_coded_as_on_the_host() -> None:
    generator = torch.Generator().manual_seed(1)
    distinct = torch.randn(700, 48, generator=generator)
    rows = distinct[torch.randint(700, (3000,), generator=generator)]
    rows[3], rows[5, 2], rows[7, 1] = 0.25, 1e-40, 3e30
    data = write_rows(rows.cuda(), RowCodec(0.05, "packed"))
    assert len(data) == len(RowCodec(0.05, "packed").write(rows.numpy()))
    assert same_bits(read_rows_on(data, torch.device("cuda")), torch.from_numpy(read_rows(data)))


def test_rows_go_to_their_destinations_and_back() -> None:
    from scaleacross.runtime import rows as shuffle

    generator = torch.Generator().manual_seed(2)
    destinations = torch.randint(-1, 37, (50_000,), generator=generator)
    rows = torch.randn(50_000, 96, generator=generator).to(torch.bfloat16)
    here, there = (shuffle.lay_out(one, 37, 1300) for one in (destinations, destinations.cuda()))
    for name in ("slots", "counts", "overflow"):
        assert same_bits(getattr(there, name), getattr(here, name))
    packed, on_gpu = shuffle.pack_rows(rows, here), shuffle.pack_rows(rows.cuda(), there)
    assert same_bits(on_gpu, packed)
    assert same_bits(shuffle.unpack_rows(on_gpu, there), shuffle.unpack_rows(packed, here))


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_schedules_over_nccl_equal_torch(pool: RankPool, operation: str) -> None:
    counts = pool.run(cases.cases.check_operation, operation, RANKS, None)
    assert counts == [counts[0]] * RANKS
    assert counts[0] >= 2 * 2 * 2


@pytest.mark.parametrize("codec", ["bf16", "int8_block", "int4_block", "fp8_block"])
def test_compressed_sums_have_the_bits_of_those_on_a_cpu(pool: RankPool, codec: str) -> None:
    assert pool.run(cases.compressed, codec) == [[True, True]] * RANKS


def test_streams_order_what_the_host_does_not_wait_for(pool: RankPool) -> None:
    assert pool.run(cases.streams, RANKS) == [{"order": True, "strided": True, "future": True}] * RANKS


def test_messages_that_cross_do_not_wait_for_each_other(pool: RankPool) -> None:
    assert pool.run(cases.crossing, RANKS, limit_s=40) == [[True, True]] * RANKS


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_training_has_the_losses_of_one_process(pool: RankPool, kind: str) -> None:
    for found in pool.run(cases.trained, kind, range(RANKS), STEPS):
        assert found["scaleacross"] == pytest.approx(found["whole"], rel=1e-4)
        assert found["whole"][-1] < found["whole"][0]
        assert found["planned"] >= STEPS, "the planned collectives did not run"
