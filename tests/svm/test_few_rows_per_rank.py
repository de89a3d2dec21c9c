"""Ranks of a kernel SVM that hold few rows or none."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from dsgd.svm import SVC, SVR
from svm_gangs import blocks_between, fit_on_ranks


@cache
def problem(n: int, sparse: bool) -> tuple[Any, np.ndarray]:
    """Return rows and two classes."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, 3)), np.arange(n) % 2
    X[rng.random((n, 3)) < 0.3 * sparse] = 0.0
    return csr_array(X) if sparse else X, y


@cache
def objective_of_one(machine: Any, n: int, sparse: bool) -> float:
    """Return the dual objective of one process."""
    return machine(C=10.0, gamma=1.0).fit(*problem(n, sparse)).dual_objective_


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shares", [(1, 0), (0, 1), (0, 0, 1), (0.001, 0.999), (0.5, 0, 0.5)])
@pytest.mark.parametrize("n", [12, 700])
@pytest.mark.parametrize("machine", [SVC, SVR])
def test_a_rank_without_rows_takes_part(machine, n, shares, sparse, n_jobs, monkeypatch):
    """Whatever threads a rank has, one that holds no rows, or one, ends with the model of the ranks that hold them."""
    monkeypatch.setattr("dsgd.svm.kernels.matrix._FEW", 0)  # of any two ranks' rows each computes half of the values
    rows, y = problem(n, sparse)
    classes = np.unique(y) if machine is SVC else None
    model = machine(C=10.0, gamma=1.0, cache_size=0.01, n_jobs=n_jobs)
    ends = [0, *np.ceil(np.cumsum(shares) * n).astype(int).tolist()]
    fit_on_ranks(model, rows, [[block] for block in blocks_between(ends, rows, y, None)], classes)
    assert model.converged_
    assert model.dual_objective_ == pytest.approx(objective_of_one(machine, n, sparse), rel=1e-3)
