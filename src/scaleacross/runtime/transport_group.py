"""Operations that the plan does not cover: torch's own on an inner gloo group (NCCL on a GPU), in the same trace."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scaleacross.runtime.arguments import any_form, size_bytes
from scaleacross.runtime.endpoint import listen_address
from scaleacross.runtime.faults import CollectiveError
from scaleacross.runtime.trace import FlightRecorder, Record, RecordedGroup

logger = logging.getLogger("scaleacross.runtime")
TORCH_BATCH = dist.batch_isend_irecv
"""torch's own function, before ``register`` replaces it by ``batched``."""


class TransportGroup(dist.ProcessGroup):
    """A process group that runs every operation on ``_inner``; ``ScaleAcrossGroup`` overrides those that a plan covers.

    Subclasses set ``_inner`` (a ``ProcessGroupGloo``), ``_recorder``, ``_recorded`` and ``_ranks`` (global ranks, by
    rank in the group).
    """

    _inner: Any
    _device_inner: Any = None
    _recorder: FlightRecorder
    _recorded: RecordedGroup
    _ranks: list[int]

    def _transport(self, tensors: Sequence[Tensor]) -> Any:
        """Return NCCL's group for tensors on a GPU if there is one, else gloo's."""
        return self._device_inner if self._device_inner is not None and tensors[0].is_cuda else self._inner

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Any:
        """Run ``torch.distributed.all_reduce`` on the transport."""
        return self._traced("all_reduce", tensors, tensors, lambda: self._transport(tensors).allreduce(tensors, opts))

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Any:
        """Run ``torch.distributed.all_gather_single`` on the transport."""
        run = lambda: self._transport([tensor])._allgather_base(output, tensor, opts)  # noqa: E731
        return self._traced("all_gather", [tensor], [output], run)

    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> Any:
        """Run ``torch.distributed.all_gather`` on the transport."""
        run = lambda: self._transport(tensors).allgather(outputs, tensors, opts)  # noqa: E731
        return self._traced("all_gather", tensors, outputs[0], run)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Any:
        """Run ``torch.distributed.reduce_scatter_single`` on the transport."""
        run = lambda: self._transport([tensor])._reduce_scatter_base(output, tensor, opts)  # noqa: E731
        return self._traced("reduce_scatter", [tensor], [output], run)

    def reduce_scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any) -> Any:
        """Run ``torch.distributed.reduce_scatter`` on the transport."""
        run = lambda: self._transport(outputs).reduce_scatter(outputs, tensors, opts)  # noqa: E731
        return self._traced("reduce_scatter", tensors[0], outputs, run)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        """Run ``torch.distributed.broadcast`` on the transport."""
        return self._traced("broadcast", tensors, tensors, lambda: self._transport(tensors).broadcast(tensors, opts))

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> Any:
        """Run ``torch.distributed.all_to_all_single`` on the transport."""
        run = lambda: self._transport([tensor]).alltoall_base(output, tensor, output_splits, input_splits, opts)  # noqa: E731
        return self._traced("all_to_all", [tensor], [output], run)

    @any_form
    def reduce(self, tensors: list[Tensor], opts: Any) -> Any:
        """Run ``torch.distributed.reduce`` on the transport."""
        return self._traced("reduce", tensors, tensors, lambda: self._transport(tensors).reduce(tensors, opts))

    @any_form
    def barrier(self, opts: Any) -> Any:
        """Run ``torch.distributed.barrier`` on gloo."""
        return self._traced("barrier", [], [], lambda: self._inner.barrier(opts))

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        """Run ``torch.distributed.send`` on the transport; ``peer`` is a rank of the group."""
        pair = (self._ranks[self.rank()], self._ranks[peer])
        return self._traced("send", tensors, [], lambda: self._transport(tensors).send(tensors, peer, tag), pair)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        """Run ``torch.distributed.recv`` on the transport; ``peer`` is a rank of the group."""
        pair = (self._ranks[peer], self._ranks[self.rank()])
        return self._traced("recv", [], tensors, lambda: self._transport(tensors).recv(tensors, peer, tag), pair)

    def send_and_receive(self, messages: Sequence[dist.P2POp]) -> list[Any]:
        """Post messages of GPU tensors together, so that none waits for another (``batch_isend_irecv``)."""
        me, records = self._ranks[self.rank()], []
        for message in messages:
            peer, sends = self._ranks[message.group_peer], message.op is dist.isend
            inputs, outputs = ([message.tensor], []) if sends else ([], [message.tensor])
            pair = (me, peer) if sends else (peer, me)
            records.append(self._begun("send" if sends else "recv", inputs, outputs, pair))
        self._device_inner._start_coalescing()
        for message in messages:
            post = self._device_inner.send if message.op is dist.isend else self._device_inner.recv
            post([message.tensor], message.group_peer, message.tag)
        work = self._device_inner._end_coalescing()
        return [TransportWork(work, record) for record in records]

    def _traced(
        self,
        op: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        run: Callable[[], Any],
        pair: tuple[int, int] | None = None,
    ) -> Any:
        """Run an operation of the transport and record it.

        Raises:
            CollectiveError: it cannot begin, because gloo connects to a peer when it first talks to it.
        """
        record = self._begun(op, inputs, outputs, pair)
        try:
            work = run()
        except RuntimeError as error:
            raise _failed(record, error) from error
        except Exception as error:
            record.end(error)
            raise
        if work is None:  # NCCL, where the caller waits anyway: it is queued on the caller's stream
            record.end()
            return None
        return TransportWork(work, record)

    def _begun(
        self, op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], pair: tuple[int, int] | None
    ) -> Record:
        """Begin a record. ``pair`` is (source, target) of a message, global ranks."""
        tensors = [*inputs, *outputs]
        record = self._recorder.begin(
            self._recorded,
            op,
            sum(tensor.numel() for tensor in inputs),
            sum(tensor.numel() for tensor in outputs),
            str(tensors[0].dtype).removeprefix("torch.") if tensors else "int8",
            num_bytes=max((sum(size_bytes(t) for t in side) for side in (inputs, outputs)), default=0),
            algorithm="transport",
            pair=pair,
        )
        record.start()
        return record


