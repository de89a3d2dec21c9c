"""What the generalised linear models share: checks of rows and weights, fits here or on a cluster, predictions."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.inputs.blocks import Block, BlockSummary, Expected, Spread, Work, ranks_asked
from dsgd.inputs.callbacks import notifies_callbacks
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.estimator import AbstractClusterEstimator
from dsgd.inputs.frames import validated
from dsgd.inputs.linear import CoefficientsMixin
from dsgd.inputs.named import known_columns, takes_tables
from dsgd.inputs.prediction import AbstractClusterRegressor, answers_in_kind
from dsgd.inputs.rows import check_any_weight, check_sample_weight
from dsgd.linear_model.fits import Packer, RankResult, Start, fit_rows, train_rows
from dsgd.linear_model.problem import AbstractObjective, Solution
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import check_bool, check_n_jobs, check_number, warn_user


class AbstractLinearModel(CoefficientsMixin, AbstractClusterEstimator):
    """A generalised linear model with a certificate, which ranks of a cluster can fit together.

    Parameters
    ----------
    fit_intercept : bool, default True
        Whether to fit an intercept. It is not penalised.
    warm_start : bool, default False
        Whether ``fit`` starts from the coefficients of the previous fit.
    client : `dsgd.Gang`, distributed.Client or None, default None
        Where to fit and how: a cluster, or a `dsgd.Gang`, of which `transport`, `timeouts` and `workers` are taken.
        None fits in this process.

    Attributes
    ----------
    ledger_ : dsgd.ledger.Ledger
        Seconds and bytes of every rank; after a fit on a cluster.
    fit_report_ : dict
        ``ranks``, ``elapsed_s``, ``converged``, ``certificates`` (seconds, exchanges, primal and dual value of each),
        ``peak_rss_bytes`` and ``stats`` per rank; after a fit on a cluster.
    n_iter_ : int
        Number of certificates computed: one more than the steps of the solver.
    dual_gap_ : float
        The objective minus a lower bound of its minimum, computed over all rows in float64. The objective exceeds its
        minimum by at most this.
    n_features_in_ : int
        Number of features seen in ``fit``.
    feature_names_in_ : array, shape (n_features,)
        Names of the features, if X had names.
    """

    coef_: Any
    intercept_: Any
    fit_intercept: bool
    max_iter: int

    #: Whether targets are classes.
    _has_classes: ClassVar[bool] = False

    verbose = 0

    def _check_common(self) -> None:
        """Check the parameters that all models have."""
        name = type(self).__name__
        check_bool(f"{name}(fit_intercept=...)", self.fit_intercept)
        for limit, low in (("tol", 0), ("max_iter", 1)):
            check_number(f"{name}({limit}=...)", getattr(self, limit), low=low, integer=limit == "max_iter")
        if hasattr(self, "n_jobs"):
            check_n_jobs(name, self.n_jobs)
        if hasattr(self, "warm_start"):
            check_bool(f"{name}(warm_start=...)", self.warm_start)

    def _check_rows(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, AnyArray, FloatVector]:
        """Return rows, targets and weights that are checked; rows of weight zero do not count."""
        types, is_numeric = [np.float64, np.float32], not self._has_classes
        X, y = validated(self, X, y, accept_sparse=("csr", "csc"), dtype=types, y_numeric=is_numeric)
        weights = check_sample_weight(sample_weight, X)
        check_any_weight(weights)
        return X, y, np.ones(X.shape[0]) if weights is None else weights.astype(np.float64)

    def _check_block(self, X: Any, y: Any, sample_weight: Any) -> Block:
        """Validate arrays of this process, to be cut into blocks."""
        X, y, weights = self._check_rows(X, y, sample_weight)
        return X.tocsr() if sp.issparse(X) else X, y, weights

    @abstractmethod
    def _objective(self) -> AbstractObjective:
        """Return what is minimised, once the classes are known."""

    def _classes_of(self, summaries: Sequence[BlockSummary]) -> AnyArray | None:
        """Learn the classes that blocks have between them, and return them; None for regression."""
        return None

    def _started(self, n_features: int, n_outputs: int = 1) -> Start | None:
        """Return the weights and intercepts to begin at."""
        if getattr(self, "warm_start", False) and hasattr(self, "coef_"):
            weights = np.asarray(self.coef_, dtype=np.float64)
            if np.atleast_2d(weights).shape == (n_outputs, n_features) and weights.any():
                intercepts = np.ravel(np.asarray(self.intercept_, dtype=np.float64))
                return weights.ravel() if n_outputs == 1 else weights, intercepts
        return None

    def _fit_here(self, X: Any, targets: FloatVector, weights: FloatVector, n_outputs: int = 1) -> Solution:
        """Fit to checked rows of this process, and set the attributes."""
        for name in self._of_training:  # what an earlier fit on a cluster has left
            self.__dict__.pop(name, None)
        team, start = Team(effective_n_jobs(getattr(self, "n_jobs", None))), self._started(X.shape[1], n_outputs)
        return self._take_in(*fit_rows(X, targets, weights, self._objective(), start, int(self.max_iter), team))

    def _fit_on_cluster(self, X: Any, y: Any, sample_weight: Any) -> Solution:
        """Fit on worker processes, and set the fitted attributes."""
        begin = time.perf_counter()
        expected = Expected(self._has_classes)
        spread = Spread(ranks_asked(getattr(self, "n_jobs", None)), ranks_per_worker=1)
        with self._open_blocks(
            X, y, sample_weight, lambda: self._check_block(X, y, sample_weight), expected, spread
        ) as blocks:
            filled = [summary for summary in blocks.summaries if summary.rows]
            if all(summary.weight == 0.0 for summary in filled):
                raise InvalidDataError("Sample weights must contain at least one non-zero number.")
            packer = Packer(
                classes=self._classes_of(filled),
                n_features=int(self.n_features_in_),
                dtype="float32" if all(s.dtype == "float32" for s in filled) else "float64",
                sparse=filled[0].sparse,
            )
            n_classes = 2 if packer.classes is None else len(packer.classes)
            start = self._started(packer.n_features, n_classes if n_classes > 2 else 1)
            work = Work(train_rows, packer, (self._objective(), start, int(self.max_iter)))
            gang = blocks.run(work, self._terms(self._listener()))
        result: RankResult = gang.value
        self._take_report(
            gang,
            elapsed_s=time.perf_counter() - begin,
            converged=result.solution.gap <= result.tol,
            certificates=result.certificates,
        )
        return self._take_in(result.solution, result.tol)

    def _take_in(self, solution: Solution, tol: float) -> Solution:
        """Set the fitted attributes, and warn if the gap is not reached."""
        self.coef_, self.intercept_ = solution.weights, solution.intercept
        self.n_iter_, self.dual_gap_ = solution.n_iter + 1, solution.gap
        if not solution.gap <= tol:  # nor where rows are so large that it is no number
            warn_user(
                f"{type(self).__name__} stopped after {self.n_iter_} iterations at a duality gap of "
                f"{solution.gap:.3g}, above the {tol:.3g} that tol asks for: the objective is within that of its "
                "minimum. Increase max_iter, scale the features, or penalise more.",
                ConvergenceWarning,
            )
        return solution

    def _scores(self, X: Any) -> AnyArray:
        """Return X coef' + intercept, shape (n,) or (n, n_outputs)."""
        check_is_fitted(self)
        X = known_columns(self, X)
        X = validated(self, X, accept_sparse=("csr", "csc"), dtype=[np.float64, np.float32], reset=False)
        scores: AnyArray = np.asarray(safe_sparse_dot(X, self.coef_.T, dense_output=True)) + self.intercept_
        return scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@inherit_method_docs
