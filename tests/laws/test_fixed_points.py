"""Where training settles: on quadratics, whose minimum is known in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.train import TrainData, TrainJob, TrainResult, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sim import SimulatedCluster
from dsgd.sync import OneShotAveraging
from members import FAMILY, Member, having
from reference.minimisers import Block, Settles, pooled, quadratics

FIRST = np.array([2.5, 2.5, -2.5, 0.0])


def equal_rows(settles: Settles) -> list[Block]:
    """Return as many rows on each rank."""
    return quadratics([24] * settles.ranks)


def unequal_rows(settles: Settles) -> list[Block]:
    """Return rows of which every other rank has twice as many; parts of an epoch are as long."""
    return quadratics([12, 24] * (settles.ranks // 2))


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


def dealt_anew(blocks: Sequence[Block], rows: Sequence[int]) -> list[Block]:
    """Return the same rows on other ranks."""
    X, y = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    ends = np.cumsum(rows)[:-1]
    return list(zip(np.split(X, ends), np.split(y, ends), strict=True))


def distance(found: TrainResult, points: list[np.ndarray]) -> float:
    """Return the largest distance in a coordinate of which something is claimed, from the nearest of some points."""
    return min(float(np.nanmax(np.abs(found.params[:3] - point))) for point in points)


@pytest.mark.parametrize("member", having("settles"), ids=repr)
def test_training_settles_where_it_is_said_to(member: Member) -> None:
    """The model is within a number times the rate of the pooled minimiser, or of the bias that is documented.

    With a quarter of the rate two fifths of the distance from the pooled minimiser are left at most, or none.
    """
    settles = member.settles
    assert settles is not None
    rate, epochs = settles.rate, int(20 / settles.speed)
    for blocks, alpha in ((equal_rows(settles), 0.1), (unequal_rows(settles), 0.0)):
        found = run(job_of(member.strategy, alpha, rate, epochs), blocks)
        far = distance(found, settles.at(blocks, alpha, rate=rate, epochs=epochs))
        assert far < settles.within * rate
    if settles.at is pooled:
        near = run(job_of(member.strategy, 0.0, rate / 4, 2 * epochs, initial=found.params.copy()), blocks)
        assert distance(near, pooled(blocks, 0.0)) < max(0.4 * far, 0.02)


# Calls of the others are one fit, bit for bit; see `test_partial_fit`.
@pytest.mark.parametrize(
    "member", [m for m in having("settles") if m not in FAMILY or isinstance(m.strategy, OneShotAveraging)], ids=repr
)
def test_many_calls_settle_there_too(member: Member) -> None:
    """Five calls, each from what the one before has left, settle where one fit does; one shot averages after each."""
    settles = member.settles
    assert settles is not None
    blocks, rate, epochs = unequal_rows(settles), settles.rate, int(np.ceil(4 / settles.speed))
    found, given = TrainResult(FIRST, None, 0, 0, 0, 1.0, converged=False), None
    for k in range(5):
        options = {"initial": found.params.copy(), "t_start": found.t, "epochs_before": k * epochs, "leaves": {}}
        found = run(job_of(member.strategy, 0.0, rate, epochs, **options), blocks, given)
        given = found.left
    assert distance(found, settles.at(blocks, 0.0, rate=rate, epochs=epochs)) < settles.within * rate


@pytest.mark.parametrize("member", having("settles"), ids=repr)
def test_ranks_that_are_lost_and_join_settle_there_too(member: Member, tmp_path: Any) -> None:
    """From four ranks to three, to six, one of them empty, and back: the minimum of all rows is where training goes."""
    settles = member.settles
    assert settles is not None
    blocks, rate = quadratics([12, 24] * 2), settles.rate
    options = {"checkpoint": Checkpoint(tmp_path), "resume_from": str(tmp_path)}
    gangs = [blocks, *(dealt_anew(blocks, rows) for rows in ([30, 15, 27], [0, 22, 5, 18, 18, 9])), blocks]
    last = int(20 / settles.speed)
    for k, (gang, epochs) in enumerate(zip(gangs, [4, 8, 12, 12 + last], strict=True)):
        given = {**options, "resume_from": None} if k == 0 else options
        found = run(job_of(member.strategy, 0.0, rate, epochs, **given), gang)
    assert distance(found, settles.at(blocks, 0.0, rate=rate, epochs=last)) < 1.5 * settles.within * rate
