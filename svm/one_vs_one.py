"""What the kernel classifiers share: one problem per pair of classes, coefficients laid out as in scikit-learn, votes.

Pairs are solved side by side where there are as many as threads. Of pair (a, b), a before b, positive means class a;
with two classes positive means the second, as everywhere in scikit-learn.
"""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs import announced, lazy
from dsgd.svm.base import AbstractKernelSVM
from dsgd.svm.dual import Dual, Solution
from dsgd.svm.kernel_functions import Kernel
from dsgd.svm.merging import deal_out
from dsgd.svm.threads import Pool
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector
from dsgd.validation import check_bool, check_choice

__all__ = ["AbstractKernelClassifier"]


class AbstractKernelClassifier(ClassifierMixin, AbstractKernelSVM):
    """Kernel classifier trained one against one; `SVC` and `NuSVC` are the ones to use."""

    class_weight: Any
    decision_function_shape: str
    break_ties: bool

    # -- what the final classes say ------------------------------------------------------------------------------

    @abstractmethod
    def _bounds(self, codes: AnyArray, weights: FloatVector) -> FloatVector:
        """Return the upper bounds of the variables of all rows, shape (n,)."""

    @abstractmethod
    def _pose(self, pair: tuple[int, int], y: FloatVector, bounds: FloatVector) -> Dual:
        """Return the dual of a pair, of signs and bounds of shape (m,)."""

    @abstractmethod
    def _find_thresholds(self, dual: Dual, solution: Solution) -> FloatVector:
        """Return the f at which variables are free, one for all or one for each sign, shape (1,) or (2,)."""

    # -- training ------------------------------------------------------------------------------------------------

    @announced
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, list of delayed blocks, or svmlight file(s)
            Rows, shape (n_samples, n_features), float32 or float64; the kernel matrix, shape (n_samples, n_samples),
            with ``"precomputed"``. A delayed block is a tuple (X, y) or (X, y, sample_weight).
        y : array-like or dask collection, shape (n_samples,)
            Labels; None where blocks or files hold them.
        sample_weight : array-like or dask array, shape (n_samples,), or None
            Weights; a whole number stands for that many copies of the row, zero for none.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            The data cannot be trained on.
        InvalidParameterError
            A parameter is out of range.
        GangError
            A rank failed; names rank, worker and host.
        """
        name = type(self).__name__
        self._check_parameters()
        check_choice(f"{name}(decision_function_shape=...)", self.decision_function_shape, ("ovr", "ovo"))
        check_bool(f"{name}(break_ties=...)", self.break_ties)

        def check() -> tuple[Any, Any, FloatVector]:
            rows, labels, weights = self._check_training(X, y, sample_weight)
            labels = column_or_1d(labels, warn=True)
            check_classification_targets(labels)
            return rows, labels, weights

        if self._uses_cluster(X):
            self._fit_on_cluster(X, y, sample_weight, check, classification=True, supervised=True)
            return self
        rows, labels, weights = check()
        classes, codes = np.unique(labels, return_inverse=True)
        self.classes_ = self._check_classes(classes)
        self._fit_rows(rows, codes, weights)
        return self

    def _fit_rows(self, X: Any, target: Any, weights: FloatVector) -> None:
        codes = np.asarray(target).astype(np.int64)
        self.class_weight_ = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[codes])
        if len(np.unique(codes[self.class_weight_[codes] * weights > 0])) < len(self.classes_):
            raise InvalidDataError("Invalid input - all samples of a class have zero weight; leave the class out.")
        self._train(X, codes, weights)

    def _train(self, X: Any, codes: AnyArray, weights: FloatVector) -> None:
        bounds = self._bounds(codes, weights)
        first, owner, total = self._merge(X, codes.astype(np.float64), bounds)
        kernel = self._make_kernel(X, weights, first, owner)
        merged_codes = codes[first]
        pairs = list(combinations(range(len(self.classes_)), 2))

        def train_pair(pair: tuple[int, int], pool: Pool, cache_bytes: int) -> tuple[FloatVector, Solution]:
            rows = _rows_of(pair, merged_codes)
            y = np.where(merged_codes[rows] == pair[0], 1.0, -1.0)
            if len(pairs) == 1:
                y = -y  # with two classes, positive means the second
            dual = self._pose(pair, y, total[rows])
            solution = self._solve_pair(kernel, X, first[rows], dual, pool, cache_bytes)
            self._say(f"{self.classes_[list(pair)]}: {solution.n_iter} steps, gap {solution.gap:.3g}")
            return y * solution.alpha[0], replace(solution, thresholds=self._find_thresholds(dual, solution))

        with self._open_pool() as pool:
            n = pool.n_threads
            if (
                n > 1 and len(pairs) >= n and self._gang is None
            ):  # pairs side by side leave no thread waiting at the end of a block
                with ThreadPoolExecutor(n) as executor:
                    share = self._cache_bytes() // n
                    found = list(executor.map(lambda pair: train_pair(pair, Pool(1, None), share), pairs))
            else:
                found = [train_pair(pair, pool, self._cache_bytes()) for pair in pairs]
        merged = np.zeros((len(self.classes_) - 1, len(first)))
        for pair, (beta, _) in zip(pairs, found, strict=True):
            rows = _rows_of(pair, merged_codes)
            merged[np.where(merged_codes[rows] == pair[0], pair[1] - 1, pair[0]), rows] = beta
        solutions = [solution for _, solution in found]
        self._collect(X, codes, np.stack([deal_out(line, owner, bounds, total) for line in merged]), pairs, solutions)

    def _solve_pair(
        self, kernel: Kernel, X: Any, rows: IntVector, dual: Dual, pool: Pool, cache_bytes: int
    ) -> Solution:
        """Solve the problem of a pair; go on to a smaller tolerance where the margin found is within rounding of it."""
        tol, limit = float(self.tol), int(self.max_iter)
        solution = self._solve(kernel, X, rows, dual, tol, limit, pool, cache_bytes)
        while dual.by_sign and _margin(solution) < 2 * tol and tol > 1e-9 and solution.gap < tol:
            left = max(limit - solution.n_iter, 0) if limit >= 0 else limit
            tol *= 0.01
            start = replace(dual, alpha=solution.alpha, u=solution.u)
            again = self._solve(kernel, X, rows, start, tol, left, pool, cache_bytes)
            solution = replace(
                again,
                converged=True,  # to the tolerance that was asked for
                n_iter=solution.n_iter + again.n_iter,
                n_eliminated=solution.n_eliminated + again.n_eliminated,
                n_returned=solution.n_returned + again.n_returned,
                n_reconstructions=solution.n_reconstructions + again.n_reconstructions,
                n_evaluations=solution.n_evaluations + again.n_evaluations,
                history=solution.history + again.history,
            )
        return solution

    def _collect(
        self,
        X: Any,
        codes: AnyArray,
        coefs: FloatMatrix,
        pairs: list[tuple[int, int]],
        solutions: list[Solution],
    ) -> None:
        """Lay the coefficients of all pairs out as scikit-learn does: by class, one row per other class."""
        k = len(self.classes_)
        self._margins = np.array([_margin(solution) for solution in solutions])
        if not (self._margins > 0).all():
            raise InvalidDataError(
                f"The margin between two classes is {self._margins.min():.3g}, so no decision function follows. Lower "
                "nu, or scale the features with StandardScaler or MinMaxScaler."
            )
        scale = np.ones((k - 1, k))
        for (a, b), margin in zip(pairs, self._margins, strict=True):
            scale[b - 1, a] = scale[a, b] = 1.0 / margin
        support = np.flatnonzero(coefs.any(axis=0))
        support = support[np.argsort(codes[support], kind="stable")]
        self._keep_support(X, support)
        self._n_support = np.bincount(codes[support], minlength=k).astype(np.int32)
        thresholds = np.array([solution.thresholds.mean() for solution in solutions])
        self._keep_coefs(coefs[:, support] * scale[:, codes[support]], -thresholds / self._margins)
        self.n_iter_ = np.array([solution.n_iter for solution in solutions], dtype=np.int32)
        self._take_in(solutions)

    # -- attributes ----------------------------------------------------------------------------------------------

    def _pair_coefs(self) -> FloatMatrix:
        """Return the coefficients of each pair of classes, shape (n_SV, n_pairs)."""
        coefs = self._dense_coefs()
        k = len(self.classes_)
        ends = np.concatenate([[0], np.cumsum(self._n_support)])
        out = np.zeros((coefs.shape[1], k * (k - 1) // 2))
        for column, (a, b) in enumerate(combinations(range(k), 2)):
            out[ends[a] : ends[a + 1], column] = coefs[b - 1, ends[a] : ends[a + 1]]
            out[ends[b] : ends[b + 1], column] = coefs[a, ends[b] : ends[b + 1]]
        return out

    def _grouped_coefs(self) -> tuple[FloatMatrix, list[tuple[int, IntVector]]]:
        # The support vectors of a class have a coefficient for each of its pairs only, not for all.
        k = len(self.classes_)
        column = {pair: number for number, pair in enumerate(combinations(range(k), 2))}
        mine = [np.array([column[min(a, b), max(a, b)] for b in range(k) if b != a]) for a in range(k)]
        return self._dense_coefs().T, list(zip(np.cumsum(self._n_support).tolist(), mine, strict=True))

    def _pair_scores(self, X: Any) -> FloatMatrix:
        return np.asarray(self._sums(X) + self.intercept_)

    def decision_function(self, X: Any) -> Any:
        """Return decision values.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, shape (n, n_features)
            Rows (dask input gives a lazy result); with ``"precomputed"``, kernel values with the training rows, shape
            (n, n_samples).

        Returns
        -------
        array, shape (n,), (n, n_classes) or (n, n_classes * (n_classes - 1) / 2)
            With two classes, positive means the second; of a pair, positive means the first. ``"ovr"`` counts votes and
            breaks ties by the sums of decision values.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            k = len(self.classes_)
            columns = k if self.decision_function_shape == "ovr" else k * (k - 1) // 2
            return self._apply("decision_function", X, None if k == 2 else columns, np.float64)
        scores = self._pair_scores(X)
        if scores.shape[1] == 1:
            return scores[:, 0]
        if self.decision_function_shape == "ovo":
            return scores
        votes, sums = self._votes(scores)
        return np.asarray(votes + sums / (3 * (np.abs(sums) + 1)))

    def _votes(self, scores: FloatMatrix) -> tuple[FloatMatrix, FloatMatrix]:
        """Return votes and sums of decision values, both of shape (n, n_classes)."""
        k = len(self.classes_)
        votes, sums = np.zeros((len(scores), k)), np.zeros((len(scores), k))
        for column, (a, b) in enumerate(combinations(range(k), 2)):
            sums[:, a] += scores[:, column]
            sums[:, b] -= scores[:, column]
            votes[:, a] += scores[:, column] >= 0
            votes[:, b] += scores[:, column] < 0
        return votes, sums

    def predict(self, X: Any) -> Any:
        """Return the labels.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, shape (n, n_features)
            Rows (dask input gives a lazy result), as for `decision_function`.

        Returns
        -------
        array, shape (n,)
            Labels.

        Raises
        ------
        InvalidParameterError
            ``break_ties`` with ``decision_function_shape="ovo"``.
        """
        check_is_fitted(self)
        if self.break_ties and self.decision_function_shape == "ovo":
            raise InvalidParameterError("break_ties must be False when decision_function_shape is 'ovo'")
        if self._is_lazy(X):
            return self._apply("predict", X, None, self.classes_.dtype)
        scores = self._pair_scores(X)
        if scores.shape[1] == 1:
            return np.asarray(self.classes_[(scores[:, 0] > 0).astype(np.intp)])
        votes, sums = self._votes(scores)
        if self.break_ties:
            votes = votes + sums / (3 * (np.abs(sums) + 1))
        return np.asarray(self.classes_[np.argmax(votes, axis=1)])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy, a float; on dask input it is computed block by block.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.

        Returns
        -------
        float
            Share of (weighted) rows that are predicted right.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return lazy.accuracy(self._without_client(), X, y, sample_weight)
        return float(super().score(X, y, sample_weight))


def _rows_of(pair: tuple[int, int], codes: AnyArray) -> AnyArray:
    """Return the rows of two classes, in the order of content: both are mixed, so neither leads the first blocks."""
    return np.flatnonzero((codes == pair[0]) | (codes == pair[1]))


def _margin(solution: Solution) -> float:
    """Return what coefficients are divided by: the margin that was found, if the sum is fixed for each sign, else 1."""
    if len(solution.thresholds) == 1:
        return 1.0
    return 0.5 * float(solution.thresholds[0] - solution.thresholds[1])
