"""The rows that candidates train on: checked and placed once, and reduced if epochs are too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from dsgd.errors import InvalidDataError
from dsgd.estimators.base import AbstractSGD
from dsgd.estimators.tables import encoded
from dsgd.inputs.blocks import BlockSummary, Spread, check_summaries, make_block, summarise
from dsgd.inputs.frames import validated
from dsgd.inputs.rows import Rows
from dsgd.inputs.sources import is_distributed, scatter_rows, to_delayed_blocks
from dsgd.sim import Workload

_N_NORMS: Final = 1000
#: Fewer rows than this say nothing, however little time there is.
LEAST_ROWS: Final = 200


@dataclass(frozen=True)
class TuningRows:
    """Rows, ready for one fit after the other."""

    X: Any
    y: Any
    n_rows: int
    n_all: int
    n_features: int
    n_outputs: int
    entries_per_row: float
    row_norm: float
    sparse: bool
    dtype: str
    client: Any = None

    @cached_property
    def kept(self) -> Rows:
        """What is passed to ``fit``: candidates find the rows packed."""
        return Rows(self.X, self.y, client=self.client)

    def workload(self, held_out: float) -> Workload:
        """Return what an epoch works on, where this share of rows is held out."""
        return Workload(
            max(1, round(self.n_rows * (1.0 - held_out))),
            self.entries_per_row,
            self.n_outputs * (self.n_features + 1),
            self.n_outputs,
            "sparse" if self.sparse else "dense",
            self.dtype,
        )

    def thinned(self, n_rows: int, seed: int) -> TuningRows:
        """Return about so many of these rows: drawn without replacement, or every so many of each block."""
        if n_rows >= self.n_rows:
            return self
        if self.client is None:
            chosen = np.sort(np.random.default_rng(seed).choice(self.n_rows, n_rows, replace=False))
            return replace(self, X=self.X[chosen], y=self.y[chosen], n_rows=n_rows)
        stride = -(-self.n_rows // n_rows)
        from dsgd.runtime.gang.cluster import Cluster

        blocks = Cluster(self.client).map(_every, self.X, stride=stride)
        return replace(self, X=blocks, n_rows=self.n_rows // stride)

    def release(self) -> None:
        """Let go of packed rows, and let the workers forget the blocks."""
        if "kept" in vars(self):
            self.kept.release()
        for future in self.X if self.client is not None else ():
            future.release()


def place_rows(
    estimator: AbstractSGD, client: Any, X: Any, y: Any, *, n_ranks: int | None, seed: int = 0
) -> TuningRows:
    """Return the rows, checked, and on the workers if there are any."""
    classification = estimator._is_classification
    X, y, _ = encoded(estimator, (X, y, None), goes_on=False)
    if not is_distributed(X):
        try:
            X = validated(estimator, X, accept_sparse="csr", dtype=[np.float64, np.float32], order="C")
        except ValueError as error:
            raise InvalidDataError(f"tune(X=...) cannot be trained on: {error}") from error
        y = None if y is None else np.asarray(y).ravel()
    if client is None:
        looks = [_look((X, y, None), classification=classification)]
        return _rows_of(looks, X, y, None)
    from dsgd.runtime.gang.cluster import Cluster

    cluster = Cluster(client, estimator._deployment)
    if is_distributed(X):
        blocks = cluster.compute(to_delayed_blocks(X, y, None, build=make_block))
    else:
        blocks, _ = scatter_rows(cluster, X, y, None, Spread(n_ranks=n_ranks, seed=seed))
    looks = cluster.gather(cluster.map(_look, blocks, classification=classification), "computing the rows", "peer")
    return _rows_of(looks, list(blocks), None, client)


def _rows_of(looks: Sequence[tuple[BlockSummary, float, int]], X: Any, y: Any, client: Any) -> TuningRows:
    summaries = [summary for summary, _, _ in looks]
    check_summaries(summaries)
    n_rows = sum(s.rows for s in summaries)
    labels = [s.classes for s in summaries if s.classes is not None and len(s.classes)]
    n_classes = len(np.unique(np.concatenate(labels))) if labels else 0
    n_normed = sum(n for _, _, n in looks)
    return TuningRows(
        X,
        y,
        n_rows,
        n_rows,
        n_features=max(s.n_features for s in summaries),
        n_outputs=n_classes if n_classes > 2 else 1,
        entries_per_row=sum(s.nnz for s in summaries) / n_rows,
        row_norm=sum(norm for _, norm, _ in looks) / max(n_normed, 1),
        sparse=next(s.sparse for s in summaries if s.rows),
        dtype="float32" if all(s.dtype == "float32" for s in summaries if s.rows) else "float64",
        client=client,
    )


def _look(block: Any, *, classification: bool) -> tuple[BlockSummary, float, int]:
    """Return a description of a block and the sum of squared lengths of some of its rows; runs where the block is."""
    summary = summarise(tuple(block), classification=classification)
    some = block[0][:_N_NORMS] if not summary.problem else block[0][:0]
    values = some.data if sp.issparse(some) else some
    return summary, float(np.square(values, dtype=np.float64).sum()), int(some.shape[0])


def _every(block: Any, *, stride: int) -> Any:
    """Return every so many rows of a block."""
    X, y, weights = block
    return X[::stride], y[::stride], None if weights is None else weights[::stride]
