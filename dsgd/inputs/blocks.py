"""Row blocks on the workers, and the summary of each that the client gets.

These functions run on the workers, where the data is. A summary is a few numbers per block, so the client learns
classes, counts, widths and defects without receiving any rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from dsgd.errors import InvalidDataError
from dsgd.inputs.frames import column_values, is_table, table_values
from dsgd.local.order import count_visits
from dsgd.types import AnyArray, IndexVector

Block: TypeAlias = tuple[Any, Any, Any]  # X (n, d) dense or CSR, y (n,), sample_weight (n,) or None


@dataclass(frozen=True)
class BlockSummary:
    """A summary of a block for the client."""

    rows: int
    n_features: int
    nbytes: int
    dtype: str
    sparse: bool
    classes: AnyArray | None = None
    counts: AnyArray | None = None
    problem: str = ""
    nnz: int = 0
    visits: int = 0
    weight: float | None = None
    least: float = math.inf


def make_block(X: Any, y: Any = None, sample_weight: Any = None) -> Block:
    """Convert a chunk, partition or tuple to (X, y, sample_weight) of numpy arrays and CSR matrices."""
    if isinstance(X, (tuple, list)) and y is None:
        X, y, sample_weight = (*X, None)[:3]
    if hasattr(X, "tocsr"):
        X = X.tocsr()
    else:
        X = table_values(X) if is_table(X) else np.asarray(X)
    if y is not None:
        y = column_values(y, "y")
        y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
    if sample_weight is not None:
        sample_weight = column_values(sample_weight, "sample_weight").ravel()
    return X, y, sample_weight


def summarise(
    block: Block,
    *,
    classification: bool,
    supervised: bool = True,
    any_shape: bool = False,
    rows_are_checked: bool = False,
) -> BlockSummary:
    """Summarise a block."""
    X, y, weights = block
    sparse = sp.issparse(X)
    problem = "" if rows_are_checked else _row_problem(X, any_shape=any_shape)
    problem = problem or _weight_problem(X, weights)
    if supervised and not problem:
        problem = _target_problem(X, y, classification=classification, any_shape=any_shape)
    n_features = X.shape[1] if X.ndim == 2 or (any_shape and X.ndim > 2) else 0
    classes = counts = None
    if classification and not problem:
        try:
            classes, counts = np.unique(y, return_counts=True)
        except TypeError as error:
            problem = f"y mixes labels that cannot be sorted ({error}); use one type of label"
            if any(label is None for label in y):
                problem = "y has missing values; drop the rows without a value"
    dtype = "float32" if X.dtype == np.float32 else "float64"
    n_visits = X.shape[0] if weights is None or problem else int(count_visits(np.asarray(weights, np.float64)).sum())
    nnz = int(X.nnz) if sparse else int(X.size)
    total = None if weights is None or problem else float(np.sum(weights, dtype=np.float64))
    has_numbers = supervised and not classification and not problem and len(y) > 0
    return BlockSummary(
        X.shape[0],
        n_features,
        nbytes_of(X),
        dtype,
        sparse,
        classes,
        counts,
        problem,
        nnz=nnz,
        visits=n_visits,
        weight=total,
        least=float(np.min(y)) if has_numbers else math.inf,
    )


def summarise_part(rows: Block, mine: slice | IndexVector, **expected: bool) -> BlockSummary:
    """Summarise some rows of an array as the block of them would be, without taking them out."""
    X, y, weights = rows
    n_rows = mine.stop - mine.start if isinstance(mine, slice) else mine.shape[0]
    # As large as the rows, and of one number.
    outline = np.broadcast_to(np.zeros((), X.dtype), (n_rows, *X.shape[1:]))
    columns = [None if part is None else part[mine] for part in (y, weights)]
    found = summarise((outline, columns[0], columns[1]), **expected)
    if not sp.issparse(X):
        return found
    nnz = int(np.diff(X.indptr)[mine].sum())
    nbytes = nnz * (X.data.itemsize + X.indices.itemsize) + (n_rows + 1) * X.indptr.itemsize
    return replace(found, sparse=True, nnz=nnz, nbytes=nbytes)


def _row_problem(X: Any, *, any_shape: bool) -> str:
    if X.ndim != 2 and not (any_shape and X.ndim > 2):
        return f"X has {X.ndim} dimension(s), expected 2"
    if X.dtype.kind not in "fiub":
        return f"X has dtype {X.dtype}, expected numbers"
    values = X.data if sp.issparse(X) else X
    if values.dtype.kind == "f" and not (has_finite_sum(values) or np.isfinite(values).all()):
        return f"Input X contains {'NaN' if np.isnan(values).any() else 'infinity'}"
    return ""


def has_finite_sum(values: AnyArray) -> bool:
    """Return whether the sum of values is finite, as then each of them is: one pass that allocates nothing."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.sum(values)))


