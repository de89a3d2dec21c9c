"""Safe screening: dual variables that a duality gap proves to have their final value at every optimum.

**Kernel SVMs.** Minimise over α ½ ‖w_α‖² + p'α with 0 ≤ α ≤ C and y'α = Δ, w_α = Σ y_i α_i φ_i; −D(α) is this value. It
is the dual of

    P(w) = ½ ‖w‖² + min_b [ Σ C_i max(0, −p_i − y_i (⟨w, φ_i⟩ + b)) + b Δ ],

for classification p = −1, Δ = 0; for regression two variables share a sample; one class has p = 0, Δ > 0. A problem
without intercept has b = 0 and no equality. What is in brackets is convex in (w, b), hence convex in w after the
minimum over b; so P is 1-strongly convex, with or without a free intercept.

**The ball.** Let w* minimise P, and take any w and any feasible α. Strong convexity, of P at w* and of the quadratic of
the dual at the optimum, gives

    ½ ‖w − w*‖² ≤ P(w) − P(w*),        ½ ‖w_α − w*‖² ≤ P(w*) − D(α).

The sum of the right sides is the gap G = P(w) − D(α), so with the parallelogram law

    ‖w* − ½(w + w_α)‖² ≤ G − ¼ ‖w − w_α‖².                                                                   (1)

For w = w_α the radius is √G, less by √2 than that of the usual ball around w, and never larger anywhere.

**Along a path.** Let α have the gap G at costs C, and let costs become ρC. Then ρα is feasible, with w_{ρα} = ρ w_α,
and the gap of the pair (w_α, ρα) at the new costs is ½ (ρ−1)² ‖w_α‖² + ρG. So (1) puts the new optimum into the ball
around ½ (1+ρ) w_α with

    radius² = ¼ (ρ−1)² ‖w_α‖² + ρ G.                                                                          (2)

For G = 0 this is the ball of DVI screening; an inexact start costs ρG and nothing else. Neither an exact optimum nor
the lack of an intercept is assumed.

**The intercept.** With scores s_i = ⟨w*, φ_i⟩ the objective is piecewise linear in b; its slope is −M, M = Σ_{y>0} C_i
− Δ, before the first of the points t_i = −y_i p_i − s_i and rises by C_i at each. So b* is the quantile of the t_i
with weights C_i at mass M: monotone in every t_i. Scores lie within radius · κ_i of the centre's, κ_i = ‖φ_i‖; so the
quantile of the upper ends bounds b* from above and that of the lower ends from below. A common shift of all φ_i
changes b alone, so κ_i may be distances from any one point: the mean makes them small.

**The test.** If −p_i − y_i (s_i + b) < 0 for all s_i and b that are left, then α_i = 0 at every optimum; if it is > 0
for all, then α_i = C_i. Rounding is accounted for by adding a bound of it to the gap. Cost: a sort of the samples.

Source: Ndiaye, Fercoq, Gramfort, Salmon, "Gap Safe screening rules", JMLR 2017 (ball around w); Wang, Wonka, Ye,
"Scaling SVM and Least Absolute Deviations via Exact Data Reduction", ICML 2014 (DVI). Departures: ball (1), which
yields (2) for inexact solutions, and the bracket of a free intercept.

**Linear SVMs.** With w the weights, v the combination of rows by the dual variables, and G the duality gap, the optimum
is within √(G − ¼ ‖w − v‖²) of ½ (w + v). This is the ball (1), which only needs P to be 1-strongly convex in w and the
dual to contain −½ ‖v‖²; it makes no assumption about the loss. So the score of row x is known up to that radius times
‖x‖, and so is its slack, target less score. If the slack is certain to be on one side of the kink of the loss, the
variable is at the end of its interval (without an end, nothing follows), or zero, at every optimum.

An intercept that is not penalised is not part of w. At its optimal values the sum of the dual variables of all slacks
is zero. That sum falls with the intercept, so these values are between its zeros for the smallest and for the largest
slacks. Cost: two passes over the rows and one of norms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.linear_model.problem import shrunk
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.linear_solver.problem import LinearProblem, LinearSolution
from dsgd.types import AnyArray, FloatMatrix, FloatVector


@dataclass(frozen=True)
class Ball:
    """A ball of feature space that holds w*, seen through the samples."""

    scores: FloatVector
    radius: float
    gap: float


def radius_of(gap: float, distance: float = 0.0) -> float:
    """Return the radius of the ball around ½(w + w_α): √(gap − ¼ distance²), with ``distance`` = ‖w − w_α‖."""
    return float(np.sqrt(max(gap - 0.25 * distance * distance, 0.0)))


def gap_ball(dual: Dual, u: FloatVector, *, has_intercept: bool = True) -> Ball:
    """Return the ball around w_α that a feasible point of the dual proves."""
    return path_ball(dual, u, 1.0, has_intercept=has_intercept)


def path_ball(dual: Dual, u: FloatVector, ratio: float, *, has_intercept: bool = True) -> Ball:
    """Return the ball that holds the optimum at costs ``ratio * dual.upper``: equation (2)."""
    beta = (dual.y * dual.alpha).sum(axis=0)
    total, size = float(beta.sum()), float(np.abs(beta).sum())
    if has_intercept and ratio != 1.0 and abs(total) > 1e-8 * size:
        raise InvalidDataError(
            f"path_ball(ratio={ratio:g}) needs a problem with y'alpha = 0; here it is {total:g}, and scaled variables "
            "would not be feasible. Use gap_ball at the new costs."
        )
    shift = -dual.y * dual.p - u
    intercept, mass = 0.0, _mass(dual)
    if has_intercept:
        low, high = intercept_bracket(shift, shift, dual.upper, mass)
        intercept = 0.5 * (low + high) if np.isfinite(low + high) else (low if np.isfinite(low) else high)
        intercept = intercept if np.isfinite(intercept) else 0.0
    slack = dual.y * (shift - intercept)
    # In this form the gap is a sum of terms that are not negative: nothing cancels.
    terms = (dual.upper - dual.alpha) * np.maximum(slack, 0.0) + dual.alpha * np.maximum(-slack, 0.0)
    rounding = np.abs(dual.p) + np.abs(u) + abs(intercept)
    noise = 16.0 * np.finfo(np.float64).eps * float((dual.upper * rounding).sum())
    gap = float(terms.sum()) + noise
    square = max(float(beta @ u), 0.0)
    radius = float(np.sqrt(0.25 * (ratio - 1.0) ** 2 * square + ratio * gap))
    return Ball(0.5 * (1.0 + ratio) * u, radius, gap)


def intercept_bracket(
    lower: AnyArray, upper: AnyArray, weights: AnyArray, mass: float, *, slack: float = 1e-9
) -> tuple[float, float]:
    """Return an interval of every optimal intercept: weighted quantiles of two bounds of its break points."""
    margin = slack * float(weights.sum())
    return _quantile(lower, weights, mass - margin, is_last=False), _quantile(
        upper, weights, mass + margin, is_last=True
    )


def _quantile(points: AnyArray, weights: AnyArray, mass: float, *, is_last: bool) -> float:
    """Return the first point up to which weights sum to at least `mass`, or to more (`is_last`)."""
    if not is_last and mass <= 0.0:
        return -np.inf
    flat = points.ravel()
    order = np.argsort(flat, kind="stable")
    sums = np.cumsum(weights.ravel()[order])
    place = int(np.searchsorted(sums, mass, side="right" if is_last else "left"))
    return float(flat[order[place]]) if place < len(order) else np.inf


def _mass(dual: Dual) -> float:
    return float(dual.upper[dual.y > 0].sum()) - float((dual.y * dual.alpha).sum())


def prove(dual: Dual, ball: Ball, norms: FloatVector, *, ratio: float = 1.0, has_intercept: bool = True) -> FloatMatrix:
    """Return what the ball proves of the variables, shape (r, n): 0, the upper bound, or NaN for nothing."""
    reach = ball.radius * norms
    points = -dual.y * dual.p - ball.scores
    low = high = 0.0
    if has_intercept:
        low, high = intercept_bracket(points - reach, points + reach, dual.upper, _mass(dual))
    # −p − y(s + b) = y(t − b) lies between these two.
    least = np.where(dual.y > 0, points - reach - high, low - points - reach)
    largest = np.where(dual.y > 0, points + reach - low, high - points + reach)
    tiny = 1e-12 * (np.abs(dual.p) + np.abs(ball.scores))
    out = np.full(dual.y.shape, np.nan)
    out[largest < -tiny] = 0.0
    out[least > tiny] = np.inf
    return np.where(np.isposinf(out), ratio * dual.upper, out)


def feature_norms(kernel: Kernel, X: Any) -> FloatVector | None:
    """Return ‖φ_i‖ of all samples, shape (n,), or None where the kernel is not known to be an inner product."""
    if kernel.name == "rbf":
        return np.ones(X.shape[0])
    if kernel.name not in {"linear", "poly"}:
        return None
    part = X.multiply(X).sum(axis=1) if sp.issparse(X) else np.einsum("ij,ij->i", X, X, dtype=np.float64)
    squares = np.asarray(part, dtype=np.float64).ravel()
    if kernel.name == "poly":
        if kernel.coef0 < 0 or kernel.degree != int(kernel.degree):
            return None
        squares = (kernel.gamma * squares + kernel.coef0) ** kernel.degree
    return np.sqrt(squares)


_HALVINGS = 60


def count_proven(problem: LinearProblem, solution: LinearSolution, team: Team) -> int:
    """Return how many dual variables a solution proves; see `prove_linear`."""
    return int(team.totals(float(np.count_nonzero(np.isfinite(prove_linear(problem, solution, team)))))[0])


def prove_linear(problem: LinearProblem, solution: LinearSolution, team: Team) -> FloatVector:
    """Return the dual variables that are proven at every optimum, NaN where nothing is, shape (n_rows,)."""
    rows, is_free = problem.rows, not problem.penalizes_intercept
    duals = shrunk(solution.duals, team) if is_free else solution.duals
    weights, combined = solution.weights.copy(), team.add_up(rows.combine(duals, team))
    squares = rows.norms(team)
    if is_free:
        weights[-1] = combined[-1] = 0.0
        squares = squares - rows.bias**2
    # What rounding may take from a difference of two sums over the rows.
    noise = (
        (team.totals(float(rows.n_rows))[0] + rows.width)
        * np.finfo(np.float64).eps
        * (abs(solution.primal) + abs(solution.dual))
    )
    difference = float(np.linalg.norm(weights - combined))
    radius = radius_of(max(solution.primal - solution.dual, 0.0) + noise, difference)
    reach = radius * np.sqrt(np.maximum(squares, 0.0))
    slack = problem.targets - rows.scores(0.5 * (weights + combined), team)
    reach = reach + 1e-12 * (np.abs(slack) + np.abs(problem.targets))
    least, largest = slack - reach, slack + reach
    if is_free:
        low, high = _intercepts(problem, least, largest)
        least, largest = least - high, largest - low
    return _settled(problem, least, largest)


def _settled(problem: LinearProblem, least: FloatVector, largest: FloatVector) -> FloatVector:
    """Return the variables of losses that are linear between the least and the largest slack."""
    epsilon, is_flat = problem.epsilon, problem.ridge == 0.0
    over = (least > epsilon) & (is_flat | (problem.high == 0.0))
    under = (largest < -epsilon) & (is_flat | (problem.low == 0.0))
    inside = (least > -epsilon) & (largest < epsilon)
    return np.where(over, problem.high, np.where(under, problem.low, np.where(inside, 0.0, np.nan)))


def _duals(problem: LinearProblem, slack: FloatVector) -> float:
    """Return the sum of the dual variables that belong to slacks; their supremum where a loss has a kink."""
    excess = np.sign(slack) * np.maximum(np.abs(slack) - problem.epsilon, 0.0)
    steep = np.where(problem.ridge > 0.0, excess / np.where(problem.ridge > 0.0, problem.ridge, 1.0), np.inf)
    ends = np.where(excess > 0.0, problem.high, np.where(excess < 0.0, problem.low, 0.0))
    return float(np.where(problem.ridge > 0.0, np.clip(steep, problem.low, problem.high), ends).sum())


def _intercepts(problem: LinearProblem, least: FloatVector, largest: FloatVector) -> tuple[float, float]:
    """Return an interval of intercepts that holds every optimal one."""
    reach = 1.0 + problem.epsilon + float(max(np.abs(least).max(initial=0.0), np.abs(largest).max(initial=0.0)))
    small = np.maximum(problem.high, -problem.low)
    margin = 1e-9 * float(small[np.isfinite(small)].sum())
    # The sum falls from above zero to below: keep the ends where its sign is certain.
    low = _bisect(lambda b: _duals(problem, least - b) > margin, -reach, reach)[0]
    high = _bisect(lambda b: _duals(problem, largest - b) >= -margin, -reach, reach)[1]
    return low - 1e-9 * reach, high + 1e-9 * reach


def _bisect(is_left: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return a short interval around the place where `is_left` turns false."""
    if not is_left(low):
        return -np.inf, low
    if is_left(high):
        return high, np.inf
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_left(middle) else (low, middle)
    return low, high
