"""The generalised linear models: certificates, optimality, agreement with scikit-learn, contract, refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import log_softmax
from sklearn import linear_model as peers
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge
from dsgd.linear_model.columns import Gram, make_columns
from dsgd.linear_model.problem import LogisticLoss, PoissonLoss, Problem, SquaredLoss, certify
from dsgd.types import FloatVector

#: Parameters that are set apart, or that not all of scikit-learn's classes have.
OURS_ALONE = ("tol", "max_iter", "warm_start", "n_jobs", "client", "transport")
N, P = 80, 30
RNG = np.random.default_rng(0)
X = np.where(RNG.random((N, P)) < 0.4, RNG.normal(0.7, 1.0, (N, P)), 0.0)
SCORES = X[:, :4] @ [1.0, -1.0, 0.5, 0.5]
WEIGHTS = RNG.integers(0, 4, N).astype(float)
TARGETS: dict[str, Any] = {
    "values": SCORES + 3.0 + 0.3 * RNG.standard_normal(N),
    "labels": np.where(SCORES + 0.5 * RNG.standard_normal(N) > 0.3, "yes", "no"),
    "classes": np.digitize(SCORES + 0.5 * RNG.standard_normal(N), [-0.3, 0.7]),
    "counts": RNG.poisson(np.exp(0.5 * SCORES)).astype(float),
}
#: Ours, scikit-learn's class and what it needs to be exact, and the targets.
MODELS: dict[str, tuple[Any, Callable[..., Any], dict[str, Any], str]] = {
    "lasso": (Lasso(0.05), peers.Lasso, {"max_iter": 100_000}, "values"),
    "elastic net": (ElasticNet(0.05, l1_ratio=0.7), peers.ElasticNet, {"max_iter": 100_000}, "values"),
    "ridge": (Ridge(2.0), peers.Ridge, {"solver": "sparse_cg", "max_iter": 10_000}, "values"),
    "poisson": (PoissonRegressor(alpha=0.02), peers.PoissonRegressor, {"max_iter": 10_000}, "counts"),
    "logistic l2": (LogisticRegression(C=3.0), peers.LogisticRegression, {"max_iter": 10_000}, "labels"),
    "logistic balanced": (
        LogisticRegression(C=3.0, class_weight="balanced"),
        peers.LogisticRegression,
        {"max_iter": 10_000},
        "labels",
    ),
    "logistic l1": (
        LogisticRegression(l1_ratio=1.0),
        peers.LogisticRegression,
        {"solver": "saga", "max_iter": 100_000},
        "labels",
    ),
    "logistic elastic": (
        LogisticRegression(C=0.5, l1_ratio=0.5),
        peers.LogisticRegression,
        {"solver": "saga", "max_iter": 100_000},
        "labels",
    ),
    "multinomial": (LogisticRegression(C=2.0), peers.LogisticRegression, {"max_iter": 10_000}, "classes"),
}


def exact(name: str) -> tuple[Any, Any, Any]:
    """Return our model with a small tolerance, scikit-learn's, and the targets."""
    ours, peer, options, kind = MODELS[name]
    shared = {key: value for key, value in ours.get_params().items() if key not in OURS_ALONE}
    model = clone(ours).set_params(tol=1e-12)
    return model, peer(**shared, **options, tol=1e-12), TARGETS[kind]


def objective(model: Any, rows: Any, y: Any, weights: Any) -> float:
    """Return what a model minimises, by numpy, from its coefficients: the twin of the solvers' own."""
    scores = np.asarray(rows @ model.coef_.T) + model.intercept_
    w = model.coef_
    if isinstance(model, LogisticRegression):
        logs = log_softmax(np.column_stack([-scores / 2, scores / 2]) if scores.shape[1] == 1 else scores, axis=1)
        classes, codes = np.unique(y, return_inverse=True)
        if model.class_weight == "balanced":
            sums = np.bincount(codes, weights)
            weights = weights * (sums.sum() / (len(classes) * sums))[codes]
        loss = -model.C * float(weights @ logs[np.arange(len(codes)), codes])
        return loss + model.l1_ratio * np.abs(w).sum() + (1 - model.l1_ratio) / 2 * (w**2).sum()
    if isinstance(model, Ridge):
        return float(weights @ (y - scores) ** 2 + model.alpha * w @ w)
    if isinstance(model, PoissonRegressor):
        return float(weights @ (np.exp(scores) - y * scores) / weights.sum() + model.alpha / 2 * w @ w)
    share = getattr(model, "l1_ratio", 1.0)
    penalty = model.alpha * (share * np.abs(w).sum() + (1 - share) / 2 * w @ w)
    return float(weights @ (y - scores) ** 2 / (2 * weights.sum()) + penalty)


