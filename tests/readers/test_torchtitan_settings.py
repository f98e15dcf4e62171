"""torchtitan settings as people write them: what they leave to torchtitan's defaults is what torchtitan does."""

from __future__ import annotations

import pytest

import scaleacross as sa
from scaleacross.readers.settings import Reading
from scaleacross.readers.torchtitan import read

TOML = """
[training]
local_batch_size = 16
seq_len = 4096
[parallelism]
pipeline_parallel_degree = 4
{more}
[activation_checkpoint]
mode = "none"
"""


def reading(*more: str, world: int = 16, layers: int = 32, training: str = "local_batch_size = 16") -> Reading:
    text = TOML.format(more="\n".join(more)).replace("local_batch_size = 16", training)
    return read(text, "x.toml", world, layers)


@pytest.mark.parametrize(
    ("more", "layers", "expected"),
    [
        ((), 32, ((8,), (9,), (8,), (7,))),  # 34 in 4 stages: 9, 9, 8, 8; one less first and last
        (('pipeline_parallel_schedule = "GPipe"',), 30, ((7,), (8,), (8,), (7,))),
        (("pipeline_parallel_first_stage_less_layers = 3",), 32, ((6,), (9,), (9,), (8,))),
        (('pipeline_parallel_schedule = "Interleaved1F1B"',), 32, ((4, 4), (5, 4), (4, 4), (4, 3))),
        (('pipeline_parallel_schedule = "ZBVZeroBubble"',), 32, ((4, 3), (5, 4), (4, 4), (4, 4))),
        (
            ('pipeline_parallel_schedule = "Interleaved1F1B"', "pipeline_parallel_layers_per_stage = 3"),
            32,
            ((2, 3, 3), (3, 3, 3), (3, 3, 2), (3, 3, 1)),
        ),
    ],
)
def test_stages_that_no_setting_lists_are_cut_as_torchtitan_does(
    more: tuple[str, ...], layers: int, expected: tuple[tuple[int, ...], ...]
) -> None:
    """generate_llm_fqn_per_model_part of 0.3.0; layers by hand."""
    assert reading(*more, layers=layers).decision.layers_per_stage == expected


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("pipeline_parallel_layers_per_stage = 3",), "1F1B does not run 12 parts on pp 4, 3 of them on each rank"),
        (("pipeline_parallel_layers_per_stage = 5",), "7 parts with 32 layers on pp 4"),
        (("pipeline_parallel_last_stage_less_layers = 30",), "15 for each and stops"),
        (('pipeline_parallel_schedule = "1f1b"',), "x.toml: pipeline_parallel_schedule '1f1b' is none of GPipe"),
    ],
)
def test_stages_that_torchtitan_would_not_cut_are_refused(more: tuple[str, ...], message: str) -> None:
    with pytest.raises(sa.InputError, match=message):
        reading(*more)


def test_a_pipeline_that_runs_several_times_a_step_is_refused() -> None:
    """Gradient accumulation around a pipeline fills and drains it each time (trainer.py)."""
    assert reading(training="local_batch_size = 16\nglobal_batch_size = 64").job["global_batch_sequences"] == 64
    with pytest.raises(sa.InputError, match=r"local_batch_size 16 on 4 replicas .* 128 .* state local_batch_size 32"):
        reading(training="local_batch_size = 16\nglobal_batch_size = 128")


def test_the_local_batch_is_eight_sequences_where_none_is_stated() -> None:
    found = reading(world=64, training="")
    assert found.job["global_batch_sequences"] == 8 * 16
