"""What all kernel SVMs share in training: checks, and one problem solved here or on a cluster."""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Final, Self

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.blocks import Expected, Spread, Work
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.estimator import AbstractClusterEstimator
from dsgd.inputs.frames import validated
from dsgd.inputs.linear import classes_of
from dsgd.inputs.sources import is_collection
from dsgd.progress import StopTraining
from dsgd.svm.distributed.dealing import Dealer
from dsgd.svm.distributed.kernel import Gang, RowPacker, fit_on_rank
from dsgd.svm.estimators.conversion import are_objects, compare
from dsgd.svm.estimators.kernel_machine import AbstractKernelMachine, canonical
from dsgd.svm.kernel_solver.elimination import Elimination, resolve_elimination
from dsgd.svm.kernel_solver.problem import Posed, Solution
from dsgd.svm.kernel_solver.solve import solve_dual
from dsgd.svm.kernels.functions import KERNELS, Kernel, as_dense, scale_gamma, survey
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.rows import merge_rows, places_of
from dsgd.svm.kernels.threads import Pool, count_threads, open_pool
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector
from dsgd.validation import check_choice, check_labels, check_n_jobs, check_number, classes_and_codes, warn_user

#: Above this size of C times squared distances, rounding of float32 rows would show in the gap.
_FLOAT32_LIMIT = 1e3

#: Up to so many rows float64 costs nothing to speak of.
_SMALL = 2000

#: What the numbers among the parameters may be, and the words.
_NUMBERS: Final[dict[str, dict[str, Any]]] = {
    "C": {"low": 0, "open_low": True},
    "cache_size": {"low": 0, "open_low": True},
    "coef0": {},
    "degree": {"low": 0, "integer": True},
    "epsilon": {"low": 0},
    "max_iter": {"low": -1, "integer": True},
    "nu": {"low": 0, "high": 1, "open_low": True},
    "tol": {"low": 0, "open_low": True},
}
_WORDS: Final = {"decision_function_shape": ("ovr", "ovo"), "solver": ("block", "pairwise")}


