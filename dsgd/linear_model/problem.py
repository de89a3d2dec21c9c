r"""Losses, each with its dual; the problem of a model, its certificate; and the objectives of the models.

**Losses**, each with its dual, which is what makes a certificate. A row costs :math:`c_i \varphi(y_i, f_i)`, with its
score :math:`f_i = x_i \cdot w + b`. Its dual variable is :math:`\theta_i = -c_i \varphi'(y_i, f_i)`, and for any scores
and any dual variables in their domain

.. math:: \sum_i c_i \varphi(y_i, f_i) \ge \sum_i \left(-c_i \varphi^*(y_i, -\theta_i / c_i) - \theta_i f_i\right),

with the convex conjugate :math:`\varphi^*` in the second argument. The intercept is not penalised, so that dual
variables must sum to zero (`balanced`).

==========  ==============================  ===========================================  ========
loss        :math:`\varphi(y, f)`           dual term, :math:`q = y - \theta / c`        y
==========  ==============================  ===========================================  ========
squared     :math:`(y - f)^2 / 2`           :math:`c\,(y^2 - q^2) / 2`                   any
logistic    :math:`\log(1 + e^f) - y f`     :math:`-c\,(q \log q + (1-q) \log(1-q))`     0 or 1
Poisson     :math:`e^f - y f`               :math:`-c\,(q \log q - q)`                   >= 0
==========  ==============================  ===========================================  ========

and the squared hinge, :math:`\max(0, 1 - y f)^2` with y = 1 or -1, whose dual term is
:math:`y \theta - \theta^2 / (4 c)` for :math:`y \theta \ge 0`.

At the scores, q is what the model predicts: the value, the probability or the rate.

**The problem** of a generalised linear model, and its certificate:

.. math:: P(w, b) = \sum_i c_i \varphi(y_i, x_i \cdot w + b) + l_1 \|w\|_1 + \tfrac12 l_2 \|w\|^2 .

For dual variables that sum to zero, with :math:`v = X^\top\theta - l_2 w`,

.. math:: D = \sum_i (\text{dual term})_i(\kappa\theta_i) - \tfrac12 \kappa^2 l_2 \|w\|^2
          \quad\text{where}\quad \kappa |v_j| \le l_1 \text{ for all } j

is a lower bound of the minimum: the squared norm is a squared loss of rows :math:`\sqrt{l_2} e_j`, whose dual variables
are :math:`-\sqrt{l_2}\,w_j`. Without :math:`l_1` it is the sum at :math:`\kappa = 1` less
:math:`\|X^\top\theta\|^2 / (2 l_2)`.

Screening: D is concave with the modulus 1 / L of a loss whose second derivative is at most L, so that the optimal
:math:`|v_j|` lies within :math:`\sqrt{2 (P - D)}\,\|x_j\|` of that of any dual point, in the norm that `norms` says.
Where this is below :math:`l_1`, the weight is zero at every optimum.

Source: Fenchel's duality; Ndiaye, Fercoq, Gramfort and Salmon, JMLR 2017 (gap safe screening).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy  # loads its `special` when that is first used: ranks of a LinearSVC never do

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.inputs.docstrings import inherit_docs
from dsgd.linear_model.columns import Columns
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

_MOST_STEPS = 50

#: The sum of dual variables, as a share of that of their sizes, from which one more step is the last.
_NEAR = 1e-6

#: The team of a process that has all rows.
_ALONE = Team()


def shrunk(duals: FloatVector, team: Team) -> FloatVector:
    """Return dual variables that sum to zero over the rows of all ranks: those of the larger sign are shrunk."""
    up, down = np.maximum(duals, 0.0), np.maximum(-duals, 0.0)
    gains, losses = team.totals(float(up.sum()), float(down.sum()))
    if gains > losses:
        return up * (losses / gains) - down
    return up - down * (gains / losses) if losses > gains else duals


@dataclass(frozen=True)
class AbstractLoss(ABC):
    """A loss with targets and costs of rows."""

    targets: FloatVector
    costs: FloatVector

    #: The largest second derivative of a loss of cost one; infinite if there is none.
    smoothness = np.inf
    #: Whether the second-order model is the loss itself.
    is_quadratic = False
    #: Whether the second derivative jumps, and may be zero in all rows.
    jumps = False

    @abstractmethod
    def value(self, scores: FloatVector) -> float:
        """Return the sum of the losses."""

    @abstractmethod
    def mean(self, scores: FloatVector) -> FloatVector:
        """Return what the model predicts, shape (n_rows,); the derivative of a loss is this minus y."""

    @abstractmethod
    def curvature(self, means: FloatVector) -> FloatVector:
        """Return the second derivative of each loss, with its cost, shape (n_rows,)."""

    @abstractmethod
    def dual_value(self, duals: FloatVector) -> float:
        """Return the sum of the dual terms."""

    def balanced(self, duals: FloatVector, team: Team = _ALONE) -> FloatVector:
        """Return dual variables in their domain that sum to zero over the rows of all ranks, close to those given."""
        return shrunk(duals, team)

    @abstractmethod
    def base(self, team: Team = _ALONE) -> float:
        """Return the best intercept of a model without weights, of the rows of all ranks."""

    def duals(self, means: FloatVector) -> FloatVector:
        """Return the dual variables that belong to predictions, shape (n_rows,)."""
        return self.costs * (self.targets - means)

    def intercept(self, scores: FloatVector, start: float, team: Team = _ALONE) -> float:
        """Return the best intercept b for ``scores + b`` of all ranks, by Newton's method with steps of at most one.

        No step goes far beyond the best one where the logarithm of the second derivative changes by no more than the
        score, as that of the logistic loss does. Convergence is quadratic: the step after `_NEAR` ends at rounding.
        Where the second derivative jumps, the interval that the slopes leave is halved instead of left.
        """
        b, low, high = start, -np.inf, np.inf
        for _ in range(_MOST_STEPS):
            means = self.mean(scores + b)
            duals = self.duals(means)
            slope, curvature, size = team.totals(
                float(duals.sum()), float(self.curvature(means).sum()), float(np.abs(duals).sum())
            )
            if curvature <= 0.0:
                break
            low, high = (b, high) if slope > 0.0 else (low, b)
            b += min(max(slope / curvature, -1.0), 1.0)
            b = b if low <= b <= high else 0.5 * (low + high)
            if abs(slope) <= _NEAR * size:
                break
        return b


class SquaredLoss(AbstractLoss):
    """Half the squared error."""

    smoothness = 1.0
    is_quadratic = True

    def value(self, scores: FloatVector) -> float:
        """Return the sum of the losses."""
        errors = self.targets - scores
        return 0.5 * float((self.costs * errors) @ errors)

    def mean(self, scores: FloatVector) -> FloatVector:
        """Return the scores."""
        return scores

    def curvature(self, means: FloatVector) -> FloatVector:
        """Return the costs."""
        return self.costs

    def dual_value(self, duals: FloatVector) -> float:
        """Return the sum of the dual terms."""
        costs = np.where(self.costs > 0.0, self.costs, 1.0)  # a row of cost zero has the dual variable zero
        return float(duals @ (self.targets - 0.5 * duals / costs))

    def balanced(self, duals: FloatVector, team: Team = _ALONE) -> FloatVector:
        """Return dual variables less the mean error."""
        mass, cost = team.totals(float(duals.sum()), float(self.costs.sum()))
        centred: FloatVector = duals - self.costs * (mass / cost)
        return centred

    def base(self, team: Team = _ALONE) -> float:
        """Return the mean target."""
        total, cost = team.totals(float(self.costs @ self.targets), float(self.costs.sum()))
        return total / cost

    def intercept(self, scores: FloatVector, start: float, team: Team = _ALONE) -> float:
        """Return the mean error."""
        total, cost = team.totals(float(self.costs @ (self.targets - scores)), float(self.costs.sum()))
        return total / cost


class LogisticLoss(AbstractLoss):
    """The logistic loss; targets are 0 and 1."""

    smoothness = 0.25

    def value(self, scores: FloatVector) -> float:
        """Return the sum of the losses."""
        margins = np.where(self.targets > 0.0, -scores, scores)
        return float(self.costs @ (np.maximum(margins, 0.0) + np.log1p(np.exp(-np.abs(margins)))))

    def mean(self, scores: FloatVector) -> FloatVector:
        """Return the probabilities of one."""
        means: FloatVector = scipy.special.expit(scores)
        return means

    def curvature(self, means: FloatVector) -> FloatVector:
        """Return ``c p (1 - p)``."""
        return self.costs * (means * (1.0 - means))

    def dual_value(self, duals: FloatVector) -> float:
        """Return the sum of the entropies."""
        # By the error |theta| / c, of which 1 - q would lose the digits.
        share = np.clip(np.abs(duals) / np.where(self.costs > 0.0, self.costs, 1.0), 0.0, 1.0)
        rest = 1.0 - share
        logs = np.log1p(-share, out=np.zeros_like(rest), where=rest > 0.0)
        return -float(self.costs @ (scipy.special.xlogy(share, share) + rest * logs))

    def base(self, team: Team = _ALONE) -> float:
        """Return the log odds."""
        ones, zeros = team.totals(float(self.costs @ self.targets), float(self.costs @ (1.0 - self.targets)))
        return float(np.log(ones / zeros))


class SquaredHingeLoss(AbstractLoss):
    """The square of the hinge; targets are -1 and 1."""

    smoothness = 2.0
    jumps = True

    def value(self, scores: FloatVector) -> float:
        """Return the sum of the losses."""
        return float(self.costs @ np.maximum(1.0 - self.targets * scores, 0.0) ** 2)

    def mean(self, scores: FloatVector) -> FloatVector:
        """Return the target less the derivative of the loss."""
        means: FloatVector = self.targets * (1.0 - 2.0 * np.maximum(1.0 - self.targets * scores, 0.0))
        return means

    def curvature(self, means: FloatVector) -> FloatVector:
        """Return twice the costs of the rows inside the margin."""
        return np.where(means != self.targets, 2.0 * self.costs, 0.0)

    def dual_value(self, duals: FloatVector) -> float:
        """Return the sum of the dual terms."""
        costs = np.where(self.costs > 0.0, self.costs, 1.0)  # a row of cost zero has the dual variable zero
        return float(duals @ (self.targets - 0.25 * duals / costs))

    def base(self, team: Team = _ALONE) -> float:
        """Return the best intercept."""
        return self.intercept(np.zeros_like(self.targets), 0.0, team)


class PoissonLoss(AbstractLoss):
    """The Poisson deviance, halved and but for what depends on y alone; targets are not negative."""

    def value(self, scores: FloatVector) -> float:
        """Return the sum of the losses."""
        with np.errstate(over="ignore"):
            return float(self.costs @ (np.exp(scores) - self.targets * scores))

    def mean(self, scores: FloatVector) -> FloatVector:
        """Return the rates."""
        return np.exp(scores)

    def curvature(self, means: FloatVector) -> FloatVector:
        """Return ``c`` times the rates."""
        return self.costs * means

    def dual_value(self, duals: FloatVector) -> float:
        """Return the sum of the dual terms."""
        rates = np.maximum(self.targets - duals / np.where(self.costs > 0.0, self.costs, 1.0), 0.0)
        return -float(self.costs @ (scipy.special.xlogy(rates, rates) - rates))

    def balanced(self, duals: FloatVector, team: Team = _ALONE) -> FloatVector:
        """Return the dual variables of rates that are scaled to the sum of y."""
        rates = self.costs * self.targets - duals
        total, sum_of_rates = team.totals(float(self.costs @ self.targets), float(rates.sum()))
        return self.costs * self.targets - rates * (total / sum_of_rates)

    def base(self, team: Team = _ALONE) -> float:
        """Return the logarithm of the mean target."""
        total, cost = team.totals(float(self.costs @ self.targets), float(self.costs.sum()))
        return float(np.log(total / cost))

    def intercept(self, scores: FloatVector, start: float, team: Team = _ALONE) -> float:
        """Return the logarithm of the sum of y over that of the rates."""
        largest = team.largest(float(scores.max(initial=-np.inf)))
        total, rates = team.totals(float(self.costs @ self.targets), float(self.costs @ np.exp(scores - largest)))
        return float(np.log(total / rates)) - largest


_MOST_HALVINGS = 30


@dataclass(frozen=True)
class Problem:
    """A generalised linear model to fit."""

    columns: Columns
    loss: AbstractLoss
    l1: float
    l2: float

    def penalty(self, weights: FloatVector) -> float:
        """Return the penalty of weights."""
        return self.l1 * float(np.abs(weights).sum()) + 0.5 * self.l2 * float(weights @ weights)

    def primal(self, scores: FloatVector, weights: FloatVector) -> float:
        """Return P, given the scores with the intercept."""
        team = self.columns.team
        penalty = self.penalty(weights) if team.leads else 0.0
        return team.totals(self.loss.value(scores) + penalty)[0]

    def intercept(self, scores: FloatVector, start: float) -> float:
        """Return the best intercept, or 0.0 in a model without one."""
        return self.loss.intercept(scores, start, self.columns.team) if self.columns.has_intercept else 0.0

    def norms(self) -> FloatVector:
        """Return the norms of the columns that screening uses, shape (n_features,)."""
        norms: FloatVector = np.sqrt(self.loss.smoothness * self.columns.squares(self.loss.costs) + self.l2)
        return norms


@dataclass(frozen=True)
class Certificate:
    """The objective and its lower bound at weights, that of the dual variables times the scale."""

    primal: float
    dual: float
    duals: FloatVector
    products: FloatVector
    scale: float

    @property
    def gap(self) -> float:
        """P - D, not below zero; no number if one of them is none."""
        return max(self.primal - self.dual, 0.0)


@dataclass(frozen=True)
class Solution:
    """What a solver returns."""

    weights: FloatVector
    intercept: float | FloatVector
    gap: float
    n_iter: int
    n_screened: int = 0


def certify(problem: Problem, weights: FloatVector, scores: FloatVector) -> Certificate:
    """Return the certificate of weights, over all rows and columns, and report it."""
    loss, l1, l2, team = problem.loss, problem.l1, problem.l2, problem.columns.team
    duals = loss.duals(loss.mean(scores))
    if problem.columns.has_intercept:
        duals = loss.balanced(duals, team)
    products = problem.columns.products(duals)
    if l1 == 0.0:
        scale, squares = 1.0, float(products @ products) / l2
    else:
        steepest = float(np.abs(products - l2 * weights).max(initial=0.0))
        scale = min(1.0, l1 / steepest) if steepest > 0.0 else 1.0
        squares = scale**2 * l2 * float(weights @ weights)
    value, bound = loss.value(scores), loss.dual_value(scale * duals)
    if team.leads:
        value, bound = value + problem.penalty(weights), bound - 0.5 * squares
    primal, dual = team.totals(value, bound)
    team.report(primal, dual)
    return Certificate(primal, dual, duals, products, scale)


def longest_step(
    problem: Problem,
    weights: FloatVector,
    change: FloatVector,
    scores: FloatVector,
    intercept: float,
    before: float,
    promise: float = 0.0,
) -> tuple[FloatVector, FloatVector, float] | None:
    """Return weights, scores and intercept after the longest of the steps 1, 1/2, ... that does not raise P, if any."""
    if not change.any():
        return None
    moved, step = problem.columns.scores(change), 1.0
    for _ in range(_MOST_HALVINGS):
        new, new_scores = weights + step * change, scores + step * moved
        new_intercept = problem.intercept(new_scores, intercept)
        if problem.primal(new_scores + new_intercept, new) <= before + step * promise:
            return new, new_scores, new_intercept
        step *= 0.5
    return None


#: The share of the objective, or of its terms, below which a gap is rounding; of that of least squares with L1.
_ROUNDING: Final = 1e-14
_SQUARED_ROUNDING: Final = 1e-15


@dataclass(frozen=True)
class Posed:
    """What is minimised, and how far."""

    has_intercept: bool
    loss: AbstractLoss
    l2: float
    base: float
    tol: float
    shift: float = 0.0
    l1: float = 0.0


@dataclass(frozen=True)
class PosedClasses:
    """What is minimised where there are several classes, and how far.

    - `present`, shape (n_present,): those that are trained. With intercepts, these are the classes that have costs:
      the objective falls for as long as the intercept of another one does.
    - `base`, shape (n_present,): the best intercepts without weights; zeros in a model without intercepts.
    """

    has_intercept: bool
    n_classes: int
    present: IntVector
    hot: FloatMatrix
    costs: FloatVector
    l2: float
    base: FloatVector
    tol: float


@dataclass(frozen=True)
class AbstractObjective(ABC):
    """An objective without its rows."""

    has_intercept: bool
    tol: float

    @abstractmethod
    def pose(self, targets: FloatVector, weights: FloatVector, team: Team) -> Posed | PosedClasses:
        """Return the problem of rows."""


@inherit_docs
@dataclass(frozen=True)
class LogisticObjective(AbstractObjective):
    """That of `LogisticRegression`."""

    C: float
    class_factors: FloatVector | str
    n_classes: int
    l1_ratio: float

    def pose(self, targets: FloatVector, weights: FloatVector, team: Team) -> Posed | PosedClasses:
        """Return the problem of rows."""
        costs, is_present = self._costs(targets, weights, team)
        least = max(self.tol, _ROUNDING)
        if self.n_classes > 2 or (self.has_intercept and not is_present.all()):
            present = np.flatnonzero(is_present | (not self.has_intercept))
            hot = np.equal.outer(targets, present).astype(np.float64)
            intercepts = np.zeros(len(present))
            if self.has_intercept:
                logs = np.log(team.add_up(costs @ hot))
                intercepts = logs - logs.mean()
            null = _finite(team.totals(-float(costs @ (hot @ scipy.special.log_softmax(intercepts))))[0])
            return PosedClasses(self.has_intercept, self.n_classes, present, hot, costs, 1.0, intercepts, least * null)
        loss = LogisticLoss(targets, costs)
        base = loss.base(team) if self.has_intercept else 0.0
        null = _finite(team.totals(loss.value(np.full(targets.shape[0], base)))[0])
        share = self.l1_ratio
        return Posed(self.has_intercept, loss, 1.0 - share, base, least * null, l1=share)

    def _costs(self, codes: FloatVector, weights: FloatVector, team: Team) -> tuple[FloatVector, AnyArray]:
        """Return the costs of rows, shape (n_rows,), and which classes have any, shape (n_classes,)."""
        numbers = codes.astype(np.intp)
        sums = team.add_up(np.bincount(numbers, weights, self.n_classes).astype(np.float64))
        factors, is_present = self.class_factors, sums > 0.0
        if isinstance(factors, str):  # "balanced"
            factors = np.where(is_present, sums.sum() / (is_present.sum() * np.where(is_present, sums, 1.0)), 0.0)
        is_present &= factors != 0.0  # those of sums that overflow are no numbers, which the losses show
        if not is_present.any():
            raise InvalidDataError("No row has both a sample weight and a class weight above zero.")
        costs: FloatVector = self.C * weights * factors[numbers]
        return costs, is_present


@inherit_docs
@dataclass(frozen=True)
class PoissonObjective(AbstractObjective):
    """That of `PoissonRegressor`."""

    alpha: float

    def pose(self, targets: FloatVector, weights: FloatVector, team: Team) -> Posed:
        """Return the problem of rows."""
        negative, total, mass = team.totals(
            float((targets < 0.0).sum()), float(weights @ targets), float(weights.sum())
        )
        if negative or total <= 0.0:
            raise InvalidDataError("PoissonRegressor needs targets that are not negative, and one that is positive.")
        loss = PoissonLoss(targets, weights / _finite(mass))
        base = loss.base(team) if self.has_intercept else 0.0
        # The dual variables of zero are those of perfect predictions.
        null, best = team.totals(
            loss.value(np.full(targets.shape[0], base)), loss.dual_value(np.zeros(targets.shape[0]))
        )
        tol = max(self.tol * (null - best), _ROUNDING * _finite(abs(null) + abs(best)))
        return Posed(self.has_intercept, loss, self.alpha, base, tol)


@inherit_docs
@dataclass(frozen=True)
class RidgeObjective(AbstractObjective):
    """That of `Ridge`."""

    alpha: float

    def pose(self, targets: FloatVector, weights: FloatVector, team: Team) -> Posed:
        """Return the problem of rows."""
        total, mass = team.totals(float(weights @ targets), float(weights.sum()))
        if mass <= 0.0:
            raise InvalidDataError("Sample weights must contain at least one non-zero number.")
        mean = total / mass if self.has_intercept else 0.0
        loss = SquaredLoss(targets - mean, 2.0 * weights)
        null = _finite(team.totals(float(weights @ loss.targets**2))[0])
        return Posed(self.has_intercept, loss, 2.0 * self.alpha, 0.0, max(self.tol, _ROUNDING) * null, mean)


@inherit_docs
@dataclass(frozen=True)
class ElasticNetObjective(AbstractObjective):
    """That of `Lasso` and `ElasticNet`."""

    alpha: float
    l1_ratio: float

    def pose(self, targets: FloatVector, weights: FloatVector, team: Team) -> Posed:
        """Return the problem of rows, whose costs sum to one."""
        costs = weights / _finite(team.totals(float(weights.sum()))[0])
        mean = team.totals(float(costs @ targets))[0] if self.has_intercept else 0.0
        loss = SquaredLoss(targets - mean, costs)
        null = _finite(team.totals(float(costs @ loss.targets**2))[0])
        tol, share = max(self.tol, _SQUARED_ROUNDING) * null, self.l1_ratio
        return Posed(self.has_intercept, loss, self.alpha * (1.0 - share), 0.0, tol, mean, l1=self.alpha * share)


def _finite(total: float) -> float:
    """Return a sum of losses or weights that the gap is a share of: of one that overflows, any gap is."""
    if not np.isfinite(total):
        raise InvalidDataError("The losses overflow: scale the targets, the sample weights, or C.")
    return total
