"""The state of training on a rank between two rounds: in a snapshot, in a checkpoint, or sent to another gang.

A state is a set of plain arrays. The common state of all ranks is stored once; the own state of each (step counters,
the average of its iterates, the L1 penalty its weights have received, the memory of its strategy) is one row per rank.
A snapshot in the memory of a rank holds the counters of all ranks but otherwise only its own row; a checkpoint holds
every row. Ranks that own the same rows as before restore their own row, and training continues bit for bit as if
nothing had happened. Otherwise (another number of ranks, or rows assigned to other ranks):

- if ranks had different models, all start from the mean, weighted by rows; ranks of gossip strategies, which have equal
  weights and may have masses under way, from the model that training would have returned. All get the mean of averaged
  models;
- the memory of the strategy is handed over array by array (`dsgd.handover`), so that nothing still to be sent is lost
  or sent twice; all get the mean of the optimiser's memory, weighted by rows;
- all get the mean of the step counter t, so that step sizes continue;
- rank 0 gets the total of the sums of the running epoch; training resumes at the same share of the epoch as before,
  which is cut into rounds as a whole.

What belongs to the rows of a rank (`dsgd.local.base.OF_ROWS`) continues only with the same rows, in the same places;
with others it begins anew. Ranks have different numbers of them: in a table, the shorter ones end in zeros. Of the L1
penalty both sides of the account go over as the model does: together they say what its dual is (`dsgd.local.sgd.Dual`),
of which strategies may remember something too.

**The state that one call of ``partial_fit`` leaves for the next.** At the end of the last epoch, before the models of
the ranks are combined, rank 0 gathers the contents of a checkpoint, except what the next call brings itself: the rows,
the model if all ranks have the same one, and the place in the epoch. The next call passes it to its rank 0, which sends
it to the ranks; a rank continues with its state whatever rows it is given, and another number of ranks takes it over as
from a checkpoint. What a server remembers alongside its model is not among it, nor are the models of its workers. Cost:
an all-gather of a dozen numbers and eight bytes per vector; a vector that is equal on all ranks is kept once, of every
other one rank 0 gathers all rows.

**The mean of the last models of an epoch** (`dsgd.local.sgd`). A server and ranks that take the same steps have one
model each and take it in after every step. Threads that step on one model take it in so often that it costs little
alongside their steps, and at the end of an epoch add up what all have seen.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import gt
from typing import Any, Final, Self

import numpy as np

from dsgd.collectives.group import Group
from dsgd.handover import Handover
from dsgd.kernels import state as places
from dsgd.local import SGD, AbstractState
from dsgd.local.base import OF_ROWS, AbstractRows
from dsgd.local.sgd import Dual, SGDState, begin_suffix, end_suffix
from dsgd.runtime.checkpoints.checkpoint import SavedState, share
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.decisions import StopRule
from dsgd.runtime.train.job import EpochRecord, TrainJob
from dsgd.sync.base import NoState, rejoin, state_arrays, state_handovers
from dsgd.sync.period import Cut
from dsgd.types import AnyArray, FloatVector

# What comes before the name of an array that the optimiser or the strategy remembers, or that goes with the model.
_RULE: Final = "rule."

#: The same for what the strategy remembers alone.
STRATEGY: Final = "strategy."
_STATISTICS: Final = "statistics."
_MARK: Final = OF_ROWS + "mark"

#: Prefix of the names of a rank's state besides its model.
OWN_MEMORY: Final = (_RULE, STRATEGY, _STATISTICS, OF_ROWS)

#: The model that training would return, where ranks have different ones which a mean by rows would not make it of.
RETURNED: Final = "returned"
_BEST: Final = "best."
_NEVER: Final = sys.maxsize


@dataclass(frozen=True)
class BestModel:
    """The model of the epoch with the best validation score so far, the same on all ranks."""

    params: FloatVector
    averaged: FloatVector | None
    n_averaged: int
    statistics: Mapping[str, AnyArray]

    def arrays(self) -> dict[str, AnyArray]:
        """Return it as arrays by name."""
        vectors = {_STATISTICS + name: array for name, array in self.statistics.items()}
        vectors |= {"params": self.params, "n_averaged": np.array([self.n_averaged], dtype=np.int64)}
        if self.averaged is not None:
            vectors["averaged"] = self.averaged
        return {_BEST + name: vector for name, vector in vectors.items()}

    @classmethod
    def from_arrays(cls, saved: Mapping[str, AnyArray]) -> Self | None:
        """Return the model that `arrays` described, among arrays of other names; None if it is not there."""
        if _BEST + "params" not in saved:
            return None
        prefix = _BEST + _STATISTICS
        return cls(
            saved[_BEST + "params"],
            saved.get(_BEST + "averaged"),
            int(saved[_BEST + "n_averaged"][0]),
            {name.removeprefix(prefix): array for name, array in saved.items() if name.startswith(prefix)},
        )


@dataclass
class TrainState:
    """All that a rank needs to continue, except what it can compute from its rows and the job."""

    params: FloatVector
    optimizer: AbstractState
    cut: Cut
    epoch: int = 0
    round: int = 0
    n_cut: int = 0
    ahead: int = _NEVER
    n_steps: int = 0
    elapsed_s: float = 0.0
    stop_rule: StopRule = field(default_factory=StopRule)
    history: list[EpochRecord] = field(default_factory=list)
    strategy: Any = field(default_factory=NoState)
    dual: Dual | None = None
    best: BestModel | None = None

    @property
    def vector(self) -> FloatVector:
        """What strategies mix, between `mixing` and `mixed`; the memory of the model, or begins with it."""
        return self.params if self.dual is None else self.dual.vector

    def mixing(self) -> FloatVector:
        """Return the vector that a strategy may mix now, in place; do not read the model until `mixed`."""
        if self.dual is None:
            return self.params
        self.dual.enter()
        return self.dual.vector

    def mixed(self) -> None:
        """Make the model again from what was mixed."""
        if self.dual is not None:
            self.dual.leave()

    @property
    def begins_epoch(self) -> bool:
        """Whether no round of the epoch that comes next is over."""
        return self.n_cut + self.round == 0

    @property
    def position(self) -> tuple[int, int]:
        """Epoch that comes next, and how many of its rounds are over."""
        return self.epoch, self.n_cut + self.round

    def common(self, counters: AnyArray, rows: Sequence[int], seconds: float) -> dict[str, AnyArray]:
        """Return the common state of all ranks."""
        history = [tuple(vars(record).values()) for record in self.history]
        return {
            "position": np.array([self.epoch, self.round, self.cut.rounds, self.n_steps], dtype=np.int64),
            "cut": np.array([self.n_cut, self.ahead, *self.cut.starts], dtype=np.int64),
            "seconds": np.array([seconds]),
            "rows": np.array(rows, dtype=np.int64),
            "stop_rule": self.stop_rule.as_vector(),
            "history": np.array(history, dtype=np.float64).reshape(len(history), len(fields(EpochRecord))),
            "counters": counters,
            **({} if self.best is None else self.best.arrays()),
        }

    def own(self) -> dict[str, AnyArray]:
        """Return the vectors that this rank has; where they are empty, no rank has one."""
        vectors: dict[str, AnyArray] = {
            "params": self.params,
            **self.optimizer.vectors(),
            **{_STATISTICS + name: array for name, array in self.optimizer.statistics().items()},
            **{_RULE + name: array for name, array in self.optimizer.memory().items()},
            **{STRATEGY + name: array for name, array in state_arrays(self.strategy).items()},
        }
        return {name: vector for name, vector in vectors.items() if vector.size}

    def handovers(self) -> dict[str, Handover]:
        """Return what becomes of the vectors that this rank has when other ranks take over, by name."""
        declared = {STRATEGY + name: how for name, how in state_handovers(self.strategy).items()}
        return {name: declared.get(name, _handover_of(name, vector)) for name, vector in self.own().items()}

    def copied(self) -> dict[str, AnyArray]:
        """Return copies of this rank's vectors, one row each."""
        return {name: vector[None].copy() for name, vector in self.own().items()}

    def gathered(self, group: Group, *, same_model: bool) -> dict[str, AnyArray]:
        """Return the vectors of all ranks on rank 0, nothing elsewhere; called by all ranks."""
        whole: dict[str, AnyArray] = {}
        for name, vector in self.own().items():
            parts = [vector.copy()] if name == "params" and same_model else group.gather(vector)
            if group.rank == 0 and parts is not None:
                whole[name] = stacked(parts)
        return whole

    def take_up(self, saved: Mapping[str, AnyArray], rank: int, rows: Sequence[int]) -> None:
        """Restore the state that this gang or another has saved."""
        exact = is_exact(saved, rows)
        self.epoch, number, rounds, self.n_steps = (int(value) for value in saved["position"])
        n_cut, self.ahead, *starts = (int(value) for value in saved["cut"])
        if min(self.epoch, self.n_steps, number, rounds - number, rounds - 1, n_cut, self.ahead - 1, *starts) < 0 or (
            exact and (len(starts) != len(rows) or any(map(gt, starts, rows)))
        ):  # compiled code goes from there
            raise ValueError(f"no place in an epoch: {saved['position'].tolist()}, {saved['cut'].tolist()}")
        if exact:
            self.cut, self.round, self.n_cut = Cut(tuple(starts), rounds), number, n_cut
        else:
            before, n_rows = sum(starts), max(1, int(saved["rows"].sum()))
            over = before * rounds + (n_rows - before) * number
            self.round = over * self.cut.rounds // (n_rows * rounds)
        self.elapsed_s = float(saved["seconds"][0])
        self.stop_rule = StopRule.from_vector(saved["stop_rule"])
        self.history = [EpochRecord(int(line[0]), *(float(value) for value in line[1:])) for line in saved["history"]]
        self.best = BestModel.from_arrays(saved)
        self.take_up_memory(saved, rank, rows)

    def take_up_memory(self, saved: Mapping[str, AnyArray], rank: int, rows: Sequence[int]) -> None:
        """Restore the own states that ranks have saved, at any point of training; see `take_up`."""
        exact, how, counters = is_exact(saved, rows), self.handovers(), saved["counters"]
        has_own = exact and saved["n_ranks"][0] == len(rows)
        self.optimizer.counters[:] = counters[rank] if exact else _merged(counters, _weights(saved), rank)
        own = self.own()
        has_rows = has_own and _MARK in own and np.array_equal(saved.get(_MARK, [()])[0], own[_MARK])
        for name, vector in own.items():
            if name.startswith(OF_ROWS):
                if has_rows and name in saved:
                    vector[...] = saved[name][0][: vector.size]
            elif name in saved and (has_own or how[name] != "own"):
                vector[...] = saved[name][0].reshape(vector.shape)
                if how[name] == "sum" and not has_own:
                    vector *= share_of(rank, rows)
        if RETURNED in saved and not has_own:
            self.params[...] = saved[RETURNED]
        if not has_own:
            rejoin(self.strategy, self.params)
        received = self.optimizer.vectors().get("received")
        if received is not None and "received" not in saved:
            received.fill(0.0)
            self.optimizer.counters[places.L1_TOTAL] = 0.0


