"""Validation rows, `scoring`, `restore_best` and the history: what users can compute by hand, on every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn import config_context
from sklearn.datasets import make_classification
from sklearn.metrics import accuracy_score, get_scorer, make_scorer, r2_score
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

import dsgd
from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.errors import CheckpointError, DsgdError, InvalidDataError, InvalidParameterError
from dsgd.kernel_approximation import RandomFeatures
from dsgd.preprocessing import ColumnEncoder
from dsgd.runtime import Checkpoint
from dsgd.sim import SimulatedCluster
from dsgd.sync import DPSGD, Hogwild, LocalSGD

EPOCHS = 6
FIT: dict[str, Any] = {"loss": "log_loss", "alpha": 1e-3, "tol": None, "random_state": 0}

Table = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def tables() -> tuple[Table, Table]:
    """Return 300 rows to train on and 200 others, on which the best epoch is not the last one."""
    X, y = make_classification(500, 8, n_informative=6, flip_y=0.2, random_state=3)
    return (X[:300], y[:300]), (X[300:], y[300:])


LAYOUTS: dict[str, dict[str, Any]] = {
    "one thread": {},
    "two threads": {"n_jobs": 2, "sync": LocalSGD(32)},
    "out of core": {"n_jobs": 2, "sync": LocalSGD(32), "client": Gang(out_of_core=True)},
    "simulated": {"client": SimulatedCluster(ranks=2), "sync": LocalSGD(32)},
    "averaged": {"average": 100},
    "apart": {"n_jobs": 2, "sync": DPSGD(32)},
    "features": {"features": RandomFeatures(40, gamma=0.1, random_state=1)},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_epoch_has_the_score_of_a_fit_that_ends_there(layout: str, tables: Any) -> None:
    """Every score is scikit-learn's for a fit of so many epochs, and the restored model is that of the best."""
    (X, y), (X_val, y_val) = tables
    options, scorer = {**FIT, **LAYOUTS[layout]}, get_scorer("roc_auc")
    watched = SGDClassifier(**options, max_iter=EPOCHS, scoring="roc_auc", restore_best=True)
    watched.fit(X, y, X_val=X_val, y_val=y_val)
    by_hand = [SGDClassifier(**options, max_iter=k).fit(X, y) for k in range(1, EPOCHS + 1)]
    scores = [scorer(model, X_val, y_val) for model in by_hand]
    assert watched.history_[:, "valid_score"] == scores
    assert (watched.best_epoch_, watched.best_score_) == (1 + int(np.argmax(scores)), max(scores))
    assert watched.n_iter_ == EPOCHS
    best = by_hand[watched.best_epoch_ - 1]
    assert watched.coef_.tobytes() == best.coef_.tobytes()
    assert watched.intercept_.tobytes() == best.intercept_.tobytes()


def test_given_rows_decide_when_to_stop_and_all_others_train(tables: Any) -> None:
    """With early stopping the rule looks at the score of the given rows, and no training row is held out."""
    (X, y), (X_val, y_val) = tables
    options = {**FIT, "tol": 1e-3, "n_iter_no_change": 3}
    stopped = SGDClassifier(**options, early_stopping=True, max_iter=100).fit(X, y, X_val=X_val, y_val=y_val)
    best, n_bad, n_epochs = -np.inf, 0, 0
    for score in stopped.history_[:, "valid_score"]:
        n_bad, best, n_epochs = 0 if score >= best + 1e-3 else n_bad + 1, max(best, score), n_epochs + 1
        assert n_bad < 3 or n_epochs == stopped.n_iter_
    assert n_bad == 3
    plain = SGDClassifier(**{**options, "tol": None}, max_iter=stopped.n_iter_).fit(X, y)
    np.testing.assert_array_equal(stopped.coef_, plain.coef_)


