"""Rows in ``.npz`` archives: the arrays X and y, or the parts of a CSR matrix and y."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

__all__ = ["read_npz", "write_npz"]


def write_npz(path: str | os.PathLike[str], X: Any, y: NDArray[np.float64]) -> None:
    """Write rows.

    Parameters
    ----------
    path : path
        The file, with any suffix.
    X : ndarray or CSR matrix, shape (n_rows, n_features)
        The rows.
    y : ndarray, shape (n_rows,)
        Their targets.
    """
    arrays = {"X": X}
    if sp.issparse(X):
        arrays = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": np.array(X.shape)}
    with Path(path).open("wb") as stream:
        np.savez(stream, **arrays, y=y)


def read_npz(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    """Return the rows and targets of an archive.

    Raises
    ------
    KeyError
        An array is missing.
    OSError, ValueError, EOFError, zipfile.BadZipFile
        There is no such file, or it is no archive.
    """
    with np.load(path, allow_pickle=False) as archive:
        y = archive["y"]
        if "X" in archive.files:
            return archive["X"], y
        parts = (archive["data"], archive["indices"], archive["indptr"])
        return sp.csr_matrix(parts, shape=tuple(archive["shape"]), copy=False), y
