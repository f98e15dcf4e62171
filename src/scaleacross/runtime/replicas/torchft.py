"""A process group for torchft's Manager: its replicas sum by our schedules, and faults are named as here.

    from torchft import Manager
    manager = Manager(pg=process_group(), min_replica_size=1, load_state_dict=…, state_dict=…)

torchft decides who takes part, and drops the step in which one is lost; ``member.Replicas`` repeats its sum instead.
torchft is no dependency: install it (torchft-nightly 2026.10.26 was tried).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

import torch.distributed as dist

from scaleacross.errors import InputError
from scaleacross.runtime.policy import Policy
from scaleacross.runtime.process_group import BACKEND, Options, ScaleAcrossGroup
from scaleacross.runtime.replicas.member import rings
from scaleacross.runtime.trace import FlightRecorder

RECORDS: Final = 64


def process_group(policy: Callable[[int], Policy] = rings, timeout_s: float = 60.0) -> Any:
    """Return a ``torchft.process_group.ProcessGroup`` that forms anew at every quorum.

    Args:
        policy: number of replicas -> policy; ``member.policy_of_plan`` makes one of a plan.
        timeout_s: time limit of a collective, and of forming.

    Raises:
        InputError: torchft is not installed.
    """
    return _adapter()(policy, timedelta(seconds=timeout_s))


@lru_cache(maxsize=1)
def _adapter() -> Any:
    try:
        wrapper: Any = import_module("torchft.process_group").ProcessGroupWrapper
    except ModuleNotFoundError as error:
        raise InputError(f"torchft is not installed ({error}): pip install torchft-nightly") from None

    class ProcessGroupScaleAcross(wrapper):
        def __init__(self, policy: Callable[[int], Policy], timeout: timedelta) -> None:
            super().__init__(timeout)
            self._policy = policy

        def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> ScaleAcrossGroup:
            options = Options(self._policy(world_size), FlightRecorder(rank, world_size, RECORDS))
            return ScaleAcrossGroup(store, rank, world_size, self._timeout, "torchft", range(world_size), options)

        def getBackendName(self) -> str:  # noqa: N802 (torch's name)
            return BACKEND

    return ProcessGroupScaleAcross
