"""The rows a rank owns, packed once, in the order in which training walks them.

Walking order
-------------
With ``shuffle=True`` rows are sorted by a hash of (seed, content of the row, copy number). Whatever order rows come
in, however they were cut into blocks, dense or sparse: the same rows are walked in the same order, and an epoch reads
memory from one end to the other, which is several times faster than permuted access.

The content of a row is its fingerprint: the wrap-around sum over its nonzeros of a hash of (column, value), plus a hash
of the target. Rows of equal content are numbered; the number enters the hash, so copies are spread over the epoch.

Sample weights are copies. scikit-learn demands that a weight of 2 equals the row twice and a weight of 0 the row left
out, exactly; so a row of weight w <= 16 is visited floor(w) times with weight one, and once more with the fraction
that is left. Above 16 it is visited 16 times with weight w / 16. Of equal rows, the visits of larger weight are
numbered first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dsgd.errors import InvalidDataError, PartitionMismatchError
from dsgd.kernels.rng import draw, mix64
from dsgd.kernels.rows import fingerprint_dense, fingerprint_sparse, place_dense, place_sparse
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, IntVector, PointerVector

__all__ = ["MAX_COPIES", "Shard", "concat_blocks", "make_shard", "split"]

#: A row is visited at most this many times an epoch, whatever its weight.
MAX_COPIES = 16

#: Rows that need a conversion are converted in pieces of this many bytes, so that no second copy of the data exists.
_PIECE_BYTES = 1 << 20

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Shard:
    """Rows of a rank, in walking order.

    Parameters
    ----------
    values : array, shape (n_rows, n_features) or (nnz,)
        Dense rows, C-contiguous, or the entries of sparse rows.
    indices : array of uint32, shape (nnz,), or None
        Columns of the entries, ascending in a row, none twice; None for dense rows.
    indptr : array of uint64, shape (n_rows + 1,), or None
        Row starts in `values` and `indices`; a view made by `rows` starts above zero.
    targets : array, shape (n_rows,)
        +1 or -1 (one output), class code from 0 (one-vs-rest) or value (regression); dtype of `values`.
    weights : array, shape (n_rows,)
        Weight of each visit; dtype of `values`.
    n_features : int
        Columns.
    """

    values: FloatMatrix | FloatVector
    indices: IndexVector | None
    indptr: PointerVector | None
    targets: FloatVector
    weights: FloatVector
    n_features: int

    @property
    def n_rows(self) -> int:
        """Visits an epoch makes: rows, counted as often as their weight says."""
        return int(self.targets.shape[0])

    @property
    def is_sparse(self) -> bool:
        """Whether rows are sparse."""
        return self.indptr is not None

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""
        return self.values.dtype

    @property
    def nnz(self) -> int:
        """Entries stored."""
        if self.indptr is None:
            return self.n_rows * self.n_features
        return int(self.indptr[-1] - self.indptr[0])

    @property
    def nbytes(self) -> int:
        """Bytes that an epoch reads: entries, columns, row starts, targets and weights."""
        size = self.dtype.itemsize
        if self.indptr is None:
            return self.nnz * size + 2 * self.n_rows * size
        return self.nnz * (size + 4) + self.n_rows * (8 + 2 * size)

    def rows(self, start: int, stop: int) -> Shard:
        """Return rows start..stop as views: nothing is copied, so threads can share one shard."""
        if not 0 <= start <= stop <= self.n_rows:
            raise InvalidDataError(f"Shard.rows({start}, {stop}): the shard has rows 0 to {self.n_rows}.")
        if self.indptr is None:
            values, indptr = self.values[start:stop], None
        else:
            values, indptr = self.values, self.indptr[start : stop + 1]
        return Shard(values, self.indices, indptr, self.targets[start:stop], self.weights[start:stop], self.n_features)


def split(n_rows: int, parts: int, k: int) -> tuple[int, int]:
    """Return the rows (start, stop) of part k of `parts`: ``n k // parts`` to ``n (k + 1) // parts``."""
    return n_rows * k // parts, n_rows * (k + 1) // parts


