r"""Squared distances among the rows of a problem, shared by all widths of the rbf kernel.

Every rbf kernel is exp(−γ ‖x − z‖²), so a grid of gammas needs the distances of a row once. Where rows are wide they
are what costs: a value takes about 1 ns to read and exponentiate, against 17 ns for a product of 780 columns in
float32, 35 ns in float64 (one core, AMD EPYC). For rows of 20 columns or 14 nonzeros both cost the same, and nothing
is shared.

Distances are kept in float64, so that the proof at the end of each run is one in float64. To keep kernel values and
raise them to the power γ'/γ would take twice the time, and values that have underflowed could not come back.

Cost: 8 n bytes and n products per row. Rows are kept first come, first served; what finds no room is computed each
time.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.svm.kernels.exponential import exponentials
from dsgd.svm.kernels.functions import Kernel, centre, prefers_sparse, prepare
from dsgd.svm.kernels.values import Left, left_form, row_values
from dsgd.types import AnyArray, FloatMatrix, IntVector

_UNIT = Kernel("rbf", 1.0)  # rows prepared for it give minus the squared distance
_PLAIN = Kernel("linear")  # leaves products as they are
_SLAB = 512
_CHUNK = 256

#: From so many columns of a dense row, or nonzeros of a sparse one, reading a distance is clearly cheaper.
_WIDE = 64


def share_pays(X: Any) -> bool:
    """Return whether rows are wide enough for distances to be kept."""
    return bool((X.nnz / max(1, X.shape[0]) if sp.issparse(X) else X.shape[1]) >= _WIDE)


class Distances:
    """Minus the squared distances of some rows with all rows, computed at their first use.

    - `samples`, shape (n,): which of them are meant.
    - `n_threads`: threads that compute them.
    """

    def __init__(self, X: Any, samples: IntVector, max_bytes: int, n_threads: int) -> None:
        n = len(samples)
        self.n_computed = 0
        self._X, self._samples = X, samples
        self._sparse = prefers_sparse(X)
        self._shift = None if self._sparse else centre(_UNIT, X, samples)
        self._n_threads = n_threads
        self._slot_of = np.full(n, -1, dtype=np.int64)
        self._n_kept = 0
        # Untouched pages take no memory.
        self._kept: FloatMatrix = np.empty((min(n, max_bytes // (8 * n)), n))
        self._lock = threading.Lock()

    def kernel(self, gamma: float) -> Kernel:
        """Return the rbf kernel of a width as a function of sample numbers, one per row, shape (q, 1)."""
        return Kernel("callable", function=lambda left, right: self._values(gamma, left[:, 0], right[:, 0]))

    @property
    def rows(self) -> IntVector:
        """The numbers of all samples, int64, shape (n, 1): the rows that `kernel` takes."""
        return np.arange(len(self._samples))[:, None]

    def _values(self, gamma: float, left: IntVector, right: IntVector) -> FloatMatrix:
        with self._lock:
            self._keep(left[self._slot_of[left] < 0])
        slots = self._slot_of[left]
        is_kept = slots >= 0
        out = np.empty((len(left), len(right)))
        is_run = len(right) > 0 and right[-1] - right[0] == len(right) - 1 and bool((np.diff(right) == 1).all())
        columns: Any = slice(right[0], right[-1] + 1) if is_run else right
        out[is_kept] = self._kept[slots[is_kept], columns] if is_run else self._kept[np.ix_(slots[is_kept], right)]
        if not is_kept.all():
            out[~is_kept] = self._compute(left[~is_kept], right)
        out *= gamma
        exponentials(out)
        return out

    def _keep(self, ids: IntVector) -> None:
        """Compute and keep the distances of samples, as far as there is room."""
        ids = np.unique(ids)[: len(self._kept) - self._n_kept]
        n = len(self._samples)
        for first in range(0, len(ids), _CHUNK):
            some = ids[first : first + _CHUNK]
            target = self._kept[self._n_kept : self._n_kept + len(some)]
            parts = self._left(some)

            def work(start: int, parts: Any = parts, target: FloatMatrix = target) -> None:
                stop = min(n, start + _SLAB)
                self._fill(parts, np.arange(start, stop), target[:, start:stop])

            if self._n_threads == 1:
                for start in range(0, n, _SLAB):
                    work(start)
            else:  # threads of its own: those of the solver may be waiting for this
                with ThreadPoolExecutor(self._n_threads, "dsgd-svm") as pool:
                    list(pool.map(work, range(0, n, _SLAB)))
            self._slot_of[some] = np.arange(self._n_kept, self._n_kept + len(some))
            self._n_kept += len(some)
            self.n_computed += len(some) * n

    def _compute(self, left: IntVector, right: IntVector) -> FloatMatrix:
        out = np.empty((len(left), len(right)))
        self._fill(self._left(left), right, out)
        self.n_computed += out.size
        return out

    def _left(self, ids: IntVector) -> list[tuple[int, int, Left]]:
        index = self._samples[ids]
        return left_form(
            _UNIT, prepare(_UNIT, self._X, np.float64, shift=self._shift, sparse=self._sparse, index=index)
        )

    def _fill(self, parts: list[tuple[int, int, Left]], right: IntVector, out: AnyArray) -> None:
        rows = prepare(_UNIT, self._X, np.float64, shift=self._shift, sparse=self._sparse, index=self._samples[right])
        for begin, end, part in parts:
            tile = np.empty((end - begin, len(right)))
            row_values(_PLAIN, part, rows, tile)
            np.minimum(tile, 0.0, out=out[begin:end])
