"""Settings shared by all tests."""

from __future__ import annotations

import gc
import os
from functools import cache
from zlib import crc32

import pytest
import typer.testing
from hypothesis import settings

# Equal seeds give equal examples everywhere; no deadline, because shared machines stall and times are not what is tested.
settings.register_profile("scaleacross", deadline=None, derandomize=True)
settings.load_profile("scaleacross")

# Tables fold at the width of the terminal that the tests are started from; no test is about that one.
os.environ.pop("COLUMNS", None)
os.environ.pop("SCALEACROSS_DEBUG", None)

# A runner makes all commands and options anew, 0.06 s, whenever it invokes one.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        metavar="K/N",
        type=_share,
        help="of the tests marked slow, share K of N (from 0): cases with values singly, a module's others together",
    )


def pytest_collection() -> None:
    """Turn garbage collection off during collection.

    Modules and tests live to the end, so a search for garbage among them would be wasted.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000)  # instead of 700: a search makes as many small objects in a hundredth of a second


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests outside the share that ``--share`` asks for."""
    if config.getoption("--share") is None:
        return
    share, shares = config.getoption("--share")
    others = [
        item for item in items if item.get_closest_marker("slow") and crc32(_dealt(item).encode()) % shares != share
    ]
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]


def _share(text: str) -> tuple[int, int]:
    """K and N of ``K/N``."""
    share, shares = (int(number) for number in text.split("/"))
    if not 0 <= share < shares:
        raise ValueError(text)
    return share, shares


def _dealt(item: pytest.Item) -> str:
    """Key of tests that stay in one share.

    It is one case with values, or all cases of a module without values, which may share fixtures.
    """
    return item.nodeid if hasattr(item, "callspec") else item.nodeid.partition("::")[0]
