"""Rank programs for the tests of the gang; worker processes import them from here."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dsgd.collectives import Group
from dsgd.errors import InvalidDataError
from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime import Rank
from dsgd.runtime.train import TrainData, TrainJob, TrainResult, train
from dsgd.sync import AbstractStrategy, EveryRows, LocalSGD, NoState
from dsgd.sync.base import Exchange


def keep(blocks: Sequence[Any], rank_number: int) -> list[Any]:
    """Pack blocks by handing them on."""
    return list(blocks)


def keep_late(blocks: Sequence[Any], rank_number: int) -> list[Any]:
    """Hand blocks on, on the last of three ranks after a while."""
    if rank_number == 2:
        time.sleep(3.0)
    return list(blocks)


def expect_answers_within(seconds: float) -> None:
    """Let the ranks of a worker wait no longer than that where they need not have an answer of the scheduler."""
    sys.modules["dsgd.runtime.worker.rendezvous"]._CALL_S = seconds  # type: ignore[attr-defined]


def await_file(path: str) -> None:
    """Keep a thread of a worker busy until there is a file, for a minute at most."""
    deadline = time.monotonic() + 60.0
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.05)


def keep_for_a_while(blocks: Sequence[Any], rank_number: int) -> list[Any]:
    """Hand blocks on, after a second."""
    time.sleep(1.0)
    return list(blocks)


def hold_lock(seconds: int) -> str:
    """Keep the interpreter lock for some seconds, as code of somebody's own that does not release it."""
    ctypes.PyDLL(None).sleep(seconds)
    return "held"


class Rows:
    """Packed data that knows how many rows it has."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows


def count_rows(blocks: Sequence[Any], rank_number: int) -> Rows:
    return Rows(sum(len(y) for _, y, _ in blocks))


def add_up(rank: Rank, data: Sequence[Any]) -> np.ndarray:
    """Return the sums over ranks of 1, rank number, blocks, and all values."""
    vector = np.array([1.0, rank.number, len(data), sum(float(X.sum()) for X, _, _ in data)])
    rank.ledger.begin_round("sync")
    rank.group.allreduce(vector)
    rank.ledger.end_round()
    return vector


def sees_all(rank: Rank, data: Sequence[Any]) -> bool:
    """Return whether this rank reads the vectors of all others in memory."""
    return rank.group.transport.window is not None


def believe(n_cores: int) -> None:
    """Let a worker believe that it may use so many cores."""
    sys.modules["dask.system"].CPU_COUNT = n_cores  # type: ignore[attr-defined]


def add_long(rank: Rank, data: Any, n: int) -> float:
    """Return the sum of a long all-reduced vector of rank numbers plus one."""
    vector = np.full(n, rank.number + 1.0)
    rank.group.allreduce(vector)
    return float(vector.sum())


def compute(rank: Rank, data: Any, seconds: float) -> float:
    """Work in calls that hold no interpreter lock, without messages or looks at the flag; then count the ranks."""
    stop = time.monotonic() + seconds
    matrix = np.ones((1500, 1500))
    while time.monotonic() < stop:
        matrix = matrix @ matrix / 1500.0
    total = np.ones(1)
    rank.group.allreduce(total)
    return float(total[0])


def keep_loop_busy(seconds: float, dask_worker: Any) -> None:
    """Have the event loop of a worker do nothing else for some seconds."""

    def work() -> None:
        stop = time.monotonic() + seconds
        while time.monotonic() < stop:
            sum(range(100_000))

    dask_worker.loop.add_callback(work)


def sums_of(rank: Rank, data: Any, sizes: Sequence[int]) -> list[bytes]:
    """Return the bytes of all-reduced random vectors of these lengths."""
    rng = np.random.default_rng(rank.number)
    vectors = [rng.standard_normal(n) for n in sizes]
    for vector in vectors:
        rank.group.allreduce(vector)
    return [vector.tobytes() for vector in vectors]


def fill_shared_memory(full: bool) -> None:
    """Let this process find no room for shared memory, or let it find some again."""
    from dsgd.comm.memory import segment

    def refuse(fd: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    if full:
        segment._kept = segment._reserve  # type: ignore[attr-defined]
        segment._reserve = refuse
    else:
        segment._reserve = segment._kept  # type: ignore[attr-defined]


def move_clock(by_s: float) -> None:
    """Put the wall clock of this process ahead, or back if `by_s` is negative, wherever it is read."""
    before = time.time

    def moved() -> float:
        return before() + by_s

    for module in list(sys.modules.values()):
        if vars(module).get("time") is before:
            module.time = moved  # type: ignore[attr-defined]


def restart_timers(dask_worker: Any) -> None:
    """Start the timers of a worker anew, which rest as long as its wall clock was set back."""
    for timer in dask_worker.periodic_callbacks.values():
        if timer.is_running():
            timer.stop()
            timer.start()


def spin(rank: Rank, data: Any, seconds: float) -> int:
    """Synchronise again and again for some seconds; rank 0 publishes."""
    stop = time.monotonic() + seconds
    vector = np.ones(1)
    rounds = 0
    while vector[0] > 0:
        rank.check()
        rank.publish({"round": np.int64(rounds)})
        vector[0] = float(rank.number == 0 and time.monotonic() < stop)
        rank.group.allreduce(vector)
        time.sleep(0.001)
        rounds += 1
    return rounds


def work_alone(rank: Rank, data: Any, seconds: float) -> None:
    """Send nothing and only check the abort flag, as a long local phase does."""
    rank.group.barrier()
    rank.publish({"alone": True})
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        rank.check()
        time.sleep(0.01)


def wait_for_one_that_wanders(rank: Rank, data: Any) -> None:
    """Let the first rank wait for the second, which does something else for as long as the job goes on."""
    if rank.number == 1:
        wander_off(rank)
    rank.group.allreduce(np.ones(1))


def wander_off(rank: Rank) -> None:
    """Look around until the job stops."""
    while True:
        rank.check()
        time.sleep(0.01)


class OddError(Exception):
    """Pickles, but does not load again."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def fail(rank: Rank, data: Any, culprit: int, kind: str) -> None:
    """Let one rank raise while the others continue."""
    if rank.number == culprit:
        time.sleep(0.05)
        if kind == "zero":
            1 / 0  # noqa: B018
        if kind == "data":
            raise InvalidDataError("row 7 is bad")
        if kind == "odd":
            raise OddError("a", "b")
        if kind == "interrupt":
            raise KeyboardInterrupt
        if kind == "circle":
            held = [rank, ValueError("held by a frame that it holds")]
            raise held[1]
    spin(rank, data, 60.0)


