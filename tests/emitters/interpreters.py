"""Interpreters with the packages that consumer tests need."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest


def python_with_torch() -> str:
    """A Python with torch, or skip with the reason."""
    named = os.environ.get("SCALEACROSS_TORCHTITAN_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed and SCALEACROSS_TORCHTITAN_PYTHON names no interpreter that has it")
    return sys.executable
