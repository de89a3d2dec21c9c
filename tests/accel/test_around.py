"""Meta-estimators of scikit-learn around accelerated estimators, and classes that are left as they are."""

from __future__ import annotations

import logging
import pickle
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.calibration
import sklearn.multiclass
import sklearn.svm
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_blobs
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier
from threadpoolctl import threadpool_info

import dsgd.accel
import dsgd.svm
import dsgd.svm.distributed.linear
from dsgd.accel import classes, recorded_calls
from dsgd.accel.patch import FUNCTIONS, REPLACED, WRAPPED
from dsgd.accel.searches import near_fits

X, Y = make_blobs(120, 4, centers=4, cluster_std=4.0, random_state=0)
CLASSES = {name: getattr(sklearn.svm, name) for name in REPLACED["sklearn.svm"]}
#: Subclasses of the same names, which scikit-learn trains.
PLAIN = {name: type(kind)(name, (kind,), {"__module__": __name__}) for name, kind in CLASSES.items()}


def made(name: str, **parameters: Any) -> Any:
    """Return the estimator of a script."""
    return CLASSES[name](**parameters)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, always_worth_it: None) -> Iterator[list[tuple[bool, set[int]]]]:
    """Of each fit of ours, whether it is on the main thread, and the threads of BLAS as it begins; all are worth it."""
    monkeypatch.setattr(classes, "n_threads", lambda: 2 if threading.current_thread() is threading.main_thread() else 1)
    found: list[tuple[bool, set[int]]] = []
    trained = classes._trained

    def noted(*args: Any) -> Any:
        blas = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
        found.append((threading.current_thread() is threading.main_thread(), blas))
        return trained(*args)

    monkeypatch.setattr(classes, "_trained", noted)
    dsgd.accel.install()
    yield found
    dsgd.accel.uninstall()


@pytest.mark.parametrize("labels", [Y, np.eye(4, dtype=int)[Y]])
def test_machines_are_trained_side_by_side_and_are_the_same(labels: Any, seen: list[Any]) -> None:
    """All machines are ours, none is trained by the main thread, and each decides as scikit-learn's does."""
    model = OneVsRestClassifier(made("SVC", tol=1e-6)).fit(X, labels)
    assert [is_main for is_main, _ in seen] == [False] * 4
    assert [call.by for call in recorded_calls()] == ["dsgd"] * 4
    assert {classes._models[machine][0].n_jobs for machine in model.estimators_} == {1}
    plain = OneVsRestClassifier(PLAIN["SVC"](tol=1e-6)).fit(X, labels)
    np.testing.assert_allclose(model.decision_function(X), plain.decision_function(X), atol=1e-4)
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({"n_jobs": 1}, {}),
        ({}, {"kernel": lambda A, B: A @ B.T}),
        ({}, {"probability": True}),
        ({}, {"name": "LinearSVC"}),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_threads_might_change_is_trained_in_turns(
    options: dict[str, Any], parameters: dict[str, Any], seen: list[Any]
) -> None:
    """Machines stay on the main thread where the script says so, or random numbers or functions are involved."""
    estimator = made(**{"name": "SVC", **parameters})
    threads: set[str] = set()
    fit = type(estimator).fit

    def noted(self: Any, *args: Any) -> Any:
        threads.add(threading.current_thread().name)
        return fit(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(estimator), "fit", noted)
        OneVsRestClassifier(estimator, **options).fit(X, Y)
    assert threads == {"MainThread"}


@pytest.mark.parametrize(
    ("name", "options", "n_fits"),
    [
        ("cross_val_score", {"scoring": "r2"}, 5),
        ("cross_validate", {"cv": KFold(4)}, 4),
        ("cross_val_predict", {"cv": 3}, 3),
        ("learning_curve", {"cv": 2, "train_sizes": [0.5, 1.0]}, 4),
        ("validation_curve", {"cv": 2, "param_name": "C", "param_range": [0.1, 1.0, 10.0]}, 6),
    ],
)
def test_folds_are_trained_side_by_side_and_scored_the_same(
    name: str, options: dict[str, Any], n_fits: int, seen: list[Any]
) -> None:
    """No fit of a fold is the main thread's, and scores or predictions are those of scikit-learn, in its order."""
    validate, plain = getattr(sys.modules["sklearn.model_selection"], name), PLAIN["SVR"](tol=1e-6)
    found = validate(made("SVR", tol=1e-6), X, Y, **options)
    assert [is_main for is_main, _ in seen] == [False] * n_fits
    expected = validate.__wrapped__(plain, X, Y, **options)
    if isinstance(found, dict):
        found, expected = found["test_score"], expected["test_score"]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_functions_that_validate_go_to_other_processes() -> None:
    """A pool of processes finds them by their names, and afterwards scikit-learn's own."""
    functions = [(sys.modules[module], name) for module, names in FUNCTIONS.items() for name in names]
    plain = [getattr(module, name) for module, name in functions]
    dsgd.accel.install()
    try:
        for (module, name), own in zip(functions, plain, strict=True):
            function = getattr(module, name)
            assert function is not own
            assert pickle.loads(pickle.dumps(function)) is function
    finally:
        dsgd.accel.uninstall()
    assert [pickle.loads(pickle.dumps(getattr(module, name))) for module, name in functions] == plain


