"""A period that ranks find themselves: rules, agreement, cuts of an epoch, limit cases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd import Gang, SGDClassifier
from dsgd.compress import ErrorFeedback, TopK
from dsgd.errors import InvalidParameterError, ProtocolError
from dsgd.sim import SimulatedCluster
from dsgd.sync import AutoSync, Cut, LocalSGD, Seen
from dsgd.sync.adaptive import (
    QSR,
    AbstractRule,
    AdaComm,
    BudgetedPeriod,
    Choice,
    CommFloor,
    DynamicAveraging,
    FixedPeriod,
    Measured,
    PostLocal,
    VarianceBand,
    comm_floor,
)
from laws.gang import shards_of, train_on

NOW = Measured(
    every=100.0,
    epochs=2.0,
    age=1.5,
    seconds=1.0,
    row_s=1e-6,
    wire_s=30e-6,
    wait_s=20e-6,
    loss=0.25,
    rate=0.1,
    drift_sq=0.09,
    dispersion=0.04,
    norm_sq=1.0,
    curvature=2.0,
    slope=0.5,
    rows_left=1e5,
    floor=450.0,
    wire_floor=450.0,
    cap=5000.0,
)


@dataclass(frozen=True)
class InTurn(AbstractRule):
    """Take two periods in turn, whatever was measured."""

    first: int = 6
    other: int = 4

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the period that does not hold."""
        return Choice(self.other if now.every == self.first else self.first, "switch")


def changed(**values: float) -> Measured:
    """Return `NOW` with other values."""
    return NOW._replace(**values)


START = changed(loss=1.0, rate=0.4, dispersion=0.2, every=400.0)

#: A rule, what was measured, what had been at first, and the period by the equation in the head of its file.
EQUATIONS: list[tuple[AbstractRule, Measured, Measured, float]] = [
    (FixedPeriod(64), NOW, START, 64),
    (CommFloor(), NOW, NOW, 400),
    (CommFloor(), changed(dispersion=0.6), START, 50),
    (CommFloor(), changed(loss=2.1), START, 50),
    (CommFloor(), changed(every=200.0), START, 800),
    (CommFloor(), changed(every=300.0, floor=2000.0), START, 900),
    (CommFloor(), changed(every=1000.0), START, 1000),
    (CommFloor(), changed(every=4000.0), START, 4000),
    (CommFloor(), changed(every=4900.0, dispersion=0.2), START, 2450),
    (CommFloor(), changed(every=700.0, dispersion=0.2), START, 450),
    (CommFloor(apart=0.1), changed(every=200.0), START, 450),
    (CommFloor(apart=0.1), changed(every=800.0), START, 450),
    (CommFloor(apart=0.1), changed(every=400.0), START, 400),
    (AdaComm(first=400), NOW, START, 50),
    (AdaComm(first=400), changed(loss=0.01, every=300.0), START, math.ceil(math.sqrt(4 * 0.01) * 400)),
    (AdaComm(), changed(loss=0.01, every=300.0), START, math.ceil(math.sqrt(4 * 0.01) * 450)),
    (AdaComm(first=400), changed(age=0.5), START, 100),
    (QSR(first=64), NOW, START, 64 * 16),
    (QSR(first=64, a=3.0), NOW, START, 900),
    (QSR(first=64, a=0.3), NOW, START, 64),
    (VarianceBand(step=10), NOW, START, 100),
    (VarianceBand(step=10), changed(dispersion=0.034), START, 110),
    (VarianceBand(step=10), changed(dispersion=0.066), START, 90),
    (DynamicAveraging(delta=0.16), NOW, START, math.ceil(100 * 4 / 3)),
    (DynamicAveraging(delta=1e-9), NOW, START, 50),
    (DynamicAveraging(delta=9.0), NOW, START, 200),
    (PostLocal(first=100), changed(rate=0.3), START, 100),
    (PostLocal(first=100), NOW, START, 450),
    (PostLocal(first=64), NOW, START, 100),
]


@pytest.mark.parametrize(("rule", "now", "start", "period"), EQUATIONS)
def test_a_rule_is_its_equation(rule: AbstractRule, now: Measured, start: Measured, period: float) -> None:
    """The next period is the one that the equation of the source gives."""
    assert rule.next(now, start).every == pytest.approx(period, rel=1e-12)


