"""Row blocks on the workers: look at each one once, then pack those of a rank into its shard.

These functions run on the workers, beside the data. What a look brings back is a few numbers per block, so the client
learns classes, counts, widths and defects without any row travelling to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from dsgd.errors import InvalidDataError
from dsgd.local import Shard, concat_blocks
from dsgd.runtime.train import TrainData
from dsgd.types import AnyArray

__all__ = ["Block", "BlockSummary", "Packer", "hold_out", "make_block", "summarise"]

Block: TypeAlias = tuple[Any, Any, Any]  # X (n, d) dense or CSR, y (n,), sample_weight (n,) or None


@dataclass(frozen=True)
class BlockSummary:
    """What the client needs to know of a block.

    Parameters
    ----------
    rows, n_features, nbytes : int
        Its size.
    dtype : str
        ``"float32"`` if X is that, else ``"float64"``.
    sparse : bool
        Whether X is CSR.
    classes : array or None
        Sorted distinct targets, for classification.
    counts : array or None
        Rows of each of `classes`.
    problem : str
        What is wrong with the block; empty if nothing is.
    """

    rows: int
    n_features: int
    nbytes: int
    dtype: str
    sparse: bool
    classes: AnyArray | None = None
    counts: AnyArray | None = None
    problem: str = ""


def make_block(X: Any, y: Any = None, sample_weight: Any = None) -> Block:
    """Bring a chunk, partition or tuple into the form (X, y, sample_weight) of numpy arrays and CSR matrices.

    Parameters
    ----------
    X : array, sparse matrix, DataFrame, or a tuple (X, y) or (X, y, sample_weight)
        The rows.
    y, sample_weight : array, Series or None
        One entry per row.

    Returns
    -------
    tuple
        ``(X, y, sample_weight)``.
    """
    if isinstance(X, (tuple, list)) and y is None:
        X, y, sample_weight = (*X, None)[:3]
    if hasattr(X, "tocsr"):
        X = X.tocsr()
    else:
        X = np.asarray(X)
    if y is not None:
        y = np.asarray(y)
        y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
    if sample_weight is not None:
        sample_weight = np.asarray(sample_weight).ravel()
    return X, y, sample_weight


def summarise(block: Block, *, classification: bool) -> BlockSummary:
    """Look at a block.

    Parameters
    ----------
    block : tuple
        As `make_block` returns it.
    classification : bool
        Whether targets are classes.

    Returns
    -------
    BlockSummary
        With `problem` set if the block cannot be trained on.
    """
    X, y, weights = block
    sparse = sp.issparse(X)
    problem = _problem(X, y, weights, classification=classification)
    n_features = X.shape[1] if X.ndim == 2 else 0
    nbytes = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if sparse else X.nbytes
    classes = counts = None
    if classification and not problem:
        try:
            classes, counts = np.unique(y, return_counts=True)
        except TypeError as error:
            problem = f"y mixes labels that cannot be sorted ({error}); use one type of label"
    dtype = "float32" if X.dtype == np.float32 else "float64"
    return BlockSummary(X.shape[0], n_features, int(nbytes), dtype, sparse, classes, counts, problem)


def _problem(X: Any, y: Any, weights: Any, *, classification: bool) -> str:
    if X.ndim != 2:
        return f"X has {X.ndim} dimension(s), expected 2"
    if X.dtype.kind not in "fiub":
        return f"X has dtype {X.dtype}, expected numbers"
    if y is None:
        return "there are no targets: y is missing"
    if y.ndim != 1 or len(y) != X.shape[0]:
        return f"X has {X.shape[0]} rows and y has shape {y.shape}"
    values = X.data if sp.issparse(X) else X
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return f"Input X contains {'NaN' if np.isnan(values).any() else 'infinity'}"
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        return "Input y contains NaN or infinity"
    if not classification and y.dtype.kind not in "fiub":
        return f"y has dtype {y.dtype}, expected numbers"
    if weights is not None:
        if len(weights) != X.shape[0]:
            return f"X has {X.shape[0]} rows and sample_weight has {len(weights)}"
        if not np.isfinite(weights).all() or (weights < 0).any():
            return "sample_weight must be finite and not negative"
    return ""


@dataclass(frozen=True)
class Packer:
    """Packs the blocks of a rank into its shards; sent to every rank.

    Parameters
    ----------
    classes : array or None
        All classes, sorted; None for regression.
    n_features : int
        Width of the model.
    dtype : str
        ``"float32"`` or ``"float64"``.
    sparse : bool
        Whether shards are CSR.
    shuffle : bool
        Whether rows are walked in the keyed order or as given.
    seed : int
        Seed of the order and of the validation split.
    validation_fraction : float
        Share of the rows held out; 0 for none.
    """

    classes: AnyArray | None
    n_features: int
    dtype: str
    sparse: bool
    shuffle: bool
    seed: int
    validation_fraction: float

    def __call__(self, blocks: Sequence[Block], rank_number: int) -> TrainData:
        """Return the rows of rank `rank_number`, made of its blocks in order."""
        encoded = [(self._widen(X), self.targets(y), weights) for X, y, weights in blocks]
        if not self.validation_fraction:
            return TrainData(self._pack(encoded))
        rng = np.random.default_rng([self.seed, rank_number])
        held_out = [
            hold_out(t, self.validation_fraction, rng, stratify=self.classes is not None) for _, t, _ in encoded
        ]
        kept = [_take(block, ~mask) for block, mask in zip(encoded, held_out, strict=True)]
        validation = [_take(block, mask) for block, mask in zip(encoded, held_out, strict=True)]
        return TrainData(self._pack(kept), self._pack(validation))

    def targets(self, y: AnyArray) -> AnyArray:
        """Return what the kernels learn: -1/+1 for two classes, codes for more, values for regression."""
        if self.classes is None:
            return np.asarray(y, dtype=self.dtype)
        codes = np.searchsorted(self.classes, y)
        return (2.0 * codes - 1.0 if len(self.classes) == 2 else codes).astype(self.dtype)

    def _widen(self, X: Any) -> Any:
        # A svmlight file does not say how many features there are, only which it uses.
        if sp.issparse(X) and X.shape[1] < self.n_features:
            return sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], self.n_features))
        return X

    def _pack(self, blocks: Sequence[Block]) -> Shard:
        return concat_blocks(
            blocks,
            n_features=self.n_features,
            dtype=self.dtype,
            sparse=self.sparse,
            shuffle=self.shuffle,
            seed=self.seed,
        )


def hold_out(targets: AnyArray, fraction: float, rng: np.random.Generator, *, stratify: bool) -> AnyArray:
    """Choose rows for validation.

    Parameters
    ----------
    targets : array, shape (n,)
        Encoded targets.
    fraction : float
        Share to hold out, of every class when stratified; at least one row of the whole is kept for training.
    rng : numpy.random.Generator
        Draws the rows.
    stratify : bool
        Whether each class gives its share.

    Returns
    -------
    array of bool, shape (n,)
        True where a row is held out.
    """
    mask = np.zeros(len(targets), dtype=bool)
    groups = [np.flatnonzero(targets == value) for value in np.unique(targets)] if stratify else [np.arange(len(mask))]
    for rows in groups:
        n_held = min(round(fraction * len(rows)), len(rows) - 1)
        mask[rng.permutation(rows)[: max(0, n_held)]] = True
    return mask


def _take(block: Block, mask: AnyArray) -> Block:
    X, targets, weights = block
    return X[mask], targets[mask], None if weights is None else weights[mask]


def check_summaries(summaries: Sequence[BlockSummary]) -> None:
    """Raise for the first block that cannot be trained on, or when blocks do not fit each other.

    Raises
    ------
    InvalidDataError
        Names the block, counted from 0.
    """
    for number, summary in enumerate(summaries):
        if summary.problem:
            raise InvalidDataError(f"block {number} of {len(summaries)}: {summary.problem}.")
    if not sum(s.rows for s in summaries):
        raise InvalidDataError("Found array with 0 sample(s) in all blocks together; a minimum of 1 is required.")
    filled = [s for s in summaries if s.rows]
    if len({s.sparse for s in filled}) > 1:
        raise InvalidDataError("some blocks of X are sparse and some are dense. Convert them to one kind.")
    widths = {s.n_features for s in filled}
    if len(widths) > 1 and not filled[0].sparse:
        raise InvalidDataError(f"blocks of X have different numbers of features: {sorted(widths)}.")
