"""`ColumnEncoder` beside scikit-learn's transformers, and what it promises by itself."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import murmurhash3_32
from sklearn.utils.estimator_checks import parametrize_with_checks

import dsgd
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.frames import as_table, batches
from dsgd.preprocessing import ColumnEncoder
from dsgd.preprocessing.statistics import Moments

pd = pytest.importorskip("pandas")

N = 400


def table(n: int = N, seed: int = 0) -> Any:
    """Return two columns of numbers and three of categories, none missing."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "price": rng.normal(50, 20, n),
            "count": rng.integers(0, 9, n),
            "city": rng.choice(["Oslo", "Rome", "Zürich", ""], n),
            "kind": pd.Categorical(rng.choice(["a", "b", "c"], n)),
            "zip": rng.integers(100, 110, n),
        }
    )


@parametrize_with_checks([ColumnEncoder()])
def test_scikit_learns_checks_pass(estimator: Any, check: Any) -> None:
    """It is a transformer by scikit-learn's own tests."""
    check(estimator)


def test_numbers_and_categories_are_those_of_a_column_transformer() -> None:
    """Standardised numbers and one-hot categories are scikit-learn's, unknown categories included."""
    theirs = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["price", "count"]),
            ("categories", OneHotEncoder(handle_unknown="ignore"), ["city", "kind", "zip"]),
        ],
        sparse_threshold=1.0,
    )
    ours = ColumnEncoder({"zip": "onehot"}, dtype=np.float64)
    seen, unseen = table(), table(seed=1)
    unseen.loc[:9, "city"] = "Lima"
    np.testing.assert_allclose(
        ours.fit_transform(seen).toarray(), theirs.fit_transform(seen).toarray(), rtol=1e-13, atol=1e-13
    )
    np.testing.assert_allclose(
        ours.transform(unseen).toarray(), theirs.transform(unseen).toarray(), rtol=1e-13, atol=1e-13
    )
    assert [name.partition("__")[2] for name in theirs.get_feature_names_out()] == list(ours.get_feature_names_out())


def test_hashed_categories_are_those_of_a_feature_hasher() -> None:
    """Hashed columns share the features that `FeatureHasher` gives name=value, with its signs."""
    rows = table()[["city", "kind", "zip"]].astype({"kind": str})
    ours = ColumnEncoder({"zip": "hash"}, categorical="hash", n_hashed=13, dtype=np.float64).fit_transform(rows)
    told = rows.astype(str).to_dict("records")
    theirs = FeatureHasher(13).transform(told)
    assert abs(ours - theirs).max() == 0
    # In a row no feature comes twice.
    starts = np.zeros(ours.nnz, bool)
    starts[ours.indptr[:-1]] = True
    assert (np.diff(ours.indices)[~starts[1:]] > 0).all()
    assert ours.nnz < 3 * N


def test_texts_are_those_of_a_hashing_vectorizer() -> None:
    """N-grams of texts are counted, signed and divided as there, letters beyond ASCII included."""
    texts = ["Hello big, big world", "the été — is Hot", "a b cc dd_1 dd", "", "Straße straße İx", "!?", "no 10 12.5"]
    ours = ColumnEncoder({"text": "text"}, n_hashed=31, ngram_range=(1, 3), dtype=np.float64)
    theirs = HashingVectorizer(n_features=31, ngram_range=(1, 3))
    assert abs(ours.fit_transform(pd.DataFrame({"text": texts})) - theirs.transform(texts)).max() < 1e-15
    with_none = ours.transform(pd.DataFrame({"text": [None, texts[0], None]})).toarray()
    assert not with_none[[0, 2]].any()
    assert with_none[1].any()


@settings(max_examples=25)
@given(st.lists(st.text(max_size=9), min_size=1, max_size=5))
def test_hashes_are_murmurhash(values: list[str]) -> None:
    """The compiled hash of name=value is MurmurHash3 of its UTF-8, for strings of any length and letters."""
    values = [value.replace("\0", "") for value in values]
    encoder = ColumnEncoder({"c": "hash"}, n_hashed=97, dtype=np.float64)
    found = encoder.fit_transform(pd.DataFrame({"c": pd.Series(values, dtype=object)})).toarray()
    for value, row in zip(values, found, strict=True):
        code = murmurhash3_32(f"c={value}".encode(), seed=0)
        wanted = np.zeros(97)
        wanted[abs(code) % 97] = 1.0 if code >= 0 else -1.0
        np.testing.assert_array_equal(row, wanted)


