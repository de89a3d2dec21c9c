r"""The rows of a linear SVM, its primal and dual objectives, and the gap that certifies a solution.

Two rows of equal content and equal target add the same loss twice, so they are one row of the summed weight: the
problem is the same and the dual has one variable less. A row of weight zero is left out. What is left is sorted by a
hash of content and target. So a weight of two and the row given twice, or the same rows in another order, dense or
sparse, lead to the same computation to the last bit.

Wide rows are not copied, and are read in their order in memory: a pass that jumps between them takes five times as
long. Sums over them, and so fits, are equal up to rounding.

Merged rows are only merged after their entries were compared: a collision of hashes merges nothing.

`dsgd.linear_model.quasi_newton` has other rows: they are dense or SciPy's, all of them are read, about their means, and
sums are by blocks of fixed length. These may be scattered, of any float type, and hold the constant of the intercept.

**The primal and dual objectives of a linear SVM, and the gap that certifies a solution.**

Weights ``w`` include the weight of the constant column, so the intercept is penalised, as in LIBLINEAR:

.. math:: P(w) = \tfrac12 \|w\|^2 + \sum_i C_i\, \ell(y_i, x_i \cdot w)

Each of the four losses is the largest value of a concave function of one dual variable b in an interval,

.. math:: C_i\, \ell(y_i, f) = \max_{l_i \le b \le h_i} b\,(y_i - f) - \epsilon |b| - \tfrac12 \rho_i b^2,

==============================  =======  ============================  =============
loss                            epsilon  interval                      ridge rho_i
==============================  =======  ============================  =============
hinge, y = 1 or -1              0        [0, C_i] or [-C_i, 0]         0
squared_hinge                   0        [0, inf) or (-inf, 0]         1 / (2 C_i)
epsilon_insensitive             epsilon  [-C_i, C_i]                   0
squared_epsilon_insensitive     epsilon  (-inf, inf)                   1 / (2 C_i)
==============================  =======  ============================  =============

(For y = 1 or -1 the margin y f is below one exactly where y (y - f) is above zero.) So there is one dual problem,

.. math:: D(b) = \sum_i \left(y_i b_i - \epsilon |b_i| - \tfrac12 \rho_i b_i^2\right)
                 - \tfrac12 \Big\| \sum_i b_i x_i \Big\|^2,

one coordinate descent and one Newton method for all of them. For any w and any b in the intervals
``D(b) <= min P <= P(w)``: ``P(w) - D(b)`` bounds the error of w, whatever heuristic found them.

Without a penalty on the intercept (``penalizes_intercept=False``) P leaves the last weight out of the norm, and D holds
for dual variables that sum to zero. Any b becomes so by shrinking those of the sign that has the larger sum:
every interval contains zero, so they stay in theirs.

Source: Hsieh, Chang, Lin, Keerthi and Sundararajan, ICML 2008; Ho and Lin, JMLR 2012.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.kernels.order import mix64_each, sort_hashes
from dsgd.kernels.rows import place_dense, place_sparse
from dsgd.linear_model.problem import shrunk
from dsgd.local import Shard, make_shard
from dsgd.local.blocks import fingerprints
from dsgd.svm.linear_solver import kernels
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, IntVector, PointerVector

#: Rows shorter than this many bytes are copied into walking order, so that visits find them in the cache; longer ones
#: are walked where they are.
_PACKED_ROW_BYTES = 512

#: Dense rows of so many columns, of whose entries at most this share is not zero, are read as sparse ones: a pass over
#: digits, a fifth of whose pixels are ink, takes half the time so.
_WIDE, _SPARSE_SHARE = 64, 0.25


#: Dense rows that a matrix is added up from at a time.
_GRAM_ROWS = 2048


@dataclass(frozen=True)
class LinearRows:
    """Rows with one more column that holds a constant."""

    values: FloatVector
    indices: IndexVector | None
    first: PointerVector
    last: PointerVector
    n_features: int
    bias: float

    @cached_property
    def n_rows(self) -> int:
        """Rows."""
        return int(self.first.shape[0])

    @property
    def width(self) -> int:
        """Columns with the constant: the length of a vector of weights."""
        return self.n_features + 1

    @cached_property
    def n_entries(self) -> int:
        """Entries that a pass over the rows reads."""
        return self.n_rows * self.n_features if self.indices is None else int((self.last - self.first).sum())

    @property
    def n_bytes(self) -> int:
        """Bytes of those entries and their columns."""
        return self.n_entries * (self.values.itemsize + (0 if self.indices is None else self.indices.itemsize))

    @cached_property
    def arrays(self) -> kernels.RowArrays:
        """The rows as kernels take them."""
        return self.values, self.indices, self.first, self.last, self.bias

    def take(self, selection: slice | IntVector) -> LinearRows:
        """Return some of the rows; their entries are shared."""
        return LinearRows(
            self.values, self.indices, self.first[selection], self.last[selection], self.n_features, self.bias
        )

    def part(self, start: int, stop: int) -> LinearRows:
        """Return rows start..stop, as views."""
        return self if stop - start == self.n_rows else self.take(slice(start, stop))

    def packed(self, team: Team) -> LinearRows:
        """Return a copy of these rows whose entries are next to each other, for products that read them many times."""
        starts = np.zeros(self.n_rows + 1, np.uint64)
        np.cumsum(self.last - self.first, out=starts[1:])
        n_entries = int(starts[-1])
        values = np.empty(n_entries, self.values.dtype)
        indices = None if self.indices is None else np.empty(n_entries, self.indices.dtype)

        def copy(i: int, j: int) -> None:
            kernels.copy_rows(self.part(i, j).arrays, starts[i : j + 1], values, indices)

        team.map(copy, self.n_rows)
        return replace(self, values=values, indices=indices, first=starts[:-1], last=starts[1:])

    def scores(self, weights: FloatVector, team: Team) -> FloatVector:
        """Return the inner products with the weights, shape (n_rows,), float64."""
        out = np.empty(self.n_rows)
        team.map(lambda i, j: kernels.score_rows(self.part(i, j).arrays, weights, out[i:j]), self.n_rows)
        return out

    def norms(self, team: Team) -> FloatVector:
        """Return the squared norms of the rows, constants included, shape (n_rows,), float64."""
        out = np.empty(self.n_rows)
        team.map(lambda i, j: kernels.square_norms(self.part(i, j).arrays, out[i:j]), self.n_rows)
        return out

    def combine(self, factors: FloatVector, team: Team) -> FloatVector:
        """Return the sum of ``factors[i]`` times row i, shape (n_features + 1,), float64."""
        return self._sum(kernels.add_rows, factors, team)

    def hessian_product(self, factors: FloatVector, weights: FloatVector, team: Team) -> FloatVector:
        """Return the sum of ``factors[i] (x_i . weights) x_i``, shape (n_features + 1,), float64."""
        return self._sum(kernels.hessian_rows, factors, team, weights)

    def column_squares(self, factors: FloatVector, team: Team) -> FloatVector:
        """Return the diagonal of the sum of ``factors[i] x_i x_i'``, shape (n_features + 1,), float64."""
        return self._sum(kernels.square_columns, factors, team)

    def _sum(self, add: Callable[..., None], factors: FloatVector, team: Team, *given: FloatVector) -> FloatVector:
        """Return what a kernel adds up over the rows, parts of them in order."""

        def part(i: int, j: int) -> FloatVector:
            out = np.zeros(self.width)
            add(self.part(i, j).arrays, factors[i:j], *given, out)
            return out

        total, *others = team.map(part, self.n_rows)
        for other in others:
            total += other
        return np.asarray(total)

    def gram(self, factors: FloatVector, team: Team) -> FloatMatrix:
        """Return the sum of ``factors[i] x_i x_i'``, shape (n_features + 1, n_features + 1), float64."""

        def part(i: int, j: int) -> FloatMatrix:
            total = np.zeros((self.width, self.width))
            for start in range(i, j, _GRAM_ROWS):
                chosen = slice(start, min(j, start + _GRAM_ROWS))
                rows = self.part(chosen.start, chosen.stop)
                block = np.zeros((rows.n_rows, self.width))
                kernels.densify(rows.arrays, np.sqrt(factors[chosen]), block)
                total += block.T @ block
            return total

        total, *others = team.map(part, self.n_rows)
        for other in others:
            total += other
        return np.asarray(total)


