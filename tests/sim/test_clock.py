"""The virtual clock: seconds follow the closed forms, and a wait that cannot end raises at once."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

from dsgd.collectives import allreduce_cost, compressed_mean
from dsgd.comm.frames import HEADER_BYTES
from dsgd.compress import ErrorFeedback, GTopK, OneBit, PowerSGD, TernGrad, TopK
from dsgd.errors import AbortedError, InvalidParameterError, ProtocolError
from dsgd.sim import NETWORKS, Compute, Exponential, HeavyTail, Link, Network, NoStragglers, SimulatedCluster, SlowRank
from sim_links import ALPHA, BETA, FLAT, GAMMA, IDLE, cost, seconds


@pytest.mark.parametrize(
    ("compressor", "passes"),
    [
        # Encoded, set to zero, and two payloads decoded that hold all entries.
        (OneBit(), 4.0),
        (ErrorFeedback(OneBit()), 5.0),
        # Those of a hundredth of the entries cost next to nothing; two merges of these are of 2 k entries.
        (TopK(0.01), 2.0),
        (GTopK(0.01), 2.0),
        # Bounds, digits, half of two payloads, and codes into numbers that are added.
        (TernGrad(), 5.0),
        # Three products with a matrix, for each of its two factors.
        (PowerSGD(2), 6.0),
    ],
    ids=repr,
)
def test_encoding_costs_what_it_passes_over(compressor, passes):
    """On free wires a compressed mean of n elements takes a rank so many times n elements, at the price of each."""
    n, free = 6400, Network("free", between=Link(byte_s=0.0), inside=Link(byte_s=0.0))

    def program(rank, number):
        memory = compressor.init(n, np.float64, 0, number, 2)
        compressed_mean(rank.group, np.linspace(-1.0, 2.0, n), 0.5, compressor, memory)

    took = seconds(program, 2, free, compute=Compute(0.0, 0.0, 1.0 / n, 0.0, 0.0, "elements"))
    assert took == pytest.approx([passes] * 2, abs=0.1)


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_an_exchange_takes_alpha_and_beta_per_byte(n):
    """Two ranks that swap n bytes take alpha + beta n, both directions at once, and receive what was sent."""

    def program(rank, number):
        got = np.zeros(n, dtype=np.uint8)
        rank.group.transport.exchange(1 - number, np.full(n, number, dtype=np.uint8), 1 - number, got)
        assert (got == 1 - number).all()

    assert seconds(program, 2) == pytest.approx([cost(n)] * 2, rel=1e-14)


def test_latency_passes_beside():
    """A sender is busy for the overhead and its bytes, the receiver gets them a latency later."""
    link = Link(byte_s=BETA, overhead_s=1e-4, latency_s=1e-2)

    def program(rank, number):
        vector = np.zeros(100)
        if number == 0:
            rank.group.transport.send(1, vector)
            rank.group.transport.send(2, vector)
        else:
            rank.group.transport.recv(0, vector)

    busy = 1e-4 + BETA * (HEADER_BYTES + 800)
    expected = [2 * busy, 1e-2 + busy, 1e-2 + 2 * busy]
    assert seconds(program, 3, Network("far", link, link)) == pytest.approx(expected, rel=1e-14)


def test_a_port_serves_one_message_at_a_time():
    """Messages that three ranks send to one at the same time come one after the other, that of rank 1 first."""
    came = []

    def program(rank, number):
        vector = np.zeros(100)
        if number:
            rank.group.transport.send(0, vector)
        else:
            for source in (1, 2, 3):
                rank.group.transport.recv(source, vector)
                came.append(rank.ledger.clock())

    ends = seconds(program, 4)
    assert came == pytest.approx([cost(800), 2 * cost(800), 3 * cost(800)], rel=1e-14)
    assert ends == pytest.approx([3 * cost(800), cost(800), cost(800), cost(800)], rel=1e-14)


def test_ranks_of_a_host_share_its_card():
    """Two ranks of a host that send to other hosts wait for one card; what stays inside the host does not."""
    network = Network(
        "pairs", between=Link(byte_s=BETA, overhead_s=ALPHA), inside=Link(byte_s=0.0, overhead_s=1e-6), ranks_per_host=2
    )

    def program(rank, number):
        vector = np.zeros(100)
        if number < 2:
            rank.group.transport.send(number + 2, vector)
            rank.group.transport.exchange(1 - number, vector, 1 - number, vector)
        elif number < 4:
            rank.group.transport.recv(number - 2, vector)

    ends = seconds(program, 4, network)
    assert ends[2:] == pytest.approx([cost(800), 2 * cost(800)], rel=1e-14)
    # Rank 0 has sent after one message and waits for rank 1, which has sent after two.
    assert ends[:2] == pytest.approx([2 * cost(800) + 1e-6] * 2, rel=1e-12)


def test_direct_links_have_ports_of_their_own():
    """A GPU sends over several NVLinks at once, twice as fast over two, and over PCIe where it has none."""
    network = NETWORKS["NVLink"]

    def program(rank, number):
        vector = np.zeros(1 << 20, dtype=np.uint8)
        if number == 0:
            for peer in (1, 3, 5):
                rank.group.transport.send(peer, vector)
        elif number in (1, 3, 5):
            rank.group.transport.recv(0, vector)

    ends, n = seconds(program, 8, network), (1 << 20) + HEADER_BYTES
    assert network.lanes[0][1] == 1
    assert network.lanes[0][3] == 2
    one, two = network.link(0, 1).seconds(n), network.link(0, 3).seconds(n)
    assert network.link(0, 3).byte_s == network.link(0, 1).byte_s / 2
    assert ends[1] == pytest.approx(one)
    assert ends[3] == pytest.approx(one - network.link(0, 1).latency_s + two)
    assert network.link(0, 5) == network.inside


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_carries_a_sum(name):
    """On each network of a name 16 ranks add up, and it takes longer for longer vectors."""

    def program(rank, n):
        vector = np.full(n, float(rank.number))
        rank.group.allreduce(vector)
        assert (vector == 120.0).all()

    ends = [
        max(stat["virtual_s"] for stat in SimulatedCluster(16, name).run(program, [n] * 16).stats) for n in (10, 4000)
    ]
    assert 0.0 < ends[0] < ends[1]
    assert NETWORKS[name].source


def test_odd_links_are_found_from_both_ends():
    """A slow link between two hosts is slow in both directions, and for no other pair."""
    slow = FLAT.with_link(0, 2, FLAT.between.slower(10.0))
    assert slow.link(0, 2) == slow.link(2, 0) == Link(byte_s=10 * BETA, overhead_s=10 * ALPHA)
    assert slow.link(0, 1) == FLAT.between
    assert slow.with_link(2, 0, FLAT.between).link(0, 2) == FLAT.between


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_allreduce_takes_what_the_closed_form_says(algorithm, ranks):
    """All ranks end after ``messages alpha + bytes beta + added bytes gamma`` of the cost table, on equal clocks."""
    n = 64 * ranks

    def program(rank, number):
        vector = np.full(n, float(number))
        rank.group.allreduce(vector)
        assert (vector == ranks * (ranks - 1) / 2).all()

    table = allreduce_cost(0, ranks, n, 8, algorithm)
    added = 8 * n * ((ranks - 1) / ranks if algorithm == "ring" else np.log2(ranks))
    expected = table.messages * ALPHA + table.n_bytes * BETA + added * GAMMA
    cluster = SimulatedCluster(ranks, FLAT, IDLE)
    gang = cluster.run(program, list(range(ranks)), algorithm=algorithm)
    assert [stat["virtual_s"] for stat in gang.stats] == pytest.approx([expected] * ranks, rel=1e-12)


@pytest.mark.parametrize("stragglers", [NoStragglers(), Exponential(0.5), SlowRank(2, 3.0), HeavyTail(2.0)], ids=repr)
def test_factors_are_drawn_by_rank_and_round(stragglers):
    """Factors repeat, do not depend on what was drawn before, are at least one and have the mean of their law."""
    factors = np.array([[stragglers.factor(7, rank, k) for k in range(4000)] for rank in range(4)])
    assert stragglers.factor(7, 1, 1234) == factors[1, 1234]
    assert (factors >= 1.0).all()
    means = {NoStragglers: 1.0, Exponential: 1.5, SlowRank: 1.5, HeavyTail: 2.0}
    assert factors.mean() == pytest.approx(means[type(stragglers)], rel=0.1)
    if isinstance(stragglers, (Exponential, HeavyTail)):
        assert abs(np.corrcoef(factors[0], factors[1])[0, 1]) < 0.1
        assert stragglers.factor(8, 1, 1234) != factors[1, 1234]


def test_ranks_that_wait_for_each_other_are_told_at_once():
    """In a deadlock the error names which rank waits for which, and which have ended."""

    def program(rank, number):
        if number < 2:
            rank.group.transport.recv(1 - number, np.zeros(3))
        if number == 2:
            rank.group.transport.recv(3, np.zeros(3))

    with pytest.raises(
        ProtocolError, match=r"rank 0 waits for rank 1; rank 1 waits for rank 0; rank 2 waits for rank 3.*ended: \[3\]"
    ):
        seconds(program, 4)


def test_frames_that_do_not_fit_are_refused():
    """A rank that receives another length than was sent says so."""

    def program(rank, number):
        rank.group.transport.exchange(1 - number, np.zeros(3 + number), 1 - number, np.zeros(3))

    with pytest.raises(ProtocolError, match="not at the same point"):
        seconds(program, 2)


@pytest.mark.parametrize("culprit", [0, 3])
def test_an_error_of_one_rank_ends_all(culprit):
    """What a rank raises is raised, and no thread is left behind."""

    def program(rank, number):
        rank.group.barrier()
        if number == culprit:
            raise ZeroDivisionError("of this rank")
        rank.group.barrier()

    with pytest.raises(ZeroDivisionError, match="of this rank"):
        seconds(program, 5)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dsgd-rank")]


def test_ctrl_c_stops_it():
    """An interrupt reaches the caller while another rank has its turn, and all ranks end."""

    def program(rank, number):
        if number == 0:
            rank.group.transport.recv(1, np.zeros(1))
        signal.raise_signal(signal.SIGINT)
        while True:
            rank.check()

    with pytest.raises(KeyboardInterrupt):
        seconds(program, 2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dsgd-rank")]


def test_a_closed_transport_exchanges_nothing():
    """Who has left cannot come back."""

    def program(rank, number):
        rank.group.transport.close()
        rank.group.transport.send(1 - number, np.zeros(1))

    with pytest.raises(AbortedError, match="closed"):
        seconds(program, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SimulatedCluster(2, "token ring"),
        lambda: SimulatedCluster(2, stragglers="lazy"),
        lambda: SimulatedCluster(2, compute=3.0),
        lambda: Network("n", Link(byte_s=0), Link(byte_s=0), ranks_per_host=0),
        lambda: Network("n", Link(byte_s=0), Link(byte_s=0), 2, lanes=((0, 1), (2, 0)), lane=Link(byte_s=0)),
        lambda: Network("n", Link(byte_s=0), Link(byte_s=0), 2, lanes=((0, 1), (1, 0))),
    ],
)
def test_impossible_parts_are_refused(make):
    """A part with a value it cannot have raises when it is made."""
    with pytest.raises(InvalidParameterError, match=r"must be|go together"):
        make()
