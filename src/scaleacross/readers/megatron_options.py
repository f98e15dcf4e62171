"""Lists of Megatron-LM options: read, refused by name, without effect on time and memory, or allowed with some values
only.

Option names: NVIDIA/Megatron-LM megatron/training/arguments.py and the configuration classes that it turns into options
(d98e8a64), 869 in all. Any option outside these lists is named in a note, whether Megatron knows it or not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_READ = """
    --num-layers --hidden-size --num-experts --tensor-model-parallel-size --pipeline-model-parallel-size
    --context-parallel-size --expert-model-parallel-size --expert-tensor-parallel-size --sequence-parallel --micro-batch-size
    --global-batch-size --seq-length --use-distributed-optimizer --num-distributed-optimizer-instances --use-megatron-fsdp
    --data-parallel-sharding-strategy --outer-dp-sharding-strategy --hierarchical-context-parallel-sizes --cp-comm-type
    --recompute-granularity --recompute-activations --recompute-modules --recompute-method --recompute-num-layers
    --moe-layer-recompute --cpu-offloading-num-layers --optimizer-offload-fraction --optimizer-cpu-offload
    --overlap-cpu-optimizer-d2h-h2d --microbatch-group-size-per-virtual-pipeline-stage --pipeline-model-parallel-layout
    --num-layers-per-virtual-pipeline-stage --num-virtual-stages-per-pipeline-rank --decoder-first-pipeline-num-layers
    --decoder-last-pipeline-num-layers --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split
    --fp4-recipe --fp8-recipe --fp4-format --fp8-format --fp16 --bf16 --accumulate-allreduce-grads-in-fp32
    --grad-reduce-in-bf16 --fp8-param-gather --fp4-param-gather --optimizer --no-gradient-accumulation-fusion
    --ddp-bucket-size --overlap-grad-reduce --overlap-param-gather --no-overlap-p2p-communication --moe-permute-fusion
    --moe-shared-expert-intermediate-size --moe-shared-expert-overlap --moe-token-dispatcher-type --cuda-graph-impl
    --cuda-graph-modules --cuda-graph-scope --use-tp-pp-dp-mapping --tp-comm-overlap --overlap-moe-expert-parallel-comm
    --use-precision-aware-optimizer --main-grads-dtype --main-params-dtype --exp-avg-dtype --exp-avg-sq-dtype
    --megatron-fsdp-main-grads-dtype --megatron-fsdp-grad-comm-dtype --cross-entropy-loss-fusion
    --no-create-attention-mask-in-dataloader --mtp-num-layers
"""
READ: Final = frozenset(_READ.split())
"""Options whose values must be plain, and equal wherever they are repeated."""

COMMUNICATORS: Final = "--nccl-communicator-config-path"
"""Only its presence is read; the file is the plan's."""