class TransportWork(dist.Work):
    """A work of the transport that ends its record when it is done."""

    def __init__(self, work: Any, record: Record) -> None:
        super().__init__()
        self._work, self._record = work, record
        with suppress(RuntimeError):  # messages have no future: their record ends with the wait
            if (future := work.get_future()) is not None:
                future.add_done_callback(lambda _: record.end())

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until it is done. Raises CollectiveError if the transport gave up."""
        self._record.await_result()
        try:
            done = bool(self._work.wait(timeout) if timeout.total_seconds() > 0 else self._work.wait())
        except RuntimeError as error:
            raise _failed(self._record, error) from error
        if self._record.completed_ns is None:
            self._record.end()
        return done

    def synchronize(self) -> None:
        """Wait until it is done, without a timeout."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it is done."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Return whether it is done and has not failed."""
        return bool(self._work.is_success())

    def exception(self) -> Any:
        """Return the error, if it failed."""
        return self._work.exception()

    def result(self) -> Any:
        """Return the tensors."""
        return self._work.result()

    def source_rank(self) -> int:
        """Return the rank that sent the message."""
        return int(self._work.source_rank())

    def get_future(self) -> Any:
        """Return the transport's own future."""
        self._record.hand_out_future()
        return self._work.get_future()


def _failed(record: Record, error: RuntimeError) -> CollectiveError:
    """Return the transport's error with ranks and operation, which its own message lacks; end the record with it."""
    failed = CollectiveError(f"{record.label()}, by gloo or NCCL: {error}")
    record.end(failed)
    return failed


def lazy_gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """Return a gloo group that connects to a peer at the first message and listens only on our listener's address.

    Connecting all ranks at once takes 2 · size + 1 store operations per rank, this takes one
    (benchmarks/start_scale.py).
    """
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=listen_address(), lazy_init=True)]
    return dist.ProcessGroupGloo(store, rank, size, options)


def has_nccl() -> bool:
    """Return whether this process has a GPU and a torch with NCCL."""
    return torch.cuda.is_available() and dist.is_nccl_available()


def nccl(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """Return NCCL's own group, which connects when it is first used."""
    share_gpus()
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


def batched(messages: list[dist.P2POp]) -> list[Any]:
    """Run ``torch.distributed.batch_isend_irecv``, for groups of this backend too.

    torch lets NCCL post messages together only in groups of its very own class. If they were posted one after the
    other, two large messages that cross each other, as in a pipeline, would wait for each other for ever.
    """
    dist.distributed_c10d._check_p2p_op_list(messages)
    group = messages[0].group
    if isinstance(group, TransportGroup) and group._transport([messages[0].tensor]) is not group._inner:
        return group.send_and_receive(messages)
    return list(TORCH_BATCH(messages))


def share_gpus() -> None:
    """Let ranks share a GPU on a machine with fewer GPUs than ranks: a plan can be tried out there, if slowly.

    NCCL refuses two ranks of one host on one GPU. A host name for each rank (``NCCL_HOSTID``) makes it treat them as
    ranks of different hosts. Their messages then go through sockets.
    """
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count() and "NCCL_HOSTID" not in os.environ:
        os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{os.environ.get('LOCAL_RANK', os.getpid())}"
        if os.environ.get("LOCAL_RANK") == "0":
            logger.warning(
                "fewer GPUs than ranks on this machine: ranks share them, and NCCL's messages go through sockets"
            )