def make_shard(
    X: Any,
    targets: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    dtype: DTypeLike | None = None,
    shuffle: bool = True,
    seed: int = 0,
) -> Shard:
    """Pack rows into a shard; see the module for the order they get.

    Parameters
    ----------
    X : array or scipy sparse matrix, shape (n, n_features)
        Rows, of any layout and number type; read only, never changed.
    targets : array, shape (n,)
        What `Shard` calls targets.
    sample_weight : array, shape (n,), optional
        Weights, not negative; one each if not given.
    dtype : dtype, optional
        float32 or float64; if not given, float32 data stay so and everything else becomes float64.
    shuffle : bool, default=True
        Whether to walk rows in an order drawn from `seed`, or as given. In the order given, data that need no
        conversion are not copied.
    seed : int, default=0
        Seed of the order.

    Returns
    -------
    Shard
        The rows.

    Raises
    ------
    InvalidDataError
        If X is not two-dimensional, or a weight is negative or not finite.
    PartitionMismatchError
        If the lengths differ.
    """
    return concat_blocks([(X, targets, sample_weight)], dtype=dtype, shuffle=shuffle, seed=seed)


def concat_blocks(
    blocks: Sequence[tuple[Any, ArrayLike, ArrayLike | None]],
    *,
    n_features: int | None = None,
    dtype: DTypeLike | None = None,
    sparse: bool | None = None,
    shuffle: bool = True,
    seed: int = 0,
) -> Shard:
    """Pack blocks of rows into one shard; every row is copied once.

    Parameters
    ----------
    blocks : sequence of (X, targets, sample_weight)
        Blocks as `make_shard` takes them; a sample_weight may be None.
    n_features : int, optional
        Columns; needed when there is no block.
    dtype : dtype, optional
        float32 or float64; if not given, float32 if all blocks are, else float64.
    sparse : bool, optional
        Whether the shard is sparse; if not given, whether a block is. A rank without blocks says what its peers have.
    shuffle, seed
        As in `make_shard`.

    Returns
    -------
    Shard
        The rows of all blocks; with ``shuffle=True`` the same for any order and cut of the blocks.

    Raises
    ------
    InvalidDataError
        If the number of columns is unknown or differs, or a block is not two-dimensional.
    PartitionMismatchError
        If X, targets and sample_weight of a block differ in length.
    """
    matrices = [X if scipy.sparse.issparse(X) else np.asarray(X) for X, _, _ in blocks]
    n_features = _common_width(matrices, n_features)
    if dtype is None:
        is_single = bool(matrices) and all(X.dtype == np.float32 for X in matrices)
        dtype = np.float32 if is_single else np.float64
    dtype = np.dtype(dtype)
    if dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise InvalidDataError(f"make_shard(dtype=...) must be float32 or float64. Got {dtype}.")
    if sparse is None:
        sparse = any(scipy.sparse.issparse(X) for X in matrices)
    labels = [
        (_column(y, dtype, X.shape[0], "targets"), _weights(w, X.shape[0]))
        for X, (_, y, w) in zip(matrices, blocks, strict=True)
    ]
    targets = np.concatenate([y for y, _ in labels]) if labels else np.empty(0, dtype)
    weights = np.concatenate([w for _, w in labels]) if labels else np.empty(0)
    source, visit_weights = _visits(weights)
    pieces: list[_DensePiece | _SparsePiece]
    if sparse:
        pieces = [_sparse_piece(X, dtype) for X in matrices]
    else:
        pieces = [piece for X in matrices for piece in _dense_pieces(X, dtype)]
    if shuffle:
        prints = np.zeros(targets.shape[0], np.uint64)
        first = 0
        for piece in pieces:
            piece.add_fingerprints(prints[first : first + piece.n_rows])
            first += piece.n_rows
        order = _walking_order(prints, targets, source, visit_weights, seed)
    elif len(pieces) == 1 and pieces[0].is_whole and np.array_equal(source, np.arange(targets.shape[0])):
        return pieces[0].as_shard(targets, visit_weights.astype(dtype), n_features)
    else:
        order = np.arange(source.shape[0], dtype=np.int64)
    return _pack(pieces, source, order, targets, visit_weights, n_features, dtype, sparse)


@dataclass(frozen=True)
class _DensePiece:
    """Dense rows of one block; `is_whole` if kernels can read them as they are."""

    X: AnyArray
    dtype: np.dtype[Any]
    is_whole: bool

    @property
    def n_rows(self) -> int:
        return int(self.X.shape[0])

    def rows(self) -> FloatMatrix:
        """Return the rows as kernels read them: contiguous, of the right type, writable."""
        return self.X if self.is_whole else np.array(self.X, self.dtype, order="C", copy=True)

    def add_fingerprints(self, out: Words) -> None:
        """Add the fingerprint of each row to `out`."""
        fingerprint_dense(self.rows().view(_word_type(self.dtype)), out)

    def place(self, rows: IntVector, places: IntVector, shard: Shard) -> None:
        """Copy row ``rows[v]`` to row ``places[v]`` of `shard`, for every visit v."""
        place_dense(self.rows(), rows, places, shard.values)

    def as_shard(self, targets: FloatVector, weights: FloatVector, n_features: int) -> Shard:
        """Return the rows as a shard, not copied."""
        return Shard(self.X, None, None, targets, weights, n_features)


