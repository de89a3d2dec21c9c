"""`PoissonRegressor`: rates with a log link and a squared penalty, to a duality gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import xlogy
from sklearn.metrics import d2_tweedie_score

from dsgd.errors import InvalidDataError
from dsgd.inputs.docstrings import inherit_docs
from dsgd.linear_model.base import AbstractRegressor, one_core
from dsgd.linear_model.columns import make_columns
from dsgd.linear_model.losses import PoissonLoss
from dsgd.linear_model.newton import solve_l2
from dsgd.linear_model.problem import Problem
from dsgd.linear_model.quasi_newton import has_many_rows
from dsgd.types import AnyArray
from dsgd.validation import check_number

__all__ = ["PoissonRegressor"]

#: The share of the terms of the deviance below which a gap is rounding.
_ROUNDING = 1e-14


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class PoissonRegressor(AbstractRegressor):
    """Poisson regression with a log link, solved to a certified duality gap.

    Minimises over w and b, with the rate ``exp(x_i w + b)``::

        1 / sum_i s_i  sum_i s_i (exp(x_i w + b) - y_i (x_i w + b)) + alpha / 2 |w|^2

    with sample weights s: the objective of scikit-learn's class of this name, but for a constant.

    Parameters
    ----------
    alpha : float, default 1.0
        Weight of the penalty, positive.
    max_iter : int, default 100
        Most steps.
    tol : float, default 1e-4
        Largest duality gap, as a share of half the mean deviance of a model with the intercept alone.
    n_jobs : int or None, default None
        Threads of a fit on many dense rows, which gets the same model from any number of them; other fits have one.
        None is one, -1 all cores.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.linear_model import PoissonRegressor
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = PoissonRegressor(alpha=1e-3, tol=1e-8).fit(X, [1, 2, 4, 8])
    >>> model.predict([[4.0]]).round(0).tolist()
    [16.0]
    """

    alpha: float = 1.0
    fit_intercept: bool = True
    max_iter: int = 100
    tol: float = 1e-4
    warm_start: bool = False
    n_jobs: int | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n_samples, n_features)
            Rows, float32 or float64; others are converted. Arithmetic is in float64.
        y : array-like, shape (n_samples,)
            Targets, not negative.
        sample_weight : array-like or None, shape (n_samples,)
            Weights of rows. Their sum does not matter.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            A target is negative, all of them are zero, or weights are negative or all zero.
        InvalidParameterError
            A parameter is out of range.
        """
        self._check_common()
        check_number("PoissonRegressor(alpha=...)", self.alpha, low=0, open_low=True, high=np.inf, open_high=True)
        X, y, weights = self._check_targets(X, y, sample_weight)
        if (y < 0.0).any() or weights @ y <= 0.0:
            raise InvalidDataError("PoissonRegressor needs targets that are not negative, and one that is positive.")
        costs = weights / weights.sum()
        loss = PoissonLoss(y, costs)
        with one_core():
            empty = np.zeros(X.shape[0])
            least = -float(costs @ (xlogy(y, y) - y))
            base = loss.intercept(empty, 0.0) if self.fit_intercept else 0.0
            null = loss.value(empty + base)
            tol = max(float(self.tol) * (null + least), _ROUNDING * (abs(null) + abs(least)))
            if has_many_rows(X):
                self._solve_rows(X, loss, float(self.alpha), base, tol)
            else:
                columns = make_columns(X, costs, self.fit_intercept)
                problem = Problem(columns, loss, 0.0, float(self.alpha))
                solution = solve_l2(problem, self._started(X.shape[1]), tol, int(self.max_iter))
                self._take_in(solution, columns.centres)
        self._warn_unless(self.dual_gap_, tol)
        return self

    def predict(self, X: Any) -> AnyArray:
        """Return the predicted rates.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n, n_features)
            Rows.

        Returns
        -------
        array, shape (n,)
            Rates.
        """
        return np.exp(self._scores(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of the deviance that the model explains (D2).

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n, n_features)
            Rows.
        y : array-like, shape (n,)
            Targets.
        sample_weight : array-like or None, shape (n,)
            Weights of rows.

        Returns
        -------
        float
            At most 1; 0 is the mean.
        """
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))
