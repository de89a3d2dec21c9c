"""Products of the kernel matrix and a vector, for indicators and proofs.

On a gang, targets are on this rank and sources on any. A value between two samples that are both targets and sources is
computed once for both if the kernel is symmetric to the last bit (a given matrix or a function may not be): within a
rank always, between ranks if all of them have the rows of all samples and the sources are not few.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dsgd.svm.kernels.numbering import find, mask_of, places_of
from dsgd.svm.kernels.rows import Rows, take_rows
from dsgd.svm.kernels.sample_rows import SampleRows
from dsgd.svm.kernels.sums import Sums
from dsgd.svm.kernels.threads import Pool
from dsgd.types import AnyArray, FloatVector, IntVector

#: Sources up to which each rank computes all that its own sums need: half a million values, at most and seldom that,
#: take no longer than two messages and the wait for the slowest rank.
_FEW = 2048


class Products:
    """Products with the kernel matrix of one problem.

    - `features`: the features of the samples of this rank.
    - `prepared`, `rows_of`: ``prepared(ids, dtype)`` returns rows of samples of this rank, ``rows_of(ids, dtype)``
      those of any: all ranks call that together.
    """

    def __init__(
        self,
        features: SampleRows,
        pool: Pool,
        prepared: Callable[[IntVector, Any], Rows],
        rows_of: Callable[[IntVector, Any], Rows],
    ) -> None:
        self._features, self._pool, self._prepared, self._rows_of = features, pool, prepared, rows_of
        self._kernel, self._peers = features.kernel, features.peers

    def sums(self, targets: IntVector, sources: IntVector, coefs: FloatVector, dtype: Any) -> tuple[FloatVector, int]:
        """Return K[targets, sources] coefs in float64, and how many values were computed for it, in `dtype`.

        All ranks call this together, with the same sources and their own targets, each sample at most once.
        """
        if np.dtype(dtype) == np.float64:
            self._features.keep_exact()
        has_all = self._features.are_here
        is_symmetric = self._kernel.name not in {"precomputed", "callable"}
        if not is_symmetric or not (self._peers.is_alone or self._features.is_light(len(sources))):
            return self._weighted(targets, sources, coefs, dtype, lambda ids: self._rows_of(ids, dtype))

        def rows(ids: IntVector) -> Rows:
            self._peers.check()  # all sources at once may take long
            return self._prepared(ids, dtype)

        if self._peers.is_alone:
            places = places_of(targets, self._peers.n)[sources]
        else:  # no table over the samples of all ranks
            places = find(sources, targets)
        is_both = places >= 0
        both, others = places[is_both], ~is_both
        is_rest = ~mask_of(both, len(targets))
        out = np.zeros(len(targets))
        sums = Sums(self._kernel, dtype, self._pool)
        found = sums.symmetric(rows, sources[is_both], targets[is_rest], coefs[is_both])
        out[both], out[is_rest], n_values = found
        if has_all and not self._peers.is_alone and len(sources) > _FEW:
            met, is_met, n_met = self._between_ranks(sources, is_both, coefs, sums, rows)
            rest, n_rest = self._weighted(targets[is_rest], sources[is_met], coefs[is_met], dtype, rows)
            out[both] += met
            out[is_rest] += rest
            others &= ~is_met
            n_values += n_met + n_rest
        ids = sources[others]
        if not has_all:
            arrived, ids = self._rows_of(sources, dtype), np.flatnonzero(others)
            rows = partial(take_rows, arrived)
        more, n_more = self._weighted(targets, ids, coefs[others], dtype, rows)
        return out + more, n_values + n_more

    def _between_ranks(
        self, sources: IntVector, is_both: AnyArray, coefs: FloatVector, sums: Sums, rows: Callable[[IntVector], Rows]
    ) -> tuple[FloatVector, AnyArray, int]:
        """Return what sources that are targets of other ranks add to those of this one, which they are, and the values.

        Of the values between the samples of two ranks each of the two computes half, and they tell each other the sums.
        """
        rank, heard = self._peers.rank, self._peers.all_of(is_both.astype(np.uint8)).astype(np.bool_)
        out, ours, n_values = np.zeros(len(sources)), np.flatnonzero(is_both), 0
        for other in range(self._peers.size):
            theirs = np.flatnonzero(heard[other])
            if other == rank:
                continue
            # Of the higher rank's samples the first half is met by the lower rank.
            sides = (ours, theirs[: len(theirs) // 2]) if rank < other else (ours[len(ours) // 2 :], theirs)
            ids = sources[sides[0]], sources[sides[1]]
            found = sums.mutual(rows, ids, (coefs[sides[0]], coefs[sides[1]]))
            for side, values in zip(sides, found, strict=True):
                out[side] += values
            n_values += len(sides[0]) * len(sides[1])
        self._peers.add_up(out)
        return out[is_both], heard.any(axis=0) & ~is_both, n_values

    def _weighted(
        self, targets: IntVector, sources: IntVector, coefs: FloatVector, dtype: Any, rows: Callable[[IntVector], Rows]
    ) -> tuple[FloatVector, int]:
        """Return the same, every value computed; ``rows(sources)`` returns prepared rows."""
        out = np.zeros((len(targets), 1))

        def right(start: int, stop: int) -> Rows:
            self._peers.check()
            return self._prepared(targets[start:stop], dtype)

        sums = Sums(self._kernel, dtype, self._pool)
        sums.add_weighted(lambda start, stop: rows(sources[start:stop]), coefs[:, None], right, out)
        return out[:, 0], len(targets) * len(sources)
