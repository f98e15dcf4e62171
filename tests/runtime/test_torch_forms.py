"""Every form in which torch's own process groups may be called, and types of tensors that are rare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_pool import RankPool, join_job

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import form_cases as cases
import torch

from scaleacross.runtime.arguments import FORMS
from scaleacross.runtime.reduction import COMBINE, INTEGERS, NARROW, WIDE, can_reduce, sum_dtype

SIZE = 3


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(SIZE)
    ranks.run(join_job)
    yield ranks
    ranks.close()


def test_methods_without_an_options_object(pool: RankPool) -> None:
    assert pool.run(cases.short_forms, SIZE) == [[]] * SIZE


def test_a_limit_holds_over_send_and_receive(pool: RankPool) -> None:
    assert 0.9 < pool.run(cases.a_limit_over_send_and_receive, SIZE)[0] < 20


def test_sparse_tensors_and_sparse_gradients(pool: RankPool) -> None:
    for wrong, wrong_gradient in pool.run(cases.sparse_gradients, SIZE):
        assert wrong == 0.0
        assert wrong_gradient < 1e-6


def test_eight_bit_floats(pool: RankPool) -> None:
    assert pool.run(cases.eight_bit_floats, SIZE) == [[6.0, 3.0, 1.0, 6.0] * 4] * SIZE


def test_a_type_that_fails_leaves_the_group_whole(pool: RankPool) -> None:
    for kind, value in pool.run(cases.a_type_that_nobody_reduces, SIZE):
        assert kind
        assert value == SIZE


def test_coalesced_calls_do_not_wait_for_each_other(pool: RankPool, tmp_path: Path) -> None:
    for early, values in pool.run(cases.coalesced_before_the_others, SIZE, str(tmp_path)):
        assert early
        assert values == [0.0, float(SIZE), 2.0 * SIZE]


@pytest.mark.parametrize("dtype", sorted(WIDE | NARROW | INTEGERS | {torch.bool, torch.complex64}, key=str), ids=str)
def test_what_is_declared_can_be_reduced(dtype: torch.dtype) -> None:
    for reduction in COMBINE:
        if can_reduce(dtype, reduction):
            held, arriving = torch.ones(4).to(sum_dtype(dtype)), torch.ones(4).to(dtype)
            COMBINE[reduction](held, arriving, held)
            assert (
                held.to(dtype).float().tolist()
                == [2.0 if reduction in ("sum", "avg") else float(reduction != "bxor")] * 4
            )


def test_arguments_that_torch_does_not_know() -> None:
    form = FORMS["broadcast"]
    with pytest.raises(TypeError, match="tensors or tensor is missing"):
        form.bind((), {"root": 1})
    with pytest.raises(TypeError, match="unknown argument op"):
        form.bind((torch.ones(1),), {"op": 1})
    with pytest.raises(TypeError, match="1 arguments more than torch takes"):
        form.bind((torch.ones(1), 0, None, 3), {})