@dataclass(frozen=True)
class _SparsePiece:
    """Sparse rows of one block, canonical."""

    values: FloatVector
    indices: IndexVector
    indptr: PointerVector
    is_whole: bool = True

    @property
    def n_rows(self) -> int:
        return int(self.indptr.shape[0]) - 1

    def add_fingerprints(self, out: Words) -> None:
        """Add the fingerprint of each row to `out`."""
        fingerprint_sparse(self.values.view(_word_type(self.values.dtype)), self.indices, self.indptr, out)

    def place(self, rows: IntVector, places: IntVector, shard: Shard) -> None:
        """Copy row ``rows[v]`` to row ``places[v]`` of `shard`, for every visit v."""
        place_sparse(self.values, self.indices, self.indptr, rows, places, shard.values, shard.indices, shard.indptr)

    def as_shard(self, targets: FloatVector, weights: FloatVector, n_features: int) -> Shard:
        """Return the rows as a shard, not copied."""
        return Shard(self.values, self.indices, self.indptr, targets, weights, n_features)


def _dense_pieces(X: AnyArray, dtype: np.dtype[Any]) -> Iterator[_DensePiece]:
    """Cut a block into pieces to convert one at a time, or into one if there is nothing to convert.

    A read-only array counts as one to convert: numba compiles every kernel once more for read-only arguments, which
    costs more than copying a megabyte at a time.
    """
    if X.dtype == dtype and X.flags.c_contiguous and X.flags.writeable and X.flags.aligned:
        yield _DensePiece(X, dtype, True)
        return
    step = max(1, _PIECE_BYTES // max(1, X.shape[1] * dtype.itemsize))
    for start in range(0, X.shape[0], step):
        yield _DensePiece(X[start : start + step], dtype, False)


def _sparse_piece(X: Any, dtype: np.dtype[Any]) -> _SparsePiece:
    """Return a block as canonical CSR arrays, sharing memory with it where they already are."""
    if X.shape[1] > np.iinfo(np.uint32).max:
        raise InvalidDataError(f"Sparse data may have up to 2**32 - 1 columns. Got {X.shape[1]}.")
    csr = X if scipy.sparse.issparse(X) and X.format == "csr" else scipy.sparse.csr_array(X)
    # A matrix of its own around the same arrays: scipy notes what it finds out about order on the matrix it is asked.
    csr = scipy.sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape, copy=False)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    indices = csr.indices.view(np.uint32) if csr.indices.dtype.itemsize == 4 else csr.indices.astype(np.uint32)
    return _SparsePiece(_writable(csr.data.astype(dtype, copy=False)), _writable(indices), csr.indptr.astype(np.uint64))


def _walking_order(
    prints: Words, targets: FloatVector, source: IntVector, visit_weights: FloatVector, seed: int
) -> IntVector:
    """Return the visits in walking order: sorted by the hash of (seed, content of the row, copy number)."""
    scramble, stream = mix64.py_func, draw.py_func
    prints += scramble(targets.view(_word_type(targets.dtype)).astype(np.uint64))
    start = np.uint64(seed % 2**64)
    keys = scramble(prints ^ scramble(np.full(1, start) + np.uint64(1)))
    keys = keys[source]
    order = np.argsort(keys)
    in_order = keys[order]
    repeats = np.flatnonzero(in_order[1:] == in_order[:-1])
    if repeats.size == 0:
        return order
    # Rows of equal content are next to each other now: number them, larger weights first, and draw their places anew.
    is_repeated = np.zeros(order.shape[0], bool)
    is_repeated[repeats] = True
    is_repeated[repeats + 1] = True
    members = order[is_repeated]
    members = members[np.lexsort((-visit_weights[members], keys[members]))]
    member_keys = keys[members]
    begins = np.flatnonzero(np.r_[True, member_keys[1:] != member_keys[:-1]])
    sizes = np.diff(np.r_[begins, members.shape[0]])
    numbers = np.arange(members.shape[0]) - np.repeat(begins, sizes)
    keys[members] = np.where(numbers == 0, member_keys, stream(member_keys, numbers.astype(np.uint64)))
    return np.argsort(keys)


