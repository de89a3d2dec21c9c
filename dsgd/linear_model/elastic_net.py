"""`Lasso` and `ElasticNet`: least squares with an L1 penalty, to a duality gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dsgd.comm.base import TransportName
from dsgd.inputs import notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs, inherit_method_docs
from dsgd.inputs.named import takes_tables
from dsgd.linear_model.cluster import AbstractRegressor
from dsgd.linear_model.objectives import ElasticNetObjective
from dsgd.validation import check_number


@inherit_method_docs
class AbstractL1Regressor(AbstractRegressor):
    """Least squares with an L1 penalty; `Lasso` and `ElasticNet` are the ones to use.

    Parameters
    ----------
    alpha : float, default 1.0
        Weight of the penalty; positive.
    tol : float, default 1e-4
        Stop when the duality gap is at most ``tol`` times ``|y|^2 / n``, with y centred if there is an intercept. The
        criterion is scikit-learn's.
    max_iter : int, default 1000
        Maximum number of rounds. Each minimises over a working set.

    Attributes
    ----------
    sparse_coef_ : CSR matrix, shape (1, n_features)
        The coefficients.
    n_screened_ : int
        Number of features whose coefficient is proven to be zero at every optimum.
    """

    alpha: float
    tol: float
    max_iter: int

    def _share(self) -> float:
        """Return the share of the absolute weights in the penalty."""
        return 1.0

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
            Weights of the rows, not negative, or the name of their column. Only their ratios matter, as in
            scikit-learn.

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
        name = type(self).__name__
        self._check_common()
        check_number(f"{name}(alpha=...)", self.alpha, low=0, open_low=True, high=np.inf, open_high=True)
        if self._uses_cluster(X):
            solution = self._fit_on_cluster(X, y, sample_weight)
        else:
            self._forget_cluster()
            solution = self._fit_here(*self._check_targets(X, y, sample_weight))
        self.n_screened_ = solution.n_screened
        return self

    def _objective(self) -> ElasticNetObjective:
        """Return what is minimised."""
        return ElasticNetObjective(self.fit_intercept, float(self.tol), float(self.alpha), self._share())


@inherit_docs
@dataclass(eq=False, repr=False)
class Lasso(AbstractL1Regressor):
    """Least squares with an L1 penalty, solved to a certified duality gap.

    Minimises over w and b::

        1 / (2 sum_i s_i) sum_i s_i (y_i - x_i w - b)^2 + alpha |w|_1

    with sample weights s. This is the objective of scikit-learn's class of the same name.

    On a cluster, the ranks sum float64 numbers in every round. With p features, these are p for the gradient,
    k (k + 3) / 2 for the matrix of a working set of k features, and about five messages of one or two. Rounds add only
    the features that are new to the matrix; up to 100 features take one matrix in all.

    See Also
    --------
    ElasticNet : With a squared norm in the penalty.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.linear_model import Lasso
    >>> X = np.eye(4)
    >>> model = Lasso(alpha=0.25, fit_intercept=False).fit(X, [4.0, -2.0, 0.5, 0.0])
    >>> model.coef_.tolist()
    [3.0, -1.0, 0.0, 0.0]
    """

    alpha: float = 1.0
    fit_intercept: bool = True
    max_iter: int = 1000
    tol: float = 1e-4
    warm_start: bool = False
    client: Any = None
    transport: TransportName = "auto"


@inherit_docs
@dataclass(eq=False, repr=False)
class ElasticNet(AbstractL1Regressor):
    """Least squares with an L1 and a squared penalty, solved to a certified duality gap.

    Minimises over w and b::

        1 / (2 sum_i s_i) sum_i s_i (y_i - x_i w - b)^2
            + alpha * l1_ratio * |w|_1 + alpha * (1 - l1_ratio) / 2 * |w|^2

    with sample weights s. This is the objective of scikit-learn's class of the same name. `Lasso` says what ranks of a
    cluster exchange; here it is the same.

    Parameters
    ----------
    l1_ratio : float, default 0.5
        Share of the L1 norm in the penalty, in (0, 1].

    See Also
    --------
    Lasso : With the L1 penalty alone.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.linear_model import ElasticNet
    >>> X = np.eye(4)
    >>> model = ElasticNet(alpha=0.5, fit_intercept=False).fit(X, [4.0, -2.0, 0.5, 0.0])
    >>> model.coef_.round(3).tolist()
    [1.5, -0.5, 0.0, 0.0]
    """

    alpha: float = 1.0
    l1_ratio: float = 0.5
    fit_intercept: bool = True
    max_iter: int = 1000
    tol: float = 1e-4
    warm_start: bool = False
    client: Any = None
    transport: TransportName = "auto"

    def _check_common(self) -> None:
        super()._check_common()
        check_number("ElasticNet(l1_ratio=...)", self.l1_ratio, low=0, open_low=True, high=1)

    def _share(self) -> float:
        return float(self.l1_ratio)
