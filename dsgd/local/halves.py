"""Dense rows that are rounded to 16 bits when they are packed, see `dsgd.kernels.halves`.

Rows are hashed as the numbers that they are rounded to. So they come to the places, and to the ranks, of float32 rows
of these numbers, and training on either gives the same model to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.kernels.halves import BFLOAT16, FLOAT16, round_rows, widen
from dsgd.kernels.rows import fingerprint_dense
from dsgd.local.order import Words, word_type
from dsgd.types import AnyArray, FloatMatrix, IntVector

__all__ = [
    "STORAGES",
    "RoundedPiece",
    "readable_words",
    "refuse_sparse",
    "rounded_pieces",
    "storage_of",
    "widened",
    "word_dtype",
]


@dataclass(frozen=True)
class _Format:
    """A format of 16 bits: its code, the type that tells its words in arrays, its largest number, the least beyond."""

    code: int
    words: np.dtype[Any]
    most: float
    limit: float


# A number that lies nearer to the largest than to what would be the next is rounded to the largest.
_FORMATS: Final = {
    "float16": _Format(FLOAT16, np.dtype(np.int16), 65504.0, 65520.0),
    "bfloat16": _Format(BFLOAT16, np.dtype(np.uint16), (2.0 - 2.0**-7) * 2.0**127, (2.0 - 2.0**-8) * 2.0**127),
}
#: Formats of 16 bits in which rows can be kept.
STORAGES: Final = tuple(_FORMATS)

# Rows are hashed and converted so many bytes at a time, which stay in the second cache.
_PART_BYTES: Final = 1 << 18
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class RoundedPiece:
    """Dense rows of one block, to be rounded.

    Parameters
    ----------
    X : array of float32 or float64, shape (n_rows, n_features)
        The rows; C-contiguous where `is_readable`.
    storage : str
        The format.
    is_readable : bool
        Whether kernels can read the rows as they are.
    """

    X: AnyArray
    storage: str
    is_readable: bool

    #: A shard holds words, and never these rows themselves.
    fits_directly: ClassVar[bool] = False

    @property
    def n_rows(self) -> int:
        """Rows of the piece."""
        return int(self.X.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of its rows."""
        return int(self.X.nbytes)

    def is_in(self, shard: object) -> bool:
        """Return False: a shard has other memory."""
        return False

    def lengths(self) -> IntVector:
        """Return nothing: dense rows are all as long."""
        return np.empty(0, np.int64)

    def part(self, start: int, stop: int) -> RoundedPiece:
        """Return rows start..stop, as views."""
        return RoundedPiece(self.X[start:stop], self.storage, self.is_readable)

    def rows(self) -> FloatMatrix:
        """Return the rows as kernels read them: contiguous, of float32 or float64, writable."""
        if self.is_readable:
            return self.X
        dtype = np.float32 if self.X.dtype == np.float32 else np.float64
        return np.array(self.X, dtype, order="C", copy=True)

    def add_fingerprints(self, out: Words) -> bool:
        """Add the fingerprint of each row, rounded, to `out`; return whether all values are finite.

        Raises
        ------
        InvalidDataError
            A number is too large for the format.
        """
        rows, n_features, are_finite = self.rows(), max(1, self.X.shape[1]), True
        stride = max(1, _PART_BYTES // (4 * n_features))
        words = np.empty((stride, self.X.shape[1]), word_dtype(self.storage))
        numbers, code = np.empty(words.shape, np.float32), _FORMATS[self.storage].code
        for start in range(0, self.n_rows, stride):
            n = min(stride, self.n_rows - start)
            counted = np.arange(n)
            are_finite &= self._round(rows[start : start + n], counted, counted, words)
            widen(words[:n].reshape(-1).view(np.uint16), code, numbers[:n].reshape(-1))
            fingerprint_dense(numbers[:n].view(word_type(numbers.dtype)), out[start : start + n])
        return are_finite

    def place(self, rows: IntVector, places: IntVector, values: AnyArray) -> None:
        """Write row ``rows[v]``, rounded, to row ``places[v]`` of `values`, for every visit v.

        Raises
        ------
        InvalidDataError
            A number is too large for the format.
        """
        self._round(self.rows(), rows, places, values)

    def _round(self, block: FloatMatrix, rows: IntVector, places: IntVector, out: AnyArray) -> bool:
        """Do what `place` does; return whether all numbers are finite."""
        kept = _FORMATS[self.storage]
        if not round_rows(block, rows, places, out.view(np.uint16), kept.code, kept.limit):
            return True
        stride = max(1, _PIECE_BYTES // max(1, block.shape[1] * block.itemsize))
        for start in range(0, len(block), stride):
            _check_sizes(block[start : start + stride], self.storage)
        return False


def _check_sizes(rows: FloatMatrix, storage: str) -> None:
    """Raise `InvalidDataError` for the column of the largest number if that is finite and too large for a format."""
    sizes = np.abs(rows)
    # Others see to what is no finite number.
    sizes[~np.isfinite(sizes)] = 0.0
    column = int(np.argmax(sizes.max(axis=0, initial=0.0)))
    largest = float(sizes[:, column].max())
    if largest >= _FORMATS[storage].limit:
        other = "" if storage == "bfloat16" else ", or set storage='bfloat16', which has the range of float32"
        raise InvalidDataError(
            f"storage={storage!r} holds numbers up to {_FORMATS[storage].most:.6g}, and column {column} of X has "
            f"{largest:.6g}. Scale this column, as with sklearn.preprocessing.MaxAbsScaler{other}."
        )


def rounded_pieces(X: AnyArray, storage: str) -> Iterator[RoundedPiece]:
    """Cut a block into pieces to round; into one if kernels can read it as it is."""
    if X.dtype in (np.float32, np.float64) and X.flags.carray:
        yield RoundedPiece(X, storage, is_readable=True)
        return
    step = max(1, _PIECE_BYTES // max(1, X.shape[1] * 8))
    for start in range(0, X.shape[0], step):
        yield RoundedPiece(X[start : start + step], storage, is_readable=False)


def word_dtype(storage: str) -> np.dtype[Any]:
    """Return the type of the words of a format."""
    return _FORMATS[storage].words


def storage_of(values: AnyArray) -> str | None:
    """Return the format of values that are words; None for numbers."""
    return next((name for name, kept in _FORMATS.items() if kept.words == values.dtype), None)


def readable_words(words: AnyArray) -> tuple[AnyArray, int]:
    """Return words, one after another, as kernels read them, and the code of their format."""
    return words.reshape(-1).view(np.uint16), _FORMATS[str(storage_of(words))].code


def widened(words: AnyArray) -> FloatMatrix:
    """Return the numbers that words stand for, in an array of the same shape."""
    numbers = np.empty(words.shape, np.float32)
    widen(*readable_words(words), numbers.reshape(-1))
    return numbers


def refuse_sparse(storage: str) -> None:
    """Raise `InvalidDataError`, as rows are sparse."""
    raise InvalidDataError(
        f"storage={storage!r} keeps dense rows in 16 bits, and X is sparse: beside the numbers of its columns, 32 bits "
        "each, little would be saved. Leave storage at None."
    )