def test_without_early_stopping_given_rows_only_watch(tables: Any) -> None:
    """Rows that do not decide change no bit of the model, and the loss still ends training."""
    (X, y), (X_val, y_val) = tables
    options = {**FIT, "tol": 1e-2, "n_iter_no_change": 2, "max_iter": 200}
    watched, plain = SGDClassifier(**options).fit(X, y, X_val=X_val, y_val=y_val), SGDClassifier(**options).fit(X, y)
    assert watched.n_iter_ == plain.n_iter_ < 200
    np.testing.assert_array_equal(watched.coef_, plain.coef_)
    assert "valid_score" not in plain.history_[0]
    assert not hasattr(plain, "best_score_")
    assert not hasattr(watched.fit(X, y), "best_score_")  # nothing is left of an earlier fit


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_scoring_without_rows_holds_out_those_of_scikit_learn(n_jobs: int, tables: Any) -> None:
    """With a measure of its own, a fit is that of the split that scikit-learn makes; on one rank the usual one."""
    (X, y), _ = tables
    options = {**FIT, "tol": 1e-3, "early_stopping": True, "n_jobs": n_jobs, "sync": LocalSGD(32)}
    model = SGDClassifier(**options, scoring="accuracy").fit(pd.DataFrame(X), y)
    train, held_out = map(np.sort, next(StratifiedShuffleSplit(test_size=0.1, random_state=0).split(X, y)))
    given = SGDClassifier(**options).fit(X[train], y[train], X_val=X[held_out], y_val=y[held_out])
    assert model.history_[:, "valid_score"] == given.history_[:, "valid_score"]
    np.testing.assert_array_equal(model.coef_, given.coef_)
    if n_jobs == 1:
        usual = SGDClassifier(**options).fit(X, y)
        np.testing.assert_array_equal(model.coef_, usual.coef_)


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_several_classes_and_weights(kind: str) -> None:
    """Of several classes, with weights, in float32 and sparse rows, the score is the weighted accuracy."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((240, 6)).astype(np.float32)
    labels = np.array(["a", "b", "c"])[np.argmax(X[:, :3], axis=1)]
    weights = rng.integers(0, 3, 240).astype(float)
    rows: Any = X if kind == "dense" else sp.csr_array(X)
    model = SGDClassifier(**FIT, max_iter=3, restore_best=True, scoring="accuracy")
    model.fit(rows[:150], labels[:150], X_val=rows[150:], y_val=labels[150:], sample_weight_val=weights[150:])
    expected = accuracy_score(labels[150:], model.predict(rows[150:]), sample_weight=weights[150:])
    assert model.best_score_ == expected


def test_a_regressor_and_a_measure_of_ones_own(tables: Any) -> None:
    """A regressor is scored by R2, or by a callable; scikit-learn's own scorers of a function are callables."""
    (X, _), (X_val, _) = tables
    y, y_val = X @ np.arange(8.0), X_val @ np.arange(8.0)
    options: dict[str, Any] = {"max_iter": 5, "tol": None, "random_state": 0}
    plain = SGDRegressor(**options).fit(X, y, X_val=X_val, y_val=y_val)
    assert plain.history_[-1, "valid_score"] == r2_score(y_val, plain.predict(X_val))
    for scoring in (lambda model, X, y: r2_score(y, model.predict(X)), make_scorer(r2_score)):
        own = SGDRegressor(**options, scoring=scoring).fit(X, y, X_val=X_val, y_val=y_val)
        assert own.history_[:, "valid_score"] == plain.history_[:, "valid_score"]


def test_tables_go_through_the_encoder_of_the_training_rows(tmp_path: Path) -> None:
    """Validation tables, in memory and in files, are encoded as the training rows are."""
    table = pd.DataFrame(
        {"colour": list("abcaabbc") * 20, "size": np.linspace(-1, 1, 160), "weight": 1.0, "y": [0, 1, 1, 0] * 40}
    )
    validation = pd.DataFrame(
        {"colour": list("abdz") * 5, "size": np.linspace(1, -1, 20), "weight": [1.0, 2.0] * 10, "y": [0, 1] * 10}
    )
    model = SGDClassifier(**FIT, max_iter=3, encoder="auto", scoring="neg_log_loss")
    encoder = ColumnEncoder().fit(table[["colour", "size"]])
    rows = encoder.transform(table[["colour", "size"]]), table["y"]
    rows_val = {"X_val": encoder.transform(validation[["colour", "size"]]), "y_val": validation["y"]}
    plain = SGDClassifier(**FIT, max_iter=3, scoring="neg_log_loss")
    expected = plain.fit(*rows, sample_weight=table["weight"], **rows_val, sample_weight_val=validation["weight"])
    validation.to_csv(tmp_path / "validation.csv", index=False)
    for X_val in (validation, str(tmp_path / "validation.csv")):
        names = {"y_val": "y", "sample_weight_val": "weight"}
        found = model.fit(table, "y", sample_weight="weight", X_val=X_val, **names)
        assert found.history_[:, "valid_score"] == expected.history_[:, "valid_score"]
        assert list(found.feature_names_in_) == ["colour", "size"]
    with pytest.raises(DsgdError, match="size"):
        model.fit(table[["colour", "size"]], table["y"], X_val=validation[["colour"]], y_val=validation["y"])


