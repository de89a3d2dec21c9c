"""Where training settles: on quadratics, whose minimum is known in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.train import TrainData, TrainJob, TrainResult, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sim import SimulatedCluster
from dsgd.sync import STRATEGIES
from laws.minimisers import MINIMISERS, Block, Settles, pooled, quadratics

#: Rows of the ranks.
SHARDS = {"equal": lambda ranks: [24] * ranks, "1:3": lambda ranks: [12, 36] * (ranks // 2)}
ALPHAS = {"equal": 0.1, "1:3": 0.0}
FIRST = np.array([2.5, 2.5, -2.5, 0.0])


def job_of(strategy: Any, alpha: float, rate: float, epochs: int, **options: Any) -> TrainJob:
    """Return a job of least squares, or of ridge, with steps of one rate."""
    sgd = SGD(Objective("squared_error", "l2", alpha, fit_intercept=False), schedule="constant", eta0=rate)
    settings = {"initial": FIRST.copy(), "tol": None, "n_iter_no_change": 5, **options}
    return TrainJob(sgd, strategy, max_iter=epochs, **settings)


def run(job: TrainJob, blocks: Sequence[Block], given: Any = None) -> TrainResult:
    """Train on simulated ranks, one per block."""
    data = [TrainData(make_shard(X, y, shuffle=False)) for X, y in blocks]
    found: TrainResult = SimulatedCluster(len(blocks)).run(train, data, (job,), mail=mail_for(job), given=given).value
    return found


def fit_once(
    member: Settles, alpha: float, rate: float, epochs: int, blocks: list[Block], first: np.ndarray = FIRST
) -> np.ndarray:
    """Train in one go."""
    return run(job_of(member.strategy, alpha, rate, epochs, initial=first.copy()), blocks).params[:3]


@cache
def settled(member: Settles, shards: str) -> np.ndarray:
    """Return where a fit ends that is long enough; tests share it."""
    blocks = quadratics(SHARDS[shards](member.ranks))
    return fit_once(member, ALPHAS[shards], member.rate, int(36 / member.speed), blocks)


def fit_in_calls(member: Settles, alpha: float, rate: float, epochs: int, blocks: list[Block]) -> np.ndarray:
    """Train in five calls, each of which continues from the state of the one before, as ``partial_fit`` does."""
    found, given = TrainResult(FIRST, None, 0, 0, 0, 1.0, converged=False), None
    for k in range(5):
        options = {"initial": found.params.copy(), "t_start": found.t, "epochs_before": k * epochs, "leaves": {}}
        found = run(job_of(member.strategy, alpha, rate, epochs, **options), blocks, given)
        given = found.left
    return found.params[:3]


def dealt_anew(blocks: Sequence[Block], rows: Sequence[int]) -> list[Block]:
    """Return the same rows on other ranks."""
    X, y = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    ends = np.cumsum(rows)[:-1]
    return list(zip(np.split(X, ends), np.split(y, ends), strict=True))


def distance(found: np.ndarray, points: list[np.ndarray]) -> float:
    """Return the largest distance in a coordinate of which something is claimed, from the nearest of some points."""
    return min(float(np.nanmax(np.abs(found - point))) for point in points)


def test_every_strategy_says_where_it_settles() -> None:
    """The list has every strategy that there is."""
    assert {type(member.strategy) for member in MINIMISERS} == set(STRATEGIES.values())


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("member", MINIMISERS, ids=repr)
def test_training_settles_where_it_is_said_to(member: Settles, shards: str) -> None:
    """The model is within a number times the rate of the pooled minimiser, or of the bias that is documented."""
    blocks, alpha, rate = quadratics(SHARDS[shards](member.ranks)), ALPHAS[shards], member.rate
    points = member.at(blocks, alpha, rate=rate, epochs=int(36 / member.speed))
    assert distance(settled(member, shards), points) < member.within * rate


@pytest.mark.parametrize("member", MINIMISERS, ids=repr)
def test_many_calls_settle_there_too(member: Settles) -> None:
    """Five calls of ``partial_fit`` settle where one fit does; one-shot averaging has averaged after each."""
    blocks, alpha, rate = quadratics(SHARDS["1:3"](member.ranks)), ALPHAS["1:3"], member.rate
    epochs = int(np.ceil(8 / member.speed))
    found = fit_in_calls(member, alpha, rate, epochs, blocks)
    points = (member.in_calls or member.at)(blocks, alpha, rate=rate, epochs=epochs)
    assert distance(found, points) < member.within * rate


@pytest.mark.parametrize("member", [m for m in MINIMISERS if m.at is pooled], ids=repr)
def test_what_is_left_shrinks_with_the_rate(member: Settles) -> None:
    """With a quarter of the rate two fifths of the distance from the minimum of the whole are left at most, or none."""
    blocks = quadratics(SHARDS["1:3"](member.ranks))
    goal, far = pooled(blocks, ALPHAS["1:3"]), settled(member, "1:3")
    near = fit_once(member, ALPHAS["1:3"], member.rate / 4, 2 * int(36 / member.speed), blocks, np.append(far, 0.0))
    assert distance(near, goal) < max(0.4 * distance(far, goal), 0.02)


@pytest.mark.parametrize("member", MINIMISERS, ids=repr)
def test_ranks_that_are_lost_and_join_settle_there_too(member: Settles, tmp_path: Any) -> None:
    """From four ranks to three, to six, one of them empty, and back: the minimum of all rows is where training goes."""
    blocks, rate = quadratics([12, 36] * 2), member.rate
    options = {"checkpoint": Checkpoint(tmp_path), "resume_from": str(tmp_path)}
    gangs = [blocks, *(dealt_anew(blocks, rows) for rows in ([40, 20, 36], [0, 30, 6, 24, 24, 12])), blocks]
    last = int(40 / member.speed)
    for k, (gang, epochs) in enumerate(zip(gangs, [4, 8, 12, 12 + last], strict=True)):
        given = {**options, "resume_from": None} if k == 0 else options
        found = run(job_of(member.strategy, 0.0, rate, epochs, **given), gang).params[:3]
    assert distance(found, member.at(blocks, 0.0, rate=rate, epochs=last)) < 1.5 * member.within * rate
