"""What the job's launch file says about a group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

from scaleacross.runtime.communicator import LinkSettings
from scaleacross.runtime.launch_file import LAUNCH_VARIABLE, read_launch
from scaleacross.runtime.policy import Policy, from_launch
from scaleacross.spec.launch import LaunchConfig


def launch_policy(ranks: Sequence[int], settings: LinkSettings) -> Policy:
    """The policy of the group of ``ranks``; without a launch file everything is left to the transport.

    Raises:
        InputError: the launch file cannot be read, or is for another number of processes.
    """
    path = os.environ.get(LAUNCH_VARIABLE)
    if not path:
        return Policy(
            choose=lambda operation, num_bytes: None,
            settings=lambda rank, peer: settings,
            why=f"a plan ({LAUNCH_VARIABLE} is not set)",
        )
    return from_launch(_read_once(path), ranks, settings)


@lru_cache(maxsize=4)
def _read_once(path: str) -> LaunchConfig:
    return read_launch(path)
