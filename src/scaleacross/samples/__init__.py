"""Assign samples and documents of unequal length to ranks, so that no rank waits long for another."""

from __future__ import annotations
