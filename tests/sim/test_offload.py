"""Collectives that the simulator plays as a whole, against the same ones message by message."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.collectives.cost import ALGORITHMS
from dsgd.comm.frames import HEADER_BYTES
from dsgd.errors import AbortedError, ProtocolError
from dsgd.runtime.train import fused
from dsgd.sim import Compute, Link, Network, SimulatedCluster
from dsgd.sync import AutoSync, LocalSGD, MinibatchSGD
from sim_links import FLAT, IDLE, seconds

FAR = Network("far", Link(byte_s=2e-9, overhead_s=5e-5, latency_s=2e-4), Link(byte_s=1e-10, overhead_s=1e-5)).with_link(
    0, 3, Link(byte_s=8e-9, overhead_s=1e-4, latency_s=1e-3)
)
COMPUTE = Compute(entry_s=2e-9, row_s=5e-6, param_s=1e-9, call_s=2e-5, added_byte_s=3e-10)
SIZES = (1, 2, 3, 5, 8, 16, 17, 33)


def calls(rank, number, *, whole):
    """Every collective, after work that takes each rank another time, with messages of its own between them."""
    group, n = rank.group, 37
    if not whole:
        group.transport.offload = None
    rng = np.random.default_rng(number)
    found = []
    rank.ledger.begin_round("sync")
    for k, dtype in enumerate(("float64", "float32", "float64")):
        rank.worked(rows=1 + (7 * number + k) % 11, entries=5, params=3)
        vector = (1e3 * rng.standard_normal(n)).astype(dtype)
        vector[3], vector[5] = (np.nan if number == 1 else np.inf), -0.0
        group.allreduce(vector)
        found.append(vector)
    if group.size > 1:
        arrived = np.zeros(n)
        other = number ^ 1
        if other < group.size:
            group.transport.exchange(other, np.full(n, float(number)), other, arrived)
        found.append(arrived)
    with rank.ledger.aside():
        vector = rng.standard_normal(4)
        group.allreduce(vector, "max")
        group.barrier()
    rank.ledger.end_round()
    rank.worked(rows=number % 3)
    rank.ledger.begin_round("control")
    sums, own = rng.standard_normal(5), rng.standard_normal(2)
    told = group.tally(sums, own)
    found += [vector, sums, np.zeros(0) if told is None else told, group.roll_call(own), group.allgather(own)]
    found += group.allgatherv(rng.standard_normal(number % 4))
    rank.ledger.end_round()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_collectives_take_the_seconds_of_their_messages(algorithm):
    """Played as a whole, collectives have the bits, seconds, bytes and records of their messages, for 1 to 33 ranks."""
    for size in SIZES:
        cluster = SimulatedCluster(size, FAR, COMPUTE, "heavy-tail" if size % 3 else "none", seed=size)
        results: list[list[list[bytes]]] = []
        gangs = []
        for whole in (True, False):
            kept: list[list[bytes]] = [[] for _ in range(size)]

            def program(rank, number, whole=whole, kept=kept):
                kept[number] = [array.tobytes() for array in calls(rank, number, whole=whole)]

            gangs.append(cluster.run(program, list(range(size)), algorithm=algorithm))
            results.append(kept)
        assert results[0] == results[1]
        played, sent = gangs
        assert [s["virtual_s"] for s in played.stats] == [s["virtual_s"] for s in sent.stats]
        for mine, theirs in zip(played.ledger.ranks, sent.ledger.ranks, strict=True):
            assert mine.totals == theirs.totals
            assert mine.records.tobytes() == theirs.records.tobytes()


@pytest.mark.parametrize("sync", [LocalSGD(every=3), AutoSync(), MinibatchSGD(batch=40)], ids=repr)
def test_training_takes_the_seconds_of_its_messages(sync, monkeypatch):
    """A fit whose rounds run in one go has the model, seconds and ledger of one that sends each message."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((150, 4))
    y = np.sign(X[:, 0])
    monkeypatch.setattr(fused, "_MOST_ROUNDS", 4)
    found = []
    for whole in (True, False):
        if not whole:
            monkeypatch.setattr("dsgd.sim.cluster.SimTransport._run_whole", None)
            monkeypatch.setattr("dsgd.sim.cluster.Player", lambda *parts: None)
            monkeypatch.setattr("dsgd.sim.events.EventScheduler.attach", lambda *parts: None)
        cluster = SimulatedCluster(6, FAR, COMPUTE, "exponential")
        model = SGDClassifier(max_iter=3, tol=None, random_state=0, sync=sync, client=cluster).fit(X, y)
        ranks = [(r.totals, r.records.tobytes()) for r in model.ledger_.ranks]
        found.append((model.coef_.tobytes(), model.ledger_.elapsed_s, ranks))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (lambda group: group.allreduce(np.zeros(3)), lambda group: group.allreduce(np.zeros(4)), "got 24 bytes"),
        (lambda group: group.allreduce(np.zeros(3)), lambda group: group.barrier(), "got allreduce"),
        (
            lambda group: group.allreduce(np.zeros(3)),
            lambda group: group.allreduce(np.zeros(6, "float32")),
            "dtype float",
        ),
        (lambda group: group.allreduce(np.zeros(3)), lambda group: group.allreduce(np.zeros(3), "min"), "'min'"),
    ],
)
def test_ranks_at_different_points_are_told(one, other, says):
    """A rank that begins another collective than the first one did says what differs."""
    with pytest.raises(ProtocolError, match=f"rank 1 and rank 0 are not at the same point.*{says}"):
        seconds(lambda rank, number: (one, other)[number](rank.group), 2)


def test_a_rank_that_does_not_come_is_told_of():
    """Ranks that wait inside a collective for one that has ended are named at once."""

    def program(rank, number):
        if number != 2:
            rank.group.allreduce(np.zeros(3))

    with pytest.raises(ProtocolError, match=r"deadlock.*rank 3 waits for rank 2.*ended: \[2\]"):
        seconds(program, 4)


def test_a_closed_transport_begins_no_collective():
    """Who has left cannot come back."""

    def program(rank, number):
        rank.group.transport.close()
        rank.group.barrier()

    with pytest.raises(AbortedError, match="closed"):
        seconds(program, 2)


def test_many_messages_wait_at_one_port():
    """More messages than there was room for at first wait in a row at the port of a rank that gathers them."""
    size = 200
    ends = seconds(lambda rank, number: rank.group.roll_call(np.zeros(1)), size)
    width = 15
    # The first of a block takes in the frames of the others, one after another.
    up = (width - 1) * (FLAT.between.overhead_s + FLAT.between.byte_s * (HEADER_BYTES + 8))
    assert min(ends) > up


def test_schedules_that_are_never_the_same_are_forgotten(monkeypatch):
    """The table of moves does not grow with the number of different collectives."""
    monkeypatch.setattr("dsgd.sim.events._MOST_MOVES", 50)

    def program(rank, number):
        for n in range(60):
            total = np.ones(n)
            rank.group.allreduce(total)
            assert (total == 4.0).all()
        known = rank.group.transport._fabric.player._schedules
        assert len(known.moves) < 100

    seconds(partial(program), 4, compute=IDLE)
