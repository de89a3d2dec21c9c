"""The published parallel solver: one pair of variables per step, broadcast to all ranks.

It solves the problem of `dsgd.svm.kernel_solver.block` with one variable per sample. One step

1. takes the pair that violates most: i = argmin f over I_up, j = argmax f over I_low (lowest number on ties);
2. their holders broadcast the two rows of features, with true lengths;
3. every rank moves both variables by t = (f_j − f_i)/η, η = K_ii + K_jj − 2 K_ij, clipped to the box;
4. every rank adds t (K_ki − K_kj) to f_k of its active samples, and tests for elimination if one is due;
5. one reduction finds the next pair.

When the gap of the active samples closes, f of the inactive ones is computed again: the rows of all samples with α > 0
travel around a ring, and each rank updates its inactive samples. Then all samples are active again; with mode
``"single"`` no further test follows. As in the block solver, u is at last computed in float64 for all samples, and only
a gap below tol over all of them counts as convergence.

Cost per step: 2 broadcasts of a row, 1 reduction of 4 doubles per rank, 2 n_active/p kernel values. Source: Vishnu,
Narasimhan, Holder, Kerbyson, Hoisie, "Fast and Accurate SVMs on Large Scale Systems", IEEE Cluster 2015. Departures:
rows are not padded to the longest, squared norms are not computed again for every value, tol is LIBSVM's (their 2 tol),
and a step whose pair cannot move ends the run instead of repeating forever.

Every pass of the outer loop takes a step, makes samples active again, or is the last: with no step possible and no
sample to return it ends, and steps are at most `max_iter`. So a run ends, whatever the kernel.
"""

from __future__ import annotations

import time

import numpy as np

from dsgd.svm.kernel_solver.elimination import Elimination, EliminationRecord, eliminable
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution, conclude, refuse
from dsgd.svm.kernel_solver.state import BestLists, best
from dsgd.svm.kernels.functions import block_values, left_form, row_values
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.rows import Rows, concatenate_rows, places_of, take_rows
from dsgd.types import FloatVector, IntVector

_TAU = 1e-12
_RECORD_EVERY = 100  # steps
_CHUNK = 256
_PAIR = BestLists((1, 1))


def solve_pairwise(
    dual: Dual, matrix: KernelMatrix, *, tol: float, max_iter: int, elimination: Elimination
) -> Solution:
    """Solve a dual with one variable per sample and one sum, by the published algorithm."""
    return _Pairwise(dual, matrix, tol, max_iter, elimination).solve()


