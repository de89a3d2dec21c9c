"""Pairs of classes dealt out to the ranks of a gang, each of them solved by one rank alone.

Problem: one against one, k classes make k(k − 1)/2 problems that do not depend on each other. All ranks together gain
little on a small one: its block, its steps and its messages are not divided.

Method: where the rows of all ranks are few bytes, every rank is sent all of them, once. Pairs go to ranks by predicted
cost, the longest first, each to the rank with the least so far (Graham, "Bounds on multiprocessing timing anomalies",
SIAM Journal on Applied Mathematics 1969: at most 4/3 of the shortest time). A rank trains its pairs as a fit in one
process does. Every second the ranks meet, in the middle of a pair where need be, and deal anew what nobody has
begun, as costs are only predicted. Rank 0 collects the solutions.

Cost: the rows, to every rank; a word for each pair at each meeting; for each pair two numbers a support vector, seven
for each record of its run, two for each corner of its calibration curve, and some twenty more. The seconds of its
phases stay where they were spent.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

from dsgd.ledger import COMPUTE
from dsgd.svm.distributed.kernel import Gang
from dsgd.svm.kernel_solver.elimination import EVENTS, EliminationRecord
from dsgd.svm.kernel_solver.problem import Counts, Solution
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

#: Samples of the largest pair, at most: larger ones gain from the cores and the caches of all ranks.
_LARGEST: Final = 20_000
#: Up to so many samples two ranks together take longer for a pair than one alone (`svm/cluster` of the benchmarks).
_SMALL: Final = 4000
#: The most that a rank may have to do with larger ones, in units of the mean: what ranks lose that solve them together.
_MOST_LOAD: Final = 1.5
#: Seconds after which ranks meet, much fewer than one waits for another that says nothing.
_MEET_S: Final = 1.0
#: What a pair may be: nobody's yet, trained by some rank now, or trained.
_LEFT, _BEGUN, _FOUND = 0, 1, 2

_COUNTS: Final = ("n_iter", "n_rounds", "n_eliminated", "n_reconstructions", "n_returned", "n_evaluations", "n_hits")
_SCALARS: Final = ("gap", "duality_gap", "objective", "converged")


@dataclass(slots=True)  # not frozen, as `EliminationRecord`
class TrainedPair:
    """What is kept of a pair of classes; `curve` has A and B of a sigmoid, or the corners of a monotone curve."""

    samples: IntVector
    beta: FloatVector
    solution: Solution
    curve: FloatMatrix | None


def deal(costs: Sequence[float] | FloatVector, n_ranks: int) -> list[IntVector]:
    """Return the problems of each rank: the longest first, each to the rank with the least so far."""
    dealt: list[list[int]] = [[] for _ in range(n_ranks)]
    loads = [(0.0, rank) for rank in range(n_ranks)]
    for number in np.argsort(-np.asarray(costs, dtype=np.float64), kind="stable").tolist():
        load, rank = heapq.heappop(loads)
        dealt[rank].append(number)
        heapq.heappush(loads, (load + float(costs[number]), rank))
    return [np.array(numbers, dtype=np.int64) for numbers in dealt]


def dealer_of(gang: Gang, X: Any, model: Any, codes: AnyArray) -> Dealer | None:
    """Return what deals the pairs of a model out; None where all ranks had better solve one after the other.

    Pairs are dealt out if all are small, or none is large and ranks can share them well; and if the rows of all ranks
    take at most the bytes that a rank may spend on kernel values. A fit that keeps its variables keeps those of one
    pair at a time.
    """
    size, n_classes = gang.rank.size, len(model.classes_)
    if n_classes < 3 or model.solver != "block" or gang.progress.is_wanted:
        return None
    counts = np.bincount(codes[gang.weights > 0], minlength=n_classes)
    sizes = np.array([counts[a] + counts[b] for a, b in combinations(range(n_classes), 2)])
    costs = predict_costs(sizes)
    loads = [costs[numbers].sum() for numbers in deal(costs, size)]
    most = _LARGEST if max(loads) <= _MOST_LOAD * float(np.mean(loads)) else _SMALL
    if sizes.max() > most:
        return None
    return Dealer(gang) if gang.count_bytes(X) <= model._cache_bytes() else None


def predict_costs(sizes: AnyArray) -> FloatVector:
    """Return what pairs of so many samples take, in any unit, if a like share of each are support vectors."""
    return np.square(sizes, dtype=np.float64)


class Dealer:
    """The ranks that pairs are dealt out to, as one of them sees them."""

    def __init__(self, gang: Gang) -> None:
        self.rank, self.size = gang.rank, gang.rank.size
        self._since = self._met_s = self.rank.ledger.clock()
        self._costs: FloatVector = np.empty(0)
        self._state = np.empty(0, dtype=np.int64)
        self._ours: dict[int, None] = {}  # the pairs that this rank is to begin, in order
        # Threads that train side by side begin and end pairs, and one of them speaks with the other ranks.
        self._lock = threading.Lock()
        #: Whether no rank speaks: before the first pair, and once a meeting has seen that all are found.
        self._is_over = True

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank.number == 0

    def publish(self, event: Mapping[str, Any]) -> None:
        """Tell who watches the fit; any thread may."""
        with self._lock:
            self.rank.publish(event)

    def run(self, sizes: IntVector, train_all: Callable[[IntVector], None]) -> None:
        """Have all pairs trained, some of them here."""
        self._costs, self._state = predict_costs(sizes), np.full(len(sizes), _LEFT)
        ledger = self.rank.ledger
        ledger.begin_round("pairs")
        self._deal()
        self._is_over = False
        while not self._is_over:  # all ranks leave after the same meeting
            if self._ours:
                train_all(np.array(list(self._ours)))
                continue
            with self._lock:
                self._meet()
        ledger.charge(COMPUTE, ledger.clock() - self._since)
        ledger.end_round()

    def begin(self, number: int) -> bool:
        """Return whether a pair is to be trained here: it may have been dealt to another rank by now."""
        with self._lock:
            if number not in self._ours:
                return False
            del self._ours[number]
            self._state[number] = _BEGUN
            return True

    def end(self, number: int) -> None:
        """Note that a pair has been trained."""
        with self._lock:
            self._state[number] = _FOUND

    def check(self) -> None:
        """Raise `AbortedError` if the job has stopped; called every now and then while a pair is trained."""
        self.rank.check()
        if self.rank.ledger.clock() - self._met_s >= _MEET_S and self._lock.acquire(blocking=False):
            try:
                if not self._is_over:
                    self._meet()
            finally:
                self._lock.release()

    def _meet(self) -> None:
        """Tell the other ranks which pairs are begun and found, and deal those that are left."""
        ledger = self.rank.ledger
        ledger.charge(COMPUTE, ledger.clock() - self._since)
        self.rank.group.allreduce(self._state, "max")
        ledger.end_round()
        self._since = self._met_s = ledger.clock()
        ledger.begin_round("pairs")
        self._is_over = bool((self._state == _FOUND).all())
        self._deal()

    def _deal(self) -> None:
        left = np.flatnonzero(self._state == _LEFT)
        self._ours = dict.fromkeys(left[deal(self._costs[left], self.size)[self.rank.number]].tolist())

    def collect(self, found: Sequence[TrainedPair | None]) -> list[TrainedPair] | None:
        """Return the pairs of all ranks on rank 0, and None on the others."""
        ledger = self.rank.ledger
        ledger.begin_round("collect")
        ours = [(number, pair) for number, pair in enumerate(found) if pair is not None]
        vectors = self.rank.group.gather(np.concatenate([np.empty(0), *(_pack(*numbered) for numbered in ours)]))
        ledger.end_round()
        if vectors is None:
            return None
        pairs = dict(ours)
        for vector in vectors[1:]:
            pairs.update(_unpack(vector))
        return [pairs[number] for number in range(len(found))]


def _pack(number: int, pair: TrainedPair) -> FloatVector:
    """Return a pair and its number as float64, which holds all whole numbers that are in it."""
    solution, counts = pair.solution, pair.solution.counts
    curve = np.empty(0) if pair.curve is None else pair.curve.ravel()
    lengths = [len(pair.samples), len(counts.history), len(solution.thresholds), len(curve)]
    records = [(float(EVENTS.index(record.event)), *astuple(record)[1:]) for record in counts.history]
    return np.concatenate(
        [
            np.array([number, *lengths], dtype=np.float64),
            np.array([getattr(solution, name) for name in _SCALARS], dtype=np.float64),
            np.array([getattr(counts, name) for name in _COUNTS], dtype=np.float64),
            np.array(records, dtype=np.float64).ravel(),
            solution.thresholds,
            curve,
            pair.samples,
            pair.beta,
        ]
    )


def _unpack(vector: FloatVector) -> Iterator[tuple[int, TrainedPair]]:
    """Yield the pairs of a rank and their numbers."""
    at = 0

    def take(n: int) -> FloatVector:
        nonlocal at
        at += n
        return vector[at - n : at]

    while at < len(vector):
        number, n_samples, n_records, n_thresholds, n_curve = take(5).astype(np.int64).tolist()
        gap, duality_gap, objective, converged = take(len(_SCALARS)).tolist()
        counts = Counts(**dict(zip(_COUNTS, take(len(_COUNTS)).astype(np.int64).tolist(), strict=True)))
        for event, n_iter, n_active, within, hits, values, now in take(7 * n_records).reshape(-1, 7).tolist():
            record = EliminationRecord(
                EVENTS[int(event)], int(n_iter), int(n_active), within, int(hits), int(values), now
            )
            counts.history.append(record)
        thresholds, curve = take(n_thresholds), take(n_curve).reshape(2, -1)
        samples, beta = take(n_samples).astype(np.int64), take(n_samples)
        solution = Solution(
            np.empty((1, 0)), np.empty(0), thresholds, gap, duality_gap, objective, bool(converged), counts
        )
        yield number, TrainedPair(samples, beta, solution, curve if n_curve else None)
