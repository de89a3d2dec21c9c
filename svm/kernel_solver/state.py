"""The state of a run of the block solver: variables, indicators, active samples, counts.

Each rank has the dual, the variables and the indicators of the samples that lie here, in the order of ``matrix.mine``.
Arrays named ``*_a`` hold those of them that are active, in the order of ``matrix.active``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from dsgd.svm.kernel_solver.elimination import EliminationRecord
from dsgd.svm.kernel_solver.exact_sums import ExactSums
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution, conclude, worth
from dsgd.svm.kernel_solver.smo import extremes
from dsgd.svm.kernel_solver.work import Watch
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

#: Sent in place of the flag of a short cache if an indicator is not finite.
_BROKEN = -2.0


class State:
    """The state of a run."""

    def __init__(self, dual: Dual, matrix: KernelMatrix) -> None:
        self.matrix, self.peers = matrix, matrix.peers
        has_start = bool(dual.alpha.any())
        self.dual = dual if self.peers.is_alone else dual.take(matrix.mine)
        dual = self.dual
        self.n_groups, self.group = dual.n_groups, dual.group
        self.c = dual.y * dual.p
        self.alpha: FloatMatrix = dual.alpha.astype(np.float64)
        self.u: FloatVector = np.zeros(len(matrix.mine))
        self.exact = ExactSums(matrix)
        self.newest: IntVector = np.empty(0, dtype=np.int64)
        self.least, self.most = np.empty(self.n_groups), np.empty(self.n_groups)
        self.is_pressed, self.is_finite = False, True
        self.counts, self.n_stalls = Counts(), 0
        self.told = np.zeros(2)  # hits and kernel values reported by other ranks
        self.begin = time.perf_counter()
        self._watch = Watch(self.counts.work, matrix.n_evaluations)
        if dual.u is not None:
            self.exact.know(dual.u, self.beta())
            self.u = self.exact.u.copy()
        elif has_start:
            self.refine()
        self._tally()
        self.load_active()

    def beta(self) -> FloatVector:
        """Return Σ yα of each sample of this rank."""
        total: FloatVector = (self.dual.y * self.alpha).sum(axis=0)
        return total

    def refine(self) -> None:
        """Set u to K(yα) in float64."""
        self.u = self.exact.renew_all(self.beta())
        self._tally()

    def _tally(self) -> None:
        """Find the sum of all variables, and how many are free: with other ranks they are then kept up to date."""
        if self.peers.is_alone:
            return
        totals = np.array([self.alpha.sum(), np.count_nonzero((self.alpha > 0) & (self.alpha < self.dual.upper))])
        self.peers.add_up(totals)
        self._total, self._n_free = float(totals[0]), int(totals[1])

    @property
    def total(self) -> float:
        """The sum of all variables."""
        return float(self.alpha.sum()) if self.peers.is_alone else self._total

    @property
    def n_free(self) -> int:
        """How many variables are free."""
        if not self.peers.is_alone:
            return self._n_free
        return int(np.count_nonzero((self.alpha > 0) & (self.alpha < self.dual.upper)))

    def change(self, chosen: IntVector, before: FloatVector, after: FloatVector, upper: FloatVector) -> None:
        """Set variables, of any ranks, by number, from one value to another; `upper` are their bounds.

        Variable v of sample i has the number v n + i.
        """
        self._set_alpha(chosen, after)
        if not self.peers.is_alone:
            self._total += float((after - before).sum())
            was_free, is_free = ((part > 0) & (part < upper) for part in (before, after))
            self._n_free += int(np.count_nonzero(is_free)) - int(np.count_nonzero(was_free))

    def _set_alpha(self, chosen: IntVector, alpha: FloatVector) -> None:
        n = self.matrix.n
        if self.peers.is_alone:
            self.alpha.reshape(-1)[chosen] = alpha
        else:
            place = self.peers.find(chosen % n)
            ours = place >= 0
            self.alpha[chosen[ours] // n, place[ours]] = alpha[ours]
        position = self.matrix.where(chosen % n)
        here = position >= 0
        self.alpha_a[chosen[here] // n, position[here]] = alpha[here]

    def store_active(self) -> None:
        """Write u of the active samples back."""
        self.u[self.peers.place(self.matrix.active)] = self.u_a

    def load_active(self) -> None:
        """Take the arrays of the active samples."""
        active = self.peers.place(self.matrix.active)

        def take(part: AnyArray) -> Any:
            return np.ascontiguousarray(part[:, active])

        self.u_a = self.u[active]
        self.alpha_a, self.c_a, self.y_a = take(self.alpha), take(self.c), take(self.dual.y)
        self.upper_a, self.group_a = take(self.dual.upper), take(self.group)

    # -- the gap -------------------------------------------------------------------------------------------------

    def scan(self) -> float:
        """Return the gap over the active samples."""
        args = (self.u_a, self.c_a, self.y_a, self.upper_a, self.alpha_a, self.group_a, self.least, self.most)
        gap = float(extremes(*args))
        self.is_pressed = self.matrix.is_pressed
        self.is_finite = bool(np.isfinite(self.u_a.sum()))
        return gap if self.peers.is_alone else self._agree_on_extremes()

    def scan_all(self) -> float:
        """Return the gap over all samples, active or not."""
        parts = [self.u, self.c, self.dual.y, self.dual.upper, self.alpha, self.group]
        gap = float(extremes(*parts, self.least, self.most))
        return gap if self.peers.is_alone else self._agree_on_extremes()

    def _agree_on_extremes(self) -> float:
        """Make the extremes, and whether a cache is short or all is finite, those of all ranks; return the gap."""
        words = np.concatenate([self.least, -self.most, [-float(self.is_pressed) if self.is_finite else _BROKEN]])
        self.peers.lowest(words)
        self.least[:], self.most[:] = words[: self.n_groups], -words[self.n_groups : -1]
        self.is_pressed, self.is_finite = bool(words[-1]), bool(words[-1] > _BROKEN)
        return float((self.most - self.least).max())

    def worth(self) -> tuple[float, float]:
        """Return the dual objective and the duality gap; u must have just been refined."""
        return worth(self.dual, self.alpha, self.u, self.peers)

    # -- samples that move ---------------------------------------------------------------------------------------

    def columns(self) -> list[AnyArray]:
        """Return what there is for each sample of this rank, arrays whose last axis is that of the samples."""
        return [self.dual.y, self.dual.p, self.dual.upper, self.alpha, self.u, *self.exact.columns()]

    def take_columns(self, columns: list[AnyArray]) -> None:
        """Take the same of the samples that this rank has now."""
        y, p, upper, self.alpha, self.u, *rest = columns
        self.dual = replace(self.dual, y=y, p=p, upper=upper, alpha=self.alpha, u=None)
        self.group, self.c = self.dual.group, y * p
        self.exact.take_columns(rest)

    # -- what is told --------------------------------------------------------------------------------------------

    def lap(self, phase: str) -> None:
        """Charge to a phase what this rank has done since the last lap."""
        self._watch.lap(phase, self.matrix.n_evaluations)

    def record(self, event: str, gap: float) -> None:
        """Add an entry to the history."""
        n_hits, n_evaluations = self.matrix.n_hits + int(self.told[0]), self.matrix.n_evaluations + int(self.told[1])
        now, n_active, seconds = self.counts, self.matrix.n_active, time.perf_counter() - self.begin
        now.history.append(EliminationRecord(event, now.n_iter, n_active, gap, n_hits, n_evaluations, seconds))

    def solution(self, tol: float) -> Solution:
        """Return what was found; u must have just been refined. Every rank gets all of it."""
        self.lap("check")
        told = np.concatenate([[self.matrix.n_hits, self.matrix.n_evaluations], self.counts.work.told()])
        self.peers.add_up(told)
        self.counts.n_hits, self.counts.n_evaluations = int(told[0]), int(told[1])
        self.counts.work.hear(told[2:])
        args = self.dual, self.matrix.kernel, self.alpha, self.u
        return conclude(*args, tol=tol, counts=self.counts, peers=self.peers)
