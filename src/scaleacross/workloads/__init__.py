"""Model families. Each lowers to ``ModelProfile``; nothing downstream asks which family it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.dense_transformer import DenseTransformer
from scaleacross.workloads.layer_profile import Workload
from scaleacross.workloads.moe_transformer import MoeTransformer

FAMILIES: Final[Mapping[str, type[Workload]]] = {
    "dense_transformer": DenseTransformer,
    "moe_transformer": MoeTransformer,
    "decoder": Decoder,
}
