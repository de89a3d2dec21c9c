"""K(yα) of all samples in float64, for the proof at the end of a run.

Each sum is kept with the coefficients from which it was computed; an update needs the rows of the coefficients that
have changed since. So samples that were evaluated late in a run need no value twice. The rounding of all updates
accumulates, however: sums that were once far larger are summed again from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from dsgd.svm.kernels.cached_rows import add_rows_of_slabs
from dsgd.svm.kernels.matrix import KernelMatrix, Slabs
from dsgd.types import FloatVector, IntVector

__all__ = ["ExactSums"]

_SLABS = 8  # slabs of values that a thread takes at a time
_PART = 512  # samples that are looked at together
_PART_BYTES = 32 * 2**20  # and their values with those that have coefficients
_TOGETHER = 1024  # samples that are given coefficients, whose rows are then computed together
_FALLEN = 100.0  # sums that have been so many times as large have lost two digits to rounding


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
        self._is_aside = np.zeros(matrix.n, dtype=np.bool_)
        self._largest = 0.0  # of all sums since they were added up from zero, on any rank

    def know(self, u: FloatVector, beta: FloatVector) -> None:
        """Take sums of all samples that are right for the coefficients `beta`, both of shape (n,)."""
        self.u = u.astype(np.float64)
        self._set_all(beta)

    def _set_all(self, beta: FloatVector) -> None:
        self._group[:] = 0
        self._states = [beta.copy()]
        self._is_aside[:] = False

    def _changes(self, beta: FloatVector) -> Iterator[tuple[IntVector, IntVector, FloatVector, bool]]:
        """Yield ids of this rank, the sources and coefficients that renew their sums, and whether that is from zero."""
        mine = self._matrix.mine
        group = self._groups_of(mine)
        for number, state in enumerate(self._states):
            change = beta - state
            sources = np.flatnonzero(change)
            if len(sources) > np.count_nonzero(beta):  # from scratch is less work, and drops old rounding
                yield mine[group == number], np.flatnonzero(beta), beta, True
            else:
                yield mine[group == number], sources, change, False
        if self._is_aside.any():  # anywhere: all ranks take part in each product
            yield mine[group < 0], np.flatnonzero(beta), beta, True

    def _groups_of(self, ids: IntVector) -> IntVector:
        """Return the groups of samples, −1 for those set aside."""
        return np.where(self._is_aside[ids], -1, self._group[ids])

    def work(self, beta: FloatVector) -> int:
        """Return the kernel values that it takes to make the sums right for `beta`, on all ranks."""
        n_sources = int(np.count_nonzero(beta))
        work = n_sources * int(np.count_nonzero(self._is_aside))
        for number, state in enumerate(self._states):
            n_changed = int(np.count_nonzero(beta != state))
            work += min(n_changed, n_sources) * int(np.count_nonzero((self._group == number) & ~self._is_aside))
        return work

    def renew_all(self, beta: FloatVector) -> FloatVector:
        """Make all sums right for `beta`; return a copy of them."""
        mine, used = self._matrix.mine, np.flatnonzero(beta)
        sizes = [np.abs(self.u[mine]).max(initial=0.0)]
        for ids, sources, coefs, is_fresh in list(self._changes(beta)):
            if is_fresh:
                self.u[ids] = 0.0
            if len(sources):
                self.u[ids] += self._matrix.product(ids, sources, coefs[sources], np.float64)
        sizes.append(np.abs(self.u[mine]).max(initial=0.0))
        least = -np.array(sizes)
        self._matrix.peers.lowest(least)
        before, now = -least
        self._largest = max(self._largest, float(before), float(now))
        if self._largest > _FALLEN * now:
            self.u[mine] = self._matrix.product(mine, used, beta[used], np.float64) if len(used) else 0.0
            self._largest = float(now)
        self._set_all(beta)
        return self.u.copy()

    def renew(self, ids: IntVector, beta: FloatVector) -> FloatVector:
        """Make the sums of some samples, wherever they lie, right for `beta`; return those of all of them."""
        group = self._groups_of(ids)
        for number in np.unique(group):
            some = ids[group == number]
            change = beta - self._states[number] if number >= 0 else beta
            sources = np.flatnonzero(change)
            if len(sources):
                ours = self._matrix.peers.mine(some)
                self.u[ours] += self._matrix.product(ours, sources, change[sources], np.float64)
        self._is_aside[ids] = False
        self._group[ids] = len(self._states)
        self._states.append(beta.copy())
        return self.u[ids]

    def set_aside(self, ids: IntVector) -> None:
        """Keep the sums of samples at zero until they are looked at."""
        self._is_aside[ids] = True

    def look(
        self, ids: IntVector, beta: FloatVector, choose: Callable[[IntVector, FloatVector], FloatVector] | None = None
    ) -> tuple[FloatVector, FloatVector]:
        """Make the sums of samples that were set aside right; some of them may be given coefficients.

        That goes by parts: the values that tell of a part are there when what its coefficients add to the sums of the
        samples before it is wanted. So a value between two samples with coefficients is computed once, with the later.
        Ranks look at each part together: its features travel, and each has the values with its own samples.

        Parameters
        ----------
        ids : int64 array, shape (m,)
            Samples, without coefficients.
        beta : array, shape (n,)
            Coefficients.
        choose : callable or None
            ``choose(part, u)`` returns new coefficients of some of the samples, their sums for `beta` being u, the same
            on all ranks; None gives none.

        Returns
        -------
        u, change : arrays, shape (m,) and (n,)
            The sums of `ids` for `beta`, and what the new coefficients add to all sums but those of samples set aside;
            right where the samples lie.
        """
        added, u = np.zeros(self._matrix.n), np.empty(len(ids))
        if not self._is_aside[ids].all():  # a proof has looked at them since
            return self.renew(ids, beta), added
        chosen, peers = np.zeros(self._matrix.n), self._matrix.peers
        n_sources = peers.counts(np.flatnonzero(beta))
        sources = peers.mine(np.flatnonzero(beta))
        columns = _Columns(self._matrix, sources, len(sources) + len(ids))
        given_lately = _Given(self._matrix, added)
        bystanders = np.flatnonzero(~self._is_aside & (beta == 0.0))
        start = 0
        while start < len(ids):
            # Each rank has its share of the columns, so that together they take so many more samples at a time.
            most = min(peers.size * _PART, _PART_BYTES // (8 * max(1, int(n_sources.max()))))
            part = ids[start : start + max(64, most)]
            stop = start + len(part)
            both = np.stack([beta[sources], chosen[sources]])
            values, (u[start:stop], added[part]) = self._matrix.values(part, columns.held, both)
            coefs = np.zeros(len(part)) if choose is None else choose(part, u[start:stop])
            is_given = coefs != 0.0
            given = part[is_given]
            if len(given):
                added[sources] += self._back(values, coefs)
                chosen[given] = coefs[is_given]
                n_sources += peers.counts(given)
                sources = np.concatenate([sources, peers.mine(given)])
                columns.append(peers.mine(given))
            given_lately.note(part[~is_given], given, coefs[is_given])
            start = stop
        given_lately.settle()
        given = np.flatnonzero(chosen)
        if len(given):  # all at once, as each time the rows of the bystanders have to be made ready
            bystanders = peers.mine(bystanders)
            added[bystanders] += self._matrix.product(bystanders, given, chosen[given], np.float64)
        self.u[ids] = u
        self._is_aside[ids] = False
        self._group[ids] = len(self._states)
        self._states.append(beta.copy())
        self.u += added
        for state in self._states:
            state += chosen
        return u, added

    def _back(self, values: Slabs, coefs: FloatVector) -> FloatVector:
        """Return K' coefs, shape (n,)."""
        sums: FloatVector = np.zeros(values.bounds[-1])
        rows = np.flatnonzero(coefs)  # most are zero, and values are read from far
        args = (sums, *values, rows, coefs[rows])
        pool = self._matrix.pool
        pool.slabs(lambda start, stop: add_rows_of_slabs(*args, start, stop), len(values.bounds) - 1, _SLABS)
        return sums


