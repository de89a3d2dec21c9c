"""The kernel SVMs reach LIBSVM's optimum, whatever heuristic ran, and know their own gap."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm as plain_svm
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import linear_kernel, pairwise_kernels, polynomial_kernel, rbf_kernel, sigmoid_kernel

from dsgd.datasets import load
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.svm import SVC, SVR, Elimination, NuSVC, NuSVR, OneClassSVM
from dsgd.svm.kernel_solver import growth
from dsgd.svm.kernel_solver.elimination import EliminationRecord
from reference.svm import dual_gap, smo

PRESETS = ["none", "single", "multi", "libsvm", "aggressive", "average", "conservative", "auto"]


def _blobs(n: int = 900, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return make_classification(
        n, 10, n_informative=6, n_clusters_per_class=3, flip_y=0.05, random_state=np.random.RandomState(seed)
    )


def _checkerboard(n: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(1).random((n, 2))
    return X, (np.floor(4 * X).sum(axis=1) % 2).astype(int)


def _dual_alpha(model, n: int) -> np.ndarray:
    coef = model.dual_coef_.toarray() if sp.issparse(model.dual_coef_) else model.dual_coef_
    alpha = np.zeros(n)
    alpha[model.support_] = np.abs(coef[0])
    return alpha


def _objective(K: np.ndarray, y: np.ndarray, alpha: np.ndarray) -> float:
    beta = np.where(y == np.unique(y)[1], alpha, -alpha)
    return float(0.5 * beta @ K @ beta - alpha.sum())


def _assert_same(ours, theirs, X, y, K, costs, tol: float = 1e-3) -> None:
    """Objectives within 1e-5, the gap over all samples under tol, equal predictions off the margin."""
    alpha = _dual_alpha(ours, len(y))
    mine, other = _objective(K, y, alpha), _objective(K, y, _dual_alpha(theirs, len(y)))
    assert abs(mine - other) <= 1e-5 * abs(other)
    assert mine <= other + 1e-5 * abs(other)
    signs = np.where(y == np.unique(y)[1], 1.0, -1.0)
    assert dual_gap(K, signs, -np.ones(len(y)), costs, alpha) < tol * (1 + 1e-6)
    assert ours.gap_ < tol
    assert ours.converged_
    assert ours.dual_objective_ == pytest.approx(mine, rel=1e-9)
    scores = theirs.decision_function(X)
    clear = np.abs(scores) > 0.02
    np.testing.assert_array_equal(ours.predict(X)[clear], theirs.predict(X)[clear])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("problem", ["blobs", "checkerboard"])
def test_every_preset_reaches_libsvms_optimum(preset, problem):
    """Whatever is eliminated and however small the cache, the optimum is LIBSVM's."""
    X, y = _blobs() if problem == "blobs" else _checkerboard()
    C, gamma = (2.0, 0.1) if problem == "blobs" else (1000.0, 10.0)
    ours = SVC(C=C, gamma=gamma, elimination=preset, cache_size=1).fit(X, y)
    theirs = plain_svm.SVC(C=C, gamma=gamma).fit(X, y)
    _assert_same(ours, theirs, X, y, rbf_kernel(X, gamma=gamma), np.full(len(y), C))


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