def wrong_label(y: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(y)) == 3, 7, y)


@pytest.mark.parametrize(
    ("parameters", "given", "message"),
    [
        ({}, lambda X, y: {"X_val": X}, "X_val is given without y_val"),
        ({}, lambda X, y: {"y_val": y}, "without X_val"),
        ({}, lambda X, y: {"sample_weight_val": y}, "without X_val"),
        ({}, lambda X, y: {"X_val": X[:, :5], "y_val": y}, "X has 5 features, but SGDClassifier is expecting 8"),
        ({}, lambda X, y: {"X_val": X, "y_val": y[:9]}, "Validation rows .*inconsistent numbers of samples"),
        ({}, lambda X, y: {"X_val": X, "y_val": wrong_label(y)}, r"y_val holds labels .*\[7\]"),
        ({}, lambda X, y: {"X_val": X, "y_val": y, "sample_weight_val": np.zeros(len(y))}, "at least one non-zero"),
        ({}, lambda X, y: {"X_val": X * np.nan, "y_val": y}, "Validation rows .*contains NaN"),
        ({}, lambda X, y: {"X_val": da.from_array(X), "y_val": y}, "must be in the memory of this process"),
        ({"scoring": "neg_log_loss", "loss": "hinge"}, lambda X, y: {"X_val": X, "y_val": y}, "predict_proba"),
        ({"scoring": "no such"}, lambda X, y: {"X_val": X, "y_val": y}, "no such"),
        ({"scoring": ["f1", "roc_auc"]}, lambda X, y: {"X_val": X, "y_val": y}, "must be None, the name of a scorer"),
        ({"scoring": lambda model, X, y: y}, lambda X, y: {"X_val": X, "y_val": y}, "returns one number"),
        ({"scoring": "f1"}, lambda X, y: {}, "scoring='f1'.* needs validation rows"),
        ({"restore_best": True}, lambda X, y: {}, "restore_best=True.* needs validation rows"),
        ({"restore_best": 1, "early_stopping": True}, lambda X, y: {}, "restore_best"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_refused_before_training(
    parameters: dict[str, Any], given: Any, message: str, tables: Any
) -> None:
    """Errors name the argument and what to do; no epoch is trained first."""
    (X, y), (X_val, y_val) = tables
    model = SGDClassifier(**{**FIT, **parameters}, max_iter=1)
    with pytest.raises((InvalidDataError, InvalidParameterError), match=message):
        model.fit(X, y, **given(X_val, y_val))
    assert not hasattr(model, "coef_")


def test_what_has_no_validation(tables: Any) -> None:
    """partial_fit has none; rows that are not in this process cannot be held out for a measure of one's own."""
    (X, y), _ = tables
    for parameters in ({"scoring": "f1"}, {"restore_best": True}):
        with pytest.raises(InvalidParameterError, match="needs validation rows"):
            SGDClassifier(**parameters).partial_fit(X, y, classes=[0, 1])
    with pytest.raises(InvalidDataError, match="Pass validation rows of your own"):
        SGDClassifier(scoring="f1", early_stopping=True).fit([(X, y), (X, y)])
    with pytest.raises(InvalidDataError, match="cannot draw validation rows from 4 rows"):
        SGDClassifier(scoring="f1", early_stopping=True).fit(X[:4], [0, 1, 1, 1])


def test_scores_that_are_no_numbers_are_never_the_best(tables: Any) -> None:
    """Epochs without a score are passed over; if there is no other, the last model stays, with a warning."""
    (X, y), (X_val, y_val) = tables
    given = {"X_val": X_val, "y_val": y_val}
    calls: list[Any] = []

    def told(*scores: float) -> Any:
        calls.clear()
        return lambda *_: calls.append(0) or (np.nan, *scores)[len(calls) - 1]  # the first call is a trial

    model = SGDClassifier(**FIT, max_iter=3, restore_best=True, scoring=told(np.nan, 0.1, np.nan)).fit(X, y, **given)
    assert (model.best_epoch_, model.best_score_) == (2, 0.1)
    np.testing.assert_array_equal(model.coef_, SGDClassifier(**FIT, max_iter=2).fit(X, y).coef_)
    with pytest.warns(RuntimeWarning, match="no epoch has a validation score"):
        model.set_params(scoring=told(np.nan, np.nan, np.nan)).fit(X, y, **given)
    np.testing.assert_array_equal(model.coef_, SGDClassifier(**FIT, max_iter=3).fit(X, y).coef_)
    assert not hasattr(model, "best_epoch_")


def test_a_pipeline_transforms_validation_rows(tables: Any) -> None:
    """With scikit-learn's routing, a pipeline transforms X_val as it does X."""
    (X, y), (X_val, y_val) = tables
    scale = StandardScaler().fit(X)
    expected = SGDClassifier(**FIT, max_iter=3).fit(scale.transform(X), y, X_val=scale.transform(X_val), y_val=y_val)
    with config_context(enable_metadata_routing=True):
        model = SGDClassifier(**FIT, max_iter=3).set_fit_request(X_val=True, y_val=True)
        pipeline = Pipeline([("scale", StandardScaler()), ("sgd", model)], transform_input=["X_val"])
        pipeline.fit(X, y, X_val=X_val, y_val=y_val)
    assert pipeline["sgd"].history_[:, "valid_score"] == expected.history_[:, "valid_score"]


def test_the_best_model_outlives_an_interruption(tables: Any, tmp_path: Path) -> None:
    """A fit that resumes after its best epoch still ends with the best model; other validation rows are refused."""
    (X, y), (X_val, y_val) = tables
    options = {**FIT, "scoring": "roc_auc", "restore_best": True, "n_jobs": 2, "sync": LocalSGD(32)}
    whole = SGDClassifier(**options, max_iter=EPOCHS).fit(X, y, X_val=X_val, y_val=y_val)
    n_first = whole.best_epoch_ + 1
    assert n_first < EPOCHS
    first = SGDClassifier(**options, max_iter=n_first, client=Gang(checkpoint=Checkpoint(tmp_path)))
    first.fit(X, y, X_val=X_val, y_val=y_val)
    resumed = SGDClassifier(**options, max_iter=EPOCHS, client=Gang(resume_from=tmp_path))
    resumed.fit(X, y, X_val=X_val, y_val=y_val)
    assert resumed.coef_.tobytes() == whole.coef_.tobytes()
    assert resumed.history_[:, "valid_score"] == whole.history_[:, "valid_score"]
    # What the first run sent is not known to the second.
    assert np.isnan(resumed.history_[:, "bytes_sent"]).tolist() == [k < n_first for k in range(EPOCHS)]
    with pytest.raises(CheckpointError, match="validation"):
        resumed.fit(X, y, X_val=X_val[1:], y_val=y_val[1:])


def test_the_history_adds_up_to_the_ledger(tables: Any) -> None:
    """Bytes of all epochs are those of the ledger, losses those of `loss_curve_`; a frame has a row per epoch."""
    (X, y), _ = tables
    model = SGDClassifier(**FIT, max_iter=4, n_jobs=2, sync=LocalSGD(32)).fit(X, y)
    frame = model.history_.to_frame()
    assert frame["epoch"].tolist() == [1, 2, 3, 4]
    assert frame["bytes_sent"].sum() == model.ledger_.totals()["bytes_sent"] > 0
    assert frame["train_loss"].tolist() == model.loss_curve_
    totals = model.ledger_.totals()
    spent = (totals["wire_s"] + totals["wait_s"]) / 2
    assert frame["communication_s"].sum() == pytest.approx(spent, rel=0.2, abs=1e-3)


def test_rows_and_names(tables: Any) -> None:
    """`Rows` are taken in both places; names of columns are compared as in predict."""
    (X, y), (X_val, y_val) = tables
    model = SGDClassifier(**FIT, max_iter=3)
    plain = model.fit(X, y, X_val=X_val, y_val=y_val).history_[:, "valid_score"]
    assert model.fit(dsgd.Rows(X, y), X_val=dsgd.Rows(X_val, y_val)).history_[:, "valid_score"] == plain
    names = list("abcdefgh")
    named, named_val = pd.DataFrame(X, columns=names), pd.DataFrame(X_val, columns=names)
    assert model.fit(named, y, X_val=named_val, y_val=y_val).history_[:, "valid_score"] == plain
    with pytest.raises(InvalidDataError, match="feature names should match"):
        model.fit(named, y, X_val=named_val[names[::-1]], y_val=y_val)


def test_threads_that_share_a_model(tables: Any) -> None:
    """With Hogwild, whose runs differ, the restored model still has the score that the history says is best."""
    (X, y), (X_val, y_val) = tables
    model = SGDClassifier(**FIT, max_iter=EPOCHS, n_jobs=2, sync=Hogwild(), restore_best=True)
    model.fit(X, y, X_val=X_val, y_val=y_val)
    assert model.score(X_val, y_val) == model.best_score_ == max(model.history_[:, "valid_score"])
