"""Probabilities of kernel SVMs: LIBSVM's folds, sigmoids at their optimum, one answer for all pairs of classes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import sklearn.svm
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import expit
from sklearn import datasets
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from dsgd.errors import InvalidParameterError
from dsgd.svm import SVC, NuSVC, svm_path
from dsgd.svm.calibration import couple, draw_folds, fit_sigmoid

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def scaled(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a set of scikit-learn with features of variance one."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-9), y


def blobs(n: int = 240, n_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return classes that overlap, with names."""
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=n)
    return rng.normal(size=(n, 4)) + y[:, None], np.array(["ape", "bee", "cat", "dog", "eel"])[y]


def products(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return the values of a linear kernel."""
    return A @ B.T


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (SVC, sklearn.svm.SVC, {}),
        (SVC, sklearn.svm.SVC, {"kernel": "linear"}),
        (SVC, sklearn.svm.SVC, {"class_weight": "balanced", "C": 5.0}),
        (NuSVC, sklearn.svm.NuSVC, {"nu": 0.2}),
    ],
    ids=["rbf", "linear", "weighted", "nu"],
)
@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_probabilities_are_scikit_learns(name, ours, theirs, options):
    """One random_state gives the sigmoids of scikit-learn, and its probabilities to what it leaves of the coupling."""
    X, y = scaled(name)
    a = ours(probability=True, random_state=3, tol=1e-5, **options).fit(X, y)
    b = theirs(probability=True, random_state=3, tol=1e-5, **options).fit(X, y)
    np.testing.assert_allclose(a.probA_, b.probA_, rtol=1e-3)
    np.testing.assert_allclose(a.probB_, b.probB_, rtol=1e-3, atol=2e-3)
    np.testing.assert_allclose(a.predict_proba(X), b.predict_proba(X), atol=5e-3)


def test_weights_and_rows_without_weight_are_scikit_learns():
    """Rows without weight are in no fold, and weighted rows are one row each to the sigmoid, as in LIBSVM."""
    X, y = blobs()
    weights = np.random.default_rng(1).choice([0.0, 0.5, 2.0, -1.0], size=len(y))
    kinds = (SVC, sklearn.svm.SVC)
    a, b = (kind(gamma=0.3, probability=True, random_state=0, tol=1e-6).fit(X, y, weights) for kind in kinds)
    np.testing.assert_allclose(a.probA_, b.probA_, rtol=1e-4)
    np.testing.assert_allclose(a.predict_proba(X), b.predict_proba(X), atol=5e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"elimination": "aggressive"}, {"solver": "pairwise"}, {"kernel": "precomputed"}, {"kernel": products}],
    ids=["whole", "left out", "pairwise", "given", "callable"],
)
def test_sigmoids_are_those_of_machines_that_never_saw_the_rows(n_classes, options):
    """A sigmoid is fitted to the scores that machines of four fifths of the rows give to the other fifth."""
    X, y = blobs(n_classes=n_classes)
    model = SVC(gamma=0.2, tol=1e-8, probability=True, random_state=5, **options)
    plain = sklearn.svm.SVC(gamma=0.2, kernel="linear" if "kernel" in options else "rbf", tol=1e-8)
    found = clone(model).fit(X @ X.T if options.get("kernel") == "precomputed" else X, y)
    seed = int(np.random.RandomState(5).randint(np.iinfo(np.int32).max))
    pairs = [(a, b) for a in range(n_classes) for b in range(a + 1, n_classes)]
    for column, pair in enumerate(pairs):
        labels = found.classes_[list(pair)]
        rows = np.concatenate([np.flatnonzero(y == label) for label in labels])
        scores = np.empty(len(rows))
        for fold in draw_folds(len(rows), seed):
            kept = np.setdiff1d(np.arange(len(rows)), fold)
            machine = clone(plain).fit(X[rows[kept]], y[rows[kept]])
            scores[fold] = -machine.decision_function(X[rows[fold]])
        slope, shift = fit_sigmoid(scores, y[rows] == labels[0])
        assert found.probA_[column] == pytest.approx(slope, rel=1e-4)
        assert found.probB_[column] == pytest.approx(shift, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("kind", [SVC, NuSVC])
def test_probability_is_there_where_it_was_asked_for(kind):
    """Without probability there is no predict_proba; set after a fit it asks for another; sigmoids are empty."""
    X, y = blobs()
    model = kind(gamma=0.1, nu=0.3) if kind is NuSVC else kind(gamma=0.1)
    assert not hasattr(model, "probA_")
    model.fit(X, y)
    assert not hasattr(model, "predict_proba")
    assert model.probA_.shape == model.probB_.shape == (0,)
    model.set_params(probability=True)
    with pytest.raises(NotFittedError, match="fitted with probability=False"):
        model.predict_proba(X)
    model.fit(X, y)
    assert model.predict_proba(X).shape == (len(X), 3)
    assert model.probA_.shape == (3,)
    model.set_params(probability=False).fit(X, y)
    assert model.probA_.shape == (0,)
    with pytest.raises(InvalidParameterError, match=r"probability=\.\.\.\) must be True or False"):
        model.set_params(probability="yes").fit(X, y)
    with pytest.raises(ValueError, match="seed"):
        model.set_params(probability=False, random_state="yes").fit(X, y)


@pytest.mark.parametrize("value", [True, False])
def test_probability_warns_that_it_is_deprecated(value):
    """Either value of probability, and the sigmoids, warn as scikit-learn 1.9 does; the default is silent."""
    X, y = blobs(60)
    with pytest.warns(FutureWarning, match="`probability` parameter of SVC is deprecated"):
        model = SVC(probability=value).fit(X, y)
    with pytest.warns(FutureWarning, match="`probB_` was deprecated"):
        assert len(model.probB_) == 3 * value


@pytest.mark.parametrize("probability", [True, "sigmoid"])
def test_points_of_a_grid_have_the_probabilities_of_a_fit(probability):
    """Machines of five folds are no points of a grid: each point has those that a fit at its C and gamma gives."""
    X, y = blobs()
    path = svm_path(X, y, Cs=[0.1, 1.0, 10.0], gammas=[0.1, 0.3], probability=probability, random_state=0)
    for number, point in enumerate(path.points):
        alone = SVC(C=point.C, gamma=point.gamma, probability=probability, random_state=0).fit(X, y)
        np.testing.assert_allclose(path.estimator(number).predict_proba(X), alone.predict_proba(X), atol=2e-3)


@example([8.5e-308, 0.0], 1, 1e-9)
@example([0.0, 0.0, 8.47e-308], 4, 1e-9)
@example([0.0, 0.0, 8.47e-308], 3, 1e-9)
@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=40),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-9, 1.0, 1e9]),
)
def test_sigmoids_minimise_their_cross_entropy(scores, bits, unit):
    """No other sigmoid has a lower cross-entropy against the drawn-in targets, at any scale of the scores."""
    f = np.array(scores) * unit
    is_first = np.array([bits >> (k % 32) & 1 for k in range(len(f))], dtype=bool)
    n_first, n_second = is_first.sum(), (~is_first).sum()
    target = np.where(is_first, (n_first + 1) / (n_first + 2), 1 / (n_second + 2))

    def loss(at: np.ndarray) -> float:
        z = at[0] * f / unit + at[1]
        return float((target * np.logaddexp(0, z) + (1 - target) * np.logaddexp(0, -z)).sum())

    slope, shift = fit_sigmoid(f, is_first)
    best = scipy.optimize.minimize(loss, [0.0, 0.0], method="BFGS").fun
    assert loss(np.array([slope * unit, shift])) <= best + 1e-7 * len(f)


@given(st.integers(2, 200), st.sampled_from([-1e8, 0.0, 1e-300, 0.3, 7e12]), st.sampled_from([1e-8, 1.0, 1e4, 1e100]))
def test_scores_that_are_all_equal_have_the_mean_of_the_targets(n, score, weight):
    """They tell nothing: whatever rows weigh, the cross-entropy is least at the mean of the drawn-in targets."""
    is_first = np.arange(n) % 3 == 0
    counts = np.where(np.arange(n) % 2, 2.0, 1.0) * weight
    n_first, n_second = counts[is_first].sum(), counts[~is_first].sum()
    mean = (n_first * (n_first + 1) / (n_first + 2) + n_second / (n_second + 2)) / (n_first + n_second)
    slope, shift = fit_sigmoid(np.full(n, score), is_first, counts)
    assert expit(-(slope * score + shift)) == pytest.approx(mean, rel=1e-6)


@given(st.integers(2, 6), st.integers(0, 1000))
def test_pairs_that_agree_give_the_probabilities_they_come_from(k, seed):
    """Pairwise probabilities p_i/(p_i + p_j) couple to p; others to what minimises the sum of squares of Wu et al."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(k, 0.5), size=3) + 1e-5
    p /= p.sum(axis=1, keepdims=True)
    a, b = np.triu_indices(k, 1)
    np.testing.assert_allclose(couple(p[:, a] / (p[:, a] + p[:, b]), k), p, atol=1e-8)
    first = rng.uniform(0.01, 0.99, size=(1, len(a)))
    found = couple(first, k)[0]

    def cost(q: np.ndarray) -> float:
        return float((((1 - first[0]) * q[a] - first[0] * q[b]) ** 2).sum())

    for _ in range(20):
        assert cost(found) <= cost(rng.dirichlet(np.ones(k))) + 1e-12
        near = np.abs(found + rng.normal(scale=1e-3, size=k))
        assert cost(found) <= cost(near / near.sum()) + 1e-12


def test_certain_pairs_couple():
    """Pairs that are certain, also in a circle, give finite probabilities that sum to one."""
    for first in ([[1.0, 1.0, 1.0]], [[0.0, 1.0, 0.0]], [[1.0, 0.0, 1.0]], [[0.5, 0.0, 0.0]]):
        p = couple(np.array(first), 3)
        assert np.isfinite(p).all()
        np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(couple(np.ones((2, 6)), 4)[:, 0], 1.0, atol=1e-6)


@given(st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_folds_take_every_row_once(n, seed):
    """Five folds hold every row once, and their sizes differ by one at most."""
    folds = draw_folds(n, seed)
    sizes = [len(fold) for fold in folds]
    assert len(folds) == 5
    assert max(sizes) - min(sizes) <= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(folds)), np.arange(n))