REFUSED: Final[Mapping[str, str]] = {
    "--step-batch-size-schedule": "batches that change with the samples seen are not modelled; state --global-batch-size",
    "--fine-grained-activation-offloading": "offloading by module is not modelled; state --cpu-offloading-num-layers",
    "--use-torch-fsdp2": "state --use-megatron-fsdp",
    "--first-last-layers-bf16": "layers in 16 bit next to others in 8 or 4 are not modelled; leave it out",
    "--fp8-output-proj": "the output projection is modelled in 16 bit; leave it out",
    "--fp8-dot-product-attention": "attention is modelled in 16 bit; leave it out",
    "--te-precision-config-file": "precisions by module are not modelled; leave it out",
    "--fp32-residual-connection": "residuals are modelled in 16 bit; leave it out",
    "--distribute-saved-activations": "it works without sequence parallelism only, which is not modelled; leave it out",
    "--hybrid-context-parallel": "context groups that change with the sequence are not modelled; leave it out",
    "--checkpoint-activations": "Megatron-LM no longer takes it; state --recompute-granularity",
    "--model-parallel-size": "Megatron-LM no longer takes it; state --tensor-model-parallel-size",
    "--batch-size": "Megatron-LM no longer takes it; state --micro-batch-size",
    "--enable-cuda-graph": "Megatron-LM deprecates it; state --cuda-graph-impl local",
    "--external-cuda-graph": "Megatron-LM deprecates it; state --cuda-graph-impl transformer_engine",
    "--fp8": "Megatron-LM takes it no longer; state --fp8-format hybrid or e4m3",
    "--fp8-hybrid": "Megatron-LM takes it no longer; state --fp8-format hybrid",
    "--fp8-e4m3": "Megatron-LM takes it no longer; state --fp8-format e4m3",
    "--yaml-cfg": "arguments of another file are not read; write them here",
    "--use-checkpoint-args": "arguments of a checkpoint are not read; write them here",
    "--use-mp-args-from-checkpoint-args": "arguments of a checkpoint are not read; write them here",
}
"""Options that no plan can express, and the way out."""

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "--overlap-param-gather": ("--overlap-grad-reduce",),
    "--fp8-param-gather": ("--use-distributed-optimizer", "--use-megatron-fsdp"),
    "--fp4-param-gather": ("--fp4-format",),
}
"""Option -> options of which Megatron-LM requires one with it."""

HARMLESS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "--transformer-impl": (
        ("transformer_engine",),
        "layers of Transformer Engine are modelled, others keep more for the backward pass; state transformer_engine",
    ),
    "--attention-backend": (
        ("flash", "fused", "auto"), "attention that keeps no scores is modelled; state flash, fused or auto"
    ),
    "--moe-expert-capacity-factor": (
        ("-1", "-1.0"), "experts that drop or pad tokens are not modelled; leave it out, and no token is dropped"
    ),
    "--cross-entropy-fusion-impl": (("native",), "Megatron-LM stops at te, which is not stable; state native"),
    "--outer-dp-sharding-strategy": (("no_shard",), "states sharded over replicas of shards are not modelled; state no_shard"),
    "--tensor-parallel-num-weight-shards": (("1",), "weights sharded in addition to tp are not modelled; leave it out"),
    "--expert-tensor-parallel-num-weight-shards": (("1",), "weights sharded in addition to tp are not modelled; leave it out"),
}  # fmt: skip
"""Option -> values that need no field of a plan, and the way out of all others."""

REMARKS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "--rampup-batch-size": (
        (), "the step is that of --global-batch-size; smaller steps of the ramp before it are not modelled"
    ),
    "--moe-router-load-balancing-type": (
        ("aux_loss", "seq_aux_loss", "global_aux_loss", "none"),
        "a rule that iterates in every layer, where the host waits for each round of sinkhorn, is not modelled",
    ),
    "--moe-flex-dispatcher-backend": (("deepep",), "all-to-alls are modelled as DeepEP's"),
    "--timing-log-level": (
        ("0", "1"), "the host waits for the accelerator around every pass of a micro-batch, which is not modelled"
    ),
}  # fmt: skip
"""Option -> values that the estimate covers, and what it leaves out for others."""