def stacked(vectors: Sequence[AnyArray]) -> AnyArray:
    """Return vectors as the rows of a table; shorter ones end in zeros."""
    longest = max(len(vector) for vector in vectors)
    return np.stack([np.pad(vector, (0, longest - len(vector))) for vector in vectors])


def _handover_of(name: str, vector: AnyArray) -> Handover:
    """Return what becomes of a vector of the optimiser."""
    if name.startswith(OF_ROWS):
        return "own"
    return "mean" if vector.dtype.kind == "f" else "same"


def is_exact(saved: Mapping[str, AnyArray], rows: Sequence[int]) -> bool:
    """Return whether ranks own as many rows as when the state was saved, so that each continues with its own state."""
    return bool(saved["rows"].tolist() == list(rows))


def share_of(rank: int, rows: Sequence[int]) -> float:
    """Return the share of a rank in means over ranks: its rows over those of all, or equal ones if there are none."""
    total = sum(rows)
    return rows[rank] / total if total else 1.0 / len(rows)


def adapted(
    saved: Mapping[str, AnyArray], rows: Sequence[int], handovers: Mapping[str, Handover]
) -> tuple[dict[str, AnyArray], list[str]]:
    """Return a saved state for ranks with these rows, and the names of the arrays with one row for each of them."""
    exact, n_before = is_exact(saved, rows), len(saved["rows"])
    arrays, per_rank = dict(saved), []
    arrays["n_ranks"] = np.array([max((len(saved[name]) for name in handovers if name in saved), default=n_before)])
    for name in [n for n in saved if n in ("params", "averaged", "received", "suffix") or n.startswith(OWN_MEMORY)]:
        table = saved[name]
        if len(table) > 1 and exact:
            per_rank.append(name)
        elif len(table) > 1 and handovers.get(name) == "sum":
            arrays[name] = table.sum(axis=0, keepdims=True)
        elif len(table) > 1 and handovers.get(name, "mean") == "mean":
            arrays[name] = np.tensordot(_weights(saved), table, 1)[None].astype(table.dtype)
        elif len(table) > 1:
            arrays[name] = table[:1]
    return arrays, per_rank