def gather_rows(
    X: Any, targets: AnyArray, weights: AnyArray, *, bias: float, seed: int, team: Team | None = None
) -> tuple[LinearRows, FloatVector, FloatVector]:
    """Merge equal rows, drop rows of weight zero, and put the rest in the order that the module describes."""
    team = Team() if team is None else team
    X = _without_zeros(X, team)
    targets = np.ascontiguousarray(targets, np.float64) + 0.0  # a negative zero becomes a positive one
    weights = np.ascontiguousarray(weights, np.float64)
    shard = make_shard(X, np.zeros(targets.shape[0]), shuffle=False)
    rows = LinearRows(shard.values.ravel(), shard.indices, *_bounds(shard), shard.n_features, bias)
    # A hash of the content and the target of every row.
    prints = np.concatenate(team.map(lambda i, j: fingerprints(_between(X, i, j)), X.shape[0]))
    prints += mix64_each(targets.view(np.uint64))
    keys = mix64_each(prints ^ mix64_each(np.full(1, (seed + 1) % 2**64, np.uint64)))
    present = np.flatnonzero(weights > 0.0)
    places, in_order = sort_hashes(keys[present])
    order = present[places]
    is_new = np.ones(order.shape[0], bool)
    twin = np.flatnonzero(in_order[1:] == in_order[:-1]) + 1
    if twin.size:
        left, right = order[twin - 1], order[twin]
        same = np.empty(twin.shape[0], bool)
        kernels.same_rows(rows.arrays, left, right, same)
        is_new[twin[same & (targets[left] == targets[right])]] = False
    begins = np.flatnonzero(is_new)
    summed = np.add.reduceat(weights[order], begins) if begins.size else np.empty(0)
    kept = order[begins]
    if shard.nbytes >= _PACKED_ROW_BYTES * shard.n_rows:
        in_place = np.argsort(kept)
        kept, summed = kept[in_place], summed[in_place]
    elif not np.array_equal(kept, np.arange(shard.n_rows)):
        return _pack(shard, kept, bias), targets[kept], summed
    return rows.take(kept), targets[kept], summed


