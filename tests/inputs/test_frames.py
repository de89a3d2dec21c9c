"""Tables: what columns may hold, and collections that are cut in different ways."""

from __future__ import annotations

import re
import warnings
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

pd = pytest.importorskip("pandas")
dd = pytest.importorskip("dask.dataframe")

from sklearn.base import clone  # noqa: E402 - what comes below needs pandas

from dsgd import SGDClassifier, SGDRegressor  # noqa: E402
from dsgd.errors import InvalidDataError, PartitionMismatchError  # noqa: E402
from dsgd.inputs.blocks import make_block  # noqa: E402
from dsgd.inputs.sources import to_delayed_blocks  # noqa: E402
from dsgd.kernel_approximation import RandomFeatures  # noqa: E402
from dsgd.linear_model import Lasso  # noqa: E402
from dsgd.model_selection import SGDSearchCV  # noqa: E402
from dsgd.svm import SVC, LinearSVC  # noqa: E402
from gang_cluster import module_client  # noqa: E402

N, CUTS = 120, [0, 20, 55, 90, 120]


client = module_client(2, processes=False, set_as_default=True)


def table() -> Any:
    """Return columns of all kinds of numbers, a class, a target and a weight."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, N))
    return pd.DataFrame(
        {
            "a": a,
            "b": b.astype(np.float32),
            "whole": rng.integers(0, 9, N),
            "flag": rng.random(N) < 0.5,
            "maybe": pd.array(rng.random(N) < 0.5, dtype="boolean"),
            "count": pd.array(rng.integers(0, 9, N), dtype="Int64"),
            "part": pd.array(rng.random(N), dtype="Float64"),
            "y": np.where(a + b > 0, 1, 0),
            "target": a - b,
            "w": rng.integers(1, 4, N).astype(float),
        },
        index=np.arange(N)[::-1].copy(),
    )


FEATURES = ["a", "b", "whole", "flag", "maybe", "count", "part"]


def partitions(frame: Any) -> Any:
    """Return a dask frame of four uneven partitions whose sizes Dask does not know."""
    parts = [frame.iloc[start:stop] for start, stop in pairwise(CUTS)]
    return dd.from_map(lambda part: part, parts, meta=frame.iloc[:0])


def expected(frame: Any, columns: list[str]) -> np.ndarray:
    """Return columns as floats, one by one."""
    return np.column_stack([np.array(frame[name].tolist(), dtype=float) for name in columns])


def rows_of(X: Any, y: Any, w: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of all blocks, one after the other."""
    blocks = dask.compute(*to_delayed_blocks(X, y, w))
    assert all(len(block[0]) == len(block[1]) == len(block[2]) for block in blocks)
    return tuple(np.concatenate([block[k] for block in blocks]) for k in range(3))


