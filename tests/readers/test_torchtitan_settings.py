"""torchtitan settings as users write them: omitted settings take torchtitan's defaults."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

import scaleacross as sa
from scaleacross.api.reading import evaluate_settings
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
    """Stages that no setting lists are those of torchtitan, with layers counted by hand.

    Its function is generate_llm_fqn_per_model_part of 0.3.0.
    """
    assert reading(*more, layers=layers).decision.layers_per_stage == expected


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("pipeline_parallel_layers_per_stage = 3",), "1F1B does not run 12 stages on pp 4, 3 of them on each rank"),
        (("pipeline_parallel_layers_per_stage = 5",), "7 stages do not divide by pp 4: state 4 of them, or a multiple"),
        (
            ('module_fqns_per_model_part = [["layers.0"], [], [], ["layers.1"]]',),
            "4 stages hold 2 layers; the job's model has 32",
        ),
        (("pipeline_parallel_last_stage_less_layers = 30",), "15 for each and stops"),
        (('pipeline_parallel_schedule = "1f1b"',), "x.toml: pipeline_parallel_schedule '1f1b' is none of GPipe"),
    ],
)
def test_stages_that_torchtitan_would_not_cut_are_refused(more: tuple[str, ...], message: str) -> None:
    with pytest.raises(sa.InputError, match=message):
        reading(*more)


def test_a_pipeline_that_runs_several_times_a_step_is_refused() -> None:
    """A pipeline that runs several times per step is refused.

    Gradient accumulation around a pipeline repeats its warm-up and drain (trainer.py).
    """
    assert reading(training="local_batch_size = 16\nglobal_batch_size = 64").job["global_batch_sequences"] == 64
    with pytest.raises(sa.InputError, match=r"local_batch_size 16 on 4 replicas .* 128 .* state local_batch_size 32"):
        reading(training="local_batch_size = 16\nglobal_batch_size = 128")


def test_the_local_batch_is_eight_sequences_where_none_is_stated() -> None:
    found = reading(world=64, training="")
    assert found.job["global_batch_sequences"] == 8 * 16


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (('pipeline_parallel_schedule_csv = "x.csv"',), "an order of another file is not read"),
        (('context_parallel_rotate_method = "alltoall"',), "state allgather"),
        (("enable_async_tensor_parallel = true",), "leave it out"),
        (('fsdp_reshard_after_forward = "always"',), "'always' in a pipeline gathers weights in every micro-batch"),
        (('pipeline_parallel_split_points = ["layers.4"]',), "state module_fqns_per_model_part"),
        (('tensor_parallel_degree = "2"',), "parallelism.tensor_parallel_degree = '2': a whole number"),
        (("[optimizer]", 'name = "SGD"'), "optimizer.name = 'SGD': Adam and AdamW are modelled"),
    ],
)
def test_settings_that_no_plan_can_say_are_refused_by_name(more: tuple[str, ...], message: str) -> None:
    with pytest.raises(sa.InputError, match=message):
        reading(*more)


@pytest.mark.parametrize(
    "stated", ["enable_cpu_offload = true", 'dtype = "bfloat16"', 'mixed_precision_param = "float32"']
)
def test_bytes_that_are_not_modelled_are_refused(stated: str) -> None:
    with pytest.raises(sa.InputError, match=f"training.{stated.split()[0]} = .* modelled"):
        reading(training=f"local_batch_size = 16\n{stated}")


def test_other_settings_are_named_in_notes_and_harmless_ones_are_not() -> None:
    assert reading("[metrics]", "log_freq = 1").notes == ()
    assert reading("tensor_paralel_degree = 2", "[compile]", "mode = 1").notes == (
        "settings that were not read, and may change time or memory: parallelism.tensor_paralel_degree, compile.mode",
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tensor_parallel_degree = 0", "parallelism.tensor_parallel_degree = 0: a whole number ≥ 1 is needed"),
        ("context_parallel_degree = -2", "= -2: a whole number ≥ 1 is needed"),
        ("data_parallel_shard_degree = 0", "= 0: a whole number ≥ 1, or -1 for all that is left, is needed"),
        ("pipeline_parallel_first_stage_less_layers = -1", "= -1: a whole number ≥ 0 is needed"),
    ],
)
def test_numbers_that_count_nothing_are_refused(line: str, message: str) -> None:
    with pytest.raises(sa.InputError, match=message):
        reading(line)
    assert reading("data_parallel_shard_degree = -1").decision.degrees.dp == 4
    with pytest.raises(sa.InputError, match=r"training.local_batch_size = -1: a whole number ≥ 1 is needed"):
        reading(training="local_batch_size = -1")


def test_the_compiler_of_an_older_file_is_read() -> None:
    assert reading("[compile]", "enable = true").job["kept.compiled"] == ["model", "loss"]
    assert reading("[compile]", "enable = true", 'components = ["loss"]').job["kept.compiled"] == ["loss"]
    assert reading("[compile]", "enable = false").job["kept.compiled"] == reading().job["kept.compiled"] == []


def test_settings_of_16_bit_are_estimated_so_whatever_the_job_says() -> None:
    assert reading().job["precision"] == "bf16"


def test_bytes_are_torchtitans_whatever_the_job_says(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        TOML.format(more="").replace("pipeline_parallel_degree = 4", "").replace("= 16", "= 1")
    )
    (tmp_path / "job.yaml").write_text(
        "name: j\nworkload: llama3.1-8b\ntopology: one_building\nsequence_length: 4096\nglobal_batch_sequences: 64\n"
        "optimizer: {gradient_bytes: 2, reduce_bytes: 2, name: sgd, state_bytes: 8}\n"
    )
    found = evaluate_settings("torchtitan", tmp_path / "x.toml", tmp_path / "job.yaml", world=64).job.optimizer
    assert (found.name, found.parameter_bytes, found.gradient_bytes, found.state_bytes) == ("adam", 2, 4, 12)
    assert found.reduce_bytes == 4


def test_the_flavor_is_the_jobs_model(tmp_path: Path) -> None:
    text = TOML.format(more="").replace("pipeline_parallel_degree = 4", "").replace("= 16", "= 1")
    for flavor, message in (("8B", ""), ("70B", "num_layers 80 is another model than the job's 'llama3.1-8b' with 32")):
        (tmp_path / "x.toml").write_text(f'[model]\nname = "llama3"\nflavor = "{flavor}"\n{text}')
        with pytest.raises(sa.InputError, match=message) if message else nullcontext():
            evaluate_settings("torchtitan", tmp_path / "x.toml", "llama3_8b_one_building", world=64)
    assert reading("[model]", 'name = "llama3"', 'flavor = "mine"').notes == (
        "the flavor llama3 mine is not known, and was not compared with the job's model",
    )


MODULE = """
from torchtitan.models.qwen3 import model_registry
def train():
    return Trainer.Config(model_spec=model_registry("8B"), activation_checkpoint=None,
        training=TrainingConfig(seq_len=4096, local_batch_size=1{training}), parallelism=ParallelismConfig({parallel}))
