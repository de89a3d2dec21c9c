"""The machines of the pairs of classes of one fit: their votes, and the curves of their probabilities.

**The machines of the pairs of classes of one fit, and the curves of their probabilities.**

Pairs are solved side by side where there are as many as threads, and dealt out to the ranks of a gang where that pays
(`dsgd.svm.distributed.dealing`).

With ``probability`` every pair is solved five times more, each time with a fifth of its rows bounded by zero: no
variable of theirs can move, and what the proof computes for all rows are their scores by a machine that has not seen
them. The folds are LIBSVM's of each pair with True, else stratified folds of all rows; these machines begin near the
one of all rows, which is solved first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from sklearn.utils import compute_class_weight

from dsgd.errors import InvalidDataError
from dsgd.kernels.jit import kernel
from dsgd.svm.calibration import LIBSVM, METHODS, N_FOLDS, assign_folds, draw_folds, fit_curve, fit_sigmoid
from dsgd.svm.distributed.dealing import TrainedPair
from dsgd.svm.estimators.kernel_base import near_start
from dsgd.svm.kernel_solver.pairs import ClassPairs
from dsgd.svm.kernel_solver.problem import Dual, Posed, Solution
from dsgd.svm.kernel_solver.solve import has_linear_start
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.rows import sums_by
from dsgd.svm.kernels.threads import Pool
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector


@lru_cache(maxsize=16)
def pairs_of(k: int) -> IntVector:
    """Return the pairs of k classes, in scikit-learn's order, shape (k (k - 1) / 2, 2)."""
    return np.stack(np.triu_indices(k, 1), axis=1)


@lru_cache(maxsize=16)
def columns_of(k: int) -> AnyArray:
    """Return which pairs each of k classes is in, by the number of the other class, shape (k, k - 1)."""
    columns, (first, second) = np.empty((k, k), dtype=np.int64), pairs_of(k).T
    columns[first, second] = columns[second, first] = np.arange(len(first))
    return columns[~np.eye(k, dtype=np.bool_)].reshape(k, k - 1)


def tally(scores: FloatMatrix, k: int, *, zero_is_first: bool) -> tuple[FloatMatrix, FloatMatrix]:
    """Return the votes for each of k classes, and the sums of its decision values, of the scores of pairs, (n, k)."""
    votes, sums = np.zeros((2, len(scores), k))
    _count(scores, zero_is_first, votes, sums)
    return votes, sums


@kernel
def _count(scores, zero_is_first, votes, sums):  # type: ignore[no-untyped-def]
    for i in range(len(scores)):
        pair = 0
        for a in range(votes.shape[1]):
            for b in range(a + 1, votes.shape[1]):
                score = scores[i, pair]
                pair += 1
                votes[i, a if score > 0.0 or (score == 0.0 and zero_is_first) else b] += 1.0
                sums[i, a] += score
                sums[i, b] -= score


def less_than_half(sums: FloatMatrix) -> FloatMatrix:
    """Return what sums of decision values add to votes: less than half of one, so that they break ties."""
    return np.asarray(sums / (3 * (np.abs(sums) + 1)))


#: Most steps to smaller gaps for each sample, besides half as many as to `tol`: if the margin is zero, each further
#: digit takes more steps than those before and none is enough. A gap that is no larger than this is nothing.
_STEPS_EACH, _NO_GAP = 20, 1e-9


@dataclass(frozen=True)
class RowTable:
    """What there is for every row: class, sample or -1, bound, weight."""

    codes: AnyArray
    owner: IntVector
    bounds: FloatVector
    weights: FloatVector


