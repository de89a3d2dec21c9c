r"""The losses of generalised linear models, each with its dual, which is what makes a certificate.

A row costs :math:`c_i \varphi(y_i, f_i)`, with its score :math:`f_i = x_i \cdot w + b`. Its dual variable is
:math:`\theta_i = -c_i \varphi'(y_i, f_i)`, and for any scores and any dual variables in their domain

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

At the scores, q is what the model predicts: the value, the probability or the rate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, xlogy

from dsgd.collectives import Team
from dsgd.types import FloatVector

_MOST_STEPS = 50
#: The sum of dual variables, as a share of that of their sizes, from which one more step is the last.
_NEAR = 1e-6
#: The team of a process that has all rows.
_ALONE = Team()


@dataclass(frozen=True)
class AbstractLoss(ABC):
    """A loss with targets and costs of rows."""

    targets: FloatVector
    costs: FloatVector

    #: The largest second derivative of a loss of cost one; infinite if there is none.
    smoothness = np.inf
    #: Whether the second-order model is the loss itself.
    is_quadratic = False

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

    @abstractmethod
    def balanced(self, duals: FloatVector, team: Team = _ALONE) -> FloatVector:
        """Return dual variables in their domain that sum to zero over the rows of all ranks, close to those given."""

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
        """
        b = start
        for _ in range(_MOST_STEPS):
            means = self.mean(scores + b)
            duals = self.duals(means)
            slope, curvature, size = team.totals(
                float(duals.sum()), float(self.curvature(means).sum()), float(np.abs(duals).sum())
            )
            if curvature <= 0.0:
                break
            b += min(max(slope / curvature, -1.0), 1.0)
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
        means: FloatVector = expit(scores)
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
        return -float(self.costs @ (xlogy(share, share) + rest * logs))

    def base(self, team: Team = _ALONE) -> float:
        """Return the log odds."""
        ones, zeros = team.totals(float(self.costs @ self.targets), float(self.costs @ (1.0 - self.targets)))
        return float(np.log(ones / zeros))

    def balanced(self, duals: FloatVector, team: Team = _ALONE) -> FloatVector:
        """Return dual variables of which those of the class with the larger sum are shrunk."""
        up, down = np.maximum(duals, 0.0), np.maximum(-duals, 0.0)
        gains, losses = team.totals(float(up.sum()), float(down.sum()))
        if gains > losses:
            return up * (losses / gains) - down
        return up - down * (gains / losses) if losses > gains else duals


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
        return -float(self.costs @ (xlogy(rates, rates) - rates))

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
