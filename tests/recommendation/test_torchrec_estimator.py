"""TorchRec's estimator: the reference values of its own tests, to 1e-9."""

from __future__ import annotations

import pytest

from scaleacross.cost_models.embedding.torchrec import (
    TorchRecMachine,
    column_width,
    column_widths,
    shard_perf,
    shard_storage,
    torchrec_options,
)
from scaleacross.spec.recommendation import Kernel, Sharding
from scaleacross.workloads.recommendation import EmbeddingTable

# meta-pytorch/torchrec 376cac6, planner/tests/test_shard_estimators.py::TestEmbeddingPerfEstimator.test_1_table_perf:
# one table of 100 x 10, one row number per sample, 512 samples per rank, two ranks in a host, ms per shard
TABLE = EmbeddingTable(name="t", rows=100, dimension=10)
MACHINE = TorchRecMachine(world_size=2, local_world_size=2)
ONE = {
    "fwd_compute": 0.000327460077428233,
    "fwd_comms": 6.357828776041667e-05,
    "bwd_compute": 0.000654920154856466,
    "bwd_comms": 6.357828776041667e-05,
    "input_dist": 1.2715657552083334e-05,
}
ROWS = {
    "fwd_compute": 6.804365245261984e-05,
    "fwd_comms": 6.357828776041667e-05,
    "bwd_compute": 0.0001360873049052397,
    "bwd_comms": 0.00016798276699240525,
    "input_dist": 1.2715657552083334e-05,
}
GOLDEN: list[tuple[Sharding, Kernel, dict[str, float]]] = [
    (
        "data_parallel",
        "dense",
        {
            "fwd_compute": 9.356002212235228e-05,
            "fwd_comms": 0.0,
            "bwd_compute": 0.00018712004424470456,
            "bwd_comms": 0.000225593945387348,
            "input_dist": 0.0,
        },
    ),
    ("table_wise", "fused", ONE),
    ("column_wise", "fused", ONE),
    ("table_column_wise", "fused", ONE),
    ("table_wise", "fused_uvm", {"fwd_compute": 0.09179115295410156, "bwd_compute": 0.18358230590820312}),
    ("table_wise", "fused_uvm_caching", {"fwd_compute": 0.01432837509527439, "bwd_compute": 0.02865675019054878}),
    ("row_wise", "fused", ROWS),
    ("table_row_wise", "fused", ROWS),
    (
        "row_wise",
        "fused_uvm",
        {
            "fwd_compute": 0.019073486328125,
            "bwd_compute": 0.03814697265625,
            "bwd_comms": 0.029329458872477215,
        },
    ),
    (
        "row_wise",
        "fused_uvm_caching",
        {
            "fwd_compute": 0.0029773246951219513,
            "bwd_compute": 0.0059546493902439025,
            "bwd_comms": 0.004631910866838161,
        },
    ),
]


@pytest.mark.parametrize(("sharding", "kernel", "figures"), GOLDEN)
def test_reference_values(sharding: Sharding, kernel: Kernel, figures: dict[str, float]) -> None:
    perf = shard_perf(TABLE, sharding, kernel, MACHINE, batch=512, width=10)
    for name, value in figures.items():
        assert getattr(perf, name) == pytest.approx(value, rel=1e-9)


def test_a_table_over_hosts_pays_both_networks() -> None:
    machine = TorchRecMachine(world_size=16, local_world_size=8)
    perf = shard_perf(TABLE, "table_row_wise", "fused", machine, batch=512, width=10)
    vectors = 512 * 10 * 4
    assert perf.fwd_comms == pytest.approx(vectors * 16 / machine.intra_host + vectors * 2 / machine.inter_host)
    whole = shard_perf(TABLE, "table_wise", "fused", machine, batch=512, width=10)
    assert whole.fwd_comms == pytest.approx(vectors * 16 / machine.inter_host)


def test_storage_counts_state_cache_and_buffers() -> None:
    ids, vectors = 8 * 512 * 2, 512 * 2 * 10 * 4
    assert shard_storage(TABLE, "table_wise", "fused", MACHINE, 512, 10) == (ids + vectors + 4000, 0, 0)
    hbm, host, _ = shard_storage(
        TABLE, "table_wise", "fused_uvm_caching", MACHINE, 512, 10, optimizer="rowwise_adagrad"
    )
    assert host == pytest.approx(4000 * 1.1)
    assert hbm == pytest.approx(ids + vectors + 0.2 * 4400 + 100 * (4 + 16 * 0.2))
    assert shard_storage(TABLE, "row_wise", "fused", MACHINE, 512, 10, optimizer="adam")[0] == pytest.approx(
        ids / 2 + vectors + 2000 * 3
    )


@pytest.mark.parametrize(("dimension", "width"), [(64, 64), (128, 128), (256, 128), (384, 128), (400, 400)])
def test_columns_are_cut_to_128(dimension: int, width: int) -> None:
    assert column_width(EmbeddingTable(name="t", rows=1, dimension=dimension)) == width


def test_narrow_column_shards_are_those_that_a_constraint_reaches() -> None:
    wide, odd = (EmbeddingTable(name="t", rows=100, dimension=columns) for columns in (256, 10))
    assert (
        column_widths(wide) == (128,) and column_widths(wide, 32) == (128, 64, 32) and column_widths(odd, 32) == (10,)
    )
    options = torchrec_options(wide, MACHINE, 512, ("column_wise",), ("fused",), least_column_width=32)
    assert [(one.column_width, one.num_shards) for one in options] == [(128, 2), (64, 4), (32, 8)]
