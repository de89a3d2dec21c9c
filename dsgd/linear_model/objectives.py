"""The objectives of the models without an L1 penalty, made from the rows of one process or of all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.inputs.docstrings import inherit_docs
from dsgd.linear_model.losses import AbstractLoss, LogisticLoss, PoissonLoss, SquaredLoss
from dsgd.types import FloatVector

__all__ = ["AbstractObjective", "LogisticObjective", "PoissonObjective", "Posed", "RidgeObjective"]

#: The share of the objective, or of its terms, below which a gap is rounding.
_ROUNDING: Final = 1e-14


@dataclass(frozen=True)
class Posed:
    """What is minimised, and how far.

    Parameters
    ----------
    loss : AbstractLoss
        The loss of the rows that are here.
    l2 : float
        Weight of half the squared norm.
    base : float
        The best intercept without weights; 0.0 in a model without an intercept.
    tol : float
        The duality gap to reach.
    shift : float, default 0.0
        What was taken off the targets.
    """

    loss: AbstractLoss
    l2: float
    base: float
    tol: float
    shift: float = 0.0


@dataclass(frozen=True)
class AbstractObjective(ABC):
    """An objective without its rows.

    Parameters
    ----------
    has_intercept : bool
        Whether scores have an intercept.
    tol : float
        Share of the objective that the gap may be, as the models define it.
    """

    has_intercept: bool
    tol: float

    @abstractmethod
    def pose(self, targets: FloatVector, weights: FloatVector, team: Team) -> Posed:
        """Return the problem of rows.

        Parameters
        ----------
        targets, weights : array of float64, shape (n_rows,)
            Class codes or values, and sample weights, of the rows that are here.
        team : Team
            The ranks that have the others.

        Raises
        ------
        InvalidDataError
            All weights are zero, or those of a class, or the targets have no meaning for the loss.
        """


@inherit_docs
@dataclass(frozen=True)
class LogisticObjective(AbstractObjective):
    """That of `LogisticRegression`.

    Parameters
    ----------
    C : float
        Weight of the losses.
    class_factors : array, shape (n_classes,), or None
        Weights of classes; None makes their sums of weights equal.
    n_classes : int
        How many.
    l2 : float
        Weight of half the squared norm.
    """

    C: float
    class_factors: FloatVector | None
    n_classes: int
    l2: float = 1.0

    def costs(self, codes: FloatVector, weights: FloatVector, team: Team) -> FloatVector:
        """Return the costs of rows, shape (n_rows,)."""
        numbers = codes.astype(np.intp)
        sums = team.add_up(np.bincount(numbers, weights, self.n_classes).astype(np.float64))
        if not sums.all():
            raise InvalidDataError("all rows of a class have the weight zero: leave them out.")
        factors = sums.sum() / (len(sums) * sums) if self.class_factors is None else self.class_factors
        costs: FloatVector = self.C * weights * factors[numbers]
        return costs

    def pose(self, targets: FloatVector, weights: FloatVector, team: Team) -> Posed:
        """Return the problem of rows of two classes."""
        loss = LogisticLoss(targets, self.costs(targets, weights, team))
        base = loss.base(team) if self.has_intercept else 0.0
        null = team.totals(loss.value(np.full(targets.shape[0], base)))[0]
        return Posed(loss, self.l2, base, max(self.tol, _ROUNDING) * null)


@inherit_docs
@dataclass(frozen=True)
class PoissonObjective(AbstractObjective):
    """That of `PoissonRegressor`.

    Parameters
    ----------
    alpha : float
        Weight of half the squared norm.
    """

    alpha: float

    def pose(self, targets: FloatVector, weights: FloatVector, team: Team) -> Posed:
        """Return the problem of rows."""
        negative, total, mass = team.totals(
            float((targets < 0.0).sum()), float(weights @ targets), float(weights.sum())
        )
        if negative or total <= 0.0:
            raise InvalidDataError("PoissonRegressor needs targets that are not negative, and one that is positive.")
        loss = PoissonLoss(targets, weights / mass)
        base = loss.base(team) if self.has_intercept else 0.0
        # The dual variables of zero are those of perfect predictions.
        null, best = team.totals(
            loss.value(np.full(targets.shape[0], base)), loss.dual_value(np.zeros(targets.shape[0]))
        )
        tol = max(self.tol * (null - best), _ROUNDING * (abs(null) + abs(best)))
        return Posed(loss, self.alpha, base, tol)


@inherit_docs
@dataclass(frozen=True)
class RidgeObjective(AbstractObjective):
    """That of `Ridge`.

    Parameters
    ----------
    alpha : float
        Weight of the squared norm.
    """

    alpha: float

    def pose(self, targets: FloatVector, weights: FloatVector, team: Team) -> Posed:
        """Return the problem of rows."""
        total, mass = team.totals(float(weights @ targets), float(weights.sum()))
        if mass <= 0.0:
            raise InvalidDataError("Sample weights must contain at least one non-zero number.")
        mean = total / mass if self.has_intercept else 0.0
        loss = SquaredLoss(targets - mean, 2.0 * weights)
        null = team.totals(float(weights @ loss.targets**2))[0]
        return Posed(loss, 2.0 * self.alpha, 0.0, max(self.tol, _ROUNDING) * null, mean)
