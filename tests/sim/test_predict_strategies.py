"""Seconds and bytes of fits that are predicted, against those of the simulated cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.compress import (
    DGC,
    QSGD,
    AdaComp,
    DeMo,
    ErrorFeedback,
    GTopK,
    Half,
    Identity,
    MajorityVote,
    OneBit,
    PowerSGD,
    RandomK,
    Sign,
    TernGrad,
    TopK,
)
from dsgd.errors import IncompatiblePartsError
from dsgd.sim import SimulatedCluster, predict
from dsgd.sync import ADPSGD, AutoSync, LocalSGD, MinibatchSGD, PostLocalSGD
from dsgd.sync.adaptive import FixedPeriod
from dsgd.sync.names import STRATEGIES

EVERY, ROUNDS, EPOCHS, FEATURES = 8, 4, 3, 20
ROWS = EVERY * ROUNDS
#: Strategies that exchange once an epoch, or once in all.
SELDOM = {"epoch": EPOCHS, "one-shot": 1, "hogwild": EPOCHS}
KNOWN = [name for name, kind in STRATEGIES.items() if not kind.__module__.startswith("dsgd.sync.contrib")]
COMPRESSORS: list[Any] = [
    Identity(),
    Half(),
    QSGD(4),
    TernGrad(),
    DGC(0.1),
    DeMo(2),
    GTopK(0.1),
    GTopK(0.1, route="tree"),
    ErrorFeedback(RandomK(0.1)),
    ErrorFeedback(TopK(0.1)),
    ErrorFeedback(OneBit()),
    ErrorFeedback(Sign()),
    MajorityVote(),
    ErrorFeedback(PowerSGD(2)),
    AdaComp(),
    "auto",
]


def strategy_of(name: str, size: int) -> Any:
    """A strategy whose ranks exchange after eight rows each, as far as it has a period."""
    special = {
        "auto": AutoSync(rule=FixedPeriod(EVERY)),
        "post-local": PostLocalSGD(EVERY, EVERY),
        "minibatch": MinibatchSGD(EVERY * size),
    }
    return special.get(name) or (STRATEGIES[name]() if name in SELDOM else STRATEGIES[name](EVERY))


def compare(sync: Any, size: int, rounds: int, stragglers: str, *, counts_bytes: bool = True) -> None:
    """Train and predict; the seconds must be within a quarter, bytes and messages within a tenth."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS * size, FEATURES))
    y = np.where(X[:, 0] + 0.5 * rng.standard_normal(len(X)) > 0, 1, -1)
    cluster = SimulatedCluster(size, "10GbE", stragglers=stragglers)
    options = {"loss": "log_loss", "max_iter": EPOCHS, "tol": None, "random_state": 0}
    ledger = SGDClassifier(sync=sync, client=cluster, **options).fit(X, y).ledger_
    rows = EPOCHS * ROWS // rounds
    work = {"n_params": FEATURES + 1, "rows": rows, "entries": rows * FEATURES}
    found = predict(cluster, **work, rounds=rounds, epochs=EPOCHS, sync=sync)
    assert found.seconds == pytest.approx(ledger.elapsed_s, rel=0.25)
    if counts_bytes:
        assert found.n_bytes == pytest.approx(ledger.totals()["bytes_sent"], rel=0.1)
        assert found.messages == pytest.approx(ledger.totals()["messages"], rel=0.1)


@pytest.mark.parametrize(("size", "stragglers"), [(5, "none"), (16, "slow-rank")])
@pytest.mark.parametrize("name", KNOWN)
def test_fits_take_what_is_predicted_for_their_strategy(name, size, stragglers):
    """Seconds of a fit with every main strategy are predicted within a quarter, and its bytes within a tenth."""
    sync = strategy_of(name, size)
    # Who asks in pairs asks again when the answer has come, which depends on chance.
    compare(sync, size, SELDOM.get(name, EPOCHS * ROUNDS), stragglers, counts_bytes=not isinstance(sync, ADPSGD))


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in KNOWN])
def test_strategies_of_contrib_are_refused(name):
    """They have no prediction, and the error says how to have seconds and bytes all the same."""
    with pytest.raises(IncompatiblePartsError, match="train with it on the cluster"):
        predict(SimulatedCluster(4), n_params=9, rows=8, entries=8, rounds=2, sync=name)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_fits_take_what_is_predicted_for_their_compressor(compressor):
    """So they are with every compressor, of gradients and, where it is meant for them, of models."""
    compare(MinibatchSGD(EVERY * 5, compressor=compressor), 5, EPOCHS * ROUNDS, "none")
    if not isinstance(compressor, (DGC, DeMo, MajorityVote)):
        compare(LocalSGD(EVERY, compressor=compressor), 5, EPOCHS * ROUNDS, "none")


def test_thousands_of_ranks_need_no_more_than_their_number():
    """Ten thousand ranks are predicted too, of every kind of exchange, and send more than a hundred."""
    load = {"n_params": 500, "rows": 4, "entries": 40, "rounds": 3, "epochs": 1}
    for sync in ("local", "sgp", "leader", LocalSGD(4, compressor=TopK(0.01)), MinibatchSGD(4, compressor=TernGrad())):
        few, many = (predict(SimulatedCluster(size, "10GbE"), sync=sync, **load) for size in (100, 10_000))
        assert few.seconds > 0.0
        assert 0.0 < many.seconds < 10.0
        assert few.n_bytes < many.n_bytes
