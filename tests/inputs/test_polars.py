"""Frames of Polars: every model and encoder takes them as it takes those of pandas, and says so where it cannot."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import dsgd
from dsgd.errors import InvalidDataError
from dsgd.linear_model import Ridge
from dsgd.preprocessing import ColumnEncoder
from dsgd.svm import SVC, LinearSVC

pl = pytest.importorskip("polars")
pytest.importorskip("pyarrow")

N = 24
FLOATS, WEIGHTS = np.random.default_rng(0).normal(size=N), np.random.default_rng(1).exponential(size=N)
WHEN = dt.datetime(2020, 2, 29, 5, 6, 7)
WORDS = pl.Series(["ape", "", "é", None] * (N // 4))
TIMES = pl.Series([WHEN + dt.timedelta(hours=31 * k) for k in range(N)], dtype=pl.Datetime("us"))
#: A column, and the roles that it may have.
COLUMNS: dict[str, tuple[Any, tuple[str | None, ...]]] = {
    "uint8": (pl.Series(np.arange(N, dtype=np.uint8)), (None, "onehot", "hash")),
    "float32 with NaN": (pl.Series([np.nan, 0.5] * (N // 2), dtype=pl.Float32), (None, "onehot")),
    "bool with nulls": (pl.Series([True, None, False] * (N // 3)), (None, "onehot")),
    "decimal": (pl.Series([Decimal(k) / 4 for k in range(N)], dtype=pl.Decimal(10, 2)), (None,)),
    "string": (WORDS, (None, "hash", "text")),
    "categorical": (WORDS.cast(pl.Categorical), (None, "hash", "text")),
    "enum": (WORDS.cast(pl.Enum(["", "ape", "unused", "é"])), (None, "hash", "text")),
    "date": (TIMES.dt.date(), (None, "onehot", "text")),
    "ns": (TIMES.cast(pl.Datetime("ns")), (None, "hash")),
    "zone": (TIMES.dt.replace_time_zone("Europe/Oslo"), (None, "hash")),
    "dates as strings": (TIMES.dt.to_string("%Y-%m-%dT%H:%M:%S"), ("date",)),
    "dates as categories": (TIMES.dt.to_string("%Y-%m-%d").cast(pl.Categorical), ("date",)),
    "binary": (pl.Series([b"a", b"b"] * (N // 2)), (None, "hash")),
}


def encoded(encoder: Any, frame: Any) -> tuple[Any, list[str]]:
    """Return the features that an encoder makes of the frame that it is fitted to, and their names."""
    rows = clone(encoder).fit(frame).transform(frame)
    names = clone(encoder).fit(frame).get_feature_names_out().tolist()
    return rows.toarray() if sp.issparse(rows) else rows, names


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_the_features_of_its_copies(name: str) -> None:
    """The same values in pandas and Arrow have the same features, as have chunks and parts of the frame."""
    values, roles = COLUMNS[name]
    frame = pl.DataFrame({"c": values})
    for role in roles:
        encoder = ColumnEncoder(None if role is None else {"c": role}, n_hashed=32, dtype=np.float64)
        rows, names = encoded(encoder, frame)
        assert np.ptp(rows, axis=0).any()
        copies = [frame.to_pandas(), frame.to_arrow(), pl.concat([frame[:5], frame[5:]], rechunk=False)]
        for copy in copies:
            theirs, their_names = encoded(encoder, copy)
            np.testing.assert_array_equal(theirs, rows)
            assert their_names == names
        one = clone(encoder).fit(frame).transform(frame[3:4])
        np.testing.assert_array_equal(one.toarray()[0] if sp.issparse(one) else one[0], rows[3])


def test_what_polars_alone_has_is_refused() -> None:
    """Queries have no rows yet, objects would be their addresses, and integers of 128 bits have no type in Arrow."""
    numbers = pl.DataFrame({"a": [1.0, 2.0, 3.0, 4.0]})
    for model in (ColumnEncoder(), LinearSVC(), Ridge(), dsgd.SGDClassifier(), dsgd.SGDClassifier(encoder="auto")):
        with pytest.raises(InvalidDataError, match=r"LazyFrame of polars.*Pass X\.collect"):
            model.fit(numbers.lazy(), [0, 1, 0, 1])
        if not isinstance(model, ColumnEncoder):
            with pytest.raises(InvalidDataError, match=r"y is a LazyFrame of polars.*Pass y\.collect\(\)"):
                model.fit(numbers, numbers.lazy())
    for values, message in (
        (pl.Series([object()] * 4, dtype=pl.Object), "'c' has the dtype Object"),
        (pl.Series([1] * 4, dtype=pl.Int128), "pyarrow cannot read"),
    ):
        with pytest.raises(InvalidDataError, match=message):
            ColumnEncoder().fit(numbers.with_columns(c=values))


MODELS = [dsgd.SGDClassifier(max_iter=5, tol=None, random_state=0), SVC(), LinearSVC(random_state=0), Ridge()]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_models_take_frames_and_series(model: Any) -> None:
    """Predictions are those of the same frame of pandas: labels of every type, weights, float32, names of columns."""
    frame = pl.DataFrame({"f": FLOATS, "u": np.arange(N, dtype=np.uint8) % 3, "b": FLOATS[::-1] > 0.3})
    truth, weights = (frame["f"] > 0).rename("y"), pl.Series("w", WEIGHTS)
    words = truth.replace_strict({True: "yes", False: "no"}, return_dtype=pl.String)
    for y in [frame["f"]] if isinstance(model, Ridge) else [truth, words, words.cast(pl.Categorical)]:
        for X in (frame, frame.select(pl.all().cast(pl.Float32))):
            ours = clone(model).fit(X, y, sample_weight=weights)
            theirs = clone(model).fit(X.to_pandas(), y.to_pandas(), sample_weight=weights.to_pandas())
            assert ours.predict(X).tolist() == theirs.predict(X.to_pandas()).tolist()
            assert ours.feature_names_in_.tolist() == ["f", "u", "b"]
            assert ours.score(X, y) == theirs.score(X.to_pandas(), y.to_pandas())
        with pytest.raises(InvalidDataError, match="y has missing values"):
            clone(model).fit(frame, y.set(y.is_first_distinct(), None))


@pytest.mark.parametrize("encoder", [None, "auto"])
def test_targets_and_weights_may_be_columns(encoder: str | None) -> None:
    """Names of columns do what their values do, whatever kinds of columns are left."""
    frame = pl.DataFrame({"f": FLOATS, "y": ["p", "q"] * (N // 2), "w": WEIGHTS})
    model = dsgd.SGDClassifier(max_iter=5, tol=None, random_state=0, encoder=encoder)
    by_name = clone(model).fit(frame, "y", sample_weight="w")
    by_value = clone(model).fit(frame.select("f"), frame["y"], sample_weight=frame["w"])
    np.testing.assert_array_equal(by_name.coef_, by_value.coef_)
    assert by_name.feature_names_in_.tolist() == ["f"]
    if encoder is not None:
        with pytest.raises(InvalidDataError, match="y has missing values"):
            clone(model).fit(frame.select("f"), frame["y"].set(frame["y"] == "q", None))
