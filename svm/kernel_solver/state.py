"""The state of a run of the block solver: variables, indicators, active samples, counts.

Arrays named ``*_a`` hold the active samples that lie here, in the order of ``matrix.active``. The dual and `alpha` are
known to every rank for all samples; `u` is right for those that lie here.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dsgd.svm.kernel_solver.elimination import EliminationRecord
from dsgd.svm.kernel_solver.exact_sums import ExactSums
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution, conclude, worth
from dsgd.svm.kernel_solver.smo import extremes
from dsgd.svm.kernel_solver.work import Watch
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

__all__ = ["State"]

#: Sent in place of the flag of a short cache if an indicator is not finite.
_BROKEN = -2.0


class State:
    """The state of a run.

    Parameters
    ----------
    dual : Dual
        The problem.
    matrix : KernelMatrix
        Kernel values among its samples.
    """

    def __init__(self, dual: Dual, matrix: KernelMatrix) -> None:
        self.dual, self.matrix, self.peers = dual, matrix, matrix.peers
        self.n_groups, self.group = dual.n_groups, dual.group
        self.c = dual.y * dual.p
        self.alpha: FloatMatrix = dual.alpha.astype(np.float64)
        self.u: FloatVector = np.zeros(matrix.n)
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
        elif self.alpha.any():
            self.refine()
        self.load_active()

    def beta(self) -> FloatVector:
        """Return Σ yα by sample."""
        total: FloatVector = (self.dual.y * self.alpha).sum(axis=0)
        return total

    def refine(self) -> None:
        """Set u to K(yα) in float64."""
        self.u = self.exact.renew_all(self.beta())

    def set_alpha(self, chosen: IntVector, alpha: FloatVector) -> None:
        """Set variables by number; variable v of sample i has the number v n + i."""
        self.alpha.reshape(-1)[chosen] = alpha
        position = self.matrix.position[chosen % self.matrix.n]
        here = position >= 0
        self.alpha_a[chosen[here] // self.matrix.n, position[here]] = alpha[here]

    def store_active(self) -> None:
        """Write u of the active samples back."""
        self.u[self.matrix.active] = self.u_a

    def load_active(self) -> None:
        """Take the arrays of the active samples."""
        active = self.matrix.active

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
        if not self.peers.is_alone:
            parts = [np.ascontiguousarray(part[..., self.matrix.mine]) for part in parts]
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
        self._share_sums()
        return worth(self.dual, self.alpha, self.u)

    def _share_sums(self) -> None:
        """Let every rank know u of all samples."""
        if not self.peers.is_alone:
            there = np.setdiff1d(np.arange(self.matrix.n), self.matrix.mine)
            self.u[there] = 0.0
            self.peers.add_up(self.u)

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
        self._share_sums()
        self.lap("check")
        told = np.concatenate([[self.matrix.n_hits, self.matrix.n_evaluations], self.counts.work.told()])
        self.peers.add_up(told)
        self.counts.n_hits, self.counts.n_evaluations = int(told[0]), int(told[1])
        self.counts.work.hear(told[2:])
        return conclude(self.dual, self.matrix.kernel, self.alpha, self.u, tol=tol, counts=self.counts)
