"""Many small pairs of classes: shared kernel values, and one compiled call for a pair, or for many tiny ones.

The rows of all classes are made ready together, those of a class one after another, so that the columns of a pair are
two stretches of them. With many classes, values within a class serve all of its pairs. Values between two classes serve
one pair, and `dsgd.svm.kernel_solver.pair_kernels` computes them for the samples that matter. A pair that it does not
finish continues in the given solver, from the same variables.

Memory: the rows, and the values within classes, each half of the cache at most; n (2 n + d) numbers for a pair of n
samples in each thread, n at most 2000.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from dsgd.svm.kernel_solver.elimination import EliminationRecord
from dsgd.svm.kernel_solver.linear_start import FIRST_STEPS, has_linear_start, weights_begin
from dsgd.svm.kernel_solver.pair_kernels import BROKEN, GIVEN, KINDS, PROVEN, TOLD, solve_pairs
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution
from dsgd.svm.kernel_solver.work import Work
from dsgd.svm.kernels.functions import Kernel, centre, prefers_sparse, prepare
from dsgd.svm.kernels.rows import Rows, span
from dsgd.svm.kernels.threads import Pool
from dsgd.svm.kernels.values import block_values
from dsgd.types import FloatMatrix, FloatVector, IntVector

#: Samples of a pair, at most: up to so many rows are float64 whatever the tolerance. And columns: one call is short.
_LARGEST, _WIDEST = 2000, 4096
#: From so many classes on a sample is a member of some pair often enough that all values within its class pay.
_MANY_CLASSES = 5
#: Members that a round adds, at least. Where all values are no more than so many cheap ones, all samples are members at
#: once, as with the solver of one problem: the machine is then the same to rounding, whichever of the two finds it.
_FEWEST, _AT_ONCE = 16, 30_000
#: Steps of a call, and rounds and proofs together, at most: an interrupt waits for it.
_STEPS, _RECORDS = 50_000, 256
#: Samples of pairs that are solved many in a call, and of those of a call.
_TINY, _TOGETHER = 128, 4096
#: That of calls, which do not count it.
_NO_WORK = Work()


class ClassPairs:
    """The pairs of classes that are small enough."""

    def __init__(
        self, kernel: Kernel, X: Any, first: IntVector, codes: IntVector, pool: Pool, cache_bytes: int
    ) -> None:
        counts = np.bincount(codes)
        self._kernel, self._codes = kernel, codes
        #: Kernel values computed for all pairs together; those computed for one are in its solution.
        self.n_evaluations = 0
        self._ends = np.concatenate([[0], np.cumsum(counts)])
        pairs = combinations(range(len(counts)), 2) if cache_bytes else ()
        self._small = {(a, b) for a, b in pairs if counts[a] + counts[b] <= _LARGEST}
        self._is_on = bool(self._small) and _can_take(kernel, X, len(first), cache_bytes)
        if not self._small:
            return
        self._order = np.argsort(codes, kind="stable")
        if not self._is_on:
            return
        self._kind = (KINDS[kernel.name], float(kernel.gamma), float(kernel.coef0), float(kernel.degree))
        self._numbers = first[self._order]
        if self._kind[0] == GIVEN:
            self._rows, self._width = X, 0
        else:
            shift = centre(kernel, X, first)
            prepared = prepare(kernel, X, np.float64, shift=shift, sparse=False, index=self._numbers)
            self._rows = np.ascontiguousarray(prepared.dense)
            self._width = self._rows.shape[1]
        self._own, self._own_at = np.empty(0), np.full(len(counts), -1, dtype=np.int64)
        if len(counts) >= _MANY_CLASSES and self._width:
            self._compute_own(pool, cache_bytes // 2)

    def _compute_own(self, pool: Pool, most_bytes: int) -> None:
        """Compute the values within classes that are in many small pairs, the smallest classes first."""
        counts = np.diff(self._ends)
        uses = np.bincount(np.array(list(self._small)).ravel(), minlength=len(counts))
        classes = np.argsort(counts, kind="stable")
        classes = classes[(uses[classes] >= _MANY_CLASSES - 1) & (np.cumsum(8 * counts[classes] ** 2) <= most_bytes)]
        ends = np.concatenate([[0], np.cumsum(counts[classes] ** 2)])
        self._own, self._own_at[classes] = np.empty(ends[-1]), ends[:-1]

        def work(start: int, _: int) -> None:
            code = classes[start]
            rows = span(Rows(len(self._rows), dense=self._rows), self._ends[code], self._ends[code + 1])
            out = self._own[ends[start] : ends[start + 1]].reshape(rows.n, rows.n)
            with np.errstate(over="ignore", invalid="ignore"):  # non-finite values are refused later; no warning here
                block_values(self._kernel, rows, rows, np.float64, out)

        pool.slabs(work, len(classes), 1)
        self.n_evaluations = int(ends[-1])

    def takes(self, pair: tuple[int, int]) -> bool:
        """Return whether a pair is solved here."""
        return self._is_on and pair in self._small

    def samples(self, pair: tuple[int, int]) -> IntVector:
        """Return the samples of a pair, shape (n,); in a small pair those of the first class come first."""
        if pair not in self._small:  # in the order of content: both are mixed, so neither leads the first blocks
            return np.flatnonzero((self._codes == pair[0]) | (self._codes == pair[1]))
        return np.concatenate([self._order[self._ends[code] : self._ends[code + 1]] for code in pair])

    def solve(
        self,
        pair: tuple[int, int],
        dual: Dual,
        go_on: Callable[[Dual, int], Solution],
        *,
        tol: float,
        max_iter: int,
        pool: Pool,
    ) -> Solution:
        """Solve the dual of a pair to `tol`."""
        pool.check()
        begin, n, is_linear = time.perf_counter(), dual.y.shape[1], self._kernel.name == "linear"
        if is_linear and weights_begin(n, self._width) and has_linear_start(dual):
            return go_on(dual, max_iter)
        most = min(_STEPS, FIRST_STEPS * n) if is_linear else _STEPS
        limit = most if max_iter < 0 else min(max_iter, most)
        parts, u = np.concatenate([dual.y, dual.p, dual.upper, dual.alpha]), np.empty(n)
        alpha = parts[3:]
        told, records = self._run(np.array([pair]), parts, u, dual.n_groups, float(tol), np.array([limit]), pool)
        if told[0, 0] == BROKEN:
            return go_on(dual, max_iter)
        solution = next(_solutions(told, records, np.array([n]), time.perf_counter() - begin))
        solution = replace(solution, alpha=alpha, u=u)
        if told[0, 0] == PROVEN:
            return solution
        # The solvers of a linear machine, which come in now, begin from zero.
        start = dual if is_linear and has_linear_start(dual) else replace(dual, alpha=alpha)
        rest = go_on(start, max_iter - solution.counts.n_iter if max_iter >= 0 else -1)
        return replace(rest, counts=solution.counts + rest.counts)

    def solve_many(
        self, pairs: IntVector, upper: FloatVector, sign: float, *, tol: float, max_iter: int, pool: Pool
    ) -> list[tuple[IntVector, FloatVector, Solution] | None]:
        """Solve the duals of `SVC` of pairs in one call: of tiny pairs most time would go into calls.

        - returned: of each pair its samples with coefficients, these, and the rest of its solution; None where
          it is left open.
        """
        pool.check()
        begin, counts = time.perf_counter(), np.diff(self._ends)[pairs]
        lengths, sizes = counts.ravel(), counts.sum(axis=1)
        # Rows of the classes one after another: those of a class are a stretch.
        rows = np.arange(lengths.sum()) + np.repeat(self._ends[pairs].ravel() - np.cumsum(lengths) + lengths, lengths)
        samples, n = self._order[rows], len(rows)
        y = np.repeat(np.tile([sign, -sign], len(pairs)), lengths)
        parts = np.stack([y, np.full(n, -1.0), upper[samples], np.zeros(n)])
        most = FIRST_STEPS * sizes if self._kernel.name == "linear" else np.full(len(pairs), _STEPS)
        limits = most if max_iter < 0 else np.minimum(most, max_iter)
        told, records = self._run(pairs, parts, np.empty(n), 1, tol, limits, pool)
        used = np.flatnonzero(parts[3])
        ends = np.searchsorted(used, np.concatenate([[0], np.cumsum(sizes)])).tolist()
        of, beta = samples[used], (y * parts[3])[used]
        seconds = (time.perf_counter() - begin) / len(pairs)
        found: list[tuple[IntVector, FloatVector, Solution] | None] = []
        for k, solution in enumerate(_solutions(told, records, sizes, seconds)):
            part = slice(ends[k], ends[k + 1])
            found.append((of[part], beta[part], solution) if solution.converged else None)
        return found

    def batches(self, pairs: Sequence[tuple[int, int]]) -> list[IntVector]:
        """Return pairs that `solve_many` takes, by their numbers, a few hundred samples together."""
        if not self._is_on:  # of a linear kernel these are fewer than the linear solver begins with
            return []
        sizes = np.diff(self._ends)[np.array(pairs)].sum(axis=1)
        tiny = np.flatnonzero(sizes <= _TINY)
        return np.split(tiny, np.flatnonzero(np.diff(np.cumsum(sizes[tiny]) // _TOGETHER)) + 1) if len(tiny) else []

    def _run(
        self,
        pairs: IntVector,
        parts: FloatMatrix,
        u: FloatVector,
        n_groups: int,
        tol: float,
        limits: IntVector,
        pool: Pool,
    ) -> tuple[FloatMatrix, FloatMatrix]:
        """Run the compiled solver on pairs, whose duals are one after another; return what is told, and the events."""
        starts = np.stack([self._ends[pairs], self._ends[pairs + 1]], axis=2).reshape(len(pairs), 4)
        sizes = starts[:, 1] - starts[:, 0] + starts[:, 3] - starts[:, 2]
        told, records = np.zeros((len(pairs), len(TOLD) + n_groups)), np.empty((_RECORDS * len(pairs), 4))
        most = int(sizes.max())
        solve_pairs(
            self._kind,
            self._rows,
            self._numbers,
            self._own,
            self._own_at[pairs],
            starts,
            parts,
            tol,
            limits,
            np.where(sizes * sizes * (1.0 + self._width / 32.0) <= _AT_ONCE, sizes, _FEWEST),
            pool.lend(8 * most * (2 * most + self._width)).view(np.float64),
            u,
            told,
            records,
        )
        return told, records[: int(told[:, 2].sum())]


def _solutions(told: FloatMatrix, records: FloatMatrix, sizes: IntVector, seconds: float) -> Iterator[Solution]:
    """Yield the solutions of pairs of so many samples from what is told of them; variables are left out.

    There may be thousands, so that what Python does for each is little, and few objects: numbers are taken by columns.
    """
    events = [column.tolist() for column in records.T]
    at, nothing = 0, np.empty((1, 0))
    columns = (column.tolist() for column in told[:, : len(TOLD)].T)
    numbers = zip(*columns, told[:, len(TOLD) :], sizes.tolist(), strict=True)
    for status, n_iter, n_records, gap, duality_gap, objective, n_values, thresholds, n in numbers:
        history, n_blocks = [], 0
        for k in range(at, at + int(n_records)):
            is_proof, steps, now, values = events[0][k], events[1][k], events[2][k], events[3][k]
            n_blocks += not is_proof
            event = "verify" if is_proof else "block"
            history.append(EliminationRecord(event, int(steps), n, now, 0, int(values), seconds))
        at += int(n_records)
        n_rounds = max(1, n_blocks) if status == PROVEN else n_blocks
        yield Solution(
            alpha=nothing,
            u=nothing[0],
            thresholds=thresholds,
            gap=max(gap, 0.0),  # it is infinite when no pair can move
            duality_gap=duality_gap,
            objective=objective,
            converged=status == PROVEN,
            counts=Counts(int(n_iter), n_rounds, n_evaluations=int(n_values), history=history, work=_NO_WORK),
        )


def _can_take(kernel: Kernel, X: Any, n: int, cache_bytes: int) -> bool:
    """Return whether rows are dense, or values given, as compiled code takes them, and few bytes."""
    if kernel.name == "precomputed":
        return bool(X.dtype == np.float64 and X.flags.c_contiguous and X.flags.writeable)
    is_dense = kernel.name in KINDS and not prefers_sparse(X)
    return is_dense and X.shape[1] <= _WIDEST and 8 * n * (X.shape[1] + 2) <= cache_bytes // 2