@parametrize_with_checks([Lasso(), ElasticNet(), Ridge(), PoissonRegressor(), LogisticRegression()])
def test_sklearn_contract(estimator: Any, check: Any) -> None:
    """Every model keeps scikit-learn's whole contract, with no expected failure."""
    check(estimator)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("form", ["dense", "csr", "weights"])
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_sklearn(name: str, form: str, intercept: bool) -> None:
    """Coefficients, intercepts and predictions are scikit-learn's, on dense and sparse rows and with weights."""
    model, peer, y = exact(name)
    model.fit_intercept = peer.fit_intercept = intercept
    if name == "ridge" and form != "csr":
        peer.set_params(solver="cholesky")
    rows = sp.csr_matrix(X) if form == "csr" else X
    weights = WEIGHTS if form == "weights" else None
    model.fit(rows, y, weights)
    peer.fit(rows, y, weights)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=2e-4)
    np.testing.assert_allclose(model.intercept_, peer.intercept_, atol=2e-4)
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, method) and getattr(model, method)(X).dtype.kind == "f":
            np.testing.assert_allclose(getattr(model, method)(X), getattr(peer, method)(X), atol=2e-3)


@pytest.mark.parametrize("tol", [0.3, 1e-2, 1e-9])
@pytest.mark.parametrize("name", MODELS)
def test_the_gap_bounds_the_error(name: str, tol: float) -> None:
    """The objective of what `fit` returns, by numpy, is above its minimum by no more than `dual_gap_`."""
    model, peer, y = exact(name)
    best = clone(model).fit(X, y, WEIGHTS)
    model.set_params(tol=tol).fit(X, y, WEIGHTS)
    peer.fit(X, y, WEIGHTS)
    reached = objective(model, X, y, WEIGHTS)
    theirs = clone(model)
    theirs.coef_, theirs.intercept_ = peer.coef_, peer.intercept_
    least = min(objective(best, X, y, WEIGHTS), objective(theirs, X, y, WEIGHTS))
    assert reached - least <= model.dual_gap_ + 1e-12 * abs(least)
    assert least >= reached - model.dual_gap_ - 1e-12 * abs(least)


@pytest.mark.parametrize("has_intercept", [True, False])
@pytest.mark.parametrize("l1", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["squared", "logistic", "poisson"])
def test_every_certificate_is_below_every_objective(kind: str, l1: float, has_intercept: bool) -> None:
    """At random weights the dual value is below the objective at any others, also the best ones."""
    if kind == "poisson" and l1:
        pytest.skip("no model has this")
    rng = np.random.default_rng(3)
    make, y = {
        "squared": (SquaredLoss, TARGETS["values"]),
        "logistic": (LogisticLoss, (TARGETS["labels"] == "yes").astype(float)),
        "poisson": (PoissonLoss, TARGETS["counts"]),
    }[kind]
    columns = make_columns(X, WEIGHTS, has_intercept, Team())
    problem = Problem(columns, make(y, WEIGHTS), l1, 0.5)
    certificates = []
    for size in (0.0, 0.01, 0.1, 0.3):
        weights = size * rng.standard_normal(P)
        scores = columns.scores(weights)
        # An intercept that is not the best one leaves dual variables that do not sum to zero until they are balanced.
        scores = scores + problem.intercept(scores, 0.0) + has_intercept * rng.normal()
        certificates.append(certify(problem, weights, scores))
    assert max(c.dual for c in certificates) < min(c.primal for c in certificates)


