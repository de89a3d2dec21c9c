"""Searches of scikit-learn around accelerated estimators: their own tables and models, from chains of shared work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection
import sklearn.svm
from sklearn.datasets import make_classification, make_friedman1
from sklearn.ensemble import VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import dsgd.accel
import dsgd.svm
from dsgd.accel import classes, recorded_calls, searches
from dsgd.accel.searches import Worth, prediction_seconds
from dsgd.errors import InvalidDataError

CLASSES = {"LinearSVC": sklearn.svm.LinearSVC, "SVC": sklearn.svm.SVC, "SVR": sklearn.svm.SVR}
#: Subclasses of the same names, which scikit-learn trains.
PLAIN = {name: type(CLASSES[name])(name, (CLASSES[name],), {"__module__": __name__}) for name in ("SVC", "SVR")}
GRID = {"C": [0.1, 1.0, 10.0], "gamma": ["scale", 0.3]}


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The C of each chain that is solved, with everything worth it, whatever the size."""
    monkeypatch.setattr(searches, "TINY_S", 0.0)
    monkeypatch.setattr(classes, "_worth", Worth())
    classes._worth.loaded("kernel")
    monkeypatch.setattr(searches, "_LEAST_ROWS", 0)
    monkeypatch.setattr(classes, "_MOST_PRODUCTS_OF_A_TINY_PREDICTION", 0)
    solved: list[Any] = []
    path = dsgd.svm.svm_path

    def counted(*args: Any, **kwargs: Any) -> Any:
        solved.append((list(kwargs["Cs"]), kwargs["gammas"][0]))
        return path(*args, **kwargs)

    monkeypatch.setattr(dsgd.svm, "svm_path", counted)
    dsgd.accel.install()
    yield solved
    dsgd.accel.uninstall()


def rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a hundred rows for an estimator."""
    if name == "SVR":
        X, y = make_friedman1(100, 5, random_state=0)
        return X, y
    X, y = make_classification(100, 5, n_informative=4, n_redundant=0, n_classes=3, flip_y=0.1, random_state=0)
    return X, y


def made(name: str, **parameters: Any) -> Any:
    """Return the estimator of a script."""
    return CLASSES[name](tol=1e-6, **parameters)


@pytest.mark.parametrize("name", sorted(PLAIN))
@pytest.mark.parametrize("is_piped", [False, True])
def test_a_search_solves_chains_and_finds_the_same(name: str, is_piped: bool, chains: list[Any]) -> None:
    """Each split and width is solved once for all C; the table, the best and its model are those of a plain search."""
    X, y = rows(name)
    grid = {f"{name.lower()}__{key}": values for key, values in GRID.items()} if is_piped else GRID

    def searched(model: Any) -> Any:
        return GridSearchCV(make_pipeline(StandardScaler(), model) if is_piped else model, grid, cv=2).fit(X, y)

    found, plain = searched(made(name)), searched(PLAIN[name](tol=1e-6))
    assert sorted(chains, key=str) == sorted([([0.1, 1.0, 10.0], gamma) for gamma in GRID["gamma"]] * 2, key=str)
    assert [call.by for call in recorded_calls()] == ["dsgd"] * 13  # 6 candidates, 2 splits, and the best
    assert set(found.cv_results_) == set(plain.cv_results_)
    for key in ("mean_test_score", "split1_test_score", "std_test_score"):
        np.testing.assert_allclose(found.cv_results_[key], plain.cv_results_[key], atol=1e-5)
    assert found.best_params_ == plain.best_params_
    np.testing.assert_allclose(found.predict(X).astype(float), plain.predict(X).astype(float), atol=1e-3)


def test_models_of_a_chain_have_their_own_parameters(chains: list[Any]) -> None:
    """What a search scores at a C is the model of that C, in whatever order candidates ask, and nothing is kept."""
    X, y = rows("SVC")
    seen: dict[float, Any] = {}

    def scorer(model: Any, A: Any, b: Any) -> float:
        seen[model.C] = model.decision_function(A)
        return 0.0

    costs = [3.0, 0.2, 3.0, 1]
    train = np.arange(80)
    search = GridSearchCV(made("SVC"), {"C": costs}, scoring=scorer, cv=[(train, np.arange(80, 100))], refit=False)
    search.fit(X, y)
    assert [costs for costs, _ in chains] == [[0.2, 1.0, 3.0]]
    for cost, scores in seen.items():
        plain = PLAIN["SVC"](C=cost, tol=1e-6).fit(X[train], y[train]).decision_function(X[80:])
        np.testing.assert_allclose(scores, plain, atol=1e-4)
    assert searches.n_fits_to_come() == 1


@pytest.mark.parametrize("parameters", [{"kernel": "linear"}, {"max_iter": 10_000}, {"probability": True}])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_gains_nothing_is_fitted_alone(parameters: dict[str, Any], chains: list[Any]) -> None:
    """Fits that have another way, limits of steps or curves follow no chain, nor do candidates that share no C."""
    X, y = rows("SVC")
    GridSearchCV(made("SVC", **parameters), {"C": [0.5, 1.0]}, cv=2).fit(X, y)
    pairs = [{"C": [0.5], "gamma": [0.1]}, {"C": [1.0], "gamma": [0.2]}]
    GridSearchCV(made("SVC"), pairs, cv=2).fit(X, y)
    piped = [{f"svc__{key}": values for key, values in pair.items()} for pair in pairs]
    GridSearchCV(make_pipeline(StandardScaler(), made("SVC")), piped, cv=2).fit(X, y)
    assert chains == []


def test_the_cost_of_another_step_is_no_candidate(chains: list[Any]) -> None:
    """Of classifiers that take turns in a step, or stand side by side, an SVM is solved at the C of its own kind."""
    X, y = rows("SVC")
    grid = [
        {"clf": [made("SVC"), made("SVC", gamma=0.3)], "clf__C": [1.0, 2.0]},
        {"clf": [LogisticRegression()], "clf__C": [1e-2, 1e3, 1e6]},
    ]
    pipeline = Pipeline([("clf", made("SVC"))])
    GridSearchCV(pipeline, grid, cv=2, refit=False).fit(X, y)
    assert sorted(chains, key=str) == [([1.0, 2.0], "scale")] * 2 + [([1.0, 2.0], 0.3)] * 2
    chains.clear()
    voting = VotingClassifier([("svc", made("SVC")), ("other", LogisticRegression()), ("linear", made("LinearSVC"))])
    side_by_side = {"svc__C": [0.5, 3.0], "other__C": [1e-2], "linear__C": [1e-3, 1e-4]}
    GridSearchCV(voting, side_by_side, cv=2, refit=False).fit(X, y)
    assert {tuple(costs) for costs, _ in chains} == {(0.5, 3.0)}


def test_rows_that_are_too_many_to_keep_are_fitted_alone(chains: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains wait for later candidates as long as their rows take few bytes."""
    monkeypatch.setattr(searches, "_MOST_BYTES", 50 * 5 * 8)  # one split of two
    search = RandomizedSearchCV(made("SVC"), GRID, n_iter=6, cv=2, random_state=0).fit(*rows("SVC"))
    assert len(chains) == 2  # one width after another: what is done makes room
    assert len(recorded_calls()) == 13
    assert np.isfinite(search.best_score_)


