"""Layers over histories of unequal length: moments, predicted imbalance, the rule that distributes samples, refusals."""

from __future__ import annotations

import runpy
import sys
from io import StringIO
from pathlib import Path
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
from rich.console import Console

from scaleacross.api import plan_recommendation, simulate_recommendation
from scaleacross.catalogue import is_recommendation, load_recommendation_job
from scaleacross.cost_models.embedding.problem import embedding_problem
from scaleacross.cost_models.embedding.sample_balance import busiest_over_mean, drawn
from scaleacross.emitters.torchrec import render
from scaleacross.errors import InputError, VerificationError
from scaleacross.report.recommendation import recommendation_sections
from scaleacross.spec.recommendation import RecommendationPlan
from scaleacross.verification.embeddings import verify_recommendation
from scaleacross.workloads.sequences import Lengths, SequenceLayers

EXAMPLE = Path(__file__).parents[2] / "examples" / "recommendation" / "histories.yaml"
LAWS = (
    Lengths(kind="constant", longest=512),
    Lengths(kind="uniform", longest=1000),
    Lengths(kind="lognormal", longest=21500, mean_log=7.5, deviation_log=1.3),
    Lengths(kind="measured", values=(1, 5, 30)),
)


def planned(*overrides: str) -> RecommendationPlan:
    return plan_recommendation(EXAMPLE, time_limit_s=1, gap_tolerance=0.05, overrides=overrides)


@pytest.fixture(scope="module")
def plan() -> RecommendationPlan:
    return planned()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_moments_are_those_of_drawn_lengths(law: Lengths) -> None:
    own = drawn(law, np.random.default_rng(3), 200_000)
    assert law.moment(1) == pytest.approx(own.mean(), rel=0.01)
    assert law.moment(2) == pytest.approx((own**2).mean(), rel=0.02)


def test_zipf_picks_are_nearly_uniform_over_many_batches() -> None:
    law, generator = Lengths(kind="zipf_picks", longest=4096, exponent=1.2), np.random.default_rng(0)
    own = np.concatenate([drawn(law, generator, 64) for _ in range(400)])
    # the public generator states a mean of 2,047
    assert law.moment(1) == 2048.5 == pytest.approx(own.mean(), rel=0.05)


def test_layers_cost_what_the_published_counts_say() -> None:
    # per layer 10·h² FLOP a token and 2·h·L² a history, forward; 5·h² weights
    layers = SequenceLayers(num_layers=8, hidden_size=512, attention_slowdown=5.6)
    assert layers.flop() == pytest.approx((8 * 10 * 512**2, 8 * 2 * 512 * 5.6))
    assert layers.num_weights * 2 == layers.flop()[0]


def test_balancing_leaves_less_the_farther_it_reaches() -> None:
    apart, near, far = busiest_over_mean(LAWS[2], (1.0, 0.0), (16, 16), 64)
    assert apart > near > far > 1 - 1e-9 and far < 1.001
    # 22 % idle on 64 ranks of 128 samples of this law (independent simulation), costs in proportion to length
    assert 1 - 1 / busiest_over_mean(LAWS[2], (1.0, 0.0), (64,), 128)[0] == pytest.approx(0.22, abs=0.03)


def test_plan_states_every_rule_and_takes_the_fastest(plan: RecommendationPlan) -> None:
    seconds = {one.rule: one.seconds for one in plan.samples}
    assert set(seconds) == {"as_they_come", "in_building", "everywhere"}
    assert plan.decision.sample_rule == min(seconds, key=lambda rule: seconds[rule])
    assert plan.early_rows is not None and 0 < plan.early_rows.exposed_s < plan.early_rows.fetch_s
    alone = planned("sample_rules=as_they_come")
    gained = seconds["as_they_come"] - seconds[plan.decision.sample_rule]
    assert alone.cost.step_s - plan.cost.step_s == pytest.approx(gained, rel=0.01)
    thin = planned("topology.trunks.0.bandwidth_gbit_per_s=10", "kernels=[dense,fused]")
    assert thin.decision.sample_rule == "in_building"
    assert simulate_recommendation(plan).step_s == pytest.approx(plan.cost.step_s, rel=0.25)


