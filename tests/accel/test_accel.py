"""Accelerated classes: scikit-learn's own to everything that looks at them, and trained by ours where that pays."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.linear_model
import sklearn.svm
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import dsgd.accel
from dsgd.accel import classes, recorded_calls, searches
from dsgd.accel.classes import LINEAR_MODELS
from dsgd.accel.patch import REPLACED
from dsgd.accel.searches import Worth

CLASSES = {name: getattr(sys.modules[module], name) for module, names in REPLACED.items() for name in names}
#: Subclasses of the same names, which scikit-learn trains.
PLAIN = {name: type(kind)(name, (kind,), {"__module__": __name__}) for name, kind in CLASSES.items()}
SVMS = sorted(name for name in PLAIN if "SV" in name)
GLMS = sorted(LINEAR_MODELS)
#: Fits that are the optimum of one problem, whoever finds it.
EXACT = [name for name in SVMS if not name.startswith("Linear")]


@pytest.fixture
def installed(always_worth_it: None) -> Iterator[Any]:
    """The module, installed."""
    dsgd.accel.install()
    yield dsgd.accel
    dsgd.accel.uninstall()


def rows(name: str, n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Return rows that suit an estimator: labels, or numbers."""
    X, y = make_classification(n, 6, n_informative=4, n_classes=3, random_state=0)
    if name == "PoissonRegressor":
        return X, y.astype(float)
    if name == "Ridge":
        return sp.csr_array(X), X[:, 0] + 0.1 * y
    is_regressor = name in ("ElasticNet", "Lasso", "SGDRegressor") or name.endswith("R")
    return X, (X[:, 0] + 0.1 * y if is_regressor else np.array(["a", "b", "c"])[y])


def made(name: str, **parameters: Any) -> Any:
    """Return the estimator of a script."""
    return CLASSES[name](**parameters)


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_a_fit_is_ours_and_leaves_what_theirs_leaves(name: str, installed: Any) -> None:
    """Attributes, types and shapes are those of scikit-learn's fit; predictions agree, of exact solvers closely."""
    X, y = rows(name, 600)
    options = {} if name in ("SVR", "NuSVR", "OneClassSVM", "PoissonRegressor") else {"random_state": 0}
    if name == "LinearSVR" or name in GLMS:
        options["max_iter"] = 100_000
    if name in GLMS:
        options["tol"] = 1e-8
    if name in ("ElasticNet", "Lasso"):
        options["alpha"] = 0.01
    model, plain = made(name, **options).fit(X, y), PLAIN[name](**options).fit(X, y)
    assert [(call.estimator, call.by) for call in recorded_calls()] == [(name, "dsgd")]
    assert repr(model) == repr(plain)
    fitted = {key: value for key, value in vars(plain).items() if key.endswith("_") and not key.startswith("_")}
    for key, value in fitted.items():
        mine = getattr(model, key)
        assert type(mine) is type(value) or np.isscalar(value), key
        if key not in ("n_iter_", "support_", "support_vectors_", "dual_coef_"):
            assert np.shape(mine) == np.shape(value), key
    if name in EXACT:
        method = "decision_function" if hasattr(plain, "decision_function") else "predict"
        np.testing.assert_allclose(getattr(model, method)(X), getattr(plain, method)(X), atol=0.02)
    if name in GLMS:
        np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-4)
        np.testing.assert_allclose(model.intercept_, plain.intercept_, atol=1e-4)
    if hasattr(plain, "partial_fit"):
        steps = model.t_
        assert model.partial_fit(X, y).t_ == steps + len(X)
        plain.partial_fit(X, y)
    if hasattr(plain, "score"):
        assert model.score(X, y) > plain.score(X, y) - (0.01 if name in SVMS else 0.1)


def test_saved_models_load_in_a_process_without_us(installed: Any, tmp_path: Path) -> None:
    """Files of all estimators, and of a search around one, name scikit-learn's classes alone and predict the same."""
    models = [made(name).fit(*rows(name)) for name in sorted(PLAIN)]
    models.append(GridSearchCV(made("SVC"), {"C": [1.0, 2.0]}, cv=2).fit(*rows("SVC")))
    assert not [model for model in models if b"dsgd" in pickle.dumps(model)]
    X = rows("SVC")[0]
    joblib.dump((models, X, [model.predict(X) for model in models]), tmp_path / "models.joblib")
    script = """
        import sys, warnings
        sys.modules["dsgd"] = None
        warnings.simplefilter("error")
        import joblib
        import numpy as np
        models, X, expected = joblib.load(sys.argv[1])
        assert all(type(model).__module__.startswith("sklearn.") for model in models)
        for model, predictions in zip(models, expected, strict=True):
            found = model.predict(X)
            assert (found == predictions).all() or np.allclose(found, predictions, rtol=1e-9, atol=0)
        print(len(models))
    """
    found = run(script, tmp_path, "models.joblib", accelerated=False)
    assert found.stdout.split() == [str(len(models))]


