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
from scipy.special import xlogy
from sklearn.base import clone

import dsgd
from dsgd.errors import IncompatiblePartsError, InvalidDataError
from dsgd.linear_model import LogisticRegression, PoissonRegressor, Ridge
from dsgd.linear_model.distributed import Packer, RankResult, train_rows
from dsgd.runtime import run_on_threads
from gang_cluster import start_cluster

N, P = 240, 6
RNG = np.random.default_rng(0)
X = np.where(RNG.random((N, P)) < 0.6, RNG.normal(1.0, 1.0, (N, P)), 0.0)
SCORES = X @ [0.5, -0.5, 0.3, 0.0, 0.2, -0.6]
WEIGHTS = RNG.integers(0, 3, N).astype(float)
MODELS: dict[str, tuple[Any, Any]] = {
    "logistic": (LogisticRegression(C=2.0, class_weight="balanced"), (RNG.logistic(size=N) < SCORES).astype(float)),
    "ridge": (Ridge(2.0), SCORES + 5.0 + 0.3 * RNG.standard_normal(N)),
    "poisson": (PoissonRegressor(alpha=0.02), RNG.poisson(np.exp(SCORES)).astype(float)),
}
EMPTY_RANK, EVEN, ALONE = [0, 100, 100, N], [0, 80, 160, N], [0, N]


def on_ranks(model: Any, rows: Any, y: Any, weights: Any, cuts: list[int]) -> list[RankResult]:
    """Return what ranks with rows cuts[r] to cuts[r + 1] return, on threads."""
    objective = model._objective()
    packer = Packer(None, P, "float64", sp.issparse(rows))
    parts = [packer([(rows[a:b], y[a:b], weights[a:b])] * (b > a), 0) for a, b in pairwise(cuts)]
    found: list[Any] = [None] * len(parts)

    def call(rank: Any, part: Any) -> None:
        found[rank.number] = train_rows(rank, part, objective, None, 100)

    run_on_threads(call, parts)
    return found


def objective_of(model: Any, coef: Any, intercept: float, y: Any) -> float:
    """Return what a model minimises, by numpy."""
    f, weights = X @ coef + intercept, WEIGHTS
    if isinstance(model, Ridge):
        return float(weights @ (y - f) ** 2 + model.alpha * coef @ coef)
    if isinstance(model, PoissonRegressor):
        return float(weights @ (np.exp(f) - y * f) / weights.sum() + 0.5 * model.alpha * coef @ coef)
    sums = np.bincount(y.astype(int), weights)
    costs = model.C * weights * (sums.sum() / (2.0 * sums))[y.astype(int)]
    return float(costs @ (np.logaddexp(0.0, f) - y * f) + 0.5 * coef @ coef)


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
    cuts = {"empty rank": EMPTY_RANK, "one rank": ALONE}.get(form, EVEN)
    order = np.argsort(y, kind="stable") if form == "sorted" else np.arange(N)  # a rank may have one class
    results = on_ranks(model, rows[order], y[order], WEIGHTS[order], cuts)
    solution = results[0].solution
    for other in results[1:]:
        np.testing.assert_array_equal(other.solution.weights, solution.weights)
        assert other.solution.intercept == solution.intercept
    assert solution.gap <= results[0].tol
    coef, best = np.ravel(exact.coef_), float(np.ravel(exact.intercept_)[0])
    least = objective_of(model, coef, best, y)
    error = objective_of(model, solution.weights, solution.intercept, y) - least
    assert -1e-10 * abs(least) <= error <= solution.gap + 1e-10 * abs(least)
    np.testing.assert_allclose(solution.weights, coef, atol=2e-2)
    if form == "no intercept":
        assert solution.intercept == 0.0
    last = results[0].certificates[-1]
    assert last["primal"] - last["dual"] == pytest.approx(solution.gap, abs=1e-12)


def test_the_poisson_gap_is_a_share_of_the_deviance() -> None:
    """The gap that is asked for is ``tol`` times half the mean deviance of the model with the intercept alone."""
    model, y = MODELS["poisson"]
    result = on_ranks(clone(model).set_params(tol=1e-3), X, y, WEIGHTS, EVEN)[0]
    mean = WEIGHTS @ y / WEIGHTS.sum()
    half = WEIGHTS @ (xlogy(y, y / mean) - y + mean) / WEIGHTS.sum()
    assert result.tol == pytest.approx(1e-3 * half)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two single-threaded worker processes."""
    with start_cluster(2) as cluster, Client(cluster) as client:
        yield client


@pytest.mark.cluster
def test_dask_arrays_and_others(client: Client) -> None:
    """Dask arrays, Rows and sparse arrays of workers give the coefficients of one process; prediction is lazy."""
    for name, (model, y) in MODELS.items():
        plain = clone(model).set_params(tol=1e-9)
        ours = clone(plain).set_params(client=client)
        plain.fit(X, y, WEIGHTS)
        dX, dy, weights = (da.from_array(part, chunks=(70, -1)[: part.ndim]) for part in (X, y, WEIGHTS))
        sparse = sp.csc_array(X)
        for given in [(dX, dy, weights), (dsgd.Rows(X, y, WEIGHTS, client=client),), (sparse, y, WEIGHTS)]:
            ours.fit(*given)
            np.testing.assert_allclose(ours.coef_, plain.coef_, atol=1e-4)
            np.testing.assert_allclose(ours.intercept_, plain.intercept_, atol=1e-4)
            assert ours.fit_report_["ranks"] == 2
            assert ours.fit_report_["converged"]
            assert ours.ledger_.totals()["bytes_sent"] > 0
        predicted = ours.predict(dX)
        assert isinstance(predicted, da.Array)
        np.testing.assert_allclose(predicted.compute(), ours.predict(X))
        assert ours.score(dX, dy) == pytest.approx(plain.score(X, y), abs=1e-4)
        if name == "logistic":
            np.testing.assert_allclose(ours.predict_proba(dX).compute(), plain.predict_proba(X), atol=1e-4)
    assert not hasattr(ours.set_params(client=None).fit(X, y), "ledger_")


@pytest.mark.cluster
def test_what_clusters_do_not_solve_is_refused(client: Client) -> None:
    """An L1 penalty, several classes, one class and targets without meaning are refused with what to do."""
    y = MODELS["logistic"][1]
    model = LogisticRegression(client=client)
    with pytest.raises(IncompatiblePartsError, match=r"l1_ratio=0\.5\).*this process only.*SGDClassifier"):
        clone(model).set_params(l1_ratio=0.5).fit(X, y)
    with pytest.raises(IncompatiblePartsError, match=r"3 classes is solved.*OneVsRestClassifier"):
        model.fit(X, np.arange(N) % 3)
    with pytest.raises(InvalidDataError, match="only one class"):
        model.fit(X, np.zeros(N))
    with pytest.raises(InvalidDataError, match="all rows of a class have the weight zero"):
        model.fit(X, y, y)
    with pytest.raises(InvalidDataError, match="targets that are not negative"):
        PoissonRegressor(client=client).fit(X, -y)
