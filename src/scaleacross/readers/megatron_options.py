"""Which Megatron-LM options are read, and which are refused by name.

Option names: NVIDIA/Megatron-LM megatron/training/arguments.py (d98e8a64).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_READ = """
    --num-layers --hidden-size --num-experts --tensor-model-parallel-size --pipeline-model-parallel-size --context-parallel-size
    --expert-model-parallel-size --expert-tensor-parallel-size --micro-batch-size --global-batch-size
    --seq-length --use-distributed-optimizer --num-distributed-optimizer-instances --use-megatron-fsdp
    --data-parallel-sharding-strategy --hierarchical-context-parallel-sizes --cp-comm-type
    --recompute-granularity --recompute-activations --recompute-modules --recompute-method --recompute-num-layers
    --cpu-offloading-num-layers --optimizer-offload-fraction --optimizer-cpu-offload
    --overlap-cpu-optimizer-d2h-h2d --microbatch-group-size-per-virtual-pipeline-stage --pipeline-model-parallel-layout
    --num-layers-per-virtual-pipeline-stage --fp4-recipe --fp8-recipe --fp4-format --fp8-format --fp16 --bf16
    --accumulate-allreduce-grads-in-fp32 --grad-reduce-in-bf16 --fp8-param-gather --fp4-param-gather --optimizer
    --no-gradient-accumulation-fusion --ddp-bucket-size --overlap-grad-reduce --overlap-param-gather
    --no-overlap-p2p-communication --moe-permute-fusion --moe-shared-expert-intermediate-size --moe-shared-expert-overlap
    --moe-token-dispatcher-type --cuda-graph-impl --cuda-graph-modules --use-tp-pp-dp-mapping --tp-comm-overlap
    --overlap-moe-expert-parallel-comm
"""
READ: Final = frozenset(_READ.split())
"""Options whose values must be plain, and the same wherever they are repeated."""

COMMUNICATORS: Final = "--nccl-communicator-config-path"
"""Read too, but not its value: the file is the plan's."""

REFUSED: Final[Mapping[str, str]] = {
    "--num-virtual-stages-per-pipeline-rank": "state --num-layers-per-virtual-pipeline-stage or a layout",
    "--decoder-first-pipeline-num-layers": "state --pipeline-model-parallel-layout",
    "--decoder-last-pipeline-num-layers": "state --pipeline-model-parallel-layout",
    "--account-for-embedding-in-pipeline-split": "state --pipeline-model-parallel-layout",
    "--account-for-loss-in-pipeline-split": "state --pipeline-model-parallel-layout",
    "--fine-grained-activation-offloading": "offloading by module is not modelled; state --cpu-offloading-num-layers",
    "--use-torch-fsdp2": "state --use-megatron-fsdp",
    "--first-last-layers-bf16": "layers in 16 bit beside others in 8 or 4 are not modelled; leave it out",
    "--fp8-output-proj": "the output projection is modelled in 16 bit; leave it out",
    "--fp8-dot-product-attention": "attention is modelled in 16 bit; leave it out",
    "--te-precision-config-file": "precisions by module are not modelled; leave it out",
}
"""Options that no plan can say, and the way out."""
