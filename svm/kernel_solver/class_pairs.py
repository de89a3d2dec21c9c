"""Many small pairs of classes: shared kernel values, and one compiled call per pair.

The rows of all classes are made ready together, those of a class one after another, so that the columns of a pair are
two stretches of them. With many classes, values within a class serve all of its pairs. Values between two classes serve
one pair, and `dsgd.svm.kernel_solver.pair_kernels` computes them for the samples that matter. A pair that it does not
finish continues in the given solver, from the same variables.

Memory: the rows, and the values within classes, each half of the cache at most; n (2 n + d) numbers for a pair of n
samples in each thread, n at most 2000.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from dsgd.svm.kernel_solver.elimination import EliminationRecord
from dsgd.svm.kernel_solver.linear_start import FIRST_STEPS, has_linear_start, weights_begin
from dsgd.svm.kernel_solver.pair_kernels import BROKEN, GIVEN, KINDS, PROVEN, TOLD, solve_pair
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution
from dsgd.svm.kernels.functions import Kernel, centre, prefers_sparse, prepare
from dsgd.svm.kernels.rows import Rows, span
from dsgd.svm.kernels.threads import Pool
from dsgd.svm.kernels.values import block_values
from dsgd.types import FloatMatrix, FloatVector, IntVector

__all__ = ["ClassPairs"]

#: Samples of a pair, at most: up to so many rows are float64 whatever the tolerance. And columns: one call is short.
_LARGEST, _WIDEST = 2000, 4096
#: From so many classes on a sample is a member of some pair often enough that all values within its class pay.
_MANY_CLASSES = 5
#: Members that a round adds, at least. Where all values are no more than so many cheap ones, all samples are members at
#: once, as with the solver of one problem: the machine is then the same to rounding, whichever of the two finds it.
_FEWEST, _AT_ONCE = 16, 30_000
#: Steps of a call, and rounds and proofs together, at most: an interrupt waits for it.
_STEPS, _RECORDS = 50_000, 256


class ClassPairs:
    """The pairs of classes that are small enough.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array or CSR matrix, shape (n_rows, d)
        Rows; the given matrix with ``precomputed``.
    first : int64 array, shape (n,)
        Which of them are samples.
    codes : int64 array, shape (n,)
        The class of each sample.
    pool : Pool
        Threads.
    cache_bytes : int
        Bytes that may be held; with none no pair is a small one.
    """

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
        """Solve the dual of a pair to `tol`.

        Parameters
        ----------
        pair : pair of int
            The classes.
        dual : Dual
            The problem, in the order of `samples`.
        go_on : callable
            ``go_on(dual, max_iter)`` finishes an open pair, or refuses it.
        tol : float
            The gap to reach.
        max_iter : int
            Steps at most; below zero, as many as `go_on` takes for that.
        pool : Pool
            Lends memory, and says when the pair is no longer needed.

        Returns
        -------
        Solution
            With a gap below `tol`, or that of `go_on`.

        Raises
        ------
        InvalidDataError
            Kernel values, or their sums, are not finite.
        """
        pool.check()
        begin, n, is_linear = time.perf_counter(), dual.y.shape[1], self._kernel.name == "linear"
        if is_linear and weights_begin(n, self._width) and has_linear_start(dual):
            return go_on(dual, max_iter)
        most = min(_STEPS, FIRST_STEPS * n) if is_linear else _STEPS
        limit = most if max_iter < 0 else min(max_iter, most)
        alpha, u, told, records = self._run(pair, dual, float(tol), limit, pool)
        status, n_iter, n_records, gap, duality_gap, objective, n_values = told[: len(TOLD)].tolist()
        if status == BROKEN:
            return go_on(dual, max_iter)
        seconds = time.perf_counter() - begin
        history = [
            EliminationRecord("verify" if is_proof else "block", int(steps), n, now, 0, int(values), seconds)
            for is_proof, steps, now, values in records[: int(n_records)].tolist()
        ]
        n_blocks = sum(record.event == "block" for record in history)
        counts = Counts(int(n_iter), n_blocks, n_evaluations=int(n_values), history=history)
        if status != PROVEN:
            # The solvers of a linear machine, which come in now, begin from zero.
            start = dual if is_linear and has_linear_start(dual) else replace(dual, alpha=alpha)
            rest = go_on(start, max_iter - counts.n_iter if max_iter >= 0 else -1)
            return replace(rest, counts=counts + rest.counts)
        counts.n_rounds = max(1, n_blocks)
        return Solution(
            alpha=alpha,
            u=u,
            thresholds=told[len(TOLD) :],
            gap=max(gap, 0.0),  # it is infinite when no pair can move
            duality_gap=duality_gap,
            objective=objective,
            converged=gap < tol,
            counts=counts,
        )

    def _run(
        self, pair: tuple[int, int], dual: Dual, tol: float, limit: int, pool: Pool
    ) -> tuple[FloatMatrix, FloatVector, FloatVector, FloatMatrix]:
        """Run the compiled solver; return the variables, K(yα), the numbers that `TOLD` names, and the records."""
        n = dual.y.shape[1]
        starts = np.array([self._ends[pair[0]], self._ends[pair[0] + 1], self._ends[pair[1]], self._ends[pair[1] + 1]])
        alpha, u, records = dual.alpha.astype(np.float64), np.empty(n), np.empty((_RECORDS, 4))
        told = np.zeros(len(TOLD) + dual.n_groups)
        solve_pair(
            self._kind,
            self._rows,
            self._numbers,
            self._own,
            self._own_at[list(pair)],
            starts,
            (dual.y, dual.p, dual.upper, alpha, dual.group),
            tol,
            limit,
            n if n * n * (1.0 + self._width / 32.0) <= _AT_ONCE else _FEWEST,
            pool.lend(8 * n * (2 * n + self._width)).view(np.float64),
            u,
            told,
            records,
        )
        return alpha, u, told, records


def _can_take(kernel: Kernel, X: Any, n: int, cache_bytes: int) -> bool:
    """Return whether rows are dense, or values given, as compiled code takes them, and few bytes."""
    if kernel.name == "precomputed":
        return bool(X.dtype == np.float64 and X.flags.c_contiguous and X.flags.writeable)
    is_dense = kernel.name in KINDS and not prefers_sparse(X)
    return is_dense and X.shape[1] <= _WIDEST and 8 * n * (X.shape[1] + 2) <= cache_bytes // 2