KERNELS = {
    "linear": (linear_kernel, {}),
    "rbf": (rbf_kernel, {"gamma": 0.2}),
    "poly": (polynomial_kernel, {"gamma": 0.1, "coef0": 1.0, "degree": 3}),
    "poly2": (polynomial_kernel, {"gamma": 0.1, "coef0": 0.5, "degree": 2}),
    "poly4": (polynomial_kernel, {"gamma": 0.05, "coef0": 1.0, "degree": 4}),
    "sigmoid": (sigmoid_kernel, {"gamma": 0.01, "coef0": 0.0}),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("how", ["named", "sparse", "precomputed", "callable"])
def test_kernels_match_sklearn(name, how):
    """Every kernel, by name on dense and sparse rows, as a matrix and as a function, gives scikit-learn's machine."""
    X, y = _blobs(300)
    function, constants = KERNELS[name]
    K = function(X, **constants)
    named = {"kernel": name.rstrip("24"), **constants}
    theirs = plain_svm.SVC(**named).fit(X, y)
    if how == "precomputed":
        ours, data = SVC(kernel="precomputed").fit(K, y), K
    elif how == "callable":
        ours, data = SVC(kernel=lambda A, B: function(A, B, **constants)).fit(X, y), X
    else:
        data = sp.csr_matrix(X) if how == "sparse" else X
        ours = SVC(**named).fit(data, y)
    scores = theirs.decision_function(X)
    np.testing.assert_allclose(ours.decision_function(data), scores, atol=0.02)
    if name != "sigmoid":
        assert _objective(K, y, _dual_alpha(ours, len(y))) == pytest.approx(
            _objective(K, y, _dual_alpha(theirs, len(y))), rel=1e-5
        )
    if name == "linear" and how in {"named", "sparse"}:
        coef = ours.coef_.toarray() if sp.issparse(ours.coef_) else ours.coef_
        np.testing.assert_allclose(coef, theirs.coef_, atol=0.01)


def test_unscaled_features():
    """Features of very different size are solved to the same optimum; float32 rows would not do."""
    X, y = _blobs(400)
    X = X * np.logspace(0, 3, 10) + 50
    gamma = 1e-6
    ours = SVC(C=100, gamma=gamma).fit(X, y)
    theirs = plain_svm.SVC(C=100, gamma=gamma).fit(X, y)
    _assert_same(ours, theirs, X, y, rbf_kernel(X, gamma=gamma), np.full(len(y), 100.0))


def test_duplicate_rows():
    """Equal rows are solved as one, and their coefficient is distributed within the bounds of each."""
    X, y = _blobs(200)
    X, y = np.tile(X, (4, 1)), np.tile(y, 4)
    ours = SVC(gamma=0.1).fit(X, y)
    theirs = plain_svm.SVC(gamma=0.1).fit(X, y)
    _assert_same(ours, theirs, X, y, rbf_kernel(X, gamma=0.1), np.ones(len(y)))


def test_heavy_weights():
    """Sample weights over six orders of magnitude and class weights bound each variable by its own cost."""
    X, y = _blobs(500)
    weights = 10.0 ** np.random.default_rng(0).uniform(-3, 3, len(y))
    options = {"gamma": 0.1, "class_weight": {0: 0.5, 1: 3.0}}
    ours = SVC(**options).fit(X, y, sample_weight=weights)
    theirs = plain_svm.SVC(**options).fit(X, y, sample_weight=weights)
    costs = weights * np.where(y == 1, 3.0, 0.5)
    _assert_same(ours, theirs, X, y, rbf_kernel(X, gamma=0.1), costs)
    np.testing.assert_array_equal(ours.class_weight_, theirs.class_weight_)


@pytest.mark.usefixtures("data_home")
@pytest.mark.parametrize(("name", "C", "gamma"), [("a9a", 1.0, 0.05), ("w8a", 8.0, 0.02), ("ijcnn1", 10.0, 1.0)])
def test_real_sets(name, C, gamma):
    """On 3000 rows of real sets the optimum and the predictions are LIBSVM's."""
    data = load(name)
    X, y = data.X[:3000], data.y[:3000]
    plain = X.toarray() if sp.issparse(X) else X
    ours = SVC(C=C, gamma=gamma).fit(X, y)
    theirs = plain_svm.SVC(C=C, gamma=gamma).fit(X, y)
    _assert_same(ours, theirs, X, y, rbf_kernel(plain, gamma=gamma), np.full(len(y), C))


@pytest.mark.parametrize("shape", ["ovr", "ovo"])
def test_several_classes_have_sklearns_attributes(shape):
    """Of several classes, all coefficients, support vectors and decision values are laid out as in scikit-learn."""
    X, y = make_classification(400, 8, n_informative=6, n_classes=4, n_clusters_per_class=1, random_state=3)
    names = np.array(["a", "b", "c", "d"])[y]
    ours = SVC(gamma=0.1, decision_function_shape=shape, tol=1e-6).fit(X, names)
    theirs = plain_svm.SVC(gamma=0.1, decision_function_shape=shape, tol=1e-6).fit(X, names)
    np.testing.assert_array_equal(ours.support_, theirs.support_)
    np.testing.assert_array_equal(ours.n_support_, theirs.n_support_)
    np.testing.assert_allclose(ours.dual_coef_, theirs.dual_coef_, atol=1e-3)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-3)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    for name in ("support_", "n_support_", "support_vectors_", "dual_coef_", "intercept_", "n_iter_", "classes_"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
    assert ours.shape_fit_ == theirs.shape_fit_
    linear, plain = (kind(kernel="linear", tol=1e-5).fit(X, names) for kind in (SVC, plain_svm.SVC))
    np.testing.assert_allclose(linear.coef_, plain.coef_, atol=1e-2)


def test_break_ties():
    """With `break_ties` the prediction is the class of the largest decision value."""
    X, y = make_classification(
        300, 6, n_informative=4, n_redundant=0, n_classes=4, n_clusters_per_class=1, random_state=5
    )
    model = SVC(break_ties=True).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), np.argmax(model.decision_function(X), axis=1))
    with pytest.raises(InvalidParameterError, match="break_ties must be False"):
        model.set_params(decision_function_shape="ovo").predict(X)


