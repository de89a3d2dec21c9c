"""Generated sets: their shape, their separator and their streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.datasets import TWINS, Twin, make_classification_twin, make_like
from dsgd.datasets.generators import BLOCK_ROWS, TEST_START
from dsgd.errors import InvalidParameterError

ROWS = {"epsilon": 2_500}  # 2,000 columns: enough rows to show the claim, few enough to be quick


def equal(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    """Say whether two (X, y) are the same to the bit."""
    return first[0].shape == second[0].shape and bool(
        np.array_equal(dense(first[0]), dense(second[0])) and np.array_equal(first[1], second[1])
    )


def dense(X: Any) -> np.ndarray:
    """Return X as an array."""
    return X.toarray() if sp.issparse(X) else X


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_twin_has_the_shape_of_the_published_set(name: str) -> None:
    """Density and share of positive labels are the published ones up to chance, and no entry is infinite."""
    n_rows = ROWS.get(name, 20_000)
    made = make_like(name, n_rows, seed=3)
    twin = TWINS[name].twin
    assert made.X.shape == (n_rows, twin.n_features)
    density = np.count_nonzero(dense(made.X)) / (n_rows * twin.n_features)
    assert density == pytest.approx(twin.density, abs=5 * np.sqrt(0.25 / (n_rows * twin.n_features)), rel=0.01)
    share = np.mean(made.y > 0)
    assert abs(share - twin.positive_share) < 4.5 * np.sqrt(twin.positive_share * (1 - twin.positive_share) / n_rows)
    assert set(np.unique(made.y)) == {-1.0, 1.0}
    assert sp.issparse(made.X) != twin.dense
    if twin.unit_norm:
        lengths = np.sqrt(np.asarray(sp.csr_matrix(made.X).power(2).sum(axis=1))).ravel()
        np.testing.assert_allclose(lengths[lengths > 0], 1.0, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_separator_has_the_best_accuracy(name: str) -> None:
    """The separator is right on all rows whose label was not flipped, so on 1 - noise of them up to chance."""
    n_rows = ROWS.get(name, 20_000)
    made = make_like(name, n_rows, seed=1)
    right = np.mean((made.X @ made.coef + made.intercept > 0) == (made.y > 0))
    spread = np.sqrt(made.bayes_accuracy * (1 - made.bayes_accuracy) / n_rows)
    assert abs(right - made.bayes_accuracy) < 4.5 * spread
    assert np.linalg.norm(made.coef) == pytest.approx(1.0)
    quiet = replace(made.twin, noise=0.0, positive_share=0.5)
    X, y = quiet.rows(0, 2_000)
    assert np.array_equal(X @ quiet.coef + quiet.intercept > 0, y > 0)


@settings(max_examples=60)
@given(
    st.integers(0, 2500),
    st.integers(0, 2500),
    st.sampled_from([0.05, 0.7, 1.0]),
    st.booleans(),
    st.sampled_from([0, TEST_START]),
)
def test_any_range_of_rows_is_made_by_itself(a: int, b: int, density: float, as_dense: bool, offset: int) -> None:
    """Rows i to j made alone are rows i to j of a longer range."""
    start, stop = sorted((a, b))
    twin = Twin(7, density=density, dense=as_dense, seed=5)
    X, y = twin.rows(offset, offset + 2500)
    assert equal(twin.rows(offset + start, offset + stop), (X[start:stop], y[start:stop]))


@pytest.mark.parametrize("name", ["ijcnn1", "w8a"])
def test_chunks_are_the_whole(name: str) -> None:
    """A dask array, whatever its chunks, holds the rows that are made at once, and keeps type and dtype."""
    whole = make_like(name, 2_500, dtype=np.float32)
    for chunks in (700, BLOCK_ROWS, 5_000):
        lazy = make_like(name, 2_500, dtype=np.float32, chunks=chunks)
        assert lazy.X.chunks[0][0] == min(chunks, 2_500)
        X, y = lazy.X.compute(scheduler="synchronous"), lazy.y.compute(scheduler="synchronous")
        assert X.dtype == np.float32
        assert sp.issparse(X) == sp.issparse(whole.X)
        assert equal((X, y), (whole.X, whole.y))


def test_seeds_and_splits() -> None:
    """The same seed repeats, another seed differs, and test rows share the separator but no row with training rows."""
    first, again, other = (make_like("ijcnn1-like", 500, seed=seed) for seed in (0, 0, 1))
    test = make_like("ijcnn1", 500, split="test")
    assert equal((first.X, first.y), (again.X, again.y))
    assert not np.array_equal(first.X, other.X)
    assert not np.array_equal(first.coef, other.coef)
    np.testing.assert_array_equal(first.coef, test.coef)
    assert first.intercept == test.intercept
    assert not set(map(bytes, first.X)) & set(map(bytes, test.X))


@given(st.floats(0.02, 0.98), st.sampled_from([0.02, 0.3, 0.8, 1.0]), st.booleans(), st.sampled_from([1, 2, 5, 40]))
def test_intercept_gives_the_share_asked_for(share: float, density: float, unit_norm: bool, n_features: int) -> None:
    """For any share of positive labels, the intercept cuts that share off the law of coef . x, where it has no gaps."""
    made = make_classification_twin(
        4_096, n_features, density=density, positive_share=share, noise=0.0, unit_norm=unit_norm, seed=2
    )
    positive = np.mean(made.y > 0)
    # Rows of zeros, and rows of one column on the unit sphere, all lie in a few points: those cannot be shared out.
    lumps = (1 - density) ** n_features + (n_features * density * (1 - density) ** (n_features - 1)) * unit_norm
    assert abs(positive - share) < lumps + 5 * np.sqrt(0.25 / 4_096)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_rows": 0}, "n_rows"),
        ({"n_features": 0}, "n_features"),
        ({"density": 0.0}, "density"),
        ({"density": 1.5}, "density"),
        ({"noise": 0.5}, "noise"),
        ({"positive_share": 0.01}, "positive_share"),
        ({"separation": -1.0}, "separation"),
        ({"seed": -1}, "seed"),
        ({"dtype": np.int64}, "dtype"),
        ({"chunks": 0}, "chunks"),
        ({"start": -1}, "start"),
    ],
    ids=str,
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    """An argument out of range is refused by name."""
    with pytest.raises(InvalidParameterError, match=message):
        make_classification_twin(**{"n_rows": 10, "n_features": 3, **options})