@pytest.mark.parametrize("make", [SquaredLoss, LogisticLoss, PoissonLoss])
def test_balanced_dual_variables_sum_to_zero(make: Any) -> None:
    """At any scores they do, and what they say that the model predicts is a value, a probability or a rate."""
    y = (TARGETS["labels"] == "yes").astype(float)
    loss = make(y, WEIGHTS)
    given = loss.duals(loss.mean(SCORES + 1.5))
    duals = loss.balanced(given)
    assert abs(given.sum()) > 1.0
    assert abs(duals.sum()) < 1e-9
    has_weight = WEIGHTS > 0
    predicted = y[has_weight] - duals[has_weight] / WEIGHTS[has_weight]
    if make is not SquaredLoss:
        assert (predicted >= 0.0).all()
    if make is LogisticLoss:
        assert (predicted <= 1.0).all()


@pytest.mark.parametrize("alpha", [0.3, 0.02])
@pytest.mark.parametrize("rows", [X, sp.csc_matrix(X)])
def test_lasso_meets_the_optimality_conditions(rows: Any, alpha: float) -> None:
    """Correlations with the residual are alpha times the sign of a coefficient, and no larger where it is zero."""
    y = TARGETS["values"]
    model = Lasso(alpha, tol=1e-13).fit(rows, y)
    slopes = X.T @ (y - model.predict(X)) / N
    active = model.coef_ != 0
    assert 0 < active.sum() < P
    np.testing.assert_allclose(slopes[active], alpha * np.sign(model.coef_[active]), atol=1e-6)
    assert (np.abs(slopes[~active]) <= alpha + 1e-9).all()


def test_working_sets_and_screening_keep_the_optimum() -> None:
    """With many more columns than a working set has, most are proven zero, and the rest is scikit-learn's."""
    rng = np.random.default_rng(1)
    wide = rng.standard_normal((60, 700))
    y = wide[:, :5].sum(axis=1) + 0.1 * rng.standard_normal(60)
    alpha = np.abs(wide.T @ (y - y.mean())).max() / 60 / 5
    model = Lasso(alpha, tol=1e-12).fit(wide, y)
    peer = peers.Lasso(alpha, tol=1e-12, max_iter=100_000).fit(wide, y)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-5)
    assert model.n_screened_ > 600
    assert np.count_nonzero(peer.coef_) <= 700 - model.n_screened_


@pytest.mark.parametrize("costs", [np.full(N, 1 / N), (WEIGHTS + 1.0) / (WEIGHTS + 1.0).sum()])
@pytest.mark.parametrize("rows", [X, sp.csc_matrix(X)])
def test_a_matrix_that_grows_is_that_of_all_its_columns(rows: Any, costs: FloatVector) -> None:
    """Columns that come in any order and number give numpy's matrix of centred columns."""
    chosen = RNG.permutation(P)[:24]
    grown = Gram(make_columns(rows, costs, True, Team()), costs, 0.5, chosen[:3])
    for first, last in ((3, 4), (4, 4), (4, 11), (11, 24)):
        grown.extend(chosen[first:last])
    centred = (X - costs @ X)[:, chosen]
    np.testing.assert_array_equal(grown.chosen, chosen)
    wanted = centred.T @ (centred * costs[:, None]) + 0.5 * np.eye(24)
    np.testing.assert_allclose(grown.space[:24, :24], wanted, atol=1e-14)
    part = RNG.permutation(24)[:9]
    np.testing.assert_allclose(grown.part(chosen[part]), wanted[np.ix_(part, part)], atol=1e-14)