def _pack(
    pieces: Sequence[_DensePiece | _SparsePiece],
    source: IntVector,
    order: IntVector,
    targets: FloatVector,
    visit_weights: FloatVector,
    n_features: int,
    dtype: np.dtype[Any],
    sparse: bool,
) -> Shard:
    """Copy the rows of all pieces to their places."""
    n_visits = order.shape[0]
    walk = source[order]
    values: FloatMatrix | FloatVector
    indices, indptr = None, None
    if sparse:
        lengths = [np.diff(piece.indptr) for piece in pieces if isinstance(piece, _SparsePiece)]
        indptr = np.zeros(n_visits + 1, np.uint64)
        if lengths:
            np.cumsum(np.concatenate(lengths)[walk], out=indptr[1:])
        values = np.empty(int(indptr[-1]), dtype)
        indices = np.empty(int(indptr[-1]), np.uint32)
    else:
        values = np.empty((n_visits, n_features), dtype)
    shard = Shard(values, indices, indptr, targets[walk], visit_weights[order].astype(dtype), n_features)
    # Rows are read from end to end and written where they belong: a processor hides the latency of scattered stores
    # better than that of scattered loads (2.5 times as fast on a million rows of 22).
    place = np.empty(n_visits, np.int64)
    place[order] = np.arange(n_visits)
    first = 0
    for piece in pieces:
        begin, end = np.searchsorted(source, (first, first + piece.n_rows))
        piece.place(source[begin:end] - first, place[begin:end], shard)
        first += piece.n_rows
    return shard


def _visits(weights: FloatVector) -> tuple[IntVector, FloatVector]:
    """Return for every visit its row and its weight, rows ascending; see the module for how weights become visits."""
    n_rows = weights.shape[0]
    if np.all(weights == 1.0):
        return np.arange(n_rows), np.ones(n_rows)
    is_heavy = weights > MAX_COPIES
    whole = np.where(is_heavy, MAX_COPIES, np.floor(weights)).astype(np.int64)
    rest = np.where(is_heavy, 0.0, weights - whole)
    counts = whole + (rest > 0.0)
    source = np.repeat(np.arange(n_rows), counts)
    visit_weights = np.repeat(np.where(is_heavy, weights / MAX_COPIES, 1.0), counts)
    last_visit = np.cumsum(counts) - 1
    has_rest = rest > 0.0
    visit_weights[last_visit[has_rest]] = rest[has_rest]
    return source, visit_weights


def _common_width(matrices: Sequence[Any], n_features: int | None) -> int:
    """Return the columns that all blocks have."""
    for X in matrices:
        if len(X.shape) != 2:
            raise InvalidDataError(f"Expected rows of features, a two-dimensional array. Got one of shape {X.shape}.")
    widths = {int(X.shape[1]) for X in matrices} | (set() if n_features is None else {n_features})
    if len(widths) != 1:
        if not widths:
            raise InvalidDataError("concat_blocks([]) cannot know the number of columns: pass n_features.")
        raise InvalidDataError(f"Blocks have {' and '.join(str(w) for w in sorted(widths))} columns; make them equal.")
    return widths.pop()


def _column(column: ArrayLike, dtype: DTypeLike, n_rows: int, name: str) -> FloatVector:
    """Return `column` as a contiguous vector of `n_rows` entries."""
    vector = np.ascontiguousarray(column, dtype)
    if vector.shape != (n_rows,):
        raise PartitionMismatchError(
            f"{name} must have one entry per row, shape ({n_rows},). Got shape {vector.shape}; cut X, y and "
            "sample_weight in the same places."
        )
    return vector


def _weights(sample_weight: ArrayLike | None, n_rows: int) -> FloatVector:
    """Return the weights of a block; ones if there are none."""
    if sample_weight is None:
        return np.ones(n_rows)
    weights = _column(sample_weight, np.float64, n_rows, "sample_weight")
    if not np.all((weights >= 0.0) & np.isfinite(weights)):
        raise InvalidDataError("sample_weight has entries that are negative or not finite; weights must be 0 or more.")
    return weights


def _word_type(dtype: np.dtype[Any]) -> DTypeLike:
    """Return the unsigned integer as wide as `dtype`."""
    return np.uint32 if dtype.itemsize == 4 else np.uint64


def _writable(vector: AnyArray) -> AnyArray:
    """Return `vector`, or a copy if kernels would see it as read-only or as strided."""
    return vector if vector.flags.writeable and vector.flags.c_contiguous else vector.copy()
