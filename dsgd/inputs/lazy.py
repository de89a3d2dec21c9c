"""Lazy prediction and scoring on dask collections, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.validation import check_consistent_length, column_or_1d

from dsgd.errors import InvalidDataError
from dsgd.inputs.blocks import Block, make_block
from dsgd.inputs.sources import to_delayed_blocks
from dsgd.inputs.tables.reading import is_frame
from dsgd.local.base import Evaluation
from dsgd.types import AnyArray


def apply(model: Any, method: str, X: Any, n_columns: int | None, dtype: np.dtype[Any]) -> Any:
    """Return the lazy result of ``model.method`` on every block of X."""
    import dask

    width = X.shape[1]
    # An encoder finds the columns of a frame by their names.
    finds = getattr(model, "encoder_", None) is not None and hasattr(X, "map_partitions")
    if width != model.n_features_in_ and not finds:
        raise InvalidDataError(
            f"X has {width} features, but {type(model).__name__} is expecting {model.n_features_in_} features as input."
        )
    # One node, shared by the tasks of all blocks. Its key is random, because a hash would read the whole model.
    shared = dask.delayed(model, pure=False)
    if hasattr(X, "map_partitions"):
        return X.map_partitions(_on_frame, shared, method, meta=_frame_meta(X, n_columns, dtype))
    for axis, n_blocks in enumerate(X.numblocks[1:], start=1):
        if n_blocks > 1:
            what = "columns" if X.ndim == 2 else f"axis {axis}"
            raise InvalidDataError(
                f"X is chunked along its {what} ({n_blocks} column blocks). Use X.rechunk({{{axis}: -1}})."
            )
    shape = (0,) if n_columns is None else (0, 0)
    options: dict[str, Any] = {"drop_axis": list(range(len(shape), X.ndim))}
    if n_columns is not None:
        options["chunks"] = (X.chunks[0], (n_columns,))
    return X.map_blocks(_on_array, shared, method, dtype=dtype, meta=np.empty(shape, dtype=dtype), **options)


def accuracy(model: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """Compute the share of (weighted) rows that a classifier predicts right; no row leaves its worker."""
    right, total = _added_up(_accuracy_sums, model, X, y, sample_weight)
    return float(right / total)


def r2(model: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """Compute 1 - sum w (y - f)^2 / sum w (y - mean y)^2 of a regressor f; no row leaves its worker."""
    weight, y_sum, y2_sum, residual = _added_up(_r2_sums, model, X, y, sample_weight)
    return float(1 - residual / (y2_sum - y_sum**2 / weight))


def d2(model: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """Compute the share of the deviance that a regressor with a log link explains; no row leaves its worker."""
    found = Evaluation.from_vector(_added_up(_d2_sums, model, X, y, sample_weight))
    return float(model._deviance.explained(found))


def d2_here(model: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """Compute the same of arrays, tables and files of tables in this process."""
    scores = model._scores(X).ravel()
    check_consistent_length(scores, y, sample_weight)  # files have no length before they are read
    weights = None if sample_weight is None else column_or_1d(sample_weight)
    return float(model._deviance.explained(_deviances(model, scores, column_or_1d(y), weights)))


def _added_up(sums_of: Callable[..., AnyArray], model: Any, X: Any, y: Any, sample_weight: Any) -> AnyArray:
    """Return the sum over all blocks of what `sums_of` returns for a model and a block."""
    import dask

    shared = dask.delayed(model, pure=False)
    sums = dask.delayed(sums_of, pure=False)
    # Rows are passed to the model unchanged: it checks the column names of a table.
    parts = [sums(shared, block) for block in to_delayed_blocks(X, y, sample_weight, build=with_targets)]
    return np.sum(dask.compute(*parts), axis=0)  # type: ignore[no-any-return]


def with_targets(X: Any, y: Any = None, sample_weight: Any = None) -> Block:
    """Return a block; rows of a table stay a table."""
    if isinstance(X, (tuple, list)) and y is None:
        X, y, sample_weight = (*X, None)[:3]
    if is_frame(X):
        return X, *make_block(np.empty((len(X), 0)), y, sample_weight)[1:]
    return make_block(X, y, sample_weight)


def _accuracy_sums(model: Any, block: Any) -> AnyArray:
    X, y, sample_weight = block
    weights = np.ones(len(y)) if sample_weight is None else sample_weight
    right = model.predict(X) == y if len(y) else np.zeros(0, dtype=bool)
    return np.array([np.sum(weights * right), np.sum(weights)], dtype=np.float64)


def _r2_sums(model: Any, block: Any) -> AnyArray:
    X, y, sample_weight = block
    weights = np.ones(len(y)) if sample_weight is None else sample_weight
    predicted = model.predict(X) if len(y) else np.zeros(0)
    y = np.asarray(y, dtype=np.float64)
    return np.array([weights.sum(), weights @ y, weights @ y**2, weights @ (y - predicted) ** 2], dtype=np.float64)


def _d2_sums(model: Any, block: Any) -> AnyArray:
    X, y, sample_weight = block
    if not len(y):
        return Evaluation().as_vector()
    return _deviances(model, model._scores(X).ravel(), y, sample_weight).as_vector()


def _deviances(model: Any, scores: AnyArray, y: Any, sample_weight: Any) -> Evaluation:
    model._deviance.check_targets(float(np.min(y)))
    found: Evaluation = model._deviance.sums(y, scores, sample_weight)
    return found


def _on_array(chunk: Any, model: Any, method: str) -> AnyArray:
    # dask probes functions with empty blocks, which scikit-learn's validation refuses
    if chunk.shape[0] == 0:
        one = getattr(model, method)(np.zeros((1, *chunk.shape[1:]), dtype=chunk.dtype))
        return np.asarray(one)[:0]
    return np.asarray(getattr(model, method)(chunk))


def _on_frame(part: Any, model: Any, method: str) -> Any:
    import pandas as pd

    if len(part) or getattr(model, "encoder_", None) is not None:
        values = getattr(model, method)(part)
    else:
        values = _on_array(np.zeros((0, part.shape[1])), model, method)
    kind = pd.Series if np.ndim(values) == 1 else pd.DataFrame
    return kind(values, index=part.index)


def _frame_meta(X: Any, n_columns: int | None, dtype: np.dtype[Any]) -> Any:
    import pandas as pd

    index = X._meta.index
    if n_columns is None:
        return pd.Series(np.empty(0, dtype=dtype), index=index)
    return pd.DataFrame(np.empty((0, n_columns), dtype=dtype), index=index)