def test_passes_over_columns_are_those_over_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Working sets that are too wide for a matrix give the same models."""
    y = TARGETS["labels"]
    for rows in (X, sp.csr_matrix(X)):
        wanted = LogisticRegression(l1_ratio=0.6, tol=1e-12).fit(rows, y)
        monkeypatch.setattr("dsgd.linear_model.newton._MOST_GRAM_COLUMNS", 0)
        found = LogisticRegression(l1_ratio=0.6, tol=1e-12).fit(rows, y)
        monkeypatch.undo()
        np.testing.assert_allclose(found.coef_, wanted.coef_, atol=1e-5)


def test_a_fit_that_stops_early_says_so() -> None:
    """Where max_iter ends a fit, the warning has the gap, which is still a bound."""
    with pytest.warns(ConvergenceWarning, match="duality gap"):
        model = LogisticRegression(max_iter=1, tol=1e-10).fit(X, TARGETS["labels"])
    best = LogisticRegression(tol=1e-12).fit(X, TARGETS["labels"])
    ones = np.ones(N)
    error = objective(model, X, TARGETS["labels"], ones) - objective(best, X, TARGETS["labels"], ones)
    assert 0 < error <= model.dual_gap_


@pytest.mark.parametrize("name", ["ridge", "poisson", "logistic l2"])
@pytest.mark.parametrize("by_rows", [False, True])
def test_large_columns_that_depend_on_each_other(name: str, by_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding that outweighs the penalty ends nothing: the gap is reached; products that overflow are an error."""
    model, _, y = exact(name)
    monkeypatch.setattr("dsgd.linear_model.fits.has_many_rows", lambda rows: by_rows)
    columns = np.column_stack([X[:, :4], X[:, 0], X[:, 1] + X[:, 2]])
    model.set_params(tol=1e-4, max_iter=100).fit(1e8 * columns, y)  # no warning
    few = clone(model).fit(columns, y)
    assert model.score(1e8 * columns, y) > few.score(columns, y) - 0.01
    assert model.score(1e8 * columns, y) > 0.1
    with pytest.raises(InvalidDataError, match="overflow: scale the features"):
        model.fit(1e200 * columns, y)


@pytest.mark.parametrize("form", [np.asarray, sp.csc_matrix])
@pytest.mark.parametrize("name", MODELS)
def test_numbers_at_the_edge_are_solved_or_refused(name: str, form: Any) -> None:
    """Whatever the scales are, the gap is reached, or a warning says that it is not, or an error what to scale."""
    model, _, y = exact(name)
    model.set_params(tol=1e-2, max_iter=30)
    is_real = TARGETS["values"] is y
    for rows, targets, weights in (
        (1e160 * X, y, None),
        (1e-160 * X, y, None),
        (X * 10.0 ** np.linspace(-150, 150, P), y, None),
        (X, y, np.full(N, 1e308)),
        (X, 1e160 * y if is_real else y, None),
        (X, 1e-150 * y if is_real else y, np.full(N, 1e-150)),
    ):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            try:
                model.fit(form(rows), targets, weights)
            except InvalidDataError as error:
                refused = str(error)
                assert "scale the" in refused
                continue
        assert {w.category for w in given} <= {ConvergenceWarning}
        assert np.isfinite(model.coef_).all()
        if not given:
            none = clone(model)
            none.coef_, none.intercept_ = np.zeros_like(model.coef_), 0.0 * model.intercept_
            most = objective(none, X, targets, np.ones(N) if weights is None else weights)
            assert model.dual_gap_ <= 2.0 * model.tol * most


@pytest.mark.parametrize(
    ("model", "y", "weights", "message"),
    [
        (Lasso(0.0), "values", None, r"alpha=\.\.\."),
        (ElasticNet(l1_ratio=0.0), "values", None, r"l1_ratio=\.\.\."),
        (Ridge(-1.0), "values", None, r"alpha=\.\.\."),
        (LogisticRegression(C=0.0), "labels", None, r"C=\.\.\."),
        (LogisticRegression(class_weight={"maybe": 2.0}), "labels", None, "maybe"),
        (LogisticRegression(l1_ratio=0.5), "classes", None, "two classes only"),
        (PoissonRegressor(), "values", -np.ones(N), "Negative values"),
        (PoissonRegressor(), "negative", None, "not negative"),
        (Lasso(), "values", np.zeros(N), "non-zero"),
    ],
)
def test_bad_input_is_refused(model: Any, y: str, weights: Any, message: str) -> None:
    """Parameters out of range, weights and targets that no model takes are errors that name them."""
    targets = -np.ones(N) if y == "negative" else TARGETS[y]
    with pytest.raises((InvalidParameterError, InvalidDataError), match=message):
        model.fit(X, targets, weights)


