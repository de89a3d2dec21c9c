"""Threads that step on one model without waiting for each other."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy import sparse

from async_jobs import fit, make_data, make_job
from dsgd.collectives import Group
from dsgd.comm.frames import AbortFlag
from dsgd.errors import IncompatiblePartsError
from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.checkpoints.checkpoint import SnapshotKeeper
from dsgd.runtime.rank import Rank
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.sync import Hogwild
from gangs import run_gang
from reference import asynchronous as reference


def sparse_rows(n_rows: int, n_columns: int, groups: int) -> sparse.csr_matrix:
    """Return rows of which each group of consecutive ones has columns of its own."""
    rng = np.random.default_rng(4)
    X = np.zeros((n_rows, n_columns))
    for row in range(n_rows):
        width = n_columns // groups
        first = width * (row * groups // n_rows)
        X[row, first + rng.choice(width, size=3, replace=False)] = rng.standard_normal(3)
    return sparse.csr_matrix(X)


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_threads_without_common_columns_are_one_thread(n_ranks: int) -> None:
    """Where rows of different threads share no column, the model is that of one thread, bit for bit."""
    X = sparse_rows(400, 40, n_ranks)
    y = np.where(np.arange(400) % 2, 1.0, -1.0)
    data = TrainData(make_shard(X, y, shuffle=False))
    optimizer = SGD(Objective("log_loss", "l2", 1e-3, fit_intercept=False), schedule="constant", eta0=0.1)
    job = TrainJob(optimizer, Hogwild(), np.zeros(41), max_iter=3, tol=None, n_iter_no_change=5)
    one, many = (run_on_threads(train, data.cut(n), (job,)).value.params for n in (1, n_ranks))
    np.testing.assert_array_equal(one, many)
    assert np.abs(one).max() > 0.1


@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_one_thread_takes_the_steps_of_the_source(penalty: str) -> None:
    """On one thread the steps are those of the twin in plain numpy, penalties on the columns of the row alone."""
    X, rate, alpha = sparse_rows(60, 12, 2), 0.1, 0.01
    y = np.where(np.arange(60) % 2, 1.0, -1.0)
    optimizer = SGD(Objective("log_loss", penalty, alpha), schedule="constant", eta0=rate)
    job = TrainJob(optimizer, Hogwild(), np.zeros(13), max_iter=2, tol=None, n_iter_no_change=5)
    params = run_on_threads(train, [TrainData(make_shard(X, y, shuffle=False))], (job,)).value.params
    twin = reference.hogwild(X.toarray(), y, rate, alpha, penalty, epochs=2, intercept_rate=0.01)
    np.testing.assert_allclose(params, twin, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_threads_on_one_model_count_the_steps_of_all(n_ranks: int) -> None:
    """The counter after training is that of one thread that takes all steps, and so are the rates during training."""
    assert fit(Hogwild(), n_ranks, epochs=2, n_rows=96).value.t == 1 + 2 * 96


def test_threads_on_one_model_go_on_from_a_copy_of_it() -> None:
    """A gang that is formed again restores one copy of the model, though every thread has left one."""
    keepers, data = [SnapshotKeeper(every_s=0.0) for _ in range(3)], make_data(3)

    def program(group: Group, epochs: int) -> np.ndarray:
        rank = Rank(group, AbortFlag(), keeper=keepers[group.rank])
        return train(rank, data[group.rank], make_job(Hogwild(), epochs)).params

    run_gang("inproc", 3, partial(program, epochs=2))
    copies = [keeper.latest.arrays["params"][0].tobytes() for keeper in keepers if keeper.latest is not None]
    assert len(copies) == 3
    assert {params.tobytes() for params in run_gang("inproc", 3, partial(program, epochs=1))} <= set(copies)


def test_ranks_of_several_processes_cannot_share_a_model() -> None:
    """A gang whose ranks are not threads of one process is told why it cannot share a model, and what to do."""

    def program(group: Group) -> None:
        group.share(np.zeros(3))

    with pytest.raises(IncompatiblePartsError, match=r"not all threads of one process.*n_jobs"):
        run_gang("tcp", 2, program)