"""


def test_a_module_says_its_flavor_and_no_value_that_only_a_run_could_tell() -> None:
    found = read(MODULE.format(training="", parallel=""), "x.py", 8, 36)
    assert found.model == {"num_layers": 36, "hidden_size": 4096, "vocabulary_size": 151_936}
    for training, parallel, message in (
        ("", "**DEGREES", "keywords of another place"),
        ("", "fsdp_reshard_after_forward=POLICY", "parallelism.fsdp_reshard_after_forward is no literal"),
        (", global_batch_size=N", "", "training.global_batch_size is no literal"),
        (", enable_cpu_offload=True", "", "on the host are not modelled"),
    ):
        with pytest.raises(sa.InputError, match=message):
            read(MODULE.format(training=training, parallel=parallel), "x.py", 8, 36)
    backend = MODULE.replace('"8B")', '"8B", attn_backend="sdpa", moe_comm_backend="{backend}")')
    known = read(backend.format(training="", parallel="", backend="standard"), "x.py", 8, 36)
    assert known.notes == ("settings that were not read, and may change time or memory: model.attn_backend",)
    with pytest.raises(sa.InputError, match=r"model.moe_comm_backend = 'deepep': .* state standard"):
        read(backend.format(training="", parallel="", backend="deepep"), "x.py", 8, 36)
    with pytest.raises(sa.InputError, match="Float8LinearConverter of 'tensorwise' is not modelled"):
        converter = '\nX = Float8LinearConverter.Config(recipe_name="tensorwise")'
        read(MODULE.format(training="", parallel="") + converter, "x.py", 8, 36)


@pytest.mark.parametrize(
    ("loss", "chunks"),
    [
        ("", None),
        (", loss=CrossEntropyLoss.Config()", 1),
        (", loss=ChunkedLossWrapper.Config(num_chunks=4, loss_fn=CrossEntropyLoss.Config())", 4),
        (", loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config())", 8),
    ],
)
def test_the_pieces_of_the_loss_are_the_modules(loss: str, chunks: int | None) -> None:
    """Pieces of the loss follow from the module.

    Its memory is that of all logits, or of one piece. The job may state otherwise.
    """
    text = MODULE.replace("activation_checkpoint=None", f"activation_checkpoint=None{loss}")
    assert read(text.format(training="", parallel=""), "x.py", 8, 36).job.get("kept.loss_chunks") == chunks


@pytest.mark.parametrize(
    ("stated", "compiled"),
    [
        ("", []),  # the compiler is off
        ("CompileConfig()", []),
        ("CompileConfig(enable=True)", ["model", "loss"]),  # torchtitan's default
        ("CompileConfig(enable=True, components=['loss'])", ["loss"]),
        ("Float8LinearConverter.Config(), CompileConfig(enable=True, components=['model'])", []),
    ],
)
def test_what_is_compiled_is_the_modules(stated: str, compiled: list[str]) -> None:
    found = read(MODULE.format(training="", parallel="") + f"\nX = {stated or None}", "x.py", 8, 36)
    assert found.job.get("kept.compiled") == compiled
    assert found.notes == ()


def test_another_component_of_the_compiler_is_refused() -> None:
    with pytest.raises(sa.InputError, match="a list of 'model' and 'loss' is needed"):
        read(
            MODULE.format(training="", parallel="") + "\nX = CompileConfig(enable=True, components=['x'])",
            "x.py",
            8,
            36,
        )


def test_compiled_converters_may_not_hide_other_settings_of_the_compiler() -> None:
    more = "\nX = Float8LinearConverter.Config(), CompileConfig(enable=True, enable_async_tensor_parallel=True)"
    notes = read(MODULE.format(training="", parallel="") + more, "x.py", 8, 36).notes
    assert notes == (
        "settings that were not read, and may change time or memory: compile.enable_async_tensor_parallel",
    )


@pytest.mark.parametrize(
    ("stated", "parallel", "expected"),
    [
        ("", "", "selective"),  # torchtitan's default
        (", activation_checkpoint=SelectiveAC.Config()", "", "selective"),
        ("", "tensor_parallel_degree=2, spmd_backend='partial_dtensor'", "selective"),
        ("", "tensor_parallel_degree=2", "selective"),
        (
            "",
            "tensor_parallel_degree=2, spmd_backend='full_dtensor'",
            "'full_dtensor': which .* state spmd_backend",
        ),
        ("", "spmd_backend=BACKEND", "parallelism.spmd_backend is no literal"),
        (", activation_checkpoint=FullAC.Config()", "tensor_parallel_degree=2", "full"),
        (
            ", activation_checkpoint=SelectiveAC.Config(force_recompute_mm_shapes_by_fqns=['wo'])",
            "",
            "force_recompute_mm_shapes_by_fqns .'wo'. is not modelled",
        ),
    ],
)
def test_activation_checkpointing_by_operator_is_read(stated: str, parallel: str, expected: str) -> None:
    text = MODULE.replace(", activation_checkpoint=None", stated).format(training="", parallel=parallel)
    if " " not in expected:
        assert read(text, "x.py", 8, 36).decision.recompute == expected
        return
    with pytest.raises(sa.InputError, match=expected):
        read(text, "x.py", 8, 36)


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ("", "spmd_types"),  # torchtitan's default
        ("spmd_backend='spmd_types'", "spmd_types"),
        ("spmd_backend='partial_dtensor'", "partial_dtensor"),
        ("spmd_backend='full_dtensor'", None),  # nothing is recomputed, nothing is stated
    ],
)
def test_the_backend_that_runs_is_read(parallel: str, expected: str | None) -> None:
    assert read(MODULE.format(training="", parallel=parallel), "x.py", 8, 36).job.get("kept.spmd_backend") == expected


REGISTRY = """
def large():
    return Trainer.Config(
        model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=3), {more}
    )
