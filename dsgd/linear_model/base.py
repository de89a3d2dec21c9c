"""What the generalised linear models share: checks of rows and weights, the solution, predictions."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import closing
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted

from dsgd.collectives import Team
from dsgd.inputs.frames import validated
from dsgd.inputs.linear import CoefficientsMixin
from dsgd.inputs.named import known_columns
from dsgd.inputs.rows import check_any_weight, check_sample_weight
from dsgd.linear_model.fits import Start, fit_here
from dsgd.linear_model.objectives import AbstractObjective
from dsgd.linear_model.problem import Solution
from dsgd.runtime.pools import limit_blas
from dsgd.saving import SavingMixin
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import check_bool, check_n_jobs, check_number, warn_user


class AbstractLinearModel(CoefficientsMixin, SavingMixin, BaseEstimator):
    """A generalised linear model with a certificate.

    Parameters
    ----------
    fit_intercept : bool, default True
        Whether to fit an intercept. It is not penalised.
    warm_start : bool, default False
        Whether ``fit`` starts from the coefficients of the previous fit.

    Attributes
    ----------
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

    def _check_common(self) -> None:
        """Check the parameters that all models have."""
        name = type(self).__name__
        check_bool(f"{name}(fit_intercept=...)", self.fit_intercept)
        for limit, low in (("tol", 0), ("max_iter", 1)):
            if hasattr(self, limit):
                where = f"{name}({limit}=...)"
                check_number(where, getattr(self, limit), low=low, integer=limit == "max_iter")
        if hasattr(self, "n_jobs"):
            check_n_jobs(name, self.n_jobs)
        if hasattr(self, "warm_start"):
            check_bool(f"{name}(warm_start=...)", self.warm_start)

    def _check_rows(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> tuple[Any, AnyArray, FloatVector]:
        """Return rows, targets and weights that are checked; rows of weight zero do not count."""
        X, y = validated(
            self,
            X,
            y,
            accept_sparse=("csr", "csc"),
            dtype=[np.float64, np.float32],
            **options,
        )
        weights = check_sample_weight(sample_weight, X)
        check_any_weight(weights)
        return X, y, np.ones(X.shape[0]) if weights is None else weights.astype(np.float64)

    def _check_targets(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, FloatVector, FloatVector]:
        """Return rows, targets and weights that are checked, float64."""
        X, y, weights = self._check_rows(X, y, sample_weight, y_numeric=True)
        return X, np.asarray(y, dtype=np.float64), weights

    @abstractmethod
    def _objective(self) -> AbstractObjective:
        """Return what is minimised, once the classes are known."""

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
        with (
            limit_blas(1),
            np.errstate(all="ignore"),  # what overflows is refused, or shows in the gap
            closing(Team(effective_n_jobs(getattr(self, "n_jobs", None)))) as team,
        ):
            posed = self._objective().pose(targets, weights, team)
            found = fit_here(X, posed, self._started(X.shape[1], n_outputs), int(self.max_iter), team)
        self._take_in(found)
        self._warn_unless(found.gap, posed.tol)
        return found

    def _warn_unless(self, gap: float, tol: float) -> None:
        """Warn if the gap is not reached."""
        if not gap <= tol:  # nor where rows are so large that it is no number
            warn_user(
                f"{type(self).__name__} stopped after {self.n_iter_} iterations at a duality gap of {gap:.3g}, above "
                f"the {tol:.3g} that tol asks for: the objective is within that of its minimum. Increase max_iter, "
                "scale the features, or penalise more.",
                ConvergenceWarning,
            )

    def _take_in(self, solution: Solution) -> None:
        """Set the fitted attributes."""
        self.coef_, self.intercept_ = solution.weights, solution.intercept
        self.n_iter_, self.dual_gap_ = solution.n_iter + 1, solution.gap

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
