"""DDP's communication hook for replicas: gradients are summed among them while backward runs.

    replicas.join()
    model = DistributedDataParallel(model, process_group=ranks_of_this_replica)   # one rank or several
    model.register_comm_hook(replicas, replica_hook)
    ...
    replicas.expect(samples)       # of this rank: what its gradients will be the mean over
    loss.backward()
    replicas.take_step(samples)

DDP itself sees only the gradients of its own replica, so that no other replica's loss is an error in backward.
"""

# no `from __future__ import annotations`: DDP looks at the hook's annotations and takes no names for types
import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.runtime.replicas.member import Replicas


def replica_hook(replicas: Replicas, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average ``bucket`` inside the replica, as DDP would, then begin its sum over the replicas."""
    parameters, last = bucket.parameters(), bucket.buffer()
    group = replicas.inside
    if group is None or dist.get_world_size(group) == 1:
        averaged: torch.futures.Future[Tensor] = torch.futures.Future()
        averaged.set_result(last)
    else:
        last.div_(dist.get_world_size(group))
        work = dist.all_reduce(last, group=group, async_op=True)
        averaged = work.get_future().then(lambda future: future.value()[0])

    def go_on(future: torch.futures.Future[Tensor]) -> Tensor:
        value = future.value()
        replicas.begin(value, parameters)
        return value

    return averaged.then(go_on)
