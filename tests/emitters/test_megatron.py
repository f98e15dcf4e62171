"""Megatron-LM arguments: degrees, stages, rank order, and what is refused."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import make_plan, two_buildings
from shells import bash, needs_bash

from scaleacross.emitters import EMITTERS, emit
from scaleacross.emitters.megatron import megatron_order
from scaleacross.emitters.megatron_layout import layout
from scaleacross.errors import EmitError
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.plan import Plan
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.moe_transformer import GroupedQueryAttention, LatentAttention, MoeTransformer

PP_INSIDE: tuple[GridAxis, ...] = ("tp", "pp", "cp", "dp_shard", "dp_replicate")


def arguments(plan: Plan) -> dict[str, list[str]]:
    """Option -> its values, read from the emitted bash array."""
    text = EMITTERS["megatron"](plan)["megatron/megatron_args.sh"]
    words = shlex.split(text.split("MEGATRON_ARGS=(")[1].split("\n)")[0], comments=True)
    out: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            assert word not in out
            out[word] = []
        else:
            out[list(out)[-1]].append(word)
    return out


def moe(**changes: Any) -> MoeTransformer:
    fields = {
        "name": "moe", "num_layers": 6, "hidden_size": 64, "num_heads": 8, "num_experts": 16, "top_k": 2,
        "attention": GroupedQueryAttention(num_kv_heads=4, head_dim=8, qk_norm=True), "expert_intermediate_size": 32,
        "vocabulary_size": 100, "tied_embedding": False, **changes,
    }  # fmt: skip
    return MoeTransformer.model_validate(fields)


def test_degrees_and_batch() -> None:
    plan = make_plan(Degrees(tp=4, dp_shard=2, dp_replicate=3, pp=2), num_micro_batches=8)
    found = arguments(plan)
    assert found["--tensor-model-parallel-size"] == ["4"]
    assert found["--pipeline-model-parallel-size"] == ["2"]
    assert found["--context-parallel-size"] == ["1"]
    assert found["--num-distributed-optimizer-instances"] == ["3"]
    assert (found["--micro-batch-size"], found["--global-batch-size"]) == (
        ["1"],
        ["48"],
    )  # 6 replicas × 8 micro-batches
    assert {
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
    } <= set(found)
    assert {"--bf16", "--swiglu", "--group-query-attention", "--disable-bias-linear"} <= set(found)
    assert (found["--num-layers"], found["--num-query-groups"], found["--kv-channels"]) == (["32"], ["8"], ["128"])
    assert "--expert-model-parallel-size" not in found


def test_the_loss_and_the_data_loader_are_what_is_estimated() -> None:
    found = arguments(make_plan(Degrees(cp=2, dp_shard=2)))
    assert found["--cross-entropy-loss-fusion"] == found["--no-create-attention-mask-in-dataloader"] == []
    assert found["--cross-entropy-fusion-impl"] == ["native"]


def test_axes_of_degree_one_leave_their_options_out() -> None:
    found = arguments(make_plan(Degrees(pp=2), shard="none"))
    for option in (
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--num-distributed-optimizer-instances",
    ):
        assert option not in found


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (((7,), *((8,),) * 14, (7,)), "Et*7|(t*8|)*14t*7L"),  # Llama 3.1 405B: 126 layers on 16 stages
        (((1,), (2,), (3,), (1,)), "Et|t*2|t*3|tL"),
        (((3,), (2,)), "Et*3|t*2L"),
        (((2, 3), (3, 2)), "Et*2|(t*3|)*2t*2L"),  # virtual stages in model order: 2, 3, 3, 2
        (((0, 1), (1, 0)), "E|(t|)*2L"),  # embedding and head in virtual stages of their own
        (((4,),), "Et*4L"),
    ],
)
def test_layout_by_hand(stages: tuple[tuple[int, ...], ...], expected: str) -> None:
    assert layout(stages) == expected


def read_layout(text: str) -> list[str]:
    """Megatron Core's grammar: ``*n`` repeats the letter or parenthesis before it, ``|`` ends a stage."""
    out, index = "", 0
    while index < len(text):
        end = text.index(")", index) if text[index] == "(" else index
        item = read_flat(text[index + 1 : end]) if text[index] == "(" else text[index]
        index, times = end + 1, ""
        if text[index : index + 1] == "*":
            index += 1
            while text[index : index + 1].isdigit():
                times += text[index]
                index += 1
        out += item * int(times or 1)
    return out.split("|")


