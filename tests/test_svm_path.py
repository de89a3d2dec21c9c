"""Grids of C and gamma with warm starts end where cold fits end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.metrics.pairwise import rbf_kernel

from dsgd.svm.block import Dual, solve
from dsgd.svm.elimination import Elimination
from dsgd.svm.kernel_functions import Kernel
from dsgd.svm.kernel_matrix import KernelMatrix
from dsgd.svm.threads import Pool

GAMMA = 0.2


def _blobs(n: int = 500, seed: int = 0, n_classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    return make_classification(
        n, 8, n_informative=5, n_classes=n_classes, flip_y=0.05, random_state=np.random.RandomState(seed)
    )


@pytest.mark.parametrize("mode", ["none", "multi"])
def test_a_known_start_and_samples_left_out_change_nothing(mode):
    """From a scaled optimum with its K(y alpha), most samples left out, rightly or not, the optimum is the same."""
    X, labels = _blobs()
    n = len(labels)
    K, y = rbf_kernel(X, gamma=GAMMA), np.where(labels, 1.0, -1.0)[None]
    cold = Dual(y, np.full((1, n), -1.0), np.full((1, n), 1.0), np.zeros((1, n)))

    def matrix() -> KernelMatrix:
        kernel, pool = Kernel("rbf", GAMMA), Pool(1, None)
        return KernelMatrix(kernel, X, samples=None, dtype=np.float64, cache_bytes=10**7, pool=pool)

    policy = Elimination(mode)
    before = solve(cold, matrix(), tol=1e-6, max_iter=-1, elimination=policy)
    later = replace(cold, upper=2 * cold.upper)
    exact = solve(later, matrix(), tol=1e-6, max_iter=-1, elimination=policy)
    warm = replace(later, alpha=2 * before.alpha, u=2 * before.u)
    part = matrix()
    part.shrink(np.arange(0, n, 3))
    found = solve(warm, part, tol=1e-6, max_iter=-1, elimination=policy)
    assert found.converged
    assert found.objective == pytest.approx(exact.objective, rel=1e-8)
    np.testing.assert_allclose(found.u, K @ (y * found.alpha)[0], atol=1e-9)
