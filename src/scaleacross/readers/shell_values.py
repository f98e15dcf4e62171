"""Compute values in a shell script: defaults of variables (``${TP:-8}``) and whole-number arithmetic (``$((8 * N))``).

A default applies unless the environment sets the variable, which the file does not show. Words that depend on a default
therefore carry a mark, and readers report them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, MutableMapping
from typing import Final

MARK: Final = "\x1a"
"""Character at the end of every word that a default gave."""
_DEFAULT = re.compile(r"\$\{(\w+)(:?[-=])((?:[^{}`'\"\\()]|\$\{\w+\})*|\"[^\"`\\{}()]*\"|'[^'`\\{}()$]*')\}")
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()`]|\([^()`]*\))*)\)\)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_MOST_ROUNDS: Final = 50
"""Most nested expansions, far beyond what people write."""

Strings = MutableMapping[str, str | None]


def plain(word: str) -> str:
    """Return ``word`` without marks."""
    return word.replace(MARK, "")


def computed(raw: str, strings: Strings) -> str:
    """Return ``raw`` with defaults and arithmetic replaced, from the inside out; unknown parts stay as they are."""
    if "$" not in raw or raw.startswith("'"):
        return raw
    for _ in range(_MOST_ROUNDS):
        before = raw
        raw = _DEFAULT.sub(lambda found: _default(found, strings), raw)
        raw = _ARITHMETIC.sub(lambda found: _arithmetic(found, strings), raw)
        if raw == before:
            break
    return raw


def _default(found: re.Match[str], strings: Strings) -> str:
    name, rule, text = found[1], found[2], found[3]
    if name in strings:
        value = strings[name]
        if value is None:  # one of several branches
            return found[0]
        if plain(value) or not rule.startswith(":"):
            return value
    text = _VARIABLE.sub(lambda one: _known(one, strings), text.strip("\"'"))
    if "$" in text:
        return found[0]
    # the script's own variables are known; only a default that the environment may override is marked
    value = text if name in strings else re.sub(r"(\S+)", rf"\1{MARK}", plain(text))
    if rule.endswith("="):
        strings[name] = value
    return f'"{value}"' if found[3].startswith(("'", '"')) else value


def _known(found: re.Match[str], strings: Strings) -> str:
    value = strings.get(found[1] or found[2])
    return found[0] if value is None else value


def _arithmetic(found: re.Match[str], strings: Strings) -> str:
    text = _VARIABLE.sub(lambda one: _known(one, strings), found[1])
    marks: list[str] = [MARK] if MARK in text else []

    def named(name: str) -> int:
        value = strings.get(name)
        if value is None:
            raise ValueError(name)
        marks.extend([MARK] if MARK in value else [])
        return int(plain(value), 0)  # ValueError of 010, which the shell reads as 8

    try:
        value = _evaluated(ast.parse(plain(text).strip().replace("/", "//"), mode="eval").body, named)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return found[0]
    return f"{value}{MARK if marks else ''}"


_OPERATIONS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: abs(left) // abs(right) * (1 if left * right >= 0 else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (1 if left >= 0 else -1),
}
"""Whole-number operations as in the shell, which divides towards zero."""


def _evaluated(node: ast.expr, named: Callable[[str], int]) -> int:
    """Evaluate whole numbers, names, sign and the operations of ``_OPERATIONS``. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return named(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand, named)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_evaluated(node.left, named), _evaluated(node.right, named))
    raise ValueError(ast.unparse(node))
