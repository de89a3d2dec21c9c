"""Rows that several fits train on, checked, dealt and sent once, and their weights.

Before the first step of a fit its rows are checked, dealt to ranks and put in order; on a cluster they are sent to the
workers first. With few epochs this takes as long as training, and a parameter search repeats it for every fit. A handle
owns the results of this work and passes them to the next fit. Results that depend on parameters (the seed, the number
of ranks, the share held out) are kept for the parameters that were used last.

The handle is explicit, as XGBoost's ``DMatrix``: a hidden cache in ``fit`` would have to read all rows to see that they
are the same, and would hold memory without the user's knowledge.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Self, TypeVar

import joblib
import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.validation import validate_data

from dsgd.comm.memory.cores import count_cores
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.blocks import Block, BlockSummary, has_finite_sum, nbytes_of, pack_for_threads, side_by_side, summarise
from dsgd.inputs.frames import in_memory, validated
from dsgd.inputs.named import take_tables
from dsgd.inputs.shared import is_simulated
from dsgd.inputs.sources import is_distributed
from dsgd.inputs.tables import is_table
from dsgd.local.blocks import Piece, readable
from dsgd.local.shard import split
from dsgd.stages import stage
from dsgd.types import AnyArray
from dsgd.validation import check_number


def check_sample_weight(sample_weight: Any, X: Any) -> AnyArray | None:
    """Check the weights of rows."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=X.dtype)
    if weights.ndim == 0:
        weights = np.full(X.shape[0], weights)
    if weights.ndim != 1:
        raise InvalidDataError(f"Sample weights must be 1D array or scalar, got {weights.ndim}D array.")
    if weights.shape[0] != X.shape[0]:
        raise InvalidDataError(f"sample_weight.shape == {weights.shape}, expected ({X.shape[0]},)!")
    if not np.isfinite(weights).all():
        raise InvalidDataError("Input sample_weight contains NaN or infinity.")
    if (weights < 0).any():
        raise InvalidDataError("Negative values in data passed to `sample_weight`.")
    return weights


def check_any_weight(weights: AnyArray | None) -> None:
    """Raise `InvalidDataError` where all rows have the weight zero."""
    if weights is not None and not weights.any():
        raise InvalidDataError("Sample weights must contain at least one non-zero number.")


Packed = TypeVar("Packed")
Opened = TypeVar("Opened")

#: Values that are compared to see whether an array was changed.
_SAMPLE: Final = 4096


class _Recent:
    """The values that were made last, by key, up to a largest number."""

    def __init__(self, n_most: int, release: Callable[[Any], object] | None = None) -> None:
        self._n_most, self._release = n_most, release
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.RLock()

    def get(
        self, key: Hashable, make: Callable[[], Packed], *, is_valid: Callable[[Packed], bool] | None = None
    ) -> Packed:
        """Return the value of a key; a missing one is made, after the oldest ones have made room."""
        with self._lock:
            if key in self._values and (is_valid is None or is_valid(self._values[key])):
                self._values.move_to_end(key)
            else:
                self._drop(self._values.pop(key, None))
                while self._values and len(self._values) >= self._n_most:
                    self._drop(self._values.popitem(last=False)[1])
                made = make()
                if not self._n_most:
                    return made
                self._values[key] = made
            value: Packed = self._values[key]
            return value

    def clear(self) -> None:
        """Release all values."""
        with self._lock:
            while self._values:
                self._drop(self._values.popitem()[1])

    def _drop(self, value: Any) -> None:
        if value is not None and self._release is not None:
            self._release(value)


class LocalRows:
    """Checked arrays of this process, and the results made from them."""

    def __init__(self, block: Block, n_kept: int = 0, *, is_finite: bool = False) -> None:
        self.block = block
        self._is_finite = is_finite
        self._summaries: dict[bool, BlockSummary] = {}
        self._packed = _Recent(n_kept)
        self._n_kept = n_kept

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return int(self.block[0].shape[0])

    @cached_property
    def piece(self) -> Piece | None:
        """All rows as kernels read them; None if they must be converted first."""
        with stage("check"):
            return readable(self.block[0]) if self.block[0].ndim == 2 else None

    def check(self, n_threads: int, name: str) -> None:
        """Read the values once, a part of them in each thread, to see whether they are finite."""
        if self._is_finite:
            return
        X = self.block[0]
        values = (X.data if issparse(X) else X).reshape(-1)
        with stage("check", values.nbytes):
            parts = [values[slice(*split(values.shape[0], n_threads, part))] for part in range(n_threads)]
            if not all(side_by_side(lambda k: has_finite_sum(parts[k]), n_threads)):
                with np.errstate(invalid="ignore"):
                    assert_all_finite(X, estimator_name=name, input_name="X")
        self._is_finite = True

    def summary(self, *, classification: bool) -> BlockSummary:
        """Return the summary of rows and targets."""
        if classification not in self._summaries:
            with stage("labels", nbytes_of(self.block[1])):
                check_any_weight(self.block[2])
                found = summarise(self.block, classification=classification, rows_are_checked=True)
            self._summaries[classification] = found
        return self._summaries[classification]

    def packed(
        self,
        n_ranks: int,
        pack: Callable[[Sequence[Block], int], Packed],
        *,
        seed: int | None,
        reads_directly: bool,
    ) -> list[Packed]:
        """Return the data of each rank; see `pack_for_threads`."""

        def make() -> list[Packed]:
            piece = self.piece if reads_directly else None
            return pack_for_threads(self.block, n_ranks, pack, seed=seed, readable=piece)

        if not self._n_kept:
            return make()
        return self._packed.get(joblib.hash((n_ranks, pack, seed)), make)

    def clear(self) -> None:
        """Release the rows of ranks."""
        self._packed.clear()


