"""Heterogeneous chunks: their effect on the step time agrees with the simulation."""

from __future__ import annotations

import pytest

import scaleacross as sa
from scaleacross.spec.parallelism import PipelineChoice
from scaleacross.spec.plan import Decision, Plan


def evaluated(num_chunks: int) -> Plan:
    """Row 1 of Llama 3 with ``num_chunks`` chunks per rank."""
    plan = sa.evaluate("llama3_table4_row1")
    pipeline = PipelineChoice(schedule="Interleaved1F1B", num_chunks=num_chunks, micro_batch_sequences=1)
    return sa.evaluate((plan.job, Decision.model_validate({**plan.decision.model_dump(), "pipeline": pipeline})))


@pytest.mark.parametrize("num_chunks", [4, 7, 8])
def test_estimate_agrees_with_the_simulation(num_chunks: int) -> None:
    """The estimate agrees with the simulation for 126 layers on 64, 112 and 128 virtual stages.

    With equal chunks the estimate for seven chunks would be 10 % too low.
    """
    plan = evaluated(num_chunks)
    assert abs(sa.simulate(plan).difference) < 0.04
