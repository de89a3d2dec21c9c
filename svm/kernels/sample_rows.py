"""The features of the samples of a problem, prepared for products in the requested type.

On a gang every rank has the features of its own samples; those of others travel when they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.svm.kernels.functions import Kernel, centre, prefers_sparse, prepare
from dsgd.svm.kernels.peers import Peers
from dsgd.svm.kernels.rows import Rows, cast_rows, take_rows
from dsgd.types import FloatVector, IntVector

_HELD_BYTES = 16 * 2**20


class SampleRows:
    """Features of the samples of this rank.

    - `X`, shape (n, d): rows of this rank; with ``precomputed`` the matrix of all of them, shape (m, m).
    - `samples`, shape (n,): the rows of the samples of this rank, in the order of their numbers (with
      ``precomputed``, rows and columns); None takes all.
    - `peers`: the ranks among which samples are divided; None if all are here.
    - `shift`, shape (d,): with `peers`, subtracted from dense rows for rbf, the same on all ranks.
    - `sparse`: with `peers`, whether rows are multiplied as CSR.
    """

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
        """Hand samples of some ranks over to others, (from, to, samples) each; return those sent and those received.

        All ranks call this together.
        """
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