class _Pairwise:
    """The state of one run; arrays named ``*_h`` hold the samples that lie here, in the order of their numbers."""

    def __init__(self, dual: Dual, matrix: KernelMatrix, tol: float, max_iter: int, elimination: Elimination) -> None:
        self.dual, self.matrix, self.tol, self.policy = dual, matrix, tol, elimination
        self.peers, self.n = matrix.peers, matrix.n
        self.max_iter = max_iter if max_iter >= 0 else max(10_000_000, 100 * self.n)
        self.here = matrix.mine
        self.rows = matrix.own_rows(np.float64)
        self.rows_a = self.rows
        # The number of entries of each CSR row, so that every rank knows the lengths to expect.
        self.lengths: FloatVector = np.zeros(self.n)
        if self.rows.sparse is not None:
            self.lengths[self.here] = np.diff(self.rows.sparse[2])
            self.peers.add_up(self.lengths)
        self.place = places_of(self.here, self.n)
        self.y, self.upper = dual.y[0], dual.upper[0]
        self.alpha: FloatVector = dual.alpha[0].astype(np.float64)
        self.c_h = (dual.y * dual.p)[0, self.here]
        self.f_h: FloatVector = self.c_h.copy()
        self.is_active = np.ones(len(self.here), dtype=np.bool_)
        self.is_eliminating = elimination.mode != "none"
        self.every = elimination.steps_between(self.n)
        self.n_active = self.n
        self.counts = Counts()
        self.least, self.most = -np.inf, np.inf
        self.begin = time.perf_counter()
        if self.alpha.any():
            self._renew(np.arange(len(self.here)))

    def solve(self) -> Solution:
        """Run to the end."""
        with self.peers.round("check"):
            i, j = self._pair()
        is_stuck = False
        while True:
            # A little below tol, so that rounding of the sums does not fail the proof.
            while self.most - self.least >= 0.99 * self.tol and self.counts.n_iter < self.max_iter and not is_stuck:
                with self.peers.round("sync"):
                    i, j, is_stuck = self._step(i, j)
            with self.peers.round("check"):
                is_open = self._bring_back()
                i, j = self._pair()
            gap = self.most - self.least
            if gap < 0.99 * self.tol or self.counts.n_iter >= self.max_iter or (is_stuck and not is_open):
                with self.peers.round("check"):
                    return self._solution()
            is_stuck = False

    def _step(self, i: int, j: int) -> tuple[int, int, bool]:
        """Move a pair; return the next one, and whether this one could not move."""
        self.matrix.pool.check()
        pair = self._broadcast(i, j)
        K = block_values(self.matrix.kernel, pair, pair, np.float64)
        if not np.isfinite(K).all():
            raise refuse(self.matrix.kernel)
        eta = max(K[0, 0] + K[1, 1] - 2 * K[0, 1], _TAU)
        alpha, y, upper = self.alpha, self.y, self.upper
        room_i = upper[i] - alpha[i] if y[i] > 0 else alpha[i]
        room_j = alpha[j] if y[j] > 0 else upper[j] - alpha[j]
        t = min((self.most - self.least) / eta, room_i, room_j)
        before = alpha[i], alpha[j]
        alpha[i] += y[i] * t
        alpha[j] -= y[j] * t
        if t == room_i:
            alpha[i] = upper[i] if y[i] > 0 else 0.0
        if t == room_j:
            alpha[j] = 0.0 if y[j] > 0 else upper[j]
        active = np.flatnonzero(self.is_active)
        values = self._values(pair, self.rows_a)
        self.f_h[active] += t * (values[0] - values[1])
        self.counts.n_iter += 1
        if self.is_eliminating and self.counts.n_iter % (self.every + 1) == 0:
            self._eliminate(active)
        gap = self.most - self.least
        is_stuck = (alpha[i], alpha[j]) == before
        i, j = self._pair()
        if self.counts.n_iter % _RECORD_EVERY == 0:
            self._record("block", gap)
        return i, j, is_stuck

    def _broadcast(self, i: int, j: int) -> Rows:
        """Return the rows of two samples; each is broadcast by its holder, with its true length."""
        ids = np.array([i, j])
        ours = take_rows(self.rows, self.place[self.peers.mine(ids)])
        if self.peers.is_alone or (ours.dense is None and ours.sparse is None):
            return self.peers.collect_rows(ids, ours)
        parts = [take_rows(self.rows, self.place[self.peers.mine(ids[k : k + 1])]) for k in (0, 1)]
        one, two = (self._spread(number, part) for number, part in zip((i, j), parts, strict=True))
        return concatenate_rows(one, two)

    def _spread(self, number: int, row: Rows) -> Rows:
        """Return the row of a sample, which is `row` on its holder and nothing elsewhere."""
        if row.dense is not None:
            line = row.dense[0] if row.n else np.empty(row.dense.shape[1], dtype=row.dense.dtype)
            return Rows(1, dense=self.peers.spread(number, line)[None])
        assert row.sparse is not None
        assert row.offsets is not None
        length = int(self.lengths[number])
        message = np.empty(2 * length + 1)
        if row.n:
            message[:length], message[length:-1], message[-1] = row.sparse[0], row.sparse[1], row.offsets[0]
        message = self.peers.spread(number, message)
        columns = message[length:-1].astype(row.sparse[1].dtype)
        csr = (message[:length].copy(), columns, np.array([0, length], dtype=row.sparse[2].dtype))
        return Rows(1, sparse=csr, n_columns=row.n_columns, offsets=message[-1:].copy())

    def _values(self, left: Rows, right: Rows) -> FloatVector:
        """Return kernel values of some left rows with rows that lie here, shape (left.n, right.n)."""
        out = np.empty((left.n, right.n))
        for start, stop, part in left_form(self.matrix.kernel, left):
            row_values(self.matrix.kernel, part, right, out[start:stop])
        self.counts.n_evaluations += out.size
        return out

    def _pair(self) -> tuple[int, int]:
        """Find the pair that violates most among the active samples of all ranks."""
        active = np.flatnonzero(self.is_active)
        ids = self.here[active]
        y, alpha, upper, f = self.y[ids], self.alpha[ids], self.upper[ids], self.f_h[active]
        up = np.where(y > 0, alpha < upper, alpha > 0)
        low = np.where(y > 0, alpha > 0, alpha < upper)
        sides = [best(keys[side], ids[side], 1) for side, keys in ((up, f), (low, -f))]
        words = _PAIR.pack(sides, np.empty(0))
        self.peers.combine(words, _PAIR)
        (least, first), (most, last) = _PAIR.unpack(words)[0]
        self.least, self.most = least.min(initial=np.inf), -most.min(initial=np.inf)
        if not (np.isfinite(self.least) and np.isfinite(self.most)):
            self.least, self.most = 0.0, -np.inf
        return int(first.max(initial=0)), int(last.max(initial=0))

    # -- elimination ---------------------------------------------------------------------------------------------

    def _eliminate(self, active: IntVector) -> None:
        """Leave settled samples out, by the extremes from before the step."""
        ids = self.here[active]
        args = (self.y[None, ids], self.alpha[None, ids], self.upper[None, ids], np.zeros((1, len(ids)), np.int64))
        out = eliminable(self.f_h[None, active], *args, np.array([self.least]), np.array([self.most]))
        if out.any():
            self.is_active[active[out]] = False
            self.rows_a = take_rows(self.rows, np.flatnonzero(self.is_active))
        count = np.array([float(out.sum())])
        self.peers.add_up(count)
        self.n_active -= int(count[0])
        self.counts.n_eliminated += int(count[0])
        if count[0]:
            self._record("eliminate", self.most - self.least)

    def _bring_back(self) -> bool:
        """Update f of the inactive samples, and make all of them active; return whether there were any."""
        if self.n_active == self.n or self.policy.reconstruction == "none":
            return False
        out = np.flatnonzero(~self.is_active)
        self._renew(out)
        self.is_active[:] = True
        self.rows_a = self.rows
        self.counts.n_returned += self.n - self.n_active
        self.n_active = self.n
        self.counts.n_reconstructions += 1
        self.is_eliminating = self.policy.mode not in {"none", "single"}
        self._record("reconstruct", self.most - self.least)
        return True

    def _renew(self, which: IntVector) -> None:
        """Compute f of some samples here from all samples with α > 0, which their holders send around the ring."""
        sums = np.zeros(len(which))
        right = take_rows(self.rows, which)
        for first in range(0, self.n, _CHUNK):
            ids = first + np.flatnonzero(self.alpha[first : first + _CHUNK])
            if len(ids):
                ours = take_rows(self.rows, self.place[self.peers.mine(ids)])
                left = self.peers.collect_rows(ids, ours)
                sums += (self.y[ids] * self.alpha[ids]) @ self._values(left, right)
        self.f_h[which] = sums + self.c_h[which]

    # -- the end -------------------------------------------------------------------------------------------------

    def _solution(self) -> Solution:
        """Compute f of all samples again, and the values that follow from it."""
        self._renew(np.arange(len(self.here)))
        self.is_active[:] = True
        self._pair()
        gap = self.most - self.least
        self._record("verify", gap)
        u = np.zeros(self.n)
        u[self.here] = self.f_h - self.c_h
        self.peers.add_up(u)
        n_evaluations = np.array([float(self.counts.n_evaluations)])
        self.peers.add_up(n_evaluations)
        self.counts.n_rounds, self.counts.n_evaluations = self.counts.n_iter, int(n_evaluations[0])
        return conclude(self.dual, self.matrix.kernel, self.alpha[None], u, tol=self.tol, counts=self.counts)

    def _record(self, event: str, gap: float) -> None:
        counts, seconds = self.counts, time.perf_counter() - self.begin
        n_evaluations = counts.n_evaluations * self.peers.size  # of all ranks, about: they hold as many samples each
        counts.history.append(EliminationRecord(event, counts.n_iter, self.n_active, gap, 0, n_evaluations, seconds))
