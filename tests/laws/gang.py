"""Exchanges of a strategy on a gang of threads, without training around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import gangs
from dsgd.collectives import Group
from dsgd.comm.frames import AbortFlag
from dsgd.comm.wires import inproc
from dsgd.comm.wires.mailboxes import connect_threads
from dsgd.local import SGD, AbstractRule, Objective, Shard, make_shard
from dsgd.local.base import AbstractRows
from dsgd.local.objective import n_params
from dsgd.runtime.train import TrainJob, TrainResult
from dsgd.sync import AbstractLocalTerm, AbstractStrategy, LocalSteps
from dsgd.sync.base import AbstractUnderWay
from gangs import connect_shm, connect_tcp, raise_first, run_ranks

Moves = Callable[[int, int, np.ndarray], np.ndarray]


def exchange(
    strategy: AbstractStrategy[Any],
    first: np.ndarray,
    weights: np.ndarray,
    n_rounds: int,
    move: Moves,
    losses: Callable[[int, int], float],
    rate: float = 0.5,
) -> tuple[list[np.ndarray], np.ndarray, list[list[Any]], list[Any]]:
    """Let every rank move and then exchange, some times.

    `move` takes (round, rank, model) and returns the model after local steps; `losses` takes (round, rank).

    Returns
    -------
    list of arrays, shape (size, n)
        The models before each exchange and, last, after the last one.
    array, shape (n,)
        What is collected; equal on all ranks, or this fails.
    list of lists
        Totals of the ledger of each rank: after every exchange.
    list
        The states at the end.
    """
    size = len(weights)
    transports = with_mailboxes(inproc.connect(size))
    before = [np.empty((size, first.size)) for _ in range(n_rounds + 1)]

    def run(rank: int) -> tuple[np.ndarray, list[Any], Any]:
        group = Group(transports[rank])
        params, totals = first.copy(), []
        state = strategy.init(group, params, weights[rank])
        for k in range(n_rounds):
            params[:] = move(k, rank, params)
            if isinstance(strategy, AbstractLocalTerm):
                strategy.correct(params, LocalSteps(rate, losses(k, rank), 1), state)
            before[k][rank] = params
            group.ledger.begin_round("sync")
            strategy.sync(group, params, weights[rank], state)
            group.ledger.end_round()
            totals.append(dict(group.ledger.records().totals))
        before[n_rounds][rank] = params
        if not strategy.ends_equal:
            strategy.collect(group, params, weights[rank], state)
        if isinstance(strategy, AbstractUnderWay):
            strategy.leave(group, params, state)
        return params, totals, state

    results = raise_first(run_ranks([lambda rank=rank: run(rank) for rank in range(size)]))
    close(transports)
    assert len({params.tobytes() for params, _, _ in results}) == 1
    return before, results[0][0], [totals for _, totals, _ in results], [state for _, _, state in results]


def with_mailboxes(transports: list[Any]) -> list[Any]:
    """Return transports between threads, with mailboxes."""
    ledgers = [transport.ledger for transport in transports]
    mailboxes = connect_threads(ledgers, [AbortFlag()] * len(transports), 20.0)
    for transport, mailbox in zip(transports, mailboxes, strict=True):
        transport.mailbox = mailbox
    return transports


def close(transports: list[Any]) -> None:
    """Close transports and their mailboxes."""
    for transport in transports:
        if transport.mailbox is not None:
            transport.mailbox.close()
        transport.close()


def shards_of(n_rows: Sequence[int], d: int = 5, seed: int = 0, loss: str = "log_loss") -> list[Shard]:
    """Return the rows of each rank, of a problem with noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((sum(n_rows), d))
    scores = X @ np.linspace(-1, 1, d) + 0.5 * rng.standard_normal(len(X))
    shard = make_shard(X, scores if loss == "squared_error" else np.where(scores > 0, 1.0, -1.0), shuffle=False)
    ends = np.cumsum([0, *n_rows])
    return [shard.rows(start, stop) for start, stop in pairwise(ends.tolist())]


def train_on(
    kind: str,
    shards: Sequence[Shard],
    strategy: AbstractStrategy[Any],
    rule: AbstractRule | None = None,
    max_iter: int = 2,
    **optimizer: Any,
) -> list[TrainResult]:
    """Train on a gang and return what every rank returned."""
    settings = {"loss": "log_loss", "alpha": 0.01, "schedule": "constant", "eta0": 0.1, **optimizer}
    fit_intercept = settings.pop("fit_intercept", True)
    objective = Objective(settings.pop("loss"), "l2", settings.pop("alpha"), fit_intercept=fit_intercept)
    sgd = SGD(objective, rule=rule, **settings)
    initial = np.linspace(-1.0, 1.0, n_params(shards[0].n_features, 1))
    initial[-1] = 0.0
    return run_job(kind, shards, TrainJob(sgd, strategy, initial, max_iter, tol=None, n_iter_no_change=5))


def run_job(kind: str, rows: Sequence[AbstractRows], job: TrainJob) -> list[TrainResult]:
    """Run a job on a gang, each rank on rows of its own, and return what every rank returned."""
    n = len(rows)
    transports = {
        "threads": lambda: with_mailboxes(inproc.connect(n)),
        "tcp": lambda: raise_first(connect_tcp(n)),
        "shm": lambda: raise_first(connect_shm(n)),
    }[kind]()
    try:
        return raise_first(gangs.run_job(transports, rows, job))
    finally:
        close(transports)
