"""Generated data sets with a known separator and noise level.

A twin has the rows, columns, density and class balance of a published set; `dsgd.datasets.Twin` draws its rows.
Training rows are 0, 1, 2, ...; test rows are numbered from 2**40 on, so the two never meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from dsgd.datasets.twin import Twin
from dsgd.errors import InvalidParameterError
from dsgd.validation import check_choice, check_number

TEST_START = 1 << 40


@dataclass(frozen=True)
class PublishedShape:
    """What a twin takes from the published set: its rows, and the recipe."""

    n_train: int
    n_test: int
    twin: Twin


#: Published sets that can be made: their shapes, and recipes for rows like theirs.
TWINS: dict[str, PublishedShape] = {
    "ijcnn1": PublishedShape(49_990, 91_701, Twin(22, 13 / 22, 0.097, noise=0.03, separation=0.5)),
    "webspam": PublishedShape(280_000, 70_000, Twin(254, 0.3352, 0.6063, noise=0.04, separation=0.5, unit_norm=True)),
    "epsilon": PublishedShape(400_000, 100_000, Twin(2000, 1.0, 0.5, noise=0.05, separation=0.5, unit_norm=True)),
    "a9a": PublishedShape(32_561, 16_281, Twin(123, 0.1128, 0.2408, noise=0.05, separation=0.5, dense=False)),
    "w8a": PublishedShape(49_749, 14_951, Twin(300, 0.0388, 0.0297, noise=0.005, separation=0.75, dense=False)),
    "rcv1": PublishedShape(
        20_242, 677_399, Twin(47_236, 0.0016, 0.52, noise=0.03, separation=2.0, unit_norm=True, dense=False)
    ),
    "higgs": PublishedShape(10_500_000, 500_000, Twin(28, 1.0, 0.53, noise=0.3, separation=0.5)),
    # Its 39 columns as hashed features.
    "criteo": PublishedShape(
        45_840_617, 6_042_135, Twin(2**17, 39 / 2**17, 0.2562, noise=0.1, separation=1.0, unit_norm=True, dense=False)
    ),
}


@dataclass(frozen=True, eq=False)
class GeneratedSet:
    """Generated rows, with their separator and the best accuracy.

    Parameters
    ----------
    X : ndarray, csr_matrix or dask array of shape (n_rows, n_features)
        The rows.
    y : ndarray or dask array of shape (n_rows,), float64
        Labels -1 and 1.
    coef : ndarray of shape (n_features,), float64
        The separator's direction, of length 1.
    intercept : float
        Its offset.
    bayes_accuracy : float
        The best accuracy that is possible, which the separator has in expectation.
    twin : Twin
        The recipe.
    """

    X: Any
    y: Any
    coef: NDArray[np.float64] = field(repr=False)
    intercept: float
    bayes_accuracy: float
    twin: Twin


def make_classification_twin(
    n_rows: int,
    n_features: int,
    *,
    density: float = 1.0,
    positive_share: float = 0.5,
    noise: float = 0.05,
    separation: float = 1.0,
    unit_norm: bool = False,
    dense: bool | None = None,
    seed: int = 0,
    dtype: DTypeLike = np.float64,
    chunks: int | None = None,
    start: int = 0,
) -> GeneratedSet:
    """Make a binary classification set with a known linear separator and a known best accuracy.

    Parameters
    ----------
    n_rows, n_features : int
        Shape of X.
    density, positive_share, noise, separation, unit_norm, seed
        See `Twin`.
    dense : bool or None
        Whether X is an ndarray rather than CSR; None decides by density >= 0.3.
    dtype : numpy dtype
        float32 or float64, of X.
    chunks : int or None
        Rows per chunk of a dask array, whose chunks are made where they are needed; None gives X and y at once.
    start : int
        Number of the first row: rows i to j of one seed are the same in every call that covers them.

    Returns
    -------
    GeneratedSet
        X, y, the separator and the best accuracy.

    Raises
    ------
    InvalidParameterError
        An argument is out of range.
    """
    twin = Twin(
        n_features=n_features,
        density=density,
        positive_share=positive_share,
        noise=noise,
        separation=separation,
        unit_norm=unit_norm,
        dense=density >= 0.3 if dense is None else dense,
        seed=seed,
    )
    return generate(twin, start, n_rows, dtype=dtype, chunks=chunks)


def make_like(
    name: str,
    n_rows: int | None = None,
    *,
    split: str = "train",
    seed: int = 0,
    dtype: DTypeLike = np.float64,
    dense: bool | None = None,
    chunks: int | None = None,
) -> GeneratedSet:
    """Make the twin of a published set.

    Parameters
    ----------
    name : str
        A name in `TWINS`; ``"ijcnn1-like"`` means the same as ``"ijcnn1"``.
    n_rows : int or None
        Number of rows; None makes as many as the published part has.
    split : {"train", "test"}
        Rows of the two parts are drawn from the same law and never coincide.
    seed : int
        Chooses the separator and the rows.
    dtype : numpy dtype
        float32 or float64, of X.
    dense : bool or None
        Whether X is an ndarray rather than CSR; None does as for the published set.
    chunks : int or None
        Rows per chunk of a dask array; None gives X and y at once.

    Returns
    -------
    GeneratedSet
        X, y, the separator and the best accuracy.

    Raises
    ------
    InvalidParameterError
        There is no such twin, or an argument is out of range.
    """
    base = name.removesuffix("-like")
    if base not in TWINS:
        raise InvalidParameterError(f"there is no twin of {name!r}; there is {', '.join(sorted(TWINS))}")
    check_choice("split=...", split, ("train", "test"))
    shape = TWINS[base]
    twin = replace(shape.twin, seed=seed, dense=shape.twin.dense if dense is None else dense)
    published = shape.n_train if split == "train" else shape.n_test
    start = 0 if split == "train" else TEST_START
    return generate(twin, start, published if n_rows is None else n_rows, dtype=dtype, chunks=chunks)


def generate(twin: Twin, start: int, n_rows: int, *, dtype: DTypeLike, chunks: int | None) -> GeneratedSet:
    """Make rows of a recipe, at once or as dask arrays."""
    check_number("n_rows=...", n_rows, low=1)
    check_choice("dtype=...", np.dtype(dtype).name, ("float32", "float64"))
    if chunks is None:
        X, y = twin.rows(start, start + n_rows, dtype=dtype)
    else:
        X, y = _as_dask(twin, start, n_rows, dtype, chunks)
    return GeneratedSet(X, y, twin.coef, twin.intercept, twin.bayes_accuracy, twin)


def _as_dask(twin: Twin, start: int, n_rows: int, dtype: DTypeLike, chunks: int) -> tuple[Any, Any]:
    """Return dask arrays whose chunks are generated by the task that needs them."""
    import dask
    import dask.array as da

    check_number("chunks=...", chunks, low=1)
    # Chunks that end where blocks end spare drawing a block twice; the rows are the same either way.
    make = dask.delayed(twin.rows, nout=2, pure=True)
    meta = np.empty((0, 0), dtype=dtype) if twin.dense else sp.csr_matrix((0, 0), dtype=dtype)
    columns, labels = [], []
    for first in range(start, start + n_rows, chunks):
        stop = min(first + chunks, start + n_rows)
        X, y = make(first, stop, dtype=np.dtype(dtype))
        columns.append(da.from_delayed(X, shape=(stop - first, twin.n_features), meta=meta))
        labels.append(da.from_delayed(y, shape=(stop - first,), dtype=np.float64))
    return da.concatenate(columns, axis=0), da.concatenate(labels)
