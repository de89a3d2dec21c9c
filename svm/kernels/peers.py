"""The ranks that solve one problem together: which rank owns which samples, the rows of these, and what they exchange.

The holder of a sample has its features, variables, bounds and indicators, and the columns of cached kernel rows. Of
other samples a rank knows who holds them, a byte or two each, and for a while the variables of those that are at work.
Decisions are made from numbers that are equal on all ranks to the last bit: extremes, gathered candidates, or results
that rank 0 has computed and sent. A single rank sends nothing.

For the messages of a round see `dsgd.svm.kernel_solver.block`. Rows of features are sent as they are multiplied, dense
or as CSR with their true lengths, and only by their holder.

On a gang every rank has the features of its own samples, prepared for products in the requested type; those of others
travel when they are needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from dsgd.ledger import COMPUTE
from dsgd.svm.kernels.functions import Kernel, centre, prefers_sparse, prepare
from dsgd.svm.kernels.rows import Rows, cast_rows, take_rows
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

if TYPE_CHECKING:
    from dsgd.collectives import Group


#: Numbers of samples that a rank sends at a time.
_PART = 1 << 16


class Peers:
    """The ranks of a problem with n samples, as one of them sees them.

    - `group`: joins the ranks; None for a rank that is alone.
    - `holder`, shape (n,): the rank that holds each sample; needed with `group`.
    - `check`: raises if the job has stopped.
    - `keep`: takes the numbers of variables that were set, the same on all ranks, their values, and how many rounds
      there were; variable v of sample i has the number v n + i.
    """

    def __init__(
        self,
        n: int,
        group: Group | None = None,
        holder: IntVector | None = None,
        check: Callable[[], None] = lambda: None,
        keep: Callable[[IntVector, FloatVector, int], None] = lambda numbers, alpha, n_rounds: None,
    ) -> None:
        self.n = n
        self._group = group if group is not None and group.size > 1 else None
        self._ledger = None if group is None else group.ledger
        self.holder: AnyArray | None = None
        if self._group is not None and holder is not None:
            self.holder = holder.astype(np.min_scalar_type(self._group.size - 1))
        self._here: IntVector | None = None
        self.check, self.keep = check, keep
        self._spoken_s = 0.0

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return 1 if self._group is None else self._group.size

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return 0 if self._group is None else self._group.rank

    @property
    def is_alone(self) -> bool:
        """Whether there is one rank only."""
        return self._group is None

    @property
    def here(self) -> IntVector:
        """The samples of this rank, ascending."""
        if self._here is None:
            if self._group is None or self.holder is None:
                self._here = np.arange(self.n)
            else:
                self._here = np.flatnonzero(self.holder == self._group.rank)
        return self._here

    def place(self, ids: IntVector) -> IntVector:
        """Return the places of samples of this rank among all that it has."""
        return ids if self._group is None else np.searchsorted(self.here, ids)

    def find(self, ids: IntVector) -> IntVector:
        """Return the places of some samples among those of this rank, −1 of those that others hold."""
        if self._group is None or self.holder is None:
            return ids
        return np.where(self.holder[ids] == self._group.rank, np.searchsorted(self.here, ids), -1)

    def mine(self, ids: IntVector) -> IntVector:
        """Return those of some samples that this rank holds, in their order."""
        if self._group is None or self.holder is None:
            return ids
        ours: IntVector = ids[self.holder[ids] == self._group.rank]
        return ours

    def counts(self, ids: IntVector) -> IntVector:
        """Return how many of some samples each rank holds, shape (size,)."""
        if self._group is None or self.holder is None:
            return np.array([len(ids)])
        return np.bincount(self.holder[ids], minlength=self.size)

    def rehome(self, plan: Sequence[tuple[int, int, IntVector]]) -> None:
        """Note that samples have moved: (from, to, samples)."""
        for _, taker, ids in plan:
            if self.holder is not None:
                self.holder[ids] = taker
        self._here = None

    # -- words ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def round(self, op: str) -> Iterator[None]:
        """Charge a piece of work to the ledger: time that is neither wire nor wait is computation."""
        ledger = self._ledger
        if ledger is None:
            yield
            return
        ledger.begin_round(op)
        begin, self._spoken_s = ledger.clock(), 0.0
        try:
            self.check()
            yield
        finally:
            ledger.charge(COMPUTE, max(0.0, ledger.clock() - begin - self._spoken_s))
            ledger.end_round()

    def _say(self, speak: Callable[[Group], Any]) -> Any:
        """Return what the other ranks answer, and note how long that took; nothing where there are none."""
        if self._group is None:
            return None
        begin = self._group.ledger.clock()
        answer = speak(self._group)
        self._spoken_s += self._group.ledger.clock() - begin
        return answer

    def lowest(self, vector: FloatVector) -> None:
        """Replace the entries of a short vector by their minima over ranks."""
        self._say(lambda group: group.allreduce(vector, "min"))

    def add_up(self, vector: FloatVector) -> None:
        """Replace a vector by its sum over ranks."""
        self._say(lambda group: group.allreduce(vector))

    def combine(self, vector: AnyArray, operation: Callable[..., AnyArray]) -> None:
        """Replace a vector by what an operation makes of those of all ranks, as `Group.allreduce` does."""
        self._say(lambda group: group.allreduce(vector, operation))

    def agree(self, vector: AnyArray) -> None:
        """Replace a vector by that of rank 0."""
        self._say(lambda group: group.broadcast(vector))

    def all_of(self, vector: AnyArray) -> AnyArray:
        """Return the vectors of all ranks, equally long, as the rows of a matrix."""
        if self._group is None:
            return vector[None]
        return np.asarray(self._say(lambda group: group.allgather(vector)))

    def join(self, vector: AnyArray) -> AnyArray:
        """Return the vectors of all ranks one after another, of any lengths."""
        if self._group is None:
            return vector
        return np.concatenate(self._say(lambda group: group.allgatherv(vector)))

    def parts(self, vector: IntVector) -> Iterator[IntVector]:
        """Yield what `join` returns, a part at a time; all ranks go through all parts."""
        if self._group is None:
            yield vector
            return
        most = -np.array([float(len(vector))])
        self.lowest(most)
        for start in range(0, int(-most[0]), _PART):
            yield self.join(vector[start : start + _PART])

    def count(self, *numbers: Any) -> IntVector:
        """Return the sums of some whole numbers over ranks."""
        totals = np.array(numbers, dtype=np.float64)
        self.add_up(totals)
        return totals.astype(np.int64)

    def entries(self, values: FloatVector) -> tuple[IntVector, FloatVector]:
        """Return the samples of all ranks for which a vector is not zero, and its values; of one rank alone all."""
        places = np.flatnonzero(values)
        if self._group is None:
            return places, values[places]
        words = self.join(np.stack([self.here[places].astype(np.float64), values[places]], axis=1).ravel()).reshape(
            -1, 2
        )
        order = np.argsort(words[:, 0], kind="stable")
        return words[order, 0].astype(np.int64), words[order, 1]

    def fetch(self, ids: IntVector, values: FloatMatrix) -> FloatMatrix:
        """Return the columns of some samples, on all ranks; `values`, shape (k, n_here), has those of this rank."""
        if self._group is None:
            return values[:, ids]
        out, places = np.zeros((len(values), len(ids))), self.find(ids)
        out[:, places >= 0] = values[:, places[places >= 0]]
        self.add_up(out.reshape(-1))
        return out

    def whole(self, values: AnyArray) -> AnyArray:
        """Return an array over the samples of this rank, its last axis, as one over all samples, on all ranks."""
        if self._group is None:
            return values
        out = np.zeros((*values.shape[:-1], self.n))
        out[..., self.here] = values
        for line in out.reshape(-1, self.n):
            self.add_up(line)
        return out

    # -- rows ----------------------------------------------------------------------------------------------------

    def collect_rows(self, ids: IntVector, ours: Rows) -> Rows:
        """Return the rows of some samples in their order; `ours` are those this rank holds, in their order."""
        if self._group is None or self.holder is None:
            return ours
        holder = self.holder[ids]
        counts = self.counts(ids)
        # Rows arrive rank by rank; this restores the requested order.
        order = np.empty(len(ids), dtype=np.int64)
        order[np.argsort(holder, kind="stable")] = np.arange(len(ids))
        if ours.sparse is not None and ours.offsets is not None:
            matrix, offsets = self._gather_csr(ours.sparse, ours.offsets, counts, ours.n_columns)
            matrix = matrix[order]
            parts = (matrix.data, matrix.indices, matrix.indptr)
            return Rows(len(ids), sparse=parts, n_columns=ours.n_columns, offsets=offsets[order])
        if ours.dense is not None:
            return Rows(len(ids), dense=self._gather_dense(ours.dense, counts)[order])
        if sp.issparse(ours.plain):
            parts = (ours.plain.data, ours.plain.indices, ours.plain.indptr)
            matrix, _ = self._gather_csr(parts, np.zeros(ours.n), counts, ours.plain.shape[1])
            return Rows(len(ids), plain=matrix[order])
        return Rows(len(ids), plain=self._gather_dense(ours.plain, counts)[order])

    def spread(self, number: int, vector: AnyArray) -> AnyArray:
        """Return a vector as the holder of a sample has it, on all ranks; it must have its length everywhere."""
        if self._group is None or self.holder is None:
            return vector
        out, root = np.ascontiguousarray(vector), int(self.holder[number])
        self._say(lambda group: group.broadcast(out, root))
        return out

    def _gather_dense(self, rows: AnyArray, counts: IntVector) -> AnyArray:
        flat, lengths = np.ascontiguousarray(rows).reshape(-1), (counts * rows.shape[1]).tolist()
        parts = self._say(lambda group: group.allgatherv(flat, lengths))
        return np.concatenate(parts).reshape(-1, rows.shape[1])

    def _gather_csr(
        self, csr: tuple[AnyArray, AnyArray, AnyArray], offsets: AnyArray, counts: IntVector, n_columns: int
    ) -> tuple[Any, AnyArray]:
        values, indices, indptr = csr
        narrow = np.int32 if n_columns < 2**31 else np.int64
        head = _bytes(np.diff(indptr).astype(np.int64), offsets)
        lengths = (counts * (8 + offsets.itemsize)).tolist()
        heads = self._say(lambda group: group.allgatherv(head, lengths))
        sizes = [part[: 8 * count].view(np.int64) for part, count in zip(heads, counts, strict=True)]
        offset = np.concatenate(
            [part[8 * count :].view(offsets.dtype) for part, count in zip(heads, counts, strict=True)]
        )
        width = values.itemsize + np.dtype(narrow).itemsize
        entries = [int(part.sum()) for part in sizes]
        start, stop = int(indptr[0]), int(indptr[-1])
        body = _bytes(values[start:stop], indices[start:stop].astype(narrow, copy=False))
        widths = [count * width for count in entries]
        bodies = self._say(lambda group: group.allgatherv(body, widths))
        ends = [count * values.itemsize for count in entries]
        data = np.concatenate([part[:end].copy().view(values.dtype) for part, end in zip(bodies, ends, strict=True)])
        columns = np.concatenate([part[end:].copy().view(narrow) for part, end in zip(bodies, ends, strict=True)])
        starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
        return sp.csr_matrix((data, columns, starts), shape=(int(counts.sum()), n_columns)), offset

    def hand_over(self, source: int, target: int, vector: AnyArray | None, shape: tuple[int, ...], dtype: Any) -> Any:
        """Send an array from one rank to another; return it there, None elsewhere."""
        group = self._group
        if group is None:
            return None
        if group.rank == source and vector is not None:
            self._say(lambda group: group.transport.send(target, np.ascontiguousarray(vector)))
        if group.rank == target:
            incoming = np.empty(shape, dtype=dtype)
            self._say(lambda group: group.transport.recv(source, incoming))
            return incoming
        return None


def _bytes(*arrays: AnyArray) -> AnyArray:
    return np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in arrays])


_HELD_BYTES = 16 * 2**20


class SampleRows:
    """Features of the samples of this rank."""

    def __init__(
        self,
        kernel: Kernel,
        X: Any,
        *,
        samples: IntVector | None,
        peers: Peers | None,
        shift: FloatVector | None,
        sparse: bool | None,
    ) -> None:
        self.kernel, self.X = kernel, X
        self.peers = peers or Peers(len(samples) if samples is not None else int(X.shape[0]))
        self.n_columns = int(X.shape[1])
        if peers is None:
            sparse = kernel.name in {"linear", "rbf", "poly", "sigmoid"} and prefers_sparse(X)
            shift = None if sparse else centre(kernel, X, samples)
        #: Whether rows are multiplied as CSR.
        self.is_sparse = bool(sparse)
        self._shift = shift
        #: What is multiplied for a value: the entries of a row, the same number on all ranks, which decide by it.
        self.n_entries = float(self.n_columns)
        if self.is_sparse:
            counts = np.array([X.nnz, X.shape[0]], dtype=np.float64)
            self.peers.add_up(counts)
            self.n_entries = float(counts[0] / max(1.0, counts[1]))
        self._exact: Rows | None = None
        self._row_of: IntVector | None = samples  # of the samples of this rank, in the order of their numbers

    @property
    def here(self) -> IntVector:
        """The samples of this rank, ascending."""
        return self.peers.here

    @property
    def nbytes(self) -> int:
        """Bytes of rows that are kept in float64."""
        return self._exact.nbytes if self._exact is not None else 0

    def prepared(self, ids: IntVector, dtype: Any) -> Rows:
        """Return rows of samples of this rank; of any, if they are here."""
        if self._exact is not None and (self.are_here or np.dtype(dtype) == np.float64):
            places = ids if self.are_here else self.peers.place(ids)
            return cast_rows(take_rows(self._exact, places), dtype)
        index = self._rows_of(ids)
        if self.kernel.name == "precomputed":
            return Rows(len(ids), plain=self.X, ids=index)
        return prepare(self.kernel, self.X, dtype, shift=self._shift, sparse=self.is_sparse, index=index)

    def _rows_of(self, ids: IntVector) -> IntVector:
        """Return which rows of X samples of this rank are."""
        places = self.peers.place(ids)
        return places if self._row_of is None else self._row_of[places]

    def is_light(self, n: int) -> bool:
        """Return whether n rows in float64 are few bytes."""
        per_row = 12.0 * self.n_entries if self.is_sparse else 8.0 * (self.n_columns + 2)
        return self.kernel.name != "precomputed" and n * per_row <= _HELD_BYTES

    def keep_exact(self) -> None:
        """Make the rows of all samples ready in float64 on every rank where they are few bytes, else those of this one.

        Prepared again for each product, by several threads, each takes as long as a hundred values, because of Python.
        All ranks call this together.
        """
        if self._exact is not None:
            return
        if self.is_light(self.peers.n):
            everyone = np.arange(self.peers.n)
            self._exact = self.peers.collect_rows(everyone, self.prepared(self.here, np.float64))
        elif self.is_light(len(self.here)):
            self._exact = self.prepared(self.here, np.float64)

    @property
    def are_here(self) -> bool:
        """Whether no rows need to travel: there is one rank, or the rows of all samples are ready here."""
        return self.peers.is_alone or (self._exact is not None and self._exact.n == self.peers.n)

    def move(self, plan: Sequence[tuple[int, int, IntVector]]) -> tuple[IntVector, IntVector]:
        """Hand samples over, (from, to, samples) each, with all ranks together; return those sent and received."""
        before = self.here
        given, taken, parts = [before[:0]], [before[:0]], []
        for giver, taker, ids in plan:
            part = self._hand_over(giver, taker, ids)
            if self.peers.rank == giver:
                given.append(ids)
            if part is not None:
                taken.append(ids)
                parts.append(part)
        ours, theirs = np.concatenate(given), np.concatenate(taken)
        if len(ours) or parts:
            stays = before[~np.isin(before, ours)]
            stack = sp.vstack if sp.issparse(self.X) else np.concatenate
            self.X = stack([self.X[self._rows_of(stays)], *parts])
            self.X = self.X.tocsr() if sp.issparse(self.X) else self.X
            self._row_of = np.argsort(np.concatenate([stays, theirs]))
            if not self.are_here:
                self._exact = None
        self.peers.rehome(plan)
        return ours, theirs

    def _hand_over(self, giver: int, taker: int, ids: IntVector) -> Any:
        """Return rows of X on the rank that takes them."""
        peers, rows = self.peers, None
        if peers.rank == giver:
            rows = self.X[self._rows_of(ids)]
        if not sp.issparse(self.X):
            return peers.hand_over(giver, taker, rows, (len(ids), self.n_columns), self.X.dtype)
        lengths = None if rows is None else np.diff(rows.indptr).astype(np.int64)
        lengths = peers.hand_over(giver, taker, lengths, (len(ids),), np.int64)
        size = 0 if lengths is None else int(lengths.sum())
        columns = peers.hand_over(
            giver, taker, None if rows is None else rows.indices.astype(np.int64), (size,), np.int64
        )
        values = peers.hand_over(giver, taker, None if rows is None else rows.data, (size,), self.X.dtype)
        if lengths is None:
            return None
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return sp.csr_matrix((values, columns, starts), shape=(len(ids), self.n_columns))
