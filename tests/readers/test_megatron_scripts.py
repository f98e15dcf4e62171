"""Launch scripts as users write them: the arguments that Megatron-LM gets from them."""

from __future__ import annotations

from pathlib import Path

import pytest

import scaleacross as sa
from scaleacross.api.reading import evaluate_settings
from scaleacross.readers.megatron import read
from scaleacross.readers.megatron_arguments import arguments
from scaleacross.readers.shell import read_script

JOB = "llama3_8b_one_building"
BATCH = "--micro-batch-size 1 --global-batch-size 128 --seq-length 4096 --bf16"
TWO_ARRAYS = f"""#!/bin/bash
TRAINING_ARGS=(
  --num-layers 32  # (all of them)
  --hidden-size 4096 \\
  {BATCH} --use-distributed-optimizer
)
UNUSED=(--tensor-model-parallel-size 8)
MODEL_PARALLEL_ARGS=(
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 4
  --pipeline-model-parallel-layout "Et*8|(t*8|)*2,t*8L"
  --sequence-parallel
)
"""
LAUNCH = "torchrun --nproc-per-node 8 pretrain_gpt.py ${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]}\n"


def test_every_array_that_the_command_expands_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(TWO_ARRAYS + LAUNCH)
    found = evaluate_settings("megatron", tmp_path / "run.sh", JOB, world=16)
    degrees = found.degrees
    assert (degrees.tp, degrees.pp, degrees.dp_shard) == (2, 4, 2)
    assert found.layers_per_stage == ((8,), (8,), (8,), (8,))


def test_all_arrays_are_read_where_no_command_is_visible() -> None:
    text = TWO_ARRAYS.replace("UNUSED=(--tensor-model-parallel-size 8)", "MORE+=(--overlap-grad-reduce)")
    found = arguments(text, "x").found
    assert found["--num-layers"] == ["32"]
    assert found["--tensor-model-parallel-size"] == ["2"]
    assert found["--overlap-grad-reduce"] == []


def test_contradicting_repeats_are_refused_and_equal_ones_are_not() -> None:
    with pytest.raises(sa.InputError, match=r"--tensor-model-parallel-size is stated twice, with 8 and 2: leave"):
        arguments(TWO_ARRAYS, "x")
    with pytest.raises(sa.InputError, match=r"--micro-batch-size is stated twice, with 1 and 2"):
        arguments(f"torchrun p.py --num-layers 4 {BATCH} --micro-batch-size 2", "x")
    assert arguments(f"torchrun p.py --num-layers 4 {BATCH} --num-layers 4 --seed 1 --seed 2", "x").found["--seed"] == [
        "2"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "A=(--bf16)\nB=(--num-layers 4)\nB+=(\"${A[@]}\")\npython -u pretrain_gpt.py ${B[@]}",
        "LAYERS=4\nexport ARGS=\"--num-layers $LAYERS \\\n --bf16\"\ntorchrun pretrain_gpt.py $ARGS",
        "B=(--num-layers=4)\nB+=(--bf16)\nsrun bash -c \"torchrun pretrain_gpt.py ${B[*]}\"",
        "B=(\"--num-layers 4\" --bf16)\nrun() {\n  local X=1\n  torchrun pretrain_gpt.py ${B[@]}\n}\nrun\n",
        "cat > note <<EOF\nit's --num-layers 8\nEOF\ntorchrun pretrain_gpt.py --num-layers 4 --bf16",
        "--num-layers 4\n--bf16\n",
        "OPTIONS=' --num-layers 4 --bf16'\nCMD=\"python pretrain_gpt.py ${OPTIONS}\"\nsrun sh -c \"${CMD}\"",
    ],
)  # fmt: skip
def test_arrays_and_strings_are_followed_as_bash_does(text: str) -> None:
    assert arguments(text, "x").found == {"--num-layers": ["4"], "--bf16": []}