def _weights(saved: Mapping[str, AnyArray]) -> AnyArray:
    before = saved["rows"].astype(np.float64)
    return before / before.sum() if before.any() else np.full(len(before), 1.0 / len(before))


def _merged(counters: AnyArray, weights: AnyArray, rank: int) -> AnyArray:
    merged = weights @ counters
    merged[places.GUARD] = counters[:, places.GUARD].max()
    # Equal on all ranks: a mean would differ from them by the rounding of the weights.
    for place in (places.EPOCH, places.ETA_SCALE, places.RATE_FACTOR):
        merged[place] = counters[0, place]
    for place in (places.LOSS_SUM, places.N_SEEN, *range(places.COUNTERS, merged.size)):
        merged[place] = counters[:, place].sum() if rank == 0 else 0.0
    merged[places.N_AVERAGED] = np.rint(merged[places.N_AVERAGED])
    return merged


_DIGEST_BYTES: Final = 8


def goes_on(left: SavedState | None, configuration: Mapping[str, Any]) -> bool:
    """Return whether a training of this configuration continues from the state that an earlier one has left."""
    if left is None or left.configuration == configuration:
        return left is not None
    return json.dumps(left.configuration) == json.dumps(configuration)  # where a NaN equals itself


def leave(rank: Rank, job: TrainJob, at: TrainState, rows: Sequence[int]) -> SavedState | None:
    """Return on rank 0 the state for the next training, None elsewhere; called by all ranks between two epochs."""
    group, counters = rank.group, at.optimizer.counters
    assert job.leaves is not None  # a training of one call leaves nothing
    own = {name: vector for name, vector in at.own().items() if _is_left(name, rank, job)}
    rank.ledger.begin_round("keep")
    digests = np.array([_digest(vector) for vector in own.values()], dtype=np.int64)
    gathered = group.allgather(np.concatenate([counters.view(np.int64), digests]))
    all_counters, all_digests = gathered[:, : len(counters)], gathered[:, len(counters) :]
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