@settings(max_examples=30)
@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_moments_are_those_of_all_rows_however_they_are_cut(values: list[float], cuts: list[int]) -> None:
    """Mean and variance of parts, merged, are the exact ones of the whole, rounded."""
    from fractions import Fraction

    merged = Moments()
    for part in np.split(np.array(values), sorted(cuts)):
        one = Moments()
        one.add(np.append(part, np.nan), "c")
        merged.merge(one)
    mean, scale = merged.mean_and_scale()
    exact = [Fraction(v) for v in values]
    center = sum(exact, Fraction(0)) / len(exact)
    variance = sum(((v - center) ** 2 for v in exact), Fraction(0)) / len(exact)
    assert mean == float(center)
    assert scale == 1.0 or scale == pytest.approx(math.sqrt(float(variance)), rel=1e-9)
    assert merged.n_missing == len(cuts) + 1


def test_the_encoder_is_the_same_however_the_rows_are_cut() -> None:
    """An encoder learned from parts has the means, categories and features of one learned from the whole table."""
    whole = table(1000)
    whole.loc[::7, "price"] = np.nan
    for options in ({"categorical": "onehot"}, {"max_categories": 3, "n_hashed": 16}, {"min_frequency": 260}):
        encoder = ColumnEncoder(dtype=np.float64, **options)
        at_once = clone(encoder).fit(whole)
        statistics = encoder.statistics_of(as_table(whole))
        for part in batches(as_table(whole), 77):
            statistics.add(part)
        in_parts = clone(encoder).learn(statistics)
        assert at_once._layout == in_parts._layout
        assert abs(at_once.transform(whole) - in_parts.transform(whole)).max() == 0


def test_missing_values_and_unknown_categories_have_a_place() -> None:
    """A missing number is the mean, with a mark; a missing category is one; an unknown one has no feature."""
    seen = pd.DataFrame({"a": [1.0, np.nan, 5.0], "c": ["x", None, "y"], "w": [1.0, 2.0, 3.0]})
    encoder = ColumnEncoder(dtype=np.float64).fit(seen)
    assert list(encoder.get_feature_names_out()) == ["a", "a_missing", "w", "c_x", "c_y", "c_missing"]
    found = encoder.transform(pd.DataFrame({"w": [2.0, np.nan], "c": ["z", None], "a": [None, 3.0], "more": [0, 0]}))
    np.testing.assert_array_equal(found.toarray(), [[0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]])
    with pytest.raises(InvalidDataError, match="'c' has the unknown category 'z'"):
        ColumnEncoder(handle_unknown="error").fit(seen).transform(seen.assign(c="z"))
    with pytest.raises(InvalidDataError, match="no column 'a', 'c'"):
        encoder.transform(seen[["w"]])


def test_rare_categories_share_a_feature_with_unknown_ones() -> None:
    """``min_frequency`` is that of `OneHotEncoder`."""
    seen = pd.DataFrame({"c": list("aaabbbcd")})
    other = pd.DataFrame({"c": list("abcdz")})
    ours = ColumnEncoder(min_frequency=2, dtype=np.float64).fit(seen)
    theirs = OneHotEncoder(min_frequency=2, handle_unknown="infrequent_if_exist").fit(seen)
    np.testing.assert_array_equal(ours.transform(other).toarray(), theirs.transform(other).toarray())
    assert list(ours.get_feature_names_out()) == ["c_a", "c_b", "c_infrequent"]


def test_dates_have_a_time_and_cycles() -> None:
    """A date is a standardised time, and a place on the circles of day, week and year."""
    dates = pd.to_datetime(["2024-01-01 06:00", "2024-01-08 06:00", None])
    found = ColumnEncoder(dtype=np.float64).fit_transform(pd.DataFrame({"t": dates}))
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found[:, 0], [-1, 1, 0])
    np.testing.assert_allclose(found[:2, 1:3], [[1, 0], [1, 0]], atol=1e-9)
    # Both are Mondays, six o'clock: a quarter of a day of seven.
    np.testing.assert_allclose(found[:2, 3], np.sin(2 * np.pi * 0.25 / 7), atol=1e-9)
    np.testing.assert_allclose(found[1, 5], np.sin(2 * np.pi * 7.25 / 365.2425), atol=1e-9)
    np.testing.assert_array_equal(found[2], [0] * 7 + [1])