class KeptPacks:
    """Names for the packed blocks of workers, by which they find them again."""

    def __init__(self, n_most: int, anchors: Mapping[str, Any]) -> None:
        self._n_most = n_most
        #: See `PackedAs`.
        self.anchors = anchors
        self._names: list[str] = []  # in order of use, the latest last

    def name_of(self, pack: Callable[..., Any]) -> str:
        """Return the name of the result of `pack`; empty if it is not kept."""
        return str(joblib.hash(pack)) if self._n_most else ""

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def make_room(self, name: str) -> list[str]:
        """Return the names to release before this one is made."""
        others = [each for each in self._names if each != name]
        n_gone = max(0, len(others) - self._n_most + 1)
        self._names = [each for each in self._names if each not in others[:n_gone]]
        return others[:n_gone]

    def add(self, name: str) -> None:
        """Record that the workers have this one now."""
        self._names = [*(each for each in self._names if each != name), name]


class Rows:
    """Rows and targets that several fits train on, checked, dealt and sent once.

    Pass it to ``fit``, ``partial_fit`` or ``score`` in place of X, without y and sample_weight. `SGDClassifier` and
    `SGDRegressor` reuse all preparation by earlier fits: a fit with the same ``random_state`` and ``n_jobs`` starts
    training at once, and one with another ``random_state``, or with ``average`` where others had none, draws another
    order without checking the rows first. Other estimators train as on the arrays inside.

    Parameters
    ----------
    X : array, sparse matrix, DataFrame, dask array or dataframe, list of delayed blocks, or files
        Rows, shape (n_samples, n_features), as for ``fit`` without an encoder: columns of tables and of Parquet, CSV
        and Arrow files are numbers. Arrays are not copied if they are float32 or float64 and C-contiguous, or CSR: do
        not change them afterwards.
    y : array-like, dask collection or str, shape (n_samples,), or None, default None
        Targets, or the name of their column; None if blocks or svmlight files hold them, or without supervision.
    sample_weight : array-like, dask array, str or None, shape (n_samples,), default None
        Weights, or the name of their column.
    client : distributed.Client or None, default None
        Keeps the rows on the workers of a cluster; estimators without a client of their own then train there. None
        keeps arrays in this process, and dask collections on the current client or the local cluster.
    keep : int, default 1
        For how many sets of parameters (seed, number of ranks, share held out, whether steps are averaged) orders, and
        rows that had to be copied, stay in memory. The least recently used set is dropped first.

    Attributes
    ----------
    n_features_in_ : int
        Columns, if X is in this process.
    feature_names_in_ : array of str, shape (n_features,)
        Their names, if X has any and is in this process.

    Raises
    ------
    InvalidDataError
        X, y and sample_weight cannot be trained on.
    InvalidParameterError
        `client` is simulated, or `keep` is below zero.

    Examples
    --------
    >>> import numpy as np
    >>> import dsgd
    >>> X = np.random.default_rng(0).standard_normal((1000, 3))
    >>> rows = dsgd.Rows(X, X[:, 0] > 0)
    >>> rows
    Rows(1000 x 3, float64, in this process)
    >>> scores = {
    ...     alpha: dsgd.SGDClassifier(alpha=alpha, random_state=0).fit(rows).score(rows) for alpha in (1e-4, 1e-2)
    ... }
    """

    n_features_in_: int
    feature_names_in_: AnyArray

    def __init__(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        client: Any = None,
        keep: int = 1,
    ) -> None:
        check_number("Rows(keep=...)", keep, low=0, integer=True)
        if is_simulated(client):
            raise InvalidParameterError(
                f"Rows(client={client!r}): rows of a simulated cluster are in this process. Leave client at None here, "
                "and pass it to the estimator."
            )
        if isinstance(X, Rows):
            raise InvalidDataError("Rows(X) takes arrays or collections. Got Rows: pass its X, y and sample_weight.")
        self.client = client
        self._opened = _Recent(max(1, keep), lambda opened: opened[1]())
        self.keep = keep
        self._local: LocalRows | None = None
        (X, y, sample_weight), _ = take_tables(self, X, y, sample_weight)
        if not is_distributed(X):
            X, y, sample_weight = self._checked(X, y, sample_weight)
            self._local = LocalRows((X, y, sample_weight), keep)
            self._local.check(count_cores(), type(self).__name__)
            self._digest = self._sample()
        #: The rows, targets and weights.
        self.X, self.y, self.sample_weight = X, y, sample_weight

    def __repr__(self) -> str:
        shape = " x ".join(str(n) for n in self.X.shape) if hasattr(self.X, "shape") else type(self.X).__name__
        kind = f", {self.X.dtype}" if hasattr(self.X, "dtype") else ""
        where = "on the workers" if self._local is None or self.client is not None else "in this process"
        return f"{type(self).__name__}({shape}{kind}, {where})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "Rows cannot be pickled or copied: they refer to the memory of this process and its workers. Make them "
            "where they are used."
        )

    def __array__(self, *args: Any, **kwargs: Any) -> AnyArray:
        raise InvalidDataError(f"{self!r} are no array: pass their X, as in predict(rows.X).")

    @property
    def uses_cluster(self) -> bool:
        """Whether fits on these rows run on worker processes."""
        return self._local is None or self.client is not None

    def release(self) -> None:
        """Release packed and sent rows; a later fit makes them again."""
        self._opened.clear()
        if self._local is not None:
            self._local.clear()

    # -- for estimators ------------------------------------------------------------------------------------------

    def local(self) -> LocalRows:
        """Return the rows of this process.

        Raises
        ------
        InvalidDataError
            Values were changed.
        """
        if self._local is None:
            raise InvalidDataError(f"{self!r} are not in this process.")
        if self._sample() != self._digest:
            raise InvalidDataError("X, y or sample_weight were changed after Rows(...) had read them. Make new Rows.")
        return self._local

    def show(self, estimator: Any, *, first: bool) -> None:
        """Let an estimator learn the number and names of the columns, or compare them with the known ones.

        Raises
        ------
        ValueError
            They differ.
        """
        if self._local is not None:
            validate_data(estimator, self._head, reset=first, skip_check_array=True)

    def named(self) -> Any:
        """Return X, with its column names (as a view) if it was a table."""
        if self._local is None or not is_table(self._head):
            return self.X
        return type(self._head)(self.X, columns=self._head.columns, copy=False)

    def opened(
        self, key: Hashable, make: Callable[[], tuple[Opened, Callable[[], object]]], is_valid: Callable[[Opened], bool]
    ) -> Opened:
        """Return the object that holds the rows on the workers.

        Parameters
        ----------
        key : hashable
            The values on which it depends.
        make : callable
            Returns it, and a function that releases it.
        is_valid : callable
            Whether it can still be used.
        """
        return self._opened.get(key, make, is_valid=lambda found: is_valid(found[0]))[0]

    def _checked(self, X: Any, y: Any, sample_weight: Any) -> Block:
        """Return arrays to train on, with finite targets and weights; the values of X are not read yet."""
        learner = BaseEstimator()
        options: dict[str, Any] = {"dtype": [np.float64, np.float32], "order": "C", "allow_nd": True}
        with stage("check"):
            checked = validated(learner, X, accept_sparse="csr", ensure_all_finite=False, **options)
            self.n_features_in_ = learner.n_features_in_
            if hasattr(learner, "feature_names_in_"):
                self.feature_names_in_ = learner.feature_names_in_
            self._head = X[:0] if hasattr(X, "columns") else checked[:0]
            if y is not None:
                y = np.asarray(in_memory(y))
                y = y if checked.ndim > 2 and y.ndim == 2 else column_or_1d(y, warn=True)
                if len(y) != checked.shape[0]:
                    raise InvalidDataError(f"Rows(X, y): X has {checked.shape[0]} rows and y has {len(y)}.")
            return checked, y, check_sample_weight(in_memory(sample_weight), checked)

    def _sample(self) -> int:
        """Return a checksum of values spread over the arrays."""
        assert self._local is not None
        X, y, weights = self._local.block
        code = 0
        for array in ((X.data, X.indices) if issparse(X) else (X,), (y,), (weights,)):
            for part in array:
                if part is not None and part.dtype != object:
                    flat = part.reshape(-1)
                    code = zlib.crc32(flat[:: max(1, flat.size // _SAMPLE)].tobytes(), code)
        return code


def unpacked(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Return X, y and sample_weight as passed, or the contents of `Rows` in place of X."""
    if not isinstance(X, Rows):
        return X, y, sample_weight
    refuse_beside(y, sample_weight)
    return X.named(), X.y, X.sample_weight


def refuse_beside(y: Any, sample_weight: Any) -> None:
    """Raise `InvalidDataError` for targets or weights that are passed besides `Rows`."""
    if y is not None or sample_weight is not None:
        raise InvalidDataError(
            "y and sample_weight must be None where X is Rows: dsgd.Rows(X, y, sample_weight) holds them."
        )
