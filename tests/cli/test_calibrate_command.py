"""``calibrate``, and ``validate`` of benchmark files, on the command line: files, exit codes, and a plan with the
result."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from scaleacross import api
from scaleacross.catalogue import load_accelerator
from scaleacross.cli import app

DATA = Path(os.environ.get("SCALEACROSS_DATA", Path(__file__).parents[3] / "shared" / "data"))
ATTENTION = "accelerator,batch_size,isl,num_heads,num_key_value_heads,head_dim,time_us\n"
OPS = "op,n_gpus,size_bytes,time_us,system\n"
JOB = """
name: small
workload: llama3.1-8b
topology: one_building
sequence_length: 8192
global_batch_sequences: 64
num_accelerators: 16
"""
measured = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}: set SCALEACROSS_DATA to the folder that holds it")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Attention at 100 TFLOP/s and 20 µs, twelve shapes."""
    path = tmp_path / "calls.csv"
    shapes = [(batch, length) for batch in (1, 2, 4) for length in (2048, 4096, 8192, 16384)]
    lines = [f"h100_sxm,{b},{s},32,8,128,{20 + 2 * b * 32 * s * s * 128 / 100e6}" for b, s in shapes]
    path.write_text(ATTENTION + "\n".join(lines) + "\n")
    return path


def sample(name: str, label: str, every: int, folder: Path) -> Path:
    """Every ``every``-th row of a label of a public file."""
    import gzip

    with gzip.open(DATA / name, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    path = folder / name.removesuffix(".gz")
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0])
        writer.writeheader()
        writer.writerows([row for row in rows if row["accelerator"] == label][::every])
    return path


# --- calibrate ------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_entries_are_written_and_used(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = tmp_path / "fleet"
    done = run("calibrate", "--attention", calls, "-o", fleet)
    assert done.exit_code == 0, done.output
    path = fleet / "accelerators" / "h100-sxm.yaml"
    assert f"wrote {path}; use them with SCALEACROSS_CONFIGS={fleet}" in done.stderr
    assert [file for file in fleet.rglob("*") if file.is_file()] == [path]
    assert "in sample" in done.stdout
    assert "shapes" in done.stdout
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    stock = json.loads(run("plan", job, "--json").stdout)
    monkeypatch.setenv("SCALEACROSS_CONFIGS", str(fleet))
    shown = run("show", "accelerator", "h100-sxm").stdout
    assert "calls.csv (sha256 " in "".join(shown.split("\n"))
    slow = json.loads(run("plan", job, "--json").stdout)
    own = load_accelerator("h100-sxm").attention_model
    assert own is not None
    assert own.compute_efficiency_fraction < 0.2
    # attention at 100 TFLOP/s instead of about 490: the same plan takes longer
    assert slow["cost"]["compute_s"] > 1.05 * stock["cost"]["compute_s"]


def test_without_a_folder_nothing_is_written(calls: Path, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    done = run("calibrate", "--attention", calls, "--json")
    data = json.loads(done.stdout)
    assert set(tmp_path.rglob("*")) == before
    (entry,) = data["entries"]
    assert (entry["file"], entry["base"]) == ("accelerators/h100-sxm.yaml", "h100-sxm")
    (fit,) = entry["fits"]
    assert fit["what"] == "attention"
    assert {"base", "in_sample", "left_out"} < set(fit)
    assert fit["left_out"]["shapes"]["rows"] == fit["in_sample"]["rows"] == 12
    assert "peak_tflop_per_s" in entry["from_base"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("bug")])
