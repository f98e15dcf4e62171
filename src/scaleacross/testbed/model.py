"""The transformer that ranks of a testbed train, whole or in pipeline stages; results are equal in every plan.

Layers pass their results on in bf16, between two ranks as inside one, so it makes no difference where a plan cuts the
model. Everything else is fp32. Every layer is drawn from a seed of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scaleacross.testbed.model_shape import ModelShape


class Block(nn.Module):
    """One transformer layer: causal attention and a feed-forward net, each after a norm."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.num_heads = shape.num_heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) bf16 to the same shape and type."""
        batch, length, width = x.shape
        x = x.float()
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return (x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))).bfloat16()


class Embedding(nn.Module):
    """Tokens to bf16 features."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.table = nn.Embedding(shape.vocabulary_size, shape.hidden_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) to (batch, length, width)."""
        return self.table(tokens).bfloat16()


class Head(nn.Module):
    """bf16 features to fp32 logits."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.hidden_size)
        self.project = nn.Linear(shape.hidden_size, shape.vocabulary_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to (batch, length, vocabulary)."""
        return self.project(self.norm(x.float()))


def part_of(shape: ModelShape, first_layer: int, num_layers: int) -> nn.Sequential:
    """Return layers ``first_layer`` and following, with embedding and head if they include the first and last layer."""
    layers: list[nn.Module] = []
    if first_layer == 0:
        layers.append(_drawn(shape, Embedding, 0))
    layers += [_drawn(shape, Block, 1 + layer) for layer in range(first_layer, first_layer + num_layers)]
    if first_layer + num_layers == shape.num_layers:
        layers.append(_drawn(shape, Head, 1 + shape.num_layers))
    return nn.Sequential(*layers)


def _drawn(shape: ModelShape, kind: type[nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return kind(shape)


def batch_of(step: int, sequences: range, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets: sequences that count up by a random stride, the same whichever rank trains on them."""
    rows = []
    for sequence in sequences:
        random = torch.Generator().manual_seed(100_000 * step + sequence)
        start = torch.randint(vocabulary, (1,), generator=random)
        stride = torch.randint(1, 4, (1,), generator=random)
        rows.append((start + stride * torch.arange(length + 1)) % vocabulary)
    tokens = torch.stack(rows)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
