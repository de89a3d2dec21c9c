"""Simulated clusters: their seconds follow the closed forms, their models are those of threads, runs repeat exactly."""

from __future__ import annotations

import json
import pickle
import signal
import threading
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from typer.testing import CliRunner

from dsgd import SGDClassifier, SGDRegressor
from dsgd.cli import app
from dsgd.collectives import allreduce_cost, compressed_mean
from dsgd.comm.wire import HEADER_BYTES
from dsgd.compress import ErrorFeedback, GTopK, OneBit, PowerSGD, TernGrad, TopK
from dsgd.errors import AbortedError, IncompatiblePartsError, InvalidDataError, InvalidParameterError, ProtocolError
from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.serving import mail_for
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.sim import NETWORKS, Compute, Exponential, HeavyTail, Link, Network, NoStragglers, SimulatedCluster, SlowRank
from dsgd.svm import LinearSVC
from dsgd.sync import (
    ASGD,
    DPSGD,
    EASGD,
    SCAFFOLD,
    SGP,
    AnytimeSGD,
    BackupWorkers,
    DiLoCo,
    EpochAveraging,
    LeaderSGD,
    LocalSGD,
    MinibatchSGD,
    OneShotAveraging,
    StaleSynchronous,
)

ALPHA, BETA, GAMMA = 3e-4, 2e-8, 5e-9
FLAT = Network("flat", between=Link(BETA, ALPHA), inside=Link(BETA, ALPHA))
#: No work costs anything but that of adding up.
IDLE = Compute(0.0, 0.0, 0.0, 0.0, GAMMA, "none")
STRATEGIES = [
    LocalSGD(every=50),
    LocalSGD(every=50, overlap=True),
    EpochAveraging(),
    OneShotAveraging(),
    MinibatchSGD(batch=20),
    AnytimeSGD(seconds=np.inf),
    LocalSGD(every=50, compressor=ErrorFeedback(TopK(density=0.5))),
    MinibatchSGD(batch=60, compressor=GTopK(density=0.3)),
    SGP(),
    DPSGD(),
    EASGD(),
    LeaderSGD(),
    SCAFFOLD(),
    DiLoCo(),
]
OPTIONS: dict[str, Any] = {"max_iter": 3, "tol": None, "random_state": 0}


def cost(n: int) -> float:
    """Seconds of a frame of n payload bytes."""
    return ALPHA + BETA * (HEADER_BYTES + n)


def seconds(program: Any, ranks: int, network: Network = FLAT, **options: Any) -> list[float]:
    """Run ``program(rank, number)`` and return when each rank had ended."""
    cluster = SimulatedCluster(ranks, network, **{"compute": IDLE, **options})
    return [stat["virtual_s"] for stat in cluster.run(program, list(range(ranks))).stats]


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """A binary problem of 600 rows."""
    X, y = make_classification(600, 10, n_informative=8, class_sep=1.5, random_state=0)
    return X, y


# -- seconds of messages -------------------------------------------------------------------------------------------


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
    n, free = 6400, Network("free", between=Link(0.0, 0.0), inside=Link(0.0, 0.0))

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
    """A sender is busy for the overhead and its bytes, the receiver hears of it a latency later."""
    link = Link(BETA, overhead_s=1e-4, latency_s=1e-2)

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
    network = Network("pairs", between=Link(BETA, ALPHA), inside=Link(0.0, 1e-6), ranks_per_host=2)

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
    """A pair of hosts with a slow link between them has it in both directions, and nobody else has."""
    slow = FLAT.with_link(0, 2, FLAT.between.slower(10.0))
    assert slow.link(0, 2) == slow.link(2, 0) == Link(10 * BETA, 10 * ALPHA)
    assert slow.link(0, 1) == FLAT.between
    assert slow.with_link(2, 0, FLAT.between).link(0, 2) == FLAT.between


# -- seconds of collectives ----------------------------------------------------------------------------------------


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


def test_ledger_is_in_virtual_seconds(data):
    """The seconds of ledger and history are those of the virtual clock, and every round is timed."""
    X, y = data
    clf = SGDClassifier(**OPTIONS, sync=LocalSGD(every=1), client=SimulatedCluster(2, "WAN")).fit(X, y)
    ends = [record["seconds"] for record in clf.fit_report_["epochs"]]
    totals, rounds = clf.ledger_.totals(), 300 * 3
    assert totals["rounds"] == rounds
    assert clf.ledger_.elapsed_s >= ends[-1] > ends[0] > 300 * NETWORKS["WAN"].between.alpha_s
    spent = sum(totals[f"{phase}_s"] for phase in ("compute", "encode", "wire", "wait"))
    # Meeting each other before the first round is not timed.
    assert 2 * ends[-1] == pytest.approx(spent, rel=0.01)
    frame = clf.ledger_.to_frame()
    assert (frame.op == "sync").sum() == 2 * rounds
    assert clf.fit_report_["stats"][1]["host"] == "simulated host 1"


