"""The model as a job's framework runs it."""

from __future__ import annotations

import pytest

from scaleacross import catalogue
from scaleacross.errors import InputError
from scaleacross.workloads.problem import profile_of
from scaleacross.workloads.variants import with_eager_operators

EAGER = catalogue.load_job("llama3_405b_two_buildings").model_copy(update={"eager_operators": True})


def test_a_job_may_run_operators_one_by_one() -> None:
    llama = catalogue.load_workload("llama3.1-405b")
    assert profile_of(EAGER, llama) == with_eager_operators(llama.profile())
    assert profile_of(EAGER.model_copy(update={"eager_operators": False}), llama) == llama.profile()


def test_operators_of_other_blocks_are_not_known_one_by_one() -> None:
    with pytest.raises(InputError, match="has layernorm and a plain MLP"):
        profile_of(EAGER, catalogue.load_workload("gpt3-175b"))
