"""Splits between ranks: every row once, and as unlike as is asked for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dsgd.datasets import SPLITS, split_rows
from dsgd.errors import InvalidParameterError

HOW = ("contiguous", "shuffled", "label-skewed", "dirichlet:0.1", "quantity:0.1", "dirichlet:1e-9", "quantity:1e-9")


@given(st.lists(st.integers(0, 3), max_size=120), st.integers(1, 9), st.sampled_from(HOW), st.integers(0, 5))
def test_every_row_is_in_one_part(labels: list[int], n_parts: int, how: str, seed: int) -> None:
    """Parts hold every row once, none is empty where there are rows enough, and the same seed gives the same parts."""
    y = np.array(labels, dtype=float)
    parts = split_rows(y, n_parts, how, seed=seed)
    assert len(parts) == n_parts
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(y)))
    assert len(y) < n_parts or all(len(part) for part in parts)
    again = split_rows(y, n_parts, how, seed=seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@pytest.mark.parametrize("how", ["contiguous", "shuffled", "label-skewed"])
@pytest.mark.parametrize("n_parts", [1, 2, 3, 7])
def test_parts_without_a_number_are_even(how: str, n_parts: int, rng: np.random.Generator) -> None:
    """Sizes differ by one at most; contiguous parts are runs, label-skewed ones are sorted by label."""
    y = rng.choice([-1.0, 1.0], 101)
    parts = split_rows(y, n_parts, how)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    order = np.concatenate(parts)
    assert (how == "contiguous") == np.array_equal(order, np.arange(101))
    assert how != "label-skewed" or (np.diff(y[order]) >= 0).all()


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
def test_skewed_features_are_ranges_of_the_main_direction(make: Callable[[Any], Any], rng: np.random.Generator) -> None:
    """Parts are even runs along the first principal component, as numpy finds it, and say nothing of the labels."""
    X = rng.standard_normal((400, 6)) * [1.0, 1.0, 6.0, 1.0, 1.0, 1.0] + 3.0
    X[:, 4] += 0.5 * X[:, 2]
    parts = split_rows(rng.choice([-1.0, 1.0], 400), 4, "feature-skewed", X=make(X))
    assert [len(part) for part in parts] == [100] * 4
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(400))
    main = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][0]
    along = [np.sort(X[part] @ main) for part in parts]
    along = along if along[0][0] < along[-1][0] else along[::-1]
    assert all(low[-1] <= high[0] + 1e-6 for low, high in pairwise(along))
    with pytest.raises(InvalidParameterError, match="X=X"):
        split_rows(np.zeros(9), 3, "feature-skewed")


def test_a_small_number_makes_parts_unlike(rng: np.random.Generator) -> None:
    """Shares of labels, or sizes, spread the more the smaller the number; with a large one parts are alike."""
    y = rng.choice([0, 1, 2], 6_000)
    shares, sizes = {}, {}
    for alpha in ("0.1", "1000"):
        parts = split_rows(y, 6, f"dirichlet:{alpha}")
        shares[alpha] = np.std([np.mean(y[part] == 0) for part in parts])
        sizes[alpha] = np.std([len(part) for part in split_rows(y, 6, f"quantity:{alpha}")])
    assert shares["0.1"] > 0.2 > 0.05 > shares["1000"]
    assert sizes["0.1"] > 700 > 100 > sizes["1000"]
    # Sizes alone are unlike: labels of the larger parts are those of the set.
    for part in split_rows(y, 6, "quantity:0.5"):
        assert len(part) < 500 or abs(np.mean(y[part] == 0) - np.mean(y == 0)) < 0.1


@pytest.mark.parametrize(
    "how", ["x", "dirichlet", "dirichlet:", "dirichlet:0", "quantity:-1", "shuffled:2", SPLITS[-1]]
)
def test_an_unknown_split_is_refused(how: str) -> None:
    """The error says what can be given."""
    with pytest.raises(InvalidParameterError, match=r"choose one of contiguous|as \w+:0.5"):
        split_rows(np.zeros(9), 3, how)
    with pytest.raises(InvalidParameterError, match="n_parts"):
        split_rows(np.zeros(9), 0)
