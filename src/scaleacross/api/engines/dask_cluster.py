"""Run points on the workers of a Dask cluster. Give workers one thread each, because a search keeps a core busy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from distributed import Client, KilledWorker, as_completed

from scaleacross.api.engines.outcome import OnDone, Task, check_versions, failed, package_version
from scaleacross.errors import InputError

CONNECT_S: Final = 10.0
"""Seconds to wait for the scheduler, and for its first worker."""


def run_points(task: Task, points: Sequence[Any], address: str, on_done: OnDone) -> None:
    """Run every point. Raises InputError when the cluster does not respond, has no worker, or runs another version."""
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        _check(client, address)
        suspects = _run(client, task, dict(enumerate(points)), on_done, ask_again=True)
        for index in suspects:
            _run(client, task, {index: points[index]}, on_done, ask_again=False)


def _run(client: Client, task: Task, points: Mapping[int, Any], on_done: OnDone, *, ask_again: bool) -> list[int]:
    """Run points (index -> point) in parallel; with `ask_again` return those blamed for a dead worker, not done yet.

    Dask blames every point on a dying worker, including those that only waited there. Run alone, only the culprit fails
    again.
    """
    suspects = []
    futures = {client.submit(task, point, pure=False): index for index, point in points.items()}
    try:
        for future in as_completed(list(futures), loop=client.loop):
            index = futures.pop(future)
            try:
                record = future.result()
            except Exception as error:  # a task answers for its own errors: this is its worker, or the way to it
                if ask_again and isinstance(error, KilledWorker):
                    suspects.append(index)
                    continue
                record = failed(f"its worker: {type(error).__name__}: {error}")
            on_done(index, record)
    finally:
        client.cancel(list(futures))
    return suspects


def _check(client: Client, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError:
        raise InputError(f"the Dask scheduler at {address} has no worker; start some: dask worker {address}") from None
    try:
        check_versions(client.run(package_version))
    except InputError:
        raise
    except Exception as error:  # whatever a worker without the package raises when it unpickles the question
        raise InputError(
            f"the workers at {address} cannot import scaleacross: {type(error).__name__}: {error}"
        ) from None
