"""K(yα) of all samples in float64: the proof that a run ends with, from what is known already.

For each sample the sum is kept with the coefficients that it was computed from; to renew it takes the rows of those
that have changed since. Samples that were looked at late in a run so cost no value again that they have had.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dsgd.svm.kernel_matrix import KernelMatrix
from dsgd.types import FloatVector, IntVector

__all__ = ["ExactSums"]


class ExactSums:
    """The sums u = K beta in float64, each with the coefficients it is right for.

    Parameters
    ----------
    matrix : KernelMatrix
        Kernel values; samples may be divided among ranks, whose sums are right where they lie.
    """

    def __init__(self, matrix: KernelMatrix) -> None:
        self._matrix = matrix
        self.u: FloatVector = np.zeros(matrix.n)
        self._group: IntVector = np.zeros(matrix.n, dtype=np.int64)
        self._states: list[FloatVector] = [np.zeros(matrix.n)]

    def know(self, u: FloatVector, beta: FloatVector) -> None:
        """Take sums of all samples that are right for the coefficients `beta`, both of shape (n,)."""
        self.u = u.astype(np.float64)
        self._set_all(beta)

    def _set_all(self, beta: FloatVector) -> None:
        self._group[:] = 0
        self._states = [beta.copy()]

    def _changes(self, beta: FloatVector) -> Iterator[tuple[IntVector, IntVector, FloatVector, bool]]:
        """Yield ids of this rank, the sources and coefficients that renew their sums, and whether that is from zero."""
        mine = self._matrix.mine
        group = self._group[mine]
        for number, state in enumerate(self._states):
            change = beta - state
            sources = np.flatnonzero(change)
            if len(sources) > np.count_nonzero(beta):  # from scratch is less work, and drops old rounding
                yield mine[group == number], np.flatnonzero(beta), beta, True
            else:
                yield mine[group == number], sources, change, False

    def work(self, beta: FloatVector) -> int:
        """Return the kernel values that it takes to make the sums right for `beta`, on all ranks."""
        if len(self._states) == 1:  # the same number everywhere
            ((_, sources, _, _),) = self._changes(beta)
            return self._matrix.n * len(sources)
        return sum(len(ids) * len(sources) for ids, sources, _, _ in self._changes(beta))

    def renew_all(self, beta: FloatVector) -> FloatVector:
        """Make all sums right for `beta`; return a copy of them."""
        for ids, sources, coefs, is_fresh in list(self._changes(beta)):
            if is_fresh:
                self.u[ids] = 0.0
            if len(sources):
                self.u[ids] += self._matrix.product(ids, sources, coefs[sources], np.float64)
        self._set_all(beta)
        return self.u.copy()

    def renew_first(self, ids: IntVector, beta: FloatVector) -> FloatVector:
        """Make the sums of samples that were never renewed by themselves right for `beta`; return them."""
        change = beta - self._states[0]
        sources = np.flatnonzero(change)
        if len(sources):
            self.u[ids] += self._matrix.product(ids, sources, change[sources], np.float64)
        self._group[ids] = len(self._states)
        self._states.append(beta.copy())
        return self.u[ids]

    def add(self, sources: IntVector, coefs: FloatVector) -> FloatVector:
        """Take in new coefficients of samples that never had any; return what that adds to all sums, shape (n,)."""
        change = self._matrix.product(self._matrix.mine, sources, coefs, np.float64)
        self.u += change
        for state in self._states:
            state[sources] += coefs
        return change
