"""Means that come one round late: what they are, and that no thread or rank is left behind."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.collectives import Group
from dsgd.comm.frames import AbortFlag
from dsgd.errors import AbortedError
from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.train import TrainJob, TrainResult
from dsgd.sync import LocalSGD
from dsgd.sync.averaging import DelayedMean
from gangs import gang, raise_first, run_gang, run_job
from reference.sgd import delayed_local_sgd, rate, slope

N_FEATURES = 5
ALPHA = 0.01


def rows_of(sizes: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    truth = rng.standard_normal(N_FEATURES)
    found = []
    for n in sizes:
        X = rng.standard_normal((n, N_FEATURES))
        found.append((X, np.where(X @ truth > 0, 1.0, -1.0)))
    return found


def train_ranks(rows: Sequence[tuple[np.ndarray, np.ndarray]], strategy: LocalSGD) -> list[TrainResult]:
    """Train for two epochs; return what each rank returned."""
    job = TrainJob(
        SGD(Objective("log_loss", "l2", ALPHA), "constant", eta0=0.1),
        strategy,
        np.zeros(N_FEATURES + 1),
        max_iter=2,
        tol=None,
        n_iter_no_change=5,
    )
    with gang("inproc", len(rows)) as transports:
        return raise_first(run_job(transports, [make_shard(X, y, shuffle=False) for X, y in rows], job))


@pytest.mark.parametrize("sizes", [[24, 24], [17, 30, 0]], ids=str)
def test_training_equals_its_twin(sizes: list[int]) -> None:
    """Models are those of the equations, however uneven the ranks, one of them empty."""
    rows = rows_of(sizes)
    first, *others = train_ranks(rows, LocalSGD(every=4, overlap=True))
    steps = [0] * len(rows)

    def optimise(rank: int, model: np.ndarray, start: int, stop: int) -> np.ndarray:
        model = model.copy()
        for row, y in zip(rows[rank][0][start:stop], rows[rank][1][start:stop], strict=True):
            steps[rank] += 1
            eta = rate("constant", steps[rank], 1, ALPHA, 0.1, 0.5)
            update = -eta * slope("log_loss", y, row @ model[:-1] + model[-1], 0.0)
            model[:-1] = model[:-1] * (1 - eta * ALPHA) + update * row
            model[-1] += update
        return model

    n_rounds = -(-max(sizes) // 4)
    expected = delayed_local_sgd(rows, optimise, n_rounds=n_rounds, n_epochs=2, initial=np.zeros(N_FEATURES + 1))
    np.testing.assert_allclose(first.params, expected[0], rtol=1e-10, atol=1e-12)
    assert all(other.params.tobytes() == first.params.tobytes() for other in others)


@given(n_rows=st.lists(st.integers(0, 50), min_size=2, max_size=4).filter(any), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_corrections_leave_the_mean_alone(n_rows: list[int], seed: int) -> None:
    """Law: the weighted mean after a correction is that before it, and without steps all models are the mean."""
    weights = np.array(n_rows) / sum(n_rows)
    rng = np.random.default_rng(seed)
    sent, steps = rng.standard_normal((2, len(n_rows), 6))

    def program(group: Group, moves: np.ndarray) -> np.ndarray:
        params = sent[group.rank].copy()
        delayed = DelayedMean(group, params)
        delayed.hold(params)
        delayed.start(float(weights[group.rank]))
        params += moves[group.rank]
        delayed.finish(params)
        delayed.close()
        return params

    after = np.array(run_gang("inproc", len(n_rows), lambda group: program(group, steps)))
    np.testing.assert_allclose(weights @ after, weights @ (sent + steps), atol=1e-12)
    still = np.array(run_gang("inproc", len(n_rows), lambda group: program(group, 0.0 * steps)))
    np.testing.assert_allclose(still, np.broadcast_to(weights @ sent, still.shape), atol=1e-12)


def test_a_failed_exchange_ends_training_and_its_thread() -> None:
    """A peer that goes away while its model is awaited is an error of the round, and no thread stays."""
    rows = rows_of([400, 400])
    job = TrainJob(
        SGD(Objective("hinge")),
        LocalSGD(every=1, overlap=True),
        np.zeros(N_FEATURES + 1),
        max_iter=10**6,
        tol=None,
        n_iter_no_change=5,
    )
    aborts = [AbortFlag(), AbortFlag()]
    with gang("tcp", 2, aborts=aborts) as transports:
        timer = threading.Timer(0.2, aborts[1].set, ("enough",))
        timer.start()
        results = run_job(transports, [make_shard(X, y) for X, y in rows], job, aborts)
        timer.join()
    assert all(isinstance(result, AbortedError) for result in results)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dsgd-mean")]
