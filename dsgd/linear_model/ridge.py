"""`Ridge`: least squares with a squared penalty, to a duality gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dsgd.comm.base import TransportName
from dsgd.inputs import notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs
from dsgd.inputs.named import takes_tables
from dsgd.linear_model.cluster import AbstractRegressor
from dsgd.linear_model.objectives import RidgeObjective
from dsgd.validation import check_number


@inherit_docs
@dataclass(eq=False, repr=False)
class Ridge(AbstractRegressor):
    """Least squares with a squared penalty, solved to a certified duality gap.

    Minimises over w and b::

        sum_i s_i (y_i - x_i w - b)^2 + alpha |w|^2

    with sample weights s. This is the objective of scikit-learn's class of the same name. With at most 1,500
    columns, or at most 1,500 dense rows, the solver factors the smaller Gram matrix (Cholesky). Otherwise it uses
    conjugate gradients.

    Parameters
    ----------
    alpha : float, default 1.0
        Weight of the penalty; positive.
    max_iter : int, default 100
        Maximum number of linear systems solved; each solution refines the previous one.
    tol : float, default 1e-8
        Stop when the duality gap is at most ``tol`` times ``sum_i s_i y_i^2``, with y centred if there is an intercept.
        A Cholesky factor leaves a gap of the size of rounding errors, whatever ``tol`` is.

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
    client: Any = None
    transport: TransportName = "auto"

    @notifies_callbacks
    @takes_tables
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, list of delayed blocks, files or Rows
            Rows, shape (n_samples, n_features), float32 or float64; others are converted. Arithmetic is in float64.
            Files are svmlight, Parquet, CSV or Arrow.
        y : array-like, dask collection or str, shape (n_samples,)
            Targets, or the name of their column; None where blocks or svmlight files hold them.
        sample_weight : array-like, dask collection, str or None, shape (n_samples,)
            Weights of the rows, not negative, or the name of their column.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            Sample weights are negative, or all zero.
        InvalidParameterError
            A parameter is out of range.
        """
        self._check_common()
        check_number("Ridge(alpha=...)", self.alpha, low=0, open_low=True, high=np.inf, open_high=True)
        if self._uses_cluster(X):
            self._fit_on_cluster(X, y, sample_weight)
            return self
        self._forget_cluster()
        self._fit_here(*self._check_targets(X, y, sample_weight))
        return self

    def _objective(self) -> RidgeObjective:
        """Return what is minimised."""
        return RidgeObjective(self.fit_intercept, float(self.tol), float(self.alpha))
