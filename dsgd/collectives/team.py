"""A team: the threads of a process, and the other ranks of its gang, that share passes over rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.ledger import COMPUTE
from dsgd.local.shard import split
from dsgd.types import AnyArray, FloatVector

if TYPE_CHECKING:
    from dsgd.collectives.group import Group


class Team:
    """Threads that share the rows of a pass, results being added up in the order of the rows; and the other ranks."""

    def __init__(
        self,
        n_threads: int = 1,
        group: Group | None = None,
        check: Callable[[], None] | None = None,
        listener: Callable[[float, float], None] | None = None,
    ) -> None:
        self.n_threads = n_threads
        #: Among how many ranks the rows are divided, the number of this one, and whether it is rank 0, which adds to
        #: sums what all ranks know.
        self.n_ranks, self.number = (1, 0) if group is None else (group.size, group.rank)
        self.leads = self.number == 0
        self._group, self._check, self._listener = group, check, listener
        self._pool = ThreadPoolExecutor(n_threads, "dsgd-linear") if n_threads > 1 else None
        if group is not None:
            group.ledger.begin_round("setup")  # ranks begin when their workers do
            group.barrier()
            group.ledger.end_round()
            self._since = group.ledger.clock()

    @contextlib.contextmanager
    def _exchange(self, group: Group) -> Iterator[None]:
        """Keep the ledger of an exchange: what was done since the last one was computation."""
        if self._check is not None:
            self._check()
        ledger = group.ledger
        ledger.begin_round("sync")
        if ledger.timing:
            ledger.charge(COMPUTE, ledger.clock() - self._since)
        yield
        ledger.end_round()
        self._since = ledger.clock()

    def add_up(self, vector: FloatVector) -> FloatVector:
        """Return the vector after adding up those of all ranks in place, equal on all of them to the last bit."""
        if self._group is not None:
            with self._exchange(self._group):
                self._group.allreduce(vector)
        return vector

    def totals(self, *numbers: float) -> tuple[float, ...]:
        """Return the sums over ranks of some numbers."""
        return numbers if self._group is None else tuple(self.add_up(np.array(numbers, np.float64)).tolist())

    def largest(self, number: float) -> float:
        """Return the largest of the numbers of ranks."""
        if self._group is None:
            return number
        numbers = np.array([number])
        with self._exchange(self._group):
            self._group.allreduce(numbers, "max")
        return float(numbers[0])

    def agree(self, vector: AnyArray) -> AnyArray:
        """Return the vector after replacing it by that of rank 0."""
        if self._group is not None:
            with self._exchange(self._group):
                self._group.broadcast(vector)
        return vector

    def gather(self, vector: AnyArray) -> list[AnyArray]:
        """Return the vectors of all ranks on rank 0, of any lengths; nothing on the others."""
        if self._group is None:
            return [vector]
        with self._exchange(self._group):
            return self._group.gather(np.ascontiguousarray(vector)) or []

    def report(self, primal: float, dual: float) -> None:
        """Pass a certificate to the listener."""
        if self._listener is not None:
            self._listener(primal, dual)

    def map(self, work: Callable[[int, int], Any], n_rows: int) -> list[Any]:
        """Return ``work(start, stop)`` for one part of the rows per thread, parts ascending."""
        if self._pool is None or n_rows < 4 * self.n_threads:
            return [work(0, n_rows)]
        parts = [split(n_rows, self.n_threads, k) for k in range(self.n_threads)]
        return list(self._pool.map(lambda part: work(*part), parts))

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
