"""What classifiers with calibration curves share: `dsgd.svm.calibration`, fitted and applied.

Kernel classifiers: one problem per pair of classes, their votes and probabilities.

Pairs are solved side by side where there are as many as threads, and dealt out to the ranks of a gang where that pays
(`dsgd.svm.distributed.dealing`). Of pair (a, b), a before b, positive means class a; with two classes positive means
the second, as everywhere in scikit-learn.

With ``probability`` every pair is solved five times more, each time with a fifth of its rows bounded by zero: no
variable of theirs can move, and what the proof computes for all rows are their scores by a machine that has not seen
them. The folds are LIBSVM's of each pair with True, else stratified folds of all rows; these machines begin near the
one of all rows, which is solved first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs import notifies_callbacks
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.named import takes_tables
from dsgd.inputs.prediction import AbstractClusterClassifier
from dsgd.svm.calibration import (
    LIBSVM,
    METHODS,
    N_FOLDS,
    AbstractCalibrated,
    assign_folds,
    couple,
    draw_folds,
    draw_seed,
    fit_curve,
    fit_sigmoid,
    has_curves,
    normalised,
)
from dsgd.svm.distributed.dealing import TrainedPair, dealer_of
from dsgd.svm.estimators.kernel_base import AbstractKernelSVM, near_start
from dsgd.svm.kernel_solver.pairs import ClassPairs
from dsgd.svm.kernel_solver.problem import Dual, Posed, Solution
from dsgd.svm.kernel_solver.solve import has_linear_start
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.rows import distribute, places_of, sums_by
from dsgd.svm.kernels.threads import Pool
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector
from dsgd.validation import (
    as_random_state,
    check_bool,
    warn_user,
    weights_of_classes,
)

#: Numbers of pairs, each under both of its classes, that are held at once.
_HELD = 2**17


@lru_cache(maxsize=16)
def _columns_of(k: int) -> AnyArray:
    """Return which pairs each of k classes is in, by the number of the other class, shape (k, k - 1)."""
    columns = np.empty((k, k), dtype=np.int64)
    for number, (a, b) in enumerate(combinations(range(k), 2)):
        columns[a, b] = columns[b, a] = number
    return columns[~np.eye(k, dtype=np.bool_)].reshape(k, k - 1)


#: Most steps to smaller gaps for each sample, besides half as many as to `tol`: if the margin is zero, each further
#: digit takes more steps than those before and none is enough. A gap that is no larger than this is nothing.
_STEPS_EACH, _NO_GAP = 20, 1e-9


@dataclass(frozen=True)
class _RowTable:
    """What there is for every row: class, sample or -1, bound, weight, fold; and the factors of bounds by fold."""

    codes: AnyArray
    owner: IntVector
    bounds: FloatVector
    weights: FloatVector
    folds: AnyArray
    factors: FloatMatrix


@dataclass(eq=False, repr=False, kw_only=True)
class ClassifierParameters:
    """The parameters of kernel classifiers."""

    probability: bool | str = "deprecated"
    class_weight: Any = None
    decision_function_shape: str = "ovr"
    break_ties: bool = False
    random_state: Any = None


@inherit_method_docs
class AbstractKernelClassifier(ClassifierParameters, AbstractCalibrated, AbstractClusterClassifier, AbstractKernelSVM):
    """Kernel classifier trained one against one; `SVC` and `NuSVC` are the ones to use.

    Parameters
    ----------
    verbose : bool, default False
        Print a line per pair of classes.
    max_iter : int, default -1
        Two-variable steps per pair of classes at most; −1 is max(10⁷, 100 n).
    decision_function_shape : {"ovr", "ovo"}, default "ovr"
        One column per class, or per pair of classes, when there are more than two.
    break_ties : bool, default False
        With ``"ovr"``, predict the class of the largest decision value instead of the first of those with most votes.
    random_state : int, RandomState or None, default None
        Draws the rows held out from each of the five machines of ``probability``: with the same number, the same rows
        as in scikit-learn. With "sigmoid" and "isotonic", None leaves rows in order and a number shuffles them, as
        ``StratifiedKFold(5, shuffle=True, random_state=...)`` does.

    Attributes
    ----------
    classes_ : array, shape (n_classes,)
        The labels, sorted, without classes of which no row has weight.
    class_weight_ : array, shape (n_classes,)
        Their weights.
    support_ : int32 array, shape (n_SV,)
        Rows that are support vectors, by class.
    n_support_ : int32 array, shape (n_classes,)
        Support vectors of each class.
    dual_coef_ : array or CSR matrix, shape (n_classes - 1, n_SV)
        Their coefficients y α, laid out as in scikit-learn.
    intercept_ : array, shape (n_classes * (n_classes - 1) / 2,)
        Intercepts.
    coef_ : array or CSR matrix, shape (n_classes * (n_classes - 1) / 2, n_features)
        Weights of features; only with ``kernel="linear"``.
    probA_, probB_ : array, shape (n_classes * (n_classes - 1) / 2,)
        A and B of P(first class of the pair) = 1/(1 + exp(A f + B)), with the f of LIBSVM: positive for the first, also
        where there are only two classes. Empty without ``probability``. Deprecated, as in scikit-learn.
    n_iter_ : int32 array, shape (n_classes * (n_classes - 1) / 2,)
        Two-variable steps of each pair.
    elimination_history_ : list of lists of dsgd.svm.EliminationRecord
        The run of each pair.
    """

    _TARGETS: ClassVar[str] = "classes"

    classes_: AnyArray

    #: Whether a dual has one sum, the linear term −1 and a start at zero, as those do that are solved many in a call.
    _IS_PLAIN: ClassVar[bool] = False
    #: What LIBSVM says where rows of one class only have weight.
    _ONE_CLASS_LEFT: ClassVar[str] = "Invalid input - all samples with positive weights belong to the same class"

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

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_probability(self) -> None:
        """Check the parameters of probabilities, and draw the seed of the folds if there are to be any."""
        name = type(self).__name__
        check_bool(f"{name}(break_ties=...)", self.break_ties)
        states = as_random_state(name, self.random_state)
        if isinstance(self.probability, str):
            if self.probability in METHODS:
                self._fold_seed = draw_seed(name, self.random_state)
            elif self.probability != "deprecated":
                raise InvalidParameterError(
                    f'{name}(probability=...) must be True or False, "sigmoid" or "isotonic". Got {self.probability!r}.'
                )
            return
        check_bool(f"{name}(probability=...)", self.probability)
        warn_user(
            f"The `probability` parameter of {name} is deprecated, as in scikit-learn 1.9, and is removed when theirs "
            f'is. Use {name}(probability="sigmoid"), or CalibratedClassifierCV({name}(), ensemble=False), instead of '
            f"{name}(probability=True).",
            FutureWarning,
        )
        if self.probability:
            self._fold_seed = int(states.randint(np.iinfo(np.int32).max))

    # -- training ------------------------------------------------------------------------------------------------

    @notifies_callbacks
    @takes_tables
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        y : array-like, dask collection or str, shape (n_samples,)
            Labels, or the name of their column; None where blocks or svmlight files hold them.
        """
        self._check_probability()
        return self._fit(X, y, sample_weight)

    def _fit_rows(self, X: Any, target: Any, weights: FloatVector) -> None:
        codes = np.asarray(target)
        if codes.dtype.kind not in "iu":
            codes = codes.astype(np.int64)
        where = f"{type(self).__name__}(class_weight=...)"
        is_balanced = isinstance(self.class_weight, str)
        self.class_weight_ = weights_of_classes(where, None if is_balanced else self.class_weight, self.classes_)
        weights = np.where(self.class_weight_[codes] > 0.0, weights, 0.0)
        present = np.unique(codes[weights > 0])
        if len(present) < 2:
            raise InvalidDataError(
                f"{self._ONE_CLASS_LEFT}, {self.classes_[present]}. Give rows of another class weights above zero."
            )
        if len(present) < len(self.classes_):  # classes of which no row has weight are as if their rows were not there
            numbers = np.full(len(self.classes_), len(present), dtype=codes.dtype)
            numbers[present] = np.arange(len(present))
            self.classes_, self.class_weight_ = self.classes_[present], self.class_weight_[present]
            codes = numbers[codes]
        if is_balanced:
            labels = self.classes_[codes[codes < len(self.classes_)]]
            self.class_weight_ = weights_of_classes(where, self.class_weight, self.classes_, labels=labels)
        codes = np.minimum(codes, len(self.classes_) - 1)
        if self._gang is not None and self._answer is None:
            self._dealer = dealer_of(self._gang, X, self, codes)
            if self._dealer is not None:  # a rank trains its pairs on all rows, as a fit in one process
                X, self._gang = self._gang.gather_rows(X), None
        bounds = self._bounds(codes, weights)
        first, owner, total = self._merge(X, codes if self._gang is not None else codes.astype(np.float64), bounds)
        kernel = self._make_kernel(X, weights, first, owner)
        merged_codes = codes[first]
        pairs = list(combinations(range(len(self.classes_)), 2))
        both = np.array(pairs)
        table = _RowTable(codes, owner, bounds, weights, *self._hold_out(codes))

        def train_pair(pair: tuple[int, int], pool: Pool, cache_bytes: int) -> TrainedPair:
            rows = small.samples(pair)
            is_all = len(rows) == len(first) and self._gang is not None  # with their tables as they are
            of_whole, upper_of = (first, total) if is_all else (first[rows], total[rows])
            y = np.where(merged_codes[rows] == pair[0], 1.0, -1.0) * self._sign_of_first()

            def run(dual: Dual, tol: float, limit: int, anew: bool) -> Solution:
                def go_on(dual: Dual, limit: int) -> Solution:
                    posed = Posed(kernel, X, of_whole, dual, pool, cache_bytes)
                    return self._solve(posed, tol, limit, anew=anew)

                if not small.takes(pair) or dual.u is not None:
                    return go_on(dual, limit)
                return small.solve(pair, dual, go_on, tol=tol, max_iter=limit, pool=pool)

            def solve(upper: FloatVector, *, anew: bool = False, near: FloatMatrix | None = None) -> Solution:
                dual = self._pose(pair, y, upper)
                if near is not None and has_linear_start(dual) and kernel.name != "linear":
                    dual = replace(dual, alpha=near_start(y, near[0], upper)[None])
                solution = self._solve_pair(dual, partial(run, anew=anew))
                thresholds = self._find_thresholds(dual, solution)
                return solution if thresholds is solution.thresholds else replace(solution, thresholds=thresholds)

            solution = solve(upper_of)
            near = solution.alpha if self._curve_method() in METHODS else None
            curve = self._fit_curve(pair, rows, table, partial(solve, anew=True, near=near))
            self._tell_of(pair, solution)
            # Of all pairs together alpha and u are as large as k - 1 columns of all rows; few entries are not zero.
            used = np.flatnonzero(solution.alpha[0])
            rest = replace(solution, alpha=np.empty((1, 0)), u=np.empty(0))
            return TrainedPair(rows[used], (y * solution.alpha[0])[used], rest, curve)

        found: list[Any] = [None] * len(pairs)

        def train_batch(place: int, pool: Pool) -> None:
            numbers, sign = batches[place], self._sign_of_first()
            tol, limit = float(self.tol), int(self.max_iter)
            solved = small.solve_many(both[numbers], total, sign, tol=tol, max_iter=limit, pool=pool)
            for number, each in zip(numbers.tolist(), solved, strict=True):
                if each is not None:
                    found[number] = TrainedPair(*each, None)
                    self._tell_of(pairs[number], each[-1])

        with self._open_pool() as pool:
            most = self._cache_bytes() if self._takes_small_pairs() else 0
            small = ClassPairs(kernel, X, first, merged_codes, pool, most)
            sizes = np.bincount(merged_codes, minlength=len(self.classes_))[both].sum(axis=1)
            is_plain = self._IS_PLAIN and self._dealer is None and self._curve_method() is None
            batches = small.batches(pairs) if is_plain else []
            if batches:
                pool.spread(train_batch, len(batches))
            self._for_each(found, sizes, lambda number, *how: train_pair(pairs[number], *how), pool)
        if self._dealer is not None:
            found = self._dealer.collect(found) or []
        if not found:  # they are on rank 0
            return
        self._curves = (self._curve_method(), [trained.curve for trained in found if trained.curve is not None])
        self._collect(X, table, merged_codes, total, pairs, found, kernel)
        self.n_kernel_evaluations_ += small.n_evaluations * (1 if self._dealer is None else self._dealer.size)

    def _for_each(
        self, found: list[Any], sizes: IntVector, train_pair: Callable[[int, Pool, int], TrainedPair], pool: Pool
    ) -> None:
        """Train the pairs that are not found, one after the other on all threads or side by side, each with its share.

        Where they are dealt out, a rank trains its own.
        """
        n, dealer = pool.n_threads, self._dealer
        # Pairs side by side leave no thread waiting at the end of a block.
        is_spread = n > 1 and len(found) >= n * (1 if dealer is None else dealer.size) and self._gang is None
        share = self._cache_bytes() // (n if is_spread else 1)

        def train(number: int, pool: Pool) -> None:
            if dealer is None or dealer.begin(number):
                found[number] = train_pair(number, pool, share)
                if dealer is not None:
                    dealer.end(number)

        def train_all(numbers: IntVector) -> None:
            if is_spread:
                pool.spread(lambda place, inner: train(int(numbers[place]), inner), len(numbers))
                return
            for number in numbers.tolist():
                train(number, pool)

        if dealer is not None:
            dealer.run(sizes, train_all)
        else:
            train_all(np.array([number for number, trained in enumerate(found) if trained is None], dtype=np.int64))

    def _tell_of(self, pair: tuple[int, int], solution: Solution) -> None:
        """Tell who listens that a pair is solved."""
        if self._is_heard:
            steps = f"{solution.counts.n_iter} steps, gap {solution.gap:.3g}"
            self._say(f"{self.classes_[list(pair)]}: {steps}", solution.gap)

    def _takes_small_pairs(self) -> bool:
        """Return whether no parameter needs a solver of one problem at a time."""
        return self._policy().starts_idle() and self._gang is None and self._answer is None and self.solver == "block"

    def _solve_pair(self, dual: Dual, run: Callable[[Dual, float, int], Solution]) -> Solution:
        """Solve the problem of a pair; halve the gap while the margin is less than twice that.

        ``run(dual, tol, max_iter)`` solves to a tolerance. A smaller one only serves the margin: what was proven for
        `tol` stays proven, even if steps run out first. Halves, as the gap rises and falls: where steps run out on a
        longer way, it is as likely as not above that of the start, and all was in vain.
        """
        tol, limit = float(self.tol), int(self.max_iter)
        solution, aim = run(dual, tol, limit), tol
        most = 3 * solution.counts.n_iter // 2 + _STEPS_EACH * dual.y.size
        most = min(most, limit) if limit >= 0 else most
        while dual.by_sign and _margin(solution) < 2 * solution.gap and _NO_GAP < solution.gap < aim:
            left, aim = max(most - solution.counts.n_iter, 0), 0.5 * solution.gap
            again = run(replace(dual, alpha=solution.alpha, u=solution.u), aim, left)
            best = again if again.gap <= solution.gap else solution
            solution = replace(best, converged=best.gap < tol, counts=solution.counts + again.counts)
        return solution

    def _hold_out(self, codes: AnyArray) -> tuple[AnyArray, FloatMatrix]:
        """Return the stratified fold of each row, and by what bounds are multiplied where a fold is held out.

        "balanced" counts the rows that are left. Without curves there are no folds.
        """
        k = len(self.classes_)
        if self._curve_method() not in METHODS:
            return np.empty(0, np.uint8), np.ones((0, k))
        folds = assign_folds(codes, self.classes_, self._fold_seed)
        if not isinstance(self.class_weight, str):
            return folds, np.ones((N_FOLDS, k))
        left = [codes[folds != number] for number in range(N_FOLDS)]
        found = [compute_class_weight(self.class_weight, classes=np.arange(k), y=labels) for labels in left]
        return folds, np.array(found) / self.class_weight_

    def _fit_curve(
        self, pair: tuple[int, int], rows: IntVector, table: _RowTable, solve: Callable[[FloatVector], Solution]
    ) -> FloatMatrix | None:
        """Return the curve of a pair, whose samples are `rows`, by machines of parts of its rows; None without one."""
        method, sign = self._curve_method(), self._sign_of_first()
        if method is None:
            return None
        codes, owner = table.codes, table.owner
        used = np.concatenate([np.flatnonzero((codes == label) & (owner >= 0)) for label in pair])
        of_row = np.argsort(rows)
        place, is_first = of_row[np.searchsorted(rows[of_row], owner[used])], codes[used] == pair[0]
        bounds = table.bounds[used]
        if method == LIBSVM:
            parts = draw_folds(len(used), self._fold_seed or 0)
            scores = self._held_out_scores(place, is_first, parts, [bounds] * len(parts), solve, n=len(rows))
            return np.array(fit_sigmoid(sign * scores, is_first))[:, None]
        parts = [np.flatnonzero(table.folds[used] == number) for number in range(N_FOLDS)]
        each = [bounds * factors[codes[used]] for factors in table.factors]
        scores = self._held_out_scores(place, is_first, parts, each, solve, n=len(rows))
        return fit_curve(method, scores, is_first == (sign > 0), table.weights[used])

    def _held_out_scores(
        self,
        place: IntVector,
        is_first: AnyArray,
        parts: Sequence[IntVector],
        bounds: Sequence[FloatVector],
        solve: Callable[[FloatVector], Solution],
        *,
        n: int,
    ) -> FloatVector:
        """Return the scores of the rows of a pair, each by a machine of the folds that it is not in.

        - `bounds`, shape (m,): upper bounds of the variables of the rows, for the machine of each fold.
        """
        scores = np.zeros(len(place))
        for fold, upper in zip(parts, bounds, strict=True):
            kept = np.ones(len(place), dtype=np.bool_)
            kept[fold] = False
            if is_first[kept].all() or not is_first[kept].any():
                if self._curve_method() in METHODS:
                    raise InvalidDataError(
                        f"{self._ONE_CLASS_LEFT} where a fifth of the rows is held out for probability="
                        f"{self.probability!r}. Give more rows of each class weights above zero."
                    )
                # LIBSVM's scores where there is nothing to learn.
                scores[fold] = (2.0 * is_first[kept][0] - 1.0) * self._sign_of_first() if kept.any() else 0.0
                continue
            solution = solve(sums_by(place[kept], upper[kept], n))
            margin = _margin(solution)
            if margin > 0:
                scores[fold] = (solution.u - solution.thresholds.mean())[place[fold]] / margin
        return scores

    def _collect(
        self,
        X: Any,
        table: _RowTable,
        merged_codes: IntVector,
        total: FloatVector,
        pairs: list[tuple[int, int]],
        found: list[TrainedPair],
        kernel: Kernel,
    ) -> None:
        """Keep the coefficients of all pairs as scikit-learn lays them out: by class, one row per other class."""
        codes, k, solutions = table.codes, len(self.classes_), [trained.solution for trained in found]
        samples = np.concatenate([trained.samples for trained in found])
        used = np.unique(samples)
        merged = np.zeros((k - 1, len(used)))
        one, other = np.repeat(np.array(pairs), [len(trained.samples) for trained in found], axis=0).T
        place = places_of(used, len(total) + 1)  # the last is that of rows without weight
        lines = np.where(merged_codes[samples] == one, other - 1, one)
        merged[lines, place[samples]] = np.concatenate([trained.beta for trained in found])
        support = np.flatnonzero(place[table.owner] >= 0)
        support = support[np.argsort(codes[support], kind="stable")]
        coefs = np.empty((k - 1, len(support)))
        for line, dealt in zip(merged, coefs, strict=True):
            dealt[:] = distribute(line, place[table.owner[support]], table.bounds[support], total[used])
        is_support = coefs.any(axis=0)
        if not is_support.all():
            coefs, support = coefs[:, is_support], support[is_support]
        thresholds = np.concatenate([solution.thresholds for solution in solutions]).reshape(len(pairs), -1)
        # What coefficients are divided by: the margin, if the sum is fixed for each sign.
        is_divided = thresholds.shape[1] == 2
        self._margins = 0.5 * (thresholds[:, 0] - thresholds[:, 1]) if is_divided else np.ones(len(pairs))
        # An inverse overflows where a margin is less than the smallest normal number.
        gaps = [max(solution.gap, np.finfo(np.float64).tiny) for solution in solutions] if is_divided else []
        faint = [(margin, gap) for margin, gap in zip(self._margins.tolist(), gaps, strict=False) if not margin > gap]
        if faint:
            self._doubt_margin(*min(faint))
        scale = np.ones((k - 1, k))
        first, second = np.array(pairs).T
        scale[second - 1, first] = scale[first, second] = 1.0 / self._margins
        self._keep_support(X, support)
        self._n_support = np.bincount(codes[support], minlength=k).astype(np.int32)
        for line, by in zip(coefs, scale, strict=True):
            line *= by[codes[support]]
        self._keep_coefs(coefs, -thresholds.mean(axis=1) / self._margins, kernel)
        self.n_iter_ = np.array([solution.counts.n_iter for solution in solutions], dtype=np.int32)
        self._take_in(solutions)

    def _doubt_margin(self, margin: float, gap: float) -> None:
        """Refuse a margin that nothing can be divided by; warn of one that is less than the gap."""
        found = f"The margin between two classes is {margin:.3g}"
        advice = "Raise nu, up to twice the share of the smaller class (a lower nu makes it smaller), or use SVC."
        if not margin > np.finfo(np.float64).tiny:
            raise InvalidDataError(f"{found}, so no decision function follows. {advice}")
        text = f"{found}, below the gap of {gap:.3g}, and coefficients that are divided by it are not certain. {advice}"
        if self._gang is not None or self._dealer is not None:
            self._note = text
        else:
            warn_user(text, RuntimeWarning)

    # -- prediction ----------------------------------------------------------------------------------------------

    def _sign_of_first(self) -> float:
        """Return the sign that the first class of a pair has; with two classes, positive means the second."""
        return -1.0 if len(self.classes_) == 2 else 1.0

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

    @property
    def probA_(self) -> FloatVector:  # noqa: N802
        """Slopes of the sigmoids of all pairs; deprecated."""
        return self._sigmoid("probA_", 0)

    @property
    def probB_(self) -> FloatVector:  # noqa: N802
        """Shifts of the sigmoids of all pairs; deprecated."""
        return self._sigmoid("probB_", 1)

    def _sigmoid(self, name: str, row: int) -> FloatVector:
        if not hasattr(self, "support_"):
            raise AttributeError(f"{name} is available after fit")
        warn_user(
            f"Attribute `{name}` was deprecated by scikit-learn 1.9 and is removed when theirs is.",
            FutureWarning,
        )
        method, curves = self._curves
        return np.array([curve[row, 0] for curve in curves if method == LIBSVM])

    def _grouped_coefs(self) -> tuple[FloatMatrix, list[tuple[int, IntVector]]]:
        # The support vectors of a class have a coefficient for each of its pairs only, not for all.
        columns = _columns_of(len(self.classes_))
        return self._dense_coefs().T, list(zip(np.cumsum(self._n_support).tolist(), columns, strict=True))

    def _pair_scores(self, X: Any) -> FloatMatrix:
        return np.asarray(self._sums(X) + self.intercept_)

    def decision_function(self, X: Any) -> Any:
        """Return decision values.

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
        votes, sums = self._votes(scores >= 0), self._score_sums(scores)
        return np.asarray(votes + sums / (3 * (np.abs(sums) + 1)))

    def _votes(self, is_first: AnyArray) -> FloatMatrix:
        """Return how many votes each class has, by which class of each pair a row is given to, (n, n_classes)."""
        return self._by_class(is_first, lambda mine, leads: (mine == leads).sum(axis=2))

    def _score_sums(self, scores: FloatMatrix) -> FloatMatrix:
        """Return the sums of the decision values of each class, (n, n_classes)."""
        # One after the other: sums of the same numbers in another order have other last digits.
        return self._by_class(scores, lambda mine, leads: np.cumsum(np.where(leads, mine, -mine), axis=2)[:, :, -1])

    def _by_class(self, of_pairs: AnyArray, work: Callable[[AnyArray, AnyArray], AnyArray]) -> FloatMatrix:
        """Return what `work` makes of what each class has in its pairs, (n, k, k - 1), and of where it is the first."""
        k = len(self.classes_)
        columns, leads = _columns_of(k), np.arange(k)[:, None] <= np.arange(k - 1)
        out, step = np.empty((len(of_pairs), k)), max(1, _HELD // (k * k))
        for start in range(0, len(of_pairs), step):
            out[start : start + step] = work(of_pairs[start : start + step, columns], leads)
        return out

    def predict(self, X: Any) -> Any:
        """Return the labels.

        Returns
        -------
        array, shape (n,)
            Predicted labels.

        Raises
        ------
        InvalidParameterError
            ``break_ties`` with ``decision_function_shape="ovo"``.
        """
        self._check_fitted()
        if self.break_ties and self.decision_function_shape == "ovo":
            raise InvalidParameterError("break_ties must be False when decision_function_shape is 'ovo'")
        if self._is_lazy(X):
            return self._apply("predict", X, None, self.classes_.dtype)
        scores = self._pair_scores(X)
        # To LIBSVM a score of zero names the second class of a pair, in `decision_function` of scikit-learn the first.
        if scores.shape[1] == 1:
            return np.asarray(self.classes_[(scores[:, 0] >= 0).astype(np.intp)])
        votes = self._votes(scores >= 0 if self.break_ties else scores > 0)
        if self.break_ties:
            sums = self._score_sums(scores)
            votes = votes + sums / (3 * (np.abs(sums) + 1))
        return np.asarray(self.classes_[np.argmax(votes, axis=1)])

    @available_if(has_curves)
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities; only with a `probability`.

        The class of the largest need not be the one that `predict` names: probabilities come from machines of parts of
        the rows, labels from the votes of the machines of all. With two classes and ``"isotonic"`` they may be zero.

        Returns
        -------
        array, shape (n, n_classes)
            Probabilities, in the order of ``classes_``.
        """
        check_is_fitted(self)
        self._check_curves()
        if self._is_lazy(X):
            return self._apply("predict_proba", X, len(self.classes_), np.float64)
        scores, n_classes = self._pair_scores(X), len(self.classes_)
        if self._curve_method() == LIBSVM:  # of the first class of a pair
            return couple(self._probabilities(self._sign_of_first() * scores), n_classes)
        positive = self._probabilities(scores)
        return normalised(positive) if n_classes == 2 else couple(positive, n_classes)


def _margin(solution: Solution) -> float:
    """Return what coefficients are divided by: the margin that was found, if the sum is fixed for each sign, else 1."""
    if len(solution.thresholds) == 1:
        return 1.0
    return 0.5 * float(solution.thresholds[0] - solution.thresholds[1])