class AbstractRegressor(AbstractClusterRegressor, AbstractLinearModel):
    """A generalised linear model that predicts one value per row.

    Attributes
    ----------
    coef_ : array of float64, shape (n_features,)
        Coefficients.
    intercept_ : float
        Intercept.
    """

    alpha: float

    #: Whether features are screened.
    _screens: ClassVar[bool] = False

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
            Targets, or the name of their column; None where blocks or svmlight files hold them. Those of
            `PoissonRegressor` are not negative, and not all zero.
        sample_weight : array-like, dask collection, str or None, shape (n_samples,)
            Weights of the rows, not negative, or the name of their column. Only their ratios matter, but for `Ridge`.
        """
        self._check_common()
        name = f"{type(self).__name__}(alpha=...)"
        check_number(name, self.alpha, low=0, open_low=True, high=np.inf, open_high=True)
        if self._uses_cluster(X):
            solution = self._fit_on_cluster(X, y, sample_weight)
        else:
            X, y, weights = self._check_rows(X, y, sample_weight)
            solution = self._fit_here(X, np.asarray(y, dtype=np.float64), weights)
        if self._screens:
            self.n_screened_ = solution.n_screened
        return self

    @answers_in_kind
    def predict(self, X: Any) -> Any:
        """Return the predicted values; with a log link, the means.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, files of tables, dask array or dataframe, shape (n, n_features)
            Rows; dask input gives a lazy result.

        Returns
        -------
        array, shape (n,)
            Predicted values.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict", X, None, self.coef_.dtype)
        scores = self._scores(X)
        return scores if self._deviance is None else np.exp(scores)

    @property
    def sparse_coef_(self) -> Any:
        """The coefficients as CSR matrix, shape (1, n_features)."""
        check_is_fitted(self)
        return sp.csr_matrix(self.coef_[None])