def _without_zeros(X: Any, team: Team) -> Any:
    """Return dense rows that are mostly zeros as CSR, others unchanged."""
    if sp.issparse(X) or X.shape[1] < _WIDE:
        return X
    counts = np.concatenate(team.map(lambda i, j: np.count_nonzero(X[i:j], axis=1), X.shape[0]))
    n_entries = int(counts.sum())
    if n_entries > _SPARSE_SHARE * X.size:
        return X
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
    values, indices = np.empty(n_entries, X.dtype), np.empty(n_entries, np.uint32)
    X = np.ascontiguousarray(X)
    team.map(lambda i, j: kernels.compress(X[i:j], starts[i : j + 1], values, indices), X.shape[0])
    return sp.csr_matrix((values, indices.view(np.int32), starts.astype(np.int64)), shape=X.shape)


def _bounds(shard: Shard) -> tuple[PointerVector, PointerVector]:
    if shard.indptr is not None:
        return shard.indptr[:-1].copy(), shard.indptr[1:].copy()
    first = np.arange(shard.n_rows, dtype=np.uint64) * np.uint64(shard.n_features)
    return first, first + np.uint64(shard.n_features)


def _between(X: Any, start: int, stop: int) -> Any:
    """Return rows start..stop, without a copy of their entries: scipy's slices of a sparse matrix are copies."""
    if not sp.issparse(X) or stop - start == X.shape[0]:
        return X[start:stop] if not sp.issparse(X) else X
    begin, end = X.indptr[start], X.indptr[stop]
    parts = (X.data[begin:end], X.indices[begin:end], X.indptr[start : stop + 1] - begin)
    return sp.csr_matrix(parts, shape=(stop - start, X.shape[1]), copy=False)


def _pack(shard: Shard, kept: IntVector, bias: float) -> LinearRows:
    """Copy rows next to each other in their order."""
    # Rows are read from end to end and stored scattered, which is faster than the other way round.
    place = np.full(shard.n_rows, -1, np.int64)
    place[kept] = np.arange(kept.shape[0])
    source = np.flatnonzero(place >= 0)
    place = place[source]
    if shard.indptr is None:
        out = np.empty((kept.shape[0], shard.n_features), shard.dtype)
        place_dense(shard.values, source, place, out)
        starts = np.arange(kept.shape[0] + 1, dtype=np.uint64) * np.uint64(shard.n_features)
        return LinearRows(out.ravel(), None, starts[:-1], starts[1:], shard.n_features, bias)
    starts = np.zeros(kept.shape[0] + 1, np.uint64)
    np.cumsum(np.diff(shard.indptr)[kept], out=starts[1:])
    values, indices = np.empty(int(starts[-1]), shard.dtype), np.empty(int(starts[-1]), np.uint32)
    place_sparse((shard.values, shard.indices, shard.indptr), source, place, (values, indices, starts))
    return LinearRows(values, indices, starts[:-1], starts[1:], shard.n_features, bias)


def spread(n: int, n_chosen: int) -> IntVector:
    """Return positions in ``range(n)``, ascending: one at random in each of `n_chosen` equal parts, always the same."""
    words = mix64_each(np.arange(n_chosen, dtype=np.uint64))
    within = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    bounds = np.arange(n_chosen + 1) * n // max(n_chosen, 1)
    chosen: IntVector = bounds[:-1] + (within * (bounds[1:] - bounds[:-1])).astype(np.int64)
    return chosen


