"""The emitted variables of NCCL and NCCLX, with defaults and accepted values. No other variable is written.

Names, defaults and ranges: NCCL 2.31 (src/include, docs "Environment Variables") and torchcomms 59426ba4
(comms/utils/cvars/nccl_cvars.yaml).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scaleacross.errors import EmitError
from scaleacross.spec.launch import EnvVariable

DEFAULT_IB_TIMEOUT: Final = 20
CLASS: Final = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
"""Pattern of a traffic class, 0 to 255."""
# assumed: largest buffer per channel; beyond it the memory of all connections outgrows the gain.
MAX_BUFFER_BYTES: Final = 64 * 2**20


@dataclass(frozen=True)
class Variable:
    """What a variable accepts: ``pattern`` on the whole value; for plain integers also bounds."""

    default: str
    pattern: str = r"\d+"
    low: int = 0
    high: int = 2**31 - 1


VARIABLES: Final[Mapping[str, Variable]] = {
    "NCCL_BUFFSIZE": Variable("4194304", low=1),
    "NCCL_IB_QPS_PER_CONNECTION": Variable("1", low=1, high=128),
    "NCCL_IB_SPLIT_DATA_ON_QPS": Variable("0", high=1),
    "NCCL_SOCKET_NTHREADS": Variable("-2", low=1, high=16),
    "NCCL_NSOCKS_PERTHREAD": Variable("-2", low=1, high=64),
    "NCCL_IB_TIMEOUT": Variable(str(DEFAULT_IB_TIMEOUT), low=1, high=31),
    "NCCL_LAZY_SETUP_CHANNELS": Variable("false", pattern=r"true|false"),
    "NCCL_COLLTRACE_SLOW_COLL_THRESHOLD_BY_PG": Variable("unset", pattern=r"\w+:(-1|\d+)(,\w+:(-1|\d+))*"),
    "NCCL_TOPO_FILE_PATH": Variable("fbwhoami in the system's etc folder", pattern=r"[\w./${}-]+"),
    "NCCLX_TUNER_CONFIG_FILE": Variable("unset", pattern=r"[\w./${}-]+"),
    "NCCL_CTRAN_IB_QP_CONFIG_XZONE": Variable("1048576,16,spray,128", pattern=r"\d+,\d+,(spray|dqplb),\d+"),
    "NCCL_CTRAN_IB_QP_CONFIG_XDC": Variable("1048576,16,spray,128", pattern=r"\d+,\d+,(spray|dqplb),\d+"),
    "NCCL_IB_TC": Variable("-1", high=255),
    "NCCL_CTA_POLICY": Variable("0", high=2),
    "NCCL_CTRAN_IB_PG_TRAFFIC_CLASS": Variable("unset", pattern=rf"\w+:{CLASS}(,\w+:{CLASS})*"),
    "NCCL_CTRAN_HIER_AG_OVERLAP_ENABLE": Variable("false", pattern=r"true|false"),
    "NCCL_CTRAN_HIER_AG_OVERLAP_CHUNK_BYTES": Variable("0", low=512 * 1024, high=8 * 1024 * 1024),
}

HINTS: Final[Mapping[str, Variable]] = {
    "trafficClass": Variable("-1", high=255),
    "minCTAs": Variable("1", low=1, high=64),
    "maxCTAs": Variable("64", low=1, high=64),
    "ncclx::ibQpsPerConnection": VARIABLES["NCCL_IB_QPS_PER_CONNECTION"],
    "ncclx::ncclBuffSize": VARIABLES["NCCL_BUFFSIZE"],
}
"""Numeric options that each communicator has separately."""


ZERO_CTA: Final = 2
"""NCCL_CTA_POLICY_ZERO: copy engines run gathers and all-to-alls of buffers in symmetric windows (inside a domain since
2.28, outside it with a proxy on the host since 2.30); kernels run all else.
"""


def buffer_bytes(channel_bytes: float) -> int:
    """Return an NCCL_BUFFSIZE that holds the bytes one channel keeps in flight: a power of two in [4, 64] MiB."""
    size = 1 << max(0, math.ceil(channel_bytes) - 1).bit_length()
    return min(max(size, int(VARIABLES["NCCL_BUFFSIZE"].default)), MAX_BUFFER_BYTES)


def check_hint(name: str, value: str) -> None:
    """Raise EmitError unless a communicator accepts ``value`` for ``name``."""
    known = HINTS[name]
    if not value.isdigit() or not known.low <= int(value) <= known.high:
        raise EmitError(f"hint {name}={value} is outside {known.low}..{known.high}")


def check_variable(variable: EnvVariable) -> None:
    """Raise EmitError unless the name is known and the variable accepts the value."""
    known = VARIABLES.get(variable.name)
    if known is None:
        raise EmitError(
            f"{variable.name} is not a variable of NCCL 2.31 or torchcomms 59426ba4 that this emitter knows"
        )
    whole = re.fullmatch(known.pattern, variable.value)
    if not whole or (variable.value.isdigit() and not known.low <= int(variable.value) <= known.high):
        raise EmitError(f"{variable.name}={variable.value} is outside {known.low}..{known.high} / {known.pattern}")
