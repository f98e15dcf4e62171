"""Step-time parameters fitted to rows of known parameters, on the catalogue's machines and on a user's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured_rows import run

from scaleacross.catalogue import load_accelerator, load_network
from scaleacross.errors import InputError
from scaleacross.validation import refit as module
from scaleacross.validation.predict import predict
from scaleacross.validation.refit import Machines, cases_on, refit
from scaleacross.validation.runs import Run

NOTHING = Machines({}, {})


def rows(gpu: str = "H100-80GB") -> list[Run]:
    """Rows of two models and two precisions with batches of 64 to 512.

    Each model has a source of its own, which is enough to outweigh the prior.
    """
    small, eight, large = run("n1"), run("n2"), run("l1")
    named = [replace(large, source="elsewhere"), small, eight]
    batches = [(one, gbs) for gbs in (64, 128, 256, 512) for one in named] + [(small, 1024)]
    return [
        replace(one, id=f"{one.id}{gbs}", gbs=gbs, gpu=gpu, step_time_s=(one.step_time_s or 1.0) * gbs / one.gbs)
        for one, gbs in batches
    ]


def timed(runs: list[Run], machines: Machines) -> list[Run]:
    """The rows with the step times that ``machines`` would give."""
    cases, _ = cases_on(runs, machines)
    return [replace(one, step_time_s=predict(case).step_s) for one, case in zip(runs, cases, strict=True)]


@pytest.fixture(autouse=True)
def _few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ITERATIONS", 2)


@pytest.mark.heavy
def test_a_slower_accelerator_is_found_from_its_step_times() -> None:
    own = load_accelerator("h100-sxm")
    ratios = {key: 0.7 * value for key, value in own.training_gemm_ratio.items()}
    slower = own.model_copy(update={"training_gemm_ratio": ratios})
    cases, skipped = cases_on(timed(rows(), Machines({"h100-sxm": slower}, {})), NOTHING)
    told: list[tuple[int, int]] = []
    (fit,) = refit(cases, lambda done, total: told.append((done, total)))
    assert skipped == []
    assert (fit.generation, set(fit.figures)) == ("Hopper", {"h100-sxm"})
    figures = fit.figures["h100-sxm"]
    assert "training_gemm_ratio" in figures
    assert "host_moe_pass_s" not in figures  # no row has experts: it keeps its value
    before, after = (np.abs(seconds / fit.measured_s - 1).max() for seconds in (fit.before_s, fit.fitted_s))
    assert after < 0.03 < 0.15 < before
    assert set(fit.left_out_s) == {"models", "sources", "runs"}
    unseen = np.abs(fit.left_out_s["models"] / fit.measured_s - 1).max()
    assert after < unseen < before
    assert told[0] == (0, 3)
    assert told[-1] == (2, 3)


def test_a_gpu_of_the_users_own_stands_on_the_hosts_of_the_base() -> None:
    mine = load_accelerator("h100-sxm").model_copy(update={"name": "my-gpu", "memory_efficiency_fraction": 0.5})
    machines = Machines({"my-gpu": mine}, {}, base="h100-sxm")
    cases, _ = cases_on(rows("my-gpu"), machines)
    assert all(case.topology.buildings[0].accelerator == mine for case in cases)
    unfitted, _ = cases_on(rows("my-gpu"), replace(machines, accelerators={}))
    assert {case.topology.buildings[0].accelerator.name for case in unfitted} == {"my-gpu"}
    with pytest.raises(InputError, match=r"no machine is known for gpu 'my-gpu'; known: A100-80GB, .*--base"):
        cases_on(rows("my-gpu"), NOTHING)


def test_a_fitted_link_estimates_the_runs() -> None:
    link = load_network("nvlink4")
    halved = link.model_copy(update={"curves": (), "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s / 10})
    before, after = (cases_on(rows(), Machines({}, links))[0] for links in ({}, {"nvlink4": halved}))
    assert predict(after[0]).step_s > 1.1 * predict(before[0]).step_s


@pytest.mark.heavy
def test_one_run_moves_the_stated_figures_and_two_move_them_further() -> None:
    own = load_accelerator("h100-sxm")
    ratios = {key: 0.85 * value for key, value in own.training_gemm_ratio.items()}
    slow = timed(rows(), Machines({"h100-sxm": own.model_copy(update={"training_gemm_ratio": ratios})}, {}))
    same = [row for row in slow if row.model == "nemotron4_15b" and row.precision == "bf16"]
    found = [refit(cases_on(same[-number:], NOTHING)[0])[0] for number in (1, 2)]
    assert found[0].runs == {"h100-sxm": {"nemotron415b bf16": 1}}
    before, one, two = (
        abs(float(np.log(seconds[-1] / fit.measured_s[-1])))
        for seconds, fit in ((found[0].before_s, found[0]), *((fit.fitted_s, fit) for fit in found))
    )
    assert 0 < two < one < 0.5 * before


@pytest.mark.heavy
def test_runs_as_predicted_change_nothing() -> None:
    own = load_accelerator("h100-sxm")
    cases, _ = cases_on(timed(rows(), NOTHING)[:2], NOTHING)
    (fit,) = refit(cases)
    figures = fit.figures["h100-sxm"]
    assert figures["memory_efficiency_fraction"] == pytest.approx(own.memory_efficiency_fraction, rel=1e-6)
    assert figures["training_gemm_ratio"] == pytest.approx(dict(own.training_gemm_ratio), rel=1e-6)
    (shipped,) = refit(cases, from_scratch=True)  # because of the priors of KNOBS
    assert shipped.figures["h100-sxm"]["training_gemm_ratio"] != pytest.approx(dict(own.training_gemm_ratio), rel=1e-3)


def test_every_run_of_a_few_is_left_out_once() -> None:
    cases, _ = cases_on(rows()[:3], NOTHING)
    (fit,) = refit(cases)
    assert set(fit.left_out_s) == {"models", "sources", "runs"}


def test_no_usable_row_is_refused_with_the_reasons() -> None:
    with pytest.raises(
        InputError, match=r"none of 1 rows can be used; a fit needs one:\n- 1 rows: neither step_time_s nor"
    ):
        cases_on([replace(run("k1"), step_time_s=None)], NOTHING)


def test_a_step_time_in_other_units_is_refused() -> None:
    row = replace(run("l1"), step_time_s=1000 * (run("l1").step_time_s or 1.0))
    with pytest.raises(InputError, match=r"l1: .* s measured, .* s predicted: .* step_time_s is in seconds"):
        cases_on([row], NOTHING)
