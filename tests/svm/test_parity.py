"""The kernel SVMs reach LIBSVM's optimum, whatever heuristic ran, and know their own gap."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm as plain_svm
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel

import dsgd.svm
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.svm import SVC, SVR, Elimination, NuSVC, NuSVR
from dsgd.svm.kernel_solver import growth
from dsgd.svm.kernel_solver.elimination import EliminationRecord
from reference.svm import dual_gap


def _blobs(n: int = 900, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return make_classification(
        n, 10, n_informative=6, n_clusters_per_class=3, flip_y=0.05, random_state=np.random.RandomState(seed)
    )


def _dual_alpha(model, n: int) -> np.ndarray:
    coef = model.dual_coef_.toarray() if sp.issparse(model.dual_coef_) else model.dual_coef_
    alpha = np.zeros(n)
    alpha[model.support_] = np.abs(coef[0])
    return alpha


def _objective(K: np.ndarray, y: np.ndarray, alpha: np.ndarray) -> float:
    beta = np.where(y == np.unique(y)[1], alpha, -alpha)
    return float(0.5 * beta @ K @ beta - alpha.sum())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", ["dense", "csr32", "csr64"])
def test_formats_agree(dtype, form):
    """Dense and CSR rows, with indices of 32 and 64 bits, in float32 and float64, give the same machine."""
    X, y = _blobs()
    X = np.where(np.abs(X) > 1, X, 0).astype(dtype)
    data = X
    if form != "dense":
        data = sp.csr_matrix(np.pad(X, ((0, 0), (0, 300))))
        if form == "csr64":
            data.indices, data.indptr = data.indices.astype(np.int64), data.indptr.astype(np.int64)
    ours = SVC(gamma=0.1).fit(data, y)
    theirs = plain_svm.SVC(gamma=0.1).fit(X, y)
    K = rbf_kernel(X.astype(float), gamma=0.1)
    scores = ours.decision_function(data)
    np.testing.assert_allclose(scores, theirs.decision_function(X), atol=0.02)
    assert ours.support_vectors_.dtype == dtype
    assert sp.issparse(ours.dual_coef_) == (form != "dense")
    assert _objective(K, y, _dual_alpha(ours, len(y))) == pytest.approx(
        _objective(K, y, _dual_alpha(theirs, len(y))), rel=1e-5
    )


MACHINES = [
    ("SVC", {"C": 5.0}),
    ("NuSVC", {"nu": 0.3}),
    ("SVR", {"C": 5.0}),
    ("NuSVR", {"nu": 0.3}),
    ("OneClassSVM", {}),
]


@pytest.mark.parametrize(("name", "options"), MACHINES, ids=[name for name, _ in MACHINES])
def test_attributes_are_those_of_sklearn(name, options):
    """Of several classes, of values and of outliers, attributes have scikit-learn's layout, types and numbers."""
    X, y = make_classification(400, 8, n_informative=6, n_classes=4, n_clusters_per_class=1, random_state=3)
    ours, theirs = (getattr(kind, name)(gamma=0.1, tol=1e-6, **options).fit(X, y) for kind in (dsgd.svm, plain_svm))
    for attribute in ("support_", "n_support_", "support_vectors_", "dual_coef_", "intercept_", "n_iter_"):
        a, b = np.asarray(getattr(ours, attribute)), np.asarray(getattr(theirs, attribute))
        assert (a.shape, a.dtype) == (b.shape, b.dtype), attribute
        if attribute != "n_iter_":
            np.testing.assert_allclose(a, b, atol=2e-3, err_msg=attribute)
    assert ours.shape_fit_ == theirs.shape_fit_
    score = "predict" if name.endswith("SVR") else "decision_function"
    np.testing.assert_allclose(getattr(ours, score)(X), getattr(theirs, score)(X), atol=2e-3)


def test_no_reconstruction_tells_the_true_gap(monkeypatch):
    """Without reconstruction the answer is approximate, and the gap it reports is that over all samples."""
    X, y = _blobs(1200)
    monkeypatch.setattr(growth, "eliminable", lambda f, *_: np.arange(f.shape[1]) % 5 == 0)
    model = SVC(C=5.0, gamma=0.1, elimination=Elimination("multi", 2, 0.0, "none"))
    with pytest.warns(ConvergenceWarning, match="over all samples"):
        model.fit(X, y)
    gap = dual_gap(
        rbf_kernel(X, gamma=0.1), 2.0 * y - 1, -np.ones(len(y)), np.full(len(y), 5.0), _dual_alpha(model, len(y))
    )
    assert not model.converged_
    assert model.gap_ == pytest.approx(gap, rel=1e-6)


def test_history_tells_of_the_run():
    """The history has what a picture of the run needs: active samples fall, steps and kernel values only grow."""
    X, y = _blobs(1500)
    model = SVC(gamma=0.1, elimination="aggressive").fit(X, y)
    (history,) = model.elimination_history_
    assert all(isinstance(record, EliminationRecord) for record in history)
    assert {record.event for record in history} >= {"block", "eliminate", "reconstruct", "verify"}
    assert min(record.n_active for record in history) < 1500
    for name in ("n_iter", "kernel_evaluations", "cache_hits", "seconds"):
        values = [getattr(record, name) for record in history]
        assert values == sorted(values)


def test_wrong_parameters_are_named():
    """A wrong parameter or shape is an error that names it and what is allowed."""
    X, y = _blobs(50)
    with pytest.raises(InvalidParameterError, match=r"SVC\(elimination=.*aggressive"):
        SVC(elimination="sometimes").fit(X, y)
    with pytest.raises(InvalidParameterError, match=r"SVC\(kernel="):
        SVC(kernel="cubic").fit(X, y)
    with pytest.raises(InvalidDataError, match="one value per pair"):
        SVC(kernel=lambda A, B: np.ones(3)).fit(X, y)
    with pytest.raises(InvalidDataError, match="sample_weight"):
        SVC().fit(X, y, sample_weight=-np.ones(50))
    with pytest.raises(InvalidDataError, match="square"):
        SVC(kernel="precomputed").fit(X, y)


def test_break_ties():
    """With `break_ties` the prediction is the class of the largest decision value."""
    X, y = make_classification(
        300, 6, n_informative=4, n_redundant=0, n_classes=4, n_clusters_per_class=1, random_state=5
    )
    model = SVC(break_ties=True).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), np.argmax(model.decision_function(X), axis=1))
    with pytest.raises(InvalidParameterError, match="break_ties must be False"):
        model.set_params(decision_function_shape="ovo").predict(X)


def test_machines_of_shares_are_those_of_costs_and_tubes():
    """`SVC` with the cost, and `SVR` with the tube, that a share of errors amounts to give the same values."""
    X, y = _blobs(400)
    model = NuSVC(nu=0.4, gamma=0.1, tol=1e-7).fit(X, y)
    same = SVC(C=model.C_[0], gamma=0.1, tol=1e-6).fit(X, y)
    np.testing.assert_allclose(model.decision_function(X), same.decision_function(X), atol=1e-4)
    values = np.sin(X[:, 0])
    tube = NuSVR(nu=0.3, gamma=0.1, tol=1e-6).fit(X, values)
    same = SVR(epsilon=tube.epsilon_, gamma=0.1, tol=1e-6).fit(X, values)
    np.testing.assert_allclose(tube.predict(X), same.predict(X), atol=1e-4)
