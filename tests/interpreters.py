"""Interpreters with the packages that consumer tests need."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest


def python_with(package: str, variable: str = "SCALEACROSS_TORCHTITAN_PYTHON") -> str:
    """The Python that ``variable`` names, or this one if it has ``package``; otherwise skip with the reason."""
    named = os.environ.get(variable)
    if named:
        return named
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed and {variable} names no interpreter that has it")
    return sys.executable
