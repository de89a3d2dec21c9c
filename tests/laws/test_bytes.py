"""What a whole fit sends is the algorithm's, to the byte, and control, which grows with the ranks and no faster.

The closed forms are written down here once more, in messages of all ranks together and elements of each: what the
papers and the tables of the documentation say, and not what the library counts with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier
from dsgd.collectives import compressed_cost
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
    NonZero,
    OneBit,
    PowerSGD,
    RandomK,
    Sign,
    TernGrad,
    TopK,
)
from dsgd.ledger import CONTROL_OPS
from dsgd.sim import SimulatedCluster
from dsgd.sync import (
    ADMM,
    ADPSGD,
    ASGD,
    DPSGD,
    EASGD,
    SCAFFOLD,
    SGP,
    AnytimeSGD,
    AsyncADMM,
    AsyncEASGD,
    AsyncLeaderSGD,
    AutoSync,
    BackupWorkers,
    ChocoSGD,
    DecoupledDiLoCo,
    DelayCompensatedASGD,
    DiLoCo,
    Downpour,
    EagerDiLoCo,
    EpochAveraging,
    FedProx,
    Hogwild,
    LeaderSGD,
    LocalSGD,
    MinibatchSGD,
    OneShotAveraging,
    OverlapSGP,
    PostLocalSGD,
    SlowMo,
    StalenessAware,
    StaleSynchronous,
    StreamingDiLoCo,
)
from dsgd.sync.adaptive import FixedPeriod
from dsgd.sync.names import STRATEGIES

SIZES = [2, 5, 16]
HEADER, NUMBER = 40, 8
FEATURES, ROWS, EPOCHS = 5, 16, 3
M = FEATURES + 1  # the intercept
# Exchanges of a strategy with a period of eight rows; of an epoch, and of the fit.
PER_EPOCH, ROUNDS = ROWS // 8, EPOCHS * (ROWS // 8)
#: Messages of all ranks in the all-reduce of a short vector, by recursive doubling; of five ranks one hands its vector
#: to a neighbour and gets the sum back.
SUM = {2: 2, 5: 4 * 2 + 2, 16: 16 * 4}
RING = {2: 2, 5: 10, 16: 32}

#: Vectors that a rank sends in each step of an all-gather of short ones: all it has, up to those that are missing.
LISTS = {2: [1], 5: [1, 2, 1], 16: [1, 2, 4, 8]}

#: Messages of all ranks, and the numbers in each.
Sent = list[tuple[int, int]]


def sums(P: int, n: int, times: int = 1) -> Sent:
    """Return what so many all-reduces of n numbers send."""
    return [(times * SUM[P], n)]


def gathers(P: int, times: int = 1) -> Sent:
    """Return what so many all-gathers of a number from each rank send."""
    return [(times * P, n) for n in LISTS[P]]


def averages(P: int) -> Sent:
    """Return what an all-reduce of the model after every eight rows sends."""
    return sums(P, M, ROUNDS)


def served(P: int) -> Sent:
    """Return what a worker and its server send: a message and its answer a round, and once more an epoch."""
    return [(2 * P * (ROUNDS + EPOCHS), 3 + M)]


def leaders(P: int) -> Sent:
    """Return what leader SGD sends: a number of each rank to all, the model down a tree, and a mean at last."""
    return [*gathers(P, ROUNDS), (ROUNDS * (P - 1), M), *sums(P, M)]


FORMS: list[tuple[Any, Callable[[int], Sent]]] = [
    (LocalSGD(8), averages),
    (LocalSGD(8, overlap=True), averages),
    (EpochAveraging(), lambda P: sums(P, M, EPOCHS)),
    (OneShotAveraging(), lambda P: sums(P, M)),
    (AutoSync(rule=FixedPeriod(8)), averages),
    # Every eight rows of one epoch, then once an epoch.
    (PostLocalSGD(16, 8, 1), lambda P: sums(P, M, PER_EPOCH + EPOCHS - 1)),
    (AnytimeSGD(seconds=math.inf), lambda P: [*sums(P, M, EPOCHS), *sums(P, 1, EPOCHS)]),
    (SlowMo(8), averages),
    (DiLoCo(8), averages),
    # The last exchange is that of the mean in the end.
    (EagerDiLoCo(8), averages),
    (StreamingDiLoCo(8, 2, 0, 0.5), lambda P: [*sums(P, M // 2, ROUNDS), *sums(P, M)]),
    (StreamingDiLoCo(8, 3, 1, 0.5), lambda P: [*sums(P, M // 3, ROUNDS - 1), *sums(P, M)]),
    (FedProx(8), averages),
    (ADMM(8), averages),
    (SCAFFOLD(8), lambda P: sums(P, 2 * M, ROUNDS)),
    (EASGD(8), averages),
    (LeaderSGD(8), leaders),
    (DPSGD(8), lambda P: [(ROUNDS * RING[P], M), *sums(P, M)]),
    (SGP(8), lambda P: [(ROUNDS * P, M + 1), *sums(P, M + 1)]),
    (OverlapSGP(8), lambda P: [(ROUNDS * P, M + 1), *sums(P, M + 1)]),
    (ChocoSGD(8, compressor=Identity()), lambda P: [(ROUNDS * RING[P], M), *sums(P, M)]),
    (ASGD(8), served),
    (StalenessAware(8), served),
    (DelayCompensatedASGD(8), served),
    (StaleSynchronous(8), served),
    (BackupWorkers(8), served),
    (DecoupledDiLoCo(8), served),
    (Downpour(8), served),
    (AsyncADMM(8), served),
    (AsyncEASGD(8), lambda P: [(2 * P * (ROUNDS + EPOCHS), 3 + M)]),
    (AsyncLeaderSGD(8), lambda P: [(2 * P * ROUNDS, 3 + M), *sums(P, M)]),
    (AsyncLeaderSGD(8, n_groups=2), lambda P: [(2 * P * ROUNDS, 3 + M), *sums(P, M)]),
    (Hogwild(), lambda P: []),
]

COMPRESSORS: list[Any] = [
    Identity(),
    Half(),
    QSGD(4),
    TernGrad(),
    DGC(0.1),
    DeMo(2),
    GTopK(0.1),
    GTopK(0.1, route="tree"),
    RandomK(0.1),
    TopK(0.1),
    OneBit(),
    Sign(),
    MajorityVote(),
    PowerSGD(2),
]


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


def check(strategy: Any, P: int, sent: Sent) -> None:
    """Assert that a fit sends this for its algorithm, and nothing else."""
    totals = totals_of(strategy, P, EPOCHS)
    assert totals["messages"] == sum(messages for messages, _ in sent)
    assert totals["bytes_sent"] == sum(messages * (HEADER + NUMBER * n) for messages, n in sent)


def test_every_strategy_has_a_closed_form() -> None:
    """No strategy of the package is left out."""
    named = {type(strategy) for strategy, _ in FORMS} | {MinibatchSGD, ADPSGD}
    assert named == set(STRATEGIES.values())


@pytest.mark.parametrize("P", SIZES)
@pytest.mark.parametrize(("strategy", "form"), FORMS, ids=lambda case: repr(case) if hasattr(case, "every") else "")
def test_a_fit_sends_what_its_algorithm_says(strategy: Any, form: Callable[[int], Sent], P: int) -> None:
    """Bytes and messages of a whole fit are those of its exchanges and of the mean in the end, to the byte."""
    check(strategy, P, form(P))


@pytest.mark.parametrize("P", SIZES)
def test_minibatches_send_a_gradient_a_step(P: int) -> None:
    """Ranks that share their gradients send as much as ranks that share models, in every step."""
    check(minibatch(P), P, averages(P))


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
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_a_compressed_fit_sends_its_payloads(compressor: Any, P: int) -> None:
    """What a compressor sends in a whole fit is its closed form, once in every round."""
    n = 40
    remembers = compressor.needs_feedback
    strategy = minibatch(P, compressor=ErrorFeedback(compressor) if remembers else compressor)
    totals = fit(strategy, P, n_features=n).ledger_.totals()
    costs = [compressed_cost(rank, P, n + 1, NUMBER, strategy.compressor) for rank in range(P)]
    assert totals["messages"] == ROUNDS * sum(cost.messages for cost in costs if cost)
    assert totals["bytes_sent"] == ROUNDS * sum(cost.n_bytes for cost in costs if cost)


@pytest.mark.parametrize("P", SIZES)
def test_what_loses_nothing_says_lengths_first(P: int) -> None:
    """Where no entry is zero ranks tell each other the lengths of their payloads, and then sum whole vectors."""
    check(minibatch(P, compressor=NonZero()), P, [*gathers(P, ROUNDS), *averages(P)])


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
@pytest.mark.parametrize(
    "strategy", [*(strategy for strategy, _ in FORMS), ADPSGD(8), LocalSGD(8, compressor=ErrorFeedback(TopK(0.1)))]
)
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
