"""The direct solver of small problems: kernel rows of the relevant samples are computed once and kept.

Most samples of a pair are never looked at closely. The solver holds members, whose rows over all samples lie in memory
in float64. A round takes as new members the samples that violate optimality most, solves the problem of all members to
a tenth of the gap, and adds the rows of those that moved to u = K(yα). Each row is computed once, in one product with
others, and never discarded; the rounds, cache and elimination of `dsgd.svm.kernel_solver.block` would cost more than
the steps. The proof over all samples costs no kernel value, because every sample with a coefficient is a member: u is
summed again from the stored rows.

It ends when the proof holds, steps are spent, proofs no longer see the gap fall where rounding may hide it, or the run
stands still (`dsgd.svm.kernel_solver.standstill`). Every round takes a step, has a new member, or leads to a proof.
Cost: n kernel values for each of m members, mostly a small multiple of the number of support vectors, and m² more
numbers of memory. Source: SMO as in `dsgd.svm.kernel_solver.smo`, over an active set that only grows.
"""

from __future__ import annotations

import time
from math import isfinite

import numpy as np

from dsgd.svm.kernel_solver.elimination import Elimination, EliminationRecord
from dsgd.svm.kernel_solver.members import add_members, advance, pick_worst
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution, conclude, refuse, worth
from dsgd.svm.kernel_solver.smo import extremes
from dsgd.svm.kernel_solver.standstill import Standstill
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.types import FloatMatrix, FloatVector, IntVector

#: Largest number of variables of such a problem: all rows of so many take 32 megabytes. A start with known sums needs
#: few rows in blocks, but here the rows of all samples with coefficients.
LARGEST_DIRECT, _LARGEST_KNOWN = 2048, 512

#: Members that a round adds, at least, and in units of those there are. Fewer are more rounds, more are more rows that
#: never move. Rows may take at least as long as the rest of the round, in units of `KernelMatrix.value_cost`.
_FEWEST, _SHARE = 16, 0.25
_ROUND_COST = 30_000
#: How far a round closes the gap of its members; the last go to the tolerance.
_BY_ROUND = 0.1

#: Proofs in a row that may fail without halving the gap: the gap is then rounding only.
_MAX_ATTEMPTS = 3
#: Largest number of steps between two proofs: indicators that are only updated drift.
_STEPS = 100_000


def fits_directly(dual: Dual, matrix: KernelMatrix, elimination: Elimination) -> bool:
    """Return whether `solve_directly` suits a problem: small, all on this rank, and without immediate elimination."""
    is_idle = elimination.mode == "none" or elimination.waits_for_pressure
    is_here = matrix.peers.is_alone and len(matrix.active) == matrix.n
    is_small = dual.y.size <= (LARGEST_DIRECT if dual.u is None else min(LARGEST_DIRECT, _LARGEST_KNOWN))
    return is_idle and is_here and is_small and bool(matrix.dtype == np.float64)


def solve_directly(dual: Dual, matrix: KernelMatrix, *, tol: float, max_iter: int) -> Solution:
    """Solve the dual to `tol`.

    - returned: not converged if steps ran out, rounding keeps the gap open, or nothing came nearer.
    """
    begin = time.perf_counter()
    limit = max_iter if max_iter >= 0 else max(10_000_000, 100 * matrix.n)
    members = _Members(dual, matrix)
    counts = Counts()

    def record(event: str) -> None:
        seconds = time.perf_counter() - begin
        counts.n_rounds += event == "block"
        counts.history.append(EliminationRecord(event, counts.n_iter, matrix.n, gap, 0, matrix.n_evaluations, seconds))

    unproven, target, standstill = 0, 0.9 * tol, Standstill(matrix.n)
    lowest, n_failed, is_stuck, has_grown = np.inf, 0, False, True
    members.take(np.flatnonzero(dual.alpha.any(axis=0)))
    gap = members.renew()
    while True:
        matrix.pool.check()
        if not members.is_finite:
            raise refuse(matrix.kernel)
        is_blind = not has_grown and gap < np.finfo(np.float64).eps * members.largest * float(members.alpha.sum())
        is_through, is_suspected = gap < target or is_blind or is_stuck, standstill.is_suspected(counts.n_iter, gap)
        if is_through or is_suspected or counts.n_iter >= limit or unproven >= _STEPS:
            gap, unproven = members.renew(), 0
            record("verify")
            if is_through:
                n_failed = 0 if gap < 0.5 * lowest else n_failed + 1
                target *= 0.5
            lowest = min(lowest, gap)
            if gap < tol or counts.n_iter >= limit or n_failed >= _MAX_ATTEMPTS:
                break
            if is_suspected and standstill.is_certain(*worth(dual, members.alpha, members.u)):
                break
        record("block")
        has_grown = members.take(members.pick())
        aim = target if len(members.ids) == matrix.n else max(target, _BY_ROUND * gap)
        made, gap = members.solve(aim, min(limit - counts.n_iter, _STEPS))
        is_stuck = made == 0 and not has_grown
        counts.n_iter += made
        unproven += made
    counts.n_rounds, counts.n_evaluations = max(1, counts.n_rounds), matrix.n_evaluations
    return conclude(dual, matrix.kernel, members.alpha, members.u, tol=tol, counts=counts)


