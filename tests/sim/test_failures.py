"""Simulated machines that stop: what is lost, what goes on, and how much of the time counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.errors import InvalidParameterError, WorkerLostError
from dsgd.sim import Compute, Failures, SimulatedCluster, SlowRank, predict
from dsgd.sync import ASGD, SGP, DiLoCo, LocalSGD, MinibatchSGD
from members import Strategy

# Four ranks of a hundred rows each, which take a tenth of a second in each of eight epochs.
LOCAL = LocalSGD(every=10)
ONCE = Failures(trace=((0.5, 2),), restart_s=2.0, every_s=0.1)


def fit(
    failures: Failures | None, on_failure: Any = "restart", sync: Strategy = LOCAL, **options: Any
) -> SGDClassifier:
    """Train on machines of which some stop."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 4))
    compute = Compute(0.0, 1e-3, 0.0, 0.0, 0.0, "a slow machine")
    cluster = SimulatedCluster(4, "10GbE", compute, failures=failures, on_failure=on_failure, **options)
    return SGDClassifier(max_iter=8, tol=None, random_state=0, sync=sync, client=cluster).fit(X, np.sign(X[:, 0]))


@pytest.mark.parametrize("sync", [LOCAL, MinibatchSGD(batch=40), DiLoCo(every=10)], ids=repr)
def test_a_restarted_training_ends_with_the_same_model(sync: Strategy) -> None:
    """Ranks that go on from a copy end with the bits of ranks that nothing happened to, later by what was lost."""
    whole, broken = fit(None, sync=sync), fit(ONCE, sync=sync)
    assert np.array_equal(whole.coef_, broken.coef_)
    [event] = broken.fit_report_["recoveries"]
    assert (event["rank"], event["at_s"], event["ranks"], event["rows_lost"]) == (2, 0.5, 4, 0)
    assert 0.0 < event["undone_s"] <= 0.5
    lost_s = event["undone_s"] + 2.0
    assert broken.ledger_.elapsed_s == pytest.approx(whole.ledger_.elapsed_s + lost_s, rel=0.05)
    assert broken.fit_report_["goodput"] == pytest.approx(1.0 - lost_s / broken.ledger_.elapsed_s)


def test_ranks_that_are_left_go_on_without_the_rows() -> None:
    """A gang that shrinks trains on the other rows, and the machine that is gone counts as idle."""
    shrunk = fit(ONCE, "shrink", stragglers=SlowRank(3, 2.0))
    report = shrunk.fit_report_
    assert (report["ranks"], report["rows_lost"]) == (3, 100)
    [event] = report["recoveries"]
    counted = 4 * (0.5 - event["undone_s"]) + 3 * (shrunk.ledger_.elapsed_s - 2.5)
    assert report["goodput"] == pytest.approx(counted / (4 * shrunk.ledger_.elapsed_s))
    # The slow machine has another number now, and is as slow.
    compute = [totals["compute_s"] for totals in shrunk.ledger_.per_rank().values()]
    assert compute[2] == pytest.approx(2.0 * compute[0])


@pytest.mark.parametrize("sync", [LOCAL, SGP(every=10), ASGD(batch=10)], ids=repr)
def test_a_machine_that_is_back_joins_at_the_end_of_an_epoch(sync: Strategy) -> None:
    """With its rows, and without any step that is taken twice; each failure is of a machine that is there."""
    model = fit(Failures(trace=((0.25, 2), (0.3, 2)), restart_s=0.1, every_s=0.05, return_s=0.2), "elastic", sync)
    lost, joined = model.fit_report_["recoveries"]
    assert [(e["kind"], e["ranks"], e["rows_lost"]) for e in (lost, joined)] == [("lost", 3, 100), ("joined", 4, 0)]
    assert (model.fit_report_["ranks"], model.fit_report_["rows_lost"], joined["undone_s"]) == (4, 100, 0.0)
    assert lost["at_s"] + 0.2 <= joined["at_s"]
    # Epochs took as long before, between and after, and none was trained twice.
    elapsed_s, gone_s = model.ledger_.elapsed_s, joined["at_s"] - lost["at_s"] - 0.1
    assert elapsed_s == pytest.approx(fit(None, sync=sync).ledger_.elapsed_s + 0.2 + lost["undone_s"], rel=0.15)
    counted = 4 * (elapsed_s - 0.2 - gone_s - lost["undone_s"]) + 3 * gone_s
    assert model.fit_report_["goodput"] == pytest.approx(counted / (4 * elapsed_s), rel=0.01)


@pytest.mark.parametrize("trace", [((99.0, 0),), ((0.5, 2),)], ids=["sound", "broken"])
def test_copies_that_take_time_count_as_lost(trace: Any) -> None:
    """Goodput is the time without failures and copies over the whole time, whether or not a machine stops."""
    whole = fit(None).ledger_.elapsed_s
    model = fit(Failures(trace=trace, restart_s=0.2, every_s=0.1, copy_s=0.05))
    assert model.ledger_.elapsed_s > whole + 5 * 0.05
    assert model.fit_report_["goodput"] == pytest.approx(whole / model.ledger_.elapsed_s, rel=0.02)


def test_failures_repeat_and_are_those_of_the_machines() -> None:
    """Equal seeds fail at equal times under each policy and strategy, at the rate that was asked for."""
    often = Failures(rate=1800.0, restart_s=0.1, every_s=0.05)
    runs = [fit(often, "restart", sync) for sync in (LOCAL, SGP(every=10), ASGD(batch=10))]
    struck = [[(e["at_s"], e["host"]) for e in run.fit_report_["recoveries"]] for run in runs]
    n = min(map(len, struck))
    assert n > 0
    assert struck[0][:n] == struck[1][:n] == struck[2][:n]
    assert fit(often).ledger_.totals() == runs[0].ledger_.totals()
    at, n_failures = 0.0, 2000
    for _ in range(n_failures):
        at, _ = often.first(0, range(4), at)
    assert at == pytest.approx(n_failures * 3600.0 / 1800.0 / 4, rel=0.1)


def test_a_failure_that_nothing_survives_is_raised() -> None:
    """It names rank, machine and time: where ranks are not to go on, where none is left, where none gets on."""
    with pytest.raises(WorkerLostError, match=r"rank 2 .*machine 2.*after 0\.5 virtual"):
        fit(ONCE, "raise")
    with pytest.raises(WorkerLostError, match="failure 4"):
        fit(Failures(trace=((0.1, 1), (0.2, 2), (0.3, 3), (0.6, 0)), restart_s=0.3), "shrink")
    with pytest.raises(WorkerLostError, match="failure 101"):
        fit(Failures(rate=1e6, restart_s=1e-3))
    with pytest.raises(InvalidParameterError, match="on_failure"):
        SimulatedCluster(2, on_failure="hope")  # type: ignore[arg-type]


def test_a_prediction_refuses_failures() -> None:
    """Closed forms know of none."""
    with pytest.raises(InvalidParameterError, match="failures"):
        predict(SimulatedCluster(2, failures=ONCE), n_params=3, rows=1, entries=3, rounds=1)


def test_no_failure_changes_nothing() -> None:
    """Machines that could fail and do not give the model of machines that cannot, and all of their time counts."""
    sound = fit(Failures(trace=((99.0, 0),)))
    assert np.array_equal(sound.coef_, fit(None).coef_)
    assert sound.fit_report_["goodput"] == 1.0