def test_twin_gives_the_same_optimum():
    """The plain-numpy solver of one pair at a time ends at the same objective."""
    X, y = _blobs(200)
    signs, K = np.where(y == 1, 1.0, -1.0), rbf_kernel(X, gamma=0.1)
    alpha, objective = smo(K, signs, -np.ones(200), np.full(200, 3.0), np.zeros(200), 1e-6)
    model = SVC(C=3.0, gamma=0.1, tol=1e-6).fit(X, y)
    assert model.dual_objective_ == pytest.approx(objective, rel=1e-9)
    np.testing.assert_allclose(_dual_alpha(model, 200), alpha, atol=1e-3)


@pytest.mark.parametrize("mode", ["multi", "single", "libsvm"])
@pytest.mark.parametrize("reconstruction", ["delta", "full"])
def test_false_eliminations_are_undone(monkeypatch, mode, reconstruction):
    """Samples left out at random, right or wrong, come back, and the optimum is the same."""
    X, y = _blobs(1200)
    rng = np.random.default_rng(4)
    honest = growth.eliminable
    injections = []

    def wrong(f, *args):
        out = honest(f, *args)
        if f.shape[1] > 400 and len(injections) < 12:
            injections.append(int(out.sum()))
            out = out | (rng.random(f.shape[1]) < 0.2)
        return out

    expected = SVC(gamma=0.1, elimination="none", tol=1e-4).fit(X, y)
    monkeypatch.setattr(growth, "eliminable", wrong)
    model = SVC(gamma=0.1, elimination=Elimination(mode, 2, 0.0, reconstruction), tol=1e-4, n_jobs=1).fit(X, y)
    assert injections
    assert 0 < model.n_returned_ <= model.n_eliminated_
    assert model.n_reconstructions_ > 0
    assert model.converged_
    assert model.dual_objective_ == pytest.approx(expected.dual_objective_, rel=1e-6)


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


def test_iteration_cap_warns_with_the_true_gap():
    """Stopped by `max_iter`, the fit warns and `gap_` is the gap of what it returns."""
    X, y = _blobs()
    with pytest.warns(ConvergenceWarning, match="gap of"):
        model = SVC(gamma=0.1, max_iter=100).fit(X, y)
    gap = dual_gap(rbf_kernel(X, gamma=0.1), 2.0 * y - 1, -np.ones(len(y)), np.ones(len(y)), _dual_alpha(model, len(y)))
    assert model.n_iter_[0] <= 100
    assert model.gap_ == pytest.approx(gap, rel=1e-6)
    assert model.fit_status_ == 1


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


