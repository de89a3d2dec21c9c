"""How long is waited for what: limits and where they are set, and deadlines that follow the rounds measured."""

from __future__ import annotations

import threading
import time
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import gang_programs as programs
from dsgd.collectives import Group
from dsgd.comm.deadlines import Deadlines
from dsgd.comm.frames import AbortFlag
from dsgd.comm.wires import inproc
from dsgd.errors import GangTimeoutError, InvalidParameterError
from dsgd.local import SGD, Objective, make_shard
from dsgd.local.objective import n_params
from dsgd.runtime import Timeouts
from dsgd.runtime.rank import Rank
from dsgd.runtime.timeouts import DEFAULT_TIMEOUTS
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.sync import AbstractStrategy, EpochAveraging, LocalSGD, OneShotAveraging
from gang_cluster import client_fixture, cluster_fixture, on_ranks
from gangs import run_ranks


def make(limit_s: float = 300.0, **options: Any) -> tuple[Deadlines, Any]:
    transport = inproc.connect(2, timeout_s=limit_s)[0]
    return Deadlines(transport, **options), transport


@given(
    limit_s=st.floats(0.1, 1e4),
    spans=st.lists(st.tuples(st.sampled_from(["round", "edge"]), st.floats(0.0, 1e5)), max_size=150),
)
def test_every_deadline_lies_between_the_floor_and_the_limit(limit_s: float, spans: list[tuple[Any, float]]) -> None:
    """Whatever is measured, no wait gets less than the floor or more than the limit; an edge gets most."""
    deadlines, transport = make(limit_s)
    for kind, seconds in spans:
        deadlines.expect(kind)
        deadlines.add(seconds)
        assert min(max(limit_s * 0.0999, 1.0), limit_s) <= transport.deadline_s <= limit_s
    deadlines.expect("round")
    round_s = deadlines.deadline_s
    deadlines.expect("edge")
    n_rounds = sum(kind == "round" for kind, _ in spans)
    if n_rounds >= 20:
        assert deadlines.deadline_s >= round_s


def test_an_edge_has_a_deadline_of_its_own() -> None:
    """Ends of epochs that take a minute are waited for, in a job whose rounds take a moment; files, without measure."""
    deadlines, transport = make()
    for _ in range(20):
        deadlines.expect("round")
        deadlines.add(0.001)
    assert transport.deadline_s == 30.0
    deadlines.expect("edge")
    assert transport.deadline_s == 300.0
    for _ in range(3):
        deadlines.add(20.0)
    assert transport.deadline_s == 200.0
    deadlines.expect("round")
    assert transport.deadline_s == 30.0

    deadlines, transport = make(measures_edges=False)
    for kind in ("round", "edge"):
        deadlines.expect(kind)
        for _ in range(20):
            deadlines.add(0.001)
    assert transport.deadline_s == 300.0


def problem(rank: int, n_rows: int) -> TrainData:
    rng = np.random.default_rng(rank)
    X = rng.standard_normal((n_rows, 3))
    return TrainData(make_shard(X, np.sign(X[:, 0])))


class Slow(SGD):
    """Rows of rank 1 cost a while, as they would on a slower machine; after some epochs it never comes back."""

    def bind(self, params: Any, shard: Any, state: Any) -> Any:
        """Return what takes the steps, after a nap that rows and epoch decide."""
        walk = super().bind(params, shard, state)

        def walk_slowly(start: int, stop: int) -> None:
            if shard.n_rows == 41 and stop > start:
                HANG.wait(60.0 if state.epoch > HANGS_FROM[0] else 0.02)
            walk(start, stop)

        return walk_slowly


HANG = threading.Event()
HANGS_FROM = [10**9]


def job(strategy: AbstractStrategy, max_iter: int) -> TrainJob:
    optimizer = Slow(Objective("hinge", "l2", 0.01))
    return TrainJob(optimizer, strategy, np.zeros(n_params(3, 1)), max_iter, tol=None, n_iter_no_change=5)