_MODEL = """
    --ffn-hidden-size --num-attention-heads --group-query-attention --num-query-groups --kv-channels --max-position-embeddings
    --position-embedding-type --rotary-base --rotary-percent --rotary-interleaved --rotary-scaling-factor
    --rotary-seq-len-interpolation-factor --use-rotary-position-embeddings --use-rope-scaling --rope-scaling-factor --rope-type
    --no-rope-fusion --no-rope-freq --no-position-embedding --mscale --mscale-all-dim --yarn-beta-fast --yarn-beta-slow
    --yarn-original-max-position-embeddings --no-yarn-correction-range-round-to-int --attention-dropout --hidden-dropout --swiglu
    --quick-geglu --squared-relu --openai-gelu --glu-linear-offset --activation-func-clamp-value --no-bias-gelu-fusion
    --normalization --norm-epsilon --apply-layernorm-1p --qk-layernorm --qk-l2-norm --init-method-std --embedding-init-method-std
    --init-method-xavier-uniform --disable-bias-linear --add-qkv-bias --attention-output-gate
    --untie-embeddings-and-output-weights --make-vocab-size-divisible-by --vocab-size --padded-vocab-size --softmax-type
    --window-size --window-attn-skip-freq --experimental-attention-variant --linear-attention-freq --linear-conv-kernel-dim
    --linear-key-head-dim --linear-num-key-heads --linear-num-value-heads --linear-value-head-dim --multi-latent-attention
    --q-lora-rank --kv-lora-rank --qk-head-dim --qk-pos-emb-head-dim --v-head-dim --moe-ffn-hidden-size --moe-layer-freq
    --moe-grouped-gemm --moe-apply-probs-on-input --moe-shared-expert-gate --moe-router-topk --moe-router-topk-scaling-factor
    --moe-router-pre-softmax --moe-router-score-function --moe-router-dtype --moe-router-enable-expert-bias
    --moe-router-bias-update-rate --moe-router-num-groups --moe-router-group-topk --moe-router-load-balancing-type
    --moe-aux-loss-coeff --moe-z-loss-coeff --moe-flex-dispatcher-backend --moe-enable-deepep --pretrained-checkpoint
    --reuse-grad-buf-for-mxfp8-param-ag
"""
MODEL: Final = frozenset(_MODEL.split())
"""Options of the model, which the job's workload states, and options that the emitter adds to go with those read."""

_SILENT: Final = re.compile(
    r"--(?:(?:no-)?(?:save|load|log|logging|logits|ckpt|dist-ckpt|non-persistent|persistent|tensorboard|wandb|one-logger|otel|"
    r"tokenizer|vocab|merge|data|dataloader(?!-inter)|num-dataset|train|valid|validation|test|eval|full-validation|lr|min-lr|"
    r"decoupled|weight-decay|wd|adam|lion|sgd|profile|use-pytorch-profiler|pytorch-profiler|nvtx|record|memory-snapshot|exit|"
    r"straggler|disable-straggler|inprocess|ft|calc-ft|fim|tiktoken|null-tokenizer|timing|flight-recorder|error-injection|"
    r"fault-injector|app-tag|rerun|seed|mock|per-split|per-dataset|object-storage|mid-level|eod|split|num-workers|mmap|"
    r"check-for|finetune|loss-scale|initial-loss|min-loss|hysteresis|clip-grad|start|end-weight|override|"
    r"use-checkpoint-opt|async|use-dist-ckpt|use-persistent|auto-detect|distributed-timeout|trust-remote|chat-template|inference|"
    r"iterations-to-skip|adlr|moe-per-layer-logging|moe-routing-trace)(?:[-_]\w+)*"
    r"|(?:no-)?manual-gc[\w-]*|use-mcore-models|use-flash-attn|distributed-backend|local-rank|lazy-mpu-init|no-initialization"
    r"|use-cpu-initialization|no-masked-softmax-fusion|calculate-per-token-loss"
    r"|disable-gloo-process-groups|mtp-loss-scaling-factor|fp8-(?:amax-[\w-]+|margin|interval)|verify-integrity|dump-param-to-param-group-map"
    r"|(?:enable|disable)-msc|enable-ft-package|enable-experimental|no-barrier-with-level-1-timing"
    r"|(?:nproc|nnodes|node|master|rdzv)(?:[-_]\w+)*|max[-_]restarts|standalone|tee|redirects|module)"
)
"""Options of data, tokenizer, optimizer constants, checkpoints, logs and launchers, which change neither time nor
memory of a step.
"""


def is_silent(option: str) -> bool:
    """Return whether an option changes neither time nor memory of a step, given the job's workload."""
    return option in MODEL or _SILENT.fullmatch(option) is not None
