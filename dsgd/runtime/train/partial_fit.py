"""The state that one call of ``partial_fit`` leaves for the next.

Problem: strategies, compressors and local rules remember (momentum, residuals, centres, where random streams are). A
user who calls for one epoch at a time wants what one training of as many epochs gives.

Method: at the end of the last epoch, before the models of the ranks are combined, rank 0 gathers the contents of a
checkpoint, except what the next call brings itself: the rows, the model if all ranks have the same one, and the place
in the epoch. The next call passes it to its rank 0, which sends it to the ranks.

The next call has its own rows, so a rank continues with its state whatever rows it is given. Another number of ranks
takes the state over as from a checkpoint (`dsgd.handover`).

What a server remembers beside its model is not among it, nor are the models of its workers: the next call begins with
the model of the server.

Cost: an all-gather of a dozen numbers and eight bytes per vector; a vector that is equal on all ranks is kept once, of
every other one rank 0 gathers all rows. Where nothing is remembered that is all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from dsgd.runtime.checkpoints.checkpoint import SavedState
from dsgd.runtime.checkpoints.snapshot import share
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.job import TrainJob
from dsgd.runtime.train.state import STRATEGY, TrainState, adapted, stacked
from dsgd.types import AnyArray

_DIGEST_BYTES: Final = 8


def goes_on(left: SavedState | None, configuration: Mapping[str, Any]) -> bool:
    """Return whether a training of this configuration continues from the state that an earlier one has left."""
    # By their JSON text: a NaN equals itself.
    return left is not None and json.dumps(left.configuration) == json.dumps(configuration)


def leave(rank: Rank, job: TrainJob, at: TrainState, rows: Sequence[int]) -> SavedState | None:
    """Return on rank 0 the state for the next training, None elsewhere; called by all ranks between two epochs."""
    group, counters = rank.group, at.optimizer.counters
    assert job.leaves is not None  # a training of one call leaves nothing
    own = {name: vector for name, vector in at.own().items() if _is_left(name, rank, job)}
    rank.ledger.begin_round("keep")
    digests = np.array([_digest(vector) for vector in own.values()], dtype=np.int64)
    gathered = group.allgather(np.concatenate([counters.view(np.int64), digests]))
    all_counters, all_digests = np.hsplit(gathered, [len(counters)])
    arrays: dict[str, AnyArray] = {
        "rows": np.array(rows, dtype=np.int64),
        "counters": np.ascontiguousarray(all_counters).view(np.float64),
    }
    for (name, vector), column in zip(own.items(), all_digests.T, strict=True):
        table = [vector.reshape(-1)] if (column == column[0]).all() else group.gather(vector)
        if rank.number == 0 and table is not None:
            arrays[name] = stacked(table)
    rank.ledger.end_round()
    return SavedState((job.epochs_before + at.epoch, 0), rank.size, job.leaves, arrays) if rank.number == 0 else None


def take_over(rank: Rank, job: TrainJob, at: TrainState, rows: Sequence[int]) -> None:
    """Go on from what rank 0 was given, which `leave` has made; called by all ranks before the first epoch."""
    arrays: dict[str, AnyArray] | None = None
    per_rank: list[str] = []
    if rank.number == 0:
        left: SavedState = rank.given
        if left.world_size == rank.size:
            # Each continues with its own, whatever rows it has now.
            saved = {**left.arrays, "rows": np.array(rows, dtype=np.int64)}
        else:
            saved = {name: _of_all(name, table, left.world_size) for name, table in left.arrays.items()}
            # The model that the first training returned, from which all start, is their common one.
            saved.pop("params", None)
        arrays, per_rank = adapted(saved, rows, at.handovers())
        arrays["n_ranks"] = np.array([left.world_size])
    shared = share(rank.group, arrays, 0, per_rank)
    at.take_up_memory(shared, rank.number, rows)
    if job.average_start is None:
        at.optimizer.n_averaged = 0  # the average is the job's, and this one starts a new average


def _is_left(name: str, rank: Rank, job: TrainJob) -> bool:
    """Return whether a vector of a rank is left for the next training."""
    strategy = job.strategy
    if name == "params":
        apart = strategy.exchanges == "model" and not strategy.ends_equal and not strategy.shares_memory
        return apart and not strategy.n_servers and rank.size > 1
    if name == "averaged":
        return False  # the next training has it already, as a mean over ranks
    # The account of the penalty goes with the model of a worker.
    return not (strategy.n_servers and (name == "received" or name.startswith(STRATEGY)))


def _digest(vector: AnyArray) -> int:
    digest = hashlib.blake2b(np.ascontiguousarray(vector).data, digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "little", signed=True)


def _of_all(name: str, table: AnyArray, n_ranks: int) -> AnyArray:
    """Return the rows of all ranks, of a vector that was kept once; without a copy."""
    return np.broadcast_to(table, (n_ranks, *table.shape[1:])) if name not in ("rows", "counters") else table
