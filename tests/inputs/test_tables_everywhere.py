"""Names of columns and files of numbers, for every estimator and every function that takes rows."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from sklearn.base import BaseEstimator, clone

import dsgd
from dsgd import Rows, SGDClassifier
from dsgd.errors import InvalidDataError
from dsgd.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge
from dsgd.model_selection import SVMSearchCV
from dsgd.preprocessing import ColumnEncoder
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, NuSVR, OneClassSVM, svm_path
from dsgd.tuning import tune
from gang_cluster import module_client

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
dd = pytest.importorskip("dask.dataframe")

N = 240
FEATURES = ["a", "b", "k"]
CLASSIFIERS = [SVC(), NuSVC(nu=0.3), LinearSVC(random_state=0), LogisticRegression()]
REGRESSORS = [
    SVR(),
    NuSVR(),
    LinearSVR(random_state=0, max_iter=20_000),
    Lasso(alpha=0.01),
    ElasticNet(alpha=0.01),
    Ridge(),
    PoissonRegressor(),
]


def table() -> Any:
    """Return numbers of two types, a class, a value and a weight."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=N), "b": rng.normal(size=N), "k": rng.integers(0, 4, N)})
    frame["label"] = np.where(frame.a + 0.3 * frame.k > 0.3, "yes", "no")
    frame["value"] = np.exp(0.3 * frame.a + 0.1 * frame.k)
    frame["w"] = rng.integers(1, 3, N).astype(float)
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with classes, with values, and of features alone, of several row groups each."""
    place = tmp_path_factory.mktemp("files")
    for name, dropped in (("label", ["value"]), ("value", ["label"]), ("features", ["label", "value", "w"])):
        table().drop(columns=dropped).to_parquet(place / f"{name}.parquet", row_group_size=100)
        table().drop(columns=dropped).to_csv(place / f"{name}.csv", index=False)
    return place


client = module_client(2, processes=False, set_as_default=True)


def name_of(estimator: BaseEstimator) -> str:
    return type(estimator).__name__


@pytest.mark.parametrize("estimator", [*CLASSIFIERS, *REGRESSORS], ids=name_of)
@pytest.mark.parametrize("form", ["names", "arrow", "parquet", "csv"])
def test_a_table_trains_the_model_of_its_columns(folder: Path, estimator: Any, form: str) -> None:
    """Whether target and weights are columns of a table or of files; what predicts finds its columns by their names."""
    frame, target = table(), "label" if estimator in CLASSIFIERS else "value"
    whole = frame.drop(columns=["value" if target == "label" else "label"])
    X = {"names": whole, "arrow": pa.Table.from_pandas(whole)}.get(form, folder / f"{target}.{form}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = clone(estimator).fit(X, target, "w")
        same = clone(estimator).fit(frame[FEATURES], frame[target], frame.w)
        assert list(found.feature_names_in_) == FEATURES
        expected = same.predict(frame[FEATURES])
        check(found.predict(frame[FEATURES]), expected)
        if form in ("parquet", "csv"):
            check(found.predict(X), expected)
            assert found.score(X, target) == pytest.approx(same.score(frame[FEATURES], frame[target]), rel=1e-12)
            weighted = same.score(frame[FEATURES], frame[target], frame.w)
            assert found.score(str(X), target, "w") == pytest.approx(weighted, rel=1e-12)


def check(found: Any, expected: Any) -> None:
    """Raise unless labels are equal, or values but for the rounding of sums in another order."""
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    else:
        np.testing.assert_array_equal(found, expected)


def test_rows_without_targets_come_from_files(folder: Path) -> None:
    """Of all columns, or of all but the weights."""
    frame = table()
    found = OneClassSVM().fit(folder / "features.parquet")
    same = OneClassSVM().fit(frame[FEATURES])
    np.testing.assert_array_equal(
        found.decision_function(folder / "label.parquet"), same.decision_function(frame[FEATURES])
    )
    weighted = OneClassSVM().fit(folder / "label.parquet", "label", "w")
    np.testing.assert_array_equal(weighted.dual_coef_, OneClassSVM().fit(frame[FEATURES], None, frame.w).dual_coef_)


@pytest.mark.parametrize("estimator", [SVC(), LinearSVC(), LogisticRegression()], ids=name_of)
@pytest.mark.parametrize("form", ["files", "dask"])
def test_workers_read_what_they_train_on(folder: Path, client: Client, estimator: Any, form: str) -> None:
    """Columns have their names, and the model is as good as that of this process."""
    path, frame = folder / "label.parquet", table()
    X = path if form == "files" else dd.from_pandas(frame.drop(columns=["value"]), npartitions=3)
    found = clone(estimator).set_params(client=client).fit(X, "label", "w")
    assert list(found.feature_names_in_) == FEATURES
    same = clone(estimator).fit(frame[FEATURES], frame.label, frame.w)
    assert found.score(path, "label") == pytest.approx(same.score(path, "label"), abs=0.01)
    simulated = clone(estimator).set_params(client=SimulatedCluster(2)) if estimator.__class__ is LinearSVC else None
    if simulated is not None and form == "files":
        assert simulated.fit(X, "label", "w").score(path, "label") == pytest.approx(same.score(path, "label"), abs=0.01)


def test_what_cannot_be_read_is_refused(folder: Path, client: Client, tmp_path: Path) -> None:
    """Errors name the column, here and on workers; a model without names does not guess."""
    path, frame = folder / "label.parquet", table()
    numbers = "column 'label' holds no numbers"
    for make in (SVC, LinearSVC, Lasso):
        for X, y, options, match in (
            (path, "y", {}, "no column 'y'"),
            (frame, "y", {}, "no column 'y'"),
            (frame[FEATURES].to_numpy(), "y", {}, "without names"),
            ("rows.txt", "y", {}, r"'rows.txt' is read as svmlight.* \.parquet, \.csv"),
            (path, "a", {}, numbers),
            (path, "a", {"client": client}, numbers),
            (path, frame.k, {"client": client}, "must be names of columns"),
        ):
            with pytest.raises(InvalidDataError, match=match):
                make(**options).fit(X, y)
        target = "label" if make is not Lasso else "k"
        with pytest.raises(InvalidDataError, match="fitted on rows without names"):
            make().fit(frame[["a", "b"]].to_numpy(), frame.label == "yes").predict(path)
        holed = frame[["a", "b", target]].copy()
        holed.loc[3, "b"] = np.nan
        holed.to_parquet(tmp_path / "holed.parquet")
        for estimator in (make(), make(client=client)):
            with pytest.raises(InvalidDataError, match="column 'b' has missing values"):
                estimator.fit(tmp_path / "holed.parquet", target)


def test_searches_and_paths_take_them(folder: Path) -> None:
    """`SVMSearchCV`, `svm_path` and `Rows` find what they find on the columns."""
    path, frame = folder / "label.parquet", table()
    X, y = frame[[*FEATURES, "w"]], frame.label
    same = SVMSearchCV(SVC(), {"C": [0.1, 1.0, 10.0]}, cv=3).fit(X, y)
    for given in (path, frame.drop(columns="value")):
        found = SVMSearchCV(SVC(), {"C": [0.1, 1.0, 10.0]}, cv=3).fit(given, "label")
        np.testing.assert_array_equal(found.cv_results_["mean_test_score"], same.cv_results_["mean_test_score"])
        assert found.score(path, "label") == same.score(X, y)
        points = svm_path(given, "label", Cs=[0.1, 1.0]).points
        assert [p.dual_objective for p in points] == [p.dual_objective for p in svm_path(X, y, Cs=[0.1, 1.0]).points]
        rows = Rows(given, "label", "w")
        kept = SGDClassifier(random_state=0).fit(rows)
        weighted = SGDClassifier(random_state=0).fit(frame[FEATURES], y, sample_weight=frame.w)
        np.testing.assert_array_equal(kept.coef_, weighted.coef_)
        assert list(kept.feature_names_in_) == FEATURES


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "names", "parquet"])
def test_tuning_and_comparing_encode_what_fit_would(folder: Path, form: str) -> None:
    """Columns of strings are learned once, and the estimator that is recommended takes tables."""
    frame = table().assign(sign=np.where(table().b > 0, "plus", "minus")).drop(columns=["value", "w"])
    frame.to_parquet(folder / "mixed.parquet", row_group_size=100)
    X, y = (frame.drop(columns="label"), frame.label) if form == "table" else (frame, "label")
    X = folder / "mixed.parquet" if form == "parquet" else X
    base = SGDClassifier(encoder="auto", random_state=0)
    clone(base).fit(X, y)  # compiles, which no budget is meant for
    best = tune(base, X, y, budget=3.0).estimator
    assert best.encoder == "auto"
    assert best.fit(X, y).score(X, y) > 0.9
    found = dsgd.compare(["local:every=32"], X, y, estimator=base, seeds=1, epochs=1, ranks=2, test=(X, y))
    encoded = ColumnEncoder().fit_transform(frame.drop(columns="label")), frame.label.to_numpy()
    plain = SGDClassifier(random_state=0)
    same = dsgd.compare(["local:every=32"], *encoded, estimator=plain, seeds=1, epochs=1, ranks=2, test=encoded)
    assert [row["objective"] for row in found.rows] == [row["objective"] for row in same.rows]
    assert [row["test_accuracy"] for row in found.rows] == [row["test_accuracy"] for row in same.rows]
    for run in (lambda: tune(plain, X, y, budget=1.0), lambda: dsgd.compare(["local:every=32"], X, y)):
        with pytest.raises(InvalidDataError, match=r"column 'sign' holds no numbers. Pass encoder='auto'"):
            run()


def test_modules_of_torch_take_them(folder: Path, client: Client) -> None:
    """Columns of numbers are rows of a module, here and on workers."""
    torch = pytest.importorskip("torch")
    from dsgd.torch import TorchClassifier

    frame, path = table(), folder / "label.parquet"
    base = TorchClassifier(torch.nn.Linear(3, 2), max_epochs=5, random_state=0)
    same = clone(base).fit(frame[FEATURES], frame.label, frame.w)
    for given in (path, frame.drop(columns="value")):
        found = clone(base).fit(given, "label", "w")
        np.testing.assert_array_equal(found.predict_proba(frame[FEATURES]), same.predict_proba(frame[FEATURES]))
    there = clone(base).set_params(client=client).fit(path, "label", "w")
    for model in (found, there):
        assert list(model.feature_names_in_) == FEATURES
        np.testing.assert_array_equal(model.predict(path), model.predict(frame[FEATURES]))
