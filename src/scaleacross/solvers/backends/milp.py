"""MILP backend: pulp with the CBC that it bundles. The independent second opinion on what CP-SAT says."""

from __future__ import annotations

from typing import Final

import pulp

from scaleacross.solvers.backends.linear_model import LinearModel, Solution, Status

STATUS_NAMES: Final[dict[int, Status]] = {
    pulp.LpSolutionOptimal: "optimal",
    pulp.LpSolutionIntegerFeasible: "feasible",
    pulp.LpSolutionInfeasible: "infeasible",
}
"""By the status of the solution: the status of the problem calls a solution optimal that a time limit interrupted."""


def solve(model: LinearModel, time_limit_s: float, seed: int = 0) -> Solution:
    """Solve with one thread. CBC reports no bound through pulp: it is the objective when optimal, else −inf."""
    problem = pulp.LpProblem("model", pulp.LpMinimize)
    variables = [
        problem.add_variable(
            f"x{index}", lowBound=0, upBound=1 if binary else None, cat="Binary" if binary else "Continuous"
        )
        for index, binary in enumerate(model.is_binary)
    ]
    problem += pulp.lpSum(c * variables[i] for i, c in model.objective.items())
    for row in model.rows:
        left = pulp.lpSum(c * variables[i] for i, c in row.terms.items())
        problem += (
            left <= row.right if row.sense == "<=" else left >= row.right if row.sense == ">=" else left == row.right
        )
    problem.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=time_limit_s, threads=1, options=[f"randomSeed {seed}"]))
    status = STATUS_NAMES.get(problem.sol_status, "unknown")
    if status not in ("optimal", "feasible"):
        return Solution(status, float("inf"), float("-inf"), ())
    values = tuple(float(v.value() or 0.0) for v in variables)
    objective = float(sum(c * values[i] for i, c in model.objective.items()))
    return Solution(status, objective, objective if status == "optimal" else float("-inf"), values)
