"""What a whole fit sends is the algorithm's, to the byte, and control, which grows with the ranks and no faster.

The closed forms are those of `members`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from compressors import FAMILY as COMPRESSORS
from dsgd import SGDClassifier
from dsgd.collectives import compressed_cost
from dsgd.compress import AdaComp, ErrorFeedback, GTopK
from dsgd.ledger import CONTROL_OPS
from dsgd.sim import SimulatedCluster
from dsgd.sync import ADPSGD, DPSGD, SCAFFOLD, LocalSGD, MinibatchSGD, OneShotAveraging
from members import Member, having
from reference.messages import EPOCHS, FEATURES, LISTS, ROUNDS, ROWS, SUM, M

SIZES = [2, 5, 16]
HEADER, NUMBER = 40, 8


@cache
def rows(P: int, n_features: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS * P, n_features))
    return X, np.where(X[:, 0] + 0.3 * rng.standard_normal(ROWS * P) > 0, 1, -1)


def fit(strategy: Any, P: int, *, epochs: int = EPOCHS, n_features: int = FEATURES, **options: Any) -> SGDClassifier:
    """Return a model trained on simulated ranks with sixteen rows each."""
    # A loss that is curved, so that no gradient is zero.
    usual = {"loss": "log_loss", "max_iter": epochs, "tol": None, "random_state": 0, "client": SimulatedCluster(P)}
    options = usual | options
    return SGDClassifier(sync=strategy, **options).fit(*rows(P, n_features))


@cache
def totals_of(strategy: Any, P: int, epochs: int) -> dict[str, Any]:
    """Return what a fit has sent and taken."""
    return fit(strategy, P, epochs=epochs).ledger_.totals()


def minibatch(P: int, **options: Any) -> MinibatchSGD:
    """Return minibatch SGD whose steps are on eight rows of each rank."""
    return MinibatchSGD(8 * P, **options)


@pytest.mark.parametrize("P", SIZES)
@pytest.mark.parametrize("member", having("sent"), ids=repr)
def test_a_fit_sends_what_its_algorithm_says(member: Member, P: int) -> None:
    """Bytes and messages of a whole fit are those of its exchanges and of the mean in the end, to the byte."""
    assert member.sent is not None
    sent, totals = member.sent(P), totals_of(member.strategy, P, EPOCHS)
    assert totals["messages"] == sum(messages for messages, _ in sent)
    assert totals["bytes_sent"] == sum(messages * (HEADER + NUMBER * n) for messages, n in sent)


@pytest.mark.parametrize("P", SIZES)
def test_pairs_send_a_model_each_way(P: int) -> None:
    """Who asks in pairs sends model and a word, who answers the model; nothing else but the mean in the end."""
    totals = fit(ADPSGD(8), P).ledger_.totals()
    messages = totals["messages"] - SUM[P]
    asked = messages // 2
    assert messages == 2 * asked
    assert 0 < asked <= -(-P // 2) * ROUNDS
    own = asked * (2 * HEADER + NUMBER * (2 * M + 1))
    assert totals["bytes_sent"] == own + SUM[P] * (HEADER + NUMBER * M)


@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
@pytest.mark.parametrize("P", SIZES)
@pytest.mark.parametrize("compressor", [compressor for compressor, n_bits in COMPRESSORS if n_bits], ids=repr)
def test_a_compressed_fit_sends_its_payloads(compressor: Any, P: int) -> None:
    """What a compressor sends in a whole fit is its closed form, once in every round."""
    n = 40
    remembers = compressor.needs_feedback
    strategy = minibatch(P, compressor=ErrorFeedback(compressor) if remembers else compressor)
    totals = fit(strategy, P, n_features=n).ledger_.totals()
    costs = [compressed_cost(rank, P, n + 1, NUMBER, strategy.compressor) for rank in range(P)]
    assert totals["messages"] == ROUNDS * sum(cost.messages for cost in costs if cost)
    assert totals["bytes_sent"] == ROUNDS * sum(cost.n_bytes for cost in costs if cost)


@pytest.mark.parametrize("strategy", [LocalSGD(8), minibatch(5, compressor=GTopK(0.05))], ids=repr)
def test_an_intercept_that_is_not_fitted_goes_along(strategy: Any) -> None:
    """Fits without an intercept send what those with one do, and it stays zero: a form that counts it not."""
    without, beside = (fit(strategy, 5, n_features=40, fit_intercept=fitted).ledger_ for fitted in (False, True))
    assert without.totals()["bytes_sent"] == beside.totals()["bytes_sent"]
    assert without.record(without).n_params == 41
    assert fit(strategy, 5, n_features=40, fit_intercept=False).intercept_ == [0.0]


@pytest.mark.parametrize("P", SIZES)
def test_payloads_that_depend_on_the_rows_are_all_that_is_sent(P: int) -> None:
    """Of AdaComp, whose payloads have no fixed length, ranks send the lengths, and payloads or, if less, the sum."""
    totals = fit(minibatch(P, compressor=AdaComp()), P, n_features=40).ledger_.totals()
    lengths, whole = ROUNDS * P * len(LISTS[P]), ROUNDS * SUM[P]
    assert totals["messages"] in (2 * lengths, lengths + whole)
    sent = lengths * HEADER + ROUNDS * P * (P - 1) * NUMBER + whole * (HEADER + NUMBER * 41)
    assert totals["bytes_sent"] <= sent + HEADER * max(0, lengths - whole)
    assert totals["messages"] == 2 * lengths or totals["bytes_sent"] == sent


@pytest.mark.filterwarnings("ignore::dsgd.errors.DivergenceWarning")
@pytest.mark.parametrize("strategy", [*(member.strategy for member in having("sent")), ADPSGD(8)], ids=repr)
def test_control_of_an_epoch_grows_with_the_ranks(strategy: Any) -> None:
    """An epoch more costs two messages of control a rank, and bytes in proportion to the ranks."""
    per_rank = []
    for P in SIZES:
        short, long = (totals_of(strategy, P, epochs) for epochs in (1, EPOCHS))
        messages, n_bytes = ((long[name] - short[name]) / 2 for name in ("control_messages", "control_bytes_sent"))
        assert messages <= 2 * (P - 1) + (P - 1) * isinstance(strategy, ADPSGD)
        per_rank.append(n_bytes / (P - 1))
    assert max(per_rank) < 400
    assert per_rank[-1] <= 1.2 * per_rank[-2]


@pytest.mark.parametrize("P", SIZES)
def test_control_of_a_fit_takes_few_messages(P: int) -> None:
    """Before the first step a rank sends two messages at most, however many there are, as at the end of an epoch."""
    assert fit(LocalSGD(8), P).ledger_.totals()["control_messages"] == 2 * (P - 1) * (EPOCHS + 1)


def test_control_is_apart_in_every_table() -> None:
    """Totals, ranks, the frame and the summary hold control beside the algorithm, and the frame adds up to totals."""
    pytest.importorskip("pandas")
    ledger = fit(LocalSGD(8), 5, early_stopping=True, n_iter_no_change=50).ledger_
    totals, frame = ledger.totals(), ledger.to_frame()
    names = ["bytes_sent", "messages", "control_bytes_sent", "control_messages", "control_s"]
    for name in names:
        assert totals[name] == pytest.approx(sum(line[name] for line in ledger.per_rank().values()))
    # Set-up is never timed, and has no record.
    assert frame["bytes_sent"].sum() == totals["bytes_sent"]
    assert 0 < frame["control_bytes_sent"].sum() <= totals["control_bytes_sent"]
    is_control = frame["op"].isin(CONTROL_OPS)
    assert not frame.loc[is_control, ["bytes_sent", "messages", "wire_s", "wait_s"]].to_numpy().any()
    assert not frame.loc[~is_control, ["control_bytes_sent", "control_messages", "control_s"]].to_numpy().any()
    assert "control, beside the algorithm" in ledger.summary()


def test_a_look_at_the_model_is_no_part_of_the_algorithm() -> None:
    """Scoring a model that ranks do not have in common brings it together; the algorithm sends no more for it."""
    plain = fit(DPSGD(8), 5).ledger_.totals()
    scored = fit(DPSGD(8), 5, early_stopping=True, n_iter_no_change=50, validation_fraction=0.125).ledger_.totals()
    assert scored["control_messages"] >= plain["control_messages"] + EPOCHS * SUM[5]
    once = fit(OneShotAveraging(), 5, early_stopping=True, n_iter_no_change=50).ledger_.totals()
    assert (once["messages"], once["rounds"]) == (SUM[5], 1)


@pytest.mark.parametrize("P", [2, 5])
@pytest.mark.parametrize("strategy", [LocalSGD(8), DPSGD(8), OneShotAveraging(), SCAFFOLD(8)], ids=repr)
def test_threads_and_simulated_ranks_send_the_same(strategy: Any, P: int) -> None:
    """On threads a fit sends to the byte what it sends on simulated ranks, of the algorithm and of control."""
    simulated, threads = (fit(strategy, P, **how).ledger_.totals() for how in ({}, {"client": None, "n_jobs": P}))
    for name in ("bytes_sent", "messages", "control_bytes_sent", "control_messages", "rounds"):
        assert simulated[name] == threads[name], name