# -- models ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_models_are_those_of_threads(data, strategy):
    """Four simulated ranks give the bits of four threads that own the same rows."""
    X, y = data
    options = {**OPTIONS, "shuffle": False, "sync": strategy}
    simulated = SGDClassifier(**options, client=SimulatedCluster(4, "10GbE", stragglers="heavy-tail")).fit(X, y)
    threads = SGDClassifier(**options, n_jobs=4).fit(X, y)
    assert np.array_equal(simulated.coef_, threads.coef_)
    assert np.array_equal(simulated.intercept_, threads.intercept_)
    sent = [model.ledger_.totals()["bytes_sent"] for model in (simulated, threads)]
    assert sent[0] == sent[1]


@pytest.mark.parametrize("stragglers", ["none", "exponential", "slow-rank", "heavy-tail"])
@pytest.mark.parametrize("strategy", [LocalSGD(every=50), AnytimeSGD(seconds=1e-3)], ids=repr)
def test_a_run_repeats_exactly(data, strategy, stragglers):
    """Two runs give the same bits and the same virtual seconds, also where the clock decides who does how much."""
    X, y = data
    cluster = SimulatedCluster(5, "10GbE", stragglers=stragglers, seed=3)
    runs = [SGDClassifier(**OPTIONS, sync=strategy, client=cluster).fit(X, y) for _ in range(2)]
    assert np.array_equal(runs[0].coef_, runs[1].coef_)
    assert runs[0].ledger_.totals() == runs[1].ledger_.totals()
    assert runs[0].ledger_.elapsed_s == runs[1].ledger_.elapsed_s > 0.0


def test_overlap_hides_the_exchange(data):
    """With overlap a round takes the longer of steps and exchange, without it their sum; models repeat."""
    X, y = data
    compute = Compute(0.0, 1e-4, 0.0, 0.0, 0.0, "a slow machine")
    taken = {}
    for overlap in (False, True):
        sync = LocalSGD(every=10, overlap=overlap)
        clf = SGDClassifier(**OPTIONS, sync=sync, client=SimulatedCluster(2, FLAT, compute)).fit(X, y)
        taken[overlap] = clf.fit_report_["epochs"][-1]["seconds"]
    exchange, rounds = cost(8 * 11), 3 * 30
    assert taken[False] - taken[True] == pytest.approx((rounds - 3) * exchange, rel=0.01)


def test_anytime_rounds_last_their_time(data):
    """Rounds of AnytimeSGD end by the virtual clock: a slow rank visits fewer rows and keeps nobody waiting."""
    X, y = data
    compute = Compute(0.0, 1e-4, 0.0, 0.0, 0.0, "a slow machine")
    cluster = SimulatedCluster(2, "InfiniBand", compute, SlowRank(0, 4.0))
    sync = AnytimeSGD(seconds=5e-3)
    clf = SGDClassifier(max_iter=5, tol=None, random_state=0, sync=sync, client=cluster).fit(X, y)
    per_rank, totals = clf.ledger_.per_rank(), clf.ledger_.totals()
    assert totals["wait_s"] < 0.1 * totals["compute_s"]
    assert per_rank[0]["compute_s"] == pytest.approx(per_rank[1]["compute_s"], rel=0.1)
    assert totals["compute_s"] / 2 / totals["rounds"] == pytest.approx(5e-3, rel=0.1)


def test_other_estimators_run_on_it(data):
    """A regressor trains on simulated ranks, with a validation split that all of them share."""
    X, _ = data
    y = X @ np.arange(10.0)
    reg = SGDRegressor(random_state=0, early_stopping=True, sync=64, client=SimulatedCluster(3)).fit(X, y)
    assert reg.score(X, y) > 0.99


@pytest.mark.parametrize("strategy", [ASGD(batch=8), StaleSynchronous(), BackupWorkers()], ids=repr)
def test_servers_repeat_exactly(data, strategy):
    """What a server does follows the virtual clock: two runs with stragglers give the same bits and seconds."""
    X, y = data
    job = TrainJob(
        optimizer=SGD(Objective(), schedule="constant", eta0=0.01),
        strategy=strategy,
        initial=np.zeros(X.shape[1] + 1),
        max_iter=2,
        tol=None,
        n_iter_no_change=5,
    )
    rows = [TrainData(make_shard(X[k::3].copy(), 2.0 * y[k::3] - 1.0)) for k in range(3)]
    cluster = SimulatedCluster(3, "10GbE", stragglers="heavy-tail", seed=1)
    runs = [cluster.run(train, rows, (job,), mail=mail_for(job)) for _ in range(2)]
    assert np.array_equal(runs[0].value.params, runs[1].value.params)
    assert runs[0].ledger.totals() == runs[1].ledger.totals()
    assert len(runs[0].ledger.ranks) == 4
    coef, intercept = runs[0].value.params[:-1], runs[0].value.params[-1]
    assert np.mean((X @ coef + intercept > 0) == (y == 1)) > 0.8