@pytest.mark.parametrize("changes", [{}, {"curvature": 0.01}, {"dispersion": 1e-6, "rate": 0.01}, {"wire_s": 0.1}])
def test_the_budget_is_spent_as_the_bound_says(changes: dict[str, float]) -> None:
    """The period is the minimiser of the bound of the source, evaluated by numpy, up to the steps of the search."""
    now, rule = changed(**changes), BudgetedPeriod(budget_s=2.0)
    c, b, phi = now.row_s, now.wire_s + now.wait_s, rule.phi
    tau = np.arange(1.0, 10 * now.every + 1)
    beta, rho, eta = now.curvature, now.slope, now.rate
    delta = math.sqrt(now.dispersion) / (eta * now.every)
    with np.errstate(over="ignore"):
        drift = np.maximum(0.0, delta / beta * (np.minimum((1 + eta * beta) ** tau, 1e100) - 1) - eta * delta * tau)
    left = (rule.budget_s or 0.0) - now.seconds - c - b
    steps = left * tau / (c * tau + b)
    bound = (1 + np.sqrt(1 + 4 * steps**2 * phi * rho * eta * drift / tau)) / (2 * steps * eta * phi) + rho * drift
    found = rule.next(now, now).every
    assert bound[int(found) - 1] <= 1.05 * bound.min()
    assert rule.next(now._replace(seconds=3.0), now).every == now.every


@given(row_s=st.floats(1e-9, 1e-3), sync_s=st.floats(1e-6, 1e-1), target=st.floats(0.01, 0.9))
def test_the_floor_is_the_smallest_period_under_the_target(row_s: float, sync_s: float, target: float) -> None:
    """At the floor communication takes at most its share of the time, and one row earlier it takes more."""

    def share(every: float) -> float:
        return sync_s / (sync_s + every * row_s)

    floor = comm_floor(row_s, sync_s, target)
    assert share(floor) <= target * (1 + 1e-6)
    assert floor == 1 or share(floor - 1) > target * (1 - 1e-6)


@settings(max_examples=50)
@given(
    rows=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    changes=st.lists(st.tuples(st.integers(1, 70), st.integers(0, 9)), max_size=5),
)
def test_cuts_visit_every_row_once(rows: list[int], changes: list[tuple[int, int]]) -> None:
    """However often the rest of an epoch is cut again, its rounds are all rows of every rank, in order."""
    cut, ends = Cut.whole(rows, 3), [0] * len(rows)
    for every, n_rounds in [*changes, (70, 10**6)]:
        number = min(n_rounds, cut.rounds)
        for rank, n in enumerate(rows):
            for k in range(number):
                start, stop = cut.span(rank, n, k, k)
                assert start == ends[rank] <= stop
                ends[rank] = stop
        if number == cut.rounds:
            break
        cut = cut.after(number, rows, every)
    else:
        return
    assert ends == rows


@pytest.mark.parametrize("kind", ["threads", "shm"])
@pytest.mark.parametrize("every", [8, 17, 1000])
def test_a_fixed_rule_is_local_sgd(every: int, kind: str) -> None:
    """With a rule that never changes the period, models are those of local SGD to the bit."""
    shards = shards_of([40, 0, 53])
    expected = train_on("threads", shards, LocalSGD(every))[0]
    found = train_on(kind, shards, AutoSync(rule=FixedPeriod(every)))[0]
    assert found.params.tobytes() == expected.params.tobytes()
    assert [period["period"] for period in found.periods] == [every]


@pytest.mark.parametrize("rule", [InTurn(), CommFloor(), BudgetedPeriod()], ids=lambda rule: type(rule).__name__)
def test_ranks_decide_alike(rule: AbstractRule) -> None:
    """Ranks with many rows, with few and with none have the same periods and end in the same model, to the bit."""
    results = train_on("threads", shards_of([400, 90, 0]), AutoSync(rule=rule), max_iter=4)
    assert len({str(result.periods) for result in results}) == 1
    assert len({result.params.tobytes() for result in results}) == 1
    assert len(results[0].periods) > 1


