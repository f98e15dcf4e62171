"""A wrong type of an argument raises the package's own error, which says what to pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import scaleacross as sa
from instances import plain_job
from scaleacross.catalogue import load_job

ENDS, HALL, CHASSIS = ["step_time", "tokens_per_s_per_megawatt"], "one_building", "ndv2_two_chassis"
LOOSE: Any = sa
JOB = plain_job(2, degrees={"tp": 1, "cp": 1, "pp": 1}, schedules=["1F1B"])

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "plan of nothing": (lambda: sa.plan(None), "a name, a path or a mapping is expected, not a NoneType"),  # type: ignore[arg-type]
    "overrides": (lambda: sa.plan(JOB, overrides=3), "texts KEY=VALUE are expected"),  # type: ignore[arg-type]
    "an override": (lambda: sa.plan(JOB, overrides=[3]), "texts KEY=VALUE are expected"),  # type: ignore[list-item]
    "time limit": (lambda: sa.plan(JOB, time_limit_s="9"), "time_limit_s: a number is expected, not a str"),  # type: ignore[arg-type]
    "work limit": (lambda: sa.plan(JOB, work_limit="9"), "work_limit: a whole number"),  # type: ignore[arg-type]
    "half a work limit": (lambda: sa.plan(JOB, work_limit=2.5), "work_limit: a whole number"),  # type: ignore[arg-type]
    "gap": (lambda: sa.plan(JOB, gap_tolerance="1 %"), "gap_tolerance: a number"),  # type: ignore[arg-type]
    "gap above one": (lambda: sa.plan(JOB, gap_tolerance=2), "gap_tolerance: a number from 0 to 1 is expected, not 2"),
    "gap below zero": (lambda: sa.plan(JOB, gap_tolerance=-0.1), "gap_tolerance: a number from 0 to 1"),
    "negative time": (lambda: sa.plan(JOB, time_limit_s=-1), "time_limit_s: 0 or more is expected, not -1"),
    "time that is no number": (lambda: sa.plan(JOB, time_limit_s=float("nan")), "time_limit_s: 0 or more"),
    "no work": (lambda: sa.plan(JOB, work_limit=0), "work_limit: 1 or more is expected, not 0"),
    "seed below zero": (lambda: sa.plan(JOB, seed=-1), "seed: a number from 0 to"),
    "limit of nothing": (lambda: sa.plan(JOB, limits={"x": 1}), "limits: no objective 'x'; there are step_time"),  # type: ignore[dict-item]
    "limit of zero": (lambda: sa.plan(JOB, limits={"step_time": 0}), "limits: step_time 0: a finite number above 0"),
    "seed": (lambda: sa.plan(JOB, seed="a"), "seed: a whole number"),  # type: ignore[arg-type]
    "referee": (lambda: sa.plan(JOB, referee=True), "referee: a whole number is expected, not a bool"),
    "incumbents": (lambda: sa.plan(JOB, incumbents=[3]), "incumbents: a list of Decision"),  # type: ignore[list-item]
    "evaluate nothing": (lambda: sa.evaluate(None), "a plan, a name or a path is expected, not a NoneType"),  # type: ignore[arg-type]
    "evaluate a mapping": (lambda: sa.evaluate({}), "a plan, a name or a path is expected, not a dict"),  # type: ignore[arg-type]
    "evaluate a part": (lambda: sa.evaluate((JOB,)), "a pair of a job and a decision"),  # type: ignore[arg-type]
    "evaluate no decision": (lambda: sa.evaluate((JOB, 3)), r"a Decision \(plan.decision\) is expected"),  # type: ignore[arg-type]
    "explain nothing": (lambda: sa.explain(None), "a plan, a name or a path is expected"),  # type: ignore[arg-type]
    "simulate nothing": (lambda: sa.simulate(None), "a plan, a name or a path is expected"),  # type: ignore[arg-type]
    "one what-if": (lambda: sa.simulate("x", what_if="slow=zone:0.5"), "what_if: a list of texts"),
    "summarise nothing": (lambda: sa.summarise(None), "a Plan"),  # type: ignore[arg-type]
    "a collective by another name": (lambda: LOOSE.collective("allreduce", 1e6, HALL), "op: one of all_gather, reduce"),
    "a size in words": (
        lambda: LOOSE.collective("all_reduce", "1MB", HALL),
        "size_bytes: a number is expected, not a str",
    ),
    "half a rank": (lambda: LOOSE.collective("all_reduce", 1e6, HALL, num_ranks=2.5), "num_ranks: a whole number"),
    "half a stride": (
        lambda: LOOSE.collective("all_reduce", 1e6, HALL, num_ranks=4, stride=1.5),
        "stride: a whole number",
    ),
    "what is not synthesized": (
        lambda: LOOSE.synthesize("all_to_all", 1e6, graph=CHASSIS),
        "op: one of all_reduce, all_g",
    ),
    "half a chunk": (lambda: LOOSE.synthesize("all_gather", 1e6, graph=CHASSIS, num_chunks=1.5), "num_chunks: a whole"),
    "points of a front": (
        lambda: LOOSE.pareto(JOB, ENDS, points=2.5),
        "points: a whole number is expected, not a float",
    ),
    "processes of a study": (
        lambda: LOOSE.sweep({}, processes="2"),
        "processes: a whole number is expected, not a str",
    ),
    "ties that are no number": (
        lambda: sa.compare(JOB, tie_tolerance=float("nan")),
        "tie_tolerance: a number from 0 to 1",
    ),
    "diagnose nothing": (lambda: LOOSE.diagnose(None), "dumps: a directory of dumps, or a dump's file, is expected"),
    "diagnose by a path of a launch file": (
        lambda: LOOSE.diagnose("x", launch="launch.json"),
        r"launch: a LaunchConfig \(LaunchConfig.model_validate_json reads .* is expected, not a str",
    ),
    "a ratio in words": (lambda: LOOSE.diagnose("x", slow_ratio="2"), "slow_ratio: a number is expected"),
    "goodput of nothing": (lambda: LOOSE.measured_goodput(None), "log: the path of a log of scaleacross coordinate"),
    "goodput like a number": (lambda: LOOSE.measured_goodput("x", like=3), "like: the path|x: "),
    "verify no recommendation plan": (
        lambda: LOOSE.verify_recommendation(None),
        "plan: a RecommendationPlan or its path is expected, not a NoneType",
    ),
    "verify a plan that is not there": (lambda: LOOSE.verify_recommendation("none.json"), "none.json"),
    "emit nowhere": (lambda: LOOSE.emit("x", "torchrun", None), "directory: a path is expected, not a NoneType"),
}

SEARCHES: dict[str, Callable[..., Any]] = {
    "compare": lambda **limits: sa.compare(JOB, **limits),
    "pareto": lambda **limits: sa.pareto(JOB, ["step_time", "tokens_per_s_per_megawatt"], **limits),
    "explain": lambda **limits: sa.explain("x", **limits),
    "plan_recommendation": lambda **limits: sa.plan_recommendation("x", **limits),
    "compare_recommendation": lambda **limits: sa.compare_recommendation("x", **limits),
    "explain_recommendation": lambda **limits: sa.explain_recommendation("x", **limits),
    "plan_inference": lambda **limits: sa.plan_inference("x", **limits),
    "refine_schedule": lambda **limits: sa.refine_schedule("x", **limits),
    "synthesize": lambda **limits: sa.synthesize("all_gather", 1e6, **limits),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_no_search_begins_with_a_limit_that_is_none(search: Callable[..., Any]) -> None:
    """A limit of NaN is refused, because such a search would never end."""
    with pytest.raises(sa.InputError, match="time_limit_s: 0 or more is expected, not nan"):
        search(time_limit_s=float("nan"))


@pytest.mark.parametrize(("call", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_type_says_what_to_pass(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(sa.InputError, match=said):
        call()


def test_counts_of_tokens_take_the_words_of_the_options() -> None:
    """Counts of tokens accept the same words in all options.

    ``--tokens 1M`` was a count, but ``--set global_batch_tokens=1M`` was an error.
    """
    stated = JOB.model_dump(mode="json", exclude={"global_batch_sequences"}) | {"global_batch_tokens": 65536}
    changed = load_job(stated, ["sequence_length=8K", "global_batch_tokens=1M"])
    assert (changed.sequence_length, changed.global_batch_sequences) == (8192, 128)
    assert load_job({**stated, "sequence_length": "8k", "global_batch_tokens": "1,048,576"}) == changed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("sequence_length=0", "sequence_length: a whole number above 0 is expected, e.g. 8192; got 0"),
        ("sequence_length=8X", "sequence_length '8X': write a whole number of tokens, e.g. 8192, 8K or 4M"),
        ("global_batch_tokens=1.3K", "global_batch_tokens '1.3K': write a whole number of tokens, e.g. 8192, 8K or 4M"),
        ("global_batch_tokens=-4096", "global_batch_tokens: a whole number above 0 is expected, e.g. 8192; got -4096"),
    ],
)
def test_a_size_that_is_none_is_named_with_what_was_stated(changes: str, said: str) -> None:
    data = JOB.model_dump(mode="json", exclude={"global_batch_sequences"}) | {"global_batch_tokens": 65536}
    with pytest.raises(sa.InputError, match=said):
        sa.plan(data, overrides=[changes])  # type: ignore[arg-type]
