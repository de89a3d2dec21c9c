"""Packing blocks of rows into a shard, one block at a time.

The place of a row is known only when all rows have been seen, so every block is visited twice: `ShardBuilder.look`
reads what decides the order, `ShardBuilder.place` copies its rows to their places. Between the visits a block need not
be in memory. Memory: the shard, one block, and the order (`dsgd.local.order`). If a folder is given, the shard is in a
file there and `dsgd.local.windows` makes its order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeGuard

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, DTypeLike

from dsgd.errors import InvalidDataError
from dsgd.local.blocks import (
    WIDE_BYTES,
    DensePiece,
    Piece,
    Selection,
    SparsePiece,
    as_column,
    as_weights,
    cut,
    kernel_type,
)
from dsgd.local.halves import word_dtype
from dsgd.local.mapped import MappedFile, mapped_bytes
from dsgd.local.order import Words, visits, walking_order
from dsgd.local.shard import Shard
from dsgd.local.windows import WINDOW_BYTES, Windows
from dsgd.stages import stage
from dsgd.types import AnyArray, FloatVector, IntVector

__all__ = ["ShardBuilder", "concat_blocks", "make_shard"]


class ShardBuilder:
    """Packs blocks into one shard: `look` at each block, `place` each block in the same order, `finish`.

    Parameters
    ----------
    n_features : int
        Columns.
    dtype : dtype
        float32 or float64.
    sparse : bool
        Whether the shard is sparse.
    shuffle, seed
        As in `make_shard`.
    folder : str or None, default None
        The folder of the file that holds the shard; None keeps it in memory.
    window_bytes : int, optional
        See `dsgd.local.windows`.
    storage : str or None, default None
        A format of 16 bits in which rows are kept, see `dsgd.local.halves`; dense rows of float32 only.
    weight_scale : float, default 1.0
        What the weights of visits are multiplied by, so that those of all ranks add up to their number.
    spread_classes : bool, default True
        Whether the rows of every class are spread evenly, see `dsgd.local.order`; not for the mean of all models.

    Raises
    ------
    InvalidDataError
        The type is no other than those two.
    """

    def __init__(
        self,
        *,
        n_features: int,
        dtype: DTypeLike,
        sparse: bool,
        shuffle: bool = True,
        seed: int = 0,
        folder: str | None = None,
        window_bytes: int = WINDOW_BYTES,
        storage: str | None = None,
        weight_scale: float = 1.0,
        spread_classes: bool = True,
    ) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise InvalidDataError(f"make_shard(dtype=...) must be float32 or float64. Got {self.dtype}.")
        self.n_features, self.sparse, self.shuffle, self.seed = n_features, sparse, shuffle, seed
        self.folder, self.window_bytes, self.storage = folder, window_bytes, storage
        self.weight_scale, self.spread_classes = weight_scale, spread_classes
        self._n_blocks = 0
        self._targets: list[FloatVector] = [np.empty(0, self.dtype)]
        self._weights: list[FloatVector | int] = []  # a number stands for so many weights of one
        self._prints: list[Words] = [np.empty(0, np.uint64)]
        self._lengths: list[IntVector] = [np.empty(0, np.int64)]
        self._shard: Shard | None = None
        # Visits are counted with rows ascending. Row of each visit, or None if they are the same; visits in walking
        # order and, the other way round, the place of each visit, or None if they stay in that of the input.
        self._source: IntVector | None = None
        self._order: IntVector | None = None
        self._place: IntVector | None = None
        self._windows: Windows | None = None
        self._gathers = False  # whether one piece has all rows, narrow ones: they are copied in walking order
        self._first = 0  # row that is placed next
        #: The row of each visit of the shard, once rows have been placed; None if it is the visit's own number.
        self.walk: IntVector | None = None

    def look(
        self, X: Any, targets: ArrayLike, sample_weight: ArrayLike | None = None, prints: Words | None = None
    ) -> None:
        """Take from the next block what decides where its rows go.

        Parameters
        ----------
        X, targets, sample_weight
            As in `make_shard`; not kept, but for targets that are a view.
        prints : array of uint64, shape (n,), or None, default None
            `dsgd.local.blocks.fingerprints` of the rows, if known; rows are then not read. They are not used if their
            number or type is another, or if rows are converted to a type in which they could have others.

        Raises
        ------
        InvalidDataError
            X is not two-dimensional or has another width, or a weight is negative or not finite.
        PartitionMismatchError
            The lengths differ.
        """
        X = _matrix(X)
        _common_width([X.shape], self.n_features)
        n_rows = X.shape[0]
        self._n_blocks += 1
        self._targets.append(as_column(targets, self.dtype, n_rows, "targets"))
        self._weights.append(n_rows if sample_weight is None else as_weights(sample_weight, n_rows))
        hashes = self.shuffle
        if hashes and prints is not None and self._are_of(prints, X):
            self._prints.append(prints)
            hashes = False
        if not (hashes or self.sparse):
            return
        with stage("hash") as it:
            for piece in cut(X, self.dtype, sparse=self.sparse, storage=self.storage):
                self._lengths.append(piece.lengths())
                if hashes:
                    made = np.zeros(piece.n_rows, np.uint64)
                    piece.add_fingerprints(made)
                    self._prints.append(made)
                    it.nbytes += piece.nbytes

    def _are_of(self, prints: Words, X: Any) -> bool:
        """Return whether `prints` can be the fingerprints of X, as far as that can be told without reading X."""
        fits = prints.shape == (X.shape[0],) and prints.dtype == np.uint64
        is_type = self.storage is not None or kernel_type(X) == self.dtype
        return fits and not isinstance(X, Selection) and is_type

    def place(self, X: Any) -> None:
        """Copy the rows of the next block to their places; blocks come as they did before."""
        with stage("pack"):
            for piece in cut(_matrix(X), self.dtype, sparse=self.sparse, storage=self.storage):
                if self._shard is None:
                    self._arrange(piece)
                self._copy(piece)
            if self._shard is not None and self._shard.mapping is not None:
                self._shard.mapping.release()

    def finish(self) -> Shard:
        """Return the shard."""
        if self._shard is None:
            self._arrange(None)
        if self._windows is not None and self._order is not None:
            with stage("pack"):
                self._windows.settle(self._order)
        self._order = self._place = self._source = self._windows = None
        shard, self._shard = self._shard, None
        if shard is None:
            raise InvalidDataError("ShardBuilder.finish() was called twice.")
        return shard

    def _arrange(self, piece: Piece | Selection | None) -> None:
        """Decide on the order and make room; a single piece in a suitable layout becomes the shard itself."""
        targets, lengths = np.concatenate(self._targets), np.concatenate(self._lengths)
        n_rows, weighted = targets.shape[0], None
        if not all(isinstance(w, int) for w in self._weights):
            weighted = visits(np.concatenate([np.ones(w) if isinstance(w, int) else w for w in self._weights]))
        if self.shuffle:
            prints = np.concatenate(self._prints)
            with stage("order", prints.nbytes + targets.nbytes):
                self._order = walking_order(prints, targets, weighted, self.seed, spread_classes=self.spread_classes)
        self._targets, self._weights, self._prints, self._lengths = [], [], [], []
        if weighted is not None:
            self._source = weighted[0]
        walk = self._order if self._source is None or self._order is None else self._source[self._order]
        walk = self._source if walk is None else walk
        self.walk = walk
        if walk is not None:
            targets, lengths = targets[walk], lengths[walk] if self.sparse else lengths
        weights = np.full(targets.shape[0], self.weight_scale, self.dtype)
        if weighted is not None:
            weights[:] = self.weight_scale * (weighted[1] if self._order is None else weighted[1][self._order])
        if walk is None and self.folder is None and self._n_blocks == 1 and _fits_directly(piece):
            self._shard = piece.as_shard(targets, weights, self.n_features)
            return
        with stage("pack") as it:
            self._shard = self._room(targets, weights, lengths)
            it.nbytes = self._shard.nbytes
        if self._shard.mapping is not None and self.shuffle and self._shard.nbytes > self.window_bytes:
            self._windows = Windows(self._shard, self.window_bytes)
        is_whole = piece is not None and piece.n_rows == n_rows
        is_narrow = not self.sparse and self.n_features * self.dtype.itemsize < WIDE_BYTES
        self._gathers = is_whole and is_narrow and self._windows is None
        if self._order is not None and not self._gathers:
            self._place = np.empty_like(self._order)
            self._place[self._order] = np.arange(self._order.shape[0])

    def _room(self, targets: FloatVector, weights: FloatVector, lengths: IntVector) -> Shard:
        """Return the shard with everything in it but columns and values."""
        n_visits = targets.shape[0]
        nnz = int(lengths.sum()) if self.sparse else n_visits * self.n_features
        kept = self.dtype if self.storage is None else word_dtype(self.storage)
        mapping: MappedFile | None = None
        empty: Callable[[Any, Any], AnyArray] = np.empty
        put = _itself
        if self.folder is not None:
            sizes = [nnz * kept.itemsize, targets.nbytes, weights.nbytes]
            sizes += [nnz * 4, (n_visits + 1) * 8] if self.sparse else []
            mapping = MappedFile(self.folder, mapped_bytes(*sizes))
            empty, put = mapping.empty, mapping.put
        targets, weights = put(targets), put(weights)
        if not self.sparse:
            values = empty((n_visits, self.n_features), kept)
            return Shard(values, None, None, targets, weights, self.n_features, mapping)
        indptr = empty(n_visits + 1, np.uint64)
        indptr[0] = 0
        np.cumsum(lengths, out=indptr[1:])
        values, indices = empty(nnz, self.dtype), empty(nnz, np.uint32)
        return Shard(values, indices, indptr, targets, weights, self.n_features, mapping)

    def _copy(self, piece: Piece | Selection) -> None:
        """Copy the rows of a piece to their places."""
        shard, first, last = self._shard, self._first, self._first + piece.n_rows
        self._first = last
        if shard is None or (not isinstance(piece, Selection) and piece.is_in(shard)):
            return
        rows, places = self._visits(first, last)
        whole, rows = (piece.piece, piece.in_piece(rows)) if isinstance(piece, Selection) else (piece, rows)
        if self._windows is not None:
            self._windows.append(whole, rows, places)
        elif isinstance(whole, SparsePiece):
            whole.place(rows, places, shard.values, shard.indices, shard.indptr)
        else:
            whole.place(rows, places, shard.values)

    def _visits(self, first: int, last: int) -> tuple[IntVector, IntVector]:
        """Return the visits of rows first..last: their rows, from `first` on, and their places."""
        if self._gathers:
            # All rows: they are written from end to end, and asked for ahead; where they belong need not be known.
            rows = np.arange(last) if self._source is None else self._source
            rows = rows if self._order is None else rows[self._order]
            return rows, np.arange(rows.shape[0])
        if self._source is None:
            begin, end, rows = first, last, np.arange(last - first)
        else:
            begin, end = np.searchsorted(self._source, (first, last)).tolist()
            rows = self._source[begin:end] - first
        # Rows are read from end to end and written where they belong: stores to anywhere wait less than loads do.
        return rows, np.arange(begin, end) if self._place is None else self._place[begin:end]


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
    blocks: Collection[tuple[Any, ArrayLike, ArrayLike | None]],
    *,
    n_features: int | None = None,
    dtype: DTypeLike | None = None,
    sparse: bool | None = None,
    shuffle: bool = True,
    seed: int = 0,
    folder: str | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> Shard:
    """Pack blocks of rows into one shard; every row is copied once.

    Parameters
    ----------
    blocks : collection of (X, targets, sample_weight)
        Blocks as `make_shard` takes them; a sample_weight may be None. Iterated over twice, so it may make or fetch
        each block when asked, and once more where the type, the width or the form is left open.
    n_features : int, optional
        Columns; needed when there is no block.
    dtype : dtype, optional
        float32 or float64; if not given, float32 if all blocks are, else float64.
    sparse : bool, optional
        Whether the shard is sparse; if not given, whether a block is. A rank without blocks says what its peers have.
    shuffle, seed
        As in `make_shard`.
    folder, window_bytes
        As in `ShardBuilder`.

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
    DiskSpaceError
        If the folder is on a disk with too little room.
    """
    if n_features is None or dtype is None or sparse is None:
        forms = [_form(X) for X, _, _ in blocks]
        n_features = _common_width([shape for shape, _, _ in forms], n_features)
        if dtype is None:
            is_single = bool(forms) and all(kind == np.float32 for _, kind, _ in forms)
            dtype = np.float32 if is_single else np.float64
        if sparse is None:
            sparse = any(is_sparse for _, _, is_sparse in forms)
    builder = ShardBuilder(
        n_features=n_features,
        dtype=dtype,
        sparse=sparse,
        shuffle=shuffle,
        seed=seed,
        folder=folder,
        window_bytes=window_bytes,
    )
    for X, targets, sample_weight in blocks:
        builder.look(X, targets, sample_weight)
    for X, _, _ in blocks:
        builder.place(X)
    return builder.finish()


def _matrix(X: Any) -> Any:
    return X if scipy.sparse.issparse(X) or isinstance(X, Selection) else np.asarray(X)


def _form(X: Any) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    matrix = _matrix(X)
    return matrix.shape, matrix.dtype, scipy.sparse.issparse(matrix)


def _fits_directly(piece: Piece | Selection | None) -> TypeGuard[DensePiece | SparsePiece]:
    """Return whether the rows of a piece can be a shard without a copy."""
    return piece is not None and not isinstance(piece, Selection) and piece.fits_directly


def _itself(array: AnyArray) -> AnyArray:
    return array


def _common_width(shapes: Collection[tuple[int, ...]], n_features: int | None) -> int:
    """Return the columns that all blocks have."""
    for shape in shapes:
        if len(shape) != 2:
            raise InvalidDataError(f"Expected rows of features, a two-dimensional array. Got one of shape {shape}.")
    widths = {int(shape[1]) for shape in shapes} | (set() if n_features is None else {n_features})
    if len(widths) != 1:
        if not widths:
            raise InvalidDataError("concat_blocks([]) cannot know the number of columns: pass n_features.")
        raise InvalidDataError(f"Blocks have {' and '.join(str(w) for w in sorted(widths))} columns; make them equal.")
    return widths.pop()