def test_what_a_condition_fills_is_named_and_branches_must_agree() -> None:
    text = 'A=(--num-layers 4)\nif [ $1 ]; then\n  A+=(--bf16)\nfi\ntorchrun p.py ${A[@]} "$@"'
    assert arguments(text, "x").notes == (
        "the script states these under a condition, which is taken to hold: --bf16",
        "words that only the shell knows were not read: $@",
    )
    either = "if [ $1 ]; then\n  A=(--num-layers 4)\nelse\n  A=(--num-layers 8)\nfi\ntorchrun p.py ${A[@]}"
    with pytest.raises(sa.InputError, match="--num-layers is stated twice, with 4 and 8"):
        arguments(either, "x")
    with pytest.raises(sa.InputError, match=r"--num-layers \$N needs a shell"):
        arguments("if [ $1 ]; then\n  N=4\nelse\n  N=8\nfi\ntorchrun p.py --num-layers $N", "x")


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ('[ "$FP8" = 1 ] && MORE+=(--fp8-format hybrid)', "--fp8-format"),
        ('[ "$FP8" = 1 ] &&\n  MORE+=(--fp8-format hybrid)', "--fp8-format"),
        ('[ -n "$WIDE" ] || MORE+=(--grad-reduce-in-bf16)', "--grad-reduce-in-bf16"),
        ('if [ $TP -gt 1 ]; then ALL="$ALL --sequence-parallel"; fi', "--sequence-parallel"),
        ('if [ $TP -gt 1 ]; then ALL+=" --sequence-parallel"; fi', "--sequence-parallel"),
        ('[[ $TP == 1 ]] || NONE="--sequence-parallel"', "--sequence-parallel"),
    ],
)
def test_what_one_line_adds_under_a_condition_is_named(asked: str, option: str) -> None:
    text = f'NONE=""\nALL="--num-layers 32 {BATCH}"\nMORE=(--seed 1)\n{asked}\n'
    text += 'cd /opt && torchrun p.py $ALL $NONE "${MORE[@]}" || exit'
    read_it = arguments(text, "x")
    assert option in read_it.found
    assert read_it.notes == (f"the script states these under a condition, which is taken to hold: {option}",)
    assert arguments(text.replace(asked, ""), "x").notes == ()


@pytest.mark.parametrize("more", ["", 'SIZE+=" --bf16"', 'SIZE="$SIZE --bf16"'])
def test_a_string_of_several_branches_is_not_told(more: str) -> None:
    text = f'if [ $B ]; then SIZE="--num-layers 4"; else SIZE="--num-layers 8"; fi\n{more}\ntorchrun p.py --seq-length 1 $SIZE'
    with pytest.raises(sa.InputError, match=r"\$SIZE needs a shell"):
        arguments(text + " --tensor-model-parallel-size 1 $SIZE", "x")
    number = "N=1\n[ $BIG ] && N=16\ntorchrun p.py --num-layers $N"
    with pytest.raises(sa.InputError, match=r"--num-layers \$N needs a shell"):
        arguments(number, "x")


def test_values_of_options_that_are_not_read_may_need_a_shell() -> None:
    text = 'torchrun p.py --num-layers 4 --data-path ${DATA} --save "$(date +%s)/x" --lr `cat lr`'
    assert arguments(text, "x").found["--num-layers"] == ["4"]
    with pytest.raises(sa.InputError, match=r"--num-layers .* needs a shell"):
        arguments("torchrun p.py --num-layers $(nproc)", "x")


@pytest.mark.parametrize("text", ["A=(--num-layers 4", 'A="x', "echo ${X", "echo $(date"])
def test_what_is_left_open_is_named_with_its_line(text: str) -> None:
    with pytest.raises(sa.InputError, match="x: line 2: No closing quotation or bracket"):
        read_script(f"\n{text}\n", "x")


def test_scripts_that_no_reader_can_follow_end() -> None:
    with pytest.raises(sa.InputError, match="brackets"):
        read_script("A=" + "(" * 100_000, "x")
    with pytest.raises(sa.InputError, match="variable A grows beyond"):
        read_script('A="12345678"\n' + 'A="$A$A"\n' * 60, "x")


def plain(more: str, tp: int = 1) -> str:
    return f"--num-layers 32 --tensor-model-parallel-size {tp} --use-distributed-optimizer {BATCH} {more}"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--mtp-num-layers 2", "no or one prediction layer is modelled"),
        ("--mtp-num-layers -1", "no or one prediction layer is modelled"),
        ("--moe-expert-capacity-factor 1.25", "drop or pad tokens are not modelled; leave it out"),
        ("--transformer-impl local", "layers of Transformer Engine are modelled"),
        ("--attention-backend unfused", "state flash, fused or auto"),
        ("--outer-dp-sharding-strategy optim", "state no_shard"),
        ("--exp-avg-dtype bf16", "acts with --use-precision-aware-optimizer only"),
        ("--use-precision-aware-optimizer --exp-avg-dtype int4", "one of fp32, fp16, bf16, fp8"),
        ("--use-precision-aware-optimizer --optimizer sgd", "--optimizer adam only"),
        ("--moe-layer-recompute --recompute-granularity full", "leave one of them out"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "not stable; state native"),
        ("--step-batch-size-schedule 0:16,3000:32", "batches that change with the samples seen"),
        ("--yaml-cfg x.yaml", "arguments of another file are not read"),
        ("--fp8 hybrid", "state --fp8-format hybrid or e4m3"),
    ],
)
def test_options_that_change_memory_or_work_are_refused_by_name(more: str, message: str) -> None:
    with pytest.raises(sa.InputError, match=f"x: {more.split()[0]}.*{message}|x: {more.split()[-2]}.*{message}"):
        read(plain(more), "x", 16, 32)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--overlap-param-gather", "--overlap-param-gather without --overlap-grad-reduce, and Megatron-LM stops"),
        ("--fp4-param-gather", "--fp4-param-gather without --fp4-format"),
        ("--recompute-granularity full", "without --recompute-method and --recompute-num-layers"),
        ("--recompute-granularity full --recompute-method uniform", "recomputation without --recompute-num-layers"),
        (
            "--recompute-granularity selective --recompute-method uniform",
            "selective recomputation with --recompute-method",
        ),
        ("--recompute-activations --recompute-num-layers 1", "selective recomputation with --recompute-method or"),
        ("--fp16", "--bf16 and --fp16: Megatron-LM takes one of them"),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy full",
            "sharding-strategy full: one of no_shard, optim, ",
        ),
    ],
)
def test_options_at_which_megatron_stops_are_refused(more: str, message: str) -> None:
    with pytest.raises(sa.InputError, match=message):
        read(plain(more), "x", 16, 32)


