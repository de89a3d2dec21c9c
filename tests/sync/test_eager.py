"""Eager DiLoCo: where models are after so many rounds, in closed form, and that its thread changes nothing."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from dsgd.runtime.train import rounds
from dsgd.sync import DiLoCo, EagerDiLoCo, LocalSGD
from laws.gang import exchange, shards_of, train_on


@pytest.mark.parametrize("size", [2, 3, 5])
def test_each_change_comes_in_once(size: int) -> None:
    """Without momentum a model is the first one, all changes but the last ones, and of those the own share."""
    rng = np.random.default_rng(size)
    first, steps = rng.standard_normal(4), rng.standard_normal((6, size, 4))
    weights = rng.random(size)
    weights /= weights.sum()
    move = lambda k, rank, model: model + steps[k, rank]  # noqa: E731
    before, found, _, _ = exchange(EagerDiLoCo(8, 1.0, 0.0), first, weights, 6, move, lambda k, r: 0.0)
    means = np.einsum("r,krm->km", weights, steps)
    np.testing.assert_allclose(before[6], first + means[:5].sum(axis=0) + weights[:, None] * steps[5], rtol=1e-12)
    np.testing.assert_allclose(found, first + means.sum(axis=0), rtol=1e-12)


def test_fixed_changes_give_the_steps_of_diloco_a_round_later() -> None:
    """With momentum, too: where all ranks change alike, what is applied late is all but the own share."""
    first, step = np.zeros(3), np.array([1.0, -2.0, 0.5])
    move = lambda k, rank, model: model + step  # noqa: E731
    weights = np.full(2, 0.5)
    eager, _, _, _ = exchange(EagerDiLoCo(8, 0.7, 0.4), first, weights, 5, move, lambda k, r: 0.0)
    plain, _, _, _ = exchange(DiLoCo(8, 0.7, 0.4), first, weights, 5, move, lambda k, r: 0.0)
    for k in range(1, 6):
        np.testing.assert_allclose(eager[k] - (k < 5) * step, 0.5 * (at(plain, k, step) + at(plain, k - 1, step)))


def at(models: list[np.ndarray], k: int, step: np.ndarray) -> np.ndarray:
    """Return the models after k exchanges; those that are noted before one have taken a step since."""
    return models[k] - (step if k < len(models) - 1 else 0.0)


def test_threads_change_no_bit() -> None:
    """Sums beside the steps of a round give the model of sums for which all ranks wait."""
    shards = shards_of([40, 25, 33], d=7)
    beside = train_on("threads", shards, EagerDiLoCo(8))[0].params
    with mock.patch.object(rounds, "beside_for", return_value=None):
        waiting = train_on("threads", shards, EagerDiLoCo(8))[0].params
    assert beside.tobytes() == waiting.tobytes()


def test_one_rank_is_plain_sgd() -> None:
    """A rank that is alone has no others, and takes its own steps, to the bit."""
    [shard] = shards_of([40], d=7)
    found, plain = (train_on("threads", [shard], s)[0].params for s in (EagerDiLoCo(8), LocalSGD(8)))
    assert found.tobytes() == plain.tobytes()
