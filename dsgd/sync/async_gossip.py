"""Strategies in which a rank exchanges with others without waiting for all of them, and without a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.comm.frames import OP_GOSSIP, OP_POST
from dsgd.comm.topology import AbstractTopology, Exponential, shares
from dsgd.handover import OWN
from dsgd.kernels.order import draw_one, mix64_each
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractRejoining, AbstractStrategy, AbstractUnderWay
from dsgd.sync.gossip import check_topology, load_mass
from dsgd.sync.period import Taxonomy
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector
from dsgd.validation import number


@dataclass
class InFlightState(AbstractRejoining):
    """The state of overlap SGP."""

    # w of this rank.
    weight: FloatVector = field(metadata=OWN)
    # Exchanges so far.
    rounds: IntVector = field(metadata=OWN)
    # z after the last exchange.
    anchor: FloatVector
    # Shape (delay, n_params + 1): the share of each of the last rounds, as every out-peer of that round gets it; of
    # round k in row ``k % delay``. At first, the rows of future rounds hold what arrives in those rounds.
    sent: FloatMatrix = field(metadata=OWN)

    def __post_init__(self) -> None:
        # What is no field is in no checkpoint: a new gang has posted nothing yet.
        self.posted = 0
        self.mass = np.empty(self.sent.shape[1], self.sent.dtype)
        self.arrived = np.empty_like(self.mass)
        self.first: tuple[float, FloatVector] = 1.0, np.zeros(0)

    def begin(self, params: FloatVector) -> None:
        """Start from a model that all ranks have, as if shares of it had always been under way."""
        self.weight[0], arriving = self.first
        self.rounds[0] = self.posted = 0
        self.anchor[:] = params
        self.sent[:] = 0.0
        for row, weight in zip(self.sent, arriving, strict=True):
            if weight > 0.0:
                np.multiply(params, weight, out=row[:-1])
                row[-1] = weight

    def rejoin(self, params: FloatVector) -> None:
        """Start again from the model that all ranks have now, which includes what was under way."""
        self.begin(params)


@dataclass(frozen=True)
class OverlapSGP(AbstractStrategy[InFlightState], AbstractUnderWay[InFlightState]):
    """Push a share of the model to peers every `every` rows, and take in shares that were pushed some rounds ago.

    Problem: even with one message per round, ranks wait for it. Here a rank sends its share and continues, and adds the
    shares that its peers sent some rounds ago. It waits only for peers that are that many rounds behind, so that short
    stalls of a rank or a link cost nothing.

    Update: that of `SGP`, but what was sent in round k is added in round ``k + delay``. Masses and weights under way
    keep the sums over ranks whole, and ``z = x / w`` with the weight that a rank has itself corrects for them. A rank
    is at most `delay` rounds ahead of those that send to it. At the end everything under way is added.

    Of a mass of one, ``delay`` shares are under way: a rank that keeps the part s has the weight ``w = 1 / (1 + delay
    (1 - s))``, which is 0.67, 0.4 and 0.22 for a delay of 1, 3 and 7 on the default graph. The change that its steps
    make is added to the mass unscaled, so that the mean of all masses moves at the given rate, while the rank's own
    model at first moves by 1 / w of it. A round should therefore bring a model less than the part 2 w closer to its
    limit: with a long delay, rounds must be short or rates small.

    Training starts as if shares of the first model had always been under way; nothing is sent for that. Messages are
    added in the round that is theirs and not when they come, so the same seed gives the same model.

    Cost per round: one message of the mass and its weight per out-peer, as SGP; ``delay`` more vectors per rank, the
    shares under way, which a gang that resumes from a checkpoint sends again.

    Source: Assran, Loizou, Ballas and Rabbat 2019, algorithm 2 (tau-overlap SGP). There a rank sends in one round of
    tau, so that one share is under way, and a message that comes early is added early.

    Parameters
    ----------
    every : int, default 256
        Rows of the rank with the most rows between two exchanges.
    delay : int, default 1
        Rounds until what was sent is added, from 1 to 7.
    topology : AbstractTopology, default ``Exponential()``
        The graph, which may be directed.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = number(256, low=1)
    delay: int = number(1, low=1, high=7)
    topology: AbstractTopology = field(default_factory=Exponential)
    weighs = "alike"
    ends_equal = False
    talks = "by mailbox"
    taxonomy = Taxonomy("decentralised", "bounded", "model", "gossip")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_topology("OverlapSGP", self.topology, symmetric=False)

    def sent_values(self, n_params: int) -> int:
        """Return the length of the model and its weight."""
        return n_params + 1

    def init(self, group: Group, params: FloatVector, weight: float) -> InFlightState:
        """Return the weight of a rank of whose mass shares are under way."""
        size, rank, rounds = group.size, group.rank, range(self.delay)
        state = InFlightState(
            np.ones(1), np.zeros(1, np.int64), params.copy(), np.zeros((self.delay, params.shape[0] + 1), params.dtype)
        )
        sources = [self.topology.in_peers(rank, size, k) for k in rounds]
        arriving = [sum(self._sends(peer, size, k) for peer in peers) for k, peers in zip(rounds, sources, strict=True)]
        state.first = self._first_weight(rank, size), np.array(arriving, params.dtype)
        state.begin(params)
        return state

    def sync(self, group: Group, vector: FloatVector, weight: float, state: InFlightState) -> None:
        """Push, and take in what was pushed some rounds ago; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        k, mass = int(state.rounds[0]), state.mass
        # What this gang has not posted itself it has from the gang before.
        for earlier in range(max(state.posted, k - self.delay), k):
            self._post(group, earlier, state)
        load_mass(mass, vector, state.anchor, float(state.weight[0]))
        mass *= mass.dtype.type(shares(self.topology, group.rank, group.size, k))
        row = state.sent[k % self.delay]
        if k < self.delay:
            # From before the first round; the row is needed for this one.
            state.arrived[:] = row
            row[:] = mass
            if state.arrived[-1] > 0.0:
                mass += state.arrived
        else:
            # The row of a round that its receivers take in this one.
            row[:] = mass
        self._post(group, k, state)
        if k >= self.delay:
            self._take(group, k - self.delay, state)
        state.rounds += 1
        state.posted = k + 1
        state.weight[0] = mass[-1]
        np.divide(mass[:-1], mass[-1], out=vector)
        state.anchor[:] = vector

    def settle(self, group: Group, params: FloatVector, state: InFlightState) -> None:
        """Do nothing: what is under way is in the state of its sender."""

    def leave(self, group: Group, params: FloatVector, state: InFlightState) -> None:
        """Take what is under way out of the mailbox; see `AbstractUnderWay.leave`."""
        for late in range(max(0, int(state.rounds[0]) - self.delay), state.posted):
            self._take(group, late, state)

    def collect(self, group: Group, params: FloatVector, weight: float, state: InFlightState) -> None:
        """Return the mean of all masses over the mean of all weights, with what each rank has under way."""
        k, mass = int(state.rounds[0]), state.mass
        load_mass(mass, params, state.anchor, float(state.weight[0]))
        for to_come in range(k, self.delay):
            mass += state.sent[to_come]
        for late in range(max(0, k - self.delay), k):
            n_receivers = len(self.topology.out_peers(group.rank, group.size, late))
            mass += mass.dtype.type(n_receivers) * state.sent[late % self.delay]
        weighted_mean(group, mass, 1.0 / group.size)
        np.divide(mass[:-1], mass[-1], out=params)

    def _first_weight(self, rank: int, size: int) -> float:
        """Return the weight of a rank that adds up to one with the shares it has under way."""
        under_way = sum(1.0 - shares(self.topology, rank, size, k) for k in range(self.delay))
        return 1.0 / (1.0 + under_way)

    def _sends(self, rank: int, size: int, k: int) -> float:
        """Return the weight that a rank is taken to have sent to each out-peer, to come in in round k."""
        return self._first_weight(rank, size) * shares(self.topology, rank, size, k)

    def _post(self, group: Group, k: int, state: InFlightState) -> None:
        for peer in self.topology.out_peers(group.rank, group.size, k):
            group.mailbox.post(peer, state.sent[k % self.delay], OP_GOSSIP)

    def _take(self, group: Group, k: int, state: InFlightState) -> None:
        """Add to the mass what in-peers sent in round k."""
        for peer in self.topology.in_peers(group.rank, group.size, k):
            group.mailbox.take(peer, state.arrived, OP_GOSSIP)
            state.mass += state.arrived


# The last entry of what an active rank sends: it asks with its model, or is through its rows.
_ASKS: Final = 1.0
_IS_DONE: Final = 0.0


@dataclass
class PairState:
    """The state of a rank."""

    # How often it could have exchanged.
    exchanges: AnyArray

    def __post_init__(self) -> None:
        # The model as it was sent, to what rank (negative for none), and how often this rank has looked for the answer:
        # of this gang alone, and not handed to another.
        self.sent: FloatVector = np.zeros(0)
        self.partner = -1
        self.looks = 0
        # Whom a passive rank may still hear from in this epoch: the active ones, and who says when all are done.
        self.going: set[int] = set()


@dataclass(frozen=True)
class ADPSGD(AbstractStrategy[PairState], AbstractUnderWay[PairState]):
    """Average models in pairs without waiting.

    Problem: gossip in rounds (`DPSGD`) waits for the slowest neighbour, a server is a bottleneck.

    Update: ranks with even numbers are active, the others passive, so that ranks cannot wait for each other in a
    circle. After `every` rows an active rank sends its model x_i to a random passive rank and continues. When the
    passive rank j next reads its mailbox, after rows of its own, it sends its model x_j back and takes the mean, ``x_j
    <- (x_i + x_j) / 2``. When the answer arrives, the active rank adds its half of the difference, ``x_i <- x_i + (x_j
    - x_i as sent) / 2``. The two changes add up to zero: the mean over ranks changes by their steps alone, and the pair
    has averaged as if at one moment, with the steps that the active rank took meanwhile applied late. Training returns
    the mean.

    The method needs prompt answers: its rate is proven for a bounded delay. With one core per rank they are prompt. If
    ranks share cores, one could finish its rows before its partner runs at all. So an active rank blocks after it has
    looked for an answer `patience` times, and a passive rank that has finished its epoch answers until all active ranks
    have finished theirs.

    Cost per exchange: one message of the model each way, for any number of ranks; an active rank has one exchange under
    way at a time. At the end of an epoch each active rank tells the last passive one that it has finished, and when all
    have, that rank tells the other passive ones; both are control.

    Source: Lian, Zhang, Zhang and Liu 2018 (AD-PSGD, algorithm 1); there both wait for the exchange in a thread of its
    own.

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

    every: int = number(64, low=1)
    seed: int = number(0, low=0)
    patience: int = number(8, low=1)
    weighs = "alike"
    talks = "by mailbox"
    ends_equal = False
    taxonomy = Taxonomy("decentralised", "asynchronous", "model", "pairs")

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
