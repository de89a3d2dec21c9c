"""Where the mean of the last models of an epoch is computed: by a server, by ranks or by threads.

A server and ranks that take the same steps have one model each and look at it after every step. Threads that step on
one model look at it so often that it costs little beside their steps, and at the end of an epoch add up what all have
seen. See `dsgd.local.suffix`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dsgd.local import SGD, AbstractRows, AbstractState, SGDState, begin_suffix, end_suffix
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.job import TrainJob
from dsgd.types import FloatVector

#: Of a thread in one epoch; more would hardly make the mean better.
_MOST_LOOKS: Final = 64
#: How many entries of rows a thread visits, at least, for every weight that it looks at, and for every look: with fewer
#: the look, and the call of a kernel that ends there, would be felt.
_ENTRIES_PER_WEIGHT: Final = 8
_ENTRIES_PER_LOOK: Final = 4096


def suffix_share(job: TrainJob) -> float:
    """Return of how many of the steps of an epoch the models are averaged, as a share; zero if none are."""
    optimizer = job.optimizer
    return job.strategy.suffix if isinstance(optimizer, SGD) and optimizer.averages_suffix else 0.0


def looks_at_suffix(rank: Rank, job: TrainJob, rows: AbstractRows, params: FloatVector, state: AbstractState) -> int:
    """Make room for the mean of the last models, where ranks make it; called by all of them.

    - returned: how often a thread that shares its model with others is to look at it in an epoch; zero for other
      ranks.
    """
    strategy = job.strategy
    if not suffix_share(job) or not isinstance(state, SGDState):
        return 0
    if strategy.exchanges == "gradient":
        begin_suffix(params, state)
    # What such threads do about an L1 penalty has no dual; and a thread that is alone has a step a row.
    if not strategy.shares_memory or rank.size == 1 or state.received.size:
        return 0
    entries = np.array([float(rows.entries(0, rows.n_rows) * job.optimizer.n_outputs)])
    rank.group.allreduce(entries)
    looks = min(_MOST_LOOKS, int(entries[0] / rank.size / (_ENTRIES_PER_LOOK + _ENTRIES_PER_WEIGHT * params.size)))
    if looks:
        begin_suffix(params, state)
    return looks


def settle_suffix(rank: Rank, job: TrainJob, params: FloatVector, state: AbstractState) -> None:
    """Put the mean of the last models of the epoch in the place of the model; called by all ranks.

    Where threads share it all of them write the same bits, and none steps before the next message of all.
    """
    if not isinstance(state, SGDState) or not state.suffix.size:
        return
    if job.strategy.shares_memory:
        with rank.ledger.round("settle"):
            rank.group.allreduce(state.suffix)
    end_suffix(params, state)
    rank.worked(params=params.size)
