"""Training on simulated clusters: models are those of threads, runs repeat exactly."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from typer.testing import CliRunner

from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.cli import app
from dsgd.datasets import split_rows
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.sim import (
    NETWORKS,
    Calibration,
    Compute,
    CostModel,
    HeavyTail,
    Link,
    Network,
    NoStragglers,
    SimulatedCluster,
    SlowRank,
    open_costs,
)
from dsgd.sim.measure import write_costs
from dsgd.svm import LinearSVC
from dsgd.sync import (
    AnytimeSGD,
    LocalSGD,
)
from sim_links import FLAT, cost

OPTIONS: dict[str, Any] = {"max_iter": 3, "tol": None, "random_state": 0}


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """A binary problem of 600 rows."""
    X, y = make_classification(600, 10, n_informative=8, class_sep=1.5, random_state=0)
    return X, y


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
    """Rounds of AnytimeSGD end by the virtual clock: a slow rank visits fewer rows, and no rank waits for it."""
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


def test_svms_run_on_it(data):
    """A linear SVM solved on simulated ranks is that of its own problem, and its messages take virtual seconds."""
    X, y = data
    svc = LinearSVC(client=SimulatedCluster(2), random_state=0).fit(X, y)
    assert svc.score(X, y) == pytest.approx(LinearSVC(random_state=0).fit(X, y).score(X, y), abs=0.01)
    assert svc.ledger_.elapsed_s > 0.0


def test_threads_take_blocks_as_simulated_ranks_do(data):
    """A list of (X, y), one for each rank, gives threads the bits of simulated ranks; another n_jobs is refused."""
    X, y = data
    blocks = [(X[rows], y[rows]) for rows in split_rows(y, 3, "dirichlet:0.5")]
    simulated = SGDClassifier(**OPTIONS, sync=50, client=SimulatedCluster(3)).fit(blocks)
    threads = SGDClassifier(**OPTIONS, sync=50).fit(blocks)
    assert threads.fit_report_["ranks"] == 3
    assert np.array_equal(simulated.coef_, threads.coef_)
    with pytest.raises(InvalidDataError, match="3 blocks, one for each thread, but n_jobs=2"):
        SGDClassifier(**OPTIONS, n_jobs=2).fit(blocks)
    with pytest.raises(InvalidDataError, match="targets"):
        SGDClassifier(**OPTIONS).fit(blocks, y)


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


def test_the_command_compares_strategies_periods_and_compressors():
    """Every combination is a line of one table, on a dataset by its name; what has no period or codec runs once."""
    rows = ["--dataset", "ijcnn1-like", "--rows", "300", "--ranks", "3", "--max-iter", "1"]
    what = ["-s", "local", "-s", "sgp:topology=ring", "-s", "one-shot", "--every", "20,50", "--compress", "topk:0.5"]
    found = CliRunner().invoke(app, ["simulate", *rows, *what, "--json"], catch_exceptions=False)
    sent = {report["sync"]: report["bytes_sent"] for report in json.loads(found.stdout)["networks"]}
    periods = [f"{name} every {n}" for name in ("local", "sgp:topology=ring") for n in (20, 50)]
    assert list(sent) == [*periods, "one-shot", "local every 20 + topk:0.5", "local every 50 + topk:0.5"]
    assert sent["local every 20"] > sent["local every 50"] > sent["one-shot"]
    table = CliRunner().invoke(app, ["simulate", *rows, *what], catch_exceptions=False).stdout
    assert all(name in table for name in sent)
    for wrong, told in ((["-s", "one-shot", "--every", "8"], "none of one-shot has a period"), ([], "--rows 300")):
        files = [] if wrong else ["--data", "a.svm"]
        options = rows if wrong else rows[2:]
        with pytest.raises(InvalidParameterError, match=told):
            CliRunner().invoke(app, ["simulate", *options, *files, *wrong], catch_exceptions=False)


def test_the_command_takes_what_was_measured(data, tmp_path):
    """``dsgd simulate --calibration`` has links and cores of a file, or its cores elsewhere; what is none is named."""
    X, y = data
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    way = Link(byte_s=1e-9, overhead_s=1e-3)
    twin = Calibration(2, Network("measured", way, way), Compute(0.0, 1e-5, 0.0, 0.0, 0.0))
    write_costs(CostModel(twin), tmp_path / "gang.json", {}, datetime.now(UTC))
    rows = ["-d", str(tmp_path / "rows.npz"), "--calibration", str(tmp_path / "gang.json")]
    command = ["simulate", *rows, "--ranks", "3", "--sync", "64", "--max-iter", "2", "--json"]
    found = CliRunner().invoke(app, command, catch_exceptions=False)
    [measured] = json.loads(found.stdout)["networks"]
    cluster = SimulatedCluster(3, twin.network, twin.compute)
    options = {"max_iter": 2, "tol": None, "random_state": 0, "sync": 64}
    assert measured["seconds"] == SGDClassifier(**options, client=cluster).fit(X, y).ledger_.elapsed_s
    found = CliRunner().invoke(app, [*command, "--network", "WAN"], catch_exceptions=False)
    elsewhere = SGDClassifier(**options, client=SimulatedCluster(3, "WAN", twin.compute)).fit(X, y).ledger_.elapsed_s
    assert [one["seconds"] for one in json.loads(found.stdout)["networks"]] == [measured["seconds"], elsewhere]
    with pytest.raises(InvalidParameterError, match=r"rows\.npz is not a calibration"):
        open_costs(tmp_path / "rows.npz")


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


def test_what_needs_real_machines_is_refused(data):
    """Parameters of real clusters, and rows that lie elsewhere, are refused with both named."""
    import dask.array as da

    X, y = data
    cluster = SimulatedCluster(2)
    for fields in ({"transport": "tcp"}, {"on_failure": "restart"}, {"elastic": True}, {"out_of_core": True}):
        with pytest.raises(IncompatiblePartsError, match="SimulatedCluster"):
            SGDClassifier(**OPTIONS, client=Gang(cluster, **fields)).fit(X, y)
    with pytest.raises(InvalidParameterError, match="n_jobs=3"):
        SGDClassifier(**OPTIONS, n_jobs=3, client=cluster).fit(X, y)
    with pytest.raises(InvalidDataError, match="arrays of this process"):
        SGDClassifier(**OPTIONS, client=cluster).fit(da.from_array(X), da.from_array(y))


def test_a_cluster_is_a_value(data):
    """It pickles, and a cloned estimator has an equal one."""
    cluster = SimulatedCluster(3, FLAT, stragglers=HeavyTail(1.5), seed=9)
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert clone(SGDClassifier(client=cluster)).client == cluster


def test_a_rank_trains_on_the_block_it_is_given(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list of blocks each rank has its own, of whatever length, and nothing is dealt again."""
    X, y = rng.normal(size=(90, 4)), np.repeat([0, 1, 0], 30)
    blocks = [(X[part], y[part]) for part in np.split(np.arange(90), [20, 50])]
    held: list[np.ndarray] = []
    run = SimulatedCluster.run

    def spy(cluster: SimulatedCluster, program: Any, data: Any, *others: Any, **options: Any) -> Any:
        held.extend(one.shard.values.copy() for one in data)
        return run(cluster, program, data, *others, **options)

    monkeypatch.setattr(SimulatedCluster, "run", spy)
    model = SGDClassifier(max_iter=2, tol=None, client=SimulatedCluster(3), random_state=0).fit(blocks)
    assert (model.n_features_in_, model.classes_.tolist()) == (4, [0, 1])
    for (own, _), rows in zip(blocks, held, strict=True):
        assert np.array_equal(np.sort(rows, axis=0), np.sort(own, axis=0))


def test_blocks_that_do_not_fit_the_ranks_are_refused(rng: np.random.Generator) -> None:
    """There is one block for each rank, and targets are in the blocks."""
    blocks = [(rng.normal(size=(20, 4)), np.arange(20) % 2)] * 2
    with pytest.raises(InvalidDataError, match=r"list of 2 blocks.*one for each rank"):
        SGDClassifier(client=SimulatedCluster(3)).fit(blocks)
    with pytest.raises(InvalidDataError, match="y and sample_weight must be None"):
        SGDClassifier(client=SimulatedCluster(2)).fit(blocks, np.arange(2))