def run(script: str, folder: Path, *args: str, accelerated: bool = True, options: tuple[str, ...] = ()) -> Any:
    """Run a script as a user does."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script), encoding="utf-8")
    command = [sys.executable, *(["-m", "dsgd.accel", *options] if accelerated else []), str(path), *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_a_script_runs_as_if_it_ran_alone(tmp_path: Path) -> None:
    """Arguments, name and path of a script are its own; what is too small loads no solver, and every fit is listed."""
    (tmp_path / "beside.py").write_text("VALUE = 7\n", encoding="utf-8")
    script = """
        import sys
        import beside
        from sklearn.svm import SVC
        model = SVC().fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])
        print(__name__, beside.VALUE, sys.argv[1:], model.predict([[3.0]])[0], SVC.__module__)
        print("numba" in sys.modules, "dsgd.svm" in sys.modules)
    """
    done = run(script, tmp_path, "--verbose", "x", options=("--verbose",))
    assert done.stdout.splitlines() == ["__main__ 7 ['--verbose', 'x'] 1 sklearn.svm._classes", "False False"]
    assert "SVC.fit of 4 x 1: scikit-learn" in done.stderr
    assert "1 fits" in done.stderr
    quiet = run(script, tmp_path, options=("--exclude", "NuSVC", "--exclude", "SVC"))
    assert quiet.stdout == done.stdout.replace("'--verbose', 'x'", "")
    assert quiet.stderr == ""


def test_a_module_runs_and_what_is_missing_is_said(tmp_path: Path) -> None:
    """``-m`` runs a module; without a script, or without its file, status 2 and a line that says what to do."""
    (tmp_path / "job.py").write_text("import sys; print(__name__, sys.argv[1:])\n", encoding="utf-8")
    command = [sys.executable, "-m", "dsgd.accel"]
    options: Any = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120, "check": False}
    assert subprocess.run([*command, "-m", "job", "a", "-b"], **options).stdout == "__main__ ['a', '-b']\n"
    for args, says in (
        ([], "name a script"),
        (["none.py"], "there is no file 'none.py'"),
        (["--exclude", "SVM", "-m", "job"], "--exclude has no class 'SVM'"),
    ):
        done = subprocess.run([*command, *args], **options)
        assert done.returncode == 2
        assert says in done.stderr


@pytest.mark.parametrize(
    ("name", "parameters", "options", "reason"),
    [
        ("SGDClassifier", {"warm_start": True}, {}, "warm_start"),
        ("SGDClassifier", {"average": True}, {}, "average"),
        ("SGDRegressor", {}, {"coef_init": [0.0] * 6}, "coef_init"),
        ("SVC", {"kernel": lambda A, B: A @ B.T}, {}, "function"),
        ("LinearSVC", {"multi_class": "crammer_singer", "C": 0.01}, {}, "LIBLINEAR"),
        ("SGDRegressor", {"alpha": 0.1}, {"sample_weight": np.full(120, 2.0)}, "sample_weight"),
        ("SGDClassifier", {"alpha": 0.1}, {"sample_weight": np.r_[0.0, np.ones(119)]}, "sample_weight"),
    ],
)
def test_what_is_not_supported_is_scikit_learns_and_is_said_once(
    name: str, parameters: Any, options: Any, reason: str, installed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a fit gives scikit-learn's model to the bit; its reason is logged at the first of them."""
    X, y = rows(name)
    seed = {} if name == "SVC" else {"random_state": 0}
    with caplog.at_level(logging.WARNING, "dsgd.accel"):
        models = [made(name, **parameters, **seed).fit(X, y, **options) for _ in range(2)]
    plain = PLAIN[name](**parameters, **seed).fit(X, y, **options)
    np.testing.assert_array_equal(models[0].predict(X), plain.predict(X))
    assert [call.by for call in recorded_calls()] == ["scikit-learn"] * 2
    assert len(caplog.records) == 1
    assert reason in caplog.records[0].getMessage()


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_errors_are_those_of_scikit_learn(name: str, installed: Any) -> None:
    """Bad rows, bad parameters and predictions before a fit raise what they always did, word for word."""
    X, y = rows(name)
    broken = X.copy()
    broken[3, 2] = np.nan
    cases: list[tuple[dict[str, Any], Any, Any]] = [({}, broken, y), ({"max_iter": "x"}, X, y), ({}, X[:5], y)]
    cases += [({}, [["a", "b"]] * len(y), y), ({}, "rows.parquet", y), ({}, ["rows.parquet"], y), ({}, X, "y")]
    if name in ("SVC", "NuSVC", "LinearSVC", "SGDClassifier"):
        cases.append(({}, X, np.full(len(X), "a")))
    if name == "LinearSVC":
        cases.append(({"loss": "hinge", "dual": False}, X, y))
    for parameters, A, b in cases:
        texts = []
        for kind in (PLAIN[name], type(made(name))):
            with pytest.raises((ValueError, TypeError)) as caught:
                # OneClassSVM takes no notice of labels.
                kind(**parameters).fit(A, b) if name != "OneClassSVM" or len(A) == len(b) else kind(nu=2.0).fit(A)
            texts.append((type(caught.value), str(caught.value)))
        assert texts[0] == texts[1]
    with pytest.raises(NotFittedError):
        made(name).predict(X)


