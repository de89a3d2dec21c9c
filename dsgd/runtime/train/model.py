"""The model that training returns: combined over ranks where a strategy leaves them apart, or that of the best epoch.

That is done once at the end, and earlier, on copies, whenever the model is scored: a score that decides whether
training ends must be that of the model it would return, not of the model of one rank.
"""

from __future__ import annotations

import numpy as np

from dsgd.runtime.train.run import Run
from dsgd.runtime.train.state import BestModel
from dsgd.sync import RoundClock
from dsgd.sync.averaging import weighted_mean
from dsgd.types import FloatMatrix, FloatVector


def gather_models(run: Run) -> FloatMatrix:
    """Return the models of all ranks as they are, shape (size, n_params); called by all of them at the end."""
    with run.rank.ledger.round("collect"):
        return run.rank.group.allgather(run.at.params)


def bring_together(run: Run, params: FloatVector, *, to_look: bool = False) -> tuple[FloatVector | None, int]:
    """Turn the model of each rank into the one that training returns if it ends now; called by all ranks.

    Between two epochs, where nothing is under way; the state of training stays as it is.
    """
    at, group, ledger, strategy = run.at, run.rank.group, run.rank.ledger, run.job.strategy
    dual, vector = None, params
    if at.dual is not None:
        dual = at.dual.of(params)
        dual.enter()
        vector = dual.vector
    ended_early = at.epoch < run.job.max_iter
    last = RoundClock(0, at.cut.rounds - 1, at.cut.rounds, is_last=False)
    if strategy.exchanges == "model" and ended_early and not run.period.is_due(last):
        # A strategy that waits for the last round that was planned has yet to average.
        with ledger.round("look" if to_look else "sync"):
            strategy.sync(group, vector, run.weights.share, at.strategy)
    if not strategy.ends_equal:
        with ledger.round("look" if to_look else "collect"):
            strategy.collect(group, vector, run.weights.share, at.strategy)
    if dual is not None:
        dual.leave()
        params[:] = dual.params
    own = at.optimizer.averaged
    if own is None:
        return None, 0
    n_averaged = at.optimizer.n_averaged
    averaged = own.copy() if n_averaged else params.astype(np.float64)
    with ledger.round("look" if to_look else "collect"):
        with ledger.aside():
            counts = group.roll_call(np.array([n_averaged])).ravel()
        weighted_mean(group, averaged, n_averaged / counts.sum() if counts.any() else run.weights.share)
    return averaged.astype(params.dtype), int(counts.max())


def put_back(run: Run, best: BestModel) -> tuple[FloatVector | None, int]:
    """Put the model of the best epoch and its statistics in place of the last ones; called by all ranks at the end."""
    if run.job.strategy.shares_memory:
        run.rank.group.barrier()  # one model for all: nobody may still read the last one
    run.at.params[...] = best.params
    for name, vector in run.at.optimizer.statistics().items():
        vector[...] = best.statistics[name]
    return best.averaged, best.n_averaged
