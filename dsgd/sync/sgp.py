"""SGP: stochastic gradient push, gossip over graphs whose edges go one way.

Problem: to average with a neighbour both must be there at once. Sending one way is cheaper and waits for less, but then
plain averages would not keep the mean.

Update, after every `every` rows, with push-sum: rank i has a mass ``(w_i z_i, w_i)``, its model times its weight, and
the weight, 1 at first. It cuts the mass into equal parts, keeps one, sends one to each out-peer of the round, and adds
what comes in; then ``z_i = (w z)_i / w_i``. Local steps are taken at z. The sums of masses and weights over ranks stay
whatever the graph is. The model that is returned is the mean of the masses over the mean of the weights.

Ranks count alike whatever rows they have, as in `DPSGD`.

Cost per round: one message of the model and its weight per out-peer, `dsgd.collectives.gossip_cost`, whatever the
number of ranks; one all-reduce at the end. On the default graph a rank sends one message, half of a ring's.

Source: Assran, Loizou, Ballas and Rabbat 2019, algorithm 1; exponential graph with one peer, as there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dsgd.collectives.gossip import check_gossip, push_sum
from dsgd.collectives.group import Group
from dsgd.comm.topology import AbstractTopology, Exponential
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy, Exchange, Talk
from dsgd.sync.dpsgd import check_topology
from dsgd.sync.period import EveryRows
from dsgd.types import FloatMatrix, FloatVector, IntVector
from dsgd.validation import check_number

__all__ = ["SGP", "PushSumState"]


@dataclass
class PushSumState:
    """What stochastic gradient push remembers.

    Parameters
    ----------
    weight : array of float64, shape (1,)
        w of this rank.
    rounds : array of int64, shape (1,)
        Exchanges so far.
    """

    weight: FloatVector
    rounds: IntVector

    def __post_init__(self) -> None:
        self.scratch: FloatMatrix = np.empty((0, 0))


@dataclass(frozen=True)
class SGP(AbstractStrategy[PushSumState]):
    """Push a share of the model to peers every `every` rows.

    Parameters
    ----------
    every : int, default 256
        Rows of the rank with the most rows between two exchanges.
    topology : AbstractTopology, default ``Exponential()``
        Who sends to whom.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = 256
    topology: AbstractTopology = field(default_factory=Exponential)
    exchanges: ClassVar[Exchange] = "model"
    talks: ClassVar[Talk] = "in pairs"
    ends_equal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number("SGP(every=...)", self.every, low=1, integer=True)
        check_topology("SGP", self.topology, symmetric=False)

    @property
    def period(self) -> EveryRows:
        """After every `every` rows, and at the end of an epoch."""
        return EveryRows(self.every)

    def init(self, group: Group, params: FloatVector, weight: float) -> PushSumState:
        """Return a weight of one."""
        check_gossip(group, self.topology)
        state = PushSumState(np.ones(1), np.zeros(1, np.int64))
        state.scratch = np.empty((3, params.shape[0] + 1), params.dtype)
        return state

    def sync(self, group: Group, vector: FloatVector, weight: float, state: PushSumState) -> None:
        """Push and take in; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        mass = state.scratch[2]
        np.multiply(vector, vector.dtype.type(state.weight[0]), out=mass[:-1])
        mass[-1] = state.weight[0]
        push_sum(group, mass, self.topology, int(state.rounds[0]), state.scratch[:2])
        state.weight[0] = mass[-1]
        np.divide(mass[:-1], mass[-1], out=vector)
        state.rounds += 1

    def collect(self, group: Group, params: FloatVector, weight: float, state: PushSumState) -> None:
        """Return the mean of all masses over the mean of all weights."""
        mass = state.scratch[2]
        np.multiply(params, params.dtype.type(state.weight[0]), out=mass[:-1])
        mass[-1] = state.weight[0]
        weighted_mean(group, mass, 1.0 / group.size)
        np.divide(mass[:-1], mass[-1], out=params)
