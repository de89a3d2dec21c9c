"""Validation rows: given, or split off."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
from sklearn import config_context
from sklearn.metrics import check_scoring
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils import _safe_indexing

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.blocks import Block, nbytes_of
from dsgd.inputs.frames import in_memory
from dsgd.inputs.rows import Rows, check_any_weight, unpacked
from dsgd.inputs.shared import holds_blocks
from dsgd.inputs.sources import is_distributed
from dsgd.inputs.table_files import are_table_files
from dsgd.runtime.train import EpochRecord
from dsgd.runtime.train.job import best_of
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import warn_user


def hold_out_as_sklearn(estimator: Any, block: Block, *, stratify: bool) -> AnyArray | None:
    """Return the rows that scikit-learn's first (stratified) split holds out, bool; None where it cannot split."""
    X, y, weights = block
    n, fraction = X.shape[0], float(estimator.validation_fraction)
    n_held = math.ceil(fraction * n)
    if n_held >= n:
        raise InvalidDataError(
            f"Splitting {n} samples into a train set and a validation set with validation_fraction={fraction:g} leaves "
            f"{n - n_held} of them to train on. Lower validation_fraction, train on more rows, or leave "
            "early_stopping at False."
        )
    if n_held == 1 and not stratify:  # one row has no R2
        return None
    splitter = StratifiedShuffleSplit if stratify else ShuffleSplit
    try:
        _, rows = next(splitter(test_size=fraction, random_state=estimator.random_state).split(np.zeros((n, 1)), y))
    except ValueError:
        return None
    if weights is not None and not weights[rows].any():
        raise InvalidDataError(
            "The sample weights for validation set are all zero, consider using a different random state."
        )
    held_out = np.zeros(n, dtype=np.bool_)
    held_out[rows] = True
    return held_out


