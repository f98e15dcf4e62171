"""Recipes of 8- and 4-bit products: what they convert, keep and gather, and which settings a job may state."""

from __future__ import annotations

from typing import Any

import pytest
from machines import job
from pydantic import ValidationError

from scaleacross.cost_models.conversions import kept_weight_bytes, moved_bytes
from scaleacross.spec.conversion import Conversion, MovedBytes, Recipe
from scaleacross.spec.job import Job


def narrow_job(recipe: Recipe, *, narrow_parameters: bool = False, **conversion: Any) -> Job:
    precision = "nvfp4" if "nvfp4" in recipe else "fp8"
    stated = Conversion(recipe=recipe, narrow_parameters=narrow_parameters, **conversion)
    return job(precision=precision, conversion=stated)


@pytest.mark.parametrize(
    ("recipe", "read", "written"),
    [
        ("delayed", 2, 2),
        ("tensorwise", 4, 2),
        ("blockwise", 2, 2 + 2 * 4 / 128),
        ("mxfp8", 2, 2 + 2 / 32),
        ("nvfp4", 6, 1 + 2 / 16),
    ],
)
def test_an_operand_is_read_by_every_pass_and_written_in_both_layouts(
    recipe: Recipe, read: float, written: float
) -> None:
    moved = moved_bytes(narrow_job(recipe))
    assert moved.input_forward_bytes == moved.gradient_bytes == pytest.approx(read + written)
    assert moved.weight_forward_bytes == moved.input_backward_bytes == 0  # weights once per step, inputs once


def test_recipes_follow_the_precision() -> None:
    assert [job(precision=one).recipe for one in ("bf16", "fp8", "nvfp4")] == [None, "delayed", "nvfp4"]
    assert moved_bytes(job(precision="bf16")) == MovedBytes()
    own = MovedBytes(gradient_bytes=3.0)
    assert moved_bytes(narrow_job("mxfp8", moved=own)) == own
    with pytest.raises(ValidationError, match="recipe mxfp8 with precision nvfp4: set precision: fp8"):
        job(precision="nvfp4", conversion={"recipe": "mxfp8"})
    with pytest.raises(ValidationError, match="narrow_parameters with precision bf16"):
        job(conversion={"narrow_parameters": True})


@pytest.mark.parametrize(
    ("recipe", "gathered", "kept"),
    [("delayed", 1.0, 2.0), ("mxfp8", 2.0, 2 + 2 / 32), ("nvfp4", 0.5 + 1 / 16, 1 + 2 / 16)],
)
def test_narrow_parameters_take_the_place_of_wide_ones(recipe: Recipe, gathered: float, kept: float) -> None:
    beside, instead = (narrow_job(recipe, narrow_parameters=narrow) for narrow in (False, True))
    assert beside.gathered_bytes == 2.0
    assert instead.gathered_bytes == gathered
    assert kept_weight_bytes(beside) == pytest.approx(kept)
    assert kept_weight_bytes(instead) == pytest.approx(kept - 2.0)
    assert kept_weight_bytes(job(precision="bf16")) == kept_weight_bytes(narrow_job("torchao_mxfp8")) == 0


def test_torchao_converts_gathered_weights_unless_they_arrive_narrow() -> None:
    wide, narrow = (narrow_job("torchao_tensorwise", narrow_parameters=one) for one in (False, True))
    assert (moved_bytes(wide).weight_forward_bytes, moved_bytes(wide).weight_backward_bytes) == (5.0, 3.0)
    assert (moved_bytes(narrow).weight_forward_bytes, moved_bytes(narrow).weight_backward_bytes) == (0.0, 0.0)
