"""SGP: stochastic gradient push, gossip over directed graphs.

Problem: to average with a neighbour both must be there at once. Sending one way is cheaper and waits for less, but then
plain averages would not keep the mean.

Update, after every `every` rows, with push-sum: rank i has a mass x_i, a vector, and a weight w_i, 1 at first; its
model is ``z_i = x_i / w_i``. Local steps are taken at z, and the change they make is added to the mass unscaled::

    x_i <- x_i + (z_i after the steps - z_i before them)

Then the rank cuts mass and weight into equal parts, keeps one, sends one to each out-peer of the round, and adds the
parts it receives. The sums of masses and weights over ranks are the same on any graph, so that the mean of the masses
moves by the mean change of the steps: on any graph training converges to the same model, at the given rate. (Steps that
change ``w_i z_i`` by w_i times as much would weight ranks by w_i, and minimise ``sum_i w_i f_i``.) The mean of the
masses over the mean of the weights is returned.

Ranks count alike, and the steps of unequal shards are scaled for it (`dsgd.sync.weighing`).

Cost per round: one message of the mass and its weight per out-peer, `dsgd.collectives.gossip_cost`, for any number of
ranks; one all-reduce at the end. On the default graph a rank sends one message, half as many as on a ring. One more
vector per rank.

Source: Assran, Loizou, Ballas and Rabbat 2019, algorithm 1, where steps on the mass are taken along
the gradients at z; here those of a round are taken at z first, which moves on by 1 / w_i of them with the exchange.
Exponential graph with one peer, as there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dsgd.collectives.gossip import check_gossip, push_sum
from dsgd.collectives.group import Group
from dsgd.comm.topology import AbstractTopology, Exponential
from dsgd.handover import OWN
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.dpsgd import check_topology
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import FloatMatrix, FloatVector, IntVector
from dsgd.validation import check_numbers

__all__ = ["SGP", "PushSumState", "load_mass"]


@dataclass
class PushSumState:
    """The state of stochastic gradient push.

    Parameters
    ----------
    weight : array of float64, shape (1,)
        w of this rank; one again where ranks have all got the same model.
    rounds : array of int64, shape (1,)
        Exchanges so far.
    anchor : array, shape (n_params,)
        z after the last exchange.
    """

    weight: FloatVector = field(metadata=OWN)
    rounds: IntVector
    anchor: FloatVector

    def __post_init__(self) -> None:
        n, dtype = self.anchor.shape[0], self.anchor.dtype
        self.scratch: FloatMatrix = np.empty((2, n + 1), dtype)
        self.mass: FloatVector = np.empty(n + 1, dtype)

    def load(self, params: FloatVector) -> None:
        """Write into `mass` the mass of a model after local steps, and its weight."""
        load_mass(self.mass, params, self.anchor, float(self.weight[0]))

    def unload(self, params: FloatVector) -> None:
        """Take the model and the weight from `mass`."""
        self.weight[0] = self.mass[-1]
        np.divide(self.mass[:-1], self.mass[-1], out=params)
        self.anchor[:] = params


def load_mass(mass: FloatVector, params: FloatVector, anchor: FloatVector, weight: float) -> None:
    """Write ``(w anchor + (params - anchor), w)``: the change of the steps, added to the mass unscaled.

    Parameters
    ----------
    mass : array, shape (n_params + 1,)
        Overwritten.
    params, anchor : array, shape (n_params,)
        The models after the steps and before them.
    weight : float
        w.
    """
    if weight == 1.0:
        mass[:-1] = params
    else:
        np.multiply(anchor, anchor.dtype.type(weight - 1.0), out=mass[:-1])
        mass[:-1] += params
    mass[-1] = weight


@dataclass(frozen=True)
class SGP(AbstractStrategy[PushSumState]):
    """Push a share of the model to peers every `every` rows.

    Parameters
    ----------
    every : int, default 256
        Rows of the rank with the most rows between two exchanges.
    topology : AbstractTopology, default ``Exponential()``
        The graph, which may be directed.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = 256
    topology: AbstractTopology = field(default_factory=Exponential)
    weighs = "alike"
    talks = "in pairs"
    ends_equal = False
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "gossip")

    def __post_init__(self) -> None:
        check_numbers(self, "every", low=1, integer=True)
        check_topology("SGP", self.topology, symmetric=False)

    def sent_values(self, n_params: int) -> int:
        """Return the length of the model and its weight."""
        return n_params + 1

    def init(self, group: Group, params: FloatVector, weight: float) -> PushSumState:
        """Return a weight of one, and the model to start from."""
        check_gossip(group, self.topology)
        return PushSumState(np.ones(1), np.zeros(1, np.int64), params.copy())

    def sync(self, group: Group, vector: FloatVector, weight: float, state: PushSumState) -> None:
        """Push and take in; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        state.load(vector)
        push_sum(group, state.mass, self.topology, int(state.rounds[0]), state.scratch)
        state.unload(vector)
        state.rounds += 1

    def collect(self, group: Group, params: FloatVector, weight: float, state: PushSumState) -> None:
        """Return the mean of all masses over the mean of all weights."""
        state.load(params)
        weighted_mean(group, state.mass, 1.0 / group.size)
        np.divide(state.mass[:-1], state.mass[-1], out=params)