def test_a_period_that_changes_is_the_same_on_every_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, ranks in shared memory, simulated ranks and fused rounds change alike, and end in the same bits."""
    shards = shards_of([150, 90])
    strategy = AutoSync(rule=InTurn())
    results = [train_on(kind, shards, strategy, max_iter=3)[0] for kind in ("threads", "shm")]
    X = np.random.default_rng(0).standard_normal((240, 4))
    y = X[:, 0] > 0
    fit: dict[str, Any] = {"sync": strategy, "max_iter": 3, "tol": None, "shuffle": False}
    fits = [SGDClassifier(**fit, n_jobs=2).fit(X, y)]
    fits.append(SGDClassifier(**fit, client=SimulatedCluster(2, "10GbE", stragglers="slow-rank")).fit(X, y))
    monkeypatch.setattr("dsgd.runtime.train.rounds.window_for", lambda *parts: None)
    fits.append(SGDClassifier(**fit, n_jobs=2).fit(X, y))
    assert len({result.params.tobytes() for result in results}) == 1
    assert len({fitted.coef_.tobytes() for fitted in fits}) == 1
    periods = [[record["period"] for record in fitted.sync_history_] for fitted in fits]
    assert periods[0] == periods[1] == periods[2]
    assert len(periods[0]) > 3


@pytest.mark.parametrize(("network", "first"), [("1GbE", 8000), ("WAN", 400)])
def test_simulated_ranks_find_the_floor(network: str, first: int) -> None:
    """On a virtual clock the period becomes twice the one that the closed form gives, as the replicas are close."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((64_000 if network == "1GbE" else 2000, 3))
    y = X[:, 0] > 0
    fit: dict[str, Any] = {"tol": None, "max_iter": 4, "client": SimulatedCluster(2, network)}
    fixed = SGDClassifier(**fit, sync=first).fit(X, y)
    record = fixed.ledger_.ranks[0].records
    record = record[record["op"] == "sync"][4]
    sync_s = record["encode_s"] + record["wire_s"] + record["wait_s"]
    expected = 2 * math.ceil(sync_s / (record["compute_s"] / first))
    auto = SGDClassifier(**fit, sync=AutoSync(0.5, CommFloor(first=first))).fit(X, y)
    assert auto.sync_history_[1]["period"] == pytest.approx(min(expected, len(X) // 2), rel=0.01)
    assert auto.sync_history_[1]["why"] == ("communication" if network == "1GbE" else "cap")
    assert (expected < len(X) // 2) == (network == "1GbE")


def test_ranks_that_do_not_agree_stop() -> None:
    """A rank that receives another period in the mean than its own raises, and says what may be wrong."""
    strategy, rows = AutoSync(rule=InTurn()), [100, 100]
    state = strategy.init(None, np.zeros(3), 0.5)  # type: ignore[arg-type]
    strategy.plan(rows, state)
    strategy.observe(Seen(*([1.0] * len(Seen._fields))), state)
    state.told[0] = 5.0
    with pytest.raises(ProtocolError, match="6 rows here and every 5"):
        strategy.decide(rows, 1.0, 1.0, state)


def test_only_the_last_periods_are_kept() -> None:
    """What is written down has a bound: the first period and the latest stay."""
    strategy, rows = AutoSync(rule=InTurn()), [100, 100]
    state = strategy.init(None, np.zeros(3), 0.5)  # type: ignore[arg-type]
    strategy.plan(rows, state)
    for k in range(200):
        strategy.observe(Seen(*([float(k + 1)] * len(Seen._fields))), state)
        strategy.decide(rows, 1.0, 1e9, state)
    found = strategy.history(state)
    assert len(found) == 64
    assert found[0]["why"] == "start"
    assert [record["seconds"] for record in found[1:]] == [float(k) for k in range(138, 201)]


def test_what_is_no_rule_is_refused() -> None:
    """When the strategy is made."""
    with pytest.raises(InvalidParameterError, match=r"AutoSync\(rule=\.\.\.\)"):
        AutoSync(rule="fixed")  # type: ignore[arg-type]


@pytest.mark.parametrize("compressor", ["auto", ErrorFeedback(TopK(0.5))], ids=str)
def test_compressed_models_are_measured_too(compressor: Any) -> None:
    """With a compressor ranks decide by a message of their own."""
    results = train_on("threads", shards_of([200, 90]), AutoSync(rule=InTurn(), compressor=compressor), max_iter=3)
    assert len({str(result.periods) for result in results}) == 1
    assert len(results[0].periods) > 3


@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
def test_training_goes_on_with_the_period_it_had(tmp_path: Any) -> None:
    """A fit that resumes from a checkpoint has the periods, and the bits, of one that was never interrupted."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((300, 4)), rng.random(300) > 0.5
    fit: dict[str, Any] = {"sync": AutoSync(rule=InTurn()), "tol": None, "n_jobs": 3, "random_state": 0}
    whole = SGDClassifier(**fit, max_iter=5).fit(X, y)
    SGDClassifier(**fit, max_iter=2, client=Gang(checkpoint=tmp_path)).fit(X, y)
    resumed = SGDClassifier(**fit, max_iter=5, client=Gang(resume_from=tmp_path)).fit(X, y)
    assert resumed.coef_.tobytes() == whole.coef_.tobytes()
    names = ("rows", "period", "why")
    histories = [[[record[name] for name in names] for record in f.sync_history_] for f in (whole, resumed)]
    assert histories[0] == histories[1]
    fewer = SGDClassifier(**{**fit, "n_jobs": 2}, max_iter=5, client=Gang(resume_from=tmp_path)).fit(X, y)
    assert len(fewer.sync_history_) > 3