def test_it_is_a_transformer_that_can_be_pickled() -> None:
    """A pickle transforms as the original, and arrays of numbers and objects are tables with columns x0, x1."""
    rows = table()
    encoder = ColumnEncoder().fit(rows)
    found = encoder.transform(rows)
    assert sp.issparse(found)
    assert found.dtype == np.float32
    assert found.shape == (N, encoder.n_features_out_)
    assert abs(pickle.loads(pickle.dumps(encoder)).transform(rows) - found).max() == 0
    named = ColumnEncoder().fit(np.array([[1.0, "x"], [2.0, None]], dtype=object))
    assert list(named.get_feature_names_out()) == ["x0", "x1_x", "x1_missing"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": {"price": "one-hot"}}, "columns"),
        ({"categorical": "label"}, "categorical"),
        ({"n_hashed": 0}, "n_hashed"),
        ({"ngram_range": (2, 1)}, "ngram_range"),
        ({"dtype": "int32"}, "dtype"),
        ({"handle_unknown": "infrequent"}, "handle_unknown"),
    ],
)
def test_wrong_parameters_are_refused(options: dict[str, Any], text: str) -> None:
    """The error names the parameter."""
    with pytest.raises(InvalidParameterError, match=text):
        ColumnEncoder(**options).fit(table())


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        ({"a": [1.0, np.inf]}, {}, "'a' has infinite"),
        ({"a": ["x", "1"]}, {"columns": {"a": "numeric"}}, "'a' was taken for numbers"),
        ({"a": ["x", "1"]}, {"columns": {"a": "date"}}, "'a' was taken for dates"),
        ({"a": ["x", 1]}, {}, "'a' mixes categories"),
        ({"a": [1.0]}, {"columns": {"b": "drop"}}, "'b'"),
        ({"a": [1.0]}, {"columns": {"a": "drop"}}, "drops all"),
    ],
)
def test_columns_that_cannot_become_what_they_should_are_named(rows: Any, options: Any, text: str) -> None:
    """The error names the column."""
    with pytest.raises(InvalidDataError, match=text):
        ColumnEncoder(**options).fit(pd.DataFrame(rows))


DATES = pd.Series(pd.to_datetime(["2001-02-03", "2020-01-01T10:00:00.5", None, "1960-05-05"], format="ISO8601"))
#: Columns that libraries hold in ways of their own, and a role.
ODD_COLUMNS: dict[str, tuple[Any, str | None]] = {
    "dates as categories": (DATES, "onehot"),
    "dates of a time zone, hashed": (DATES.dt.tz_localize("Europe/Oslo"), "hash"),
    "dates as texts": (DATES, "text"),
    "categories that are dates": (DATES.astype("category"), None),
    "missing floats as categories": (pd.Series([1.5, np.nan, 2.0, np.nan]), "onehot"),
    "whole numbers beyond 2**53": (pd.Series([2**53, 2**53 + 1, None, 2**53 + 2], dtype="Int64"), "onehot"),
    "a column without a value": (pd.Series([np.nan] * 4), "date"),
    "a category called missing": (pd.Series(["missing", "a", None, "missing_"]), "onehot"),
    "strings": (pd.Series(["", "é", None, "\U0001f600"]), None),
}


@pytest.mark.parametrize("name", ODD_COLUMNS)
def test_libraries_give_the_same_rows_which_a_file_keeps(name: str, tmp_path: Any) -> None:
    """A column of pandas, its copy in Arrow, each row alone and the saved encoder have the same features and names."""
    pa = pytest.importorskip("pyarrow")
    values, role = ODD_COLUMNS[name]
    frame = pd.DataFrame({"c": values})
    make = ColumnEncoder(None if role is None else {"c": role}, n_hashed=32)
    ours, theirs = clone(make).fit(frame), clone(make).fit(pa.Table.from_pandas(frame))
    ours.save(tmp_path / "encoder.dsgd")
    wanted = as_dense(ours.transform(frame))
    assert np.ptp(wanted, axis=0).any() != (name == "a column without a value")
    for encoder in (theirs, dsgd.load(tmp_path / "encoder.dsgd")):
        assert encoder.get_feature_names_out().tolist() == ours.get_feature_names_out().tolist()
        np.testing.assert_array_equal(as_dense(encoder.transform(pa.Table.from_pandas(frame))), wanted)
    assert len(set(ours.get_feature_names_out())) == wanted.shape[1]
    for row in range(4):
        np.testing.assert_array_equal(as_dense(ours.transform(frame.iloc[[row]])), wanted[[row]])


def as_dense(rows: Any) -> Any:
    """Return rows as an array."""
    return rows.toarray() if sp.issparse(rows) else rows