def read_flat(text: str) -> str:
    return "|".join(read_layout(text))


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_layout_reads_back(pp: int, num_chunks: int, data: st.DataObject) -> None:
    stages = tuple(tuple(data.draw(st.integers(0, 4)) for _ in range(num_chunks)) for _ in range(pp))
    found = read_layout(layout(stages))
    virtual = [stages[k % pp][k // pp] for k in range(pp * num_chunks)]
    assert [stage.count("t") for stage in found] == virtual
    assert found[0].startswith("E")
    assert found[-1].endswith("L")
    assert sum(stage.count("E") + stage.count("L") for stage in found) == 2


def test_stage_options() -> None:
    even = arguments(make_plan(Degrees(pp=4)))
    assert not {"--pipeline-model-parallel-layout", "--num-layers-per-virtual-pipeline-stage"} & set(even)
    chunks = arguments(make_plan(Degrees(pp=4), schedule="Interleaved1F1B", num_chunks=2))
    assert chunks["--num-layers-per-virtual-pipeline-stage"] == ["4"]
    assert "--microbatch-group-size-per-virtual-pipeline-stage" not in chunks  # rounds of pp, its default
    rounds = arguments(make_plan(Degrees(pp=4), schedule="Interleaved1F1B", num_chunks=2, num_micro_batches=10))
    assert rounds["--microbatch-group-size-per-virtual-pipeline-stage"] == ["5"]
    unequal = arguments(make_plan(Degrees(pp=5)))
    assert unequal["--pipeline-model-parallel-layout"] == ["Et*6|(t*7|)*2t*6|t*6L"]


@pytest.mark.parametrize(
    ("order", "degrees", "option"),
    [
        (PP_INSIDE, Degrees(tp=4, pp=2, dp_shard=2), True),
        (("tp", "dp_shard", "cp", "dp_replicate", "pp"), Degrees(tp=4, pp=2, dp_shard=2), False),
        (PP_INSIDE, Degrees(tp=4, dp_shard=4), False),  # no pipeline: nothing to map
        (PP_INSIDE, Degrees(tp=2, pp=2, dp_shard=4), True),  # a host holds two stages: only pp inside dp keeps it whole
        # two shards and two stages on a host: pp is outside dp_shard in the plan, but only pp inside dp keeps hosts whole
        (("tp", "dp_shard", "pp", "dp_replicate", "cp"), Degrees(pp=2, dp_shard=2, dp_replicate=2), True),
        (("tp", "dp_shard", "pp", "dp_replicate", "cp"), Degrees(tp=2, pp=2, dp_shard=2, dp_replicate=2), False),
    ],
)
def test_mapping_follows_the_plan(order: tuple[GridAxis, ...], degrees: Degrees, option: bool) -> None:
    plan = make_plan(degrees, order)
    mapping, ranks = megatron_order(plan)
    assert mapping == (["--use-tp-pp-dp-mapping"] if option else [])
    assert ranks.split_host() is None
    assert ("--use-tp-pp-dp-mapping" in arguments(plan)) == option


@pytest.mark.parametrize("order", [PP_INSIDE, ("tp", "dp_shard", "cp", "dp_replicate", "pp")])
def test_ranks_follow_megatrons_formula(order: tuple[GridAxis, ...]) -> None:
    plan = make_plan(Degrees(tp=2, dp_shard=2, dp_replicate=2, pp=2), order)
    inside = "--use-tp-pp-dp-mapping" in arguments(plan)
    for row in csv.DictReader(EMITTERS["megatron"](plan)["megatron/ranks.csv"].splitlines()):
        dp = int(row["dp_replicate"]) * 2 + int(row["dp_shard"])  # shard groups are contiguous slices of dp
        tp, pp = int(row["tp"]), int(row["pp"])
        assert int(row["rank"]) == (tp + 2 * (pp + 2 * dp) if inside else tp + 2 * (dp + 4 * pp))


def test_experts() -> None:
    plan = make_plan(Degrees(tp=2, dp_shard=4, ep=4, pp=2), PP_INSIDE, workload=moe(), recompute="full")
    found = arguments(plan)
    assert found["--expert-model-parallel-size"] == ["4"]
    assert (found["--num-experts"], found["--moe-router-topk"]) == (["16"], ["2"])
    assert "--recompute-modules" not in found
    assert "--qk-layernorm" in found
    assert "--use-tp-pp-dp-mapping" not in found  # dense and expert dp sizes differ


def test_deepseek_shape() -> None:
    attention = LatentAttention(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8)
    found = arguments(
        make_plan(
            Degrees(dp_shard=4, ep=4),
            workload=moe(
                attention=attention,
                num_dense_layers=2,
                dense_intermediate_size=128,
                num_shared_experts=2,
                router_bias=True,
            ),
        )
    )
    assert found["--moe-layer-freq"] == ["([0]*2+[1]*4)"]
    assert (found["--ffn-hidden-size"], found["--moe-shared-expert-intermediate-size"]) == (["128"], ["64"])
    assert (found["--qk-head-dim"], found["--qk-pos-emb-head-dim"], found["--q-lora-rank"]) == (["8"], ["4"], ["24"])
    assert {"--multi-latent-attention", "--moe-router-enable-expert-bias"} <= set(found)


def test_gpt3_shape() -> None:
    gpt = DenseTransformer(
        name="gpt", num_layers=4, hidden_size=64, num_heads=8, num_kv_heads=8, head_dim=8, intermediate_size=256,
        vocabulary_size=100, gated_mlp=False, tied_embedding=True, norm="layernorm", bias=True, num_learned_positions=2048,
        dropout=True,
    )  # fmt: skip
    found = arguments(make_plan(Degrees(pp=2), workload=gpt, sequence_length=2048))
    assert (found["--position-embedding-type"], found["--max-position-embeddings"]) == (["learned_absolute"], ["2048"])
    assert found["--normalization"] == ["LayerNorm"]
    assert not {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--hidden-dropout"} & set(
        found
    )
    with pytest.raises(EmitError, match="2048 learned positions for sequences of 4096"):
        arguments(make_plan(Degrees(pp=2), workload=gpt))


@pytest.mark.parametrize(("policy", "values"), [("full", ["full"]), ("none", None)])
def test_recompute(policy: Any, values: list[str] | None) -> None:
    assert arguments(make_plan(Degrees(pp=2), recompute=policy)).get("--recompute-granularity") == values


def test_some_layers_are_a_block_of_every_chunk() -> None:
    plan = make_plan(Degrees(pp=2), recompute="full:1/2")
    found, chunk = arguments(plan), plan.layers_per_stage[0][0]
    assert found["--recompute-granularity"] == ["full"] and found["--recompute-method"] == ["block"]
    assert found["--recompute-num-layers"] == [str(chunk // 2)] and chunk % 2 == 0


@pytest.mark.parametrize(("exchange", "word"), [("ring", "p2p"), ("gather", "all_gather"), ("all_to_all", "a2a")])
def test_context_exchange_is_what_is_estimated(exchange: Any, word: str) -> None:
    assert arguments(make_plan(Degrees(cp=2), context_exchange=exchange))["--cp-comm-type"] == [word]
    assert "--cp-comm-type" not in arguments(make_plan(Degrees(tp=2), context_exchange=exchange))


def test_heads_inside_a_ring_state_both_levels() -> None:
    told = arguments(make_plan(Degrees(cp=8, cp_inner=2), context_exchange="all_to_all_ring"))
    assert told["--cp-comm-type"] == ["a2a+p2p"]
    assert told["--hierarchical-context-parallel-sizes"] == ["2", "4"]


def test_overlap_and_buckets_are_what_is_estimated() -> None:
    overlap = {"gradient_reduce": False, "parameter_gather": False, "bucket_parameters": 5_000_000}
    found = arguments(make_plan(Degrees(dp_shard=4), overlap=overlap))
    assert not {"--overlap-grad-reduce", "--overlap-param-gather"} & set(found)
    assert found["--ddp-bucket-size"] == ["5000000"]


@pytest.mark.parametrize(
    ("degrees", "accelerator", "shard", "line"),
    [
        (Degrees(tp=4), "H100-SXM", "optimizer", "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        (Degrees(cp=4), "H100-SXM", "optimizer", "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        (Degrees(pp=4), "H100-SXM", "optimizer", None),
        (Degrees(tp=4), "B200", "optimizer", None),
        (Degrees(tp=4), "H100-SXM", "parameters", "unset CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_max_connections(degrees: Degrees, accelerator: str, shard: Any, line: str | None) -> None:
    plan = make_plan(degrees, topology=two_buildings(accelerator_name=accelerator), shard=shard)
    text = EMITTERS["megatron"](plan)["megatron/megatron_args.sh"]
    lines = [found for found in text.splitlines() if "CUDA_DEVICE_MAX_CONNECTIONS" in found]
    assert len(lines) == (line is not None)
    assert line is None or lines[0].startswith(line)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "GPipe"}, "schedule GPipe: Megatron-LM has 1F1B"),
        ({"shard": "parameters"}, "shard 'parameters' with pp 4"),
        (
            {"schedule": "Interleaved1F1B", "num_chunks": 2, "num_micro_batches": 2},
            "Interleaved1F1B with 2 micro-batches on pp 4",
        ),
        ({"recompute": "selective"}, "recompute selective: Megatron-LM has no policy.*target: megatron"),
        ({"precision": "fp8", "conversion": {"recipe": "torchao_rowwise"}}, "Megatron-LM runs Transformer Engine's"),
        ({"precision": "fp8", "conversion": {"moved": {}}}, "conversion.moved"),
        ({"optimizer": {"name": "lion"}}, "optimizer 'lion'"),
        ({"optimizer": {"reduce_bytes": 1.0}}, "gradients of 1 bytes"),
        (
            {"optimizer": {"gradient_bytes": 2.0}},
            "gradient_bytes 2 with optimizer.reduce_bytes 4: .* set both to 2 or both",
        ),
        ({"optimizer": {"parameter_bytes": 4.0}}, "parameter_bytes 4: .* set 2"),
        ({"optimizer": {"state_bytes": 9.0}}, "state_bytes 9: Megatron-LM's adam holds 12, 10, 8, 6 bytes"),
        ({"optimizer": {"state_bytes": 8.0}, "precision": "fp16"}, "state_bytes 8: Megatron-LM's adam holds 12 bytes"),
        ({"optimizer": {"name": "sgd"}}, "state_bytes 12: Megatron-LM's sgd holds 8 bytes"),
        ({"optimizer": {"state_bytes": 8.0}, "shard": "none"}, "state_bytes 8 with shard 'none'.*set shard: optimizer"),
        ({"global_batch_sequences": 9}, "= 8 sequences; the job's global batch has 9"),
        ({"num_layers": 31}, "layers_per_stage holds 32 layers; the model has 31"),
    ],
)
def test_refused_by_name(changes: dict[str, Any], message: str) -> None:
    layers = changes.pop("num_layers", None)
    plan = make_plan(Degrees(pp=4), **changes)
    if layers:
        assert isinstance(plan.job.workload, dict)
        job = plan.job.model_copy(update={"workload": {**plan.job.workload, "num_layers": layers}})
        plan = plan.model_copy(update={"job": job})
    with pytest.raises(EmitError, match=message):
        EMITTERS["megatron"](plan)


@pytest.mark.parametrize(
    ("state_bytes", "first", "second"), [(10.0, "fp32", "fp32"), (8.0, "bf16", "fp32"), (6.0, "bf16", "bf16")]
)
@pytest.mark.parametrize("gradient_bytes", [2.0, 4.0])
def test_bytes_of_states_and_gradients_are_held(
    state_bytes: float, first: str, second: str, gradient_bytes: float
) -> None:
    optimizer = {"state_bytes": state_bytes, "gradient_bytes": gradient_bytes, "reduce_bytes": gradient_bytes}
    plan = make_plan(Degrees(pp=2, dp_shard=2), optimizer=optimizer)
    found = arguments(plan)
    assert "--use-precision-aware-optimizer" in found
    assert (found["--exp-avg-dtype"], found["--exp-avg-sq-dtype"]) == ([first], [second])
    assert ("--grad-reduce-in-bf16" in found) == (gradient_bytes == 2.0)
    assert found.get("--main-grads-dtype") == (["bf16"] if gradient_bytes == 2.0 else None)
    bridge = EMITTERS["megatron"](plan)["megatron/bridge_recipe.py"]
    assert f"cfg.optimizer.exp_avg_dtype = torch.{'bfloat16' if first == 'bf16' else 'float32'}\n" in bridge
    assert "\nimport torch\n" in bridge


@pytest.mark.parametrize("recipe", ["tensorwise", "blockwise", "mxfp8"])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(("state_bytes", "first", "second"), [(10.0, "bf16", "fp32"), (8.0, "bf16", "bf16")])
def test_moments_are_narrow_beside_a_whole_master_in_8_bit(
    recipe: str, narrow: bool, state_bytes: float, first: str, second: str
) -> None:
    """With a full fp32 master in 8-bit training the moments are narrow.

    This is DeepSeek-V3's own setting: blockwise products and moments in bf16. MCore keeps the master
    (core/optimizer/__init__.py).
    """
    stated = {"precision": "fp8", "conversion": {"recipe": recipe, "narrow_parameters": narrow}}
    found = arguments(make_plan(Degrees(pp=2, dp_shard=2), optimizer={"state_bytes": state_bytes}, **stated))
    assert "--use-precision-aware-optimizer" in found
    assert (found["--exp-avg-dtype"], found["--exp-avg-sq-dtype"]) == ([first], [second])
    with pytest.raises(EmitError, match="state_bytes 6: Megatron-LM's adam holds 12, 10, 8 bytes"):
        arguments(make_plan(Degrees(pp=2, dp_shard=2), optimizer={"state_bytes": 6.0}, **stated))


def test_whole_states_need_no_option() -> None:
    found = arguments(make_plan(Degrees(pp=2, dp_shard=2)))
    assert not {"--use-precision-aware-optimizer", "--main-grads-dtype", "--grad-reduce-in-bf16"} & set(found)


@pytest.mark.parametrize(("held", "reduced"), [(4.0, 4.0), (4.0, 2.0), (2.0, 2.0)])
def test_megatron_fsdp_holds_gradients_as_it_is_told(held: float, reduced: float) -> None:
    """The type of Megatron-FSDP's gradients is always stated.

    It reads neither --grad-reduce-in-bf16 nor the fp32 default. Without a setting gradients are as wide as parameters.
    """
    optimizer = {"gradient_bytes": held, "reduce_bytes": reduced}
    found = arguments(make_plan(Degrees(dp_shard=4), shard="parameters", optimizer=optimizer))
    words = {4.0: ["fp32"], 2.0: ["bf16"]}
    assert found["--megatron-fsdp-main-grads-dtype"] == words[held]
    assert found["--megatron-fsdp-grad-comm-dtype"] == words[reduced]


def test_expert_groups_over_context_parallel_are_refused() -> None:
    with pytest.raises(EmitError, match="ep 2 with cp 2"):
        EMITTERS["megatron"](make_plan(Degrees(cp=2, dp_shard=2, ep=2), workload=moe()))


@needs_bash
def test_the_array_survives_bash(tmp_path: Path) -> None:
    plan = make_plan(Degrees(tp=4, pp=5))
    emit(plan, "megatron", tmp_path)
    program = 'source megatron/megatron_args.sh; printf "%s\\n" "${MEGATRON_ARGS[@]}"'
    done = bash("-c", program, cwd=tmp_path)
    expected = [word for option, values in arguments(plan).items() for word in (option, *values)]
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")
    assert "Et*6|(t*7|)*2t*6|t*6L" in expected
