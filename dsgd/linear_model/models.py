"""`Lasso`, `ElasticNet`, `Ridge`, `PoissonRegressor` and `LogisticRegression`, solved to a duality gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import expit, log_expit, log_softmax
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import IncompatiblePartsError
from dsgd.inputs.callbacks import notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs, inherit_method_docs
from dsgd.inputs.linear import AbstractLinearClassifier, answers_in_kind
from dsgd.inputs.named import takes_tables
from dsgd.linear_model.base import AbstractLinearModel, AbstractRegressor, ClassesMixin
from dsgd.linear_model.problem import ElasticNetObjective, LogisticObjective, PoissonObjective, RidgeObjective
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


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class LogisticRegression(ClassesMixin, AbstractLinearClassifier, AbstractLinearModel):
    """Logistic regression, solved to a certified duality gap.

    Minimises over w and b::

        C sum_i s_i log(1 + exp(-y_i (x_i w + b))) + l1_ratio |w|_1 + (1 - l1_ratio) / 2 |w|^2

    with y = -1 or 1 and s_i the weight of the row times that of its class. With more than two classes, the loss is the
    cross-entropy of the softmax of one score per class. This is the objective of scikit-learn's class of the same name.

    On a cluster, the ranks sum float64 numbers. With p features, a step sends 2 p of them, and once or a few times a
    matrix of (p + 1)^2; beyond 1,500 features, p for each step of conjugate gradients instead. With K > 2 classes, a
    Newton step sends about 4 K p, and K (p + 1) for each step of conjugate gradients. With an L1 penalty, a round sends
    p, k (k + 3) / 2 for the matrix of a working set of k features, and about ten messages of up to three.

    Parameters
    ----------
    C : float, default 1.0
        Weight of the losses relative to the penalty; positive. A larger C regularises less.
    l1_ratio : float, default 0.0
        Share of the L1 norm in the penalty, in [0, 1]: 0 is L2, 1 is L1. Above zero, only two classes are possible.
    class_weight : dict, "balanced" or None, default None
        Weights of the classes, not all zero; those that a dict leaves out have weight one. "balanced" gives all
        classes the same total weight. Rows of a class of weight zero have no influence, as those with such sample
        weights. With an intercept, the class has the coefficients zero, and a probability below 2.3e-16 in every row.
    tol : float, default 1e-4
        Stop when the duality gap is at most ``tol`` times the objective of a model with only an intercept.
    max_iter : int, default 100
        Maximum number of steps.
    n_jobs : int or None, default None
        Number of threads: None is one, -1 one per core. Only fits of two classes with an L2 penalty on many dense rows
        use more than one; the model does not depend on their number. On a cluster, the number of workers; None uses
        all.

    Attributes
    ----------
    classes_ : array, shape (n_classes,)
        Labels, sorted.
    coef_ : array of float64, shape (1, n_features) or (n_classes, n_features)
        Coefficients; with two classes, those of the second.
    intercept_ : array of float64, shape (1,) or (n_classes,)
        Intercepts.

    See Also
    --------
    dsgd.SGDClassifier : ``loss="log_loss"`` trains by SGD, on data of any size and on a cluster, to moderate accuracy.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.linear_model import LogisticRegression
    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    >>> model = LogisticRegression().fit(X, ["no", "no", "yes", "yes"])
    >>> model.predict([[3.0]]).tolist()
    ['yes']
    """

    C: float = 1.0
    l1_ratio: float = 0.0
    tol: float = 1e-4
    fit_intercept: bool = True
    class_weight: Any = None
    max_iter: int = 100
    warm_start: bool = False
    n_jobs: int | None = None
    client: Any = None

    _has_classes: ClassVar[bool] = True

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
            Labels, or the name of their column; None where blocks or svmlight files hold them.
        sample_weight : array-like, dask collection, str or None, shape (n_samples,)
            Weights of the rows, not negative, or the name of their column.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            There is only one class, or sample weights are negative or all zero.
        InvalidParameterError
            A parameter is out of range, or ``l1_ratio > 0`` with more than two classes.
        """
        self._check_common()
        check_number("LogisticRegression(C=...)", self.C, low=0, open_low=True, high=np.inf, open_high=True)
        check_number("LogisticRegression(l1_ratio=...)", self.l1_ratio, low=0, high=1)
        if self._uses_cluster(X):
            self._fit_on_cluster(X, y, sample_weight)
        else:
            X, y, weights = self._check_rows(X, y, sample_weight)
            codes = self._learn_classes(y).astype(np.float64)
            n_classes = len(self.classes_)
            self._fit_here(X, codes, weights, n_classes if n_classes > 2 else 1)
        if len(self.classes_) == 2:  # coefficients have the shape of those of several
            self.coef_, self.intercept_ = self.coef_[None], np.array([self.intercept_])
        return self

    def _objective(self) -> LogisticObjective:
        """Return what is minimised, once the classes are known."""
        if len(self.classes_) > 2 and self.l1_ratio > 0.0:
            raise IncompatiblePartsError(
                f"LogisticRegression(l1_ratio={self.l1_ratio!r}) is solved for two classes only, and y has "
                f"{len(self.classes_)}. Take l1_ratio=0, or one model for each class "
                "(sklearn.multiclass.OneVsRestClassifier)."
            )
        return LogisticObjective(
            self.fit_intercept,
            float(self.tol),
            C=float(self.C),
            class_factors=self._class_factors(),
            n_classes=len(self.classes_),
            l1_ratio=float(self.l1_ratio),
        )

    @answers_in_kind
    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, files of tables, dask array or dataframe, shape (n, n_features)
            Rows; dask input gives a lazy result.

        Returns
        -------
        array, shape (n, n_classes)
            Probabilities, in the order of `classes_`.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict_proba", X, len(self.classes_), np.float64)
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        return np.asarray(np.exp(log_softmax(scores, axis=1)))

    @answers_in_kind
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithms of the probabilities of the classes, computed without underflow.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, files of tables, dask array or dataframe, shape (n, n_features)
            Rows; dask input gives a lazy result.

        Returns
        -------
        array, shape (n, n_classes)
            Logarithms, in the order of `classes_`.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict_log_proba", X, len(self.classes_), np.float64)
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([log_expit(-scores), log_expit(scores)])
        return np.asarray(log_softmax(scores, axis=1))