def test_methods_are_replaced_and_put_back() -> None:
    """Classes stay what they are, with the signatures of their methods; uninstalling leaves no trace in them."""
    before = {name: dict(vars(kind)) for name, kind in CLASSES.items()}
    signatures = {name: inspect.signature(kind.fit) for name, kind in CLASSES.items()}
    dsgd.accel.load_ipython_extension(None)
    try:
        assert dsgd.accel.is_installed()
        assert {name: getattr(sys.modules[m], name) for m, names in REPLACED.items() for name in names} == CLASSES
        assert {name: inspect.signature(kind.fit) for name, kind in CLASSES.items()} == signatures
        kept = sklearn.svm.SVC.fit
        assert kept is not before["SVC"].get("fit")
        dsgd.accel.install(verbose=False)
        assert sklearn.svm.SVC.fit is kept
    finally:
        dsgd.accel.unload_ipython_extension(None)
    assert not dsgd.accel.is_installed()
    assert {name: dict(vars(kind)) for name, kind in CLASSES.items()} == before


def test_installing_loads_no_solver(tmp_path: Path) -> None:
    """Classes are replaced before a script imports them, and no solver is loaded for that."""
    script = """
        import sys, dsgd.accel
        dsgd.accel.install()
        print([name for name in ("numba", "dask", "dsgd.svm", "dsgd.linear_model") if name in sys.modules])
        from sklearn import svm
        print(hasattr(svm.SVC.fit, "_is_accelerated"))
    """
    assert run(script, tmp_path, accelerated=False).stdout.splitlines() == ["[]", "True"]


def test_a_model_short_of_its_gap_is_scikit_learns(installed: Any) -> None:
    """A linear model that ours would leave short of its gap, with a warning, is trained by scikit-learn."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 30))
    made("LogisticRegression", C=1e12, tol=1e-14).fit(X, X[:, 0] + rng.standard_normal(200) > 0.0)
    (call,) = recorded_calls()
    assert (call.by, "gap" in call.reason) == ("scikit-learn", True)


def test_threads_are_those_that_a_parallel_loop_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone a fit has all cores, in a loop of joblib one, and never more than its processes are given."""
    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert classes.n_threads() == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert classes.n_threads() == 3
    inside = joblib.Parallel(n_jobs=2, backend="threading")(joblib.delayed(classes.n_threads)() for _ in range(2))
    assert inside == [1, 1]


@given(fits=st.lists(st.floats(0.0, 3.0), max_size=60), factor=st.floats(0.1, 10.0))
def test_no_script_waits_longer_than_it_has_computed(fits: list[float], factor: float) -> None:
    """Fits are ours once those done and the next take long enough, however wrong estimates are; then all are."""
    worthwhile, spent, is_loaded = Worth(), 0.0, False
    for seconds in fits:
        estimated = seconds * factor
        # The factor is found out as fits go by.
        expected = estimated * (spent + searches.CONFIDENCE_S) / (spent * factor + searches.CONFIDENCE_S)
        is_ours = worthwhile.is_ours(estimated, "kernel")
        if not np.isclose(expected, searches.TINY_S) and not np.isclose(spent + expected, searches.WORTH_S):
            long_enough = is_loaded or spent + expected > searches.WORTH_S
            assert is_ours == (expected >= searches.TINY_S and long_enough)
        if is_ours:
            worthwhile.loaded("kernel")
            is_loaded = True
        else:
            worthwhile.spend(seconds, estimated, "kernel")
            spent += seconds
        assert not worthwhile.is_ours(searches.WORTH_S / 2, "sgd")
