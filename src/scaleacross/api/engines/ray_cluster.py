"""Run points on a Ray cluster, one core each. An existing connection of this process is reused."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import ray
from ray.exceptions import RayError

from scaleacross.api.engines.outcome import OnDone, Task, check_versions, failed, package_version
from scaleacross.errors import InputError

IN_FLIGHT_PER_CORE: Final = 2
"""Points handed to the cluster per core: enough to keep all cores busy, few enough to cancel at once on Ctrl-C."""
QUIET: Final = logging.ERROR


def run_points(task: Task, points: Sequence[Any], address: str, on_done: OnDone) -> None:
    """Run every point. Raises InputError when the cluster does not respond or runs another version."""
    connected = not ray.is_initialized()
    if connected:
        try:
            ray.init(address=address, logging_level=QUIET, log_to_driver=False)
        except (ConnectionError, RayError, OSError, ValueError, RuntimeError) as error:
            raise InputError(f"no Ray cluster answers at {address}: {error}") from None
    try:
        _check(address)
        _run(task, points, on_done)
    finally:
        if connected:
            ray.shutdown()


def _check(address: str) -> None:
    try:
        check_versions({"a node": ray.get(ray.remote(package_version).remote())})
    except RayError as error:
        raise InputError(f"the nodes at {address} cannot import scaleacross: {error}") from None


def _run(task: Task, points: Sequence[Any], on_done: OnDone) -> None:
    remote = ray.remote(max_retries=0)(task_of(task))
    most = max(1, int(ray.cluster_resources().get("CPU", 1)) * IN_FLIGHT_PER_CORE)
    # reversed, so that pop() hands out points in order
    waiting = list(enumerate(points))[::-1]
    running: dict[Any, int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < most:
                index, point = waiting.pop()
                running[remote.remote(point)] = index
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                index = running.pop(reference)
                try:
                    record = ray.get(reference)
                except RayError as error:
                    record = failed(f"its worker: {type(error).__name__}: {error}")
                on_done(index, record)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def task_of(task: Task) -> Task:
    """Return the task as a plain function, which Ray requires."""

    def run(point: Any) -> dict[str, Any]:
        return task(point)

    return run
