"""Keeps a rank's parameters and gradients as two flat tensors, so that collectives run on them as the plan predicts."""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch import nn

LEARNING_RATE: Final = 3e-3


class FlatParameters:
    """The parameters of a module, reduced and updated as the plan says.

    Without a shard group, gradients are all-reduced over the replicas and every rank updates all parameters. With one
    (ZeRO-1), gradients are reduce-scattered over it. The shard is all-reduced over the replicas and updated, and the
    parameters are gathered.

    Args:
        shards: the group that shares optimizer states; None: nobody does.
        replicas: the group of equal shards; None: there is one.
        bucket_parameters: approximate number of parameters of one collective.
    """

    def __init__(
        self,
        module: nn.Module,
        shards: dist.ProcessGroup | None,
        replicas: dist.ProcessGroup | None,
        bucket_parameters: int,
    ) -> None:
        parameters = list(module.parameters())
        self.shards, self.replicas = shards, replicas
        self._num_shards = 1 if shards is None else shards.size()
        self._num_replicas = self._num_shards * (1 if replicas is None else replicas.size())
        count = sum(parameter.numel() for parameter in parameters)
        num_buckets = max(1, round(count / bucket_parameters))
        # padded so that every shard of a bucket has the same number of parameters
        bucket = -(-count // (num_buckets * self._num_shards)) * self._num_shards
        self.values = torch.zeros(num_buckets, bucket)
        self.gradients = torch.zeros(num_buckets, bucket)
        start, values, gradients = 0, self.values.view(-1), self.gradients.view(-1)
        for parameter in parameters:
            end = start + parameter.numel()
            values[start:end] = parameter.data.flatten()
            parameter.data = values[start:end].view_as(parameter)
            parameter.grad = gradients[start:end].view_as(parameter)
            start = end
        self._own = nn.Parameter(torch.zeros(num_buckets, bucket // self._num_shards))
        self._own.grad = torch.zeros_like(self._own)
        rank = 0 if shards is None else shards.rank()
        with torch.no_grad():
            self._own.copy_(self.values.view(num_buckets, self._num_shards, -1)[:, rank])
        self._optimizer = torch.optim.AdamW([self._own], lr=LEARNING_RATE)

    def update(self) -> None:
        """Reduce, update and gather; gradients are zero afterwards."""
        for index, bucket in enumerate(self.gradients):
            own = self._own.grad[index]
            if self.shards is None:
                own = bucket
            else:
                dist.reduce_scatter_single(own, bucket, group=self.shards)
            if self.replicas is not None:
                dist.all_reduce(own, group=self.replicas)
            if self.shards is None:
                self._own.grad[index].copy_(own)
        self._own.grad.div_(self._num_replicas)
        self._optimizer.step()
        with torch.no_grad():
            for bucket, own in zip(self.values, self._own, strict=True):
                if self.shards is None:
                    bucket.copy_(own)
                else:
                    dist.all_gather_single(bucket, own, group=self.shards)
        self.gradients.zero_()