def test_svms_run_on_it(data):
    """A linear SVM solved on simulated ranks is that of its own problem, and its messages take virtual seconds."""
    X, y = data
    svc = LinearSVC(client=SimulatedCluster(2), random_state=0).fit(X, y)
    assert svc.score(X, y) == pytest.approx(LinearSVC(random_state=0).fit(X, y).score(X, y), abs=0.01)
    assert svc.ledger_.elapsed_s > 0.0


def test_the_command_compares_networks(data, tmp_path):
    """``dsgd simulate`` trains once for each network: equal losses, and a slow network takes longer."""
    X, y = data
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    command = ["simulate", "-d", str(tmp_path / "rows.npz"), "--ranks", "4", "--sync", "64", "--max-iter", "2"]
    networks = ["--network", "WAN", "--network", "10GbE"]
    found = CliRunner().invoke(app, [*command, *networks, "--json"], catch_exceptions=False)
    slow, fast = json.loads(found.stdout)["networks"]
    assert slow["seconds"] > 100 * fast["seconds"] > 0.0
    assert slow["training_loss"] == fast["training_loss"]
    assert slow["bytes_sent"] == fast["bytes_sent"]
    table = CliRunner().invoke(app, command, catch_exceptions=False).stdout
    assert "1GbE" in table
    assert "communication (wire + wait)" in table


# -- stragglers -----------------------------------------------------------------------------------------------------


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


def test_all_wait_for_the_slow_rank(data):
    """In synchronous rounds a rank that is five times slower makes computing five times longer, and the others wait."""
    X, y = data
    compute = Compute(0.0, 1e-5, 0.0, 0.0, 0.0, "a slow machine")
    ends, waits = [], []
    for stragglers in (NoStragglers(), SlowRank(1, 5.0)):
        cluster = SimulatedCluster(4, "InfiniBand", compute, stragglers)
        clf = SGDClassifier(**OPTIONS, sync=LocalSGD(every=50), client=cluster).fit(X, y)
        ends.append(clf.fit_report_["epochs"][-1]["seconds"])
        waits.append({rank: totals["wait_s"] for rank, totals in clf.ledger_.per_rank().items()})
    work = 3 * 150 * 1e-5
    assert ends[1] - ends[0] == pytest.approx(4 * work, rel=0.01)
    assert waits[1][0] - waits[1][1] == pytest.approx(4 * work, rel=0.05)


# -- errors ---------------------------------------------------------------------------------------------------------


def test_ranks_that_wait_for_each_other_are_told_at_once():
    """When nobody can go on the error names who waits for whom, and who has ended."""

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
        lambda: SimulatedCluster(0),
        lambda: SimulatedCluster(2, "token ring"),
        lambda: SimulatedCluster(2, stragglers="lazy"),
        lambda: SimulatedCluster(2, compute=3.0),
        lambda: Link(-1.0, 0.0),
        lambda: Compute(entry_s=-1.0),
        lambda: Exponential(-1.0),
        lambda: HeavyTail(0.0),
        lambda: SlowRank(0, 0.0),
        lambda: Network("n", Link(0, 0), Link(0, 0), ranks_per_host=0),
        lambda: Network("n", Link(0, 0), Link(0, 0), 2, lanes=((0, 1), (2, 0)), lane=Link(0, 0)),
        lambda: Network("n", Link(0, 0), Link(0, 0), 2, lanes=((0, 1), (1, 0))),
    ],
)
def test_impossible_parts_are_refused(make):
    """A part with a value it cannot have raises when it is made."""
    with pytest.raises(InvalidParameterError, match=r"must be|go together"):
        make()


def test_what_needs_real_machines_is_refused(data):
    """Parameters of real clusters, and rows that lie elsewhere, are refused with both named."""
    import dask.array as da

    X, y = data
    cluster = SimulatedCluster(2)
    for options in ({"transport": "tcp"}, {"on_failure": "restart"}, {"elastic": True}, {"out_of_core": True}):
        with pytest.raises(IncompatiblePartsError, match="SimulatedCluster"):
            SGDClassifier(**OPTIONS, **options, client=cluster).fit(X, y)
    with pytest.raises(InvalidParameterError, match="n_jobs=3"):
        SGDClassifier(**OPTIONS, n_jobs=3, client=cluster).fit(X, y)
    with pytest.raises(InvalidDataError, match="arrays of this process"):
        SGDClassifier(**OPTIONS, client=cluster).fit(da.from_array(X), da.from_array(y))


def test_a_cluster_is_a_value(data):
    """It pickles, and a cloned estimator has an equal one."""
    cluster = SimulatedCluster(3, FLAT, stragglers=HeavyTail(1.5), seed=9)
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert clone(SGDClassifier(client=cluster)).client == cluster