class _Columns:
    """Samples with coefficients, their rows ready; those that come in small numbers are held together.

    Parameters
    ----------
    matrix : KernelMatrix
        Kernel values.
    samples : int64 array, shape (m,)
        The first ones.
    n_most : int
        Samples there may come to be.
    """

    def __init__(self, matrix: KernelMatrix, samples: IntVector, n_most: int) -> None:
        self._matrix, self._n_most = matrix, n_most
        self.held = [matrix.hold(samples, n_most)]

    def append(self, samples: IntVector) -> None:
        """Add samples at the end."""
        if len(self.held) > 1 and len(self.held[-1].ids) < _TOGETHER:
            samples = np.concatenate([self.held.pop().ids, samples])
        self.held.append(self._matrix.hold(samples, self._n_most))


class _Given:
    """Adds to the sums of samples without coefficients what those add that were given some, many of these at a time.

    A sample has met those of the parts before its own already, and those with coefficients have met each other, but for
    those of one part.

    Parameters
    ----------
    matrix : KernelMatrix
        Kernel values.
    added : array, shape (n,)
        The sums; changed.
    """

    def __init__(self, matrix: KernelMatrix, added: FloatVector) -> None:
        self._matrix, self._added = matrix, added
        self._before: IntVector = np.empty(0, dtype=np.int64)
        self._parts: list[tuple[IntVector, IntVector, FloatVector]] = []

    def note(self, others: IntVector, given: IntVector, coefs: FloatVector) -> None:
        """Take the next part: samples without coefficients, those with new ones, and these."""
        self._parts.append((others, given, coefs))
        if sum(len(given) for _, given, _ in self._parts) >= _TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Add all that is outstanding."""
        for number, (others, given, coefs) in enumerate(self._parts):
            targets = np.concatenate([self._before, others]) if number == 0 else others
            if number == len(self._parts) - 1:  # both at once
                targets = np.concatenate([targets, given])
            else:
                self._add(given, given, coefs)
            self._add(targets, *(np.concatenate([part[k] for part in self._parts[number:]]) for k in (1, 2)))
        self._before = np.concatenate([self._before, *(others for others, _, _ in self._parts)])
        self._parts = []

    def _add(self, targets: IntVector, given: IntVector, coefs: FloatVector) -> None:
        if len(given):
            targets = self._matrix.peers.mine(targets)
            self._added[targets] += self._matrix.product(targets, given, coefs, np.float64)
