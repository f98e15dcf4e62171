"""A row becomes a job, a machine and decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured_rows import run

from scaleacross.catalogue import load_workload
from scaleacross.errors import InputError
from scaleacross.validation.machines import MACHINES, label_of, machine_named, machine_of, topology_of
from scaleacross.validation.mapping import MICRO_BATCHES, case_of
from scaleacross.validation.workload_of import workload_of
from scaleacross.workloads.moe_transformer import MoeTransformer


def test_stated_settings_leave_one_decision() -> None:
    case = case_of(run("l1"))
    (decision,) = case.decisions
    assert (decision.degrees.tp, decision.degrees.cp, decision.degrees.pp, decision.degrees.dp) == (4, 2, 4, 2)
    assert (decision.pipeline.schedule, decision.pipeline.num_chunks) == ("Interleaved1F1B", 5)
    assert (decision.recompute, decision.shard) == ("none", "optimizer")
    assert decision.placement is not None and decision.placement.axis_order[0] == "tp"
    assert case.filled == ()


def test_what_is_not_stated_becomes_alternatives() -> None:
    case = case_of(replace(run("l1"), mbs=None, vpp=None, recompute=""))
    assert case.filled == ("mbs", "vpp", "recompute")
    assert {decision.pipeline.micro_batch_sequences for decision in case.decisions} == set(MICRO_BATCHES)
    assert {decision.recompute for decision in case.decisions} == {"none", "selective", "full"}


def test_the_ends_of_a_pipeline_may_hold_embedding_and_head_alone() -> None:
    assert case_of(replace(run("l1"), layers=18)).decisions[0].pipeline.num_chunks == 5  # 20 virtual stages
    with pytest.raises(InputError, match="no pipeline of 4 stages × 5 chunks for 17 layers"):
        case_of(replace(run("l1"), layers=17))


def test_llama_3_ran_a_layer_a_chunk_and_data_parallelism_outermost() -> None:
    row = replace(run("l1"), framework="Meta in-house", layers=30, pp=16, n_gpus=64 * 8, dp=None, vpp=None)
    case = case_of(row)
    assert {decision.pipeline.num_chunks for decision in case.decisions} == {2}
    assert case.decisions[0].placement is not None
    assert case.decisions[0].placement.axis_order == ("tp", "cp", "pp", "dp_shard", "dp_replicate")
    assert not case.job.optimizer.fused_accumulation


def test_operators_run_one_by_one_in_meta_s_own_code_and_where_a_row_says_so() -> None:
    meta = case_of(replace(run("l1"), framework="Meta in-house"))
    fused = case_of(run("l1")).profile.blocks[0][0]
    assert meta.job.eager_operators
    assert meta.profile.blocks[0][0].elementwise_bytes > 3 * fused.elementwise_bytes
    titan = replace(run("n1"), framework="torchtitan", tp=1, dp=16, fsdp=16)
    assert not case_of(titan).job.eager_operators
    assert case_of(replace(titan, notes="eager, no compile")).job.eager_operators


def test_frameworks_shard_what_they_shard() -> None:
    assert case_of(run("v1")).decisions[0].shard == "none"
    assert not case_of(run("v1")).job.overlap.gradient_reduce
    assert case_of(run("n1")).job.overlap.gradient_reduce
    sharded = replace(run("n1"), framework="torchtitan", tp=1, dp=16, fsdp=16)
    assert case_of(sharded).decisions[0].shard == "parameters"
    hybrid = case_of(replace(sharded, fsdp=4, framework="MaxText")).decisions[0].degrees
    assert (hybrid.dp_shard, hybrid.dp_replicate) == (4, 4)


def test_megatron_adds_bf16_gradients_up_in_fp32_and_recipes_that_switch_it_off_do_not() -> None:
    bytes_of = {
        framework: case_of(replace(run("n1"), framework=framework)).job.optimizer.gradient_bytes
        for framework in (
            "Megatron-Core 0.8",
            "NeMo Megatron-Core",
            "Megatron-Bridge / Megatron-Core",
            "Megatron-LM 2022",
        )
    }
    assert list(bytes_of.values()) == [4.0, 2.0, 2.0, 2.0]


def test_a_machine_is_known_by_label_entry_and_driver_s_name() -> None:
    for gpu in ("H100-80GB", "h100-sxm", "NVIDIA H100 80GB HBM3"):
        assert machine_named(gpu, "").port == "infiniband-ndr400"
    assert machine_named("NVIDIA GB200", "").accelerator == "gb200-nvl72"
    assert machine_named("NVIDIA B200", "RoCE 400G").port == "roce-400g"
    assert machine_named("AMD Instinct MI325X OAM 256GB", "").accelerator == "mi325x"
    assert machine_named("A800?", "").scale_up == machine_named("H800", "").scale_up == "nvlink-export"
    assert machine_named("NVIDIA GH200 96GB HBM3", "").accelerator == "gh200"
    assert [label_of(name) for name in ("H100", "H100-96GB (HBM2e 2.4TB/s, 500W)", "A100-SXM4-40GB", "h100 sxm5 80gb")] == [
        "H100-80GB", "H100-96GB", "A100-40GB", "H100-80GB",
    ]  # fmt: skip
    boards = {
        "H100 PCIe": "h100-pcie", "NVIDIA-H100-NVL": "h100-nvl", "Tesla V100-SXM3-32GB": "v100-32gb",
        "AMD Instinct MI250X": "mi250x-gcd", "Intel Gaudi2": "gaudi2", "HABANA GAUDI3": "gaudi3",
    }  # fmt: skip
    assert {name: machine_named(name, "").accelerator for name in boards} == boards
    assert machine_named("MI250X", "").port == machine_named("H100", "Slingshot").port == "slingshot-100g"
    for other in ("H200 NVL", "A100-64GB", "V100-SXM2-16GB", ""):  # other boards than the known ones
        assert label_of(other) is None
    with pytest.raises(InputError, match="no machine is known for gpu 'TPU v5p'; known: A100-80GB"):
        machine_named("TPU v5p", "ICI")


def test_old_megatron_has_unfused_attention_and_no_sequence_parallelism_where_stated() -> None:
    full, selective = (case_of(run(name)).profile.blocks[0][0] for name in ("k1", "k2"))
    assert full.attention is not None and not full.attention.fused
    assert full.replicated_elementwise_bytes > 0
    assert selective.replicated_elementwise_bytes == 0
    new = case_of(run("l1")).profile.blocks[0][0]
    assert new.attention is not None and new.attention.fused


def test_eight_bit_recipes_are_told_by_their_names() -> None:
    named = {"fp8": "fp8", "mxfp8": "fp8", "fp8-cs": "fp8", "nvfp4": "nvfp4", "bf16": "bf16"}
    row = replace(run("n1"), gpu="B200")
    assert {text: case_of(replace(row, precision=text)).job.precision for text in named} == named


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exclude_from_fit": 1}, "excluded by the file"),
        ({"layers": None, "ffn": None}, "dimensions not stated: layers, ffn"),
        ({"gpu": "TPU v9"}, "no machine is known for gpu 'TPU v9'; known: A100-80GB"),
        ({"dp": 3}, "does not make 16 GPUs"),
        ({"gbs": 63}, "no pipeline of 1 stages"),
        ({"precision": "int4"}, "precision 'int4' is not known"),
        ({"precision": "nvfp4"}, "h100-sxm states no nvfp4 peak"),
        ({"arch": "moe", "experts": 8, "topk": 2, "moe_ffn": 1024, "ep": 16}, "ep 16 does not divide dp 8"),
        ({"fsdp": 3}, "fsdp 3 does not divide dp 8"),
    ],
)
def test_rows_that_cannot_be_expressed_say_why(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        case_of(replace(run("n1"), **changes))  # type: ignore[arg-type]


def test_workload_has_the_published_number_of_parameters() -> None:
    billions = {"k1": 174.6, "n1": 15.6, "l1": 70.6}
    for name, published in billions.items():
        assert workload_of(run(name)).profile().total_parameters / 1e9 == pytest.approx(published, rel=0.01)


def test_latent_attention_rows_take_the_published_latent_widths() -> None:
    deepseek = replace(
        run("l1"),
        **{"arch": "moe", "attn": "mla", "layers": 61, "hidden": 7168, "ffn": 18432, "heads": 128, "kv_heads": 128},
        **{"vocab": 129280, "experts": 256, "topk": 8, "moe_ffn": 2048, "shared_ffn": 2048, "dense_layers": 3},
    )
    workload = workload_of(deepseek)
    assert isinstance(workload, MoeTransformer)
    assert workload.profile().total_parameters / 1e9 == pytest.approx(671, rel=0.005)


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_builds_a_topology(name: str) -> None:
    topology = topology_of(MACHINES[name], 256)
    assert topology.num_accelerators == 256
    domain = topology.buildings[0].accelerators_per("scale_up")
    assert domain == (64 if name.startswith("GB") else {"GH200": 4, "V100-32GB": 16}.get(name, 8))


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("", "infiniband-ndr400"),
        ("nodes of 8, 4x HDR 800 Gbps/node", "infiniband-hdr100"),
        ("8x HDR", "infiniband-hdr200"),
        ("HDR100", "infiniband-hdr100"),
        ("RoCE, 8 x 200G; 80GB of HBM", "roce-200g"),
        ("InfiniBand NDR, 8 x 400G", "infiniband-ndr400"),
        ("800G per GPU", "roce-800g"),
        ("a process of its own", "infiniband-ndr400"),
        ("hosts with 512G", "infiniband-ndr400"),
        ("4x 1G", "infiniband-ndr400"),
        ("RoCE 400G, 1:7 oversubscription above pods; batch 16", "roce-400g"),
    ],
)
def test_a_text_states_ports(text: str, port: str) -> None:
    machine = machine_of(replace(run("l1"), gpu="H100-80GB", notes=text))
    assert machine == machine_named("H100", text)
    assert machine.port == port


@pytest.mark.parametrize(("text", "rate"), [("7x NDR", 350), ("4x 100G RoCE per node", 50), ("4x 100G Omni-Path", 50)])
def test_ports_of_no_catalogue_entry_have_the_stated_rate(text: str, rate: int) -> None:
    building = topology_of(machine_named("H100", text), 16).buildings[0]
    assert building.links.rack.technology.bandwidth_bytes_per_s == rate * 1e9 / 8


def test_what_no_column_can_say_comes_from_the_catalogue_where_all_columns_agree() -> None:
    columns = {"layers": 94, "hidden": 4096, "heads": 64, "kv_heads": 4, "head_dim": 128, "vocab": 151_936}
    experts = {"experts": 128, "topk": 8, "moe_ffn": 1536, "attn": "gqa", "dense_layers": 0, "ffn": None}
    row = replace(run("l1"), model="Qwen3_235B_A22B", arch="moe", **columns, **experts)  # type: ignore[arg-type]
    norms = 94 * 2 * 128  # of q and k
    named, other = workload_of(row), workload_of(replace(row, model="mine"))
    assert named.name == "qwen3-235b-a22b"
    assert named.profile().total_parameters - other.profile().total_parameters == norms
    for column, value in (("topk", 4), ("layers", 93), ("kv_heads", 8), ("vocab", 1000)):
        assert workload_of(replace(row, **{column: value})).name == "Qwen3_235B_A22B"  # type: ignore[arg-type]


BLANK = dict.fromkeys(
    ("layers", "hidden", "ffn", "gated", "heads", "kv_heads", "head_dim", "vocab", "experts", "topk", "moe_ffn")
)


@pytest.mark.parametrize(("name", "arch"), [("llama3.1-8b", "dense"), ("mixtral-8x22b", "moe")])
def test_a_row_may_name_a_workload_of_the_catalogue_in_place_of_dimensions(name: str, arch: str) -> None:
    named = replace(run("l1"), model=name, arch="", pp=1, vpp=None, tp=1, cp=1, dp=None, fsdp=None, **BLANK)  # type: ignore[arg-type]
    case = case_of(named)
    assert case.profile.total_parameters == load_workload(name).profile().total_parameters
    assert bool(case.profile.num_experts) == (arch == "moe")
    with pytest.raises(InputError, match=r"'my-own' is no workload of the catalogue .*llama3.1-8b.*not stated: layers"):
        case_of(replace(named, model="my-own"))


def test_notes_name_the_attention_kernel() -> None:
    """Notes name the attention kernel.

    FlashAttention of 2022 has half the speed, Triton's slightly more. The second version has 1/1.6 if constants are of
    the third.
    """

    def ratio(gpu: str, notes: str) -> float:
        core = case_of(replace(run("l1"), gpu=gpu, notes=notes)).profile.blocks[0][0].attention
        assert core is not None
        return core.rate_ratio

    assert ratio("A100-80GB", "SDPA FlashAttention-2") == ratio("H100-80GB", "flash attention of cuDNN") == 1.0
    assert ratio("A800", "flash-attn 2.5") == ratio("NVIDIA A100-SXM4-80GB", "flash-attn 2.5") == 1.0
    assert ratio("H100-80GB", "flash-attn 2.5") == pytest.approx(1 / 1.6)
    assert ratio("A100-80GB", "FlashAttention-1") == 0.5
    assert ratio("H100-80GB", "Triton FlashAttention") == pytest.approx(1 / 1.6 / 1.85)


def test_megatron_lm_sends_copies_unless_a_row_names_another_dispatcher() -> None:
    """Megatron-LM sends copies of tokens unless a row names another dispatcher.

    Experts are on two hosts. NVIDIA's recipes use its flex dispatcher there, which is an option of Megatron-LM.
    """
    row = replace(
        run("l1"), arch="moe", experts=16, topk=2, moe_ffn=28672, tp=1, cp=1, pp=4, dp=16, ep=16, etp=1, vpp=None
    )

    def dispatch(framework: str, notes: str = "") -> str:
        return case_of(replace(row, framework=framework, notes=notes)).job.experts.dispatch

    assert dispatch("Megatron-Bridge") == dispatch("Megatron-LM", "with DeepEP") == "deduplicated"
    assert dispatch("Megatron-LM") == dispatch("Megatron-Bridge", "NCCL all-to-all") == "copies"


def test_modules_that_are_computed_again_are_read_by_megatron_s_names_and_short_ones() -> None:
    row = replace(run("l1"), arch="moe", experts=16, topk=2, moe_ffn=28672, ep=2, vpp=5)

    def policies(words: str) -> set[str]:
        return {decision.recompute for decision in case_of(replace(row, recompute=words)).decisions}

    assert policies("modules (norm, act)") == policies("moe_act layernorm") == {"moe_act+layernorm"}
    assert policies("norm, act, whatever else") == {"none", "selective", "full"}
