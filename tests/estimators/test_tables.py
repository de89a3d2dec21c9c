"""Fits on tables as they are: with names of targets, in memory, in files, on workers and out of core."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone

from dsgd import Gang, Rows, SGDClassifier, SGDRegressor, load
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.kernel_approximation import RandomFeatures
from dsgd.linear_model import Lasso
from dsgd.model_selection import SGDSearchCV
from dsgd.preprocessing import ColumnEncoder
from gang_cluster import module_client

pd = pytest.importorskip("pandas")
dd = pytest.importorskip("dask.dataframe")
pytest.importorskip("pyarrow")

N = 600
OPTIONS: dict[str, Any] = {"loss": "log_loss", "max_iter": 8, "tol": None, "random_state": 0}


def table() -> Any:
    """Return numbers, categories, missing ones of both, a class, a weight and a target."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": rng.normal(3, 2, N),
            "b": rng.integers(0, 5, N),
            "city": rng.choice(["Oslo", "Rome", None], N),
            "w": rng.integers(1, 3, N),
        }
    )
    frame["y"] = np.where(frame.a + 2 * (frame.city == "Oslo") - frame.b > 1, "yes", "no")
    frame["target"] = 2.0 * frame.b - 1.0
    frame.loc[::9, "a"] = np.nan
    return frame


