"""Which solver a linear problem gets, by what it would cost.

A pass of coordinate descent and a Newton step both read all rows about twice, so they are compared by count. Newton's
method needs some ten steps where its preconditioner is a Cholesky factor, whatever the scale of features or C; but its
factor costs the cube of the columns, and with the diagonal instead a step is tens of passes. Coordinate descent needs
ten passes on rows like text and thousands on features of different scales, which nobody can tell beforehand. So:

- a squared loss with up to `MAX_FACTOR_WIDTH` columns, and more rows than columns, goes to Newton's method;
- everything else starts with coordinate descent, and goes over to Newton's method from where that has come to as soon
  as the rate at which the gap closes promises more than `PATIENCE` further passes.
"""

from __future__ import annotations

from dataclasses import replace

from dsgd.svm.dual_cd import solve_dual_cd
from dsgd.svm.linear_problem import LinearProblem, LinearSolution
from dsgd.svm.linear_rows import Team
from dsgd.svm.newton import MAX_FACTOR_WIDTH, solve_newton

__all__ = ["PATIENCE", "SOLVERS", "solve_linear"]

#: What `solver=` may be.
SOLVERS = ("auto", "dual_cd", "newton")
#: Passes that coordinate descent may still have ahead, for problems with few and with many columns.
PATIENCE = {"factor": 30.0, "diagonal": 300.0}


def solve_linear(
    problem: LinearProblem, solver: str, *, tol: float, max_iter: int, team: Team, seed: int = 0
) -> LinearSolution:
    """Solve one output of a linear SVM.

    Parameters
    ----------
    problem : LinearProblem
        The problem.
    solver : {"auto", "dual_cd", "newton"}
        The method; the module says what "auto" does.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most passes of coordinate descent, and most Newton steps.
    team : Team
        Shares passes over rows.
    seed : int
        Seed of the order of visits.

    Returns
    -------
    LinearSolution
        Weights, dual variables and the two values that certify them.
    """
    width = problem.rows.width
    is_narrow = width <= MAX_FACTOR_WIDTH and width <= problem.rows.n_rows
    if solver == "newton" or (solver == "auto" and problem.is_smooth and is_narrow):
        return solve_newton(problem, tol=tol, max_iter=max_iter, team=team)
    if solver == "dual_cd":
        return solve_dual_cd(problem, tol=tol, max_iter=max_iter, team=team, seed=seed)
    patience = PATIENCE["factor" if width <= MAX_FACTOR_WIDTH else "diagonal"]
    first = solve_dual_cd(problem, tol=tol, max_iter=max_iter, team=team, seed=seed, patience=patience)
    if first.converged or first.n_iter >= max_iter:
        return first
    second = solve_newton(problem, tol=tol, max_iter=max_iter, team=team, start=first)
    return replace(second, n_iter=first.n_iter + second.n_iter, solver="dual_cd, newton")
