"""The pairs of classes of a machine of many: shared kernel values, and pairs solved by compiled code alone.

**A small pair, solved and proven by one compiled kernel.** The method is that of the direct solver
(`dsgd.svm.kernel_solver.solve`): members whose rows over all samples of the pair are held, rounds
that take in the worst violators, and sums added up anew before the gap is believed. Of many classes most pairs take
less time than a few dozen calls of numpy do, so here everything between two looks at the clock is one call without the
interpreter lock. Unusual cases are not handled: the call ends and reports that the pair is open, and the caller
continues from its variables with a solver that handles them.

A value costs a product of two rows by BLAS and a function of it. Values between samples of one class are those of all
pairs of that class; they are read if they have been computed before.

**Many small pairs** (`ClassPairs`): one compiled call for a pair, or for many tiny ones. The rows of all classes are
made ready together, those of a class one after another, so that the columns of a pair are two stretches of them. With
many classes, values within a class serve all of its pairs. Values between two classes serve one pair, and
`dsgd.svm.kernel_solver.pairs` computes them for the samples that matter. A pair that it does not finish continues in
the given solver, from the same variables.

Memory: the rows, and the values within classes, each half of the cache at most; n (2 n + d) numbers for a pair of n
samples in each thread, n at most 2000.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np

from dsgd.kernels.jit import kernel, part, scalar
from dsgd.svm.kernel_solver.elimination import EliminationRecord, Work
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution, tell
from dsgd.svm.kernel_solver.smo import advance, pick_worst
from dsgd.svm.kernel_solver.solve import FIRST_STEPS, has_linear_start, weights_begin
from dsgd.svm.kernels.functions import Kernel, block_values, centre, exp_double, prefers_sparse, prepare
from dsgd.svm.kernels.rows import Rows, span
from dsgd.svm.kernels.threads import Pool
from dsgd.types import FloatMatrix, FloatVector, IntVector

#: How a call ends: with a gap below the tolerance, with work left to do, with numbers that are not finite.
PROVEN, OPEN, BROKEN = 0, 1, 2

#: Kernels by name; of a given matrix rows are read.
KINDS = {"linear": 0, "rbf": 1, "poly": 2, "sigmoid": 3, "precomputed": 4}
_RBF, _POLY, _SIGMOID, GIVEN = 1, 2, 3, 4

#: The results of a call, in this order; then the threshold of each group.
TOLD = ("status", "n_iter", "n_records", "gap", "duality_gap", "objective", "n_evaluations")

#: Kernels that are parts of the one here, as in `dsgd.svm.kernel_solver.smo`.
_advance, _pick_worst = part()(advance.py_func), part()(pick_worst.py_func)
_tell = part()(tell.py_func)

#: Members that a round adds: one for so many that there are.
_SHARE = 4

#: How far a round closes the gap of its members; the last go to the tolerance.
_BY_ROUND = 0.1

#: Proofs that may fail.
_MOST_PROOFS = 3
_EPS = float(np.finfo(np.float64).eps)


@scalar
def _finish(kind, gamma, coef0, degree, values):  # type: ignore[no-untyped-def]
    """Turn products into kernel values."""
    if kind == _RBF:
        exp_double(values)
    elif kind == _SIGMOID:
        for k in range(len(values)):
            values[k] = np.tanh(gamma * values[k] + coef0)
    elif kind == _POLY:
        for k in range(len(values)):
            value = gamma * values[k] + coef0
            if degree == 3.0:
                values[k] = value * (value * value)
            elif degree == 2.0:
                values[k] = value * value
            else:
                values[k] = value**degree


@part()
def fill_rows(kernel_of, rows, order, own, own_at, starts, samples, before, room, flat):  # type: ignore[no-untyped-def]
    """Set rows `before`, `before` + 1, ... of ``flat`` to those of `samples`; return the values computed."""
    kind, gamma, coef0, degree = kernel_of
    n0, width = starts[1] - starts[0], rows.shape[1]
    n, computed = n0 + starts[3] - starts[2], 0
    if kind == GIVEN:
        for s in range(len(samples)):
            at = samples[s] + (starts[0] if samples[s] < n0 else starts[2] - n0)
            for k in range(n):
                flat[(before + s) * n + k] = rows[order[at], order[k + (starts[0] if k < n0 else starts[2] - n0)]]
        return len(samples) * n
    for side in range(2):
        shift, count = starts[0] if side == 0 else starts[2] - n0, 0
        for s in range(len(samples)):
            if (samples[s] >= n0) == (side == 1):
                row = rows[samples[s] + shift]
                for k in range(width):
                    room[count * width + k] = row[k]
                if kind == _RBF:
                    # Rows end in (-γ‖x‖², 1); swapped on this side, so that a product is the exponent itself.
                    room[(count + 1) * width - 2], room[(count + 1) * width - 1] = row[width - 1], row[width - 2]
                count += 1
        if count == 0:
            continue
        left = room[: count * width].reshape(count, width)
        for other in range(2):
            begin, end = starts[2 * other], starts[2 * other + 1]
            m, at, a = end - begin, own_at[side] if side == other else -1, 0
            values = room[count * width : count * (width + m)]
            if at < 0:
                np.dot(left, rows[begin:end].T, values.reshape(count, m))
                _finish(kind, gamma, coef0, degree, values)
                computed += count * m
            for s in range(len(samples)):
                if (samples[s] >= n0) == (side == 1):
                    target = (before + s) * n + (n0 if other == 1 else 0)
                    # Loops: to assign a slice, Numba compiles the text of an error, which takes it some seconds.
                    if at < 0:
                        for k in range(m):
                            flat[target + k] = values[a * m + k]
                    else:
                        source = at + (samples[s] - (n0 if side == 1 else 0)) * m
                        for k in range(m):
                            flat[target + k] = own[source + k]
                    a += 1
    return computed


@scalar
def _total(values):  # type: ignore[no-untyped-def]
    """Return the sum, one number after another."""
    total = 0.0
    for k in range(len(values)):
        total += values[k]
    return total


@kernel
def solve_pairs(kernel_of, rows, order, own, owns, places, duals, tol, limits, fewests, memory, sums, results, events):  # type: ignore[no-untyped-def]
    """Solve the duals of pairs of classes; the variables change, ``results`` and ``events`` are set.

    - `own`, `owns`, shape (n_pairs, 2): values within classes, and where those of either class begin; below zero
      where they are not held.
    - `places`, shape (n_pairs, 4): where the rows of either class begin and end; the samples of a pair are those of
      the first, then the second.
    - `duals`, shape (4, n): signs, linear terms, upper bounds and variables, those of one pair after those of
      another.
    - `events`, shape (n_pairs * n_records, 4): takes of each event whether it is a proof, the steps, the gap and
      the values computed; the events of a pair come after those of the one before, and are `n_records` at most.
    """
    begin, first, n_events = 0, 0, len(events) // len(places)
    # A literal 0 has a type of its own, for which Numba would compile what it is handed to once more.
    none = np.int64(0)
    # No call for each: Numba would optimise what it calls, and then both together once more.
    for number in range(len(places)):
        own_at, starts, told = owns[number], places[number], results[number]
        limit, fewest = limits[number], fewests[number]
        n, n_groups = starts[1] - starts[0] + starts[3] - starts[2], len(told) - 7
        u, records = sums[begin : begin + n], events[first : first + n_events]
        # Copied by a loop: to give a slice another shape takes Numba longer.
        y, p, upper, alpha = np.empty((1, n)), np.empty((1, n)), np.empty((1, n)), np.empty((1, n))
        group = np.empty((1, n), np.int64)
        for k in range(n):
            y[0, k], p[0, k] = duals[0, begin + k], duals[1, begin + k]
            upper[0, k], alpha[0, k] = duals[2, begin + k], duals[3, begin + k]
            group[0, k] = 1 if n_groups > 1 and y[0, k] < 0.0 else 0
        flat, room = memory[: n * n], memory[n * n :]  # room holds values among members, or what rows are made of
        c, least, most = np.empty((1, n)), np.empty(n_groups), np.empty(n_groups)
        slot_of, keys, picked = np.empty(n, np.int64), np.empty(n), np.empty(2 * n, np.int64)
        members, held, computed, steps, at, n_failed = np.empty(n, np.int64), none, 0, 0, 0, 0
        fixed = 0.0
        for k in range(n):
            c[0, k], slot_of[k] = y[0, k] * p[0, k], -1
            fixed += y[0, k] * alpha[0, k]
            if alpha[0, k] > 0.0 or fewest >= n:
                slot_of[k], members[held] = held, k
                held += 1
        computed += fill_rows(kernel_of, rows, order, own, own_at, starts, members[:held], none, room, flat)
        _, gap, _ = _advance(slot_of, flat, room, u, c, y, upper, alpha, group, least, most, tol, none)
        # A little below `tol`: u that is added up anew for the proof differs by rounding.
        status, target, largest, is_stuck, has_grown = OPEN, 0.9 * tol, 0.0, False, True
        told[3] = gap
        while True:
            if not np.isfinite(largest + _total(u)):
                status = BROKEN
                break
            if at + 2 > len(records):
                break
            if gap < target or is_stuck:
                _, gap, _ = _advance(slot_of, flat, room, u, c, y, upper, alpha, group, least, most, tol, none)
                records[at, 0], records[at, 1], records[at, 2], records[at, 3] = 1.0, steps, gap, computed
                at += 1
                if gap < tol:
                    status = PROVEN
                    break
                n_failed, target = n_failed + 1, 0.5 * target
            if steps >= limit or n_failed >= _MOST_PROOFS:
                break
            # Rounding of u may be as large as this, so no further step shows.
            if not has_grown and gap < _EPS * largest * _total(alpha[0]):
                break
            records[at, 0], records[at, 1], records[at, 2], records[at, 3] = 0.0, steps, gap, computed
            at += 1
            has_grown = held < n
            if has_grown:
                fresh = max(1, max(fewest, held // _SHARE) // (2 * n_groups))
                fresh = _pick_worst(u, c, y, upper, alpha, group, least, most, slot_of, held, fresh, keys, picked)
                has_grown = fresh > 0
                computed += fill_rows(kernel_of, rows, order, own, own_at, starts, picked[:fresh], held, room, flat)
                for k in range(fresh):
                    members[held + k] = picked[k]
                held += fresh
            aim = target if held == n else max(target, _BY_ROUND * gap)
            made, gap, size = _advance(
                slot_of, flat, room, u, c, y, upper, alpha, group, least, most, aim, min(limit - steps, limit)
            )
            largest, is_stuck = max(largest, size), made == 0 and not has_grown
            if not size >= 0.0:  # NaN
                largest = size
            steps += made
        told[0], told[1], told[2], told[3], told[6] = status, steps, at, gap, computed
        if status == PROVEN:
            _tell(u, c[0], y[0], upper[0], alpha[0], group[0], fixed, told[3:])
            if not np.isfinite(told[5]):
                told[0] = BROKEN
        for k in range(n):
            duals[3, begin + k] = alpha[0, k]
        begin, first = begin + n, first + at


#: Samples of a pair, at most: up to so many rows are float64 whatever the tolerance. And columns: one call is short.
_LARGEST, _WIDEST = 2000, 4096

#: From so many classes on a sample is a member of some pair often enough that all values within its class pay.
_MANY_CLASSES = 5

#: Values within classes of a slab, and those that have to be spared for each class: a call of its own takes as long.
_SLAB, _WORTH = 50_000, 4000

#: Members that a round adds, at least. Where all values are no more than so many cheap ones, all samples are members at
#: once, as with the solver of one problem: the machine is then the same to rounding, whichever of the two finds it.
_FEWEST, _AT_ONCE = 16, 30_000

#: Columns of a linear kernel up to which so many steps per sample are tried where weights could begin: mostly they are
#: enough, and they take less time than a few Newton steps.
_NARROW, _FEW_STEPS = 8, 2

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
        self._most = _LARGEST if cache_bytes else 0  # samples of a pair
        self._is_on = False
        if np.sort(counts)[:2].sum() > self._most:
            return
        self._order = np.argsort(codes, kind="stable")
        # Compiled code takes dense rows of few bytes, and given values as they are.
        if kernel.name == "precomputed":
            self._is_on = bool(X.dtype == np.float64 and X.flags.c_contiguous and X.flags.writeable)
        elif kernel.name in KINDS and not prefers_sparse(X):
            self._is_on = X.shape[1] <= _WIDEST and 8 * len(first) * (X.shape[1] + 2) <= cache_bytes // 2
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
        uses = (counts[:, None] + counts <= self._most).sum(axis=1) - (2 * counts <= self._most)
        classes = np.argsort(counts, kind="stable")
        pays = (uses >= _MANY_CLASSES - 1) & ((uses - 1) * counts**2 >= _WORTH)
        classes = classes[pays[classes] & (np.cumsum(8 * counts[classes] ** 2) <= most_bytes)]
        if not len(classes):
            return
        ends = np.concatenate([[0], np.cumsum(counts[classes] ** 2)])
        self._own, self._own_at[classes] = np.empty(ends[-1]), ends[:-1]

        def work(start: int, stop: int) -> None:
            for place in range(start, stop):
                code = classes[place]
                rows = span(Rows(len(self._rows), dense=self._rows), self._ends[code], self._ends[code + 1])
                out = self._own[ends[place] : ends[place + 1]].reshape(rows.n, rows.n)
                with np.errstate(over="ignore", invalid="ignore"):  # non-finite values are refused later; no warning
                    block_values(self._kernel, rows, rows, np.float64, out)

        # To start a thread takes as long as some ten thousand values do.
        pool.slabs(work, len(classes), max(1, _SLAB * len(classes) // max(1, int(ends[-1]))))
        self.n_evaluations = int(ends[-1])

    def takes(self, pair: tuple[int, int]) -> bool:
        """Return whether a pair is solved here."""
        return self._is_on and self._is_small(pair)

    def _is_small(self, pair: tuple[int, int]) -> bool:
        return sum(int(self._ends[code + 1] - self._ends[code]) for code in pair) <= self._most

    def samples(self, pair: tuple[int, int]) -> IntVector:
        """Return the samples of a pair, shape (n,); in a small pair those of the first class come first."""
        if not self._is_small(pair):  # in the order of content: both are mixed, so neither leads the first blocks
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
        is_flat = is_linear and weights_begin(n, self._width)
        if is_flat and self._width > _NARROW and has_linear_start(dual):
            return go_on(dual, max_iter)
        most = min(_STEPS, (_FEW_STEPS if is_flat else FIRST_STEPS) * n) if is_linear else _STEPS
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

    def samples_of(self, pairs: IntVector, sign: float) -> tuple[IntVector, FloatVector]:
        """Return the samples of small pairs, one pair after another, and their signs."""
        lengths = np.diff(self._ends)[pairs].ravel()
        # Rows of the classes one after another: those of a class are a stretch.
        rows = np.arange(lengths.sum()) + np.repeat(self._ends[pairs].ravel() - np.cumsum(lengths) + lengths, lengths)
        return self._order[rows], np.repeat(np.tile([sign, -sign], len(pairs)), lengths)

    def solve_many(
        self, pairs: IntVector, samples: IntVector, dual: Dual, *, tol: float, max_iter: int, pool: Pool
    ) -> list[tuple[IntVector, FloatVector, Solution]]:
        """Solve the duals of tiny pairs in one call; return the coefficients and solution of each."""
        pool.check()
        begin, sizes = time.perf_counter(), np.diff(self._ends)[pairs].sum(axis=1)
        parts = np.concatenate([dual.y, dual.p, dual.upper, dual.alpha])
        most = FIRST_STEPS * sizes if self._kernel.name == "linear" else np.full(len(pairs), _STEPS)
        limits = most if max_iter < 0 else np.minimum(most, max_iter)
        told, records = self._run(pairs, parts, np.empty(len(samples)), dual.n_groups, tol, limits, pool)
        used = np.flatnonzero(parts[3])
        ends = np.searchsorted(used, np.concatenate([[0], np.cumsum(sizes)])).tolist()
        of, beta = samples[used], (parts[0] * parts[3])[used]
        solutions = _solutions(told, records, sizes, (time.perf_counter() - begin) / len(pairs))
        return [(of[a:b], beta[a:b], each) for a, b, each in zip(ends[:-1], ends[1:], solutions, strict=True)]

    def batches(self, pairs: IntVector) -> list[IntVector]:
        """Return pairs that `solve_many` takes, by their numbers, a few hundred samples together."""
        if not self._is_on:  # of a linear kernel these are fewer than the linear solver begins with
            return []
        sizes = np.diff(self._ends)[pairs].sum(axis=1)
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
    """Yield the solutions of maybe thousands of pairs from what is told of them, by columns; without variables."""
    n_records, is_proof = told[:, 2].astype(np.int64), records[:, 0] > 0.0
    ends = np.concatenate([[0], np.cumsum(n_records)])
    names, steps, values = np.where(is_proof, "verify", "block"), *records[:, [1, 3]].astype(np.int64).T
    events = (names, steps, np.repeat(sizes, n_records), records[:, 2], np.zeros_like(steps), values)
    history = list(map(EliminationRecord, *(column.tolist() for column in events), repeat(seconds)))
    n_proofs = np.concatenate([[0], np.cumsum(is_proof)])[ends]
    is_proven, n_rounds = told[:, 0] == PROVEN, n_records - np.diff(n_proofs)
    n_rounds = np.where(is_proven, np.maximum(n_rounds, 1), n_rounds)
    gaps, nothing = np.maximum(told[:, 3], 0.0), np.empty((1, 0))  # it is infinite when no pair can move
    whole = (told[:, 1].astype(np.int64), n_rounds, told[:, 6].astype(np.int64), ends[:-1], ends[1:])
    columns = (gaps, told[:, 4], told[:, 5], is_proven, *whole)
    for k, (gap, duality_gap, objective, proven, n_iter, n_done, n_values, first, last) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        counts = Counts(n_iter, n_done, 0, 0, 0, n_values, 0, history[first:last], _NO_WORK)
        yield Solution(nothing, nothing[0], told[k, len(TOLD) :], gap, duality_gap, objective, proven, counts)
