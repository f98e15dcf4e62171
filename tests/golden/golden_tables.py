"""Published tables as data, and their comparison with our results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent


def golden(name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    assert {"paper", "table", "tolerance"} <= set(data), "a golden file names its source and its tolerance"
    return data


def rows(name: str) -> list[Any]:
    """The rows of a file, each with the fields that the file states for all rows."""
    data = golden(name)
    shared = {key: value for key, value in data.items() if key != "rows"}
    return [pytest.param(shared | row, id=f"row {index}") for index, row in enumerate(data["rows"], start=1)]


def compare(ours: float, published: float, tolerance: float, unit: str) -> None:
    error = ours / published - 1
    print(f"published {published:g} {unit}, ours {ours:.4g} {unit}: {error:+.1%}")
    assert abs(error) <= tolerance