COLUMNS = ["a", "b", "city"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Parquet files of several row groups each, and the same rows as CSV and Arrow."""
    place = tmp_path_factory.mktemp("tables")
    frame = table()
    (place / "parts").mkdir()
    frame[:400].to_parquet(place / "parts" / "1.parquet", row_group_size=150)
    frame[400:].to_parquet(place / "parts" / "2.parquet", row_group_size=150)
    frame.to_csv(place / "rows.csv.gz", index=False)
    frame.to_csv(place / "rows.tsv", index=False, sep="\t")
    frame.to_feather(place / "rows.feather", chunksize=100, compression="uncompressed")
    return place


client = module_client(2, processes=False, set_as_default=True)


def model(**options: Any) -> SGDClassifier:
    """Return a classifier of all columns but one."""
    return SGDClassifier(**OPTIONS, encoder=ColumnEncoder({"target": "drop"}), **options)


@pytest.fixture(scope="module")
def wanted() -> SGDClassifier:
    """Return the model of the table in memory, encoded before."""
    frame = table()
    X = ColumnEncoder().fit_transform(frame[COLUMNS])
    return SGDClassifier(**OPTIONS).fit(X, frame.y, sample_weight=frame.w.astype(float))


@pytest.mark.parametrize("where", ["parts/*.parquet", "parts", "rows.csv.gz", "rows.tsv", "rows.feather"])
@pytest.mark.parametrize("out_of_core", [False, True])
def test_files_train_the_model_of_their_rows(
    folder: Path, wanted: SGDClassifier, where: str, *, out_of_core: bool
) -> None:
    """Whatever the format, the model is that of the rows in memory, encoded before, to the bit; so is its score."""
    found = model(client=Gang(out_of_core=out_of_core)).fit(str(folder / where), "y", sample_weight="w")
    np.testing.assert_array_equal(found.coef_, wanted.coef_)
    assert found.score(folder / where, "y") == wanted.score(found.encoder_.transform(table()), table().y)
    np.testing.assert_array_equal(found.predict(str(folder / where)), found.predict(table()))


def test_names_of_targets_are_columns_of_tables_in_memory(wanted: SGDClassifier) -> None:
    """``fit(table, "y")`` is ``fit`` without that column, and with its values; without an encoder as well."""
    frame = table()
    found = model().fit(frame, "y", sample_weight="w")
    np.testing.assert_array_equal(found.coef_, wanted.coef_)
    assert list(found.feature_names_in_) == ["a", "b", "city", "target"]
    plain = SGDRegressor(random_state=0).fit(frame[["b", "w", "target"]], "target")
    same = SGDRegressor(random_state=0).fit(frame[["b", "w"]], frame.target)
    np.testing.assert_array_equal(plain.coef_, same.coef_)
    assert plain.score(frame[["b", "w", "target"]], "target") == same.score(frame[["b", "w"]], frame.target)


@pytest.mark.slow
def test_workers_read_the_pieces_of_files(folder: Path, client: Client, wanted: SGDClassifier) -> None:
    """With a client rows come from the row groups, and the encoder is that of one machine; so it is of dask frames."""
    frame = table()
    alone = model().fit(str(folder / "parts"), "y", sample_weight="w")
    for out_of_core in (False, True):
        found = model(client=Gang(client, out_of_core=out_of_core)).fit(str(folder / "parts"), "y", sample_weight="w")
        assert found.encoder_._layout == alone.encoder_._layout
        assert found.score(frame, "y") > wanted.score(alone.encoder_.transform(frame), frame.y) - 0.05
        assert sum(rank["rows"] for rank in found.fit_report_["stats"]) == frame.w.sum()
    lazy = dd.from_pandas(frame, npartitions=3)
    found = model().fit(lazy, "y", sample_weight="w")
    assert found.encoder_._layout == alone.encoder_._layout
    assert list(found.predict(lazy).compute()) == list(found.predict(frame))
    assert found.score(lazy, "y") == found.score(frame, "y")
    assert found.predict_proba(lazy.drop(columns="y")).compute().shape == (N, 2)
    with pytest.raises(InvalidDataError, match="must be names of columns"):
        model(client=client).fit(str(folder / "parts"), frame.y)


def test_the_model_keeps_its_encoder(folder: Path) -> None:
    """A pickle predicts, a further `partial_fit` and a warm start keep the encoder, and `to_sklearn` has it first."""
    frame = table()
    found = model().fit(folder / "parts", "y")
    assert found.n_features_in_ == 5
    assert found.coef_.shape == (1, found.encoder_.n_features_out_)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(frame), found.predict(frame))
    np.testing.assert_array_equal(found.to_sklearn().predict(frame), found.predict(frame))
    part = model().partial_fit(frame[:300], "y", classes=["no", "yes"])
    encoder = part.encoder_
    part.partial_fit(frame[300:], "y")
    assert part.encoder_ is encoder
    warm = model(warm_start=True).fit(frame, "y")
    assert warm.fit(frame[:50], "y").encoder_.n_samples_seen_ == N
    assert clone(found).fit(frame[:50], "y").encoder_.n_samples_seen_ == 50


def test_numbers_in_files_need_no_encoder(folder: Path, tmp_path: Path) -> None:
    """Without an encoder numbers of files are taken as they are; anything else is refused, with advice."""
    frame = table()[["b", "w", "target"]]
    frame.to_parquet(tmp_path / "n.parquet")
    found = SGDRegressor(random_state=0).fit(tmp_path / "n.parquet", "target")
    search = SGDSearchCV(SGDRegressor(random_state=0), {"alpha": [1e-4]}, cv=2).fit(tmp_path / "n.parquet", "target")
    np.testing.assert_array_equal(search.best_estimator_.coef_, found.coef_)
    same = SGDRegressor(random_state=0).fit(frame[["b", "w"]].astype(float), frame.target)
    np.testing.assert_array_equal(found.coef_, same.coef_)
    np.testing.assert_array_equal(found.predict(frame[["b", "w"]].to_numpy()), found.predict(tmp_path / "n.parquet"))
    with pytest.raises(InvalidDataError, match="'city' holds no numbers"):
        SGDClassifier().fit(folder / "parts", "y")
    table()[["a", "target"]].to_parquet(tmp_path / "m.parquet")
    with pytest.raises(InvalidDataError, match="'a' has missing values"):
        SGDRegressor().fit(tmp_path / "m.parquet", "target")


def test_what_cannot_be_encoded_is_refused(folder: Path) -> None:
    """Errors name the parameter, the column or the file."""
    frame = table()
    with pytest.raises(InvalidParameterError, match="encoder"):
        SGDClassifier(encoder="onehot").fit(frame, "y")
    with pytest.raises(InvalidDataError, match="'label'"):
        model().fit(folder / "parts", "label")
    with pytest.raises(InvalidDataError, match="no column 'label'"):
        model().fit(frame, "label")
    with pytest.raises(FileNotFoundError):
        model().fit(folder / "none*.parquet", "y")
    with pytest.raises(InvalidDataError, match="'a' has missing"):
        model().fit(frame, "a")
    with pytest.raises(IncompatiblePartsError, match="Rows"):
        model().fit(Rows(np.zeros((4, 2)), [0, 1, 0, 1]))
    with pytest.raises(IncompatiblePartsError, match="Rows"):
        SGDSearchCV(model(), {"alpha": [0.1]}).fit(Rows(np.zeros((4, 2)), [0, 1, 0, 1]))
    with pytest.raises(InvalidDataError, match="without names"):
        SGDClassifier().fit(np.zeros((4, 2)), "y")
    plain = SGDClassifier(random_state=0).fit(np.zeros((4, 2)), [0, 1, 0, 1])
    with pytest.raises(InvalidDataError, match="fitted on rows without names"):
        plain.predict(folder / "parts")


def codes(n: int = 400) -> Any:
    """Return codes that are mostly digits, a number, and labels of which one is no number."""
    rng = np.random.default_rng(0)
    g = rng.choice(["10", "20", "30", "X1"], n, p=[0.4, 0.3, 0.25, 0.05])
    return pd.DataFrame({"g": g, "w": rng.normal(size=n), "y": np.where(g == "X1", "N", np.where(g == "10", "1", "0"))})


@pytest.mark.slow
def test_the_types_of_fit_are_those_of_all_later_files(tmp_path: Path, client: Client) -> None:
    """A file of digits is read as the names that the model knows, by models of every origin, and so are its labels."""
    rows = codes()
    digits = rows[rows.g != "X1"]
    rows.to_csv(tmp_path / "train.csv", index=False)
    digits.to_csv(tmp_path / "test.csv", index=False)
    found = SGDClassifier(**OPTIONS, encoder="auto").fit(tmp_path / "train.csv", "y")
    there = SGDClassifier(**OPTIONS, encoder="auto", client=client).fit(
        [tmp_path / "test.csv", tmp_path / "train.csv"], "y"
    )
    there.client = None
    found.save(tmp_path / "model.dsgd")
    best = SGDSearchCV(SGDClassifier(**OPTIONS, encoder="auto"), {"alpha": [1e-4]}, cv=2).fit(
        tmp_path / "train.csv", "y"
    )
    part = SGDClassifier(**OPTIONS, encoder=ColumnEncoder({"g": "onehot"}))
    for _ in range(8):
        part.partial_fit(tmp_path / "train.csv", "y", classes=["0", "1", "N"])
    part.partial_fit(tmp_path / "test.csv", "y")
    watching = SGDClassifier(**OPTIONS, encoder="auto", scoring="accuracy")
    watching.fit(tmp_path / "train.csv", "y", X_val=str(tmp_path / "test.csv"), y_val="y")
    models = [found, pickle.loads(pickle.dumps(found)), load(tmp_path / "model.dsgd"), there, best, part, watching]
    for k, model in enumerate(models):
        assert model.score(tmp_path / "test.csv", "y") == model.score(digits, digits.y) > 0.98, k
        read = pd.read_csv(tmp_path / "test.csv")
        assert read.g.dtype == int
        labels = model.predict(digits)
        np.testing.assert_array_equal(model.predict(tmp_path / "test.csv"), labels)
        np.testing.assert_array_equal(model.predict(read[["g", "w"]]), labels)
        assert model.score(read, "y") == model.score(digits, digits.y)
    assert watching.best_score_ > 0.98


def test_what_cannot_be_read_as_in_fit_is_said(tmp_path: Path) -> None:
    """A column of names that are all unknown is a warning with its file; names in place of numbers are an error."""
    rows = codes()
    found = SGDClassifier(**OPTIONS, encoder="auto").fit(rows, "y")
    rows.assign(g="z" + rows.g).to_csv(tmp_path / "z.csv", index=False)
    with pytest.warns(UserWarning, match=r"z\.csv.*: no value of column 'g' was there in fit"):
        found.predict(tmp_path / "z.csv")
    with pytest.warns(UserWarning, match="the table: no value of column 'g' was there in fit"):
        found.predict(rows.assign(g="z"))
    found.predict(rows[:1].assign(g="z"))  # one row is no table
    found.predict(rows[rows.g != "X1"].astype({"g": int}))  # all are known, by another type
    numbers = rows.assign(g=rows.g.where(rows.g.isin(["10", "20"]), "7").astype(int))
    with pytest.warns(UserWarning, match="column 'g' was text in fit and has numbers here"):
        found.predict(numbers)
    rows.assign(w="high").to_csv(tmp_path / "w.csv", index=False)
    with pytest.raises(InvalidDataError, match=r"w\.csv: column 'w' was taken for numbers, and has the value 'high'"):
        found.predict(tmp_path / "w.csv")


def test_coefficients_have_the_names_of_features_columns_and_classes() -> None:
    """Of encoders, of frames and of arrays; of two classes there is one row a feature, and none of a regressor's."""
    frame = table()
    found = model().fit(frame.drop(columns="w"), "y").coefficients()
    assert found.columns.tolist() == ["feature", "column", "class", "coefficient"]
    assert found["class"].unique().tolist() == ["yes"]
    assert found.column[found.feature.str.startswith("city_")].unique().tolist() == ["city"]
    several = SGDClassifier(**OPTIONS).fit(frame[["w"]].to_numpy(), frame.b)
    by_class = several.coefficients().set_index("class").coefficient
    np.testing.assert_array_equal(by_class.loc[several.classes_], several.coef_.ravel())
    lasso = Lasso(alpha=1e-3).fit(frame[["b", "w"]], frame.target).coefficients()
    assert lasso.columns.tolist() == ["feature", "column", "coefficient"]
    assert lasso.feature.tolist() == ["b", "w"]
    hashed = SGDClassifier(**OPTIONS, encoder=ColumnEncoder(categorical="hash", n_hashed=8)).fit(
        frame[["b", "city", "y"]], "y"
    )
    assert hashed.coefficients().column.isna().tolist() == [False] + [True] * 8
    with pytest.raises(InvalidDataError, match="random"):
        SGDClassifier(**OPTIONS, features=RandomFeatures(4)).fit(frame[["b"]], frame.y).coefficients()
