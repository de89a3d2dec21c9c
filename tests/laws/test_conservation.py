"""What compressors leave out is late and never lost: many tiny exchanges add up to what ranks gave."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from dsgd.collectives import Group
from dsgd.compress import (
    DGC,
    QSGD,
    AbstractCompressor,
    AdaComp,
    ErrorFeedback,
    GTopK,
    Half,
    Identity,
    Layerwise,
    NonZero,
    OneBit,
    PowerSGD,
    RandomK,
    Sign,
    TernGrad,
    TopK,
)
from dsgd.sync import DiLoCo, LocalSGD, MinibatchSGD, SlowMo
from dsgd.sync.base import state_arrays
from gangs import run_gang

N, N_ROUNDS = 40, 150
SHARES = {1: [1.0], 3: [0.2, 0.7, 0.1], 4: [0.25, 0.5, 0.0, 0.25]}
BIASED: list[Any] = [TopK(0.1), RandomK(0.2), OneBit(16), Sign(), PowerSGD(1), Half(), Half("bfloat16")]
KEEPING: list[Any] = [
    AdaComp(7),
    GTopK(0.1),
    GTopK(0.1, route="tree", warm_up=(0.5, 0.2), warm_up_rounds=40),
    *map(ErrorFeedback, BIASED),
]
#: On differences of models what needs a memory has one, whether the user says so or not.
ON_MODELS: list[Any] = ["auto", Identity(), *BIASED, *KEEPING, Layerwise({"*": Half()})]
ON_GRADIENTS: list[Any] = ["auto", Identity(), NonZero(), DGC(0.1, momentum=0.0), *KEEPING]
AT_RANDOM: list[Any] = [QSGD(7, 16), TernGrad()]


def step_of(rank: int, dtype: Any) -> np.ndarray:
    """Return the step of a rank: entries between 1e-9 and 1e-7."""
    rng = np.random.default_rng(rank)
    return (rng.choice([-1.0, 1.0], N) * 10.0 ** rng.uniform(-9.0, -7.0, N)).astype(dtype)


def applied(group: Group, strategy: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return what has come out of all rounds, and what this rank keeps."""
    weight, step = SHARES[group.size][group.rank], step_of(group.rank, dtype)
    params, total = np.zeros(N, dtype), np.zeros(N)
    state = strategy.init(group, params, weight)
    for _ in range(N_ROUNDS):
        if strategy.exchanges == "model":
            params += step
            strategy.sync(group, params, weight, state)
        else:
            vector = step.copy()
            strategy.sync(group, vector, weight, state)
            total += vector
    kept = [array for name, array in state_arrays(state).items() if name.endswith("residual")]
    return params.astype(float) + total, np.sum([np.zeros(N), *kept], axis=0, dtype=float)


def check(strategy: Any, size: int, dtype: Any, tolerance: float) -> None:
    """Hold what came out and what is kept against what was given."""
    found = run_gang("inproc", size, partial(applied, strategy=strategy, dtype=dtype))
    given = N_ROUNDS * np.sum([w * step_of(rank, dtype).astype(float) for rank, w in enumerate(SHARES[size])], axis=0)
    total = found[0][0] + np.sum([kept for _, kept in found], axis=0)
    assert np.abs(total - given).max() <= tolerance * np.abs(given).max()
    # And what is kept stays small beside what was given: it comes, however tiny each step is.
    assert np.linalg.norm(found[0][0] - given) < 0.5 * np.linalg.norm(given)


@pytest.mark.parametrize(("size", "dtype"), [(1, np.float64), (3, np.float32), (4, np.float64)])
@pytest.mark.parametrize("compressor", ON_MODELS, ids=repr)
def test_tiny_differences_of_models_add_up(compressor: AbstractCompressor[Any], size: int, dtype: Any) -> None:
    """What was applied and what ranks keep is what they gave, to rounding, with every compressor of differences."""
    tolerance = 1e-11 if dtype is np.float64 else 1e-4
    check(LocalSGD(8, compressor=compressor), size, dtype, tolerance)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("compressor", ON_GRADIENTS, ids=repr)
def test_tiny_gradients_add_up(compressor: AbstractCompressor[Any], size: int) -> None:
    """What came out and what ranks keep is what they gave, with every compressor of gradients that keeps the rest."""
    check(MinibatchSGD(8, compressor=compressor), size, np.float64, 1e-11)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("strategy", [SlowMo(8, 0.0, compressor=Half()), DiLoCo(8, 1.0, 0.0, compressor=Half())])
def test_outer_steps_lose_no_tiny_difference(strategy: Any, size: int) -> None:
    """So it is where the mean of the differences is an outer gradient."""
    check(strategy, size, np.float64, 1e-11)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("compressor", AT_RANDOM, ids=repr)
@pytest.mark.parametrize("make", [LocalSGD, MinibatchSGD])
def test_rounding_at_random_adds_up_on_average(make: Any, compressor: AbstractCompressor[Any], size: int) -> None:
    """What is rounded at random has no memory: its errors cancel like those of a mean over rounds."""
    found = run_gang("inproc", size, partial(applied, strategy=make(8, compressor=compressor), dtype=np.float64))
    given = N_ROUNDS * np.sum([w * step_of(rank, np.float64) for rank, w in enumerate(SHARES[size])], axis=0)
    # An entry is off by less than the largest magnitude of a round and rank, times the root of their number.
    worst = 4.0 * 1e-7 * np.sqrt(N_ROUNDS * sum(w * w for w in SHARES[size]))
    assert np.abs(found[0][0] - given).max() < worst
