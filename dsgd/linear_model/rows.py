"""The rows of X for models without an L1 penalty: passes that read each row once, shared by threads.

A pass over the rows gives the loss, its gradient and the predictions. Rows are read in the caller's own memory, in
float32 or float64, and everything that is added up is float64. Rows are divided into at most `_MOST_BLOCKS` blocks by
their number alone, and the sums of blocks are added up in order: any number of threads gives the same bits.

Columns of dense rows are centred by what the caller says, without a copy: scores and sums take the centres off. Sparse
rows are not centred, and their passes are SciPy's, on one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.kernels.jit import inlined, kernel, scalar
from dsgd.linear_model.losses import AbstractLoss, LogisticLoss, PoissonLoss, SquaredLoss
from dsgd.types import FloatMatrix, FloatVector, IntVector

_any_order = inlined({"reassoc", "contract"})
_CODES = {SquaredLoss: 0, LogisticLoss: 1, PoissonLoss: 2}
_MOST_BLOCKS, _BLOCK_ROWS = 64, 1024
#: Rows whose scores are computed together, so that a row is in the cache when its dual variable is known.
_CHUNK = 16
#: Entries of the block of rows that a matrix is added up from; half of a second-level cache.
_GRAM_ENTRIES = 1 << 16
#: Rows whose means are the centres.
_CENTRE_ROWS = 1000


@dataclass(frozen=True)
class Rows:
    """Rows of X with the scores ``(x_i - centres) . w + b``."""

    table: Any
    centres: FloatVector
    has_intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        n, p = self.table.shape
        return n, p

    def take(self, chosen: IntVector) -> Rows:
        """Return a copy of some rows."""
        return replace(self, table=self.table[chosen])

    def differentiate(
        self, loss: AbstractLoss, weights: FloatVector, intercept: float, means: FloatVector, team: Team
    ) -> tuple[float, FloatVector]:
        """Return the loss and minus its gradient, over the rows.

        - returned: minus the gradient; its last entry, of the intercept, is zero in a model without one.
        """
        given = self.table, _CODES[type(loss)], loss.targets, loss.costs, weights
        shifted = intercept - float(self.centres @ weights)

        def work(first: int, last: int, out: FloatMatrix) -> None:
            _differentiate(*given, shifted, self._block_rows, first, last, means, out)

        sums = self._add_up(work, weights.shape[0] + 2, team)
        downhill = sums[:-1]
        downhill[:-1] -= self.centres * downhill[-1]
        if not self.has_intercept:
            downhill[-1] = 0.0
        return float(sums[-1]), downhill

    def products(self, duals: FloatVector, team: Team) -> FloatVector:
        """Return X' theta over the rows of centred columns, shape (n_features,)."""

        def work(first: int, last: int, out: FloatMatrix) -> None:
            _combine(self.table, duals, self._block_rows, first, last, out)

        sums = self._add_up(work, self.shape[1] + 1, team)
        products: FloatVector = sums[:-1] - self.centres * sums[-1]
        return products

    def gram(self, factors: FloatVector, team: Team) -> FloatMatrix:
        """Return the sum of ``d_i z_i z_i'``, z being a centred row and a one for the intercept."""
        n, p = self.shape
        roots = np.sqrt(factors)
        size = max(256, _GRAM_ENTRIES // (p + 1))
        parts = np.zeros((min(4, max(1, n // size)), p + 1, p + 1))  # so few that they take less than the rows

        def work(first: int, last: int) -> None:
            for number in range(first, last):
                begin, end = (n * k // parts.shape[0] for k in (number, number + 1))
                for start in range(begin, end, size):
                    stop = min(end, start + size)
                    block = self.table[start:stop]
                    ready = np.ones((stop - start, p + 1))
                    ready[:, :-1] = block - self.centres
                    ready *= roots[start:stop, None]
                    parts[number] += ready.T @ ready

        team.map(work, parts.shape[0])
        for part in parts[1:]:
            parts[0] += part
        total: FloatMatrix = parts[0]
        if not self.has_intercept:
            total[-1], total[:, -1] = 0.0, 0.0
        return total

    def squares(self, factors: FloatVector) -> FloatVector:
        """Return the diagonal of `gram`, shape (n_features + 1,)."""
        n, p = self.shape
        total = np.zeros(p + 1)
        size = max(1, _GRAM_ENTRIES // (p + 1))
        for start in range(0, n, size):
            part = slice(start, start + size)
            total[:-1] += factors[part] @ (self.table[part] - self.centres) ** 2
        total[-1] = factors.sum() if self.has_intercept else 0.0
        return total

    @property
    def _block_rows(self) -> int:
        return max(_BLOCK_ROWS, -(-self.shape[0] // _MOST_BLOCKS))

    def _add_up(self, work: Any, width: int, team: Team) -> FloatVector:
        """Return the sum of what `work` writes for each block, over blocks."""
        n_blocks = -(-self.shape[0] // self._block_rows)
        parts = np.zeros((max(n_blocks, 1), width))
        team.map(lambda first, last: work(first, last, parts), n_blocks)
        return np.asarray(parts.sum(axis=0))


@dataclass(frozen=True)
class SparseRows:
    """Rows of a CSR matrix with the scores ``x_i . w + b``; methods are those of `Rows`."""

    table: Any
    has_intercept: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        n, p = self.table.shape
        return n, p

    @property
    def centres(self) -> FloatVector:
        """What is taken off the columns: nothing."""
        return np.zeros(self.shape[1])

    def take(self, chosen: IntVector) -> SparseRows:
        """Return a copy of some rows."""
        return replace(self, table=self.table[chosen])

    def differentiate(
        self, loss: AbstractLoss, weights: FloatVector, intercept: float, means: FloatVector, team: Team
    ) -> tuple[float, FloatVector]:
        """Return the loss and minus its gradient, and write what the model predicts; see `Rows.differentiate`."""
        scores = self.table @ weights + intercept
        means[:] = loss.mean(scores)
        duals = loss.duals(means)
        mass = float(duals.sum()) if self.has_intercept else 0.0
        return loss.value(scores), np.append(self.products(duals, team), mass)

    def products(self, duals: FloatVector, team: Team) -> FloatVector:
        """Return X' theta, shape (n_features,)."""
        return np.asarray(self.table.T @ duals)

    def gram(self, factors: FloatVector, team: Team) -> FloatMatrix:
        """Return the sum of ``d_i z_i z_i'``, z being a row and a one for the intercept; see `Rows.gram`."""
        p = self.shape[1]
        total = np.zeros((p + 1, p + 1))
        total[:-1, :-1] = (self.table.T @ (sp.diags_array(factors) @ self.table)).toarray()
        if self.has_intercept:
            total[-1, :-1] = total[:-1, -1] = self.table.T @ factors
            total[-1, -1] = factors.sum()
        return total

    def squares(self, factors: FloatVector) -> FloatVector:
        """Return the diagonal of `gram`, shape (n_features + 1,)."""
        squared = self.table.multiply(self.table)
        return np.append(squared.T @ factors, factors.sum() if self.has_intercept else 0.0)


def make_rows(X: Any, has_intercept: bool, team: Team) -> Rows | SparseRows:
    """Return the rows of this rank, dense ones centred near the means of all ranks if there is an intercept."""
    if sp.issparse(X):
        return SparseRows(sp.csr_array(X, dtype=np.float64), has_intercept)
    table = np.ascontiguousarray(X)
    if not has_intercept:
        return Rows(table, np.zeros(X.shape[1]), False)
    # Any shift near the means keeps the digits: those of some rows will do.
    some = table[:: max(1, table.shape[0] // _CENTRE_ROWS)]
    sums = team.add_up(np.append(some.sum(axis=0, dtype=np.float64), float(some.shape[0])))
    return Rows(table, np.asarray(sums[:-1] / sums[-1]), True)


@_any_order
def _score(row: FloatVector, weights: FloatVector) -> float:
    total = 0.0
    for j in range(row.shape[0]):
        total += row[j] * weights[j]
    return total


@_any_order
def _add(row: FloatVector, dual: float, out: FloatVector) -> None:
    for j in range(row.shape[0]):
        out[j] += dual * row[j]


@scalar
def _value_and_mean(code: int, y: float, score: float) -> tuple[float, float]:
    """Return the loss and the prediction, by the code of the loss: squared, logistic, Poisson."""
    if code == 0:
        return 0.5 * (y - score) ** 2, score
    if code == 1:
        small = np.exp(-abs(score))
        mean = (1.0 if score >= 0.0 else small) / (1.0 + small)
        return max(score, 0.0) - y * score + np.log1p(small), mean
    mean = np.exp(score)
    return mean - y * score, mean


@kernel
def _differentiate(
    rows: FloatMatrix,
    code: int,
    targets: FloatVector,
    costs: FloatVector,
    weights: FloatVector,
    intercept: float,
    block_rows: int,
    first_block: int,
    last_block: int,
    means: FloatVector,
    out: FloatMatrix,
) -> None:
    """Write X' theta, the sum of theta, and the loss of each block."""
    width = weights.shape[0]
    for block in range(first_block, last_block):
        sums = out[block]
        total, mass = 0.0, 0.0
        end = min(targets.shape[0], (block + 1) * block_rows)
        for start in range(block * block_rows, end, _CHUNK):
            stop = min(end, start + _CHUNK)
            for i in range(start, stop):
                means[i] = _score(rows[i], weights) + intercept
            for i in range(start, stop):
                value, mean = _value_and_mean(code, targets[i], means[i])
                total += costs[i] * value
                means[i] = mean
            for i in range(start, stop):
                dual = costs[i] * (targets[i] - means[i])
                mass += dual
                _add(rows[i], dual, sums)
        sums[width], sums[width + 1] = mass, total


@kernel
def _combine(
    rows: FloatMatrix, duals: FloatVector, block_rows: int, first_block: int, last_block: int, out: FloatMatrix
) -> None:
    """Write X' theta and the sum of theta of each block."""
    for block in range(first_block, last_block):
        sums, mass = out[block], 0.0
        for i in range(block * block_rows, min(duals.shape[0], (block + 1) * block_rows)):
            _add(rows[i], duals[i], sums)
            mass += duals[i]
        sums[sums.shape[0] - 1] = mass
