"""Random features and the Nystroem method: laws of estimates, twins of scikit-learn, blocks, memory, refusals."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import kernel_approximation as peers
from sklearn.base import clone
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsgd.errors import InvalidParameterError
from dsgd.kernel_approximation import Nystroem, RandomFeatures
from dsgd.local.features import blocks_of

GAMMA = 0.3
KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "rbf": ({"kernel": "rbf"}, rbf_kernel),
    "laplacian": ({"kernel": "laplacian"}, laplacian_kernel),
    "orthogonal": ({"kernel": "rbf", "orthogonal": True}, rbf_kernel),
}
ROWS = np.random.default_rng(0).normal(size=(12, 5))
# Shorter than others, rows have a kernel that is far from zero.
ROWS[:6] *= 0.3


def estimates(kind: str, n_components: int, seeds: int) -> np.ndarray:
    """Return kernel estimates of all pairs of rows, one matrix for each seed."""
    made = (RandomFeatures(n_components, gamma=GAMMA, random_state=seed, **KINDS[kind][0]) for seed in range(seeds))
    return np.array([Z @ Z.T for Z in (one.fit_transform(ROWS) for one in made)])


@parametrize_with_checks(
    [
        RandomFeatures(4),
        RandomFeatures(4, kernel="laplacian"),
        RandomFeatures(4, orthogonal=True),
        Nystroem(n_components=4),
    ]
)
def test_scikit_learn_compatibility(estimator: Any, check: Any) -> None:
    """Every check of scikit-learn passes."""
    check(estimator)


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_estimates_are_unbiased(kind: str) -> None:
    """The mean of estimates over 400 seeds is within five standard errors of the kernel, for every pair of rows."""
    found, exact = estimates(kind, 16, 400), KINDS[kind][1](ROWS, gamma=GAMMA)
    errors = np.abs(found.mean(axis=0) - exact)
    assert np.all(errors < 5 * found.std(axis=0) / np.sqrt(len(found)) + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_fall_like_the_root_of_the_features(kind: str) -> None:
    """With sixteen times as many features the error of an estimate is a quarter."""
    exact = KINDS[kind][1](ROWS, gamma=GAMMA)
    few, many = (np.sqrt(np.mean((estimates(kind, n, 40) - exact) ** 2)) for n in (64, 1024))
    assert few / many == pytest.approx(4.0, rel=0.15)


def test_orthogonal_features_have_less_variance() -> None:
    """Frequencies are orthogonal in blocks of as many as columns, as long as normal ones, and estimates err less."""
    drawn = RandomFeatures(2_003, gamma=GAMMA, orthogonal=True, random_state=0).fit(ROWS).random_weights_
    for block in (drawn[:, :5], drawn[:, 5:10], drawn[:, 2_000:]):
        products = block.T @ block
        np.testing.assert_allclose(products - np.diag(np.diag(products)), 0.0, atol=1e-12)
    assert np.mean(drawn**2) == pytest.approx(2 * GAMMA, rel=0.05)
    exact = rbf_kernel(ROWS, gamma=GAMMA)
    plain, orthogonal = (np.mean((estimates(kind, 5, 400) - exact) ** 2) for kind in ("rbf", "orthogonal"))
    assert orthogonal < 0.97 * plain


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rbf_features_are_those_of_the_peer(dtype: Any) -> None:
    """The same seed gives the features of `RBFSampler`, on dense and sparse rows, in both precisions."""
    X = np.random.default_rng(1).normal(size=(700, 6)).astype(dtype)
    X[np.abs(X) < 0.5] = 0.0
    ours = RandomFeatures(300, gamma=GAMMA, random_state=3).fit(X)
    peer = peers.RBFSampler(gamma=GAMMA, n_components=300, random_state=3).fit(X)
    assert ours.random_weights_.tobytes() == peer.random_weights_.tobytes()
    assert ours.random_offset_.tobytes() == peer.random_offset_.tobytes()
    assert len(list(blocks_of(700, 300 * X.itemsize))) > (1 if dtype == np.float64 else 0)
    for rows in (X, sp.csr_array(X), sp.csr_matrix(X)[5:600]):
        dense = rows.toarray() if sp.issparse(rows) else rows
        found = ours.transform(rows)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, peer.transform(dense), atol=1e-12 if dtype == np.float64 else 2e-6)


@pytest.mark.parametrize(
    "kernel", [{}, {"kernel": "laplacian", "gamma": 0.2}, {"kernel": "poly", "degree": 2, "coef0": 1}]
)
@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_nystroem_equals_its_peer(kernel: dict[str, Any], kind: str) -> None:
    """The same seed chooses the same basis, and gives the features of scikit-learn's to rounding."""
    X = np.random.default_rng(2).normal(size=(900, 4))
    rows = X if kind == "dense" else sp.csr_array(X)
    ours, peer = (made(n_components=160, random_state=1, **kernel).fit(rows) for made in (Nystroem, peers.Nystroem))
    assert np.array_equal(ours.component_indices_, peer.component_indices_)
    # Small singular values of the basis magnify the rounding of kernel values.
    expected = peer.transform(rows)
    np.testing.assert_allclose(ours.transform(rows), expected, atol=1e-9 * np.abs(peer.normalization_).max())


