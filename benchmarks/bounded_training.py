"""A small recommendation model on synthetic click data, with vectors within an error bound and as they are, over seeds.

    PYTHONPATH=src python benchmarks/bounded_training.py --bounds 0.03 --seeds 3     # about half a minute of CPU

Needs torch. Clicks are drawn from a hidden model of the same form, so losses say nothing about real data: only whether a bound
changes them by more than seeds do. Vectors are coded and decoded as ``runtime.bounded_rows`` does; gradients pass as they are.
"""

from __future__ import annotations

import argparse
from statistics import mean, stdev

import torch

from scaleacross.row_codec.message import RowCodec, read_rows
from scaleacross.row_codec.quantiser import absolute_bound

TABLES, ROWS, WIDTH, DENSE, BATCH = 6, 2000, 16, 8, 256


class Coded(torch.autograd.Function):
    """Vectors as the receiver sees them."""

    @staticmethod
    def forward(ctx: object, vectors: torch.Tensor, fraction: float) -> torch.Tensor:
        rows = vectors.detach().numpy()
        return torch.from_numpy(read_rows(RowCodec(absolute_bound(rows, fraction), "packed").write(rows)))

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class Model(torch.nn.Module):
    """Tables and dense features through one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(ROWS, WIDTH, sparse=False) for _ in range(TABLES))
        for table in self.tables:
            torch.nn.init.normal_(table.weight, std=0.1)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(TABLES * WIDTH + DENSE, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def forward(self, ids: torch.Tensor, dense: torch.Tensor, fraction: float) -> torch.Tensor:
        vectors = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        if fraction:
            vectors = [Coded.apply(one, fraction) for one in vectors]
        return self.top(torch.cat([*vectors, dense], dim=1)).squeeze(1)


def trained(seed: int, fraction: float, steps: int) -> float:
    """Mean loss on 20 batches that training has not seen."""
    torch.manual_seed(12345)
    hidden = torch.randn(TABLES, ROWS)
    torch.manual_seed(seed)
    model = Model()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(seed)

    def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ids = (torch.rand(BATCH, TABLES, generator=generator) ** 3 * ROWS).long()
        dense = torch.randn(BATCH, DENSE, generator=generator)
        logit = sum(hidden[i, ids[:, i]] for i in range(TABLES)) + dense[:, 0] - 0.5
        return ids, dense, (torch.rand(BATCH, generator=generator) < torch.sigmoid(logit)).float()

    loss_of = torch.nn.BCEWithLogitsLoss()
    for _ in range(steps):
        ids, dense, clicks = batch()
        optimizer.zero_grad()
        loss_of(model(ids, dense, fraction), clicks).backward()
        optimizer.step()
    with torch.no_grad():
        held = [batch() for _ in range(20)]
        return mean(float(loss_of(model(ids, dense, fraction), clicks)) for ids, dense, clicks in held)


def main() -> None:
    """Losses by bound, and how far seeds differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bounds", default="0.01,0.03")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1500)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for fraction in (0.0, *map(float, asked.bounds.split(","))):
        losses = [trained(seed, fraction, asked.steps) for seed in range(asked.seeds)]
        spread = stdev(losses) if len(losses) > 1 else 0.0
        print(
            f"bound {fraction:<5g} loss {mean(losses):.5f} deviation over seeds {spread:.5f}  {[round(one, 5) for one in losses]}"
        )


if __name__ == "__main__":
    main()
