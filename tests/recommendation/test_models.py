"""Recommendation models: published table sets, CSV and TorchRec configurations, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaleacross.catalogue import load_recommendation, load_recommendation_job
from scaleacross.errors import InputError
from scaleacross.workloads.recommendation import Dlrm, Locality

# tables, rows read per sample, elements that leave the look-ups per sample, GiB in fp32: table 1 of the synthetic models' README
# (NVIDIA-Merlin/distributed-embeddings 4cb42d4); MLPerf: facebookresearch/dlrm 090956e
PUBLISHED = [
    ("synthetic-tiny", 55, 85, 672, 4.2),
    ("synthetic-small", 107, 377, 2_512, 26.3),
    ("synthetic-medium", 311, 1_611, 17_280, 206.2),
    ("synthetic-large", 612, 6_312, 36_608, 773.8),
    ("synthetic-jumbo", 1_022, 16_022, 118_400, 3_109.5),
    ("synthetic-colossal", 2_002, 47_302, 336_768, 22_327.4),
    ("mlperf-dlrm-dcnv2", 26, 214, 26 * 128, 97.36),
    ("criteo-1tb-dlrm", 26, 26, 26 * 128, 84.85),
]


@pytest.mark.parametrize(("name", "tables", "reads", "elements", "gib"), PUBLISHED)
def test_public_sets_have_their_published_sums(name: str, tables: int, reads: int, elements: int, gib: float) -> None:
    model = load_recommendation(name)
    assert (model.num_tables, model.reads_per_sample, model.output_elements) == (tables, reads, elements)
    assert model.embedding_parameters * 4 / 2**30 == pytest.approx(gib, abs=0.06)
    assert len(list(model.expanded())) == tables


def test_csv_of_tables(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("name,rows,dimension,pooling,num_tables\nuser,1000,64,1 10,\nitem,50,32,,3\n")
    model = load_recommendation(str(path))
    assert model.name == "mine"
    assert [table.name for table in model.expanded()] == ["user", "item_0", "item_1", "item_2"]
    assert model.tables[0].pooling == (1.0, 10.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,rows\na,1\n", "missing dimension; the file has name, rows; known are"),
        ("name,rows,dimension,color\na,1,2,red\n", "unknown 'color'"),
        ("name,rows,dimension\na,many,2\n", ":2: table 'a': rows 'many' is no whole number above 0"),
        ("name,rows,dimension,pooling\na,9,2,1 nan\n", ":2: table 'a': pooling 'nan' is no number above 0"),
        ("name,rows,dimension\n", "no table below the header"),
        ("name,rows,dimension\na,4,2\nb,0,2\n", ":3: table 'b': rows '0'"),
        ("name,rows,dimension\na,4,2\na,4,2\n", "two tables are called 'a'"),
    ],
)
def test_csv_that_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_recommendation(str(path))


def test_torchrec_configurations_become_tables() -> None:
    config = {"name": "t", "num_embeddings": 100, "embedding_dim": 16, "feature_names": ["f", "g"]}
    table = load_recommendation({"name": "m", "tables": [config]}).tables[0]
    assert (table.rows, table.dimension, table.pooling) == (100, 16, (1.0, 1.0))
    with pytest.raises(InputError, match="no key 'colour'"):
        load_recommendation({"name": "m", "tables": [{**config, "colour": "red"}]})


def test_misspelt_keys_name_the_nearest() -> None:
    with pytest.raises(InputError, match="nearest known key: 'dimension'"):
        load_recommendation({"name": "m", "tables": [{"name": "t", "rows": 3, "dimensions": 4}]})


def test_job_with_overrides_is_self_contained() -> None:
    data = {
        "name": "j",
        "workload": "synthetic-tiny",
        "topology": "zionex_128",
        "global_batch_samples": 64,
    }
    job, model, topology = load_recommendation_job(data, ["workload.num_dense_features=3", "num_accelerators=8"])
    assert (model.num_dense_features, job.num_accelerators, topology.num_accelerators) == (3, 8, 128)
    again, same, _ = load_recommendation_job(job)
    assert (again, same) == (job, model)
    with pytest.raises(InputError, match=r"key 'workload'.*mlperf"):
        load_recommendation_job({**data, "workload": "mlperf-dlrm"})


def locality(**fields: Any) -> Locality:
    return Locality.model_validate(fields)


def test_reads_of_the_hottest_rows() -> None:
    assert locality().read_share(0.25, 1000) == 0.25
    law = locality(kind="power_law", exponent=1.05)
    shares = [law.read_share(share, 10**6) for share in (0, 0.01, 0.1, 0.5, 1)]
    assert shares[0] == 0 and shares[-1] == pytest.approx(1) and shares == sorted(shares)
    assert shares[1] > 0.6
    bins = [{"row_share": 0.8, "read_share": 0.3}, {"row_share": 0.2, "read_share": 0.7}]
    own = locality(kind="histogram", bins=bins)
    assert own.read_share(0.1, 10) == pytest.approx(0.35)
    assert own.read_share(0.6, 10) == pytest.approx(0.7 + 0.15)
    with pytest.raises(ValueError, match="percent"):
        locality(kind="histogram", bins=[{"row_share": 0.5, "read_share": 1}])


def test_dense_weights_are_those_of_the_published_networks() -> None:
    model = load_recommendation("criteo-1tb-dlrm")
    bottom, top = model.dense_parameters()
    assert bottom == 13 * 512 + 512 * 256 + 256 * 128
    pairs = 27 * 26 // 2  # 26 tables and the bottom MLP, arXiv 1906.00091
    assert top == (pairs + 128) * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    assert isinstance(model, Dlrm)
