"""Frames of Polars: every model and encoder takes them as it takes those of pandas, and says so where it cannot."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

import dsgd
from dsgd.errors import InvalidDataError
from dsgd.linear_model import Ridge
from dsgd.preprocessing import ColumnEncoder
from dsgd.svm import LinearSVC

pl = pytest.importorskip("polars")
pytest.importorskip("pyarrow")

N = 24
FLOATS, WEIGHTS = np.random.default_rng(0).normal(size=N), np.random.default_rng(1).exponential(size=N)


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