class _Members:
    """The variables of a problem, its indicators, and the members with their rows."""

    def __init__(self, dual: Dual, matrix: KernelMatrix) -> None:
        n = matrix.n
        self._matrix, self._y, self._n_groups = matrix, dual.y, dual.n_groups
        self.alpha: FloatMatrix = dual.alpha.astype(np.float64)
        self.u: FloatVector = np.zeros(n)
        #: The members, in the order in which they came.
        self.ids: IntVector = np.empty(0, dtype=np.int64)
        #: The largest size of a kernel value among members; NaN where one is.
        self.largest = 0.0
        # Rows of members, and room for values among their variables; pages that are not written take no memory.
        memory = matrix.lend(n * n + dual.y.size**2)
        self._flat, self._block = memory[: n * n], memory[n * n :]
        self._variables = (self.u, dual.y * dual.p, dual.y, dual.upper, self.alpha, dual.group)
        self._extremes = np.empty(self._n_groups), np.empty(self._n_groups)
        self._slot_of, self._keys = np.full(n, -1), np.empty(dual.y.size)
        self._picked: IntVector = np.empty(n + dual.y.size, dtype=np.int64)
        self._fewest = max(_FEWEST, int(_ROUND_COST / (n * matrix.value_cost)))

    @property
    def is_finite(self) -> bool:
        """Whether the values between members, and the sums of all, are finite."""
        return isfinite(self.largest + self.u.sum())

    def renew(self) -> float:
        """Sum u again; return the gap over all samples."""
        self.u[:] = 0.0
        add_members(self._flat, (self._y * self.alpha).sum(axis=0)[self.ids], self.u)
        return float(extremes(*self._variables, *self._extremes))

    def pick(self) -> IntVector:
        """Return the samples that become members next: the worst violators, as many of each side; or all, if few."""
        if not len(self.ids) and len(self.u) <= self._fewest:
            return np.arange(len(self.u))
        room = max(self._fewest, int(_SHARE * len(self.ids))) // (2 * self._n_groups)
        room, scratch = min(max(1, room), len(self._keys)), (self._keys, self._picked)
        n_held = len(self.ids)
        return self._picked[: pick_worst(*self._variables, *self._extremes, self._slot_of, n_held, room, *scratch)]

    def take(self, samples: IntVector) -> bool:
        """Make samples members, whose rows are then computed; return whether there were any."""
        if not len(samples):
            return False
        n, before = len(self.u), len(self.ids)
        self.ids = np.concatenate([self.ids, samples])
        self._slot_of[samples] = np.arange(before, len(self.ids))
        self._matrix.fill_rows(samples, self._flat[before * n : len(self.ids) * n].reshape(-1, n))
        return True

    def solve(self, tol: float, max_steps: int) -> tuple[int, float]:
        """Solve the problem of the members to `tol`; return the steps made and the gap over all samples."""
        rows = self._flat, self._block
        steps, gap, largest = advance(self._slot_of, *rows, *self._variables, *self._extremes, tol, max_steps)
        self.largest = max(float(largest), self.largest)
        return int(steps), float(gap)
