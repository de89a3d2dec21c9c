"""Generalised linear models whose rows are divided among ranks: the optimum of one process, and a gap over all rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client
from scipy.special import log_softmax
from sklearn.base import clone

import dsgd
from dsgd.collectives import Team
from dsgd.errors import IncompatiblePartsError, InvalidDataError
from dsgd.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge
from dsgd.linear_model.fits import Packer, RankResult, train_rows
from dsgd.linear_model.problem import LogisticLoss, PoissonLoss, SquaredLoss
from dsgd.runtime import run_on_threads
from gang_cluster import start_cluster

N, P = 240, 6
RNG = np.random.default_rng(0)
X = np.where(RNG.random((N, P)) < 0.6, RNG.normal(1.0, 1.0, (N, P)), 0.0)
SCORES = X @ [0.5, -0.5, 0.3, 0.0, 0.2, -0.6]
WEIGHTS = RNG.integers(0, 3, N).astype(float)
LABELS, VALUES = (RNG.logistic(size=N) < SCORES).astype(float), SCORES + 5.0 + 0.3 * RNG.standard_normal(N)
MODELS: dict[str, tuple[Any, Any]] = {
    "logistic": (LogisticRegression(C=2.0, class_weight="balanced"), LABELS),
    "ridge": (Ridge(2.0), VALUES),
    "poisson": (PoissonRegressor(alpha=0.02), RNG.poisson(np.exp(SCORES)).astype(float)),
    "lasso": (Lasso(0.2), VALUES),
    "elastic net": (ElasticNet(0.3, l1_ratio=0.6), VALUES),
    "logistic l1": (LogisticRegression(C=0.1, l1_ratio=1.0), LABELS),
    "logistic elastic": (LogisticRegression(C=0.1, l1_ratio=0.6, class_weight="balanced"), LABELS),
    "multinomial": (
        LogisticRegression(C=2.0, class_weight="balanced"),
        np.digitize(SCORES + RNG.logistic(size=N), [-0.5, 0.7]).astype(float),
    ),
}
EMPTY_RANK, EVEN, ALONE = [0, 100, 100, N], [0, 80, 160, N], [0, N]


def on_ranks(model: Any, rows: Any, y: Any, weights: Any, cuts: list[int]) -> list[RankResult]:
    """Return what ranks with rows cuts[r] to cuts[r + 1] return, on threads."""
    objective = model._objective()
    packer = Packer(None, rows.shape[1], "float64", sp.issparse(rows))
    parts = [packer([(rows[a:b], y[a:b], weights[a:b])] * (b > a), 0) for a, b in pairwise(cuts)]
    found: list[Any] = [None] * len(parts)

    def call(rank: Any, part: Any) -> None:
        found[rank.number] = train_rows(rank, part, objective, None, 100)

    run_on_threads(call, parts)
    return found


def objective_of(model: Any, coef: Any, intercept: float, y: Any) -> float:
    """Return what a model minimises, by numpy."""
    f, weights = X @ coef.T + intercept, WEIGHTS
    if isinstance(model, Ridge):
        return float(weights @ (y - f) ** 2 + model.alpha * coef @ coef)
    if isinstance(model, PoissonRegressor):
        return float(weights @ (np.exp(f) - y * f) / weights.sum() + 0.5 * model.alpha * coef @ coef)
    share = getattr(model, "l1_ratio", 1.0)
    penalty = share * np.abs(coef).sum() + (1.0 - share) / 2.0 * (coef**2).sum()
    if isinstance(model, Lasso | ElasticNet):
        return float(weights @ (y - f) ** 2 / (2.0 * weights.sum()) + model.alpha * penalty)
    losses = np.logaddexp(0.0, f) - y * f if f.ndim == 1 else -log_softmax(f, axis=1)[np.arange(N), y.astype(int)]
    return float(costs_of(model, y) @ losses + penalty)


def costs_of(model: Any, y: Any) -> Any:
    """Return the costs of rows of a logistic model, by numpy."""
    if model.class_weight is None:
        return model.C * WEIGHTS
    sums = np.bincount(y.astype(int), WEIGHTS)
    return model.C * WEIGHTS * (sums.sum() / (len(sums) * sums))[y.astype(int)]


@pytest.mark.parametrize("name", ["logistic", "logistic l1", "multinomial"])
def test_ranks_agree_on_classes_without_weight(name: str) -> None:
    """The model is that of one process where a class has weight nowhere, or on some ranks only."""
    model, y = MODELS[name]
    weights = np.where(y == 0.0, 0.0, WEIGHTS)
    model = clone(model).set_params(tol=1e-10).fit(X, y, weights)
    for result in on_ranks(model, X, y, weights, EMPTY_RANK):
        np.testing.assert_allclose(np.atleast_2d(result.solution.weights), model.coef_, atol=1e-4)
        np.testing.assert_allclose(np.ravel(result.solution.intercept), model.intercept_, atol=1e-4)


@pytest.mark.parametrize("form", ["even", "empty rank", "one rank", "sparse", "wide", "sorted", "no intercept"])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_find_the_optimum_of_one_process(monkeypatch: pytest.MonkeyPatch, name: str, form: str) -> None:
    """Any division of the rows gives the same model on every rank, and its gap bounds the error over all rows."""
    model, y = MODELS[name]
    model = clone(model).set_params(fit_intercept=form != "no intercept", tol=1e-5)
    exact = clone(model).set_params(tol=1e-13).fit(X, y, WEIGHTS)
    model.fit(X, y, WEIGHTS)  # learns the classes
    rows: Any = sp.csr_array(X) if form == "sparse" else X
    if form == "wide":
        monkeypatch.setattr("dsgd.linear_model.quasi_newton._MOST_FACTORED", 3)
        monkeypatch.setattr("dsgd.linear_model.newton._MOST_GRAM_COLUMNS", 3)
    cuts = {"empty rank": EMPTY_RANK, "one rank": ALONE}.get(form, EVEN)
    order = np.argsort(y, kind="stable") if form == "sorted" else np.arange(N)  # a rank may have one class
    results = on_ranks(model, rows[order], y[order], WEIGHTS[order], cuts)
    solution = results[0].solution
    for other in results[1:]:
        np.testing.assert_array_equal(other.solution.weights, solution.weights)
        np.testing.assert_array_equal(other.solution.intercept, solution.intercept)
    assert solution.gap <= results[0].tol
    coef, best = exact.coef_, exact.intercept_
    if solution.weights.ndim == 1:
        coef, best = np.ravel(coef), np.ravel(best)[0]
    least = objective_of(model, coef, best, y)
    error = objective_of(model, solution.weights, solution.intercept, y) - least
    assert -1e-10 * abs(least) <= error <= solution.gap + 1e-10 * abs(least)
    np.testing.assert_allclose(solution.weights, coef, atol=2e-2)
    if form == "no intercept":
        assert not np.any(solution.intercept)
    last = results[0].certificates[-1]
    assert last["primal"] - last["dual"] == pytest.approx(solution.gap, abs=1e-12)


def test_columns_of_ranks_that_are_proven_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more columns than a working set, ranks screen and choose as one process does, and find its model."""
    monkeypatch.setattr("dsgd.linear_model.newton._FEW_COLUMNS", 5)
    rng = np.random.default_rng(1)
    wide = np.hstack([X, rng.standard_normal((N, 54))])
    for name in ("lasso", "logistic l1"):
        model, y = MODELS[name]
        exact = clone(model).set_params(tol=1e-12).fit(wide, y, WEIGHTS)
        results = on_ranks(exact, wide, y, WEIGHTS, EVEN)
        np.testing.assert_allclose(results[2].solution.weights, np.ravel(exact.coef_), atol=1e-6)
        zeros = 60 - np.count_nonzero(exact.coef_)
        assert 20 < results[1].solution.n_screened == results[0].solution.n_screened <= zeros


