"""The memory of ranks when others take over: lost ranks, new ones, rows assigned again; nothing is lost or doubled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd.collectives import Group
from dsgd.comm.frames import AbortFlag
from dsgd.comm.topology import Complete, Star
from dsgd.compress import DGC, QSGD, AdaComp, DeMo, ErrorFeedback, GTopK, Half, Layerwise, MajorityVote, PowerSGD, TopK
from dsgd.local import SGD, Objective
from dsgd.runtime.checkpoints.checkpoint import Checkpoint, SnapshotKeeper
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.job import TrainData, TrainJob
from dsgd.runtime.train.snapshots import SnapshotSchedule
from dsgd.runtime.train.state import TrainState
from dsgd.sync import DPSGD, EASGD, SCAFFOLD, SGP, ChocoSGD, DiLoCo, LocalSGD, MinibatchSGD, SlowMo
from dsgd.sync.base import state_arrays
from dsgd.sync.period import Cut
from gangs import run_gang
from laws.gang import exchange, shards_of
from members import FAMILY

BEFORE = [10, 40, 20, 30]
N = 6
STRATEGIES: dict[str, Any] = {
    "LocalSGD, TopK": LocalSGD(8, compressor=TopK(0.2)),
    "LocalSGD, Half": LocalSGD(8, compressor=Half()),
    "LocalSGD, GTopK": LocalSGD(8, compressor=GTopK(0.2)),
    "LocalSGD, AdaComp": LocalSGD(8, compressor=AdaComp(2)),
    "SlowMo, TopK": SlowMo(8, 0.4, compressor=TopK(0.2)),
    "DiLoCo, TopK": DiLoCo(8, 0.7, 0.4, compressor=TopK(0.2)),
    "LocalSGD, Layerwise": LocalSGD(8, compressor=Layerwise({"*": ErrorFeedback(TopK(0.2))})),
    "MinibatchSGD, DGC": MinibatchSGD(8, compressor=DGC(0.2)),
    "MinibatchSGD, DeMo": MinibatchSGD(8, compressor=DeMo(1, 4)),
    "MinibatchSGD, feedback": MinibatchSGD(8, compressor=ErrorFeedback(PowerSGD(1))),
    "MinibatchSGD, vote": MinibatchSGD(8, compressor=MajorityVote(momentum=0.9)),
}
#: What is in the unit of the sum over ranks.
IN_SUMS = re.compile(r"memory\.(parts\.0\.)?(residual|velocity|momentum)")


def job_of(strategy: Any, **options: Any) -> TrainJob:
    """Return a job of a strategy."""
    sgd = SGD(Objective("log_loss", "l2", 0.01), schedule="constant", eta0=0.1)
    return TrainJob(sgd, strategy, np.zeros(N), max_iter=9, tol=None, n_iter_no_change=5, **options)


def state_of(group: Group, job: TrainJob, shard: Any, rows: Sequence[int]) -> TrainState:
    """Return the state of a rank before the first step."""
    at = TrainState(np.zeros(N), job.optimizer.init(shard), Cut.whole(rows, 1))
    at.strategy = job.strategy.init(group, at.params, rows[group.rank] / sum(rows))
    return at


def go_on(
    strategy: Any,
    folder: Path,
    now: Sequence[int],
    lost: Sequence[int] = (),
    look: Callable[[Group, TrainState, Sequence[int]], None] = lambda group, at, rows: None,
) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray]]]:
    """Return the memory of each of four ranks after some rounds, and that of each rank that resumes from a file.

    With `lost`, ranks resume from the memory of the others, the first of the new gang. `look` sees each state.
    """
    job, shards = job_of(strategy), shards_of(BEFORE)
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((3, len(BEFORE), N))

    def work(group: Group) -> tuple[dict[str, np.ndarray], Any]:
        at = state_of(group, job, shards[group.rank], BEFORE)
        for step in steps:
            vector = at.params if strategy.exchanges == "model" else np.zeros(N)
            vector += step[group.rank]
            strategy.sync(group, vector, BEFORE[group.rank] / sum(BEFORE), at.strategy)
        at.epoch = 2
        look(group, at, BEFORE)
        keeper = SnapshotKeeper() if lost else None
        rank = Rank(group, AbortFlag(), keeper=keeper)
        kept = replace(job, checkpoint=None if lost else Checkpoint(folder, every_s=0))
        snapshots = SnapshotSchedule(rank, kept, TrainData(shards[group.rank]), BEFORE)
        wishes = np.array([1.0, 1.0, 1.0, 0.0])
        snapshots.end_epoch(at, wishes, is_last=False, same_model=strategy.ends_equal)
        copy = keeper and keeper.latest
        return {name: array.copy() for name, array in state_arrays(at.strategy).items()}, copy

    found = run_gang("inproc", len(BEFORE), work)
    copies = [copy for rank, (_, copy) in enumerate(found) if rank not in lost]
    options = {} if lost else {"resume_from": str(folder)}
    later = job_of(strategy, **options)

    def resume(group: Group) -> dict[str, np.ndarray]:
        keeper = SnapshotKeeper(copies[group.rank] if group.rank < len(copies) else None) if lost else None
        rank = Rank(group, AbortFlag(), keeper=keeper)
        shard = shards_of(now)[group.rank]
        at = state_of(group, later, shard, now)
        assert SnapshotSchedule(rank, later, TrainData(shard), list(now)).recall(at) is not None
        look(group, at, now)
        return {name: array.copy() for name, array in state_arrays(at.strategy).items()}

    return [state for state, _ in found], run_gang("inproc", len(now), resume)


NEW_GANGS = [[50, 20, 30], [100], [30, 10, 0, 20, 5, 5, 20, 10]]


@pytest.mark.parametrize("now", NEW_GANGS, ids=len)
@pytest.mark.parametrize("name", STRATEGIES)
def test_what_has_not_been_sent_is_conserved(name: str, now: list[int], tmp_path: Path) -> None:
    """Residuals and velocities keep their sum over ranks, whoever takes over; each rank gets its share by rows."""
    before, after = go_on(STRATEGIES[name], tmp_path, now)
    summed = [key for key in before[0] if IN_SUMS.search(key)]
    assert summed
    for key in summed:
        total = np.sum([state[key] for state in before], axis=0)
        assert np.abs(total).max() > 1e-5
        for state, n in zip(after, now, strict=True):
            np.testing.assert_allclose(state[key], n / sum(now) * total, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_lost_of_a_residual_is_that_of_the_lost_rank(name: str, tmp_path: Path) -> None:
    """Ranks that resume from copies in memory have the sum of the remaining ones, whatever their number."""
    for now in ([10, 40, 30], [10, 40, 50], [10, 20, 30, 40]):
        before, after = go_on(STRATEGIES[name], tmp_path, now, lost=[2])
        for key in [key for key in before[0] if IN_SUMS.search(key)]:
            total = np.sum([state[key] for rank, state in enumerate(before) if rank != 2], axis=0)
            found = np.sum([state[key] for state in after], axis=0)
            np.testing.assert_allclose(found, total, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("now", NEW_GANGS, ids=len)
def test_what_all_ranks_have_stays_to_the_bit(now: list[int], tmp_path: Path) -> None:
    """References, anchors, centres and outer momentum, equal on all ranks, go to all of the new gang as they are."""
    for strategy, names in (
        (DiLoCo(8, 0.7, 0.4, compressor=TopK(0.2)), ["anchor", "velocity", "compression.reference"]),
        (EASGD(8), ["centre"]),
        (LocalSGD(8, compressor=TopK(0.2)), ["reference"]),
    ):
        for lost in ([], [2]):
            before, after = go_on(strategy, tmp_path / type(strategy).__name__, now, lost)
            for key in names:
                assert {state[key].tobytes() for state in after} == {before[0][key].tobytes()}


@pytest.mark.parametrize("now", NEW_GANGS, ids=len)
def test_controls_cancel_after_a_change_of_ranks(now: list[int], tmp_path: Path) -> None:
    """The common control is the mean of the ranks' own, so that the corrections of SCAFFOLD add up to nothing."""
    for lost in ([], [2]):
        _, after = go_on(SCAFFOLD(8), tmp_path, now, lost=lost)
        mean = np.sum([n / sum(now) * state["own"] for n, state in zip(now, after, strict=True)], axis=0)
        for state in after:
            np.testing.assert_allclose(state["common"], mean, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("lost", [[], [1]], ids=["file", "copies"])
@pytest.mark.parametrize(
    "strategy",
    [DPSGD(8), SGP(8), SGP(8, Star()), ChocoSGD(8, TopK(0.3)), ChocoSGD(8, TopK(0.3), 0.4, Complete())],
    ids=repr,
)
def test_the_model_of_neighbours_stays(strategy: Any, lost: list[int], tmp_path: Path) -> None:
    """Whoever takes over from ranks of gossip, whose models differ, starts from what those would have returned."""
    returned, models = [], []

    def collect(group: Group, at: TrainState, rows: Sequence[int]) -> None:
        model = at.params.copy()
        strategy.collect(group, model, rows[group.rank] / sum(rows), at.strategy)
        (returned if len(rows) == len(BEFORE) else models).append((model, at.params.copy()))

    go_on(strategy, tmp_path, [60, 10, 30], lost=lost, look=collect)
    assert len({params.tobytes() for _, params in returned}) > 1
    for model, params in models:
        np.testing.assert_allclose(params, returned[0][0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(model, returned[0][0], rtol=1e-12, atol=1e-14)


def test_ranks_draw_numbers_of_their_own(tmp_path: Path) -> None:
    """After a change of ranks no two of them round by the same random numbers, and none begins them again."""
    before, after = go_on(LocalSGD(8, compressor=QSGD(3)), tmp_path, [30, 30, 40])
    keys = [int(state["memory.key"][0]) for state in after]
    assert len(set(keys)) == len(keys)
    assert {int(state["memory.n_drawn"][0]) for state in after} == {int(before[0]["memory.n_drawn"][0])} == {3}


def test_vectors_are_clipped_by_the_new_number_of_ranks(tmp_path: Path) -> None:
    """What DGC lets a rank pass follows from how many there are now."""
    _, after = go_on(MinibatchSGD(8, compressor=DGC(0.2, clip=1.0)), tmp_path, [50, 50])
    for state in after:
        np.testing.assert_allclose(state["memory.limit"], 2**-1.5, rtol=1e-14)


@pytest.mark.parametrize(
    "member", [m for m in FAMILY if m.strategy.talks == "together" and m.strategy.momentum == "keep"], ids=repr
)
def test_every_array_says_what_becomes_of_it(member: Any, tmp_path: Path) -> None:
    """Whatever a strategy remembers, its ranks resume from it with finite numbers and equal shapes."""
    strategy = member.strategy
    _, after = go_on(strategy, tmp_path, [30, 0, 40, 10, 20])
    _, _, _, fresh = exchange(strategy, np.zeros(N), np.full(5, 0.2), 0, lambda k, r, m: m, lambda k, r: 0.0)
    for state, new in zip(after, fresh, strict=True):
        shapes = {name: array.shape for name, array in state_arrays(new).items()}
        assert {name: array.shape for name, array in state.items()} == shapes
        assert all(np.isfinite(array).all() for name, array in state.items() if not name.endswith("limit"))