def split_off(estimator: Any, rows: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Return (X, y, sample_weight) of the rows to train on and of those to score, which stay together."""
    X, y, weights = rows
    name = f"{type(estimator).__name__}(scoring={estimator.scoring!r}, early_stopping=True)"
    if isinstance(X, Rows) and not X.uses_cluster:
        X, y, weights = unpacked(X, y, weights)
    if isinstance(X, Rows) or is_distributed(X) or holds_blocks(X) or y is None:
        raise InvalidDataError(
            f"{name} holds out rows of arrays in this process only, because one rank scores all of them. Pass "
            "validation rows of your own to fit: X_val and y_val."
        )
    n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
    y = np.asarray(in_memory(y))
    if weights is not None:  # a number stands for equal ones
        weights = np.asarray(in_memory(weights))
        weights = np.full(n_rows, weights) if weights.ndim == 0 else weights
    held_out = None
    if len(y) == n_rows and (weights is None or len(weights) == n_rows):
        block = np.empty((n_rows, 0)), y, weights
        held_out = hold_out_as_sklearn(estimator, block, stratify=estimator._is_classification)
    if held_out is None:
        raise InvalidDataError(
            f"{name} cannot draw validation rows from {n_rows} rows and {len(y)} targets: there are too few, or of a "
            "class. Train on more rows, change validation_fraction, or pass X_val and y_val to fit."
        )

    def part(mask: AnyArray) -> tuple[Any, Any, Any]:
        numbers = np.flatnonzero(mask)
        return _safe_indexing(X, numbers), y[numbers], None if weights is None else weights[numbers]

    return part(~held_out), part(held_out)


@dataclass(frozen=True)
class ScoredRows:
    """Validation rows and what scores a model on them; a `dsgd.runtime.train.job.Validation`.

    Of many measures (the area under a curve, F1) ranks cannot add up parts. So rows that the user gives stay together
    and go to rank 0, which scores the model after every epoch with scikit-learn's own code; the others wait for it.
    """

    model_of: Callable[[FloatVector, Mapping[str, AnyArray]], Any]
    scorer: Callable[..., float]
    block: Block

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return int(self.block[0].shape[0])

    @property
    def n_entries(self) -> int:
        """Entries of the rows."""
        X = self.block[0]
        return int(X.nnz if hasattr(X, "nnz") else np.prod(X.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return nbytes_of(self.block[0])

    @property
    def identity(self) -> str:
        """Digest of rows, targets, weights and the name of the measure: equal for the same ones."""
        return str(joblib.hash((*self.block, _name_of(self.scorer))))

    def score(self, params: FloatVector, statistics: Mapping[str, AnyArray]) -> float:
        """Return the score of a model."""
        X, y, weights = self.block
        options = {} if weights is None else {"sample_weight": weights}
        with config_context(assume_finite=True):  # the rows were checked once
            return float(self.scorer(self.model_of(params, statistics), X, y, **options))

    def try_out(self, name: str, scoring: Any, params: FloatVector, statistics: Mapping[str, AnyArray]) -> None:
        """Score a model before training, which a measure that does not suit it then does not cost."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a model that has learned nothing
                self.score(params, statistics)
        except Exception as error:
            raise InvalidParameterError(
                f"{name}(scoring={scoring!r}) cannot score this model on the validation rows: {error} Choose a measure "
                "that suits the loss and the targets, and that returns one number."
            ) from error


def scorer_for(estimator: Any) -> Callable[..., float]:
    """Return what `scoring` of an estimator means; None is its own ``score``."""
    scoring, name = estimator.scoring, type(estimator).__name__
    if not (scoring is None or isinstance(scoring, str) or callable(scoring)):
        raise InvalidParameterError(
            f"{name}(scoring=...) must be None, the name of a scorer of scikit-learn or a callable "
            f"(estimator, X, y) -> float. Got {scoring!r}."
        )
    try:
        scorer: Callable[..., float] = check_scoring(estimator, scoring=scoring)
    except ValueError as error:
        raise InvalidParameterError(f"{name}(scoring={scoring!r}): {error}") from error
    return scorer


def refuse_idle(estimator: Any, *, has_rows: bool) -> None:
    """Raise `InvalidParameterError` for parameters of a validation where there are no validation rows."""
    if has_rows or estimator.early_stopping:
        return
    for parameter, default in (("scoring", None), ("restore_best", False)):
        value = getattr(estimator, parameter)
        if value is not default:
            raise InvalidParameterError(
                f"{type(estimator).__name__}({parameter}={value!r}) needs validation rows: pass X_val and y_val to "
                "fit, or set early_stopping=True."
            )


def given_validation(
    X_val: Any, y_val: Any, sample_weight_val: Any = None, *, takes_files: bool = False
) -> tuple[Any, Any, Any] | None:
    """Return the validation rows that the user gives, or None if there are none."""
    X, y, weights = unpacked(X_val, y_val, sample_weight_val)
    if X is None:
        if y is not None or weights is not None:
            raise InvalidDataError("y_val and sample_weight_val are given without X_val: pass the rows, too.")
        return None
    if holds_blocks(X) or (is_distributed(X) and not (takes_files and are_table_files(X))):
        raise InvalidDataError(
            f"X_val must be in the memory of this process, because one rank scores all of it. Got "
            f"{type(X).__name__}: load it first, as X_val.compute() does for a dask collection, or take a sample."
        )
    if y is None:
        raise InvalidDataError("X_val is given without y_val: pass the targets of the validation rows, too.")
    return X, y, weights


def refuse_unknown_labels(y: AnyArray, classes: AnyArray) -> None:
    """Raise `InvalidDataError` for validation targets of which training has no rows."""
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        raise InvalidDataError(
            f"y_val holds labels that are not among those of the training rows: {unknown[:5]!r}. Training rows have "
            f"{classes!r}."
        )


def checked_block(check: Callable[[], Block]) -> Block:
    """Return the validation rows that a function checks, at least one of some weight; errors say of what they are."""
    try:
        block = check()
        check_any_weight(block[2])
    except ValueError as error:
        raise InvalidDataError(f"Validation rows (X_val, y_val, sample_weight_val): {error}") from error
    return block


def take_best(estimator: Any, history: Sequence[EpochRecord]) -> None:
    """Set ``best_score_`` and ``best_epoch_`` of an estimator, if an epoch has a score; warn if one is needed."""
    for name in ("best_score_", "best_epoch_"):
        estimator.__dict__.pop(name, None)
    best = best_of(history)
    if best is not None:
        estimator.best_score_, estimator.best_epoch_ = best.validation_score, best.epoch
    elif estimator.restore_best:
        warn_user(
            f"{type(estimator).__name__}(restore_best=True, scoring={estimator.scoring!r}): no epoch has a validation "
            "score that is a number, so the model is that of the last epoch.",
            RuntimeWarning,
        )


def _name_of(scorer: Any) -> str:
    # A wrapped function is shown with its address.
    measure = getattr(scorer, "_score_func", scorer)
    name = getattr(measure, "__qualname__", type(measure).__name__)
    options = sorted(getattr(scorer, "_kwargs", {}).items())
    return f"{name}{options}{getattr(scorer, '_sign', 1)}{getattr(scorer, '_response_method', '')}"