@pytest.mark.parametrize(("more", "checked"), [("", False), ("--loss-scale 1024", True)])
def test_gradients_of_fp16_are_checked_under_a_fixed_loss_scale_alone(more: str, checked: bool) -> None:
    job = read(plain(more).replace("--bf16", "--fp16"), "x", 16, 32).job
    assert job["optimizer.checked_gradients"] is checked
    same = sa.load_job(JOB).model_copy(update={"target": "megatron", "precision": "fp16"})
    assert (same.checks_gradients, same.model_copy(update={"precision": "bf16"}).checks_gradients) == (False, True)


def test_tp_without_sequence_parallelism_is_refused() -> None:
    with pytest.raises(sa.InputError, match="tp 2 without --sequence-parallel"):
        read(plain("", tp=2), "x", 16, 32)
    assert read(plain("--sequence-parallel", tp=2), "x", 16, 32).decision.degrees.tp == 2


@pytest.mark.parametrize(("tp", "sequences"), [(1, 16), (2, 8)])
def test_the_global_batch_is_one_micro_batch_per_replica_where_none_is_stated(tp: int, sequences: int) -> None:
    text = plain("--sequence-parallel", tp).replace("--global-batch-size 128 ", "")
    assert read(text, "x", 16, 32).job["global_batch_sequences"] == sequences


def test_values_that_are_what_is_modelled_are_not_refused() -> None:
    more = "--mtp-num-layers 0 --moe-expert-capacity-factor -1 --transformer-impl transformer_engine --attention-backend flash"
    assert read(plain(more), "x", 16, 32).notes == ()


def test_other_options_are_named_in_notes_and_harmless_ones_are_not() -> None:
    more = "--foo 1 --use-nccl-ub --rampup-batch-size 16 8 3000 --data-path d --lr 1e-4 --log-interval 1 --vocab-size 128256"
    assert read(plain(more), "x", 16, 32).notes == (
        "options that were not read, and may change time or memory: --foo, --use-nccl-ub",
        "--rampup-batch-size: the step is that of --global-batch-size; smaller steps of the ramp before it are not modelled",
    )


def test_what_every_plan_is_estimated_with_is_named_where_it_is_missing() -> None:
    model = "--num-attention-heads 32"
    assert read(plain(model), "x", 16, 32).notes == (
        "modelled as if these were stated: --cross-entropy-loss-fusion, --no-create-attention-mask-in-dataloader",
    )
    both = f"{model} --cross-entropy-loss-fusion --no-create-attention-mask-in-dataloader"
    assert read(plain(both), "x", 16, 32).notes == ()