def test_nothing_is_left_of_an_interrupted_calibration(
    error: BaseException, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("scaleacross.emitters._stage", fail)
    done = run("calibrate", "--attention", calls, "-o", tmp_path / "fleet")
    assert done.exit_code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert not (tmp_path / "fleet").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("calibrate",),
        ("calibrate", "--gemm", "no-such-file.csv"),
        ("calibrate", "--runs", "no-such-file.csv"),
        ("calibrate", "--collectives", "no-such-file.txt"),
        ("validate",),
        ("validate", "--gemm", "no-such-file.csv"),
        ("validate", "--gemm", "no-such-file.csv", "-o", "out"),
    ],
)
def test_bad_input_is_code_2_with_a_message(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.strip()
    assert "unexpected" not in done.stderr


@measured
def test_from_public_sweeps_to_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = sample("gemm_measured.csv.gz", "a100_sxm", 40, tmp_path)
    attention = sample("attention_measured.csv.gz", "a100_sxm", 30, tmp_path)
    ops = tmp_path / "ops.csv"
    with (DATA / "collectives.csv").open() as file:
        lines = file.readlines()
    ops.write_text(lines[0] + "".join(line for line in lines if ",a100_sxm," in line))
    files = ("--gemm", gemm, "--attention", attention, "--collectives", ops)
    done = run("calibrate", *files, "-o", tmp_path / "fleet", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert [entry["file"] for entry in data["entries"]] == ["accelerators/a100-80gb.yaml", "networks/nvlink3.yaml"]
    unseen = {
        fit["what"]: score["median_abs_error"]
        for entry in data["entries"]
        for fit in entry["fits"]
        for score in fit["left_out"].values()
    }
    assert unseen["gemm bf16"] < 0.07  # a fortieth of the rows; all of them give 3.0 %
    assert unseen["attention"] < 0.04
    monkeypatch.setenv("SCALEACROSS_CONFIGS", str(tmp_path / "fleet"))
    scores = json.loads(run("validate", *files, "--json").stdout)
    fitted = {fit["what"]: fit["in_sample"] for entry in data["entries"] for fit in entry["fits"]}
    assert scores["gemm"]["median_abs_error"] == pytest.approx(fitted["gemm bf16"]["median_abs_error"])
    assert scores["attention"]["median_abs_error"] == pytest.approx(fitted["attention"]["median_abs_error"])


# --- validate -------------------------------------------------------------------------------------------------------


def test_kernels_and_collectives_are_scored_and_what_is_skipped_is_counted(calls: Path, tmp_path: Path) -> None:
    ops = tmp_path / "ops.csv"
    ops.write_text(OPS + "all_gather,8,1024,12,h100_sxm\nbroadcast,8,1024,9,h100_sxm\nall_gather,8,1024,12,pcie\n")
    calls.write_text(calls.read_text() + "unheard-of,1,4096,32,8,128,900\n")
    done = run("validate", "--attention", calls, "--collectives", ops, "--json")
    data = json.loads(done.stdout)
    assert set(data) == {"attention", "collectives"}
    attention = data["attention"]
    assert [attention[key] for key in ("rows", "used", "skipped")] == [13, 12, 1]
    (group,) = attention["groups"]
    assert (group["accelerator"], group["entry"], group["rows"]) == ("h100_sxm", "h100-sxm", 12)
    assert group["bias"] < -0.5  # the catalogue's H100 is much faster than these times
    assert attention["skipped_rows"][0]["label"] == "unheard-of"
    assert attention["skipped_rows"][0]["reason"].startswith("not in the catalogue of accelerators; it has a100-40gb")
    ops_data = data["collectives"]
    assert [ops_data[key] for key in ("rows", "used", "skipped")] == [3, 1, 2]
    assert [(group["system"], group["op"], group["size"]) for group in ops_data["groups"]] == [
        ("h100_sxm", "all_gather", "< 1 MiB")
    ]
    text = " ".join(run("validate", "--attention", calls, "--collectives", ops).stdout.split())  # for any line length
    assert "12 rows used, 1 skipped" in text
    assert "no curve is kept for operation 'broadcast'" in text


def test_a_file_of_which_no_row_can_be_used_is_refused_with_the_reasons(tmp_path: Path) -> None:
    path = tmp_path / "g.csv"
    path.write_text(
        "accelerator,gemm_dtype,m,n,k,time_us\nh100-sxm,int8,4096,4096,4096,200\nnone,bf16,4096,4096,4096,9\n"
    )
    done = run("validate", "--gemm", path)
    assert done.exit_code == 2
    assert "none of 2 rows can be used" in done.stderr
    assert "unknown gemm_dtype 'int8'" in done.stderr
    assert "1 rows of 'none': not in the catalogue" in done.stderr


def test_network_is_the_link_of_files_that_name_none(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    path.write_text("op,n_gpus,size_bytes,time_us\nall_gather,8,1024,12\n")
    assert run("validate", "--collectives", path).exit_code == 2
    done = run("validate", "--collectives", path, "--network", "nvlink4", "--json")
    assert json.loads(done.stdout)["collectives"]["groups"][0]["entry"] == "nvlink4"


def test_runs_and_benchmarks_share_one_json(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleacross.report.accuracy_files._runs_data", lambda *_: {"used": 7})
    monkeypatch.setattr(api, "validate", lambda _: True)
    runs = tmp_path / "runs.csv"
    runs.write_text("")
    data = json.loads(run("validate", runs, "--attention", calls, "--json").stdout)
    assert data["used"] == 7
    assert data["attention"]["used"] == 12


@pytest.mark.slow
def test_own_runs_narrow_the_interval_of_their_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, fleet, job = tmp_path / "mine.csv", tmp_path / "fleet", tmp_path / "job.yaml"
    runs.write_text(
        "model,arch,layers,hidden,ffn,gated,heads,kv_heads,head_dim,vocab,attn,seq,gpu,n_gpus,tp,mbs,gbs,precision,recompute,"
        "step_time_s\n"
        + 2
        * "Llama3.1-8B,dense,32,4096,14336,1,32,8,128,128256,gqa,8192,H100-80GB,16,2,1,64,bf16,none,3.6\n"
    )
    job.write_text(JOB)
    stock = json.loads(run("plan", job, "--json").stdout)
    done = run("calibrate", "--runs", runs, "-o", fleet)
    assert done.exit_code == 0, done.output
    assert "step_time_runs: {llama318b bf16: 2}" in (fleet / "accelerators" / "h100-sxm.yaml").read_text()
    monkeypatch.setenv("SCALEACROSS_CONFIGS", str(fleet))
    own = json.loads(run("plan", job, "--json").stdout)
    assert (stock["interval"]["calibrated_runs"], own["interval"]["calibrated_runs"]) == (0, 2)
    width = [one["interval"]["p90_s"] / one["interval"]["p10_s"] for one in (stock, own)]
    assert width[1] < width[0]
    assert "calibrated on 2 own runs of this model" in " ".join(run("plan", job).stdout.split())
