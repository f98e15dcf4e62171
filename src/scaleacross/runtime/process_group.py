"""Backend ``scaleacross`` of ``torch.distributed``: collectives run the plan's schedules, others gloo or NCCL.

Use it by ``init_process_group("cpu:scaleacross")``, or by plain ``"scaleacross"`` after ``import scaleacross.runtime``.
Methods that are not defined here (reduce, gather, scatter, send, recv, …) run on an inner group: gloo, or NCCL for
tensors on a GPU. So do collectives for which the plan names no schedule; the first of each kind is logged.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Sequence
from datetime import timedelta
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.runtime import operations
from scaleacross.runtime.arguments import any_form, is_plain, reduction_name, size_bytes, timeout_seconds, waits
from scaleacross.runtime.codecs import carries, settling
from scaleacross.runtime.collective_queue import CollectiveQueue, GroupMembers
from scaleacross.runtime.communicator import Communicator, LinkSettings
from scaleacross.runtime.endpoint import listen_address
from scaleacross.runtime.point_to_point import PointToPoint
from scaleacross.runtime.policy import Chosen, Policy, launch_policy
from scaleacross.runtime.reduction import can_reduce
from scaleacross.runtime.trace import FlightRecorder
from scaleacross.runtime.tracing import recorded_name, recorder_of_process, short_name
from scaleacross.runtime.transport_group import TransportGroup, batched, has_nccl, lazy_gloo, nccl
from scaleacross.runtime.work import joined
from scaleacross.schedules.collective import Operation

logger = logging.getLogger("scaleacross.runtime")

BACKEND = "scaleacross"


class Options:
    """``pg_options`` of this backend.

    Args:
        policy: schedules to run; None: those of the launch file.
        recorder: flight recorder of the group; None: that of this process.
        point_to_point: run collectives of CPU tensors over gloo's send and receive, as those of GPU tensors run over
            NCCL's.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        recorder: FlightRecorder | None = None,
        point_to_point: bool = False,
    ) -> None:
        self.policy, self.recorder, self.point_to_point = policy, recorder, point_to_point