def _target_problem(X: Any, y: Any, *, classification: bool, any_shape: bool) -> str:
    if y is None:
        return "there are no targets: y is missing"
    has_shape = y.ndim == 1 or (any_shape and not classification and y.ndim == 2)
    if not has_shape or len(y) != X.shape[0]:
        return f"X has {X.shape[0]} rows and y has shape {y.shape}"
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        return "Input y contains NaN or infinity"
    if not classification and y.dtype.kind not in "fiub":
        return f"y has dtype {y.dtype}, expected numbers"
    return ""


def _weight_problem(X: Any, weights: Any) -> str:
    if weights is None:
        return ""
    if len(weights) != X.shape[0]:
        return f"X has {X.shape[0]} rows and sample_weight has {len(weights)}"
    if not np.isfinite(weights).all() or (weights < 0).any():
        return "sample_weight must be finite and not negative"
    return ""


def nbytes_of(*arrays: Any) -> int:
    """Return the bytes of arrays, CSR matrices and nothing (None)."""
    parts = [(a.data, a.indices, a.indptr) if sp.issparse(a) else (a,) for a in arrays if a is not None]
    return sum(int(part.nbytes) for each in parts for part in each)


def targets_of(block: Block) -> Any:
    """Return the targets of a block."""
    _, y, _ = block
    return y


def widen(X: Any, n_features: int) -> Any:
    """Return a CSR block with `n_features` columns, a view; dense blocks have their width already.

    An svmlight file lists only the features that it uses, not how many there are.
    """
    if sp.issparse(X) and X.shape[1] < n_features:
        return sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], n_features))
    return X


def check_summaries(summaries: Sequence[BlockSummary]) -> None:
    """Raise for the first block that cannot be trained on, or if blocks do not match."""
    for number, summary in enumerate(summaries):
        if summary.problem:
            raise InvalidDataError(f"block {number} of {len(summaries)}: {summary.problem}.")
    if not sum(s.rows for s in summaries):
        raise InvalidDataError("Found array with 0 sample(s) in all blocks together; a minimum of 1 is required.")
    filled = [s for s in summaries if s.rows]
    if len({s.sparse for s in filled}) > 1:
        raise InvalidDataError("some blocks of X are sparse and some are dense. Convert them to one kind.")
    widths = {s.n_features for s in filled}
    if widths == {0}:
        raise InvalidDataError("Found array with 0 feature(s) in all blocks; a minimum of 1 is required.")
    if len(widths) > 1 and not filled[0].sparse:
        raise InvalidDataError(f"blocks of X have different numbers of features: {sorted(widths)}.")


def hold_out(targets: AnyArray, fraction: float, rng: np.random.Generator, *, stratify: bool) -> AnyArray:
    """Choose rows for validation."""
    mask = np.zeros(len(targets), dtype=bool)
    groups = [np.flatnonzero(targets == value) for value in np.unique(targets)] if stratify else [np.arange(len(mask))]
    for rows in groups:
        n_held = min(round(fraction * len(rows)), len(rows) - 1)
        mask[rng.permutation(rows)[: max(0, n_held)]] = True
    return mask