"""
"""A configuration as in torchtitan's registries: without ParallelismConfig, which has its defaults then."""


def test_a_configuration_without_parallelism_has_torchtitans_defaults() -> None:
    found = read(REGISTRY.format(more=""), "x.py", 8, 32)
    assert (found.decision.degrees.dp_shard, found.decision.degrees.tp) == (8, 1)
    assert (found.job["sequence_length"], found.job["global_batch_sequences"]) == (8192, 16)


def test_what_a_function_assigns_to_a_configuration_holds() -> None:
    more = "\ndef mine():\n    config = large()\n    config.optimizer.lr = LR\n    config.training.seq_len = 4096\n"
    more += "    config.parallelism.tensor_parallel_degree = 2\n"
    found = read(REGISTRY.format(more="activation_checkpoint=FullAC.Config()") + more, "x.py", 8, 32)
    assert (found.job["sequence_length"], found.decision.degrees.tp) == (4096, 2)
    with pytest.raises(sa.InputError, match=r"training\.seq_len is no literal"):
        read(REGISTRY.format(more="") + more.replace("4096", "LENGTH"), "x.py", 8, 32)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("config.activation_checkpoint = FullAC.Config()", "write it in the call of Trainer.Config"),
        ("config.model_spec = model_registry('8B', converters=[])", "write it in the call of Trainer.Config"),
        ("config.compile.enable = True", "write it where compile is made"),
        ("config.training.local_batch_size *= 2", "write the value itself"),
    ],
)
def test_parts_that_are_replaced_later_are_refused(line: str, message: str) -> None:
    with pytest.raises(sa.InputError, match=f"line 8: config.*: {message}"):
        read(f"{REGISTRY.format(more='')}def mine():\n    config = large()\n    {line}\n", "x.py", 8, 32)


def test_two_configurations_that_assign_one_value_are_refused() -> None:
    """Two configurations that set one value are refused.

    Earlier the last one in the file won, although either could be meant.
    """
    more = "".join(
        f"def {one}():\n    config = large()\n    config.training.seq_len = {length}\n"
        for one, length in (("short", 4096), ("long", 16384))
    )
    with pytest.raises(
        sa.InputError, match=r"line 11: config\.training\.seq_len = 16384: line 8 says it, too: give a file"
    ):
        read(REGISTRY.format(more="") + more, "x.py", 8, 32)


def test_several_configurations_are_named_with_the_way_out() -> None:
    two = REGISTRY.format(more="") + REGISTRY.format(more="").replace("large", "small")
    with pytest.raises(
        sa.InputError, match="2 calls of TrainingConfig in large, small; one is needed: give a file with"
    ):
        read(two, "x.py", 8, 32)
    later = REGISTRY.format(more="").replace("seq_len", "max_context_length")
    with pytest.raises(sa.InputError, match="max_context_length of later releases is not read"):
        read(later, "x.py", 8, 32)
