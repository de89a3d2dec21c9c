"""What runs would have taken elsewhere, against runs that are made there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import dsgd
import dsgd.compress
import dsgd.svm
import dsgd.sync
from dsgd import SGDClassifier
from dsgd.cli import app
from dsgd.errors import InvalidParameterError
from dsgd.ledger import PHASES, Ledger
from dsgd.sim import NETWORKS, Failures, Link, Network, NoStragglers, SimulatedCluster, SlowRank
from dsgd.sync.names import STRATEGIES

EVERY, EPOCHS = 16, 3
X = np.random.default_rng(0).standard_normal((600, 12))
Y = np.where(X[:, 0] + 0.5 * X[:, 1] > 0, 1, -1)
OPTIONS: dict[str, Any] = {"loss": "log_loss", "max_iter": EPOCHS, "tol": None, "random_state": 0}
STRAGGLERS = ["none", "exponential", "slow-rank", "heavy-tail"]


def fitted(sync: Any = EVERY, ranks: int = 4, network: str = "10GbE", stragglers: str = "none") -> SGDClassifier:
    cluster = SimulatedCluster(ranks, network, stragglers=stragglers)
    model: SGDClassifier = SGDClassifier(sync=sync, client=cluster, **OPTIONS).fit(X, Y)
    return model


def local(**changes: Any) -> Any:
    return dsgd.sync.LocalSGD(changes.pop("every", EVERY), **changes)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(set(STRATEGIES) - {"anytime"})),
    network=st.sampled_from(sorted(NETWORKS)),
    stragglers=st.sampled_from(STRAGGLERS),
    ranks=st.integers(2, 9),
)
def test_on_the_run_itself_it_is_what_was_recorded(name: str, network: str, stragglers: str, ranks: int) -> None:
    """Nothing changed takes the recorded seconds, within 5 %, and phases add up: a lost phase."""
    model = fitted(STRATEGIES[name](), ranks, network, stragglers)
    found = model.ledger_.what_if()
    assert found.seconds == pytest.approx(model.ledger_.elapsed_s, rel=0.05)
    assert found.low <= found.seconds <= found.high
    assert sum(found.phases.values()) == pytest.approx(found.seconds)
    assert found.bytes_sent == model.ledger_.totals()["bytes_sent"]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"every": 64}, {"sync": local(every=64)}),
        ({"every": 1}, {"sync": local(every=1)}),
        ({"network": "WAN"}, {"network": "WAN"}),
        ({"ranks": 12}, {"ranks": 12}),
        ({"ranks": 2}, {"ranks": 2}),
        ({"stragglers": "slow-rank"}, {"stragglers": "slow-rank"}),
        ({"compressor": "fp16"}, {"sync": local(compressor=dsgd.compress.Half())}),
        ({"sync": "sgp"}, {"sync": "sgp"}),
        ({"sync": "asgd", "network": "1GbE"}, {"sync": "asgd", "network": "1GbE"}),
        ({"ranks": 8, "every": 4, "network": "1GbE"}, {"ranks": 8, "sync": local(every=4), "network": "1GbE"}),
    ],
)
def test_what_it_says_is_what_the_run_then_takes(change: dict[str, Any], again: dict[str, Any]) -> None:
    """Seconds of a changed simulation are in the interval, and bytes are exact: a change that is not played."""
    found, then = fitted(local()).ledger_.what_if(**change), fitted(**{"sync": local(), **again}).ledger_
    assert found.low <= then.elapsed_s <= found.high
    assert found.bytes_sent == pytest.approx(then.totals()["bytes_sent"], rel=0.1)
    assert found.rounds == then.totals()["rounds"] or change.get("sync") == "asgd"


def test_a_run_of_threads_is_what_was_recorded_and_longer_periods_send_less() -> None:
    """A fitted wire plays the rounds of a real run as they were, and fewer rounds send less."""
    model = SGDClassifier(sync=4, n_jobs=2, **OPTIONS).fit(X, Y)
    record = model.ledger_.record(model.ledger_)
    found, longer = model.ledger_.what_if(), model.ledger_.what_if(every=64)
    assert found.seconds == pytest.approx(record.seconds, rel=0.05)
    assert sum(found.phases.values()) == pytest.approx(found.seconds)
    assert longer.bytes_sent < found.bytes_sent
    assert longer.low <= longer.seconds <= longer.high
    assert model.ledger_.what_if(network="WAN").seconds > 10 * found.seconds
    assert "recorded rounds of 2 ranks" in str(longer)


def test_what_is_further_from_a_real_run_is_less_certain() -> None:
    """Intervals widen with the factor between periods: a margin that knows no distance."""
    model = SGDClassifier(sync=4, n_jobs=2, **OPTIONS).fit(X, Y)
    widths = [point.high / point.low for point in model.ledger_.sweep([4, 32, 256]).points]
    assert widths == sorted(widths)
    assert widths[0] > 2.0


def test_the_knee_is_the_shortest_period_that_is_near_the_best() -> None:
    """A sweep is ascending; only periods before its knee take over a tenth longer than the best."""
    sweep = fitted(network="WAN").ledger_.sweep([1024, 1, 16, 4])
    assert [point.every for point in sweep.points] == [1, 4, 16, 1024]
    least = min(point.seconds for point in sweep.points)
    assert all((point.seconds <= 1.1 * least) == (point.every >= sweep.knee) for point in sweep.points)
    assert f"knee: every={sweep.knee}" in str(sweep)


@pytest.mark.parametrize(
    ("model", "change", "said"),
    [
        (lambda: SGDClassifier(**OPTIONS).fit(X, Y), {"ranks": 2}, "one rank"),
        (lambda: fitted("epoch"), {"every": 4}, "no period"),
        (lambda: fitted("asgd"), {"compressor": "fp16"}, "takes none"),
        (lambda: fitted(), {"network": "carrier pigeon"}, "carrier pigeon"),
        (lambda: fitted(), {"ranks": 0}, "ranks"),
    ],
)
def test_what_cannot_be_said_is_refused(model: Any, change: dict[str, Any], said: str) -> None:
    """A question without an answer names what is wrong with it."""
    with pytest.raises(InvalidParameterError, match=said):
        model().ledger_.what_if(**change)


def test_a_ledger_that_knows_no_rounds_says_so() -> None:
    """Ledgers of other solvers refuse the question."""
    with pytest.raises(InvalidParameterError, match="SGDClassifier"):
        Ledger([]).what_if()


def test_advice_is_what_would_clearly_be_faster() -> None:
    """Advice names a period that the play finds faster, and none where communication is nothing."""
    wide = np.random.default_rng(0).standard_normal((4000, 500))
    target = np.where(wide[:, 0] > 0, 1, -1)

    def ledger(network: str, every: int) -> Ledger:
        cluster = SimulatedCluster(8, network)
        found: Ledger = SGDClassifier(sync=every, client=cluster, **OPTIONS).fit(wide, target).ledger_
        return found

    slow = ledger("10GbE", 32)
    assert "would take" in slow.advice()
    assert slow.summary().endswith(slow.advice())
    assert ledger("InfiniBand", 1_000_000).advice() == ""


OWN = Network("own", Link(byte_s=1e-8, latency_s=1e-4), Link(byte_s=1e-9))
FLAKY = SimulatedCluster(
    4, OWN, stragglers=SlowRank(1), failures=Failures(trace=[(1e-3, 2)], every_s=1e-3), on_failure="restart"
)


@pytest.mark.parametrize(
    "where", [{"n_jobs": 2}, {"client": SimulatedCluster(3, "WAN", stragglers="heavy-tail")}, {"client": FLAKY}]
)
def test_a_saved_model_answers_as_its_ledger_does(tmp_path: Path, where: dict[str, Any]) -> None:
    """Files keep the record of the run, a further fit drops it, and the command prints it."""
    model = SGDClassifier(sync=EVERY, **where, **OPTIONS).fit(X, Y)
    path = tmp_path / "model.dsgd"
    model.save(path)
    loaded = dsgd.load(path)
    assert loaded.run_.what_if(every=64) == model.ledger_.what_if(every=64)
    told = CliRunner().invoke(app, ["what-if", str(path), "--network", "WAN", "--every", "4,64", "--json"])
    assert [point["every"] for point in json.loads(told.stdout)] == [4, 64]
    assert json.loads(told.stdout)[0]["seconds"] == model.ledger_.what_if(every=4, network="WAN").seconds
    shown = CliRunner().invoke(app, ["what-if", str(path), "--ranks", "4", "--network", "1GbE"])
    assert shown.stdout.startswith("network=1GbE, ranks=4: ")
    loaded.fit(X, Y)
    assert "run_" not in vars(loaded)


def test_a_model_without_a_record_is_refused_by_the_command(tmp_path: Path) -> None:
    """The command names the model that has no record: of another solver, or of a cluster that files do not describe."""
    own = SimulatedCluster(2, stragglers=type("Mine", (NoStragglers,), {})())
    for model in (dsgd.svm.LinearSVC(), SGDClassifier(client=own, **OPTIONS)):
        model.fit(X, Y).save(tmp_path / "other.dsgd")
        told = CliRunner().invoke(app, ["what-if", str(tmp_path / "other.dsgd")])
        assert isinstance(told.exception, InvalidParameterError)
        assert "classes of your own" in str(told.exception)


def test_a_timeline_holds_the_seconds_of_the_records(tmp_path: Path) -> None:
    """Slices of a rank follow each other, and their sum is that of its records: overlapping or lost phases."""
    ledger = fitted(stragglers="exponential").ledger_
    ledger.to_perfetto(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for one in ledger.ranks:
        slices = [event for event in events if event["ph"] == "X" and event["tid"] == one.rank]
        ends = [event["ts"] + event["dur"] for event in slices]
        assert all(event["ts"] >= end * (1 - 1e-12) for event, end in zip(slices[1:], ends, strict=False))
        recorded = sum(one.records[f"{phase}_s"].sum() for phase in PHASES)
        assert sum(event["dur"] for event in slices) == pytest.approx(1e6 * recorded)
    sent = [event["args"]["bytes"] for event in events if event["name"] == "bytes sent by rank 0"]
    assert sent[-1] == ledger.ranks[0].records["bytes_sent"].sum()


def test_a_difference_of_ledgers_has_all_phases() -> None:
    """Each phase has the seconds of both runs, in the mean over ranks."""
    one, other = fitted(ranks=2).ledger_, fitted(ranks=4).ledger_
    lines = one.diff(other).splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == [*PHASES, "elapsed", "sent", "rounds"]
    compute = next(line for line in lines if line.split()[0] == "compute").split()
    assert float(compute[1]) == pytest.approx(one.totals()["compute_s"] / 2, rel=1e-3)
    assert float(compute[3]) == pytest.approx(other.totals()["compute_s"] / 4, rel=1e-3)
