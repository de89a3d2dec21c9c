"""The Gram matrix of a working set that grows: what is there is kept, and products with new columns are added.

Cost: m new columns beside k take ``n m (k + m)`` operations of BLAS where columns are dense, and as many as their
entries meet others of the same rows where they are sparse. Making the matrix anew takes ``n (k + m)**2``. Ranks add up
``m k + m (m + 1) / 2`` numbers, and m + 1 for the means.
"""

from __future__ import annotations

import numpy as np

from dsgd.linear_model.columns import Columns, complete, multiply_pairs
from dsgd.types import FloatMatrix, FloatVector, IntVector


class Gram:
    """The sums of ``d_i x_ij x_ik`` of some columns about their means, plus a constant where j is k.

    - `space`, shape (n, n): holds the matrix in its first ``n_chosen`` rows and columns; a kernel is faster with it
      than with that part.
    """

    chosen: IntVector
    space: FloatMatrix

    def __init__(self, columns: Columns, factors: FloatVector, constant: float, chosen: IntVector) -> None:
        self.chosen, self.space = chosen, columns.pairs(chosen, factors)
        self._means, mass = columns.moments(chosen, factors)
        complete(self.space, 0, self._means, mass, constant)
        self._columns, self._factors, self._constant = columns, factors, constant
        #: Copies of dense columns, made when others are added.
        self._blocks: list[FloatMatrix] = []

    def part(self, chosen: IntVector) -> FloatMatrix:
        """Return the matrix of some of the columns, in their order: `space` of all as they came, a copy of others."""
        if chosen is self.chosen:
            return self.space
        order = np.argsort(self.chosen)
        places = order[np.searchsorted(self.chosen, chosen, sorter=order)]
        return self.space[np.ix_(places, places)]

    def extend(self, new: IntVector) -> None:
        """Add columns that are not there yet."""
        if not new.shape[0]:
            return
        columns, factors = self._columns, self._factors
        old, k = self.chosen, self.chosen.shape[0]
        self.chosen = np.append(old, new)
        size = self.chosen.shape[0]
        means, mass = columns.moments(new, factors)
        self._means = np.append(self._means, means)
        if size > self.space.shape[0]:
            space = np.empty((size + k, size + k))
            space[:k, :k] = self.space[:k, :k]
            self.space = space
        if columns.is_sparse:
            table = columns.table
            multiply_pairs(table.data, table.indices, table.indptr, self.chosen, k, factors, self.space)
        else:
            even = bool(factors.shape[0] and (factors == factors[0]).all())
            for part in (new,) if self._blocks else (old, new):
                block = columns.table[part]
                self._blocks.append(block if even else block * np.sqrt(factors))
            stop = 0
            for block in self._blocks:
                start, stop = stop, stop + block.shape[0]
                products = self._blocks[-1] @ block.T
                self.space[k:size, start:stop] = factors[0] * products if even else products
        if columns.team.n_ranks > 1:
            added = self.space[k:size, :size]
            lower = np.tri(size - k, size, k, dtype=np.bool_)
            added[lower] = columns.team.add_up(added[lower])
        complete(self.space, k, self._means, mass, self._constant)