@pytest.mark.parametrize(
    ("values", "role", "message"),
    [
        ([1, 2], "date", "taken for dates"),
        (DATES[:2], "numeric", "taken for numbers"),
        ([1.0, 1e200], None, "squares overflow"),
        ([1.0, 1e200], "passthrough", "infinite in float32"),
        ([[1], [2]], "onehot", "no categories"),
        ([dt.time(3)] * 2, None, "neither numbers nor strings nor dates"),
        ([dt.timedelta(1)] * 2, None, "neither numbers nor strings nor dates"),
        ([dt.timedelta(1)] * 2, "numeric", "taken for numbers"),
        ([dt.timedelta(1)] * 2, "onehot", "durations, which are no categories"),
    ],
)
def test_columns_without_a_meaning_are_refused(values: Any, role: str | None, message: str) -> None:
    """What the libraries would take each for something else is an error that names it, in pandas and in Arrow."""
    pa = pytest.importorskip("pyarrow")
    pl = pytest.importorskip("polars")
    frame = pd.DataFrame({"c": values})
    for rows in (frame, pa.Table.from_pandas(frame), pl.from_pandas(frame)):
        with pytest.raises(InvalidDataError, match=message):
            ColumnEncoder(None if role is None else {"c": role}).fit_transform(rows)


def test_true_is_not_one_and_sparse_columns_are_numbers() -> None:
    """Hashes of True and 1 do not depend on which comes first; sparse columns of pandas are numbers."""
    mixed = pd.DataFrame({"c": pd.Series([1, True, "x", None, 1.0, False, 0], dtype=object)})
    for rows in (mixed, mixed.to_numpy()):
        encoder = ColumnEncoder(categorical="hash", n_hashed=64).fit(rows)
        at_once = encoder.transform(rows).toarray()
        alone = [encoder.transform(rows[k : k + 1]).toarray()[0] for k in range(7)]
        np.testing.assert_array_equal(at_once, alone)
        assert (at_once[0] != at_once[1]).any()
    sparse = pd.DataFrame({"c": pd.arrays.SparseArray([0.0, 0.0, 3.0])})
    np.testing.assert_array_equal(
        ColumnEncoder().fit_transform(sparse), ColumnEncoder().fit_transform(sparse.sparse.to_dense())
    )


def odd() -> Any:
    """Return a table in which every column but two is odd in a way of its own."""
    rng, n = np.random.default_rng(0), 4000
    frame = pd.DataFrame({"usual": rng.normal(size=n), "city": rng.choice(["Oslo", "Rome"], n)})
    frame["id"] = [f"c{k:05}x" for k in range(n)]
    frame["paid"] = [" " if k % 40 == 0 else f"{k % 97}.5" for k in range(n)]
    frame["when"] = [f"{k % 28 + 1}/{k % 12 + 1}/2024" for k in range(n)]
    frame["same"] = "x"
    frame["zero"] = 0.0
    frame["far"] = np.where(np.arange(n) == 7, 1e6, rng.normal(size=n))
    return frame


def test_one_warning_names_what_stands_out() -> None:
    """Identifiers, texts that are nearly numbers or dates, constants and extreme values, where nobody chose a role."""
    frame = odd()
    with pytest.warns(UserWarning, match="ColumnEncoder: ") as found:
        ColumnEncoder().fit(frame)
    (text,) = [str(each.message) for each in found]
    for part in (
        "'id' (4000 of 4000) is different in nearly every row",
        "'paid' (' ') looks like numbers but for some texts",
        "'when' looks like dates and is taken for names",
        "Each of the columns 'zero', 'same' is constant",
    ):
        assert part in text
    assert "usual" not in text
    assert "city" not in text
    with pytest.warns(UserWarning, match=r"'far' \(63\) has values more than 50 .*clip=10"):
        ColumnEncoder(dict.fromkeys(["id", "paid", "when", "same", "zero"], "drop")).fit(frame)
    roles = {"id": "drop", "paid": "onehot", "when": "hash", "same": "onehot", "zero": "passthrough"}
    ColumnEncoder(roles, clip=10).fit(frame)
    ColumnEncoder().fit(frame[:50])
    with pytest.warns(UserWarning, match="'when' looks like dates"):
        ColumnEncoder(max_categories=5).fit(frame[["when", "city"]])


def test_standardised_numbers_can_be_clipped() -> None:
    """To some standard deviations, on both sides; dates, and numbers as they are, are left alone."""
    frame = pd.DataFrame({"a": [*np.arange(100.0), 1e5], "b": np.arange(101.0) * 100})
    frame["t"] = pd.date_range("2020-01-01", periods=101, freq="97h")
    free, bound = (ColumnEncoder({"b": "passthrough"}, clip=clip, dtype=np.float64).fit(frame) for clip in (None, 1.5))
    expected = free.transform(frame)
    assert expected[:, 0].max() > 9
    expected[:, 0] = np.clip(expected[:, 0], -1.5, 1.5)
    np.testing.assert_array_equal(bound.transform(frame), expected)
    low = pd.DataFrame({"a": [-1e9], "b": [0.0], "t": frame.t[:1]})
    assert bound.transform(low)[0, 0] == -1.5
    with pytest.raises(InvalidParameterError, match="clip"):
        ColumnEncoder(clip=0).fit(frame)
