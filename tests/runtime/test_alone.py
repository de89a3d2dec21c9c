"""A rank that is alone takes a shorter way through its epochs: it must be the usual one in all that can be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dsgd import SGDClassifier, SGDRegressor
from dsgd.runtime.train import loop

RNG = np.random.default_rng(4)
X = RNG.standard_normal((300, 6)) * (RNG.random((300, 6)) < 0.7)
VALUES = X @ RNG.standard_normal(6) + 0.3 * RNG.standard_normal(300)


def seen(model: Any) -> Any:
    """Return everything that a fit says, but how long it took."""
    history = [
        (each["epoch"], each["train_loss"], str(each["dispersion"]), each["bytes_sent"]) for each in model.history_
    ]
    totals = model.ledger_.totals()
    counted = {name: totals[name] for name in ("rounds", "bytes_sent", "messages", "control_bytes_sent")}
    ops = [set(rank.records["op"]) for rank in model.ledger_.ranks]  # of short rounds a sample is kept
    report = {name: model.fit_report_[name] for name in ("converged", "diverged", "ranks", "strategy")}
    return model.coef_.tobytes(), model.intercept_.tobytes(), model.n_iter_, model.t_, history, counted, ops, report


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SGDClassifier, {}),
        (SGDClassifier, {"penalty": "l1", "average": True}),
        (SGDClassifier, {"learning_rate": "adaptive", "eta0": 0.5}),
        (SGDClassifier, {"max_iter": 3, "tol": None, "shuffle": False}),
        (SGDRegressor, {}),
    ],
    ids=str,
)
def test_the_short_way_is_the_usual_one(
    kind: Any, options: dict[str, Any], form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models, records, ledgers and reports are the same, of one output and of three."""
    targets = [VALUES] if kind is SGDRegressor else [VALUES > 0, np.digitize(VALUES, [-1.0, 1.0])]
    asked: list[bool] = []
    is_alone = loop.is_alone
    for y in targets:
        found = []
        for short in (True, False):
            monkeypatch.setattr(
                loop, "is_alone", lambda *run, short=short: asked.append(is_alone(*run)) or (short and asked[-1])
            )
            found.append(seen(kind(random_state=0, **options).fit(form(X), y)))
        assert found[0] == found[1]
    assert all(asked)


@pytest.mark.parametrize(
    "options",
    [{"early_stopping": True}, {"n_jobs": 2, "sync": 16}, {"optimizer": "momentum:0.5"}, {"sampling": "importance"}],
)
def test_who_is_not_alone_takes_the_usual_way(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation rows, peers and steps of another kind are not for the short way."""
    monkeypatch.setattr(loop, "run_epochs", lambda *_: pytest.fail("the short way was taken"))
    SGDClassifier(random_state=0, learning_rate="constant", eta0=0.01, **options).fit(X, VALUES > 0)
