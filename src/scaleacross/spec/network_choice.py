"""The network part of a decision: how every communicator runs each kind of collective that it issues."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from scaleacross.spec.base import Spec
from scaleacross.spec.network import LinkLevel

Communicator = Literal["tp", "cp", "cp_inner", "cp_outer", "dp_shard", "dp_replicate", "pp", "ep", "expert"]
"""A grid axis, ``ep``, or ``expert``: the replicas of an expert inside dp_shard."""

CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

Algorithm = Literal["library", "ring", "tree", "hierarchical", "pairwise", "point_to_point"]
"""Algorithm of a collective.

``library``: inside one scale-up domain the library chooses, and its measured curve gives the time. ``tree`` is the
double binary tree. ``pairwise`` sends to every peer directly.
"""

ALGORITHM_NAMES: Final = ("none", "ring", "hierarchical", "tree", "pairwise", "point_to_point", "measured")
"""Values of ``PredictedCollective.algorithm``; ``measured``: the library's measured curve gives the time."""
LevelAlgorithm = Literal["ring", "halving_doubling"]

Driver = Literal["multiprocessors", "copy_engines", "host"]
"""Hardware that moves the bytes.

``multiprocessors``: kernels. ``copy_engines``: copy engines with RDMA. ``host``: copies to host memory, RDMA, and
copies back.
"""

DRIVER_NAMES: Final[Mapping[Driver, str]] = {
    "multiprocessors": "kernels",
    "copy_engines": "copy engines",
    "host": "the host",
}

LoadBalancing = Literal["ecmp", "spray"]
"""Use of parallel links by a connection's queue pairs: each is hashed onto one link, or fed as fast as it drains."""

BlockCodecName = Literal["bf16", "fp8_block", "int8_block", "int4_block"]
BLOCK_CODEC_NAMES: tuple[BlockCodecName, ...] = get_args(BlockCodecName)
"""Codecs of fixed length with a relative error: a plan may choose them."""

CodecName = Literal[BlockCodecName, "bounded"]
"""``bounded`` uses as many bits as an absolute error bound needs. It is stated by the user, never chosen."""

CHANNEL_BYTES_PER_S: Final = 25e9
"""Assumed: rate of one block of threads that copies to a network adapter. NCCL has two channels per 400 Gbit/s port."""
LIBRARY_SEGMENT_BYTES: Final = 512 * 1024
"""NCCL 2.31: 4 MiB of buffer per channel (NCCL_BUFFSIZE), cut into 8 steps (NCCL_STEPS)."""
LIBRARY_OUTSTANDING: Final = 8


ENGINE_MULTIPROCESSORS: Final = 1
"""Paper: Meta engineering post on GEM training (2026-08-03): from 24 multiprocessors to 1 for an all-gather of NCCLX."""
ENGINE_SHARE: Final = 380 / 394
"""Rate of copy engines over that of kernels inside a scale-up domain.

Datasheet: tuning tables of NCCL 2.27.5 on 8 H100 (AutoParallel): copy engines 380 GB/s, a gather by kernels 394 at 1
GB.
"""
ENGINE_START_S: Final = 20e-6
"""Extra start-up compared with kernels. Datasheet: the same tables: 50 µs by copy engines, 30 by kernels."""
HOST_TOUCHES: Final = 3.0
"""Accesses to host memory per byte that the host relays.

The adapter writes the byte, the adapter reads it to pass it on, and the copy to the accelerator reads it. Derived from
the path of arXiv 2604.24073: to the host, round a ring of RDMA there, and back.
"""


MOVES: Final[tuple[CollectiveOp, ...]] = ("all_gather", "all_to_all")
"""Operations that every driver runs.

Other operations add up, or are messages, which are assumed to hold no multiprocessors.
"""


def held_by(driver: Driver, num_held: int) -> int:
    """Multiprocessors that ``driver`` holds for a collective that holds ``num_held`` with kernels."""
    return {"multiprocessors": num_held, "copy_engines": min(num_held, ENGINE_MULTIPROCESSORS), "host": 0}[driver]


class LevelStep(Spec):
    """Algorithm of a hierarchical collective on one of the levels that it crosses."""

    level: LinkLevel
    algorithm: LevelAlgorithm


class Connection(Spec):
    """Connection of one rank to one peer across a level, with at most ``window_bytes`` in flight."""

    level: LinkLevel = Field(description="distance class: outermost level between the two")
    queue_pairs: Annotated[int, Field(ge=1, le=128)] = Field(description="data queue pairs of the connection")
    segment_bytes: PositiveInt = Field(description="largest message on a queue pair, bytes")
    outstanding: Annotated[int, Field(ge=1, le=256)] = Field(description="unacknowledged segments per queue pair")
    load_balancing: LoadBalancing = Field(description="how queue pairs use parallel links")

    @property
    def window_bytes(self) -> int:
        """Most bytes in flight to one peer."""
        return self.queue_pairs * self.outstanding * self.segment_bytes


