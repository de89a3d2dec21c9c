"""Asynchronous decentralised parallel SGD: pairs of ranks average their models without waiting for others.

Problem: gossip in rounds (`DPSGD`) waits for the slowest neighbour, a server is a bottleneck.

Update: ranks with even numbers are active, the others passive, so that ranks cannot wait for each other in a circle.
After `every` rows an active rank sends its model x_i to a random passive rank and continues. When the passive rank j
next reads its mailbox, after rows of its own, it sends its model x_j back and takes the mean, ``x_j <- (x_i + x_j) /
2``. When the answer arrives, the active rank adds its half of the difference, ``x_i <- x_i + (x_j - x_i as sent) / 2``.
The two changes add up to zero: the mean over ranks changes by their steps alone, and the pair has averaged as if at one
moment, with the steps that the active rank took meanwhile applied late. Training returns the mean.

The method needs prompt answers: its rate is proven for a bounded delay. With one core per rank they are prompt. If
ranks share cores, one could finish its rows before its partner runs at all. So an active rank blocks after it has
looked for an answer `patience` times, and a passive rank that has finished its epoch answers until all active ranks
have finished theirs.

Cost per exchange: one message of the model each way, for any number of ranks; an active rank has one exchange under way
at a time. At the end of an epoch each active rank tells the last passive one that it has finished, and when all have,
that rank tells the other passive ones; both are control.

Source: Lian, Zhang, Zhang and Liu 2018 (AD-PSGD, algorithm 1); there both wait for the exchange in a thread of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.comm.frames import OP_POST
from dsgd.kernels.rng import draw_one, mix64_each
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy, AbstractUnderWay
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import check_numbers

__all__ = ["ADPSGD", "PairState"]

# The last entry of what an active rank sends: it asks with its model, or is through its rows.
_ASKS: Final = 1.0
_IS_DONE: Final = 0.0


@dataclass
class PairState:
    """The state of a rank.

    Parameters
    ----------
    exchanges : array of int64, shape (1,)
        How often it could have exchanged.

    Attributes
    ----------
    sent : array, shape (n_params + 1,)
        The model as it was sent. It and the fields below belong to this gang and are not handed to another.
    partner : int
        The rank it was sent to; negative for none.
    looks : int
        How often this rank has looked for the answer.
    going : set of int
        The ranks that a passive one may still hear from in this epoch: the active ones, and who says when all are done.
    """

    exchanges: AnyArray

    def __post_init__(self) -> None:
        self.sent: FloatVector = np.zeros(0)
        self.partner = -1
        self.looks = 0
        self.going: set[int] = set()


@dataclass(frozen=True)
class ADPSGD(AbstractStrategy[PairState], AbstractUnderWay[PairState]):
    """Average models in pairs without waiting.

    Parameters
    ----------
    every : int, default 64
        Rows of the rank with the most rows between two looks into the mailbox.
    seed : int, default 0
        Of the partners.
    patience : int, default 8
        Looks after which an active rank waits for an answer that has not come.

    Raises
    ------
    InvalidParameterError
        `every` or `patience` is not a positive integer or `seed` is negative.
    """

    every: int = 64
    seed: int = 0
    patience: int = 8
    weighs = "alike"
    talks = "by mailbox"
    ends_equal = False
    taxonomy = Taxonomy("decentralised", "asynchronous", "model", "pairs")

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        check_numbers(self, "every", "patience", low=1, integer=True)
        check_numbers(self, "seed", low=0, integer=True)

    def init(self, group: Group, params: FloatVector, weight: float) -> PairState:
        """Return the record of a rank that has not exchanged yet."""
        if group.size > 1:
            _partner(self.seed, group, 0)  # compiled or loaded now, and not while somebody waits
        state = PairState(np.zeros(1, dtype=np.int64))
        state.sent = np.append(params, params.dtype.type(_ASKS))
        state.going = _talkers(group)
        return state

    def sync(self, group: Group, vector: FloatVector, weight: float, state: PairState) -> None:
        """Answer the messages that have arrived, or start an exchange; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        state.exchanges += 1
        if group.rank % 2:
            while state.going and (source := group.mailbox.poll_any(sorted(state.going))) is not None:
                _hear(group, vector, source, state)
            return
        if state.partner >= 0:
            state.looks += 1
            if state.looks >= self.patience or group.mailbox.poll(state.partner):
                _finish(group, vector, state)
        if state.partner < 0:
            state.partner, state.looks = _partner(self.seed, group, int(state.exchanges[0])), 0
            state.sent[:-1] = vector
            group.mailbox.post(state.partner, state.sent, OP_POST)

    def settle(self, group: Group, params: FloatVector, state: PairState) -> None:
        """Answer until no rank asks any more, or wait for the answer to this rank; see `AbstractUnderWay.settle`."""
        if group.size == 1:
            return
        if group.rank % 2:
            while state.going:
                _hear(group, params, group.mailbox.wait_any(sorted(state.going)), state)
            state.going = _talkers(group)
            return
        if state.partner >= 0:
            _finish(group, params, state)
        state.sent[-1] = _IS_DONE
        with group.ledger.aside():
            group.mailbox.post(_herald(group), state.sent, OP_POST)
        state.sent[-1] = _ASKS

    def leave(self, group: Group, params: FloatVector, state: PairState) -> None:
        """Do nothing: all has ended with the last epoch."""

    def collect(self, group: Group, params: FloatVector, weight: float, state: PairState) -> None:
        """Take the mean of all models, the same on every rank; nothing is under way since the epoch has ended."""
        # The mean over ranks is what the exchanges have kept; shares of rows have no part in it.
        weighted_mean(group, params, 1.0 / group.size)


def _talkers(group: Group) -> set[int]:
    """Return the ranks that a passive one hears from in an epoch."""
    return {*range(0, group.size, 2)} | ({_herald(group)} - {group.rank})


def _herald(group: Group) -> int:
    """Return the passive rank that active ones tell that they are done, and that tells the others when all are."""
    # The last one: mailboxes are looked at from the rank after the last that was heard, here rank 0.
    return 2 * (group.size // 2) - 1


def _partner(seed: int, group: Group, number: int) -> int:
    """Return the passive rank that an active one asks the next time."""
    key = mix64_each(np.full(1, seed, np.uint64))[0] ^ np.uint64(group.rank)
    return 1 + 2 * int(draw_one(key, np.uint64(number)) % np.uint64(group.size // 2))


def _hear(group: Group, vector: FloatVector, source: int, state: PairState) -> None:
    """Take what a rank has sent: its model, which is answered, or that it is through its rows, or that all are."""
    if source == _herald(group):
        with group.ledger.aside():
            group.mailbox.take(source, np.zeros(1, np.uint8), OP_POST)
        # Who is through its rows has been answered by all that it has asked.
        state.going.clear()
        return
    group.mailbox.take(source, state.sent, OP_POST)
    if state.sent[-1] == _IS_DONE:
        state.going.remove(source)
        if not state.going:
            with group.ledger.aside():
                for passive in range(1, group.rank, 2):
                    group.mailbox.post(passive, np.zeros(1, np.uint8), OP_POST)
        return
    group.mailbox.post(source, vector, OP_POST)
    theirs = state.sent[:-1]
    theirs -= vector
    theirs *= 0.5
    vector += theirs


def _finish(group: Group, vector: FloatVector, state: PairState) -> None:
    """Take the answer, waiting for it if need be, and add what has been missed."""
    theirs = np.empty_like(vector)
    group.mailbox.take(state.partner, theirs, OP_POST)
    state.partner = -1
    theirs -= state.sent[:-1]
    theirs *= 0.5
    vector += theirs
