"""D-PSGD: ranks average with their neighbours in a graph.

Problem: an all-reduce ends when the slowest rank and the slowest link are through with it, and takes more messages the
more ranks there are; neighbours in a graph of fixed degree do not.

Update, after every `every` rows, with W the doubly stochastic mixing matrix of the graph: ``x_i <- sum_j W_ij x_j``.
The local steps come first (adapt, then combine). The mean over ranks is that of the local steps; how far ranks are from
it is set by the spectral gap of W (`dsgd.comm.topology`). The model that is returned is the mean; with `keep_models`
those of all ranks are returned beside it.

With ``optimizer=GradientDescent()`` the local steps of a round are one step along the gradient of all of its rows:
decentralised gradient descent.

Ranks count alike, as a graph has no place for weights, and the steps of unequal shards are scaled for it
(`dsgd.sync.weighing`).

Cost per round: one message of the model per neighbour, `dsgd.collectives.gossip_cost`, for any number of ranks; one
all-reduce at the end.

Source: Lian, Zhang, Zhang et al. 2017, algorithm 1, in which gradients are taken at the model before it is mixed;
decentralised gradient descent: Richards, Rebeschini and Rosasco 2020, for which ``features=`` makes random features.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dsgd.collectives.gossip import check_gossip, neighbour_mean
from dsgd.collectives.group import Group
from dsgd.comm.topology import AbstractTopology, Ring
from dsgd.errors import IncompatiblePartsError
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import FloatMatrix, FloatVector, IntVector
from dsgd.validation import check_bool, check_numbers

__all__ = ["DPSGD", "RoundState", "check_topology"]


@dataclass
class RoundState:
    """The state of gossip.

    Parameters
    ----------
    rounds : array of int64, shape (1,)
        Exchanges so far: which of its graphs a topology is at.
    """

    rounds: IntVector

    def __post_init__(self) -> None:
        self.scratch: FloatMatrix = np.empty((0, 0))


def check_topology(where: str, topology: object, *, symmetric: bool) -> None:
    """Raise unless `topology` is one, and with ``symmetric`` one whose edges all go both ways.

    Raises
    ------
    IncompatiblePartsError
        It is no topology, or one that the strategy cannot use; both are named.
    """
    if not isinstance(topology, AbstractTopology):
        raise IncompatiblePartsError(
            f"{where}(topology=...) must be one of dsgd.comm.topology, such as Ring(). Got {topology!r}."
        )
    if symmetric and not topology.symmetric:
        raise IncompatiblePartsError(
            f"{where}(topology={topology!r}) has directed edges, so plain averages with neighbours would not preserve "
            "the mean. Use SGP, which corrects for that, or a topology such as Ring()."
        )


@dataclass(frozen=True)
class DPSGD(AbstractStrategy[RoundState]):
    """Average the models of neighbours every `every` rows.

    Parameters
    ----------
    every : int, default 256
        Rows of the rank with the most rows between two exchanges.
    topology : AbstractTopology, default ``Ring()``
        The graph of neighbours; it must be undirected.
    keep_models : bool, default False
        Whether a fit keeps the model of every rank too, as ``rank_coef_`` and ``rank_intercept_``: as many models as
        there are ranks are gathered once, at the end.

    Raises
    ------
    InvalidParameterError
        A value is out of range, or the topology has edges that go one way.
    """

    every: int = 256
    topology: AbstractTopology = field(default_factory=Ring)
    keep_models: bool = False
    weighs = "alike"
    talks = "in pairs"
    ends_equal = False
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "gossip")

    def __post_init__(self) -> None:
        check_numbers(self, "every", low=1, integer=True)
        check_bool("DPSGD(keep_models=...)", self.keep_models)
        check_topology("DPSGD", self.topology, symmetric=True)

    def init(self, group: Group, params: FloatVector, weight: float) -> RoundState:
        """Return a count of zero exchanges."""
        check_gossip(group, self.topology)
        state = RoundState(np.zeros(1, np.int64))
        state.scratch = np.empty((2, params.shape[0]), params.dtype)
        return state

    def sync(self, group: Group, vector: FloatVector, weight: float, state: RoundState) -> None:
        """Average with the neighbours; see `AbstractStrategy.sync`."""
        if group.size > 1:
            neighbour_mean(group, vector, self.topology, int(state.rounds[0]), state.scratch)
            state.rounds += 1

    def collect(self, group: Group, params: FloatVector, weight: float, state: RoundState) -> None:
        """Return the plain mean over ranks, which mixing has kept."""
        weighted_mean(group, params, 1.0 / group.size)
