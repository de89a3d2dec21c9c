"""`Lasso`, `ElasticNet`, `Ridge` and `PoissonRegressor`: regression to a duality gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dsgd.inputs.docstrings import inherit_docs, inherit_method_docs
from dsgd.linear_model.base import AbstractRegressor
from dsgd.linear_model.problem import ElasticNetObjective, PoissonObjective, RidgeObjective
from dsgd.local.objective import Deviance
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

    _screens: ClassVar[bool] = True

    def _share(self) -> float:
        """Return the share of the absolute weights in the penalty."""
        return 1.0

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

    def _check_common(self) -> None:
        super()._check_common()
        check_number("ElasticNet(l1_ratio=...)", self.l1_ratio, low=0, open_low=True, high=1)

    def _share(self) -> float:
        return float(self.l1_ratio)


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

    def _objective(self) -> RidgeObjective:
        """Return what is minimised."""
        return RidgeObjective(self.fit_intercept, float(self.tol), float(self.alpha))
