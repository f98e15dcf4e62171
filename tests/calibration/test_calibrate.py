"""``calibrate``: results load, state which figures were measured and which were not, and impossible input is refused."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from sweeps import GEMM_HEAD, slower, write, write_attention, write_collectives, write_gemm

from scaleacross import api, catalogue
from scaleacross.calibration.kernel_data import read_attention_times
from scaleacross.calibration.result import Calibration
from scaleacross.catalogue.find import find
from scaleacross.catalogue.load import read
from scaleacross.catalogue.write import entry_text
from scaleacross.emitters import write_files
from scaleacross.errors import InputError, TooFewError
from scaleacross.spec.accelerator import Accelerator
from scaleacross.spec.network import NetworkTechnology
from scaleacross.spec.progress import Progress

DAY = date(2026, 1, 2)


def accelerator(found: Calibration, folder: Path, number: int = 0) -> Accelerator:
    """An accelerator entry as another user reads it."""
    write_files(found.files, folder)
    return catalogue.load_accelerator(folder / found.entries[number].path)


def network(found: Calibration, folder: Path) -> NetworkTechnology:
    write_files(found.files, folder)
    return catalogue.load_network(folder / found.entries[0].path)


# --- kernels --------------------------------------------------------------------------------------------------------


def test_thirty_rows_of_a_new_accelerator_give_its_rates_and_say_what_is_the_base(tmp_path: Path) -> None:
    path = write_gemm(tmp_path / "mine.csv", "my-gpu", slower(), 30)
    found = api.calibrate(gemm=path, base=["h100-sxm"], today=DAY)
    entry, base = accelerator(found, tmp_path), catalogue.load_accelerator("h100-sxm")
    assert (entry.name, found.entries[0].base) == ("my-gpu", "h100-sxm")
    (fit,) = found.entries[0].residuals
    assert fit.fitted == ("compute_efficiency_fraction", "memory_efficiency_fraction", "launch_s")
    assert fit.left_out["shapes"].median_abs_error < 0.02 < 0.2 < fit.base.median_abs_error  # type: ignore[union-attr]
    model = entry.gemm_models["bf16"]
    assert model.compute_efficiency_fraction == pytest.approx(0.5, rel=0.02)
    assert model.launch_s == pytest.approx(9e-6, rel=0.2)
    assert model.tile_overhead_s == base.gemm_models["bf16"].tile_overhead_s
    assert entry.attention_model == base.attention_model
    # no figure of the original entry stays 'measured' or 'datasheet' for another machine
    assert {key for key, one in entry.provenance.items() if one.status == "fitted"} == {"gemm_models.bf16"}
    assert {one.status for one in entry.provenance.values()} == {"fitted", "assumed"}
    assert set(entry.provenance) == set(base.provenance)
    assert entry.provenance["memory_mib"].source.startswith("taken over from h100-sxm, not measured here: ")
    source = entry.provenance["gemm_models.bf16"].source
    assert source.startswith("mine.csv (sha256 ")
    assert "30 rows of my-gpu, fitted 2026-01-02: error (median, p90)" in source
    assert "on shapes left out" in source
    assert "the rest is that of h100-sxm" in source
    assert any(f"{len(base.provenance) - 1} figures are taken over from h100-sxm" in note for note in found.notes)


def test_an_entry_of_the_catalogue_starts_from_itself_and_keeps_its_origins(tmp_path: Path) -> None:
    path = write_attention(tmp_path / "a.csv", "h100_sxm", 40, scale=1.5)
    found = api.calibrate(attention=path, base=["a100-80gb"], today=DAY)
    entry, own = accelerator(found, tmp_path), catalogue.load_accelerator("h100-sxm")
    assert (entry.name, found.entries[0].base) == ("h100-sxm", "h100-sxm")
    changed = {key for key in own.provenance if entry.provenance[key] != own.provenance[key]}
    assert changed == {"attention_model"}
    assert entry.attention_model != own.attention_model
    assert entry.model_copy(update={"attention_model": own.attention_model, "provenance": own.provenance}) == own
    (fit,) = found.entries[0].residuals
    assert fit.base is not None
    assert fit.base.median_abs_error == pytest.approx(1 / 3, abs=1e-3)  # 1.5 times as long
    assert fit.left_out["shapes"].median_abs_error < 0.05


def test_too_few_shapes_are_skipped_beside_others_and_refused_alone(tmp_path: Path) -> None:
    few = write_gemm(tmp_path / "few.csv", "my-gpu", slower(), 9)
    with pytest.raises(TooFewError, match="my-gpu, bf16, 9 rows: a fit of 3 parameters with 5 folds needs 15 distinct"):
        api.calibrate(gemm=few, base=["h100-sxm"])
    more = write_attention(tmp_path / "a.csv", "my-gpu", 12)
    found = api.calibrate(gemm=few, attention=more, base=["h100-sxm"])
    assert [one.what for one in found.entries[0].residuals] == ["attention"]
    assert [(one.label, one.rows) for one in found.skipped] == [("my-gpu bf16", 9)]


def test_a_base_with_too_little_bandwidth_is_said(tmp_path: Path) -> None:
    path = write_gemm(tmp_path / "g.csv", "my-gpu", slower(0.8), 40, bandwidth=1.6)
    notes = api.calibrate(gemm=path, base=["h100-sxm"]).notes
    assert any(
        "memory_efficiency_fraction is near its limit of 1: h100-sxm states less memory bandwidth" in one
        for one in notes
    )


def test_a_fit_that_does_worse_than_the_base_is_said(tmp_path: Path) -> None:
    # the original entry's own times with noise, so that there is only noise to learn
    lines = write_attention(tmp_path / "a.csv", "h100_sxm", 12).read_text().splitlines()
    noise = np.exp(0.3 * np.random.default_rng(2).standard_normal(12))
    rows = [[*line.split(",")[:-1], float(line.split(",")[-1]) * f] for line, f in zip(lines[1:], noise, strict=True)]
    found = api.calibrate(attention=write(tmp_path / "b.csv", lines[0].split(","), rows))
    (fit,) = found.entries[0].residuals
    assert fit.base is not None
    assert fit.left_out["shapes"].median_abs_error > fit.base.median_abs_error
    assert any("measure more shapes, or keep those" in note for note in found.notes)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["h100-sxm", "int8", 4096, 4096, 4096, 300]], "unknown gemm_dtype 'int8'; known: bfloat16, float16, fp16"),
        ([["a100_sxm", "fp8", 4096, 4096, 4096, 300]], "a100-80gb states no peak for fp8; it has fp16, bf16"),
        ([["my-gpu", "bf16", 4096, 4096, 4096, 300]], "not in the catalogue of accelerators: my-gpu. Name with --base"),
        ([["h100-sxm", "bf16", 4096, 4096, 4096, 0]], "line 2, time_us: '0' is no positive number"),
        ([["h100-sxm", "bf16", 4096, 4096, 4096, -3]], "line 2, time_us: '-3' is no positive number"),
        ([], "no rows"),
        ([["h100-sxm", "bf16", 64, 64, 64, 3]], "no product of at least 1 GFLOP among 1"),
        ([["h100-sxm", "bf16", 4096, 4096, n, 1e-3] for n in range(512, 2000, 64)], "is time_us in microseconds"),
        ([["h100-sxm", "bf16", 4096, 4096, n, 1e6] for n in range(512, 2000, 64)], "is time_us in microseconds"),
    ],
)
def test_rows_that_cannot_be_fitted_are_refused(tmp_path: Path, rows: list[list[object]], message: str) -> None:
    path = write(tmp_path / "g.csv", GEMM_HEAD, rows)
    with pytest.raises(InputError) as refused:
        api.calibrate(gemm=path)
    assert message in str(refused.value)


def test_missing_columns_are_named_with_those_that_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "g.csv", ("accelerator", "gemm_dtype", "m", "n", "k", "time_ms"), [])
    with pytest.raises(InputError, match=r"no column time_us; .*in microseconds\); there are: accelerator, .*time_ms"):
        api.calibrate(gemm=path)


def test_an_empty_or_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.csv"
    for content, message in ((b"", "the file is empty"), (b"\x1f\x8bnot gzip", "g.csv: cannot be read")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            api.calibrate(gemm=path)


def test_rates_beyond_the_peak_of_the_base_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = write_gemm(tmp_path / "g.csv", "my-gpu", slower(0.9), 20, scale=0.5)
    with pytest.raises(InputError, match=r"times the 312 TFLOP/s that a100-80gb states: .* name the copy with --base"):
        api.calibrate(gemm=path, base=["a100-80gb"])


def test_a_file_as_base_carries_the_users_own_figures(tmp_path: Path) -> None:
    text = find("accelerators", "h100-sxm").read_text()
    own = tmp_path / "my-gpu.yaml"
    own.write_text(text.replace("name: h100-sxm", "name: my-gpu").replace("memory_mib: 81559", "memory_mib: 99999"))
    path = write_attention(tmp_path / "a.csv", "my-gpu", 12)
    entry = accelerator(api.calibrate(attention=path, base=[str(own)]), tmp_path)
    assert entry.memory_bytes == 99_999 * 2**20
    assert entry.provenance["memory_mib"].status == "measured"  # as the file itself states it


def test_only_chooses_labels_and_entries(tmp_path: Path) -> None:
    first = write_attention(tmp_path / "a.csv", "h100_sxm", 12).read_text()
    both = tmp_path / "both.csv"
    both.write_text(first + "".join(f"{line}\n" for line in first.replace("h100_sxm", "other").splitlines()[1:]))
    with pytest.raises(InputError, match=r"not in the catalogue of accelerators: other\. .* --only 'h100_sxm'"):
        api.calibrate(attention=both)
    for label in ("h100_sxm", "h100-sxm"):
        assert [entry.name for entry in api.calibrate(attention=both, only=[label]).entries] == ["h100-sxm"]
    with pytest.raises(InputError, match=r"no row of h200 \(--only\)"):
        api.calibrate(attention=both, only=["h200"])
    same = tmp_path / "same.csv"
    same.write_text(both.read_text().replace("other", "h100-sxm"))
    with pytest.raises(InputError, match="h100_sxm, h100-sxm all mean attention of h100-sxm"):
        api.calibrate(attention=same)


def test_bases_are_one_of_a_kind_and_known(tmp_path: Path) -> None:
    path = write_attention(tmp_path / "a.csv", "h100_sxm", 12)
    with pytest.raises(InputError, match="--base h100-sxm and --base h200 are both accelerators"):
        api.calibrate(attention=path, base=["h100-sxm", "h200"])
    with pytest.raises(InputError, match="--base 'h1000' is no file and no name of the catalogue"):
        api.calibrate(attention=path, base=["h1000"])
    with pytest.raises(InputError, match="nothing to fit"):
        api.calibrate()
    spaced = write_attention(tmp_path / "b.csv", "my gpu", 12)
    with pytest.raises(InputError, match="'my gpu' cannot name an entry"):
        api.calibrate(attention=spaced, base=["h100-sxm"])


def test_progress_is_told_before_every_fit(tmp_path: Path) -> None:
    told: list[Progress] = []
    path = write_attention(tmp_path / "a.csv", "h100_sxm", 12)
    ops = write_collectives(tmp_path / "c.csv", "h100_sxm")
    api.calibrate(attention=path, collectives=[ops], progress=told.append)
    assert [(one.stage, one.done, one.total) for one in told] == [
        ("fitting collectives", 0, 1),
        ("fitting kernels", 0, 1),
    ]


# --- collectives ----------------------------------------------------------------------------------------------------


def test_curves_of_a_new_link_keep_the_operations_of_the_base(tmp_path: Path) -> None:
    path = write_collectives(tmp_path / "c.csv", "my-link")
    found = api.calibrate(collectives=[path], base=["nvlink4"], today=DAY)
    entry, base = network(found, tmp_path), catalogue.load_network("nvlink4")
    assert entry.name == "my-link"
    own = [curve for curve in entry.curves if curve.op == "all_gather"]
    assert [curve.num_ranks for curve in own] == [8]
    assert own[0].time_s[1024] == pytest.approx(20e-6, rel=0.01)
    kept = [curve for curve in base.curves if curve.op != "all_gather"]
    assert [curve.op for curve in entry.curves if curve.op != "all_gather"] == [curve.op for curve in kept]
    stated = entry.provenance["curves.time_us"]
    assert stated.status == "fitted"
    assert "12 rows of my-link; fitted 2026-01-02" in stated.source
    assert stated.source.endswith("curves of reduce_scatter, all_reduce, all_to_all are those of nvlink4")
    assert entry.provenance["bandwidth_gbyte_per_s"].status == "assumed"
    assert all(one.left_out["sizes"].median_abs_error < 0.05 for one in found.entries[0].residuals)


def test_network_names_the_link_of_files_that_do_not(tmp_path: Path) -> None:
    path = write_collectives(tmp_path / "c.csv")
    with pytest.raises(InputError, match="say which link they ran on with --network NAME"):
        api.calibrate(collectives=[path])
    (entry,) = api.calibrate(collectives=[path], network="nvlink3").entries
    assert (entry.name, entry.base) == ("nvlink3", "nvlink3")


@pytest.mark.parametrize(
    ("sizes", "scale", "message"),
    [
        (3, 1.0, "an operation needs 4 sizes for one number of ranks"),
        (12, 1e-3, "times the line rate of nvlink4: is time_us in microseconds"),
        (12, 1e4, "times the line rate of nvlink4: is time_us in microseconds"),
    ],
)
def test_collectives_that_cannot_be_fitted_are_refused(tmp_path: Path, sizes: int, scale: float, message: str) -> None:
    lines = write_collectives(tmp_path / "c.csv", "nvlink4", sizes).read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    path = write(tmp_path / "d.csv", lines[0].split(","), [[*r[:3], float(r[3]) * scale, r[4]] for r in rows])
    with pytest.raises(InputError, match=message):
        api.calibrate(collectives=[path])


# --- what is written ------------------------------------------------------------------------------------------------


def test_compressed_files_are_the_same_measurements(tmp_path: Path) -> None:
    path = write_attention(tmp_path / "a.csv", "h100_sxm", 12)
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    one, two = (read_attention_times(each)["h100_sxm"] for each in (path, packed))
    assert (one.shapes() == two.shapes()).all() and (one.time_s == two.time_s).all()


@pytest.mark.parametrize("name", ["h100-sxm", "mi300x"])
def test_an_entry_written_again_is_the_same_entry(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(entry_text(read("accelerators", name).data, "again"))
    assert catalogue.load_accelerator(path) == catalogue.load_accelerator(name)
    assert path.read_text().startswith("# again\nname: ")
