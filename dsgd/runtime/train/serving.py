"""The server of a training job: it receives the model and serves it until its workers are done.

Rank 0 sends it the model that training starts or resumes from, and what it must know about the rows and the progress of
training. The rest is the loop of `dsgd.sync.server` with the handler of the strategy. A server takes the steps of the
job's local optimiser, with its own step counter, which continues from the updates that its model has received. The
memory of the optimiser's rule exists on the server only, and is lost with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from scipy import sparse

from dsgd.comm.frames import DTYPE_CODES, OP_POST
from dsgd.errors import IncompatiblePartsError
from dsgd.local import SGD, Shard, make_shard
from dsgd.local.base import AbstractRows
from dsgd.local.sgd import add_to_suffix, begin_suffix, end_suffix, is_in_suffix
from dsgd.runtime.rank import Mail, Rank, Server
from dsgd.runtime.train.adaptation import PooledRates, missing_factor
from dsgd.runtime.train.job import TrainJob
from dsgd.runtime.train.state import TrainState, suffix_share
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.server import AbstractServerStrategy, Model, serve
from dsgd.types import FloatVector

_DTYPES: Final = {code: dtype for dtype, code in DTYPE_CODES.items()}


def mail_for(job: TrainJob) -> Mail | None:
    """Return what the ranks of a job need beside their collectives."""
    strategy = job.strategy
    average = job.optimizer.average if isinstance(job.optimizer, SGD) else 0
    if strategy.shares_memory and (average or job.optimizer.steps.remembers or job.optimizer.steps.once_a_round):
        given = f"average={average}" if average else f"optimizer={job.optimizer.steps.name}"
        raise IncompatiblePartsError(
            f"sync={strategy!r} lets threads update one model, so every vector that belongs to the model would "
            f"have to be shared too. Leave out {given}."
        )
    if strategy.talks == "together":
        return None
    if strategy.n_servers and strategy.exchanges == "gradient" and isinstance(job.optimizer, SGD):
        _check_optimizer(job.strategy, job.optimizer)
    serves = serve_training if strategy.n_servers else None
    return Mail(strategy.talks == "in pairs", strategy.n_servers, serves)


def _check_optimizer(strategy: AbstractStrategy[Any], optimizer: SGD) -> None:
    name = type(strategy).__name__
    if optimizer.average:
        raise IncompatiblePartsError(
            f"sync={name}(...) lets a server take the steps, but average={optimizer.average} averages the steps "
            "that ranks take themselves. Use one without the other."
        )
    if optimizer.schedule == "adaptive":
        raise IncompatiblePartsError(
            f"sync={name}(...) lets a server take the steps, but learning_rate='adaptive' changes the rates of "
            "ranks at the end of an epoch. Use another schedule."
        )


def begin_servers(
    rank: Rank,
    strategy: AbstractServerStrategy[Any],
    at: TrainState,
    shard: AbstractRows,
    rows: Sequence[int],
    mean_square: float,
    epochs_before: int = 0,
) -> None:
    """Hand the model to the servers, and say where training stands; called by rank 0."""
    mailbox = rank.group.mailbox
    params, version = strategy.served(at.mixing().copy(), at.strategy)
    at.mixed()
    epoch = epochs_before + at.epoch
    n_params = params.shape[0]
    n_features, is_sparse = (shard.n_features, shard.is_sparse) if isinstance(shard, Shard) else (0, False)
    square = np.float64(mean_square).view(np.int64)
    facts = np.array(
        [DTYPE_CODES[params.dtype], n_features, is_sparse, at.cut.rounds, n_params, epoch, version, square]
    )
    for server in range(rank.size, rank.size + strategy.n_servers):
        mailbox.post(server, facts, OP_POST)
        mailbox.post(server, params, OP_POST)
        mailbox.post(server, np.array(rows, dtype=np.int64), OP_POST)


def serve_training(server: Server, job: TrainJob) -> None:
    """Serve a training job; a server program."""
    strategy, mailbox = job.strategy.server, server.mailbox
    assert strategy is not None  # no other has servers
    mailbox.ledger.begin_round("setup")
    facts = np.zeros(8, dtype=np.int64)
    mailbox.take(0, facts, OP_POST)
    code, n_features, is_sparse, rounds, n, epoch, version, _ = facts.tolist()
    params: FloatVector = np.zeros(n, dtype=_DTYPES[code])
    mailbox.take(0, params, OP_POST)
    rows = np.zeros(server.n_workers, dtype=np.int64)
    mailbox.take(0, rows, OP_POST)
    no_rows = (sparse.csr_matrix if is_sparse else np.zeros)((0, n_features), dtype=params.dtype)
    missing = missing_factor(strategy, job.optimizer, int(np.count_nonzero(rows)))
    rates = PooledRates(missing, float(facts.view(np.float64)[-1]))
    model = _model(server, job, params, make_shard(no_rows, np.zeros(0)), rounds, rates)
    if strategy.exchanges == "gradient" and rows.any():
        model.idle = frozenset(np.flatnonzero(rows == 0).tolist())
    model.version, model.n_messages = version, epoch * rounds * len(model.working)
    mailbox.ledger.end_round()
    serve(mailbox, strategy.handler(model))


def _model(
    server: Server, job: TrainJob, params: FloatVector, no_rows: Shard, rounds: int, rates: PooledRates
) -> Model:
    n_workers, optimizer, share = server.n_workers, job.optimizer, suffix_share(job)
    state = optimizer.init(no_rows)
    if share:
        begin_suffix(params, state)

    def step(gradient: FloatVector, factor: float) -> None:
        # All workers walk an epoch in as many rounds.
        per_epoch = rounds * len(model.working)
        epochs, number = divmod(model.n_messages - 1, per_epoch)
        state.epoch = 1 + epochs
        # Each update is one step.
        state.t = job.t_start + model.version
        state.rate_factor = factor * rates.factor(optimizer, state.t)
        optimizer.step(params, gradient, 1, state)
        if share and is_in_suffix(number, per_epoch, share):
            add_to_suffix(params, state)
            worked()

    def worked() -> None:
        server.worked(params=params.size)

    def settle() -> None:
        if share:
            end_suffix(params, state)
            worked()

    model = Model(params, step, worked, n_workers, rounds, settle=settle)
    # Compiled or loaded now, and not while a worker waits.
    optimizer.step(params.copy(), np.zeros_like(params), 1, optimizer.init(no_rows))
    return model
