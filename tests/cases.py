"""Many values of one parameter in few test cases.

``make test`` or ``make heavy`` runs a sample, and ``make proofs`` all others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest


def each(
    name: str, quick: Collection[Any], proof: Collection[Any] = (), size: int = 5, heavy: Collection[Any] = ()
) -> Callable[..., Any]:
    """Decorator: call a test once for every value of its parameter ``name``; a failure carries the value as a note.

    Args:
        quick: values of ``make test``.
        proof: further values, of the cases marked ``slow``; those that are quick too are left out.
        size: values of one case.
        heavy: values of ``make heavy``.
    """
    rest = [value for value in proof if value not in quick and value not in heavy]

    def decorate(test: Callable[..., None]) -> Any:
        def run(values: tuple[Any, ...], **others: Any) -> None:
            for value in values:
                try:
                    test(**{name: value}, **others)
                except BaseException as error:
                    error.add_note(f"{name} = {value!r}")
                    raise

        own = inspect.signature(test).parameters.values()
        values = inspect.Parameter("values", inspect.Parameter.KEYWORD_ONLY)
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.__signature__ = inspect.Signature([*(one for one in own if one.name != name), values])  # type: ignore[attr-defined]
        run.pytestmark = list(getattr(test, "pytestmark", ()))  # type: ignore[attr-defined]
        marked = ((quick, ()), (heavy, pytest.mark.heavy), (rest, pytest.mark.slow))
        blocks = [
            pytest.param(block, id=_id(block), marks=marks) for some, marks in marked for block in _blocks(some, size)
        ]
        return pytest.mark.parametrize("values", blocks)(run)

    return decorate


def _blocks(values: Collection[Any], size: int) -> Iterator[tuple[Any, ...]]:
    rows = list(values)
    for first in range(0, len(rows), size):
        yield tuple(rows[first : first + size])


def _id(block: tuple[Any, ...]) -> str:
    return f"{block[0]}..{block[-1]}"
