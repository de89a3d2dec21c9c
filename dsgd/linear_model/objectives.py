"""The objectives of the models, made from the rows of one process or of all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import log_softmax

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.inputs.docstrings import inherit_docs
from dsgd.linear_model.losses import AbstractLoss, LogisticLoss, PoissonLoss, SquaredLoss
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

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
    class_factors: FloatVector | None
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
            null = _finite(team.totals(-float(costs @ (hot @ log_softmax(intercepts))))[0])
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
        if factors is None:
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