def test_rows_that_are_not_pooled_leave_a_rank_once_however_they_are_split() -> None:
    # each of 32 ranks sends the thirty-second of all vectors that it holds; partial sums would be as long as all of them
    job, model, topology = load_recommendation_job(EXAMPLE)
    own = embedding_problem(job, model, topology).sharding
    item, user = own.options[0], own.options[3]
    whole, by_rows = (
        next(one for one in item if (one.sharding, one.kernel) == (sharding, "fused"))
        for sharding in ("table_wise", "row_wise")
    )
    assert by_rows.seconds[0] == pytest.approx(whole.seconds[0] / 32)
    assert by_rows.memory[0] == pytest.approx(whole.memory[0] / 32, rel=1e-6)
    pooled = {one.sharding: one.seconds[0] for one in user if one.kernel == "fused"}
    assert pooled["row_wise"] > pooled["table_wise"] / 32 * 2
    # TorchRec's EmbeddingCollection has no rows over the ranks of one host, and counts the vectors of rows once
    assert {one.sharding for one in item} == {"table_wise", "column_wise", "row_wise", "data_parallel"}
    theirs = embedding_problem(job.model_copy(update={"cost_model": "torchrec"}), model, topology).sharding.options[0]
    sizes = {one.sharding: one.memory[0] for one in theirs if one.kernel == "fused"}
    assert sizes["row_wise"] == pytest.approx(sizes["table_wise"] / 32, rel=1e-6) and "table_row_wise" not in sizes


def test_the_simulation_sends_rows_that_are_not_pooled_once(plan: RecommendationPlan) -> None:
    placed = {one.table: one.sharding for one in plan.decision.tables}
    assert (placed["item"], placed["action"]) == ("row_wise", "data_parallel")
    # each is sent once there, and its gradient back: half of them to ranks of the other building
    job, model, _ = load_recommendation_job(EXAMPLE)
    item = next(table for table in model.expanded() if table.name == "item")
    crossing = 2 * 0.25 * job.global_batch_samples * item.outputs_per_sample * item.dimension * 2
    simulated = simulate_recommendation(plan)
    trunk = next(link for link in simulated.links if "trunk" in link.name)
    assert trunk.carried_bytes == pytest.approx(crossing, rel=0.02)
    assert simulated.step_s == pytest.approx(plan.cost.step_s, rel=0.02)


def test_torchrec_gets_pooled_tables_and_others_apart(plan: RecommendationPlan, tmp_path: Path) -> None:
    # its EmbeddingBagCollection adds rows up; an EmbeddingCollection holds those that are each sent
    files = render(plan)
    for name, text in files.items():
        (tmp_path / Path(name).name).write_text(text)
    stubs = "torch torch.distributed torch.distributed._shard torch.distributed._shard.sharding_spec torchrec"
    stubs += " torchrec.distributed torchrec.distributed.planner torchrec.distributed.planner.types torchrec.distributed.types"
    made = {one: MagicMock(EmbeddingModuleShardingPlan=set, ShardingPlan=lambda plan: plan) for one in stubs.split()}
    with patch.dict(sys.modules, made):
        written = runpy.run_path(str(tmp_path / "sharding_plan.py"))
    assert written["sharding_plan"]("bags") == {"bags": {"country", "user"}}
    assert written["sharding_plan"]("rows", pooled=False) == {"rows": {"item", "action"}}
    assert "Rows of item, action are not pooled" in written["__doc__"]


def test_equal_ranks_are_not_below_their_mean(plan: RecommendationPlan) -> None:
    alike = [load.model_copy(update={"seconds": 0.1}) for load in plan.ranks[:3]]  # their mean rounds to more than 0.1
    assert sum(load.seconds for load in alike) / 3 > 0.1
    console = Console(width=120, record=True, file=StringIO())
    console.print(recommendation_sections(plan.model_copy(update={"ranks": tuple(alike)}), ["ranks"]))
    assert "busiest rank 0.0 % above the mean" in console.export_text()


def test_verification_recomputes_the_rules(plan: RecommendationPlan) -> None:
    lie = tuple(one.model_copy(update={"idle_fraction": 0.0}) for one in plan.samples)
    with pytest.raises(VerificationError, match="samples"):
        verify_recommendation(plan.model_copy(update={"samples": lie}))


def test_lengths_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("length\n100\n300\n")
    job, model, _ = load_recommendation_job(str(EXAMPLE), [f"lengths={tmp_path / 'lengths.csv'}"])
    assert model.sequence is not None and model.sequence.lengths == Lengths(kind="measured", values=(100, 300))
    item = next(table for table in model.expanded() if table.name == "item")
    assert item.reads_per_sample == 200 and job.lengths is None and is_recommendation(str(EXAMPLE))
    assert load_recommendation_job(job)[1] == model


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["lengths=null"], "state lengths in the job"),
        (["lengths.kind=uniform"], "has no mean_log"),
        (["workload=synthetic-tiny"], "no layer whose time grows"),
        (["sample_rules=[]"], "allows nothing"),
        (["workload.family=dlrm"], "sequence belongs to family sequence_rec"),
    ],
)
def test_jobs_that_are_wrong(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(*overrides)


def test_files_of_lengths_that_are_wrong(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    for text, message in (("len\n3\n", "csv:1: a column 'length'"), ("length\n3\nx\n", "csv:3: length 'x'")):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            load_recommendation_job(str(EXAMPLE), [f"lengths={file}"])
    with pytest.raises(InputError, match="no file 'gone\\.csv': a CSV with a column length"):
        load_recommendation_job(str(EXAMPLE), ["lengths=gone.csv"])