@pytest.mark.parametrize(
    ("priced", "other", "message"),
    [
        ("--timing-log-level 1", "--timing-log-level 2", "around every pass of a micro-batch"),
        (
            "--moe-router-load-balancing-type seq_aux_loss global_aux_loss",
            "--moe-router-load-balancing-type sinkhorn",
            "each round of sinkhorn, is not modelled",
        ),
        (
            "--moe-flex-dispatcher-backend deepep",
            "--moe-flex-dispatcher-backend hybridep",
            "all-to-alls are modelled as DeepEP's",
        ),
    ],
)
def test_values_that_are_not_estimated_are_named(priced: str, other: str, message: str) -> None:
    assert read(plain(priced), "x", 16, 32).notes == ()
    (note,) = read(plain(other), "x", 16, 32).notes
    assert note.startswith(f"{other}: ") and message in note


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ("", {}),
        ("--use-precision-aware-optimizer", {"state_bytes": 10.0}),  # the master's other 16 bits, two fp32 moments
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8", {"state_bytes": 5.0}),
        ("--use-precision-aware-optimizer --main-grads-dtype bf16", {"state_bytes": 10.0, "gradient_bytes": 2.0}),
        ("--use-precision-aware-optimizer --fp8-format hybrid", {"state_bytes": 10.0}),
        ("--use-precision-aware-optimizer --fp8-format e4m3 --fp8-recipe mxfp8", {"state_bytes": 12.0}),
        ("--grad-reduce-in-bf16", {"gradient_bytes": 2.0}),
        ("--use-megatron-fsdp --megatron-fsdp-main-grads-dtype fp32 --megatron-fsdp-grad-comm-dtype fp32", {}),
        ("--use-precision-aware-optimizer --use-megatron-fsdp", {"state_bytes": 12.0, "gradient_bytes": 2.0}),
        ("--use-precision-aware-optimizer --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d", {}),
    ],
)
def test_the_precision_aware_optimizer_states_bytes(more: str, fields: dict[str, float]) -> None:
    job = read(plain(more), "x", 16, 32).job
    stated = {
        key.removeprefix("optimizer."): value
        for key, value in job.items()
        if key.endswith(("state_bytes", "gradient_bytes"))
    }
    assert stated == {"gradient_bytes": 4.0, "state_bytes": 12.0} | fields
    assert job["optimizer.reduce_bytes"] == stated["gradient_bytes"]


@pytest.mark.parametrize(("more", "held"), [("", 12.0), (" --optimizer sgd", 8.0)])
def test_what_arguments_leave_out_is_megatrons_default_not_the_jobs(more: str, held: float, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"torchrun p.py --num-layers 32 {BATCH} --use-distributed-optimizer{more}")
    (tmp_path / "job.yaml").write_text(
        "name: j\nworkload: llama3.1-8b\ntopology: one_building\nsequence_length: 4096\nglobal_batch_sequences: 64\n"
        "optimizer: {state_bytes: 6}\noverlap: {bucket_parameters: 4000000}\n"
    )
    found = evaluate_settings("megatron", tmp_path / "run.sh", tmp_path / "job.yaml", world=16).job
    assert (found.optimizer.state_bytes, found.overlap.bucket_parameters) == (held, None)


@pytest.mark.parametrize("size", ["", "many", "0"])
def test_a_bucket_of_no_size_is_refused(size: str) -> None:
    with pytest.raises(sa.InputError, match=r"--ddp-bucket-size .*a whole number ≥ 1 is needed"):
        read(plain(f"--ddp-bucket-size {size}"), "x", 16, 32)


def test_moe_layer_recompute_is_the_module_moe() -> None:
    experts = "--num-experts 8 --moe-layer-recompute --recompute-modules layernorm"
    assert read(plain(experts), "x", 16, 32).decision.recompute == "layernorm+moe"


def test_a_dispatcher_that_is_not_known_is_refused() -> None:
    """An unknown dispatcher is refused.

    An earlier version took it for flex, which sends a token once per rank.
    """
    experts = "--num-experts 8 --expert-model-parallel-size 8 --moe-token-dispatcher-type"
    assert read(plain(f"{experts} flex"), "x", 16, 32).job["experts.dispatch"] == "deduplicated"
    with pytest.raises(sa.InputError, match=r"alltoall_seq is not modelled: alltoall and flex are; state one of them"):
        read(plain(f"{experts} alltoall_seq"), "x", 16, 32)


@pytest.mark.parametrize(
    ("words", "graphs"),
    [
        ("transformer_engine --cuda-graph-scope attn moe_router", "partial"),
        ("transformer_engine --cuda-graph-modules attn moe_router", "partial"),
        ("local --cuda-graph-scope full_iteration", "full"),
        ("full_iteration", "full"),
    ],
)
def test_graphs_are_read_by_the_older_name_too(words: str, graphs: str) -> None:
    """CUDA graphs are also read from the older option --cuda-graph-scope.

    Releases of 2025 document it, and d98e8a64 still accepts it.
    """
    assert read(plain(f"--cuda-graph-impl {words}"), "x", 16, 32).job["experts.graphs"] == graphs


def test_block_recomputation_of_unequal_stages_is_refused() -> None:
    more = "--pipeline-model-parallel-size 4 --recompute-granularity full --recompute-method block --recompute-num-layers 2"
    assert read(plain(more), "x", 16, 32).decision.recompute == "full:1/4"
    with pytest.raises(sa.InputError, match=r"block of 2 layers of unequal stages: .* state equal stages"):
        read(plain(f"{more} --pipeline-model-parallel-layout 'Et*7|t*9|t*9|t*7L'"), "x", 16, 32)


def test_the_report_shows_what_was_not_read(tmp_path: Path) -> None:
    (tmp_path / "args.sh").write_text(plain("--foo"))
    found = evaluate_settings("megatron", tmp_path / "args.sh", JOB, world=16)
    assert "of the settings: options that were not read, and may change time or memory: --foo" in found.report.notes
