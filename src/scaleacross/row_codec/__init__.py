"""Embedding rows in few bytes, with a bound on the error of every element: quantise, send equal rows once, code what is left."""

from __future__ import annotations
