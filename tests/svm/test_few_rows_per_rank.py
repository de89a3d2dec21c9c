"""Ranks of a kernel SVM that hold few rows or none."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.runtime import run_on_threads
from dsgd.svm import SVC, SVR
from dsgd.svm.distributed.kernel import RowPacker, fit_on_rank


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("machine", [SVC, SVR])
def test_a_rank_without_rows_takes_part(machine, n_jobs):
    """Whatever threads a rank has, one that holds no rows ends with the model of the ranks that hold them all."""
    X, y = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 2
    classes = np.unique(y) if machine is SVC else None
    model = machine(C=10.0, cache_size=0.01, n_jobs=n_jobs)
    model._check_parameters()
    if classes is not None:
        model.classes_ = model._check_classes(classes)
    model.n_features_in_ = 3
    packer = RowPacker(classes, 3, "float64", sparse=False)
    data = [packer([(X[part], y[part], None, part.start)], k) for k, part in enumerate((slice(0, 12), slice(12, 12)))]
    model.__dict__.update(run_on_threads(fit_on_rank, data, (model,), timeout_s=30.0).value)
    assert model.converged_
    assert model.dual_objective_ == pytest.approx(machine(C=10.0).fit(X, y).dual_objective_, rel=1e-3)
