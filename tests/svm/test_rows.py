"""What rows and weights a kernel SVM takes: those of scikit-learn, and the same machine in every form."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.model_selection import SVMSearchCV, svm_search
from dsgd.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM, svm_path
from dsgd.svm.kernels.rows import distribute

MACHINES = [SVC(), NuSVC(nu=0.3), SVR(), NuSVR(), OneClassSVM()]


def blobs(n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Return two classes that overlap, of codes 0 and 1."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=n)
    return rng.normal(size=(n, 4)) + y[:, None], y


def scores_of(model, X) -> np.ndarray:
    """Return decision values, or predictions of a regressor."""
    return (model.decision_function if hasattr(model, "decision_function") else model.predict)(X)


@pytest.mark.parametrize("model", MACHINES, ids=lambda model: type(model).__name__)
def test_rows_of_negative_weight_are_left_out(model):
    """A row of negative weight is a row that is not there, as in LIBSVM; if none is left, that is said."""
    X, y = blobs()
    weights = np.random.default_rng(1).choice([-2.0, 0.5, 1.0], size=len(y))
    left = weights > 0
    one, other = clone(model).fit(X, y, weights), clone(model).fit(X[left], y[left], weights[left])
    np.testing.assert_array_equal(scores_of(one, X), scores_of(other, X))
    assert (weights[one.support_] > 0).all()
    with pytest.raises(InvalidDataError, match="all samples have zero or negative weights"):
        clone(model).fit(X, y, -np.ones(len(y)))
    with pytest.raises(InvalidDataError, match="NaN or infinite"):
        clone(model).fit(X, y, np.where(left, 1.0, np.nan))


def test_weights_that_leave_one_class_are_refused():
    """If weights leave one class the error says so, and names it."""
    X, y = blobs()
    with pytest.raises(InvalidDataError, match=r"positive weights belong to the same class, \[1\]"):
        SVC().fit(X, y, np.where(y == 1, 1.0, -1.0))
    with pytest.raises(InvalidDataError, match="specified nu is infeasible"):
        NuSVC().fit(X, y, np.where(y == 1, 1.0, 0.0))


@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf", "sigmoid"])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_csr_rows_give_the_machine_of_dense_ones(kernel, offset):
    """CSR rows that are not sparse give the coefficients of the same dense rows, to the last bit, and its decisions."""
    X, y = blobs()
    X = np.where(np.abs(X) < 0.3, 0.0, X + offset * (kernel == "rbf"))
    dense, sparse = (SVC(kernel=kernel, gamma=0.2).fit(rows, y) for rows in (X, sp.csr_matrix(X)))
    np.testing.assert_array_equal(sparse.dual_coef_.toarray(), dense.dual_coef_)
    for model, rows in ((sparse, sp.csr_matrix(X)), (sparse, X), (dense, sp.csr_matrix(X))):
        np.testing.assert_allclose(model.decision_function(rows), dense.decision_function(X), rtol=1e-9, atol=1e-11)


def test_equal_rows_without_bounds_share_a_finite_coefficient():
    """With C=inf equal rows have coefficients that sum to that of C=1e10, none of them nan."""
    X, y = blobs(40)
    X = X + 4 * y[:, None]
    X, y = np.concatenate([X, X, X[:5]]), np.concatenate([y, y, y[:5]])
    large, free = SVC(C=1e10).fit(X, y), SVC(C=np.inf).fit(X, y)
    assert np.isfinite(free.dual_coef_).all()
    np.testing.assert_allclose(free.decision_function(X), large.decision_function(X), atol=2e-3)
    np.testing.assert_array_equal(
        distribute(np.array([[2.5, -1.0]]), np.array([0, 1, 0, -1]), np.full(4, np.inf), np.full(2, np.inf))[0],
        [2.5, -1.0, 0.0, 0.0],
    )


def count_letters(left: list[str], right: list[str]) -> np.ndarray:
    """Return a linear kernel of how often each of two letters occurs."""
    assert all(isinstance(text, str) for text in [*left, *right])
    counts = [np.array([[text.count(letter) for letter in "ab"] for text in texts]) for texts in (left, right)]
    return counts[0] @ counts[1].T


@pytest.mark.parametrize("make", [list, tuple, np.array, lambda texts: np.array(texts, dtype=object)])
def test_a_callable_kernel_takes_objects(make):
    """Texts, in a list or an array, are rows to a callable kernel, and give the machine of the matrix of its values."""
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(["a", "b"], size=rng.integers(1, 9))) for _ in range(40)]
    new, y = [*texts[::3], "", "aab"], np.array([text.count("a") > text.count("b") for text in texts])
    K = count_letters(texts, texts)
    for model in MACHINES:
        by_text = clone(model).set_params(kernel=count_letters).fit(make(texts), y)
        given = clone(model).set_params(kernel="precomputed").fit(K, y)
        np.testing.assert_array_equal(by_text.dual_coef_, given.dual_coef_)
        np.testing.assert_array_equal(by_text.predict(make(new)), given.predict(count_letters(new, texts)))
    numbers = np.array([[text.count("a"), text.count("b")] for text in texts])
    refit = by_text.set_params(kernel="linear").fit(numbers)
    np.testing.assert_array_equal(
        refit.predict(numbers), clone(refit).set_params(kernel=lambda A, B: A @ B.T).fit(numbers).predict(numbers)
    )


def test_objects_of_any_kind_and_their_errors():
    """Ragged rows are objects too; a kernel of another shape is refused, and so is a cluster."""
    X, y = [[1.0], [2.0, 3.0], [4.0], [5.0, 1.0]], [0, 1, 0, 1]

    def by_length(left, right):
        return np.array([[len(a) * len(b) for b in right] for a in left])

    assert SVC(kernel=by_length).fit(X, y).score(X, y) == 1.0
    with pytest.raises(InvalidDataError, match=r"must return shape \(4, 4\), one value per pair of rows. Got shape"):
        SVC(kernel=lambda left, right: by_length(left, right)[:2]).fit(X, y)
    with pytest.raises(InvalidParameterError, match="in this process: take client=None"):
        SVC(kernel=by_length, client=object()).fit(X, y)


def test_a_machine_whose_numbers_do_not_fit_is_refused():
    """A machine whose counts, coefficients or columns of support vectors were changed predicts nothing."""
    X, y = blobs()
    for model in MACHINES:
        broken = clone(model).fit(X, y)
        broken._n_support[0] += 1
        with pytest.raises(InvalidDataError, match=r"internal representation of .* was altered"):
            broken.predict(X)
        broken._n_support[0] -= 1
        for name, fewer in (
            ("dual_coef_", broken.dual_coef_[:, 1:]),
            ("support_vectors_", broken.support_vectors_[:, 1:]),
        ):
            whole = getattr(broken, name)
            setattr(broken, name, fewer)
            with pytest.raises(InvalidDataError, match=r"was altered: \d+ support vectors"):
                broken.predict(X)
            setattr(broken, name, whole)
        broken.predict(X)


def overlap(left: list[str], right: list[str]) -> np.ndarray:
    """Return how many letters texts have in common, damped by how many others they have."""
    return np.array([[len(set(a) & set(b)) * 0.7 ** len(set(a) ^ set(b)) for b in right] for a in left])


def inner(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the inner products of matrices; takes arrays of three dimensions alone."""
    return np.einsum("aij,bij->ab", left, right)