def run(strategy: AbstractStrategy, max_iter: int, limit_s: float) -> list[Any]:
    """Train on two threads, of which one is slow; return what each returned or raised, and the deadlines at the end."""
    aborts = [AbortFlag(), AbortFlag()]
    transports = inproc.connect(2, timeout_s=limit_s, aborts=aborts, window=False)
    data = [problem(0, 40), problem(1, 41)]

    def rank(number: int) -> Any:
        try:
            return train(Rank(Group(transports[number]), aborts[number]), data[number], job(strategy, max_iter))
        finally:
            transports[number].close()
            if number == 0:
                HANG.set()

    HANG.clear()
    return [*run_ranks([lambda number=number: rank(number) for number in range(2)]), transports[0].deadline_s]


@pytest.mark.parametrize("strategy", [LocalSGD(every=5), EpochAveraging(), OneShotAveraging()], ids=repr)
def test_uneven_ranks_are_waited_for(strategy: AbstractStrategy) -> None:
    """A rank that is always slower than its peer is no hung rank, although the deadline has come down."""
    HANGS_FROM[0] = 10**9
    first, second, deadline_s = run(strategy, 6, limit_s=2.0)
    assert first.params.tobytes() == second.params.tobytes()
    assert 1.0 <= deadline_s <= 2.0


def test_a_program_that_hangs_is_found_by_the_measured_deadline() -> None:
    """Long before the limit given a rank names the peer that never came back, and says how it came to its deadline."""
    HANGS_FROM[0] = 6
    begin = time.monotonic()
    first, _, _ = run(LocalSGD(every=5), 20, limit_s=10.0)
    assert isinstance(first, GangTimeoutError)
    assert "for rank 1" in str(first)
    assert "no less than 1 s and no more than 10 s" in first.__notes__[0]
    assert time.monotonic() - begin < 9.0


cluster = cluster_fixture(2)
client = client_fixture(2)


def test_what_is_nearer_comes_first() -> None:
    """A limit is what the record says, else Dask's configuration, else the default."""
    assert Timeouts().settled() == Timeouts(**DEFAULT_TIMEOUTS)
    with dask.config.set({"dsgd.runtime.timeouts": {"queue": "2 minutes", "peer": 7, "lease": 9.5}}):
        settled = Timeouts(peer=3.0, hung=1.0).settled()
    assert settled == Timeouts(peer=3.0, queue=120.0, hung=1.0, lease=9.5, scheduler=DEFAULT_TIMEOUTS["scheduler"])
    assert Timeouts().settled() == Timeouts(**DEFAULT_TIMEOUTS)


@pytest.mark.parametrize("value", ["soon", 0, -3, [], "-1s"])
def test_a_setting_that_is_no_time_is_named(value: Any) -> None:
    """What Dask's configuration says wrongly is refused with the name of the setting."""
    with (
        dask.config.set({"dsgd.runtime.timeouts.hung": value}),
        pytest.raises(InvalidParameterError, match=r"dsgd\.runtime\.timeouts\.hung"),
    ):
        Timeouts().settled()


def test_limits_of_the_command_line() -> None:
    """They are given by name, and checked."""
    with pytest.raises(InvalidParameterError, match=r"Timeouts\(queue=\.\.\.\)"):
        Timeouts(queue=-1.0)
    assert Timeouts.parse("--timeout", ["queue=1h", "hung=30"]) == Timeouts(queue=3600.0, hung=30.0)
    for wrong_text in ("queue", "queue=soon", "que=3", "hung=-1"):
        with pytest.raises(InvalidParameterError, match="--timeout"):
            Timeouts.parse("--timeout", [wrong_text])


@pytest.mark.cluster
def test_a_missed_deadline_tells_where_all_ranks_were(client: Client) -> None:
    """The error of a rank that waited in vain has the stacks of all ranks: its own, and what the other one did."""
    with pytest.raises(GangTimeoutError, match="rank 0 waited 2 s for rank 1") as caught:
        on_ranks(client, programs.wait_for_one_that_wanders, timeouts=Timeouts(peer=2.0))
    told = "\n".join(caught.value.__notes__)
    first, second = told.split("rank 0 on worker tcp://")[-1].split("rank 1 on worker tcp://")
    assert "in wander_off" in second
    assert "in wander_off" not in first
    assert "in allreduce" in first