class ScaleAcrossGroup(TransportGroup):
    """A process group that executes schedules."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        global_ranks: Sequence[int],
        options: Options,
    ) -> None:
        super().__init__(rank, size)
        self._my_rank, self._num_ranks = rank, size
        self._ranks = list(global_ranks) or list(range(size))
        self._policy = options.policy or launch_policy(self._ranks, LinkSettings())
        self._recorder = options.recorder or recorder_of_process(self._ranks[rank])
        self._recorded = self._recorder.group(
            recorded_name(name, self._ranks), self._ranks, self._policy.axis, self._policy.planned
        )
        self._name = name
        self._said: set[str] = set()
        self._inner = lazy_gloo(dist.PrefixStore("gloo", store), rank, size, timeout)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._inner)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        policy = self._policy
        self._communicator = Communicator(
            group=f"{name}/{self._ranks[0]}",
            rank=rank,
            names=[f"rank {global_rank}" for global_rank in self._ranks],
            store=dist.PrefixStore(BACKEND, store),
            address=listen_address(),
            process_id=os.getpid(),
            settings=lambda peer: policy.settings(rank, peer),
        )
        over: dict[str, PointToPoint] = {}
        if options.point_to_point:
            over["cpu"] = PointToPoint(lazy_gloo(dist.PrefixStore("p2p", store), rank, size, timeout), rank, size)
        if has_nccl():
            self._device_inner = nccl(dist.PrefixStore("nccl", store), rank, size, timeout)
            self._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, self._device_inner)
            over["cuda"] = PointToPoint(nccl(dist.PrefixStore("nccl-p2p", store), rank, size, timeout), rank, size)
        self._runs_on = {"cpu", *over}
        members = GroupMembers(name, rank, self._ranks)
        self._queue = CollectiveQueue(
            members, self._communicator, self._recorder, self._recorded, timeout.total_seconds(), over
        )
        weakref.finalize(self, self._communicator.drop)  # torch drops a destroyed group without a word

    # --- what the plan covers -----------------------------------------------------------------------------------------

    @any_form
    def allreduce(self, tensors: list[Tensor], opts: Any) -> Any:
        """All-reduce one tensor in place."""
        (tensor,) = tensors
        reduction = reduction_name(opts.reduceOp)
        chosen = self._chosen(Operation.ALL_REDUCE, [tensor], size_bytes(tensor), reduction)
        if chosen is None:
            return super().allreduce(tensors, opts)
        flat, codes = tensor.contiguous(), self._codes(chosen, tensor.dtype, reduction)

        def run(sequence: int) -> operations.Prepared:
            return operations.all_reduce(chosen.schedule, self._my_rank, sequence, flat, reduction, codes)

        after = None if flat.data_ptr() == tensor.data_ptr() else lambda: tensor.copy_(flat)
        return self._queue.submit(
            chosen, [tensor], [tensor], size_bytes(tensor), run, timeout_seconds(opts), after, waits(opts)
        )

    @any_form
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Any:
        """All-reduce several tensors, one after the other."""
        return joined([self.allreduce([tensor], opts) for tensor in tensors])

    @any_form
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Any:
        """Gather the shards of all ranks, one after the other in ``output``."""
        chosen = self._chosen(Operation.ALL_GATHER, [output, tensor], size_bytes(output))
        if chosen is None or output.numel() != tensor.numel() * self._num_ranks or not output.is_contiguous():
            return super().all_gather_single(output, tensor, opts)
        flat, codes = tensor.contiguous(), self._codes(chosen, tensor.dtype)

        def run(sequence: int) -> operations.Prepared:
            return operations.all_gather(chosen.schedule, self._my_rank, sequence, output, flat, codes)

        return self._queue.submit(
            chosen, [tensor], [output], size_bytes(output), run, timeout_seconds(opts), None, waits(opts)
        )

    _allgather_base = all_gather_single

    @any_form
    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> Any:
        """Gather every rank's tensor into one tensor per rank."""
        (tensor,), (parts,) = tensors, outputs
        size = size_bytes(tensor) * self._num_ranks
        chosen = self._chosen(Operation.ALL_GATHER, [tensor, *parts], size)
        if chosen is None or any(part.shape != tensor.shape for part in parts):
            return super().allgather(outputs, tensors, opts)
        whole = torch.empty((self._num_ranks, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        flat, codes = tensor.contiguous(), self._codes(chosen, tensor.dtype)

        def run(sequence: int) -> operations.Prepared:
            return operations.all_gather(chosen.schedule, self._my_rank, sequence, whole, flat, codes)

        def after() -> None:
            for part, value in zip(parts, whole, strict=True):
                part.copy_(value)

        return self._queue.submit(chosen, [tensor], parts, size, run, timeout_seconds(opts), after, waits(opts))

    @any_form
    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any) -> Any:
        """Gather several tensors, one after the other."""
        return joined([self.all_gather_single(o, t, opts) for o, t in zip(outputs, tensors, strict=True)])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @any_form
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Any:
        """Reduce ``tensor`` and keep the shard of the own rank in ``output``."""
        reduction = reduction_name(opts.reduceOp)
        chosen = self._chosen(Operation.REDUCE_SCATTER, [output, tensor], size_bytes(tensor), reduction)
        if chosen is None or tensor.numel() != output.numel() * self._num_ranks or not output.is_contiguous():
            return super().reduce_scatter_single(output, tensor, opts)
        flat, codes = tensor.contiguous(), self._codes(chosen, tensor.dtype, reduction)

        def run(sequence: int) -> operations.Prepared:
            return operations.reduce_scatter(chosen.schedule, self._my_rank, sequence, output, flat, reduction, codes)

        return self._queue.submit(
            chosen, [tensor], [output], size_bytes(tensor), run, timeout_seconds(opts), None, waits(opts)
        )

    _reduce_scatter_base = reduce_scatter_single

    @any_form
    def reduce_scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any) -> Any:
        """Reduce one tensor per rank and keep that of the own rank."""
        (output,), (parts,) = outputs, tensors
        if any(part.shape != output.shape for part in parts) or not output.is_contiguous():
            return super().reduce_scatter(outputs, tensors, opts)
        return self.reduce_scatter_single(output, torch.cat([part.reshape(-1) for part in parts]), opts)

    @any_form
    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any) -> Any:
        """Reduce-scatter several tensors, one after the other."""
        return joined([self.reduce_scatter_single(o, t, opts) for o, t in zip(outputs, tensors, strict=True)])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @any_form
    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        """Broadcast one tensor from ``opts.rootRank``."""
        (tensor,) = tensors
        chosen = self._chosen(Operation.BROADCAST, [tensor], size_bytes(tensor))
        if chosen is None:
            return super().broadcast(tensors, opts)
        flat = tensor.contiguous()

        def run(sequence: int) -> operations.Prepared:
            return operations.broadcast(chosen.schedule, self._my_rank, sequence, flat, opts.rootRank)

        after = None if flat.data_ptr() == tensor.data_ptr() else lambda: tensor.copy_(flat)
        return self._queue.submit(
            chosen, [tensor], [tensor], size_bytes(tensor), run, timeout_seconds(opts), after, waits(opts)
        )

    @any_form
    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> Any:
        """Send rows of ``tensor`` by destination. Without splits every rank gets the same number."""
        chosen = self._chosen(Operation.ALL_TO_ALL, [output, tensor], size_bytes(tensor))
        if chosen is None or not output.is_contiguous():
            return super().all_to_all_single(output, tensor, output_splits, input_splits, opts)
        sends, receives = self._splits(tensor, input_splits), self._splits(output, output_splits)
        flat = tensor.contiguous()
        gathered = None
        # a rank that forwards blocks must know the counts of every pair
        if operations.needs_all_counts(chosen.schedule):
            gathered = self._queue.all_counts(sends, timeout_seconds(opts))

        def run(sequence: int) -> operations.Prepared:
            counts = [*sends, *receives] if gathered is None else gathered.tolist()
            return operations.all_to_all(chosen.schedule, self._my_rank, sequence, output, flat, counts)

        return self._queue.submit(
            chosen, [tensor], [output], size_bytes(tensor), run, timeout_seconds(opts), None, waits(opts)
        )

    alltoall_base = all_to_all_single

    # --- the rest -----------------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """Return the name that scripts give."""
        return BACKEND

    name = getBackendName

    def abort(self) -> None:
        """Give up at once, and tell the peers that wait for this rank."""
        self._communicator.close("abort() was called")
        self._inner.abort()

    def shutdown(self) -> None:
        """End the thread of the group once everything queued is done."""
        self._communicator.close()

    def exchanged_bytes(self) -> tuple[int, int]:
        """Return (sent, received) payload bytes of planned collectives since the group began."""
        return self._communicator.exchanged_bytes()

    def _chosen(
        self, operation: Operation, tensors: list[Tensor], num_bytes: int, reduction: str | None = None
    ) -> Chosen | None:
        """Return the policy's choice; None, logged once per kind, if the executor cannot run it on these tensors."""
        dtype = tensors[0].dtype
        if any(not is_plain(tensor, self._runs_on) for tensor in tensors):
            self._say(f"{operation.value} of tensors that are sparse or on {tensors[0].device.type}")
            return None
        if operation is Operation.ALL_TO_ALL and tensors[0].device.type != "cpu":
            self._say(f"{operation.value} on {tensors[0].device.type}, whose counts no other rank knows,")
            return None
        if reduction is not None and not can_reduce(dtype, reduction):
            self._say(f"{operation.value} {reduction} of {dtype}")
            return None
        chosen = self._policy.choose(operation, num_bytes)
        if chosen is None:
            self._say(operation.value)
        return chosen

    def _codes(self, chosen: Chosen, dtype: torch.dtype, reduction: str = "sum") -> operations.Codes | None:
        """Return the encoding of messages between far ranks, or None if the codec does not make ``dtype`` smaller.

        Only sums and averages may be inexact; other reductions are never encoded.
        """
        codec, rank = chosen.codec, self._my_rank
        if codec is None or reduction not in ("sum", "avg") or not carries(codec, dtype):
            return None
        return operations.Codes(
            lambda peer: codec if chosen.far(rank, peer) else None, settling(codec), f"{codec.name} between far ranks"
        )

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            if self._my_rank == 0:
                name, where = short_name(self._name), self._policy.why
                logger.warning("group %s: %s is not in %s: gloo's own runs, on a GPU NCCL's", name, what, where)

    def _splits(self, tensor: Tensor, splits: list[int]) -> list[int]:
        """Return the elements per rank of a tensor that is split along its first dimension."""
        if not splits:
            return [tensor.numel() // self._num_ranks] * self._num_ranks
        row = prod(tensor.shape[1:])
        return [count * row for count in splits]


def create(options: Any, backend_options: Any) -> ScaleAcrossGroup:
    """Create a group of this backend; ``torch.distributed`` calls it."""
    return ScaleAcrossGroup(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        options.global_ranks_in_group,
        backend_options if isinstance(backend_options, Options) else Options(),
    )


def register() -> None:
    """Register the backend with ``torch.distributed``; a second call has no effect."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
        dist.batch_isend_irecv = dist.distributed_c10d.batch_isend_irecv = batched