def many_rows() -> tuple[Any, FloatVector]:
    """Return so many rows that a sample of them pays, and their scores."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((3000, 6)) + 1.0
    return rows, rows @ [0.5, -0.5, 0.2, 0.0, 0.1, 0.3]


@pytest.mark.parametrize("form", ["float64", "float32", "weights", "rare", "no intercept"])
@pytest.mark.parametrize("name", ["logistic l2", "poisson"])
def test_passes_over_many_rows_find_the_optimum(monkeypatch: pytest.MonkeyPatch, name: str, form: str) -> None:
    """Quasi-Newton steps end at the optimum of Newton's method over columns, whose objective the gap bounds."""
    rows, scores = many_rows()
    rng = np.random.default_rng(6)
    rows = rows.astype(np.float32) if form == "float32" else rows
    shift = -7.0 if form == "rare" else -0.5  # a sample of rows with no or hardly any event
    y = (scores + shift > rng.logistic(size=3000)).astype(float)
    y = y if name == "logistic l2" else rng.poisson(np.exp(scores + shift)).astype(float)
    weights = rng.integers(0, 3, 3000).astype(float) if form == "weights" else None
    model = clone(MODELS[name][0]).set_params(fit_intercept=form != "no intercept", tol=1e-6)
    model.fit(rows, y, weights)
    monkeypatch.setattr("dsgd.linear_model.quasi_newton._MANY", 10_000)
    best = clone(model).set_params(tol=1e-12).fit(rows, y, weights)
    np.testing.assert_allclose(model.coef_, best.coef_, atol=2e-4)
    np.testing.assert_allclose(model.intercept_, best.intercept_, atol=2e-3)
    given = np.ones(3000) if weights is None else weights
    least = objective(best, rows, y, given)
    error = objective(model, rows, y, given) - least
    assert -1e-12 * abs(least) <= error <= model.dual_gap_ + 1e-12 * abs(least)
    assert model.coef_.tolist() != best.coef_.tolist()  # another method


def test_any_number_of_threads_gives_the_same_bits() -> None:
    """Two threads and three find the model of one to the last bit, after several starts too."""
    rows, scores = many_rows()
    y = (scores > np.random.default_rng(6).logistic(size=3000)).astype(float)
    rows, y = np.tile(rows, (5, 1)), np.tile(y, 5)
    models = [LogisticRegression(tol=1e-9, n_jobs=n).fit(rows, y) for n in (1, 2, 3)]
    assert len({(*m.coef_.ravel().tolist(), *m.intercept_.tolist(), m.dual_gap_) for m in models}) == 1
    again = models[1].set_params(warm_start=True).fit(rows, y)
    assert again.n_iter_ == 1


@pytest.mark.parametrize("shape", [(N, P), (20, P)])
def test_conjugate_gradients_and_the_factor_of_rows_are_that_of_columns(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    """All ways to solve a Newton system give the same ridge model; the second shape has fewer rows than columns."""
    rows, y = X[: shape[0]], TARGETS["values"][: shape[0]]
    wanted = Ridge(0.5).fit(rows, y).coef_
    monkeypatch.setattr("dsgd.linear_model.newton._MOST_FACTORED", 25)
    for given in (rows, sp.csr_matrix(rows)):
        np.testing.assert_allclose(Ridge(0.5, tol=1e-13).fit(given, y).coef_, wanted, atol=1e-6)


@pytest.mark.parametrize("name", ["lasso", "poisson", "logistic l1", "multinomial"])
def test_a_warm_start_is_at_the_optimum(name: str) -> None:
    """A fit that begins where one has ended needs a certificate or two."""
    model, _, y = exact(name)
    model.set_params(warm_start=True, tol=1e-8)
    first = model.fit(X, y).n_iter_
    assert model.fit(X, y).n_iter_ <= 2 < first
