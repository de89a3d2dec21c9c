"""Overlap SGP: stochastic gradient push whose messages are used some rounds later.

Problem: even with one message per round, ranks wait for it. Here a rank sends its share and continues, and adds the
shares that its peers sent some rounds ago. It waits only for peers that are that many rounds behind, so that short
stalls of a rank or a link cost nothing.

Update: that of `dsgd.sync.sgp`, but what was sent in round k is added in round ``k + delay``. Masses and weights under
way keep the sums over ranks whole, and ``z = x / w`` with the weight that a rank has itself corrects for them. A rank
is at most `delay` rounds ahead of those that send to it. At the end everything under way is added.

Of a mass of one, ``delay`` shares are under way: a rank that keeps the part s has the weight ``w = 1 / (1 + delay (1 -
s))``, which is 0.67, 0.4 and 0.22 for a delay of 1, 3 and 7 on the default graph. The change that its steps make is
added to the mass unscaled, so that the mean of all masses moves at the given rate, while the rank's own model at first
moves by 1 / w of it. A round should therefore bring a model less than the part 2 w closer to its limit: with a long
delay, rounds must be short or rates small.

Training starts as if shares of the first model had always been under way; nothing is sent for that.

Messages are added in the round that is theirs and not when they come, so the same seed gives the same model.

Cost per round: one message of the mass and its weight per out-peer, as SGP; ``delay`` more vectors per rank, the
shares under way, which a gang that resumes from a checkpoint sends again.

Source: Assran, Loizou, Ballas and Rabbat 2019, algorithm 2 (tau-overlap SGP). There a rank sends in one round of tau,
so that one share is under way, and a message that comes early is added early.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dsgd.collectives.group import Group
from dsgd.comm.frames import OP_GOSSIP
from dsgd.comm.topology import AbstractTopology, Exponential
from dsgd.comm.topology.mixing import shares
from dsgd.handover import OWN
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractRejoining, AbstractStrategy, AbstractUnderWay
from dsgd.sync.dpsgd import check_topology
from dsgd.sync.sgp import load_mass
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import FloatMatrix, FloatVector, IntVector
from dsgd.validation import check_numbers

__all__ = ["InFlightState", "OverlapSGP"]


@dataclass
class InFlightState(AbstractRejoining):
    """The state of overlap SGP.

    Parameters
    ----------
    weight : array of float64, shape (1,)
        w of this rank.
    rounds : array of int64, shape (1,)
        Exchanges so far.
    anchor : array, shape (n_params,)
        z after the last exchange.
    sent : array, shape (delay, n_params + 1)
        The share of each of the last rounds, as every out-peer of that round gets it; round k in row ``k % delay``. At
        first, the rows of future rounds hold what arrives in those rounds.
    """

    weight: FloatVector = field(metadata=OWN)
    rounds: IntVector = field(metadata=OWN)
    anchor: FloatVector
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

    every: int = 256
    delay: int = 1
    topology: AbstractTopology = field(default_factory=Exponential)
    weighs = "alike"
    ends_equal = False
    talks = "by mailbox"
    taxonomy = Taxonomy("decentralised", "bounded", "model", "gossip")

    def __post_init__(self) -> None:
        check_numbers(self, "every", low=1, integer=True)
        # One more round than that may be under way, and a mailbox holds eight frames from one rank to another.
        check_numbers(self, "delay", low=1, high=7, integer=True)
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
