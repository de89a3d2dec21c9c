"""`PoissonRegressor`: rates with a log link and a squared penalty, to a duality gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dsgd.comm.base import TransportName
from dsgd.inputs import notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs
from dsgd.inputs.named import takes_tables
from dsgd.linear_model.cluster import AbstractRegressor
from dsgd.linear_model.objectives import PoissonObjective
from dsgd.local.objective import Deviance
from dsgd.validation import check_number


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class PoissonRegressor(AbstractRegressor):
    """Poisson regression with a log link, solved to a certified duality gap.

    Minimises over w and b, with the rate ``exp(x_i w + b)``::

        1 / sum_i s_i  sum_i s_i (exp(x_i w + b) - y_i (x_i w + b)) + alpha / 2 |w|^2

    with sample weights s. Up to a constant, this is the objective of scikit-learn's class of the same name.

    Parameters
    ----------
    alpha : float, default 1.0
        Weight of the penalty; positive.
    max_iter : int, default 100
        Maximum number of steps.
    tol : float, default 1e-4
        Stop when the duality gap is at most ``tol`` times half the mean deviance of a model with only an intercept.
    n_jobs : int or None, default None
        Number of threads: None is one, -1 one per core. Only fits on many dense rows use more than one; the model does
        not depend on their number. On a cluster, the number of workers; None uses all.

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
            Targets, not negative, or the name of their column; None where blocks or svmlight files hold them.
        sample_weight : array-like, dask collection, str or None, shape (n_samples,)
            Weights of the rows, not negative, or the name of their column. Only their ratios matter.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            A target is negative, all targets are zero, or sample weights are negative or all zero.
        InvalidParameterError
            A parameter is out of range.
        """
        self._check_common()
        check_number("PoissonRegressor(alpha=...)", self.alpha, low=0, open_low=True, high=np.inf, open_high=True)
        if self._uses_cluster(X):
            self._fit_on_cluster(X, y, sample_weight)
            return self
        self._forget_cluster()
        self._fit_here(*self._check_targets(X, y, sample_weight))
        return self

    def _objective(self) -> PoissonObjective:
        """Return what is minimised."""
        return PoissonObjective(self.fit_intercept, float(self.tol), float(self.alpha))

    @property
    def _deviance(self) -> Deviance:
        """The deviance that is minimised, of which `score` is the share that the model explains."""
        return Deviance("poisson", 0.0)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