#: The losses of classification and of regression.
LOSSES = {
    "classification": ("hinge", "squared_hinge"),
    "regression": ("epsilon_insensitive", "squared_epsilon_insensitive"),
}


@dataclass(frozen=True)
class LinearProblem:
    """One output of a linear SVM; the module has the formulas."""

    rows: LinearRows
    targets: FloatVector
    low: FloatVector
    high: FloatVector
    ridge: FloatVector
    epsilon: float
    penalizes_intercept: bool = True

    @property
    def is_smooth(self) -> bool:
        """Whether the loss has a continuous derivative."""
        return bool(self.ridge.shape[0]) and float(self.ridge[0]) > 0.0

    @cached_property
    def terms(self) -> kernels.DualTerms:
        """The dual terms as kernels take them."""
        return self.targets, self.low, self.high, self.ridge, self.epsilon

    def take(self, chosen: IntVector) -> LinearProblem:
        """Return the problem on some of the rows; their entries are shared."""
        targets, low, high, ridge = self.targets[chosen], self.low[chosen], self.high[chosen], self.ridge[chosen]
        return replace(self, rows=self.rows.take(chosen), targets=targets, low=low, high=high, ridge=ridge)


@dataclass(frozen=True)
class LinearSolution:
    """What a solver returns."""

    weights: FloatVector
    duals: FloatVector
    primal: float
    dual: float
    n_iter: int
    converged: bool
    solver: str
    n_proven: int = 0

    @property
    def gap(self) -> float:
        """The relative duality gap, (primal - dual) / primal; 0 if both are zero."""
        return relative_gap(self.primal, self.dual)


def relative_gap(primal: float, dual: float) -> float:
    """Return (primal - dual) / primal, not below zero."""
    return max(0.0, primal - dual) / primal if primal > 0.0 else 0.0


def make_problem(
    loss: str,
    rows: LinearRows,
    targets: FloatVector,
    costs: FloatVector,
    epsilon: float = 0.0,
    penalizes_intercept: bool = True,
) -> LinearProblem:
    """Return the problem of a loss."""
    is_squared = loss.startswith("squared")
    has_cost = costs > 0.0  # a class of weight zero costs nothing: its variables stay at zero
    limit = np.where(has_cost, np.inf, 0.0) if is_squared else costs
    ridge = 0.5 / np.where(has_cost, costs, 1.0) if is_squared else np.zeros(targets.shape[0])
    penalizes = penalizes_intercept or rows.bias == 0.0
    if loss in LOSSES["classification"]:
        zero = np.zeros(targets.shape[0])
        low, high = np.where(targets > 0.0, zero, -limit), np.where(targets > 0.0, limit, zero)
        return LinearProblem(rows, targets, low, high, ridge, 0.0, penalizes)
    return LinearProblem(rows, targets, -limit, limit, ridge, float(epsilon), penalizes)


def certify(
    problem: LinearProblem,
    weights: FloatVector,
    duals: FloatVector,
    team: Team,
    *,
    combined: FloatVector | None = None,
    scores: FloatVector | None = None,
    threshold: float = np.inf,
    active: AnyArray | None = None,
) -> tuple[float, float, int]:
    """Return P(weights), D(duals), and the number of rows that a solver should keep active.

    Where the rows are divided among ranks, dual variables and `active` are those of this one. Any dual variables in
    their intervals will do.
    """
    if scores is None:
        scores = problem.rows.scores(weights, team)
    free = 0 if problem.penalizes_intercept else 1  # weights at the end that the norm leaves out
    if free:
        duals, combined = shrunk(duals, team), None
    if combined is None:
        combined = team.add_up(problem.rows.combine(duals, team))
    if active is None:
        active = np.empty(problem.rows.n_rows, np.uint32)
    loss, terms, kept = kernels.measure(scores, problem.terms, duals, threshold, active)
    if team.leads:
        weights, combined = weights[: weights.shape[0] - free], combined[: combined.shape[0] - free]
        loss, terms = 0.5 * float(weights @ weights) + loss, terms - 0.5 * float(combined @ combined)
    primal, dual = team.totals(loss, terms)
    team.report(primal, dual)
    return primal, dual, int(kept)


def conclude(
    problem: LinearProblem, weights: FloatVector, duals: FloatVector, team: Team, tol: float, n_iter: int, solver: str
) -> LinearSolution:
    """Return the certified solution of weights and dual variables, whose sum of rows is computed anew."""
    exact = team.add_up(problem.rows.combine(duals, team))
    primal, dual, _ = certify(problem, weights, duals, team, combined=exact)
    converged = relative_gap(primal, dual) <= max(tol, 1e-14)
    return LinearSolution(weights, duals, primal, dual, n_iter, converged, solver)