class Compression(Spec):
    """A codec, the levels on which messages are encoded, and the figures that justified the choice."""

    codec: CodecName
    levels: tuple[LinkLevel, ...] = Field(min_length=1, description="levels on which messages travel encoded")
    ratio: Annotated[float, Field(ge=1)] = Field(description="bytes of a message over bytes sent")
    encode_bytes_per_s: PositiveFloat = Field(description="of the message as it is, on one accelerator")
    decode_bytes_per_s: PositiveFloat = Field(description="likewise")
    relative_error: Annotated[float, Field(gt=0)] = Field(
        description="of an element over the largest of its block of 256, at most, all encodings of a result added up"
    )
    error_bound: float | None = Field(
        default=None, gt=0, description="of codec bounded: most that an element may be off per crossing, absolute"
    )

    @model_validator(mode="after")
    def _bound_belongs_to_bounded(self) -> Compression:
        if (self.codec == "bounded") != (self.error_bound is not None):
            needs = "needs an error_bound" if self.codec == "bounded" else "takes no error_bound"
            raise ValueError(f"codec {self.codec} {needs}")
        return self


LEAST_PIECE_BYTES: Final = 64 * 1024
"""Assumed: below this a piece is dominated by per-message cost, so smaller messages are not cut."""


def num_pieces(size_bytes: float, num_chunks: int, chunk_bytes: float) -> int:
    """Number of pieces of a call of ``size_bytes``, if the largest call has ``num_chunks`` pieces of ``chunk_bytes``.

    A smaller call has a power of two of them. None is below LEAST_PIECE_BYTES or, if that is less, ``chunk_bytes``.
    """
    # chunk_bytes is a rounded quotient, so the largest call may fall just short of the product
    if size_bytes >= num_chunks * chunk_bytes * (1 - 1e-6):
        return num_chunks
    most = size_bytes / min(LEAST_PIECE_BYTES, chunk_bytes)
    return min(num_chunks, 2 ** int(math.log2(most))) if most >= 2 else 1


class CommunicatorChoice(Spec):
    """How one communicator runs one kind of collective."""

    communicator: Communicator
    op: CollectiveOp
    payload: str = Field(description="what is sent, as in the plan's collectives, e.g. 'gradients'")
    algorithm: Algorithm
    steps: tuple[LevelStep, ...] = Field(
        default=(), description="of a hierarchical algorithm, outermost level first; empty for the others"
    )
    num_chunks: PositiveInt = Field(default=1, description="pieces that follow one another through the levels")
    chunk_bytes: float = Field(gt=0, description="size of a piece: the collective's size over num_chunks, bytes")
    num_channels: NonNegativeInt = Field(
        description="blocks of threads that drive it beyond the scale-up domain, each on one multiprocessor (of other drivers: "
        "lanes that move as much); 0: it stays inside"
    )
    connections: tuple[Connection, ...] = Field(
        default=(), description="one per crossed level beyond the scale-up domain, innermost first"
    )
    traffic_class: Annotated[int, Field(ge=0, le=255)] | None = Field(
        default=None, description="traffic class of its packets (InfiniBand TClass, IP ToS); None: the site's default"
    )
    compression: Compression | None = Field(default=None, description="None: nothing is encoded")
    driver: Driver = Field(
        default="multiprocessors",
        description="what moves the bytes; copy_engines and host leave multiprocessors to computation, and only move, not add",
    )

    @property
    def key(self) -> tuple[str, str, str]:
        """Communicator, operation and payload to which the choice applies."""
        return self.communicator, self.op, self.payload

    @property
    def label(self) -> str:
        """Name of the algorithm, with the algorithm of each level in brackets, outermost first."""
        if not self.steps:
            return self.algorithm
        return f"{self.algorithm}({', '.join(f'{step.algorithm} {step.level}' for step in self.steps)})"

    @model_validator(mode="after")
    def _steps_belong_to_hierarchical(self) -> CommunicatorChoice:
        if bool(self.steps) != (self.algorithm == "hierarchical"):
            raise ValueError(f"{' '.join(self.key)}: steps belong to a hierarchical algorithm, not to {self.algorithm}")
        if self.num_chunks > 1 and self.algorithm != "hierarchical":
            raise ValueError(
                f"{' '.join(self.key)}: {self.num_chunks} chunks; only a hierarchical algorithm is cut, "
                f"{self.algorithm} pipelines by itself"
            )
        return self
