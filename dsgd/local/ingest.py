"""Making a shard of blocks of rows: of one block that kernels can read where it is, else of copies, a block at a time.

The place of a row is known only when all rows have been seen, so every block is visited twice: `ShardBuilder.look`
takes what decides the order, `ShardBuilder.place` copies its rows to their places, in which they are walked. Between
the visits a block need not be in memory. Memory: the shard, one block, and the order (`dsgd.local.shard`). If a folder
is given, the shard is in a file there and `dsgd.local.blocks` makes its order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, DTypeLike

from dsgd.errors import InvalidDataError
from dsgd.local.blocks import WINDOW_BYTES, Piece, Selection, SparsePiece, Windows, as_column, as_weights, cut
from dsgd.local.shard import MappedFile, Shard, mapped_bytes, visits, walking_order
from dsgd.stages import stage
from dsgd.types import AnyArray, FloatVector, IntVector


class ShardBuilder:
    """Packs blocks into one shard: `look` at each block, `place` each block in the same order, `finish`."""

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
        weight_scale: float = 1.0,
        copies: bool = False,
        spread_classes: bool = True,
    ) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise InvalidDataError(f"make_shard(dtype=...) must be float32 or float64. Got {self.dtype}.")
        self.n_features, self.sparse, self.shuffle, self.seed = n_features, sparse, shuffle, seed
        self.folder, self.window_bytes, self.weight_scale = folder, window_bytes, weight_scale
        self._copies, self._spread_classes = copies or folder is not None, spread_classes
        self._n_blocks = 0
        self._targets: list[FloatVector] = []
        self._weights: list[FloatVector | int] = []  # a number stands for so many weights of one
        self._lengths: list[IntVector] = [np.empty(0, np.int64)]
        self._shard: Shard | None = None
        # Of rows that are copied: the places of all visits with their rows ascending, and these rows; None where each
        # row stays in the place of its own number.
        self._place: IntVector | None = None
        self._rows: AnyArray | None = None
        self._windows: Windows | None = None
        self._first = 0  # row that is placed next
        #: The row of each visit of the shard, once rows have been placed; None if it is the visit's own number.
        self.walk: AnyArray | None = None

    def look(self, X: Any, targets: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Take from the next block what decides where its rows go."""
        X = _matrix(X)
        _common_width([X.shape], self.n_features)
        n_rows = X.shape[0]
        self._n_blocks += 1
        self._targets.append(as_column(targets, self.dtype, n_rows, "targets"))
        self._weights.append(n_rows if sample_weight is None else as_weights(sample_weight, n_rows))
        if self.sparse and (self._copies or not isinstance(X, Selection)):
            self._lengths += [piece.lengths() for piece in cut(X, self.dtype, sparse=True)]

    def place(self, X: Any) -> None:
        """Copy the rows of the next block, in the order of before, unless they can be read where they are."""
        with stage("pack"):
            for piece in cut(_matrix(X), self.dtype, sparse=self.sparse):
                if self._shard is None:
                    self._arrange(piece)
                self._copy(piece)
            if self._shard is not None and self._shard.mapping is not None:
                self._shard.mapping.release()

    def finish(self) -> Shard:
        """Return the shard."""
        if self._shard is None:
            self._arrange(None)
        if self._windows is not None and self.walk is not None:
            with stage("pack"):
                self._windows.settle(self.walk)
        self._place = self._rows = self._windows = None
        shard, self._shard = self._shard, None
        if shard is None:
            raise InvalidDataError("ShardBuilder.finish() was called twice.")
        return shard

    def _arrange(self, piece: Piece | Selection | None) -> None:
        """Decide on the order; make room, unless a single piece in a suitable layout becomes the shard itself."""
        given, self._targets = self._targets, []
        one = given[0] if len(given) == 1 else np.concatenate([np.empty(0, self.dtype), *given])
        # Of memory that must not be written, or not C-contiguous, kernels would be compiled anew.
        targets, weighted = np.require(one, requirements=["C", "W"]), None
        del given, one
        if not all(isinstance(w, int) for w in self._weights):
            weighted = visits(np.concatenate([np.ones(w) if isinstance(w, int) else w for w in self._weights]))
        order: Any = slice(None)
        targets = targets if weighted is None else targets[weighted[0]]
        if self.shuffle:
            with stage("order", targets.nbytes):
                order, targets = walking_order(targets, self.seed, spread_classes=self._spread_classes)
        walk: AnyArray | None = weighted[0][order] if weighted is not None else order if self.shuffle else None
        weights = np.full(targets.shape[0], self.weight_scale, self.dtype)
        if weighted is not None:
            weights[:] = self.weight_scale * weighted[1][order]
        self.walk, self._weights = walk, []
        if not self._copies and self._n_blocks == 1 and piece is not None and piece.fits_directly:
            index = np.arange(targets.shape[0]) if walk is None else walk
            self._shard = piece.as_shard(targets, weights, self.n_features, index.astype(np.uint32, copy=False))
            return
        lengths, self._lengths = np.concatenate(self._lengths), []
        with stage("pack") as it:
            lengths = lengths if walk is None or not self.sparse else lengths[walk]
            self._shard = self._room(targets, weights, lengths)
            it.nbytes = self._shard.nbytes
        if self._shard.mapping is not None and self.shuffle and self._shard.nbytes > self.window_bytes:
            self._windows = Windows(self._shard, self.window_bytes)
        if walk is not None:
            self._place = np.argsort(walk, kind="stable") if weighted is not None else _inverse(walk)
            self._rows = None if weighted is None else walk[self._place]

    def _room(self, targets: FloatVector, weights: FloatVector, lengths: IntVector) -> Shard:
        """Return the shard with everything in it but columns and values."""
        n_visits = targets.shape[0]
        nnz = int(lengths.sum()) if self.sparse else n_visits * self.n_features
        mapping: MappedFile | None = None
        empty: Callable[[Any, Any], AnyArray] = np.empty
        if self.folder is not None:
            sizes = [nnz * self.dtype.itemsize, targets.nbytes, weights.nbytes]
            sizes += [nnz * 4, (n_visits + 1) * 8] if self.sparse else []
            mapping = MappedFile(self.folder, mapped_bytes(*sizes))
            empty, targets, weights = mapping.empty, mapping.put(targets), mapping.put(weights)
        if not self.sparse:
            values = empty((n_visits, self.n_features), self.dtype)
            return Shard(values, None, None, targets, weights, self.n_features, mapping)
        indptr = empty(n_visits + 1, np.uint64)
        indptr[0] = 0
        np.cumsum(lengths, out=indptr[1:])
        values, indices = empty(nnz, self.dtype), empty(nnz, np.uint32)
        return Shard(values, indices, indptr, targets, weights, self.n_features, mapping)

    def _copy(self, piece: Piece | Selection) -> None:
        """Copy the rows of a piece to their places, unless they are the shard."""
        shard, first, last = self._shard, self._first, self._first + piece.n_rows
        self._first = last
        whole = piece.piece if isinstance(piece, Selection) else piece
        if shard is None or whole.values is shard.values:
            return
        # Rows are read from end to end and written where they belong: stores to anywhere wait less than loads do.
        begin, end, rows = first, last, np.arange(last - first)
        if self._rows is not None:
            begin, end = np.searchsorted(self._rows, (first, last)).tolist()
            rows = self._rows[begin:end] - first
        places = np.arange(begin, end) if self._place is None else self._place[begin:end]
        rows = piece.in_piece(rows) if isinstance(piece, Selection) else rows
        if self._windows is not None:
            self._windows.append(whole, rows, places)
        elif isinstance(whole, SparsePiece):
            whole.place(rows, places, (shard.values, shard.indices, shard.indptr))
        else:
            whole.place(rows, places, shard.values)


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
        Whether to walk rows in an order drawn from `seed`, or as given. Data that need no conversion are not copied.
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
    **options: Any,
) -> Shard:
    """Make one shard of blocks of rows, walked in the same order however they are cut; several are copied once.

    - `options`: what else `ShardBuilder` takes.
    """
    if n_features is None or dtype is None or sparse is None:
        forms = [_form(X) for X, _, _ in blocks]
        n_features = _common_width([shape for shape, _, _ in forms], n_features)
        if dtype is None:
            is_single = bool(forms) and all(kind == np.float32 for _, kind, _ in forms)
            dtype = np.float32 if is_single else np.float64
        if sparse is None:
            sparse = any(is_sparse for _, _, is_sparse in forms)
    builder = ShardBuilder(n_features=n_features, dtype=dtype, sparse=sparse, **options)
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


def _inverse(order: AnyArray) -> IntVector:
    """Return where each number stands in an order."""
    places = np.empty(order.shape[0], np.int64)
    places[order] = np.arange(order.shape[0])
    return places


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