@inherit_method_docs
class AbstractKernelSVM(AbstractKernelMachine):
    """Kernel SVM; the base class of `SVC`, `NuSVC`, `SVR`, `NuSVR` and `OneClassSVM`.

    Parameters
    ----------
    kernel : {"linear", "poly", "rbf", "sigmoid", "precomputed"} or callable, default "rbf"
        The kernel. A callable gets two blocks of rows and returns the values of all pairs; it is called for blocks,
        never for the whole matrix at once. It gets rows that are not vectors all at once: texts and other
        objects as lists, matrices as one array.
    gamma : {"scale", "auto"} or float, default "scale"
        Width of rbf, poly and sigmoid: 1/(d Var X), 1/d or a number. Var X counts rows by their sample weights.
    elimination : str or dsgd.svm.Elimination, default "auto"
        When samples that look settled are left out: ``"none"``, ``"single"``, ``"multi"``, ``"libsvm"``, the presets
        ``"aggressive"``, ``"average"``, ``"conservative"``, or ``"auto"``: ``"multi"`` once kernel rows have filled
        half of a cache too small for all, or have been read often. Does not affect the accuracy of the result.
    degree : int, default 3
        Degree of ``"poly"``, not negative.
    coef0 : float, default 0.0
        Constant of poly and sigmoid.
    tol : float, default 1e-3
        Stop when the largest violation of optimality, over all samples in float64, is below this.
    shrinking : bool, default True
        False turns elimination off.
    cache_size : float, default 200
        Maximal size of cached kernel rows in megabytes. On a cluster, pairs of classes are distributed among ranks if
        all rows together take no more (:ref:`Several classes <svm-dealt-pairs>`).
    n_jobs : int or None, default None
        Number of threads, on a cluster of each rank. None takes as many as BLAS may use, −1 all cores; on a cluster,
        both take the number of the worker.
    client : `dsgd.Gang`, distributed.Client or None, default None
        Where to train and how: a cluster, one rank per worker process, or a `dsgd.Gang`. It takes all of it but
        ``elastic`` and ``out_of_core``: new ranks continue from the saved coefficients (:ref:`svm-failures`), which
        rank 0 writes to `checkpoint`. None trains in this process.

    Attributes
    ----------
    support_vectors_ : array or CSR matrix, shape (n_SV, n_features)
        The support vectors; empty with ``"precomputed"``.
    shape_fit_ : tuple
        Shape of the training data.
    fit_status_ : int
        0 if the gap closed, else 1.
    n_features_in_ : int
        Features seen in ``fit``.
    feature_names_in_ : array, shape (n_features,)
        Their names, if X had any.
    ledger_ : dsgd.Ledger
        Seconds and bytes of every rank; only after training on a cluster.
    fit_report_ : dict
        Ranks, seconds, rounds, peak memory; only after training on a cluster.
    gap_ : float
        Largest violation of the optimality conditions over all samples, in float64: LIBSVM's criterion. With several
        pairs of classes, the largest.
    duality_gap_ : float
        Primal minus dual objective: ``dual_objective_`` is at most this far from the optimum. With several pairs, the
        sum.
    dual_objective_ : float
        Dual objective; with several pairs, the sum.
    converged_ : bool
        Whether ``gap_ < tol``.
    n_eliminated_, n_returned_, n_reconstructions_, n_kernel_evaluations_ : int
        Number of samples left out, samples brought back, recomputations of indicators, and kernel values.
    """

    solver: str = "block"  # the only one but for SVC

    #: The other ranks, while the estimator is fitted on a gang.
    _gang: Gang | None = None

    #: The same where each rank solves problems of its own, as one process does.
    _dealer: Dealer | None = None

    #: Answers the problems of a fit in place of the solver; a grid puts one here that remembers its other points.
    _answer: Callable[[Posed], Solution] | None = None

    #: Returns the value of a gamma on the rows of the fit; for a grid, which answers the fit's problems.
    _width_of: Callable[[float | str], float] | None = None

    #: Seed of the folds for probabilities, the same on all ranks; see `AbstractCalibrated`.
    _fold_seed: int | None = 0

    #: The program of the ranks and its arguments besides the model; a grid puts its own here.
    _program: tuple[Any, ...] = (fit_on_rank,)

    #: What the targets are: "classes", "numbers", or "none".
    _TARGETS: ClassVar[str]

    _takes: ClassVar = ("on_failure", "checkpoint", "resume_from")
    _of_training: ClassVar = (*AbstractClusterEstimator._of_training, "elimination_history_")

    # -- checks --------------------------------------------------------------------------------------------------

    @abstractmethod
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, list of delayed blocks, or files
            Rows, shape (n_samples, n_features), float32 or float64; the kernel matrix, shape (n_samples, n_samples),
            with ``"precomputed"``. A delayed block is a tuple (X, y) or (X, y, sample_weight). Files are svmlight,
            Parquet, CSV or Arrow.
        sample_weight : array-like, dask array or str, shape (n_samples,), or None
            Weights, or the name of their column; a whole number stands for that many copies of the row, zero or less
            for none.
        """

    def _check_parameters(self) -> None:
        name = type(self).__name__
        if not callable(self.kernel):
            check_choice(f"{name}(kernel=...)", self.kernel, KERNELS)
        if isinstance(self.gamma, str):
            check_choice(f"{name}(gamma=...)", self.gamma, ("scale", "auto"))
        else:
            check_number(f"{name}(gamma=...)", self.gamma, low=0)
        for each, within in _NUMBERS.items():
            if hasattr(self, each):
                check_number(f"{name}({each}=...)", getattr(self, each), **within)
        for each, words in _WORDS.items():
            if hasattr(self, each):
                check_choice(f"{name}({each}=...)", getattr(self, each), words)
        check_n_jobs(name, self.n_jobs)
        self._policy()

    def _policy(self) -> Elimination:
        value = self.elimination if self.shrinking else "none"
        where = f"{type(self).__name__}(elimination=...)"
        return resolve_elimination(where, value)

    def _cache_bytes(self) -> int:
        return int(self.cache_size * 2**20)

    def _check_training(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, FloatVector]:
        """Validate; return X as an array or canonical CSR, labels, targets or zeros, and float64 weights."""
        self._objects = X if are_objects(X) else None
        if self._objects is not None:
            X = compare(self.kernel, X, X)
        if self._is_precomputed() and sp.issparse(X):
            raise TypeError("Sparse precomputed kernels are not supported. Pass the kernel matrix as an array.")
        y = None if self._TARGETS == "none" else y
        options = {"y_numeric": True} if self._TARGETS == "numbers" else {}
        checked = validated(self, X, y, **self._form_of_rows(), **options)
        X, y = checked if isinstance(checked, tuple) else (checked, np.zeros(checked.shape[0]))
        if self._TARGETS == "classes":
            check_labels(y)
        else:
            y = np.asarray(y, dtype=np.float64)
        if self._is_precomputed() and X.shape[0] != X.shape[1]:
            raise InvalidDataError(
                f"Precomputed matrix must be a square matrix. Input is a {X.shape[0]}x{X.shape[1]} matrix."
            )
        return canonical(X), y, _check_weights(sample_weight, X.shape[0])

    # -- training ------------------------------------------------------------------------------------------------

    def _make_kernel(self, X: Any, weights: FloatVector, first: IntVector, owner: IntVector) -> Kernel:
        """Return the kernel with its constants, its gamma of merged rows, which is kept for prediction."""
        self._gamma = 0.0
        if callable(self.kernel) or self._is_precomputed():
            return self._known_kernel()
        used, balanced = owner >= 0, self._TARGETS != "none"  # whether coefficients sum to zero
        totals = np.bincount(owner[used], weights=weights[used], minlength=len(first)).astype(np.float64)
        if self._gang is not None:
            known = self._known_kernel()
            kernel = self._gang.make_kernel(known, self.gamma, X, totals, first, balanced=balanced)
            self._gamma = kernel.gamma
            return kernel
        if self._answer is not None:
            self._width_of = cache(lambda gamma: scale_gamma(gamma, X, totals, index=first))
        self._gamma = scale_gamma(self.gamma, X, totals, index=first)
        return survey(self._known_kernel(), X, first, balanced=balanced)

    def _merge(self, X: Any, target: FloatVector, weights: FloatVector) -> tuple[IntVector, IntVector, FloatVector]:
        """Return representatives, owners and summed weights (`merge_rows`); given kernels have no rows to compare."""
        if self._gang is not None:
            return self._gang.merge(X, target, weights)
        if self._is_precomputed():
            used = np.flatnonzero(weights > 0)
            return used, places_of(used, len(weights)), weights[used]
        return merge_rows(X, target, weights)

    def _solve(self, posed: Posed, tol: float, max_iter: int, *, anew: bool = False) -> Solution:
        """Solve the problem of some rows of X; `anew` also where there is an answer to it."""
        if self._answer is not None and not anew:
            return self._answer(posed)
        kernel, X, rows, dual, pool = posed.kernel, posed.X, posed.rows, posed.dual, posed.pool
        matrix = self._make_matrix(kernel, X, rows, float(dual.upper.max()), tol, pool, posed.cache_bytes)
        how: dict[str, Any] = {"tol": tol, "max_iter": max_iter, "elimination": self._policy()}
        how["is_pairwise"] = self.solver == "pairwise"
        if self._gang is not None:
            solution = solve_dual(self._gang.progress.begin(rows, dual), matrix, **how)
            self._gang.progress.end(solution.alpha, solution.counts.n_rounds)
            return solution
        if kernel.name == "linear":
            how["linear_rows"] = lambda: X[rows] if kernel.shift is None else as_dense(X[rows]) - kernel.shift
        return solve_dual(dual, matrix, **how)

    def _make_matrix(
        self, kernel: Kernel, X: Any, rows: IntVector, largest: float, tol: float, pool: Pool, cache_bytes: int
    ) -> KernelMatrix:
        """Return the kernel values among some rows of X, for variables of at most `largest`."""
        dtype = row_dtype(kernel, len(rows), largest, tol)
        if self._gang is not None:
            return self._gang.make_matrix(kernel, X, rows, dtype, pool, cache_bytes)
        return KernelMatrix(kernel, X, samples=rows, dtype=dtype, cache_bytes=cache_bytes, pool=pool)

    def _fitted_state(self) -> dict[str, Any]:
        """Return the fitted attributes: neither parameters nor temporary ones."""
        others = {*self.get_params(deep=False), "_answer", "_width_of", "_gang", "_dealer"}
        return {name: value for name, value in vars(self).items() if name not in others}

    def _take_in(self, solutions: Sequence[Solution]) -> None:
        """Set the attributes that tell of the run, and warn if a gap is open."""
        self.gap_ = max(s.gap for s in solutions)
        self.duality_gap_ = float(sum(s.duality_gap for s in solutions))
        self.dual_objective_ = float(sum(s.objective for s in solutions))
        self.converged_ = all(s.converged for s in solutions)
        self.fit_status_ = int(not self.converged_)
        counts = [s.counts for s in solutions]
        self.n_eliminated_ = sum(each.n_eliminated for each in counts)
        self.n_returned_ = sum(each.n_returned for each in counts)
        self.n_reconstructions_ = sum(each.n_reconstructions for each in counts)
        self.n_kernel_evaluations_ = sum(each.n_evaluations for each in counts)
        self.elimination_history_ = [each.history for each in counts]
        if self._gang is None and self._dealer is None:  # a gang's client warns
            self._warn_if_open(sum(each.n_iter for each in counts))

    def _warn_if_open(self, n_iter: int) -> None:
        if not self.converged_:
            warn_user(
                f"Solver terminated early (max_iter={self.max_iter}).  Consider pre-processing your data with "
                f"StandardScaler or MinMaxScaler. {type(self).__name__} took {n_iter} steps and left a gap of "
                f"{self.gap_:.3g} over all samples; tol={self.tol:g}.",
                ConvergenceWarning,
            )

    @property
    def _is_heard(self) -> bool:
        """Whether messages are shown or received; formatting one takes as long as a small problem."""
        ranks = self._gang or self._dealer
        return self._audience is not None or (ranks is not None and ranks.leads)

    def _say(self, text: str, gap: float) -> None:
        """Tell who listens of a problem that is solved; on a gang, where the client is."""
        event = {"text": text, "gap": gap}
        ranks = self._gang or self._dealer
        if ranks is not None and ranks.leads:
            ranks.publish(event)
        if self._audience is not None:
            # What there is before the gap is closed is no model to stop with.
            with contextlib.suppress(StopTraining):
                self._audience.tell(event)

    # -- on a cluster --------------------------------------------------------------------------------------------

    @abstractmethod
    def _fit_rows(self, X: Any, target: Any, weights: FloatVector) -> None:
        """Train on checked rows, with class codes or targets; on a gang, on the rows of this rank with all targets."""

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Train in this process or on a cluster."""
        self._check_parameters()
        X = self._as_rows(X)
        if self._uses_cluster(X):
            self._fit_on_cluster(X, y, sample_weight)
            return self
        gang = self._deployment
        if gang.checkpoint is not None or gang.resume_from is not None:
            raise InvalidParameterError(
                f"{type(self).__name__}(client=Gang(checkpoint=..., resume_from=...)) is of fits on a cluster: one in "
                "this process writes nothing. Pass a client, or dask collections, or leave both at None."
            )
        X, target, weights = self._check_training(X, y, sample_weight)
        if self._TARGETS == "classes":
            classes, target = classes_and_codes(target)
            self.classes_ = self._check_classes(classes)
        self._fit_rows(X, target, weights)
        return self

    def _fit_on_cluster(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Train on worker processes, one rank on each."""
        if are_objects(X):
            raise InvalidParameterError(
                f"{type(self).__name__}(client=...) trains on rows of numbers. X holds objects, which a callable "
                "kernel compares in this process: take client=None."
            )
        if self._is_precomputed():
            raise InvalidParameterError(
                f"{type(self).__name__}(kernel='precomputed') cannot be trained on a cluster: ranks compute kernel "
                "values from features. Pass features and a kernel, or fit in this process (client=None, numpy arrays)."
            )
        begin = time.perf_counter()
        if is_collection(sample_weight):
            sample_weight = sample_weight.clip(0)  # a row of negative weight is left out, as in LIBSVM
        has_classes, is_supervised = self._TARGETS == "classes", self._TARGETS != "none"
        given = X, y if is_supervised or is_collection(y) else None, sample_weight
        expected, spread = Expected(has_classes, is_supervised), Spread(ranks_per_worker=1)
        with self._open_blocks(*given, lambda: self._check_training(*given), expected, spread) as blocks:
            filled = [s for s in blocks.summaries if s.rows]
            classes = classes_of(filled) if has_classes else None
            is_single = not callable(self.kernel) and all(s.dtype == "float32" for s in filled)
            dtype = "float32" if is_single else "float64"
            packer = RowPacker(classes, int(self.n_features_in_), dtype, filled[0].sparse)
            here = replace(self._deployment, client=None).plain()
            model = type(self)(**{**self.get_params(deep=False), "client": here})
            model._fold_seed = self._fold_seed
            if classes is not None:
                model.classes_ = self._check_classes(classes)
            program, *more = self._program
            gang = blocks.run(Work(program, packer, (model, *more), numbered=True), self._terms(self._listener()))
        self.__dict__.update(gang.value)
        if note := self.__dict__.pop("_note", ""):
            warn_user(note, RuntimeWarning)
        self._take_report(
            gang,
            elapsed_s=time.perf_counter() - begin,
            rounds=sum(record.event == "block" for history in self.elimination_history_ for record in history),
            converged=self.converged_,
        )
        self._warn_if_open(int(np.sum(self.n_iter_)))

    def _check_classes(self, classes: AnyArray) -> AnyArray:
        """Return the classes if there are enough of them."""
        if len(classes) < 2:
            raise InvalidDataError(f"The number of classes has to be greater than one; got {len(classes)} class")
        return classes

    # -- the machine that is kept --------------------------------------------------------------------------------

    def _open_pool(self) -> contextlib.AbstractContextManager[Pool]:
        return open_pool(count_threads(self.n_jobs), None if self._dealer is None else self._dealer.check)

    def _keep_support(self, X: Any, support: AnyArray) -> None:
        self.support_ = support.astype(np.int32)
        self._is_sparse = sp.issparse(X)
        if self._is_precomputed():
            self.support_vectors_ = np.empty((0, 0))
        elif self._gang is not None:
            self.support_vectors_ = self._gang.collect(X, support)
        else:
            self.support_vectors_ = X[support]
        self.shape_fit_ = X.shape if self._gang is None else (self._gang.n_rows, X.shape[1])

    def _keep_coefs(self, coefs: FloatMatrix, intercept: FloatVector, kernel: Kernel) -> None:
        """Keep what machines are made of: coefficients of support vectors, and intercepts as the kernel knows them."""
        self.dual_coef_ = sp.csr_matrix(coefs) if self._is_sparse else np.ascontiguousarray(coefs)
        self.intercept_ = intercept
        self.__dict__.pop("_coef", None)
        if self._is_linear() and (self._gang is None or self._gang.leads):
            pairs, vectors = self._pair_coefs().T, self.support_vectors_.astype(np.float64, copy=False)
            if kernel.shift is not None:
                # The same sums with fewer digits lost; and from them the intercept, so that both are off by the same.
                coef = pairs @ (as_dense(vectors) - kernel.shift)
                self.intercept_ = intercept - coef @ kernel.shift
                self._coef = sp.csr_matrix(coef) if sp.issparse(vectors) else coef
            else:
                self._coef = canonical((sp.csr_matrix(pairs) if sp.issparse(vectors) else pairs) @ vectors)
        if not (np.isfinite(coefs).all() and np.isfinite(self.intercept_).all()):
            raise InvalidDataError(
                "The dual coefficients or intercepts are not finite. The input data may contain large values and need "
                "to be preprocessed."
            )


def fill(bounds: FloatVector, amount: float) -> FloatVector:
    """Return a start that sums to `amount`, as LIBSVM's: the first are at their bounds, one is between, shape (n,)."""
    ends = np.cumsum(bounds)
    k = min(int(np.searchsorted(ends, amount)), len(bounds) - 1)
    out = np.zeros(len(bounds))
    out[:k] = bounds[:k]
    out[k] = min(max(amount - (ends[k - 1] if k else 0.0), 0.0), bounds[k])
    return out


def near_start(y: FloatVector, alpha: FloatVector, upper: FloatVector) -> FloatVector:
    """Return a start near the solution `alpha` of a problem with higher bounds: within `upper`, and y'α = 0."""
    out: FloatVector = np.minimum(alpha, upper)
    excess = float(y @ out)
    side = np.flatnonzero((y * excess > 0) & (out > 0))
    side = side[np.argsort(out[side] >= upper[side], kind="stable")]
    ends = np.cumsum(out[side])
    out[side] -= np.clip(abs(excess) - (ends - out[side]), 0.0, out[side])
    return out


def _check_weights(sample_weight: Any, n: int) -> FloatVector:
    if sample_weight is None:
        return np.ones(n)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(n, float(weights))
    if weights.shape != (n,):
        raise InvalidDataError(f"sample_weight.shape == {weights.shape}, expected {(n,)}: one weight per row.")
    if not np.isfinite(weights).all():
        raise InvalidDataError("sample_weight has entries that are NaN or infinite; weights must be finite.")
    weights = np.maximum(weights, 0.0)  # a row of negative weight is left out, as in LIBSVM
    if not weights.any():
        raise InvalidDataError(
            "Invalid input - all samples have zero or negative weights. sample_weight needs entries above zero."
        )
    return weights


def row_dtype(kernel: Kernel, n: int, largest: float, tol: float) -> Any:
    """Return the type for cached rows: float32 where its rounding stays far below tol."""
    if kernel.name in {"precomputed", "callable"} or n <= _SMALL:
        return np.float64
    size = kernel.largest_square
    if kernel.name != "linear":
        size *= kernel.gamma
    if kernel.name == "poly":
        size = (size + abs(kernel.coef0)) ** kernel.degree
    return np.float64 if largest * size * 1e-3 / tol > _FLOAT32_LIMIT else np.float32