@pytest.mark.parametrize("made", [RandomFeatures(400, random_state=0), Nystroem(n_components=400, random_state=0)])
@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_no_more_memory_than_the_features_take(made: Any, kind: str) -> None:
    """Beside the result a transformation holds some blocks and the rows' own checks: no second matrix of its size."""
    X = np.random.default_rng(3).normal(size=(12_000, 3))
    rows = X if kind == "dense" else sp.csr_array(X)
    made.fit(rows[:500]).transform(rows[:2])
    tracemalloc.start()
    size = made.transform(rows).nbytes
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 12_000 * 400 * 8
    assert peak < 1.05 * size + 8 * (1 << 20)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (RandomFeatures(0), r"RandomFeatures\(n_components=\.\.\.\)"),
        (RandomFeatures(gamma=0.0), r"RandomFeatures\(gamma=\.\.\.\)"),
        (RandomFeatures(kernel="cosine"), "'rbf', 'laplacian'"),
        (RandomFeatures(kernel="laplacian", orthogonal=True), "orthogonal.*rbf.*laplacian"),
        (Nystroem("rbfs"), r"Nystroem\(kernel=\.\.\.\)"),
        (Nystroem(n_components=0), r"Nystroem\(n_components=\.\.\.\)"),
    ],
)
def test_what_has_no_features_is_refused(made: Any, named: str) -> None:
    """A parameter out of its domain is named when rows come."""
    with pytest.raises(InvalidParameterError, match=named):
        made.fit(ROWS)


@pytest.mark.parametrize(
    ("made", "theirs"),
    [
        (RandomFeatures(30, gamma=0.4, kernel="laplacian", random_state=1), peers.RBFSampler(gamma="scale")),
        (Nystroem("poly", degree=2, coef0=1.0, n_components=4), peers.Nystroem(gamma=0.3, n_components=5)),
    ],
    ids=["random", "nystroem"],
)
def test_transformers_and_their_peers_become_each_other(made: Any, theirs: Any) -> None:
    """Features stay the same after `to_sklearn` and `from_sklearn`; what a peer has no parameters for is refused."""
    Z = clone(made).fit(ROWS)
    plain = Z.to_sklearn()
    assert type(plain) is type(theirs)
    np.testing.assert_allclose(plain.transform(ROWS), Z.transform(ROWS), rtol=1e-12)
    np.testing.assert_allclose(
        type(made).from_sklearn(theirs.fit(ROWS)).transform(ROWS), theirs.transform(ROWS), rtol=1e-9, atol=1e-12
    )
    with pytest.raises(InvalidParameterError, match=r"takes kernels by name|must be a fitted sklearn"):
        type(made).from_sklearn(peers.Nystroem(kernel=lambda a, b: 1.0, n_components=1).fit(ROWS[:1]))