ROWS = {
    "frame": lambda t: partitions(t)[["a", "b"]],
    "frame-dropped": lambda t: partitions(t).drop(columns=["y", "w", "target"])[["a", "b"]],
    "array": lambda t: da.from_array(t[["a", "b"]].to_numpy(), chunks=((20, 35, 35, 30), 2)),
    "array-of-frame": lambda t: partitions(t)[["a", "b"]].to_dask_array(),
}
COLUMNS = {
    "dask-series": lambda t, name: partitions(t)[name],
    "dask-frame": lambda t, name: partitions(t)[[name]],
    "dask-array": lambda t, name: da.from_array(t[name].to_numpy(), chunks=((20, 35, 35, 30),)),
    "array-of-series": lambda t, name: partitions(t)[name].to_dask_array(),
    "fewer-partitions": lambda t, name: dd.from_pandas(t[name].reset_index(drop=True), npartitions=2),
    "more-partitions": lambda t, name: dd.from_pandas(t[name].reset_index(drop=True), npartitions=7),
    "series": lambda t, name: t[name],
    "frame": lambda t, name: t[[name]],
    "numpy": lambda t, name: t[name].to_numpy(),
    "list": lambda t, name: t[name].tolist(),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("column", COLUMNS)
def test_rows_keep_their_targets_whatever_holds_them(rows: str, column: str) -> None:
    """Every kind of rows goes with every kind of targets and of weights, and each row keeps its own."""
    t = table()
    for other in (column, "list"):
        X, y, w = rows_of(ROWS[rows](t), COLUMNS[column](t, "y"), COLUMNS[other](t, "w"))
        np.testing.assert_array_equal(X, expected(t, ["a", "b"]))
        np.testing.assert_array_equal(y, t["y"].to_numpy())
        np.testing.assert_array_equal(w, t["w"].to_numpy())


@pytest.mark.parametrize("column", ["series", "numpy", "list", "fewer-partitions", "more-partitions"])
def test_other_numbers_of_rows_are_refused(column: str) -> None:
    """Targets that are too few or too many say how many there are, of rows and of them."""
    t = table()
    for wrong in (t.iloc[1:], pd.concat([t, t.iloc[:1]])):
        with pytest.raises(PartitionMismatchError, match=f"X has 120 rows and y has {len(wrong)}"):
            to_delayed_blocks(partitions(t)[["a", "b"]], COLUMNS[column](wrong, "target"), None)


@pytest.mark.slow
def test_partitions_that_dask_puts_together_fit(tmp_path: Any, client: Client) -> None:
    """Columns of a file of Parquet, of which Dask reads several parts at once, are trained on and scored together."""
    pytest.importorskip("pyarrow")
    t = table()
    for k, (start, stop) in enumerate(pairwise(CUTS)):
        t.iloc[start:stop].to_parquet(tmp_path / f"{k}.parquet")
    read = dd.read_parquet(tmp_path)
    assert len(read[["a", "b", "part"]].to_delayed()) != len(read.y.to_delayed())  # what has to be dealt with
    model = SGDClassifier(max_iter=5, tol=None, random_state=0, client=client)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for X in (read[["a", "b", "part"]], read.drop(columns=["y", "target", "w", "whole", "flag", "maybe", "count"])):
            for y in (read.y, t.y, t.y.tolist(), read.y.to_dask_array(), read[["y"]]):
                fitted = clone(model).fit(X, y)
                assert fitted.score(X, y) > 0.8
            fitted = clone(model).fit(X, read.y, sample_weight=read.w)
            assert list(fitted.feature_names_in_) == list(X.columns)
            assert fitted.score(X, read.y, read.w) == fitted.score(t[list(X.columns)], t.y, t.w)
            assert list(fitted.predict(X).compute()) == list(fitted.predict(t[list(X.columns)]))


def test_a_score_knows_columns_by_their_names() -> None:
    """Scoring a dask frame warns of nothing, and a frame whose columns have changed places is refused."""
    t = table()
    model = SGDClassifier(max_iter=2, tol=None, random_state=0).fit(t[["a", "b"]], t.y)
    reference = model.score(t[["a", "b"]], t.y)
    with dask.config.set(scheduler="synchronous"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.score(partitions(t)[["a", "b"]], partitions(t).y) == reference
        with pytest.raises(ValueError, match="feature names"):
            model.score(partitions(t)[["b", "a"]], partitions(t).y)


def test_a_later_part_has_the_same_columns(client: Client) -> None:
    """A part of a fit on a dask frame whose columns have changed places is refused, as it is in this process."""
    t = table()
    for frame, more in ((t, {}), (partitions(t), {"client": client})):
        model = SGDClassifier(random_state=0, **more).partial_fit(frame[["a", "b"]], frame.y, classes=[0, 1])
        with pytest.raises(ValueError, match="feature names should match"):
            model.partial_fit(frame[["b", "a"]], frame.y)


# ---- what columns may hold


def test_columns_become_numbers() -> None:
    """Numbers, bools and those of pandas that may be missing become the floats that they are, in any mixture."""
    t = table()
    for k in range(1, len(FEATURES) + 1):
        for columns in (FEATURES[:k], FEATURES[-k:]):
            X, _, _ = make_block(t[columns])
            assert X.dtype.kind in "fiub"
            np.testing.assert_array_equal(X, expected(t, columns))
    assert make_block(t[["b", "flag"]])[0].dtype == np.float32
    assert make_block(t[["a"]], t["count"], t["part"])[1].dtype == np.int64
    assert make_block(t[["a"]], t["maybe"])[1].dtype == bool
    with pytest.raises(InvalidDataError, match="column 'y' has dtype"):
        make_block(t.assign(y="up")[["a", "y"]])


@pytest.mark.parametrize("column", ["a", "maybe", "count", "part"])
def test_a_missing_value_names_its_column(column: str, client: Client) -> None:
    """What is missing, as NaN or as NA, in a frame here or on a cluster, is said to be in that column."""
    t = table()
    t.loc[t.index[70], column] = None
    match = f"column '{column}' has missing values"
    for make in (SGDClassifier, SVC, LinearSVC, SGDRegressor):
        with pytest.raises(InvalidDataError, match=match):
            make().fit(t[FEATURES], t.target if make is SGDRegressor else t.y)
    whole = SGDClassifier(client=client)
    with pytest.raises(InvalidDataError, match=match):
        whole.fit(partitions(t)[FEATURES], t.y)
    fitted = SGDClassifier(max_iter=2, tol=None).fit(table()[FEATURES], t.y)
    with pytest.raises(InvalidDataError, match=match):
        fitted.predict(t[FEATURES])


NO_NUMBERS = {
    "text": ["x", "y"] * 60,
    "object": pd.Series(["x", "y"] * 60, dtype=object),
    "category": pd.Series(["x", "y"] * 60, dtype="category"),
    "mixed": pd.Series([1, "x"] * 60, dtype=object),
    "date": pd.date_range("2020", periods=N),
    "duration": pd.to_timedelta(range(N), "D"),
    "list": [[1], [2]] * 60,
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_a_column_without_numbers_is_named(name: str) -> None:
    """A fit and a prediction say which column it is and what to do, whichever library holds it."""
    t = table()[["a"]].reset_index(drop=True)
    odd, y = t.assign(number="3", odd=NO_NUMBERS[name]), table().y.to_numpy()
    forms = [odd] if name == "mixed" else [odd, pytest.importorskip("pyarrow").Table.from_pandas(odd)]
    advice = {
        SGDClassifier: "Pass encoder='auto'",
        SVC: "make_pipeline(dsgd.preprocessing.ColumnEncoder(), SVC(...))",
        Lasso: "make_pipeline(dsgd.preprocessing.ColumnEncoder(), Lasso(...))",
        RandomFeatures: "make_pipeline(dsgd.preprocessing.ColumnEncoder(), RandomFeatures(...))",
    }
    for form in forms:
        for make, said in advice.items():
            with pytest.raises(InvalidDataError, match=f"column 'odd' holds no numbers. .*{re.escape(said)}"):
                make().fit(form, y)
        fitted = SGDClassifier(max_iter=2, tol=None).fit(odd.assign(odd=1.0), y)
        with pytest.raises(InvalidDataError, match="column 'odd' holds no numbers"):
            fitted.predict(form)
    with pytest.raises(InvalidDataError, match="column 'odd' holds no numbers"):
        SGDSearchCV(SGDClassifier(), {"alpha": [0.1]}).fit(odd, y)


def test_numbers_in_text_and_in_categories_are_numbers() -> None:
    """They are converted as numpy does; other errors than those of values stay what they are."""
    t = table()[["a"]].reset_index(drop=True).assign(text=["1", "2"] * 60)
    t["kind"] = pd.Series([3, 4] * 60, dtype="category")
    y = table().y.to_numpy()
    found = SGDClassifier(random_state=0, max_iter=3, tol=None).fit(t, y)
    same = SGDClassifier(random_state=0, max_iter=3, tol=None).fit(t.astype(float), y)
    np.testing.assert_array_equal(found.coef_, same.coef_)
    with pytest.raises(ValueError, match="feature names should match"):
        found.predict(t.rename(columns={"a": "b"}).assign(kind="x"))


@pytest.mark.slow
def test_a_dask_frame_with_known_categories_trains_as_before_them(client: Client) -> None:
    """After ``categorize()`` texts are the same features, and columns of numbers are chosen as from any frame."""
    plain = partitions(table().assign(kind=["u", "v", "w"] * (N // 3)))
    known = plain.categorize(["kind"])
    # Which of two ranks has which partition varies, and with it the model.
    options = {"client": client, "n_jobs": 1, "random_state": 0, "max_iter": 3, "tol": None}
    for columns, encoder in ((["a", "kind"], "auto"), (["a", "b"], None)):
        found, same = (SGDClassifier(encoder=encoder, **options).fit(t[columns], t.y) for t in (known, plain))
        np.testing.assert_array_equal(found.coef_, same.coef_)
        np.testing.assert_array_equal(found.predict(known[columns]).compute(), same.predict(plain[columns]).compute())
    with pytest.raises(InvalidDataError, match="column 'kind' has dtype category, expected numbers"):
        SGDClassifier(**options).fit(known[["a", "kind"]], known.y)


@pytest.mark.parametrize("encoder", [None, "auto"])
def test_a_dask_frame_without_columns_is_refused(client: Client, encoder: str | None) -> None:
    """It is said that there are no features, or no column of the name of the target."""
    t = partitions(table())
    model = SGDClassifier(client=client, encoder=encoder)
    for rows, y in ((t[[]], t.y), (t[["y"]], "y")):
        with pytest.raises(InvalidDataError, match=r"0 feature\(s\)"):
            model.fit(rows, y)
    with pytest.raises(InvalidDataError, match="there is no column 'y'; X has none"):
        model.fit(t[[]], "y")


@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
@pytest.mark.parametrize("name", ["maybe", "count"])
def test_targets_that_may_be_missing(name: str, client: Client) -> None:
    """Targets of a type that may be missing are targets; where one is missing it is said."""
    t = table()
    here = SGDClassifier(max_iter=2, tol=None, random_state=0).fit(t[["a", "b"]], t[name])
    there = SGDClassifier(max_iter=2, tol=None, random_state=0, client=client)
    there.fit(partitions(t)[["a", "b"]], partitions(t)[name])
    np.testing.assert_array_equal(here.classes_, np.unique(t[name].tolist()))
    np.testing.assert_array_equal(there.classes_, here.classes_)
    t.loc[t.index[70], name] = pd.NA
    with pytest.raises(InvalidDataError, match="y has missing values"):
        there.fit(partitions(t)[["a", "b"]], partitions(t)[name])


@pytest.mark.parametrize("column", ["dask-series", "dask-array"])
def test_targets_of_a_cluster_go_with_rows_of_this_process(column: str) -> None:
    """A dask series or array is a target, or weights, of rows in this process too."""
    t = table()
    y = COLUMNS[column](t, "y")
    options: dict[str, Any] = {"max_iter": 3, "tol": None, "random_state": 0}
    expected_model = SGDClassifier(**options).fit(t[["a", "b"]], t.y, sample_weight=t.w)
    found = SGDClassifier(**options).fit(t[["a", "b"]], y, sample_weight=COLUMNS["dask-array"](t, "w"))
    np.testing.assert_array_equal(found.coef_, expected_model.coef_)