def test_linear_machines_of_a_calibration_begin_at_each_other(seen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first begin at the weights of the one before and take fewer steps, and probabilities stay the same.

    A fit outside, one of other classes and one whose loss has a kink begin at zero.
    """
    rng = np.random.default_rng(0)
    rows = sp.random(1500, 150, 0.1, "csr", rng=rng)
    labels = (rows @ rng.standard_normal(150) + 0.1 * rng.standard_normal(1500) > 0).astype(int)
    begun: list[Any] = []
    solve = dsgd.svm.distributed.linear.solve_linear

    def noted(problem: Any, solver: str, *, start: Any = None, **limits: Any) -> Any:
        solution = solve(problem, solver, start=start, **limits)
        begun.append((start, solution))
        return solution

    monkeypatch.setattr("dsgd.svm.distributed.linear.solve_linear", noted)
    model = CalibratedClassifierCV(made("LinearSVC", tol=1e-8), cv=4).fit(rows, labels)
    starts, solutions = zip(*begun, strict=True)
    assert starts[0] is None
    for start, before in zip(starts[1:], solutions[:-1], strict=True):
        np.testing.assert_allclose(start.weights, before.weights, rtol=1e-12)
    assert max(solution.n_iter for solution in solutions[1:]) < solutions[0].n_iter
    assert all(solution.gap <= 1e-8 for solution in solutions)
    plain = CalibratedClassifierCV(PLAIN["LinearSVC"](tol=1e-8, max_iter=100_000), cv=4).fit(rows, labels)
    np.testing.assert_allclose(model.predict_proba(rows), plain.predict_proba(rows), atol=1e-4)
    begun.clear()
    made("LinearSVC").fit(rows, labels)
    CalibratedClassifierCV(made("LinearSVC", loss="hinge", tol=0.1), cv=2).fit(rows, labels)
    with near_fits():
        made("LinearSVC").fit(rows, labels)
        made("LinearSVC").fit(rows, labels + 1)
        made("LinearSVC", C=2.0).fit(rows, labels + 1)
    assert [start for start, _ in begun] == [None] * 6


def test_classes_that_are_excluded_stay_as_they_are() -> None:
    """Each name is left alone or changed by itself, as the last call of `install` says, and all are put back."""
    wrapped = [(module, name, method) for module, names in WRAPPED.items() for name, (method, *_) in names.items()]

    def state() -> dict[str, Any]:
        found = {name: getattr(sys.modules[module], name).fit for module, names in REPLACED.items() for name in names}
        found |= {name: getattr(sys.modules[module], name) for module, names in FUNCTIONS.items() for name in names}
        return found | {name: getattr(getattr(sys.modules[module], name), method) for module, name, method in wrapped}

    before = state()
    try:
        for excluded in (
            {"SVC", "GridSearchCV"},
            {"OneVsRestClassifier", "SGDRegressor", "cross_validate"},
            set(before),
            set(),
        ):
            dsgd.accel.install(exclude=excluded)
            assert {name for name, value in state().items() if value is before[name]} == excluded
        with pytest.raises(ValueError, match="no class 'SVM'"):
            dsgd.accel.install(exclude=["SVM"])
    finally:
        dsgd.accel.uninstall()
    assert state() == before


def test_a_machine_that_is_not_taken_over_says_why(
    seen: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    """Where ours cannot predict by a machine of scikit-learn's, that one does, and the log has the reason once."""

    def refuse(model: Any) -> Any:
        raise ValueError("numbers  that\ndo not fit")

    monkeypatch.setattr(dsgd.svm.SVC, "from_sklearn", refuse)
    plain = PLAIN["SVC"]().fit(X, Y)
    with caplog.at_level(logging.WARNING, "dsgd.accel"):
        for _ in range(2):
            model = made("SVC")
            vars(model).update(vars(plain))
            np.testing.assert_array_equal(model.predict(X), plain.predict(X))
    (record,) = caplog.records
    assert record.getMessage() == "dsgd.accel: scikit-learn predicts by this SVC: numbers that do not fit"
    dsgd.accel.install(verbose=True)
    del classes._models[model]
    model.predict(X)
    assert capsys.readouterr().err == "dsgd.accel: SVC predicts by scikit-learn (numbers that do not fit)\n"