def test_fits_that_differ_in_more_than_the_cost_share_no_chain(chains: list[Any]) -> None:
    """Other rows, labels, weights or parameters are another problem, even if C is all that a search varies."""
    X, y = rows("SVC")
    weights = np.linspace(0.5, 1.5, len(y))
    others: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
        ({}, (X**2, y)),
        ({}, (X, 2 - y)),
        ({"gamma": 0.1}, (X, y, weights)),
        ({"gamma": 0.1}, (X, y)),
        ({"class_weight": {0: 3.0}}, (X, y)),
    ]
    candidates = [{**parameters, "C": cost} for parameters, _ in others for cost in (0.5, 2.0)]
    with searches._running(searches._Search(candidates, made("SVC"))):
        made("SVC", C=0.5).fit(X, y)
        for parameters, data in others:
            found = made("SVC", C=2.0, **parameters).fit(*data)
            plain = PLAIN["SVC"](C=2.0, tol=1e-6, **parameters).fit(*data)
            np.testing.assert_allclose(found.decision_function(X), plain.decision_function(X), atol=1e-4)
    assert [costs for costs, _ in chains] == [[0.5, 2.0]] * 6


def test_a_chain_that_cannot_be_solved_leaves_its_fits_alone(
    chains: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers that overflow at one C do not keep ours from another."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise InvalidDataError("sums are not finite")

    monkeypatch.setattr(dsgd.svm, "svm_path", refuse)
    GridSearchCV(made("SVC"), {"C": [0.5, 2.0]}, cv=2, refit=False).fit(*rows("SVC"))
    assert [call.by for call in recorded_calls()] == ["dsgd"] * 4


@pytest.mark.parametrize("name", ["NuSVR", "OneClassSVM", "SVC"])
def test_predictions_of_their_models_are_ours_too(
    name: str, chains: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that scikit-learn has trained predicts by ours where that pays, and until then counts as a fit does."""
    X, y = rows("SVR" if name == "NuSVR" else name)
    monkeypatch.setattr(classes, "_worth", Worth())
    model = getattr(sys.modules["sklearn.svm"], name)().fit(X, y)
    assert [call.by for call in recorded_calls()] == ["scikit-learn"]
    plain = model.predict(X)
    assert model not in classes._models
    spent = classes._worth._spent_s["kernel"]
    monkeypatch.setattr(searches, "WORTH_S", 0.0)
    np.testing.assert_allclose(model.predict(X), plain, rtol=1e-9)
    assert type(classes._models[model][0]).__module__.startswith("dsgd.svm.")
    assert classes._worth._spent_s["kernel"] == spent > recorded_calls()[0].seconds
    assert prediction_seconds(X, 20) == pytest.approx(2 * prediction_seconds(X, 10))
