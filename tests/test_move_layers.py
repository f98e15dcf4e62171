"""Layers moved between chunks: what a plan gains where chunks as equal as possible are not the fastest."""

from __future__ import annotations

import pytest

import scaleacross as sa
from scaleacross.catalogue import load_job
from scaleacross.catalogue.quick_start import quick_topology
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan

PUBLISHED = ((2,) * 5,) * 3 + ((2, 2, 2, 2, 3),) + ((2,) * 5,) * 3 + ((2, 2, 2, 2, 1),)
"""Layers of ``Et*2|(t*2|)*34,t*3|(t*2|)*3,tL``, NVIDIA's layout of Llama 3 70B on 64 H100."""


def job(**fields: object) -> Job:
    pinned = {
        "degrees": {"tp": 4, "pp": 8},
        "num_chunks": [5],
        "schedules": ["Interleaved1F1B"],
        "recompute": "selective",
    }
    standard = {
        "topology": quick_topology("h100:64", None, None),
        "global_batch_tokens": 2**20,
        "sequence_length": 8192,
    }
    return load_job({"name": "70b", "workload": "llama3.1-70b", **standard, **pinned, **fields})


@pytest.fixture(scope="module")
def moved() -> Plan:
    return sa.plan(job(), alternatives=False)


def test_a_plan_is_no_slower_than_the_published_layout(moved: Plan) -> None:
    published = moved.decision.model_copy(update={"layers_per_stage": PUBLISHED})
    assert moved.estimated.step_s <= sa.evaluate((moved.job, published)).estimated.step_s
    assert moved.decision.layers_per_stage not in (None, PUBLISHED)
    sa.verify(moved)


def test_the_note_says_what_the_proof_is_about(moved: Plan) -> None:
    equal = sa.plan(job(stages="equal"), alternatives=False)
    assert moved.estimated.step_s < equal.estimated.step_s
    assert equal.decision.layers_per_stage is None and not any("chunks" in note for note in equal.report.notes)
    note = next(note for note in moved.report.notes if "as equal as possible" in note)
    proved_s = float(note.split(", ")[1].split(" s;")[0])
    assert moved.estimated.step_s < proved_s <= equal.estimated.step_s * (1 + 1e-3)


def test_who_leaves_a_gap_keeps_the_chunks_of_the_search() -> None:
    found = sa.plan(job(), alternatives=False, gap_tolerance=0.001)
    assert found.report.bound_s <= found.estimated.step_s
    assert not any("moved" in note for note in found.report.notes)
