"""A kernel SVM on a cluster: every rank runs the estimator's training on its own rows.

Targets, weights, and coefficients at the end, are gathered, so every rank computes bounds, duals and thresholds as one
process does; the solver keeps of them what belongs to its own samples. A `Gang` computes what needs features: equal rows (merged on their own ranks), gamma and
the mean (from sums over ranks), the columns of kernel values, and the support vectors, which rank 0 collects.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.inputs import widen
from dsgd.runtime.rank import Rank
from dsgd.svm.distributed.progress import Progress
from dsgd.svm.kernel_solver.merging import fingerprints, merge_prints, rows_are_equal
from dsgd.svm.kernels.functions import Kernel, is_far, is_sparse_cheaper, row_sums, survey, width_of
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.peers import Peers
from dsgd.svm.kernels.threads import Pool
from dsgd.types import AnyArray, FloatVector, IntVector

__all__ = ["Gang", "RankRows", "RowPacker", "fit_on_rank", "join_gang"]


@dataclass(frozen=True)
class RankRows:
    """The rows of one rank.

    Parameters
    ----------
    X : array or canonical CSR matrix, shape (n, d)
        Rows.
    target, weights : float64 array, shape (n,)
        Class codes or targets; sample weights.
    ids : int64 array, shape (n,)
        Which rows of the whole these are.
    """

    X: Any
    target: FloatVector
    weights: FloatVector
    ids: IntVector

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.ids)


@dataclass(frozen=True)
class RowPacker:
    """Packs numbered blocks ``(X, y, sample_weight, first)`` into the rows of a rank; sent to every rank.

    Parameters
    ----------
    classes : array or None
        All classes, sorted; None for regression or no targets.
    n_features : int
        Width of the rows.
    dtype : str
        ``"float32"`` or ``"float64"``.
    sparse : bool
        Whether rows are CSR.
    """

    classes: AnyArray | None
    n_features: int
    dtype: str
    sparse: bool

    def __call__(self, blocks: Sequence[Any], rank_number: int) -> RankRows:
        """Return the rows of a rank, made of its blocks in order."""
        blocks = list(blocks)  # each is looked at several times
        parts = [self._rows(X) for X, _, _, _ in blocks]
        X: Any = np.zeros((0, self.n_features), dtype=self.dtype)
        if self.sparse:
            X = sp.vstack([sp.csr_matrix(X), *parts], format="csr")
            X.sum_duplicates()
        elif parts:
            X = np.concatenate(parts)
        return RankRows(
            X,
            np.concatenate([np.zeros(0), *(self._targets(block) for block in blocks)]),
            np.concatenate([np.zeros(0), *(_weights(block) for block in blocks)]),
            np.concatenate([np.zeros(0, np.int64), *(block[3] + np.arange(block[0].shape[0]) for block in blocks)]),
        )

    def _rows(self, X: Any) -> Any:
        if self.sparse:
            return sp.csr_matrix(widen(X, self.n_features)).astype(self.dtype)
        return np.ascontiguousarray(X, dtype=self.dtype)

    def _targets(self, block: Any) -> FloatVector:
        if block[1] is None:
            return np.zeros(block[0].shape[0])
        y = block[1] if self.classes is None else np.searchsorted(self.classes, block[1])
        return np.asarray(y, dtype=np.float64)


def _weights(block: Any) -> FloatVector:
    return np.ones(block[0].shape[0]) if block[2] is None else np.asarray(block[2], dtype=np.float64)


class Gang:
    """What an estimator asks the other ranks while it is fitted on all of them.

    Parameters
    ----------
    rank : Rank
        This member of the gang.
    data : RankRows
        Its rows.
    """

    def __init__(self, rank: Rank, data: RankRows) -> None:
        self.rank = rank
        self._ids, self._order = data.ids, np.argsort(data.ids)
        self.n_rows = int(self._sum(len(data.ids))[0])
        self._holder = np.empty(self.n_rows, dtype=np.min_scalar_type(rank.group.size - 1))
        for number, part in enumerate(rank.group.allgatherv(data.ids)):
            self._holder[part] = number
        self.target = self._everyone(data.target)
        self.weights = self._everyone(data.weights)
        self.is_sparse = False
        self.progress = Progress(rank)
        #: Who represents equal rows, and who represents each, after `merge`.
        self.merged: tuple[IntVector, IntVector] = (np.empty(0, np.int64), np.empty(0, np.int64))

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank.number == 0

    def _everyone(self, ours: AnyArray) -> AnyArray:
        """Return the values of all rows, in the order of rows."""
        out = np.empty(self.n_rows, dtype=ours.dtype)
        for number, part in enumerate(self.rank.group.allgatherv(ours[self._order])):
            out[self._holder == number] = part
        return out

    def _local(self, rows: IntVector) -> IntVector:
        """Return where rows of this rank are among its own."""
        places: IntVector = self._order[np.searchsorted(self._ids, rows, sorter=self._order)]
        return places

    def _is_here(self, rows: IntVector) -> AnyArray:
        return self._holder[rows] == self.rank.number

    def _sum(self, *values: float) -> FloatVector:
        total = np.array(values, dtype=np.float64)
        self.rank.group.allreduce(total)
        return total

    def merge(self, X: Any, target: FloatVector, weights: FloatVector) -> tuple[IntVector, IntVector, FloatVector]:
        """Merge equal rows of the same rank: `dsgd.svm.kernel_solver.merging.merge_rows` over all ranks."""
        salt = (self.rank.number * 0x9E3779B97F4A7C15) % 2**64
        prints = self._everyone(fingerprints(X, target[self._ids]) ^ np.uint64(salt))

        def are_equal(rows: IntVector, others: IntVector) -> bool:
            here = self._is_here(rows)
            is_equal = bool(self._is_here(others[here]).all())
            if is_equal:
                pair = self._local(rows[here]), self._local(others[here])
                is_equal = rows_are_equal(X, target[self._ids], *pair)
            return not self._sum(float(not is_equal))[0]

        first, owner, total = merge_prints(prints, weights, are_equal)
        self.merged = first, owner
        return first, owner, total

    def make_kernel(
        self,
        kernel: Kernel,
        gamma: str | float,
        X: Any,
        totals: FloatVector,
        first: IntVector,
        *,
        balanced: bool,
    ) -> Kernel:
        """Return the kernel with gamma, mean and lengths of the representatives `first`, with weights `totals`."""
        d, is_ours = int(X.shape[1]), self._is_here(first)
        rows = self._local(first[is_ours])
        if sp.issparse(X):
            n, nnz = self._sum(X.shape[0], X.nnz)
            self.is_sparse = is_sparse_cheaper(int(n), d, int(nnz)) and kernel.function is None
        if isinstance(gamma, str) and gamma == "scale":
            share = totals[is_ours] / (float(totals.sum()) * d)
            mean = float(self._sum(share @ row_sums(X, None)[rows])[0])
            variance = float(self._sum(share @ row_sums(X, mean)[rows])[0])
            gamma = width_of(d, mean, variance)
        elif isinstance(gamma, str):
            gamma = 1.0 / d
        kernel = replace(kernel, gamma=float(gamma))
        if (kernel.name == "rbf" or (balanced and kernel.name == "linear")) and not self.is_sparse:
            total = np.asarray(X[rows].sum(axis=0, dtype=np.float64)).ravel()
            self.rank.group.allreduce(total)
            kernel = replace(kernel, shift=total / len(first))
        if kernel.function is not None:
            return kernel
        kernel = self._survey(kernel, X, rows)
        if kernel.name == "linear" and kernel.shift is not None and not is_far(kernel):
            kernel = self._survey(replace(kernel, shift=None), X, rows)
        return kernel

    def _survey(self, kernel: Kernel, X: Any, rows: IntVector) -> Kernel:
        """Return the kernel with what all ranks know of some rows of each."""
        kernel = survey(kernel, X, rows, sparse=self.is_sparse)
        largest = np.array([kernel.largest_square])
        self.rank.group.allreduce(largest, "max")
        return replace(kernel, largest_square=float(largest[0]))

    def make_matrix(
        self, kernel: Kernel, X: Any, rows: IntVector, dtype: Any, pool: Pool, cache_bytes: int
    ) -> KernelMatrix:
        """Return the kernel values among some rows of the whole, divided among their holders."""
        holder = self._holder[rows]
        return KernelMatrix(
            kernel,
            X,
            samples=self._local(rows[holder == self.rank.number]),
            dtype=dtype,
            cache_bytes=cache_bytes,
            pool=pool,
            peers=Peers(len(rows), self.rank.group, holder, self.rank.check, self.progress.note),
            shift=None if self.is_sparse else kernel.shift,
            sparse=self.is_sparse,
        )

    def collect(self, X: Any, rows: IntVector) -> Any:
        """Return some rows of X, in their order, on rank 0; the others get an empty X."""
        group = self.rank.group
        group.ledger.begin_round("collect")
        part = X[self._local(rows[self._is_here(rows)])]
        # Parts arrive by rank; this restores the requested order.
        order = np.argsort(np.argsort(self._holder[rows], kind="stable"))
        if not sp.issparse(part):
            parts = group.gather(np.ascontiguousarray(part).reshape(-1))
            whole = None if parts is None else np.concatenate(parts).reshape(-1, X.shape[1])
        else:
            pieces = [part.data, part.indices.astype(np.int64), np.diff(part.indptr).astype(np.int64)]
            found = [group.gather(piece) for piece in pieces]
            whole = None
            if self.leads:
                data, indices, lengths = (np.concatenate(piece or []) for piece in found)
                starts = np.concatenate([[0], np.cumsum(lengths)])
                whole = sp.csr_matrix((data, indices, starts), shape=(len(rows), X.shape[1]))
        group.ledger.end_round()
        return X[:0] if whole is None else whole[order]


def fit_on_rank(rank: Rank, data: RankRows, model: Any) -> dict[str, Any] | None:
    """Fit a copy of `model` together with the other ranks; a rank program.

    Parameters
    ----------
    rank : Rank
        This member of the gang.
    data : RankRows
        Its rows.
    model : AbstractKernelSVM
        Not fitted, without a client.

    Returns
    -------
    dict or None
        The fitted attributes, on rank 0.
    """
    model, gang = join_gang(rank, data, model)
    model._fit_rows(data.X, gang.target, gang.weights)
    return model._fitted_state() if gang.leads else None


def join_gang(rank: Rank, data: RankRows, model: Any) -> tuple[Any, Gang]:
    """Return a copy of a model that asks the gang, and the gang.

    Parameters
    ----------
    rank : Rank
        This member of the gang.
    data : RankRows
        Its rows.
    model : AbstractKernelSVM
        Not fitted, without a client.
    """
    model = copy.copy(model)  # ranks may be threads
    if model.n_jobs is None or model.n_jobs < 0:
        model.n_jobs = max(1, rank.n_threads + 1 + (model.n_jobs or -1))
    rank.ledger.begin_round("setup")
    gang = Gang(rank, data)
    rank.ledger.end_round()
    model._gang = gang
    return model, gang
