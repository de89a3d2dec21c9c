"""When a fit is worth loading our solvers.

Problem: importing the solvers and loading their compiled code takes half a second. Fits then take a half or a quarter
of the time, but a script that fits a hundred rows is over before that.

Method: the seconds that scikit-learn would take are estimated from the shape of the data and corrected by the time of
earlier fits. Our solver is loaded once the estimate, plus the time that scikit-learn's solver of the same kind has
taken so far, exceeds `WORTH_S`; from then on it does all fits that are not tiny. Predictions of kernel machines count
like fits, and so do the fits that a search is still to do (`dsgd.accel.searches`). Loading therefore never costs a
script more than half of the time it has computed: the ski-rental rule.

Source: Karlin et al. 1988 (rent or buy).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, Final, Literal

import scipy.sparse as sp

#: Solvers that are loaded apart from each other.
Kind = Literal["glm", "kernel", "linear", "sgd"]

#: Seconds of scikit-learn's fits after which loading has paid: twice those of loading, as ours take half at most.
WORTH_S: Final = 1.1
#: Below this a call of ours costs more than it saves, loaded or not.
TINY_S: Final = 3e-3
# Generalised linear models of scikit-learn are compiled code as well, and as fast on few rows.
_TINY_FITS: Final[dict[Kind, int]] = {"glm": 30}
#: Seconds of fits whose estimates would be right, which count beside the actual ones where estimates are corrected: a
#: fit of a few rows, which takes a hundred times its estimate to be called at all, says nothing of larger ones.
CONFIDENCE_S: Final = 0.1
# Nanoseconds of LIBSVM per pair of rows, of a row and a support vector in a prediction, and per product of entries in
# either; of LIBLINEAR and of SGD per entry and per row of a pass; and passes.
_PAIR_NS, _PREDICTED_NS, _PRODUCT_NS = 1.5, 35.0, 0.5
# Entries of sparse rows are scattered, and LIBLINEAR passes over them more often; so do models that end at a gradient.
_ENTRY_NS, _SPARSE_NS, _ROW_NS, _PASSES = 1.5, 10.0, 60.0, 20


class Worth:
    """The seconds that this process has spent in fits of scikit-learn that we could have done."""

    def __init__(self) -> None:
        self._spent_s: dict[Kind, float] = defaultdict(float)
        self._estimated_s: dict[Kind, float] = defaultdict(float)
        self._loaded: set[Kind] = set()
        self._lock = threading.Lock()

    def is_ours(self, estimated_s: float, kind: Kind, n_calls: int = 1) -> bool:
        """Return whether our solver should do a call that scikit-learn would do in `estimated_s`.

        `n_calls` is the number of calls like it that are known to come, itself included.
        """
        with self._lock:
            spent, estimated = self._spent_s[kind], self._estimated_s[kind]
            seconds = estimated_s * (spent + CONFIDENCE_S) / (estimated + CONFIDENCE_S)
            if seconds < TINY_S * _TINY_FITS.get(kind, 1):
                return False
            return kind in self._loaded or spent + n_calls * seconds > WORTH_S

    def loaded(self, kind: Kind) -> None:
        """Note that our solver is loaded."""
        self._loaded.add(kind)

    def spend(self, seconds: float, estimated_s: float, kind: Kind) -> None:
        """Add the actual and the estimated seconds of a fit by scikit-learn."""
        with self._lock:
            self._spent_s[kind] += seconds
            self._estimated_s[kind] += estimated_s


def estimated_seconds(X: Any, kind: Kind) -> float:
    """Return roughly the seconds of a fit by scikit-learn: LIBSVM with a kernel, otherwise passes over the rows."""
    n_rows, n_columns = shape_of(X)
    entries = float(X.nnz) if sp.issparse(X) else float(n_rows * n_columns)
    if kind == "kernel":
        return 1e-9 * n_rows * (n_rows * _PAIR_NS + entries * _PRODUCT_NS)
    each_ns = _SPARSE_NS if kind != "sgd" and sp.issparse(X) else _ENTRY_NS
    passes = 5 * _PASSES if kind == "glm" else _PASSES
    return 1e-9 * passes * (entries * each_ns + n_rows * _ROW_NS)


def prediction_seconds(X: Any, n_vectors: int) -> float:
    """Return roughly the seconds of a prediction by LIBSVM with so many support vectors."""
    n_rows, n_columns = shape_of(X)
    entries = float(X.nnz) if sp.issparse(X) else float(n_rows * n_columns)
    return 1e-9 * n_vectors * (n_rows * _PREDICTED_NS + entries * _PRODUCT_NS)


def shape_of(X: Any) -> tuple[int, int]:
    """Return the numbers of rows and columns, as far as they are known without a copy."""
    shape = getattr(X, "shape", None)
    if shape is None:
        n_rows = len(X) if hasattr(X, "__len__") else 0
        first: Any = X[0] if n_rows and hasattr(X, "__getitem__") else None
        return n_rows, len(first) if hasattr(first, "__len__") and not isinstance(first, str) else 1
    return (int(shape[0]) if shape else 0), (int(shape[1]) if len(shape) > 1 else 1)
