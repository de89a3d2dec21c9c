"""A grid of C and gamma on a cluster, solved by one gang.

Every rank runs the ordinary fit once per gamma, whose problems are answered by chains over all C, as in one process.
Rank 0 then hands over the solutions, which equal rows have been merged, the targets, and the rows that have a
coefficient at some point. An estimator is made of these by the same fit: its problems are answered, and so are its
questions about rows, from that record. No rank is asked again, and nothing is solved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.runtime.rank import Rank
from dsgd.svm.distributed.kernel import RankRows, join_gang
from dsgd.svm.kernel_solver.merging import sums_by
from dsgd.svm.kernel_solver.problem import Posed, Solution
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.path.warm_starts import Link
from dsgd.types import AnyArray, FloatVector, IntVector

#: Solves one problem of a model at all costs.
Chain = Callable[[Any, Posed], list[Link]]


@dataclass(frozen=True)
class PathRecord:
    """What a gang knows after a grid, and what its estimators ask in place of the gang."""

    chains: list[dict[bytes, list[Link]]]
    kernels: list[Kernel]
    first: IntVector
    owner: IntVector
    target: FloatVector
    weights: FloatVector
    classes: AnyArray | None
    ids: IntVector
    rows: Any

    def build(self, model: Any, gamma: int, answer: Callable[..., Solution]) -> Any:
        """Fit a model from known solutions, at the gamma of a number; `answer` has the solutions."""
        model._answer, model._gang = answer, _Recorded(self, self.kernels[gamma])
        if self.classes is not None:  # a fit forgets those without weight
            model.classes_ = self.classes
        model._fit_rows(self.rows, self.target, self.weights)
        del model._answer, model._gang
        model._warn_if_open(int(np.sum(model.n_iter_)))
        return model


class _Recorded:
    """Answers from a record what an estimator asks a `Gang`."""

    leads = True

    def __init__(self, record: PathRecord, kernel: Kernel) -> None:
        self._record, self._kernel = record, kernel
        self.n_rows = len(record.target)

    def publish(self, event: dict[str, Any]) -> None:
        """Drop the event: it was published when the grid was solved."""

    def merge(self, X: Any, target: FloatVector, weights: FloatVector) -> tuple[IntVector, IntVector, FloatVector]:
        """Return which rows represent all, who represents each, and their summed weights."""
        first, owner = self._record.first, self._record.owner
        used = owner >= 0
        return first, owner, sums_by(owner[used], weights[used], len(first))

    def make_kernel(
        self, kernel: Kernel, gamma: Any, X: Any, totals: FloatVector, first: IntVector, *, balanced: bool
    ) -> Kernel:
        """Return the kernel that the gang has made."""
        return self._kernel

    def collect(self, X: Any, rows: IntVector) -> Any:
        """Return some of the rows."""
        return self._record.rows[np.searchsorted(self._record.ids, rows)]


def solve_path_on_rank(
    rank: Rank, data: RankRows, model: Any, gammas: Sequence[float | str], chain: Chain
) -> dict[str, Any] | None:
    """Solve a grid together with the other ranks; a rank program.

    - returned: the fitted attributes of the first point and, as ``_record``, the `PathRecord`; on rank 0.
    """
    model, gang = join_gang(rank, data, model)
    kernels: list[Kernel] = []
    chains: list[dict[bytes, list[Link]]] = []
    fitted: dict[str, Any] = {}

    def answer(posed: Posed) -> Solution:
        found = chain(model, posed)
        chains[-1][posed.rows.tobytes()] = found
        kernels[len(chains) - 1 :] = [posed.kernel]
        return found[0].solution

    model._answer = answer
    classes = getattr(model, "classes_", None)
    for gamma in gammas:
        model.gamma = gamma
        if classes is not None:
            model.classes_ = classes
        chains.append({})
        model._fit_rows(data.X, gang.target, gang.weights)
        if not fitted:
            fitted = model._fitted_state()
    first, owner = gang.merged
    ids = _with_coefficients(chains, first, owner)
    rows = gang.collect(data.X, ids)
    if not gang.leads:
        return None
    record = PathRecord(chains, kernels, first, owner, gang.target, gang.weights, classes, ids, rows)
    return {**fitted, "_record": record}


def _with_coefficients(chains: list[dict[bytes, list[Link]]], first: IntVector, owner: IntVector) -> IntVector:
    """Return the rows that have a coefficient in any solution, ascending: those whose representatives have one."""
    is_used: AnyArray = np.zeros(len(owner), dtype=np.bool_)
    for problems in chains:
        for key, links in problems.items():
            rows = np.frombuffer(key, dtype=first.dtype)
            for link in links:
                is_used[rows[link.solution.alpha.any(axis=0)]] = True
    return np.flatnonzero((owner >= 0) & is_used[first[owner]])
