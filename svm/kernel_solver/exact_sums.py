"""K(yα) of all samples in float64, for the proof at the end of a run.

Each sum is kept with the coefficients from which it was computed; an update needs the rows of the coefficients that
have changed since. So samples that were evaluated late in a run need no value twice. The rounding of all updates
accumulates, however: sums that were once far larger are summed again from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from dsgd.svm.kernels.cached_rows import add_rows_of_slabs
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.slabs import Slabs
from dsgd.types import AnyArray, FloatVector, IntVector

_SLABS = 8  # slabs of values that a thread takes at a time
_PART = 512  # samples that are looked at together
_PART_BYTES = 32 * 2**20  # and their values with those that have coefficients
_TOGETHER = 1024  # samples that are given coefficients, whose rows are then computed together
_FALLEN = 100.0  # sums that have been so many times as large have lost two digits to rounding


class ExactSums:
    """The sums u = K beta in float64, each with the coefficients it is right for.

    Samples may be divided among ranks. Vectors over samples are then over those of this rank, in the order of
    ``matrix.mine``, and all ranks call the methods together.
    """

    def __init__(self, matrix: KernelMatrix) -> None:
        self._matrix = matrix
        n = len(matrix.mine)
        self.u: FloatVector = np.zeros(n)
        self._group: IntVector = np.zeros(n, dtype=np.int64)
        self._states: list[FloatVector] = [np.zeros(n)]
        self._is_aside = np.zeros(n, dtype=np.bool_)
        self._largest = 0.0  # of all sums since they were added up from zero, on any rank

    def know(self, u: FloatVector, beta: FloatVector) -> None:
        """Take sums that are right for the coefficients `beta`, both of shape (n,)."""
        self.u = u.astype(np.float64)
        self._set_all(beta)

    def _set_all(self, beta: FloatVector) -> None:
        self._group[:] = 0
        self._states = [beta.copy()]
        self._is_aside[:] = False

    def _changes(self, beta: FloatVector) -> Iterator[tuple[IntVector, IntVector, FloatVector, bool]]:
        """Yield places of samples, sources and coefficients that renew their sums, and whether that is from zero."""
        peers, group = self._matrix.peers, self._groups()
        n_used, n_aside = peers.count(np.count_nonzero(beta), np.count_nonzero(self._is_aside))
        for number, state in enumerate(self._states):
            sources, coefs = peers.entries(beta - state)
            is_fresh = len(sources) > n_used  # from scratch is less work, and drops old rounding
            if is_fresh:
                sources, coefs = peers.entries(beta)
            yield np.flatnonzero(group == number), sources, coefs, is_fresh
        if n_aside:  # anywhere: all ranks take part in each product
            yield np.flatnonzero(group < 0), *peers.entries(beta), True

    def _groups(self) -> IntVector:
        """Return the groups of samples, −1 for those set aside."""
        return np.where(self._is_aside, -1, self._group)

    def columns(self) -> list[AnyArray]:
        """Return what there is for each sample of this rank, as vectors."""
        return [self.u, self._group, self._is_aside, *self._states]

    def take_columns(self, columns: list[AnyArray]) -> None:
        """Take the same of the samples that this rank has now."""
        self.u, self._group, self._is_aside, *self._states = columns

    def work(self, beta: FloatVector) -> int:
        """Return the kernel values that it takes to make the sums right for `beta`, on all ranks."""
        group, counts = self._groups(), [np.count_nonzero(beta), np.count_nonzero(self._is_aside)]
        for number, state in enumerate(self._states):
            counts += [np.count_nonzero(beta != state), np.count_nonzero(group == number)]
        n_sources, n_aside, *pairs = self._matrix.peers.count(*counts).tolist()
        return int(
            n_sources * n_aside + sum(min(n, n_sources) * m for n, m in zip(pairs[::2], pairs[1::2], strict=True))
        )

    def renew_all(self, beta: FloatVector) -> FloatVector:
        """Make all sums right for `beta`; return a copy of them."""
        mine = self._matrix.mine
        sizes = [np.abs(self.u).max(initial=0.0)]
        for places, sources, coefs, is_fresh in self._changes(beta):
            if is_fresh:
                self.u[places] = 0.0
            if len(sources):
                self.u[places] += self._matrix.product(mine[places], sources, coefs, np.float64)
        sizes.append(np.abs(self.u).max(initial=0.0))
        least = -np.array(sizes)
        self._matrix.peers.lowest(least)
        before, now = -least
        self._largest = max(self._largest, float(before), float(now))
        if self._largest > _FALLEN * now:
            sources, coefs = self._matrix.peers.entries(beta)
            self.u[:] = self._matrix.product(mine, sources, coefs, np.float64) if len(sources) else 0.0
            self._largest = float(now)
        self._set_all(beta)
        return self.u.copy()

    def renew(self, ids: IntVector, beta: FloatVector) -> FloatVector:
        """Make the sums of some samples of this rank right for `beta`, and return them."""
        peers = self._matrix.peers
        places = peers.place(ids)
        group = self._groups()[places]
        there = peers.count(*np.bincount(group + 1, minlength=len(self._states) + 1))
        for number in np.flatnonzero(there) - 1:
            ours = places[group == number]
            sources, coefs = peers.entries(beta - self._states[number] if number >= 0 else beta)
            if len(sources):
                self.u[ours] += self._matrix.product(self._matrix.mine[ours], sources, coefs, np.float64)
        self._know(places, beta)
        return self.u[places]

    def _know(self, places: IntVector, beta: FloatVector) -> None:
        """Note that the sums of some samples are right for `beta`."""
        self._is_aside[places] = False
        self._group[places] = len(self._states)
        self._states.append(beta.copy())

    def set_aside(self, ids: IntVector) -> None:
        """Keep the sums of samples, wherever they lie, at zero until they are looked at."""
        peers = self._matrix.peers
        self._is_aside[peers.place(peers.mine(ids))] = True

    def look(
        self, ids: IntVector, beta: FloatVector, choose: Callable[[IntVector, FloatVector], FloatVector] | None = None
    ) -> tuple[FloatVector, FloatVector]:
        """Make the sums of samples that were set aside right; some of them may be given coefficients.

        That goes by parts: the values that tell of a part are there when what its coefficients add to the sums of the
        samples before it is wanted. So a value between two samples with coefficients is computed once, with the later.
        Ranks look at each part together: its features travel, and each has the values with its own samples.

        - returned: the sums for `beta` of those of `ids` that lie here, and what the new coefficients add to
          all sums but those of samples set aside.
        """
        peers, mine = self._matrix.peers, self._matrix.mine
        added, ours = np.zeros(len(mine)), peers.mine(ids)
        places = peers.place(ours)
        if peers.count(np.count_nonzero(self._is_aside[places]))[0] != len(ids):  # a proof has looked at them since
            return self.renew(ours, beta), added
        chosen, u = np.zeros(len(mine)), np.empty(len(mine))
        sources = mine[np.flatnonzero(beta)]
        n_sources = peers.all_of(np.array([len(sources)])).ravel()
        columns = _Columns(self._matrix, sources, len(sources) + len(ids))
        given_lately = _Given(self._matrix, added)
        bystanders = mine[np.flatnonzero(~self._is_aside & (beta == 0.0))]
        start = 0
        while start < len(ids):
            # Each rank has its share of the columns, so that together they take so many more samples at a time.
            most = min(peers.size * _PART, _PART_BYTES // (8 * max(1, int(n_sources.max()))))
            part = ids[start : start + max(64, most)]
            stop = start + len(part)
            at, here, where = peers.place(sources), peers.mine(part), peers.find(part) >= 0
            both = np.stack([beta[at], chosen[at]])
            values, (u_part, added_part) = self._matrix.values(part, columns.held, both)
            u[peers.place(here)], added[peers.place(here)] = u_part[where], added_part[where]
            coefs = np.zeros(len(part)) if choose is None else choose(part, u_part)
            is_given = coefs != 0.0
            given = part[is_given]
            if len(given):
                added[at] += self._back(values, coefs)
                chosen[peers.place(peers.mine(given))] = coefs[is_given & where]
                n_sources = n_sources + peers.counts(given)
                sources = np.concatenate([sources, peers.mine(given)])
                columns.append(peers.mine(given))
            given_lately.note(part[~is_given], given, coefs[is_given])
            start = stop
        given_lately.settle()
        given, coefs = peers.entries(chosen)
        if len(given):  # all at once, as each time the rows of the bystanders have to be made ready
            added[peers.place(bystanders)] += self._matrix.product(bystanders, given, coefs, np.float64)
        self.u[places] = u[places]
        self._know(places, beta)
        self.u += added
        for state in self._states:
            state += chosen
        return u[places], added

    def _back(self, values: Slabs, coefs: FloatVector) -> FloatVector:
        """Return K' coefs, shape (n,)."""
        sums: FloatVector = np.zeros(values.bounds[-1])
        rows = np.flatnonzero(coefs)  # most are zero, and values are read from far
        args = (sums, *values, rows, coefs[rows])
        pool = self._matrix.pool
        pool.slabs(lambda start, stop: add_rows_of_slabs(*args, start, stop), len(values.bounds) - 1, _SLABS)
        return sums


class _Columns:
    """Samples with coefficients, their rows ready; those that come in small numbers are held together."""

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
    """

    def __init__(self, matrix: KernelMatrix, added: FloatVector) -> None:
        self._matrix, self._added = matrix, added
        self._before: IntVector = np.empty(0, dtype=np.int64)  # of this rank
        self._parts: list[tuple[IntVector, IntVector, FloatVector]] = []

    def note(self, others: IntVector, given: IntVector, coefs: FloatVector) -> None:
        """Take the next part: samples without coefficients, those with new ones, and these."""
        self._parts.append((self._matrix.peers.mine(others), given, coefs))
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
            places = self._matrix.peers.place(targets)
            self._added[places] += self._matrix.product(targets, given, coefs, np.float64)