def test_what_ranks_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are those that docstrings state: one matrix in all, one for each Newton step, no matrix with classes."""
    sizes: list[int] = []
    add_up = Team.add_up

    def noted(team: Team, vector: Any) -> Any:
        if team.leads:
            sizes.append(vector.size)
        return add_up(team, vector)

    matrices, found = [k * (k + 1) // 2 for k in (P, P - 1, P - 2)], {}  # screening makes them smaller
    for name in ("lasso", "logistic l1", "multinomial"):
        model = clone(MODELS[name][0]).set_params(tol=1e-10)
        model.fit(X, MODELS[name][1], WEIGHTS)
        sizes.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Team, "add_up", noted)
            found[name] = on_ranks(model, X, MODELS[name][1], WEIGHTS, EVEN)[0], list(sizes)
    result, sent = found["lasso"]
    assert 1 < result.solution.n_iter <= 3  # what is left of the matrix after screening is the exact one
    assert sum(map(sent.count, matrices)) == 1
    result, sent = found["logistic l1"]
    assert sum(map(sent.count, matrices)) == result.solution.n_iter > 2
    assert max(sent) == matrices[0]
    result, sent = found["multinomial"]
    assert sent.count(3 * P) == len(result.certificates) == result.solution.n_iter + 1
    assert sent.count(3 * (P + 1)) == result.solution.n_iter
    assert max(sent) == 3 * (P + 1) + 1


@pytest.mark.parametrize("make", [SquaredLoss, LogisticLoss, PoissonLoss])
def test_intercepts_of_ranks_are_those_of_all_rows(make: Any) -> None:
    """The best intercept for given scores is the same from any division of the rows, far scores included."""
    losses = {cuts: [make(LABELS[a:b], WEIGHTS[a:b]) for a, b in pairwise(cuts)] for cuts in ((0, N), (0, 90, 90, N))}
    for shift in (0.0, 600.0):
        scores, found = SCORES - shift, {}

        def call(rank: Any, part: Any) -> None:
            loss, given = part
            team = Team(group=rank.group)
            found[rank.number] = loss.intercept(given, shift, team)  # noqa: B023

        for cuts, parts in losses.items():
            run_on_threads(call, [(loss, scores[a:b]) for loss, (a, b) in zip(parts, pairwise(cuts), strict=True)])
            assert len(set(found.values())) == 1
            loss = make(LABELS, WEIGHTS)
            duals = loss.duals(loss.mean(scores + found[0]))
            assert abs(duals.sum()) < 1e-7 * np.abs(duals).sum(), cuts


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two single-threaded worker processes."""
    with start_cluster(2) as cluster, Client(cluster) as client:
        yield client


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("ridge", "dask"),
        ("logistic", "rows"),
        ("poisson", "sparse"),
        ("lasso", "dask"),
        ("elastic net", "sparse"),
        ("logistic l1", "rows"),
        ("multinomial", "dask"),
    ],
)
def test_dask_arrays_and_others(client: Client, name: str, form: str) -> None:
    """Dask arrays, Rows and sparse arrays of workers give the coefficients of one process; prediction is lazy."""
    model, y = MODELS[name]
    plain = clone(model).set_params(tol=1e-9).fit(X, y, WEIGHTS)
    ours = clone(plain).set_params(client=client)
    dX, dy, weights = (da.from_array(part, chunks=(70, -1)[: part.ndim]) for part in (X, y, WEIGHTS))
    given: dict[str, Any] = {
        "dask": (dX, dy, weights),
        "rows": (dsgd.Rows(X, y, WEIGHTS, client=client),),
        "sparse": (sp.csc_array(X), y, WEIGHTS),
    }
    ours.fit(*given[form])
    np.testing.assert_allclose(ours.coef_, plain.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, plain.intercept_, atol=1e-4)
    assert ours.fit_report_["ranks"] == 2
    assert sum(stats["rows"] for stats in ours.fit_report_["stats"]) == N
    assert ours.fit_report_["converged"]
    assert ours.ledger_.totals()["bytes_sent"] > 0
    assert getattr(ours, "n_screened_", 0) == getattr(plain, "n_screened_", 0)
    predicted = ours.predict(dX)
    assert isinstance(predicted, da.Array)
    np.testing.assert_allclose(predicted.compute(), ours.predict(X))
    assert ours.score(dX, dy) == pytest.approx(plain.score(X, y), abs=1e-4)
    if hasattr(ours, "predict_proba"):
        np.testing.assert_allclose(ours.predict_proba(dX).compute(), plain.predict_proba(X), atol=1e-4)
    assert not hasattr(ours.set_params(client=None).fit(X, y), "ledger_")


@pytest.mark.cluster
def test_what_clusters_do_not_solve_is_refused(client: Client) -> None:
    """An L1 penalty of several classes, one class and targets without meaning are refused with what to do."""
    y = MODELS["logistic"][1]
    model = LogisticRegression(client=client)
    with pytest.raises(IncompatiblePartsError, match=r"l1_ratio=0\.5\) is solved for two.*OneVsRestClassifier"):
        clone(model).set_params(l1_ratio=0.5).fit(X, np.arange(N) % 3)
    with pytest.raises(InvalidDataError, match="only one class"):
        model.fit(X, np.zeros(N))
    with pytest.raises(InvalidDataError, match="both a sample weight and a class weight"):
        clone(model).set_params(class_weight={1: 0.0}).fit(X, y, y)
    with pytest.raises(InvalidDataError, match="targets that are not negative"):
        PoissonRegressor(client=client).fit(X, -y)
