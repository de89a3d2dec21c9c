"""The state of a run of the block solver: variables, indicators, exact sums; and how ranks find the worst violators.

**The best candidates of all ranks** (`BestLists`). A block takes the worst violators of all samples, which are divided
among P ranks. Each rank can offer its own worst ones, but to hand all offers to all ranks takes P - 1 messages, and
every rank then sorts P lists to find one.

A list holds the best candidates of some ranks, by key and, of equal keys, by number. Of two such lists the best
of both together are a list of the same length, in whichever order ranks are taken. So the lists are combined as numbers
are in a sum, by recursive doubling, and every rank ends with the same one: what sorting all offers would give. Words
that follow the lists are added up.

Cost: ceil(log2 P) messages of all lists, 16 bytes for each candidate that there is room for and 8 for each number that
is told of it, and one or two more where P is no power of two (`dsgd.collectives.cost.allreduce_cost`). Merging two
lists takes as many steps as there is room.

**Exact sums** (`ExactSums`): K(yα) of all samples in float64, for the proof at the end of a run. Each sum is kept with
the coefficients from which it was computed; an update needs the rows of the coefficients that have changed since. So
samples that were evaluated late in a run need no value twice. The rounding of all updates accumulates, however: sums
that were once far larger are summed again from zero.

**The state** (`State`). Each rank has the dual, the variables and the indicators of the samples that lie here, in the
order of ``matrix.mine``. Arrays named ``*_a`` hold those of them that are active, in the order of ``matrix.active``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from dsgd.kernels.jit import kernel
from dsgd.svm.kernel_solver.elimination import EliminationRecord, Watch
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution, conclude, worth
from dsgd.svm.kernel_solver.smo import extremes
from dsgd.svm.kernels.cache import add_rows_of_slabs
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.products import Slabs
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector


def best(keys: FloatVector, numbers: IntVector, most: int) -> tuple[FloatVector, IntVector]:
    """Return at most `most` smallest keys and their numbers; of equal keys the smaller number is better."""
    some = best_of(keys, numbers, most)
    return keys[some], numbers[some]


def best_of(keys: FloatVector, numbers: IntVector, most: int) -> IntVector:
    """Return the places of what `best` returns."""
    some = np.arange(len(keys))
    if len(keys) > most:
        last = np.partition(keys, most - 1)[most - 1]
        under, level = np.flatnonzero(keys < last), np.flatnonzero(keys == last)
        n_more = most - len(under)
        if len(level) > n_more:
            level = level[np.argpartition(numbers[level], n_more - 1)[:n_more]]
        some = np.concatenate([under, level])
    found: IntVector = some[np.lexsort((numbers[some], keys[some]))]
    return found


@kernel
def merge(a, b, ends, n_words, out):  # type: ignore[no-untyped-def]
    """Set `out` to the best of the lists in `a` and `b`, and to the sums of what follows them; see `BestLists`."""
    size = ends[-1]
    for t in range(len(ends) - 1):
        i, j = ends[t], ends[t]
        for k in range(ends[t], ends[t + 1]):
            if a[i] < b[j] or (a[i] == b[j] and a[size + i] <= b[size + j]):
                for w in range(n_words):
                    out[w * size + k] = a[w * size + i]
                i += 1
            else:
                for w in range(n_words):
                    out[w * size + k] = b[w * size + j]
                j += 1
    for k in range(n_words * size, len(out)):
        out[k] = a[k] + b[k]


@dataclass(frozen=True)
class BestLists:
    """What ranks say to find the best of all: some lists, and words that are added up; combines two such vectors.

    It is an operation of `dsgd.collectives.Group.allreduce`: commutative and associative to the last bit, as far as the
    added words are.

    Examples
    --------
    >>> lists = BestLists((2, 1))
    >>> ours = lists.pack([([1.0, 3.0], [5, 2]), ([], [])], [1.0])
    >>> theirs = lists.pack([([2.0], [4]), ([7.0], [9])], [2.0])
    >>> lists.unpack(lists(ours, theirs))
    ([(array([1., 2.]), array([5, 4])), (array([7.]), array([9]))], array([3.]))
    """

    rooms: tuple[int, ...]
    n_told: int = 0

    @cached_property
    def _ends(self) -> IntVector:
        return np.array([0, *accumulate(self.rooms)], dtype=np.int64)

    @property
    def _n_words(self) -> int:
        return 2 + self.n_told

    def pack(self, lists: Sequence[tuple[AnyArray, ...]], added: AnyArray) -> FloatVector:
        """Return sorted lists of keys, numbers (exact up to 2**53) and what is told, and words, in one vector."""
        size = int(self._ends[-1])
        words = np.zeros(self._n_words * size + len(added))
        words[:size] = np.inf
        for start, columns in zip(self._ends, lists, strict=False):
            for first, column in zip(range(int(start), self._n_words * size, size), columns, strict=True):
                words[first : first + len(column)] = column
        words[self._n_words * size :] = added
        return words

    def unpack(self, words: FloatVector) -> tuple[list[tuple[AnyArray, ...]], FloatVector]:
        """Return the lists and the words of a vector."""
        size, lists = int(self._ends[-1]), []
        for start, stop in pairwise(self._ends):
            n = int(np.count_nonzero(np.isfinite(words[start:stop])))
            keys, numbers, *told = (words[w * size + start :][:n].copy() for w in range(self._n_words))
            lists.append((keys, numbers.astype(np.int64), *told))
        return lists, words[self._n_words * size :]

    def __call__(self, a: AnyArray, b: AnyArray, out: AnyArray | None = None) -> AnyArray:
        """Return two vectors combined, or as many pairs of them, shape (..., n); `out` may be one of them."""
        found = np.empty_like(a)
        n = a.shape[-1]
        for one, other, both in zip(a.reshape(-1, n), b.reshape(-1, n), found.reshape(-1, n), strict=True):
            merge(one, other, self._ends, self._n_words, both)
        if out is None:
            return found
        out[...] = found
        return out


_SLABS = 8  # slabs of values that a thread takes at a time
_PART = 512  # samples that are looked at together
_PART_BYTES = 32 * 2**20  # and their values with those that have coefficients
_TOGETHER = 1024  # samples that are given coefficients, whose rows are then computed together
_FALLEN = 100.0  # sums that have been so many times as large have lost two digits to rounding


class ExactSums:
    """The sums u = K beta of samples of this rank, in float64, each with the coefficients it is right for."""

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
    """Adds what given samples, many at a time, add to the sums of samples without coefficients."""

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
        """Set variables, of any ranks, by number v n + i, from one value to another; `upper` are their bounds."""
        n = self.matrix.n
        if self.peers.is_alone:
            self.alpha.reshape(-1)[chosen] = after
        else:
            place = self.peers.find(chosen % n)
            ours = place >= 0
            self.alpha[chosen[ours] // n, place[ours]] = after[ours]
        position = self.matrix.where(chosen % n)
        here = position >= 0
        self.alpha_a[chosen[here] // n, position[here]] = after[here]
        if not self.peers.is_alone:
            self._total += float((after - before).sum())
            was_free, is_free = ((part > 0) & (part < upper) for part in (before, after))
            self._n_free += int(np.count_nonzero(is_free)) - int(np.count_nonzero(was_free))

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
