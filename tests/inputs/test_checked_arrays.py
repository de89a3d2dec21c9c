"""Arrays that need no conversion, and labels: what is found of them without scikit-learn's checks."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.utils.validation import validate_data

from dsgd.inputs.frames import validated
from dsgd.validation import classes_and_codes


def plain_inputs() -> dict[str, tuple[Any, Any]]:
    """Return rows and targets of many kinds, of which some are refused."""
    X, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 1, 0])
    bad = X.copy()
    bad[2, 1] = np.nan
    return {
        "float64": (X, y),
        "float32": (X.astype(np.float32), y),
        "whole numbers": (X.astype(int), y),
        "columns": (np.asfortranarray(X), y),
        "big-endian": (X.astype(">f8"), y),
        "text": (X, y.astype(str)),
        "values": (X, y + 0.5),
        "NaN": (bad, y),
        "infinite target": (X, np.where(y > 0, np.inf, 0.0)),
        "overflowing sum": (np.full((6, 2), 1e308), y),
        "lengths": (X, y[:-1]),
        "column": (X, y[:, None]),
        "objects": (X, y.astype(object)),
        "complex": (X, y + 1j),
        "no rows": (X[:0], y[:0]),
        "no columns": (X[:, :0], y),
        "one dimension": (X[:, 0], y),
        "no targets": (X, None),
        "strided": (X, np.repeat(y, 2)[::2]),
    }


@pytest.mark.parametrize("kind", plain_inputs())
@pytest.mark.parametrize("y_numeric", [False, True])
def test_arrays_are_checked_as_by_scikit_learn(kind: str, y_numeric: bool) -> None:
    """Arrays that skip scikit-learn's checks come out as from them, with the same features or the same error."""
    X, y = plain_inputs()[kind]
    options = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C", "y_numeric": y_numeric}
    found = []
    for check in (validated, validate_data):
        model = LinearRegression()
        model.feature_names_in_ = np.array(["a", "b"], dtype=object)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a column of targets
            try:
                arrays = check(model, X, y, **options)
            except ValueError as error:
                found.append(str(error))
            else:
                shown = [(a.dtype, a.flags.c_contiguous, a.tolist()) for a in arrays]
                found.append((shown, sorted(vars(model)), model.n_features_in_))
    assert found[0] == found[1]


def test_rows_to_predict_are_checked_as_by_scikit_learn() -> None:
    """Rows with other columns than those of the fit are refused; rows without names are warned of."""
    model = LinearRegression().fit(np.arange(12.0).reshape(6, 2), np.arange(6))
    options = {"dtype": [np.float64, np.float32], "reset": False}
    with pytest.raises(ValueError, match="3 features"):
        validated(model, np.ones((4, 3)), **options)
    model.feature_names_in_ = np.array(["a", "b"], dtype=object)
    with pytest.warns(UserWarning, match="valid feature names"):
        validated(model, np.ones((4, 2)), **options)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 1, 1, 3, 2]),
        np.array([-128, 127, -128, 0], np.int8),
        np.array([5, 9, 5, 9, 7, 5], np.int16),
        np.array([2**62, -(2**62), 0] * 2),
        np.array([2**64 - 1, 0, 1], np.uint64),
        np.array([True, False, True]),
        np.array(["b", "a", "b"]),
        np.array([1.0, -0.0, 1.0, 0.0]),
        np.array(["b", "a", "b"], dtype=object),
    ],
    ids=lambda labels: str(labels.dtype),
)
def test_classes_are_those_of_numpy(labels: Any) -> None:
    """Classes are sorted, of the type of the labels, and codes say which class each label has."""
    classes, codes = classes_and_codes(labels)
    expected, places = np.unique(labels, return_inverse=True)
    assert classes.dtype == expected.dtype
    assert codes.dtype == places.dtype
    assert classes.tolist() == expected.tolist()
    assert codes.tolist() == places.tolist()
