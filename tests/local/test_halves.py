"""Rows in 16 bits: how they are rounded, and that they are hashed and read as the numbers they are rounded to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from dsgd.errors import InvalidDataError
from dsgd.kernels import halves
from dsgd.local import SGD, Objective, ShardBuilder, n_params
from dsgd.local.blocks import fingerprints, readable
from dsgd.local.halves import STORAGES, widened, word_dtype
from dsgd.local.shard import Shard

#: How many bits the numbers of a format have, their exponent of two at least, and the largest of them.
BITS = {"float16": (11, -14, 65504.0), "bfloat16": (8, -126, (2.0 - 2.0**-7) * 2.0**127)}


def rounded(X: np.ndarray, storage: str) -> np.ndarray:
    """Return the nearest numbers of a format, ties to even, from exact arithmetic."""
    bits, least, _ = BITS[storage]
    exponents = np.maximum(np.frexp(X.astype(np.float64))[1] - 1, least)
    unit = np.ldexp(1.0, exponents - bits + 1)
    return (np.rint(X / unit) * unit).astype(np.float32)


def numbers(seed: int = 0) -> np.ndarray:
    """Return float64 rows of all sizes, with ties, numbers that float32 makes ties of, subnormals and zeros."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((500, 7)) * 2.0 ** rng.integers(-26, 15, (500, 7))
    X[:100] = rng.integers(2**9, 2**12, (100, 7)) + 0.5 * rng.integers(0, 2, (100, 7))
    X[100:200] = (1.0 + 2.0**-11) * (1.0 + rng.choice([-1.0, 1.0], (100, 7)) * 2.0**-40)
    X[200:300] = (1.0 + 2.0**-8) * (1.0 + rng.choice([-1.0, 1.0], (100, 7)) * 2.0**-40)
    X[300], X[301], X[302] = 0.0, -0.0, 65519.0
    return X


def packed(X: Any, storage: str | None, **options: Any) -> Shard:
    """Return the shard of some rows."""
    builder = ShardBuilder(n_features=X.shape[1], dtype=np.float32, sparse=False, storage=storage, **options)
    targets = np.arange(len(X)) % 2 * 2.0 - 1.0
    builder.look(X, targets)
    builder.place(X)
    return builder.finish()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_are_rounded_once_to_the_nearest(storage: str, dtype: type) -> None:
    """Ties go to even, subnormals stay, and float64 is not rounded to float32 on the way."""
    X = numbers().astype(dtype)
    shard = packed(X, storage, shuffle=False)
    assert (shard.storage, shard.dtype, shard.values.itemsize) == (storage, np.float32, 2)
    assert shard.numbers().tobytes() == rounded(X, storage).tobytes()
    if storage == "float16":
        assert shard.numbers().tobytes() == X.astype(np.float16).astype(np.float32).tobytes()


@pytest.mark.parametrize("storage", STORAGES)
def test_every_word_is_read_as_its_number(storage: str) -> None:
    words = np.arange(2**16, dtype=np.uint16).view(word_dtype(storage))
    bits = words.view(np.uint16).astype(np.uint32) << 16
    expected = bits.view(np.float32) if storage == "bfloat16" else words.view(np.float16).astype(np.float32)
    is_number = np.isfinite(expected)
    assert is_number.sum() > 60_000
    assert widened(words)[is_number].tobytes() == expected[is_number].tobytes()


def test_machines_that_do_not_convert_float16_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "_converts", lambda target: False)

    @njit
    def convert(singles: Any, words: Any, back: Any) -> None:
        for j in range(singles.shape[0]):
            words[j] = halves._to_float16(singles[j])
            back[j] = halves._from_float16(words[j])

    exact = np.arange(2**16, dtype=np.uint16).view(np.float16)
    exact = exact[np.isfinite(exact)].astype(np.float32)
    # Each of them, its neighbours, and what lies near the middle between two.
    middles = (exact[:-1] + exact[1:]) / 2
    singles = np.concatenate(
        [s for x in (exact, middles) for s in (x, *(np.nextafter(x, np.float32(e)) for e in (-9, 9)))]
    )
    singles = singles[np.abs(singles) < 65520]
    words, back = np.empty(singles.shape, np.uint16), np.empty(singles.shape, np.float32)
    convert(singles, words, back)
    assert words.tobytes() == singles.astype(np.float16).tobytes()
    assert back.tobytes() == singles.astype(np.float16).astype(np.float32).tobytes()


@pytest.mark.parametrize("storage", STORAGES)
def test_a_number_that_is_too_large_is_named(storage: str) -> None:
    """So is its column, and what to do; the largest that rounds to a number of the format is none."""
    bits, _, most = BITS[storage]
    limit = most * (1.0 + 0.5 / (2.0**bits - 1.0))
    X = np.ones((70, 5))
    X[50, 3] = -np.nextafter(limit, 0.0)
    assert packed(X, storage).numbers().min() == -np.float32(most)
    X[50, 3] = -limit
    for build in (packed, fingerprints):
        with pytest.raises(ValueError, match=rf"storage='{storage}' holds .* column 3 of X has .*Scale this"):
            build(X, storage)
    with pytest.raises(InvalidDataError, match="Scaler, or set storage='bfloat16'" if most < 1e5 else "Scaler\\.$"):
        packed(np.asfortranarray(X), storage)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("form", [np.ascontiguousarray, np.asfortranarray, lambda X: X.astype(np.float32)])
def test_rows_have_the_fingerprints_and_places_of_what_they_are_rounded_to(storage: str, form: Any) -> None:
    X = form(numbers())
    R = rounded(X, storage)
    assert fingerprints(X, storage).tobytes() == fingerprints(R).tobytes()
    shard, expected = packed(X, storage, seed=3), packed(R, None, seed=3)
    assert shard.numbers().tobytes() == expected.values.tobytes()
    assert (shard.content(), shard.mean_square()) == (expected.content(), expected.mean_square())
    assert shard.targets.tobytes() == expected.targets.tobytes()
    piece = readable(X, storage)
    assert (piece is None) is not X.flags.c_contiguous


def test_a_shard_in_a_file_is_sorted_as_one_in_memory(tmp_path: Any) -> None:
    X = np.random.default_rng(0).standard_normal((2000, 9)).astype(np.float32)
    inside, outside = (packed(X, "float16", **o) for o in ({}, {"folder": str(tmp_path), "window_bytes": 4096}))
    assert inside.values.tobytes() == outside.values.tobytes()
    assert 2 * inside.nnz + 8 * inside.n_rows == inside.nbytes == outside.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("width", [3, 9000])
def test_steps_are_those_on_float32_rows(width: int) -> None:
    """Of rows that lie in scratch memory together, and of those that fill it alone; of any part of the walk."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((120, width)).astype(np.float32)
    models = []
    for shard in (packed(X, "float16"), packed(X.astype(np.float16).astype(np.float32), None)):
        sgd = SGD(Objective("hinge", "l2", 0.01))
        params, state = np.zeros(n_params(width, 1), np.float32), sgd.init(shard)
        state.start_epoch()
        sgd.arrange(shard, state)
        for start, stop in ((0, 1), (1, 70), (70, 120)):
            sgd.run(params, shard, start, stop, state)
        models.append((params.tobytes(), sgd.evaluate(params, shard.rows(7, 100), state)))
    assert models[0] == models[1]
