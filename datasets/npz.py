"""Rows in ``.npz`` archives: the arrays X and y, or the parts of a CSR matrix and y."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dsgd.archive import ArchiveError, read_arrays
from dsgd.errors import InvalidDataError
from dsgd.types import AnyArray

_OF_CSR: Final = ("data", "indices", "indptr", "shape")


def write_npz(path: str | os.PathLike[str], X: Any, y: NDArray[np.float64]) -> None:
    """Write rows."""
    arrays = {"X": X}
    if sp.issparse(X):
        arrays = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": np.array(X.shape)}
    with Path(path).open("wb") as stream:
        np.savez(stream, **arrays, y=y)


def read_npz(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    """Return the rows and targets of an archive."""
    path = Path(path)
    try:
        with path.open("rb") as stream:
            arrays = read_arrays(stream, path.stat().st_size)
    except ArchiveError as error:
        raise InvalidDataError(f"{path}: not a readable .npz archive ({error})") from error
    if not {"X", "y"} <= set(arrays) and not {*_OF_CSR, "y"} <= set(arrays):
        raise InvalidDataError(
            f"{path}: needs the arrays X and y, or {', '.join(_OF_CSR)} and y for CSR; it has {', '.join(arrays)}"
        )
    y = arrays["y"]
    try:
        X = arrays["X"] if "X" in arrays else _csr(*(arrays[name] for name in _OF_CSR))
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidDataError(f"{path}: holds no rows in CSR form ({error})") from error
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise InvalidDataError(f"{path}: X{list(X.shape)} and y{list(y.shape)} are not rows with one target each")
    return X, y


def _csr(data: AnyArray, indices: AnyArray, indptr: AnyArray, shape: AnyArray) -> sp.csr_matrix:
    X = sp.csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()), copy=False)
    # Compiled code trusts them.
    X.check_format(full_check=True)
    return X
