"""Generated data with a known separator, the best accuracy that any classifier can reach, and twins of published sets.

Each row is drawn so that::

    clean label = sign(coef . x + intercept),     label = clean label, flipped with probability `noise`

so the best accuracy any classifier can have is ``1 - noise``, exactly, and (coef, intercept) has it. The intercept is
computed in closed form from the distribution of ``coef . x``, so that the share of positive labels is the given one.
Rows near the plane are moved away from it along coef, by `separation` standard deviations of ``coef . x``, so that a
learner with finitely many rows comes near the bound.

Rows come in blocks of 1,024 with a random stream each, keyed by (seed, block): any range of rows can be made on any
worker, without the rows before it, and is the same every time.

A twin has the rows, columns, density and class balance of a published set. Training rows are 0, 1, 2, ...; test rows
are numbered from 2**40 on, so the two never meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray
from scipy.special import gammaln, ndtr, stdtr, xlog1py, xlogy

from dsgd.errors import InvalidParameterError
from dsgd.validation import check_choice, check_number

BLOCK_ROWS = 1024
_SEPARATOR_STREAM = 1 << 62  # a block number no row reaches


@dataclass(frozen=True)
class Twin:
    """A recipe for rows: the distribution, the separator and the noise.

    Parameters
    ----------
    n_features : int
        Number of columns.
    density : float
        Probability that an entry is nonzero, in (0, 1].
    positive_share : float
        Share of labels that are +1, noise included; in (noise, 1 - noise).
    noise : float
        Probability that a label is flipped, in [0, 0.5).
    separation : float
        Standard deviations of ``coef . x`` that rows are moved away from the plane.
    unit_norm : bool
        Whether rows have Euclidean length 1; else their mean square length is 1.
    dense : bool
        Whether rows are returned as an ndarray rather than CSR.
    seed : int
        Chooses the separator and the rows.
    """

    n_features: int
    density: float = 1.0
    positive_share: float = 0.5
    noise: float = 0.05
    separation: float = 1.0
    unit_norm: bool = False
    dense: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("n_features=...", self.n_features, low=1)
        check_number("density=...", self.density, low=0, high=1, open_low=True)
        check_number("noise=...", self.noise, low=0, high=0.5, open_high=True)
        check_number("separation=...", self.separation, low=0)
        check_number("seed=...", self.seed, low=0)
        if not self.noise < self.positive_share < 1.0 - self.noise:
            raise InvalidParameterError(
                f"positive_share must be between noise and 1 - noise, got positive_share={self.positive_share} with "
                f"noise={self.noise}: flipping alone gives more labels of the rarer class than that"
            )

    @property
    def bayes_accuracy(self) -> float:
        """The best accuracy that is possible, reached by the separator."""
        return 1.0 - self.noise

    @cached_property
    def coef(self) -> NDArray[np.float64]:
        """The separator's direction: shape (n_features,), entries +-1/sqrt(n_features), so of length 1."""
        signs = _stream(self.seed, _SEPARATOR_STREAM).integers(0, 2, self.n_features)
        coef: NDArray[np.float64] = (2.0 * signs - 1.0) / np.sqrt(self.n_features)
        return coef

    @cached_property
    def intercept(self) -> float:
        """The separator's offset, which gives the share of positive labels."""
        from scipy.optimize import brentq

        clean_share = (self.positive_share - self.noise) / (1.0 - 2.0 * self.noise)
        if clean_share == 0.5:
            return 0.0
        counts, weights = self._support_sizes()
        widths = np.sqrt(np.maximum(counts, 1) / self.n_features) * (1.0 if self.unit_norm else self._scale)

        def share_above(threshold: float) -> float:
            ratio = threshold / widths
            if self.unit_norm:
                # cos(angle) of a random direction in k dimensions: t * sqrt(k - 1) / sqrt(1 - t^2) is Student's t
                inside = np.abs(ratio) < 1.0
                bounded = np.where(inside, ratio, 0.0)
                freedom = np.maximum(counts - 1, 1)
                above = stdtr(freedom, -bounded * np.sqrt(freedom / (1.0 - bounded**2)))
                above = np.where(inside, above, ratio < 0.0)
                above = np.where(counts == 1, np.where(inside, 0.5, ratio < 0.0), above)
            else:
                above = ndtr(-ratio)
            return float(weights @ np.where(counts == 0, threshold < 0.0, above)) - clean_share

        return -float(brentq(share_above, -1.0 if self.unit_norm else -20.0, 1.0 if self.unit_norm else 20.0))

    @property
    def _scale(self) -> float:
        """Standard deviation of a nonzero entry when rows are not normalised."""
        return float(1.0 / np.sqrt(self.density * self.n_features))

    def _support_sizes(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the numbers of nonzeros that a row can have, and their probabilities."""
        n, p = self.n_features, self.density
        centre, spread = n * p, 10.0 * np.sqrt(n * p * (1.0 - p)) + 10.0
        counts = np.arange(max(0, int(centre - spread)), min(n, int(centre + spread)) + 1)
        log_ways = gammaln(n + 1) - gammaln(counts + 1) - gammaln(n - counts + 1)
        return counts, np.exp(log_ways + xlogy(counts, p) + xlog1py(n - counts, -p))

    def rows(self, start: int, stop: int, *, dtype: DTypeLike = np.float64) -> tuple[Any, NDArray[np.float64]]:
        """Make rows start, start + 1, ..., stop - 1.

        Parameters
        ----------
        start, stop : int
            The range, 0 <= start <= stop.
        dtype : numpy dtype
            float32 or float64, of X.

        Returns
        -------
        X : ndarray (C-contiguous) or csr_matrix of shape (stop - start, n_features), dtype
            The rows.
        y : ndarray of shape (stop - start,), float64
            Labels -1 and 1.
        """
        if not 0 <= start <= stop:
            raise InvalidParameterError(f"rows must be a range 0 <= start <= stop, got start={start}, stop={stop}")
        n_rows = stop - start
        y = np.empty(n_rows)
        dense = np.empty((n_rows, self.n_features), dtype=dtype) if self.dense else None
        parts = []
        for block in range(start // BLOCK_ROWS, -(-stop // BLOCK_ROWS)):
            X, labels = self._block(block)
            first = block * BLOCK_ROWS
            cut = slice(max(start - first, 0), min(stop - first, BLOCK_ROWS))
            place = slice(first + cut.start - start, first + cut.stop - start)
            y[place] = labels[cut]
            if dense is not None:
                dense[place] = X[cut]
            else:
                parts.append(X[cut].astype(dtype))
        if dense is not None:
            return dense, y
        return sp.vstack(parts or [sp.csr_matrix((0, self.n_features), dtype=dtype)], format="csr"), y

    def _block(self, block: int) -> tuple[Any, NDArray[np.float64]]:
        """Make one block of BLOCK_ROWS rows in float64."""
        rng = _stream(self.seed, block)
        flips = rng.random(BLOCK_ROWS) < self.noise
        sparse = self.density < 0.5
        X: Any = self._draw_sparse(rng) if sparse else self._draw_dense(rng)
        stretch, shift, clean = self._move(X)
        if sparse:
            counts = np.diff(X.indptr)
            X.data *= np.repeat(stretch, counts)
            X.data += np.repeat(shift, counts) * self.coef[X.indices]
        else:
            mask = X != 0.0
            X *= stretch[:, None]
            X += (shift[:, None] * self.coef) * mask
        y = np.where(flips, -clean, clean)
        if self.dense:
            return (X.toarray() if sparse else X), y
        return (X if sparse else sp.csr_matrix(X)), y

    def _draw_dense(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw a block by one Gaussian number per entry."""
        X = rng.standard_normal((BLOCK_ROWS, self.n_features))
        if self.density < 1.0:
            X *= rng.random(X.shape) < self.density
        return self._normalised(X, np.sqrt(np.einsum("ij,ij->i", X, X)))

    def _draw_sparse(self, rng: np.random.Generator) -> sp.csr_matrix:
        """Draw a block by its nonzeros: Poisson many columns with replacement, of which repeats are dropped."""
        rate = -self.n_features * np.log1p(-self.density)
        counts = rng.poisson(rate, BLOCK_ROWS)
        keys = np.repeat(np.arange(BLOCK_ROWS, dtype=np.int64), counts) * self.n_features
        keys = np.unique(keys + rng.integers(0, self.n_features, keys.size))
        indptr = np.searchsorted(keys, np.arange(BLOCK_ROWS + 1, dtype=np.int64) * self.n_features)
        data = rng.standard_normal(keys.size)
        X = sp.csr_matrix(
            (data, (keys % self.n_features).astype(np.int32), indptr.astype(np.int32)),
            shape=(BLOCK_ROWS, self.n_features),
        )
        lengths = np.sqrt(np.bincount(keys // self.n_features, weights=data**2, minlength=BLOCK_ROWS))
        X.data = self._normalised(data[:, None], np.repeat(lengths, np.diff(indptr)))[:, 0]
        return X

    def _normalised(self, X: NDArray[np.float64], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scale rows to length 1, or to mean square length 1."""
        if self.unit_norm:
            return X / np.where(lengths > 0.0, lengths, 1.0)[:, None]
        X *= self._scale
        return X

    def _move(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return how rows leave the plane: x becomes ``stretch * x + shift * coef`` on its nonzero columns."""
        support = np.diff(X.indptr) if sp.issparse(X) else np.count_nonzero(X, axis=1)
        square = support / self.n_features  # |coef|^2 on the columns of the row
        projection = X @ self.coef
        clean = np.where(projection + self.intercept > 0.0, 1.0, -1.0)
        width = np.sqrt(self.density) * (1.0 / np.sqrt(support.mean() or 1.0) if self.unit_norm else self._scale)
        wanted = clean * self.separation * width
        if not self.unit_norm:
            return np.ones(BLOCK_ROWS), wanted / self.density, clean
        # On the unit sphere: turn the row in the plane it spans with coef, so that it stays of length 1.
        reach = np.sqrt(np.maximum(square, 1.0 / self.n_features))
        cosine = np.clip(projection / reach, -1.0, 1.0)
        target = np.clip((projection + wanted) / reach, -0.999, 0.999)
        movable = (support > 1) & (np.abs(cosine) < 0.999)
        stretch = np.where(movable, np.sqrt((1.0 - target**2) / np.where(movable, 1.0 - cosine**2, 1.0)), 1.0)
        shift = np.where(movable, (target - stretch * cosine) / reach, 0.0)
        return stretch, shift, clean


def _stream(seed: int, block: int) -> np.random.Generator:
    """Return the random stream of a block: a Philox counter keyed by (seed, block)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, block])))


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
    is_dense = density >= 0.3 if dense is None else dense
    twin = Twin(n_features, density, positive_share, noise, separation, unit_norm, is_dense, seed)
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