@pytest.mark.parametrize("how", ["rbf", "linear", "precomputed"])
def test_svr_matches_sklearn(how):
    """Regression gives scikit-learn's function, attributes and shapes, with weights."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(500, 5))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=500)
    weights = rng.random(500) * 3
    data = rbf_kernel(X, gamma=0.2) if how == "precomputed" else X
    options = {"kernel": how, "gamma": 0.2, "C": 5.0, "tol": 1e-5}
    ours = SVR(**options, elimination="aggressive").fit(data, y, sample_weight=weights)
    theirs = plain_svm.SVR(**options).fit(data, y, sample_weight=weights)
    np.testing.assert_allclose(ours.predict(data), theirs.predict(data), atol=1e-3)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-3)
    for name in ("support_", "n_support_", "support_vectors_", "dual_coef_", "intercept_"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert (a.ndim, a.dtype) == (b.ndim, b.dtype), name
    K = pairwise_kernels(X) if how == "linear" else rbf_kernel(X, gamma=0.2)
    values = [
        0.5 * float(m.dual_coef_[0] @ K[np.ix_(m.support_, m.support_)] @ m.dual_coef_[0])
        - float(m.dual_coef_[0] @ y[m.support_])
        + 0.1 * float(np.abs(m.dual_coef_).sum())
        for m in (ours, theirs)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert ours.dual_objective_ == pytest.approx(values[0], rel=1e-9)


@pytest.mark.parametrize("preset", ["none", "aggressive"])
@pytest.mark.parametrize("nu", [0.2, 0.8])
def test_nu_svc_matches_sklearn(nu, preset):
    """With a share of errors, coefficients, intercept and predictions are scikit-learn's, whatever is eliminated."""
    X, y = _blobs()
    ours = NuSVC(nu=nu, gamma=0.1, tol=1e-6, elimination=preset).fit(X, y)
    theirs = plain_svm.NuSVC(nu=nu, gamma=0.1, tol=1e-6).fit(X, y)
    assert (ours.n_eliminated_ > 0) == (preset != "none")
    np.testing.assert_array_equal(ours.support_, theirs.support_)
    np.testing.assert_allclose(ours.dual_coef_, theirs.dual_coef_, atol=1e-3)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-3)
    K, rho = rbf_kernel(X, gamma=0.1), 1 / ours.C_[0]
    beta = np.zeros(len(y))
    beta[ours.support_] = ours.dual_coef_[0] * rho
    assert ours.dual_objective_ == pytest.approx(0.5 * beta @ K @ beta, rel=1e-6)
    assert np.abs(beta).sum() == pytest.approx(nu * len(y))
    assert np.mean(np.abs(beta) > 1 - 1e-9) <= nu


