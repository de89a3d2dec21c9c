"""Memory of the ranks of a kernel SVM: bytes for each row of the whole, besides features and kernel rows.

Ranks are threads of one process, which share nothing but messages; `tracemalloc` counts what numpy allocates. A row
more costs each rank what the peaks of two sizes differ by: twice as many ranks should make half of it.

    python -m benchmarks run svm/memory --out rows.jsonl
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.common.measuring import Options, Rows, table
from dsgd.runtime import run_on_threads
from dsgd.svm import SVC
from dsgd.svm.distributed.kernel import RankRows, fit_on_rank
from dsgd.svm.kernel_solver import block

PAGE = "svm"
QUICK_S = 10
QUICK = "a tenth of the rows, two and four ranks"
REPEATS = (1, 1)
SIZES = (40_000, 80_000)
RANKS = (1, 2, 4, 8)


def share(n: int, n_ranks: int) -> list[RankRows]:
    """Return the rows of each rank: two features, two classes, few support vectors."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2)).astype(np.float32)
    y = (X[:, 0] + 0.3 * X[:, 1] + 0.05 * rng.normal(size=n) > 0).astype(float)
    parts = [np.arange(n)[number::n_ranks] for number in range(n_ranks)]
    return [RankRows(np.ascontiguousarray(X[ids]), y[ids], np.ones(len(ids)), ids) for ids in parts]


@contextmanager
def noted_at_solver(found: list[int]) -> Iterator[None]:
    """Note the bytes in use when the solver of rank 0 has all of its state."""
    solve = block._Run.solve

    def noting(run: Any) -> Any:
        if run.peers.rank == 0:
            found.append(tracemalloc.get_traced_memory()[0])
        return solve(run)

    with mock.patch.object(block._Run, "solve", noting):
        yield


def measure(n: int, n_ranks: int) -> tuple[float, float]:
    """Return the bytes of a rank while the solver begins, and at the peak of the fit."""
    model, parts, found = SVC(gamma=0.5, tol=1e-2, cache_size=2, n_jobs=1), share(n, n_ranks), []
    model.classes_ = np.arange(2)
    gc.collect()
    tracemalloc.start()
    with noted_at_solver(found):
        run_on_threads(fit_on_rank, parts, (model,), timeout_s=600)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found[0] / n_ranks, peak / n_ranks


OPTIONS = {
    "--ranks": {"type": int, "nargs": "+", "default": list(RANKS)},
}


def run(options: Options, rows: Rows) -> None:
    sizes = SIZES
    if options.quick:
        sizes, options.ranks = (6_000, 12_000), [2, 4]
    measure(3_000, 2)  # compiled functions are objects, too
    with table("bytes of a rank for each row of the whole", "ranks:d", "solver:.0f", "peak:.0f") as line:
        for n_ranks in options.ranks:
            small, large = (measure(n, n_ranks) for n in sizes)
            each = [(b - a) / (sizes[1] - sizes[0]) for a, b in zip(small, large, strict=True)]
            line(n_ranks, *each)
            rows.add(case="memory", ranks=n_ranks, sizes=list(sizes), solver_bytes=each[0], peak_bytes=each[1])