def fail_to_pack(blocks: Sequence[Any], rank_number: int) -> None:
    if rank_number == 1:
        raise InvalidDataError("cannot pack")


def unpicklable(rank: Rank, data: Any) -> Any:
    rank.group.barrier()
    return threading.Lock()


def publish_all(rank: Rank, data: Any) -> None:
    """Publish faster than events may travel."""
    for number in range(200):
        rank.publish({"number": np.int64(number), "loss": np.float32(0.5), "name": "x", "none": None})
    rank.group.barrier()


class SlowSGD(SGD):
    """SGD that naps at every call on one row or more where the rank has an odd number of rows."""

    def bind(self, params: Any, shard: Any, state: Any) -> Any:
        """Return what takes the steps, after a nap."""
        walk = super().bind(params, shard, state)

        def walk_slowly(start: int, stop: int) -> None:
            if shard.n_rows % 2 and stop > start:
                time.sleep(0.005)
            walk(start, stop)

        return walk_slowly


def train_unevenly(rank: Rank, data: Any, strategy: AbstractStrategy | None = None, max_iter: int = 6) -> TrainResult:
    """Train with rank 1 many times as slow as the others."""
    rng = np.random.default_rng(rank.number)
    X = rng.standard_normal((100 + rank.number % 2, 3))
    optimizer = SlowSGD(Objective("hinge", "l2", 0.01))
    job = TrainJob(optimizer, strategy or LocalSGD(every=4), np.zeros(4), max_iter, tol=None, n_iter_no_change=5)
    return train(rank, TrainData(make_shard(X, np.sign(X[:, 0]))), job)


@dataclass(frozen=True)
class SlowRounds(AbstractStrategy[NoState]):
    """Averages models as local SGD does, but later, most so on a single rank: training that can be disturbed."""

    every: int = 64
    pause_s: float = 0.01
    alone_s: float = 0.01
    exchanges: ClassVar[Exchange] = "model"

    @property
    def period(self) -> EveryRows:
        """That of local SGD."""
        return EveryRows(self.every)

    def init(self, group: Group, params: np.ndarray, weight: float) -> NoState:
        """Return an empty record."""
        return NoState()

    def sync(self, group: Group, vector: np.ndarray, weight: float, state: NoState) -> None:
        """Wait, and average."""
        time.sleep(self.alone_s if group.size == 1 else self.pause_s)
        LocalSGD(every=self.every).sync(group, vector, weight, state)

    def collect(self, group: Group, params: np.ndarray, weight: float, state: NoState) -> None:
        """Do nothing: the ranks have equal models."""


def count_starts(rank: Rank, data: Any, seconds: float) -> int:
    """Work for some seconds, keep no state, and return how many ranks there are."""
    rank.publish({"begun": True})
    work_alone(rank, data, seconds)
    return rank.size
