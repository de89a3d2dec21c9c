"""`Ridge`: least squares with a squared penalty, to a duality gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dsgd.inputs.docstrings import inherit_docs
from dsgd.linear_model.base import AbstractRegressor, one_core
from dsgd.linear_model.columns import make_columns
from dsgd.linear_model.losses import SquaredLoss
from dsgd.linear_model.newton import solve_l2
from dsgd.linear_model.problem import Problem
from dsgd.validation import check_number

__all__ = ["Ridge"]

#: The share of the sum of y^2 below which a gap is rounding.
_ROUNDING = 1e-14


@inherit_docs
@dataclass(eq=False, repr=False)
class Ridge(AbstractRegressor):
    """Least squares with a squared penalty, solved to a certified duality gap.

    Minimises over w and b::

        sum_i s_i (y_i - x_i w - b)^2 + alpha |w|^2

    with sample weights s: the objective of scikit-learn's class of this name. Up to 1,500 columns, or dense rows, it is
    solved by the Cholesky factor of the smaller Gram matrix, and else by conjugate gradients.

    Parameters
    ----------
    alpha : float, default 1.0
        Weight of the penalty, positive.
    max_iter : int, default 100
        Most solutions of the linear system, of which each improves the last.
    tol : float, default 1e-8
        Largest duality gap, as a share of ``sum_i s_i y_i^2``, y about its mean if there is an intercept. A Cholesky
        factor gives a gap of rounding size whatever this is.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.linear_model import Ridge
    >>> Ridge(alpha=1.0, fit_intercept=False).fit(np.eye(2), [4.0, -2.0]).coef_.tolist()
    [2.0, -1.0]
    """

    alpha: float = 1.0
    fit_intercept: bool = True
    max_iter: int = 100
    tol: float = 1e-8

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n_samples, n_features)
            Rows, float32 or float64; others are converted. Arithmetic is in float64.
        y : array-like, shape (n_samples,)
            Targets.
        sample_weight : array-like or None, shape (n_samples,)
            Weights of rows.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            Weights are negative, or all zero.
        InvalidParameterError
            A parameter is out of range.
        """
        self._check_common()
        check_number("Ridge(alpha=...)", self.alpha, low=0, open_low=True, high=np.inf, open_high=True)
        X, y, weights = self._check_targets(X, y, sample_weight)
        with one_core():
            mean = float(weights @ y / weights.sum()) if self.fit_intercept else 0.0
            loss = SquaredLoss(y - mean, 2.0 * weights)
            columns = make_columns(X, weights, self.fit_intercept)
            tol = max(float(self.tol), _ROUNDING) * float(weights @ loss.targets**2)
            problem = Problem(columns, loss, 0.0, 2.0 * float(self.alpha))
            solution = solve_l2(problem, np.zeros(X.shape[1]), tol, int(self.max_iter))
        self._take_in(solution, columns.centres)
        if self.fit_intercept:
            self.intercept_ += mean
        self._warn_unless(solution.gap, tol)
        return self
