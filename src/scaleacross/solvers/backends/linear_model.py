"""A small mixed 0-1 linear model, stated without a solver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Sense = Literal["<=", "==", ">="]
Expression = dict[int, float]  # variable index -> coefficient

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class Row:
    """``Σ coefficient · variable  sense  right`` under a name such as ``C2 flow``."""

    name: str
    terms: Expression
    sense: Sense
    right: float


@dataclass
class LinearModel:
    """min Σ objective · x, with binaries and continuous variables ≥ 0."""

    names: list[str] = field(default_factory=list)
    is_binary: list[bool] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    objective: Expression = field(default_factory=dict)

    def binary(self, name: str) -> int:
        """Add a 0-1 variable and return its index."""
        return self._variable(name, True)

    def continuous(self, name: str) -> int:
        """Add a variable ≥ 0 and return its index."""
        return self._variable(name, False)

    def _variable(self, name: str, is_binary: bool) -> int:
        self.names.append(name)
        self.is_binary.append(is_binary)
        return len(self.names) - 1

    def add(self, name: str, terms: Expression, sense: Sense, right: float) -> None:
        """Add a row."""
        self.rows.append(Row(name, terms, sense, right))


@dataclass(frozen=True)
class Solution:
    """Result of a solver: ``bound`` ≤ optimum ≤ ``objective``; ``values`` by variable index, empty without one."""

    status: Status
    objective: float
    bound: float
    values: tuple[float, ...]
