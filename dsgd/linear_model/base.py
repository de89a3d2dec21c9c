"""What the generalised linear models share: checks of rows and weights, fits here or on a cluster, predictions."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.inputs.blocks import Block, BlockSummary, Expected, Spread, Work, ranks_asked
from dsgd.inputs.callbacks import notifies_callbacks
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.frames import validated
from dsgd.inputs.linear import AbstractLinearEstimator, AbstractLinearRegressor, classes_of
from dsgd.inputs.named import takes_tables
from dsgd.inputs.rows import check_any_weight, check_sample_weight
from dsgd.linear_model.fits import Packer, RankResult, Start, fit_rows, train_rows
from dsgd.linear_model.problem import AbstractObjective, Solution
from dsgd.runtime.rank import GangResult
from dsgd.types import AnyArray, FloatVector, IntVector
from dsgd.validation import (
    check_bool,
    check_labels,
    check_n_jobs,
    check_number,
    classes_and_codes,
    warn_user,
    weights_of_classes,
)


def run_on_blocks(
    model: Any,
    given: tuple[Any, Any, Any],
    check: Callable[[], Block],
    work: Callable[[Packer], Work],
    *,
    has_classes: bool,
) -> GangResult:
    """Run what `work` returns for the packer of the rows on worker processes, as many as `n_jobs` says."""
    spread = Spread(ranks_asked(getattr(model, "n_jobs", None)), ranks_per_worker=1)
    with model._open_blocks(*given, check, Expected(has_classes), spread) as blocks:
        filled = [summary for summary in blocks.summaries if summary.rows]
        if all(summary.weight == 0.0 for summary in filled):
            raise InvalidDataError("Sample weights must contain at least one non-zero number.")
        dtype = "float32" if all(summary.dtype == "float32" for summary in filled) else "float64"
        packer = Packer(model._classes_of(filled), int(model.n_features_in_), dtype, filled[0].sparse)
        gang: GangResult = blocks.run(work(packer), model._terms(model._listener()))
    return gang


def forget_cluster(model: Any) -> None:
    """Drop what an earlier fit on a cluster has left, which a fit in this process has not."""
    for name in model._of_training:
        vars(model).pop(name, None)


class ClassesMixin:
    """A linear classifier that learns its classes, two at least, and the weights of them."""

    class_weight: Any
    classes_: AnyArray

    def _take_classes(self, classes: AnyArray) -> AnyArray:
        """Set the classes, if the model can tell them apart, and return them."""
        self.classes_ = classes
        if len(classes) < 2:
            raise InvalidDataError(
                "This solver needs samples of at least 2 classes in the data, but the data contains only one class: "
                f"{classes[0]!r}"
            )
        return classes

    def _learn_classes(self, y: AnyArray) -> IntVector:
        """Set the classes; return the number of the class of every label."""
        check_labels(y)
        classes, codes = classes_and_codes(y)
        self._take_classes(classes)
        return codes

    def _classes_of(self, summaries: Sequence[BlockSummary]) -> AnyArray:
        """Set the classes that blocks have between them, and return them."""
        return self._take_classes(classes_of(summaries))

    def _class_factors(self) -> FloatVector | str:
        """Return the weights of the classes; "balanced" for those that only the rows can say."""
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            return self.class_weight
        return weights_of_classes(f"{type(self).__name__}(class_weight=...)", self.class_weight, self.classes_)


class AbstractLinearModel(AbstractLinearEstimator):
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
        forget_cluster(self)
        team, start = Team(effective_n_jobs(getattr(self, "n_jobs", None))), self._started(X.shape[1], n_outputs)
        return self._take_in(*fit_rows(X, targets, weights, self._objective(), start, int(self.max_iter), team))

    def _fit_on_cluster(self, X: Any, y: Any, sample_weight: Any) -> Solution:
        """Fit on worker processes, and set the fitted attributes."""
        begin = time.perf_counter()

        def work(packer: Packer) -> Work:
            n_classes = 2 if packer.classes is None else len(packer.classes)
            start = self._started(packer.n_features, n_classes if n_classes > 2 else 1)
            return Work(train_rows, packer, (self._objective(), start, int(self.max_iter)))

        given = X, y, sample_weight
        gang = run_on_blocks(self, given, lambda: self._check_block(*given), work, has_classes=self._has_classes)
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
        self._warn_unless(solution.gap, tol)
        return solution

    def _warn_unless(self, gap: float, tol: float) -> None:
        """Warn if the gap is not reached, nor where rows are so large that it is no number; accelerated fits refuse."""
        if not gap <= tol:
            warn_user(
                f"{type(self).__name__} stopped after {self.n_iter_} iterations at a duality gap of {gap:.3g}, above "
                f"the {tol:.3g} that tol asks for: the objective is within that of its minimum. Increase max_iter, "
                "scale the features, or penalise more.",
                ConvergenceWarning,
            )


@inherit_method_docs
class AbstractRegressor(AbstractLinearRegressor, AbstractLinearModel):
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

    @property
    def sparse_coef_(self) -> Any:
        """The coefficients as CSR matrix, shape (1, n_features)."""
        check_is_fitted(self)
        return sp.csr_matrix(self.coef_[None])