def test_nu_svc_of_several_classes_matches_sklearn():
    """On several classes, with sample weights and CSR rows, the machine is scikit-learn's."""
    X, y = make_classification(400, 8, n_informative=6, n_classes=4, n_clusters_per_class=1, random_state=3)
    X = np.where(np.abs(X) > 0.5, X, 0)
    weights = np.random.default_rng(0).random(400) * 3
    ours = NuSVC(nu=0.3, gamma=0.1, tol=1e-6).fit(sp.csr_matrix(X), y, sample_weight=weights)
    theirs = plain_svm.NuSVC(nu=0.3, gamma=0.1, tol=1e-6).fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(ours.n_support_, theirs.n_support_)
    np.testing.assert_allclose(ours.dual_coef_.toarray(), theirs.dual_coef_, atol=2e-3)
    np.testing.assert_allclose(ours.decision_function(sp.csr_matrix(X)), theirs.decision_function(X), atol=1e-3)
    for name in ("support_", "n_support_", "dual_coef_", "intercept_", "n_iter_", "classes_", "class_weight_"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name


def test_nu_svc_is_svc_with_another_parameter():
    """`SVC` with the cost that a share of errors amounts to gives the same decision values."""
    X, y = _blobs(400)
    model = NuSVC(nu=0.4, gamma=0.1, tol=1e-7).fit(X, y)
    same = SVC(C=model.C_[0], gamma=0.1, tol=1e-6).fit(X, y)
    np.testing.assert_allclose(model.decision_function(X), same.decision_function(X), atol=1e-4)


def test_nu_svc_tells_of_infeasible_shares():
    """A share of errors that the smaller class cannot hold is refused; balanced class weights make room for it."""
    X, y = _blobs(300)
    keep = np.flatnonzero((y == 0) | (np.arange(300) % 4 == 0))
    X, y = X[keep], y[keep]
    for make in (NuSVC, plain_svm.NuSVC):
        with pytest.raises(ValueError, match="specified nu is infeasible"):
            make(nu=0.7).fit(X, y)
    model = NuSVC(nu=0.7, class_weight="balanced").fit(X, y)
    assert model.score(X[y == 1], y[y == 1]) > 0.8
    heavy = NuSVC(nu=0.2, class_weight={0: 1e4, 1: 1e-4}).fit(X, y)
    assert (heavy.predict(X) == 0).all()


def test_nu_svc_goes_below_tol_for_a_small_margin():
    """Where the margin is below the tolerance, the decision function still is the one of a much smaller tolerance."""
    X, y = _blobs(300)
    coarse, fine = (NuSVC(nu=0.05, gamma=0.01, tol=tol).fit(X, y) for tol in (1e-2, 1e-7))
    assert 1 / fine.C_[0] < 1e-2
    assert coarse.gap_ < 1e-3
    assert np.corrcoef(coarse.decision_function(X), fine.decision_function(X))[0, 1] > 0.99


@pytest.mark.parametrize("preset", ["none", "aggressive"])
@pytest.mark.parametrize("nu", [0.1, 0.6])
def test_nu_svr_matches_sklearn(nu, preset):
    """With a share of rows outside of the tube, predictions are scikit-learn's, and those of `SVR` with that tube."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(500, 5))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=500)
    weights = rng.random(500) * 3
    options = {"gamma": 0.2, "C": 5.0, "tol": 1e-6}
    ours = NuSVR(nu=nu, **options, elimination=preset).fit(X, y, sample_weight=weights)
    theirs = plain_svm.NuSVR(nu=nu, **options).fit(X, y, sample_weight=weights)
    assert (ours.n_eliminated_ > 0) == (preset != "none")
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    for name in ("support_", "n_support_", "support_vectors_", "dual_coef_", "intercept_"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
    tube = SVR(epsilon=ours.epsilon_, **options).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(ours.predict(X), tube.predict(X), atol=1e-4)
    outside = weights[np.abs(y - ours.predict(X)) > ours.epsilon_ + 1e-4].sum()
    assert outside <= nu * weights.sum()


@pytest.mark.parametrize("nu", [0.1, 0.5, 0.9])
def test_one_class_matches_sklearn(nu):
    """The one-class machine gives scikit-learn's decision values."""
    X = np.random.default_rng(6).normal(size=(600, 4))
    ours = OneClassSVM(nu=nu, gamma=0.3, tol=1e-5).fit(X)
    theirs = plain_svm.OneClassSVM(nu=nu, gamma=0.3, tol=1e-5).fit(X)
    np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), atol=1e-2)
    assert ours.dual_coef_.sum() == pytest.approx(nu * 600)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-2)
    assert ours.offset_ == pytest.approx(theirs.offset_, abs=1e-2)


def test_threads_give_the_same_machine():
    """One thread and several reach the same support vectors and objective."""
    X, y = make_classification(600, 8, n_informative=6, n_classes=3, random_state=3)
    one, two = (SVC(n_jobs=n).fit(X, y) for n in (1, 2))
    np.testing.assert_array_equal(one.support_, two.support_)
    assert one.dual_objective_ == pytest.approx(two.dual_objective_, rel=1e-9)


def test_weights_are_copies_in_any_order():
    """Whole weights and copies of rows give the same decision function, whatever the order of rows."""
    X, y = _blobs(150)
    weights = np.random.default_rng(0).integers(0, 4, 150)
    again = np.random.default_rng(1).permutation(np.repeat(np.arange(150), weights))
    one = SVC().fit(X, y, sample_weight=weights)
    two = SVC().fit(X[again], y[again])
    np.testing.assert_allclose(one.decision_function(X), two.decision_function(X), rtol=1e-9)


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