@dataclass(frozen=True)
class PairTrainer:
    """Trains the machines of the pairs of classes, on `first` of equal rows, with `total` upper bounds."""

    model: Any
    kernel: Kernel
    X: Any
    first: IntVector
    total: FloatVector
    table: RowTable

    @cached_property
    def codes(self) -> AnyArray:
        """The classes of the samples."""
        return self.table.codes[self.first]

    @cached_property
    def _sign(self) -> float:
        return float(self.model._sign_of_first())

    def train(self) -> tuple[list[TrainedPair], int]:
        """Return all pairs, none where they are on another rank, and the kernel values that they have in common."""
        model, dealer, both = self.model, self.model._dealer, pairs_of(len(self.model.classes_))
        found, tol, limit = list[Any]([None] * len(both)), float(model.tol), int(model.max_iter)
        if model._curve_method() in METHODS:
            _ = self._folds  # refuses classes of too few rows before any pair is trained
        with model._open_pool() as pool:
            most = model._cache_bytes() if self._takes_small_pairs() else 0
            small = ClassPairs(self.kernel, self.X, self.first, self.codes, pool, most)
            sizes = np.bincount(self.codes, minlength=len(model.classes_))[both].sum(axis=1)
            is_plain = dealer is None and model._curve_method() is None
            batches, is_heard = small.batches(both) if is_plain else [], model._is_heard

            def train_batch(place: int, pool: Pool) -> None:
                numbers = batches[place]
                samples, y = small.samples_of(both[numbers], self._sign)
                dual = model._pose(y, self.total[samples], sizes[numbers])
                solved = small.solve_many(both[numbers], samples, dual, tol=tol, max_iter=limit, pool=pool)
                solutions = self._with_thresholds(dual, [solution for _, _, solution in solved], sizes[numbers])
                for number, (rows, beta, _), solution in zip(numbers.tolist(), solved, solutions, strict=True):
                    if solution.converged and not _is_faint(dual, solution):
                        found[number] = TrainedPair(rows, beta, solution, None)
                        if is_heard:
                            self._tell_of(both[number], solution)

            if batches:
                pool.spread(train_batch, len(batches))
            # Pairs side by side leave no thread waiting at the end of a block; each has its share of the cache.
            n = pool.n_threads
            is_spread = n > 1 and len(found) >= n * (1 if dealer is None else dealer.size) and model._gang is None
            share = model._cache_bytes() // (n if is_spread else 1)

            def train_one(number: int, pool: Pool) -> None:
                if dealer is None or dealer.begin(number):
                    found[number] = self._train((int(both[number, 0]), int(both[number, 1])), small, pool, share)
                    if dealer is not None:
                        dealer.end(number)

            def train_all(numbers: IntVector) -> None:
                if is_spread:
                    pool.spread(lambda place, inner: train_one(int(numbers[place]), inner), len(numbers))
                    return
                for number in numbers.tolist():
                    train_one(number, pool)

            if dealer is not None:
                dealer.run(sizes, train_all)
            else:
                train_all(np.array([number for number, trained in enumerate(found) if trained is None], dtype=np.int64))
        if dealer is not None:
            found = dealer.collect(found) or []
        return found, small.n_evaluations * (1 if dealer is None else dealer.size)

    def _takes_small_pairs(self) -> bool:
        """Return whether no parameter needs a solver of one problem at a time."""
        model = self.model
        return (
            model._policy().starts_idle() and model._gang is None and model._answer is None and model.solver == "block"
        )

    def _train(self, pair: tuple[int, int], small: ClassPairs, pool: Pool, cache_bytes: int) -> TrainedPair:
        """Train the machine of a pair, and fit its curve."""
        model, rows = self.model, small.samples(pair)
        is_all = len(rows) == len(self.first) and model._gang is not None  # with their tables as they are
        of_whole, bounds = (self.first, self.total) if is_all else (self.first[rows], self.total[rows])
        y = np.where(self.codes[rows] == pair[0], 1.0, -1.0) * self._sign

        def solve(upper: FloatVector, *, anew: bool = False, near: FloatMatrix | None = None) -> Solution:
            dual = model._pose(y, upper, np.array([len(y)]))
            if near is not None and has_linear_start(dual) and self.kernel.name != "linear":
                dual = replace(dual, alpha=near_start(y, near[0], upper)[None])

            def run(dual: Dual, tol: float, limit: int) -> Solution:
                def go_on(dual: Dual, limit: int) -> Solution:
                    posed = Posed(self.kernel, self.X, of_whole, dual, pool, cache_bytes)
                    found: Solution = model._solve(posed, tol, limit, anew=anew)
                    return found

                if not small.takes(pair) or dual.u is not None:
                    return go_on(dual, limit)
                return small.solve(pair, dual, go_on, tol=tol, max_iter=limit, pool=pool)

            return self._with_thresholds(dual, [self._solve(dual, run)], np.array([len(y)]))[0]

        solution = solve(bounds)
        near = solution.alpha if model._curve_method() in METHODS else None
        curve = self._fit_curve(pair, rows, lambda upper: solve(upper, anew=True, near=near))
        if model._is_heard:
            self._tell_of(pair, solution)
        # Of all pairs together alpha and u are as large as k - 1 columns of all rows; few entries are not zero.
        used = np.flatnonzero(solution.alpha[0])
        rest = replace(solution, alpha=np.empty((1, 0)), u=np.empty(0))
        return TrainedPair(rows[used], (y * solution.alpha[0])[used], rest, curve)

    def _with_thresholds(self, dual: Dual, solutions: list[Solution], sizes: IntVector) -> list[Solution]:
        """Return the solutions of pairs, whose duals are one after another, with the thresholds of the machine."""
        if not dual.by_sign:
            return solutions
        side = 2 * np.repeat(np.arange(len(sizes)), sizes) + (dual.y[0] < 0)
        totals = np.bincount(side, weights=dual.upper[0], minlength=2 * len(sizes)).reshape(-1, 2)
        found = np.array([each.thresholds for each in solutions])
        thresholds = self.model._find_thresholds(found, totals)
        if thresholds is found:
            return solutions
        return [replace(each, thresholds=ends) for each, ends in zip(solutions, thresholds, strict=True)]

    def _tell_of(self, pair: Any, solution: Solution) -> None:
        """Tell who listens that a pair is solved."""
        steps = f"{solution.counts.n_iter} steps, gap {solution.gap:.3g}"
        self.model._say(f"{self.model.classes_[list(pair)]}: {steps}", solution.gap)

    def _solve(self, dual: Dual, run: Callable[[Dual, float, int], Solution]) -> Solution:
        """Solve the problem of a pair; halve the gap while the margin is less than twice that.

        ``run(dual, tol, max_iter)`` solves to a tolerance. A smaller one only serves the margin: what was proven for
        `tol` stays proven, even if steps run out first. Halves, as the gap rises and falls: where steps run out on a
        longer way, it is as likely as not above that of the start, and all was in vain.
        """
        tol, limit = float(self.model.tol), int(self.model.max_iter)
        solution, aim = run(dual, tol, limit), tol
        most = 3 * solution.counts.n_iter // 2 + _STEPS_EACH * dual.y.size
        most = min(most, limit) if limit >= 0 else most
        while _is_faint(dual, solution) and solution.gap < aim:
            left, aim = max(most - solution.counts.n_iter, 0), 0.5 * solution.gap
            again = run(replace(dual, alpha=solution.alpha, u=solution.u), aim, left)
            best = again if again.gap <= solution.gap else solution
            solution = replace(best, converged=best.gap < tol, counts=solution.counts + again.counts)
        return solution

    @cached_property
    def _folds(self) -> tuple[AnyArray, FloatMatrix]:
        """Return the stratified fold of each row, and by what bounds of classes are multiplied without a fold."""
        model, codes, k = self.model, self.table.codes, len(self.model.classes_)
        folds = assign_folds(codes, model.classes_, model._fold_seed)
        if not isinstance(model.class_weight, str):
            return folds, np.ones((N_FOLDS, k))
        left = [codes[folds != number] for number in range(N_FOLDS)]
        found = [compute_class_weight(model.class_weight, classes=np.arange(k), y=labels) for labels in left]
        return folds, np.array(found) / model.class_weight_

    def _fit_curve(
        self, pair: tuple[int, int], rows: IntVector, solve: Callable[[FloatVector], Solution]
    ) -> FloatMatrix | None:
        """Return the curve of a pair, whose samples are `rows`, by machines of parts of its rows; None without one."""
        model, table, method = self.model, self.table, self.model._curve_method()
        if method is None:
            return None
        codes, owner = table.codes, table.owner
        used = np.concatenate([np.flatnonzero((codes == label) & (owner >= 0)) for label in pair])
        of_row = np.argsort(rows)
        place, is_first = of_row[np.searchsorted(rows[of_row], owner[used])], codes[used] == pair[0]
        if method == LIBSVM:
            parts = draw_folds(len(used), model._fold_seed or 0)
            scores = self._held_out_scores(place, is_first, parts, [table.bounds[used]] * len(parts), solve, len(rows))
            return np.array(fit_sigmoid(self._sign * scores, is_first))[:, None]
        folds, factors = self._folds
        parts = [np.flatnonzero(folds[used] == number) for number in range(N_FOLDS)]
        each = [table.bounds[used] * factor[codes[used]] for factor in factors]
        scores = self._held_out_scores(place, is_first, parts, each, solve, len(rows))
        return fit_curve(method, scores, is_first == (self._sign > 0), table.weights[used])

    def _held_out_scores(
        self,
        place: IntVector,
        is_first: AnyArray,
        parts: Sequence[IntVector],
        bounds: Sequence[FloatVector],
        solve: Callable[[FloatVector], Solution],
        n: int,
    ) -> FloatVector:
        """Return the scores of the rows of a pair, each by a machine of the folds that it is not in."""
        scores = np.zeros(len(place))
        for fold, upper in zip(parts, bounds, strict=True):
            kept = np.ones(len(place), dtype=np.bool_)
            kept[fold] = False
            if is_first[kept].all() or not is_first[kept].any():
                if self.model._curve_method() in METHODS:
                    raise InvalidDataError(
                        f"{self.model._ONE_CLASS_LEFT} where a fifth of the rows is held out for probability="
                        f"{self.model.probability!r}. Give more rows of each class weights above zero."
                    )
                # LIBSVM's scores where there is nothing to learn.
                scores[fold] = (2.0 * is_first[kept][0] - 1.0) * self._sign if kept.any() else 0.0
                continue
            solution = solve(sums_by(place[kept], upper[kept], n))
            margin = _margin(solution)
            if margin > 0:
                scores[fold] = (solution.u - solution.thresholds.mean())[place[fold]] / margin
        return scores


def _is_faint(dual: Dual, solution: Solution) -> bool:
    """Return whether a machine would be divided by a margin that is not certain."""
    return dual.by_sign and _margin(solution) < 2 * solution.gap and solution.gap > _NO_GAP


def _margin(solution: Solution) -> float:
    """Return what coefficients are divided by: the margin that was found, if the sum is fixed for each sign, else 1."""
    if len(solution.thresholds) == 1:
        return 1.0
    return 0.5 * float(solution.thresholds[0] - solution.thresholds[1])
