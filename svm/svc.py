"""Support vector classification with kernels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.svm.base import AbstractKernelSVM
from dsgd.svm.block import Dual, Solution
from dsgd.svm.elimination import Elimination
from dsgd.svm.merging import deal_out
from dsgd.svm.threads import Pool
from dsgd.types import AnyArray, FloatMatrix, FloatVector
from dsgd.validation import check_bool, check_choice, check_number

__all__ = ["SVC"]


class SVC(ClassifierMixin, AbstractKernelSVM):
    """Support vector classification, to LIBSVM's optimum, with a gap over all samples in float64 that says so.

    Minimises ½‖w‖² + Σ C_i max(0, 1 − y_i (w'φ(x_i) + b)) by its dual; several classes are trained one against one.
    Parameters, defaults and fitted attributes are those of `sklearn.svm.SVC`, without ``probability`` and its
    ``random_state``: calibrate with `sklearn.calibration.CalibratedClassifierCV`.

    Parameters
    ----------
    C : float, default 1.0
        Cost of violating the margin; C_i is C times class weight times sample weight.
    kernel : {"linear", "poly", "rbf", "sigmoid", "precomputed"} or callable, default "rbf"
        The kernel. A callable gets two blocks of rows and returns the values of all pairs; it is called for blocks,
        never for the whole matrix at once.
    degree : float, default 3
        Degree of ``"poly"``.
    gamma : {"scale", "auto"} or float, default "scale"
        Width of rbf, poly and sigmoid: 1/(d Var X), 1/d or a number. Var X counts rows by their sample weights.
    coef0 : float, default 0.0
        Constant of poly and sigmoid.
    shrinking : bool, default True
        False turns elimination off.
    tol : float, default 1e-3
        Stop when the largest violation of optimality, over all samples in float64, is below.
    cache_size : float, default 200
        Megabytes of cached kernel rows at most.
    class_weight : dict, "balanced" or None, default None
        Weight of each class.
    verbose : bool, default False
        Print a line per pair of classes.
    max_iter : int, default -1
        Two-variable steps per pair of classes at most; −1 is max(10⁷, 100 n).
    decision_function_shape : {"ovr", "ovo"}, default "ovr"
        One column per class, or per pair of classes, when there are more than two.
    break_ties : bool, default False
        With ``"ovr"``, predict the class of the largest decision value instead of the first of those with most votes.
    elimination : str or dsgd.svm.Elimination, default "auto"
        When samples that look settled are left out: ``"none"``, ``"single"``, ``"multi"``, ``"libsvm"``, the presets
        ``"aggressive"``, ``"average"``, ``"conservative"``, or ``"auto"``: ``"multi"`` once a tenth of the
        kernel rows had to be computed again, for want of cache. Has no influence on the accuracy of the result.
    n_jobs : int or None, default None
        Threads; None takes as many as BLAS may use, −1 all cores.

    Attributes
    ----------
    classes_ : array, shape (n_classes,)
        The labels, sorted.
    class_weight_ : array, shape (n_classes,)
        Their weights.
    support_ : int32 array, shape (n_SV,)
        Rows that are support vectors, by class.
    support_vectors_ : array or CSR matrix, shape (n_SV, n_features)
        Those rows; empty with ``"precomputed"``.
    n_support_ : int32 array, shape (n_classes,)
        Support vectors of each class.
    dual_coef_ : array or CSR matrix, shape (n_classes - 1, n_SV)
        Their coefficients y α, laid out as in scikit-learn.
    intercept_ : array, shape (n_classes * (n_classes - 1) / 2,)
        Intercepts.
    coef_ : array or CSR matrix, shape (n_classes * (n_classes - 1) / 2, n_features)
        Weights of features; only with ``kernel="linear"``.
    n_iter_ : int32 array, shape (n_classes * (n_classes - 1) / 2,)
        Two-variable steps of each pair.
    shape_fit_ : tuple
        Shape of the training data.
    fit_status_ : int
        0 if the gap closed, else 1.
    n_features_in_ : int
        Features seen in ``fit``.
    feature_names_in_ : array, shape (n_features,)
        Their names, if X had any.
    gap_ : float
        Largest violation over all samples, in float64 (of the worst pair).
    dual_objective_ : float
        Dual objective, the sum over pairs.
    converged_ : bool
        Whether ``gap_ < tol``.
    n_eliminated_, n_returned_, n_reconstructions_, n_kernel_evaluations_ : int
        Samples left out, samples that came back, times that indicators were renewed, kernel values computed.
    elimination_history_ : list of lists of dsgd.svm.EliminationRecord
        The run of each pair.

    See Also
    --------
    dsgd.SGDClassifier : Linear SVMs on data too large for an exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.svm import SVC
    >>> X = np.array([[-1.0, -1.0], [-2.0, -1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> model = SVC().fit(X, ["no", "no", "yes", "yes"])
    >>> model.predict([[-0.8, -1.0]]).tolist(), model.converged_
    (['no'], True)
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        kernel: Any = "rbf",
        degree: float = 3,
        gamma: str | float = "scale",
        coef0: float = 0.0,
        shrinking: bool = True,
        tol: float = 1e-3,
        cache_size: float = 200,
        class_weight: Any = None,
        verbose: bool = False,
        max_iter: int = -1,
        decision_function_shape: str = "ovr",
        break_ties: bool = False,
        elimination: str | Elimination = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.shrinking = shrinking
        self.tol = tol
        self.cache_size = cache_size
        self.class_weight = class_weight
        self.verbose = verbose
        self.max_iter = max_iter
        self.decision_function_shape = decision_function_shape
        self.break_ties = break_ties
        self.elimination = elimination
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n_samples, n_features)
            Rows, float32 or float64; the kernel matrix, shape (n_samples, n_samples), with ``"precomputed"``.
        y : array-like, shape (n_samples,)
            Labels.
        sample_weight : array-like, shape (n_samples,), or None
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
        """
        self._check_parameters()
        check_number("SVC(C=...)", self.C, low=0, open_low=True)
        check_choice("SVC(decision_function_shape=...)", self.decision_function_shape, ("ovr", "ovo"))
        check_bool("SVC(break_ties=...)", self.break_ties)
        X, y, weights = self._check_training(X, y, sample_weight)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidDataError(f"The number of classes has to be greater than one; got {len(self.classes_)} class")
        self.class_weight_ = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        costs = float(self.C) * self.class_weight_[codes] * weights
        if len(np.unique(codes[costs > 0])) < len(self.classes_):
            raise InvalidDataError("Invalid input - all samples of a class have zero weight; leave the class out.")
        self._train(X, codes, weights, costs)
        return self

    def _train(self, X: Any, codes: AnyArray, weights: FloatVector, costs: FloatVector) -> None:
        first, owner, total = self._merge(X, codes.astype(np.float64), costs)
        kernel = self._make_kernel(X, weights, first, owner)
        members = [np.flatnonzero(codes[first] == k) for k in range(len(self.classes_))]
        pairs = list(combinations(range(len(self.classes_)), 2))

        def train_pair(pair: tuple[int, int], pool: Pool, cache_bytes: int) -> Solution:
            a, b = members[pair[0]], members[pair[1]]
            rows = np.concatenate([a, b])
            # In the order of content both classes are mixed, so neither leads the first blocks.
            rows.sort()
            y = np.where(codes[first[rows]] == pair[0], 1.0, -1.0)[None]
            if len(pairs) == 1:
                y = -y  # with two classes, positive means the second
            dual = Dual(y, np.full(y.shape, -1.0), total[rows][None], np.zeros(y.shape))
            solution = self._solve(kernel, X, first[rows], dual, float(self.tol), pool, cache_bytes)
            if self.verbose:
                print(f"{self.classes_[list(pair)]}: {solution.n_iter} steps, gap {solution.gap:.3g}")  # noqa: T201
            return solution

        with self._open_pool() as pool:
            n = pool.n_threads
            if n > 1 and len(pairs) >= n:  # pairs side by side leave no thread waiting at the end of a block
                with ThreadPoolExecutor(n) as executor:
                    share = self._cache_bytes() // n
                    solutions = list(executor.map(lambda pair: train_pair(pair, Pool(1, None), share), pairs))
            else:
                solutions = [train_pair(pair, pool, self._cache_bytes()) for pair in pairs]
        self._collect(X, codes, costs, members, pairs, solutions, first, owner, total)
        self.n_iter_ = np.array([s.n_iter for s in solutions], dtype=np.int32)
        self._take_in(solutions)

    def _collect(
        self,
        X: Any,
        codes: AnyArray,
        costs: FloatVector,
        members: list[AnyArray],
        pairs: list[tuple[int, int]],
        solutions: list[Solution],
        first: AnyArray,
        owner: AnyArray,
        total: FloatVector,
    ) -> None:
        """Lay the coefficients of all pairs out as scikit-learn does: by class, one row per other class."""
        k = len(self.classes_)
        merged = np.zeros((k - 1, len(first)))
        for (a, b), solution in zip(pairs, solutions, strict=True):
            rows = np.sort(np.concatenate([members[a], members[b]]))
            sign = np.where(codes[first[rows]] == a, 1.0, -1.0) * (-1.0 if k == 2 else 1.0)
            line = np.where(codes[first[rows]] == a, b - 1, a)
            merged[line, rows] = sign * solution.alpha[0]
        coefs = np.stack([deal_out(line, owner, costs, total) for line in merged])
        support = np.flatnonzero(coefs.any(axis=0))
        support = support[np.argsort(codes[support], kind="stable")]
        self._keep_support(X, support)
        self._n_support = np.bincount(codes[support], minlength=k).astype(np.int32)
        self._keep_coefs(coefs[:, support], np.array([-s.thresholds[0] for s in solutions]))

    @property
    def n_support_(self) -> AnyArray:
        """Support vectors of each class, int32, shape (n_classes,)."""
        if not hasattr(self, "_n_support"):
            raise AttributeError("n_support_ is there after fit")
        return self._n_support

    @property
    def coef_(self) -> Any:
        """Weights of features, shape (n_classes * (n_classes - 1) / 2, n_features); only with a linear kernel."""
        return self._linear_coef(self._pair_coefs())

    def _pair_coefs(self) -> FloatMatrix:
        """Return the coefficients of each pair of classes, shape (n_SV, n_pairs)."""
        check_is_fitted(self)
        k, coefs = len(self.classes_), self._dense_coefs()
        ends = np.concatenate([[0], np.cumsum(self._n_support)])
        out = np.zeros((coefs.shape[1], k * (k - 1) // 2))
        for column, (a, b) in enumerate(combinations(range(k), 2)):
            out[ends[a] : ends[a + 1], column] = coefs[b - 1, ends[a] : ends[a + 1]]
            out[ends[b] : ends[b + 1], column] = coefs[a, ends[b] : ends[b + 1]]
        return out

    def _pair_scores(self, X: Any) -> FloatMatrix:
        check_is_fitted(self)
        scores: FloatMatrix = self._sums(X, self._pair_coefs()) + self.intercept_
        return scores

    def decision_function(self, X: Any) -> FloatMatrix:
        """Return decision values.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n, n_features)
            Rows; with ``"precomputed"``, kernel values with the training rows, shape (n, n_samples).

        Returns
        -------
        array, shape (n,), (n, n_classes) or (n, n_classes * (n_classes - 1) / 2)
            With two classes, positive means the second; of a pair, positive means the first. ``"ovr"`` counts votes and
            breaks ties by the sums of decision values.
        """
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

    def predict(self, X: Any) -> AnyArray:
        """Return the labels.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (n, n_features)
            Rows, as for `decision_function`.

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
        scores = self._pair_scores(X)
        if scores.shape[1] == 1:
            return np.asarray(self.classes_[(scores[:, 0] > 0).astype(np.intp)])
        votes, sums = self._votes(scores)
        if self.break_ties:
            votes = votes + sums / (3 * (np.abs(sums) + 1))
        return np.asarray(self.classes_[np.argmax(votes, axis=1)])
