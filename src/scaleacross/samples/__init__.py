"""Samples and documents of unequal length to ranks, so that none waits long for another."""

from __future__ import annotations