TEXTS = ["".join(np.random.default_rng(seed).choice(list("abcdefgh"), 1 + seed % 6)) for seed in range(24)]
MATRICES = np.random.default_rng(0).normal(size=(24, 3, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "X"),
    [
        (overlap, TEXTS),
        (overlap, np.array(TEXTS)),
        (overlap, np.array(TEXTS, dtype=object)),
        (inner, MATRICES),
        (inner, list(MATRICES)),
    ],
    ids=["list", "array", "objects", "matrices", "list of matrices"],
)
def test_searches_and_paths_take_objects_as_fits_do(monkeypatch, kernel, X):
    """What a fit with a kernel function takes, searches take, by fits and on paths, with the function as parameter."""
    y = np.arange(24) // 3 % 2
    some = X if isinstance(X, np.ndarray) else list(X)
    expected = GridSearchCV(SVC(kernel=kernel), {"C": [0.1, 1.0]}, cv=2).fit(np.asarray(X), y)
    for least in (10**6, 0):
        monkeypatch.setattr(svm_search, "LEAST_ON_PATH", least)
        for base, grid in ((SVC(kernel=kernel), {}), (SVC(), {"kernel": [kernel]})):
            search = SVMSearchCV(base, {"C": [0.1, 1.0], **grid}, cv=2).fit(some, y)
            scores = [found.cv_results_["mean_test_score"] for found in (search, expected)]
            np.testing.assert_array_equal(*scores)
            np.testing.assert_array_equal(search.predict(some), expected.predict(np.asarray(X)))
    path = svm_path(some, y, Cs=[0.1, 1.0], kernel=kernel)
    np.testing.assert_array_equal(path.estimator(0).predict(some), SVC(kernel=kernel, C=0.1).fit(some, y).predict(some))
    copied = pickle.loads(pickle.dumps(path.estimator(1)))
    np.testing.assert_array_equal(copied.predict(some), copied.to_sklearn().predict(some))


def test_rows_of_numbers_stay_arrays_to_a_callable_kernel():
    """A list of lists or of arrays of numbers is a table: the kernel gets arrays of rows, as it does for an array."""
    X, y = blobs(30)
    kinds = []

    def kernel(A, B):
        kinds.append((type(A), A.ndim))
        return A @ B.T

    for rows in (X.tolist(), list(X), tuple(X)):
        SVC(kernel=kernel).fit(rows, y).predict(rows)
    assert set(kinds) == {(np.ndarray, 2)}
