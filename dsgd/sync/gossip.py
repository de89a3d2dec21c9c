"""Strategies in which a rank exchanges with its neighbours in a graph, round by round.

Local steps come first, the exchange follows (adapt, then combine), after every `every` rows. Ranks count alike, as a
graph has no place for weights, and the steps of unequal shards are scaled for it (`dsgd.sync.period`).

Cost per round: one message per neighbour, `dsgd.collectives.gossip_cost`, for any number of ranks; one all-reduce of
the model at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.collectives.means import check_gossip, neighbour_mean, push_sum
from dsgd.collectives.payloads import encoding
from dsgd.comm.frames import OP_GOSSIP
from dsgd.comm.topology import AbstractTopology, Exponential, Ring, exchange_steps, weights
from dsgd.compress import (
    DGC,
    AbstractCompressor,
    AbstractMemory,
    DeMo,
    ErrorFeedback,
    GTopK,
    MajorityVote,
    PowerSGD,
    TopK,
)
from dsgd.errors import IncompatiblePartsError
from dsgd.handover import OWN
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractRejoining, AbstractStrategy
from dsgd.sync.period import Taxonomy
from dsgd.types import ByteVector, FloatMatrix, FloatVector, IntVector
from dsgd.validation import number


@dataclass
class RoundState:
    """The state of gossip."""

    # Exchanges so far: which of its graphs a topology is at.
    rounds: IntVector

    def __post_init__(self) -> None:
        self.scratch: FloatMatrix = np.empty((0, 0))


def check_topology(where: str, topology: object, *, symmetric: bool) -> None:
    """Raise unless `topology` is one, and with ``symmetric`` one whose edges all go both ways."""
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

    Problem: an all-reduce ends when the slowest rank and the slowest link are through with it, and takes more messages
    the more ranks there are; neighbours in a graph of fixed degree do not.

    Update, with W the doubly stochastic mixing matrix of the graph: ``x_i <- sum_j W_ij x_j``. The mean over ranks is
    that of the local steps; how far ranks are from it is set by the spectral gap of W (`dsgd.comm.topology`). The model
    that is returned is the mean; with `keep_models` those of all ranks are returned alongside it.

    With ``optimizer=GradientDescent()`` the local steps of a round are one step along the gradient of all of its rows:
    decentralised gradient descent.

    Source: Lian, Zhang, Zhang et al. 2017, algorithm 1, in which gradients are taken at the model before it is mixed;
    decentralised gradient descent: Richards, Rebeschini and Rosasco 2020, for which ``features=`` makes random
    features.

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

    every: int = number(256, low=1)
    topology: AbstractTopology = field(default_factory=Ring)
    keep_models: bool = False
    weighs = "alike"
    talks = "in pairs"
    ends_equal = False
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "gossip")

    def __post_init__(self) -> None:
        super().__post_init__()
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


@dataclass
class PushSumState:
    """The state of stochastic gradient push."""

    # w of this rank; one again where ranks have all got the same model.
    weight: FloatVector = field(metadata=OWN)
    # Exchanges so far.
    rounds: IntVector
    # z after the last exchange.
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
    """Write ``(w anchor + (params - anchor), w)``: the change of the steps, added to the mass unscaled."""
    if weight == 1.0:
        mass[:-1] = params
    else:
        np.multiply(anchor, anchor.dtype.type(weight - 1.0), out=mass[:-1])
        mass[:-1] += params
    mass[-1] = weight


@dataclass(frozen=True)
class SGP(AbstractStrategy[PushSumState]):
    """Push a share of the model to peers every `every` rows.

    Problem: to average with a neighbour both must be there at once. Sending one way is cheaper and waits for less, but
    then plain averages would not keep the mean.

    Update, with push-sum: rank i has a mass x_i, a vector, and a weight w_i, 1 at first; its model is ``z_i = x_i /
    w_i``. Local steps are taken at z, and the change they make is added to the mass unscaled::

        x_i <- x_i + (z_i after the steps - z_i before them)

    Then the rank cuts mass and weight into equal parts, keeps one, sends one to each out-peer of the round, and adds
    the parts it receives. The sums of masses and weights over ranks are the same on any graph, so that the mean of the
    masses moves by the mean change of the steps: on any graph training converges to the same model, at the given rate.
    (Steps that change ``w_i z_i`` by w_i times as much would weight ranks by w_i, and minimise ``sum_i w_i f_i``.) The
    mean of the masses over the mean of the weights is returned.

    A message is the mass and its weight. On the default graph a rank sends one message, half as many as on a ring. One
    more vector per rank.

    Source: Assran, Loizou, Ballas and Rabbat 2019, algorithm 1, where steps on the mass are taken along the gradients
    at z; here those of a round are taken at z first, which moves on by 1 / w_i of them with the exchange. Exponential
    graph with one peer, as there.

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

    every: int = number(256, low=1)
    topology: AbstractTopology = field(default_factory=Exponential)
    weighs = "alike"
    talks = "in pairs"
    ends_equal = False
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "gossip")

    def __post_init__(self) -> None:
        super().__post_init__()
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


# Compressors of sums over all ranks, or with a memory of their own.
_FOR_SUMS: Final = (DGC, DeMo, ErrorFeedback, GTopK, MajorityVote, PowerSGD)


@dataclass
class ChocoState(AbstractRejoining):
    """The state of CHOCO-SGD."""

    # c of this rank: what its neighbours know of its model.
    public: FloatVector
    # s of this rank: the weighted mean of the public copies of its neighbours and its own.
    mixed: FloatVector
    # The state of the compressor.
    memory: AbstractMemory

    def __post_init__(self) -> None:
        self.scratch = np.empty_like(self.public)

    def rejoin(self, params: FloatVector) -> None:
        """Take the public copy, which all ranks now have in common, for the mean of those of the neighbours too."""
        self.mixed[:] = self.public


@dataclass(frozen=True)
class ChocoSGD(AbstractStrategy[ChocoState]):
    """Average with neighbours every `every` rows, by compressed differences.

    Problem: gossip sends few vectors but whole ones, and averages of compressed models do not even agree in the end.
    What is compressed here is the difference from what everybody knows of a rank already, which goes to zero as ranks
    agree.

    Update: every rank has a public copy of its model, c_i, that its neighbours can follow, and the mean of its
    neighbours' copies, ``s_i = sum_j W_ij c_j``. With Q the compressor::

        q_i = Q(x_i - c_i);  c_i <- c_i + q_i;  s_i <- s_i + sum_j W_ij q_j
        x_i <- x_i + gamma (s_i - c_i)

    The mean over ranks stays, whatever Q leaves out. What it leaves out is sent later, so there is no other memory.
    With the identity as Q and gamma = 1 it is `DPSGD`. The mean of the models is returned.

    Two more vectors per rank, and what the compressor remembers. Source: Koloskova, Stich and Jaggi 2019, algorithm 2
    in its memory-efficient form (algorithm 6); gamma by the compressor, 0.04 for the largest 1 % of the entries there.

    Parameters
    ----------
    every : int, default 256
        Rows of the rank with the most rows between two exchanges.
    compressor : AbstractCompressor, default ``TopK(0.1)``
        What makes differences small; of a payload of fixed size.
    gamma : float, default 0.3
        How far a model moves to its neighbours', in [0, 1]; the smaller, the more the compressor leaves out.
    topology : AbstractTopology, default ``Ring()``
        The graph of neighbours; it must be fixed and undirected.

    Raises
    ------
    InvalidParameterError
        A value is out of range, or the compressor and the topology are none, or do not go with it.
    """

    every: int = number(256, low=1)
    compressor: AbstractCompressor[Any] = field(default_factory=lambda: TopK(0.1))
    gamma: float = number(0.3, low=0, high=1)
    topology: AbstractTopology = field(default_factory=Ring)
    weighs = "alike"
    ends_equal = False
    talks = "in pairs"
    taxonomy = Taxonomy("decentralised", "synchronous", "change", "gossip")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_topology("ChocoSGD", self.topology, symmetric=True)
        compressor = self.compressor
        if (
            not isinstance(compressor, AbstractCompressor)
            or isinstance(compressor, _FOR_SUMS)
            or compressor.payload_bytes(1, 8) is None
        ):
            raise IncompatiblePartsError(
                f"ChocoSGD(compressor={compressor!r}) must be a compressor of dsgd.compress without a memory and with "
                "payloads of one size, such as TopK(0.1) or QSGD(): the public copies already act as the memory."
            )

    def init(self, group: Group, params: FloatVector, weight: float) -> ChocoState:
        """Return the model to start from, which everybody knows, as the public copy."""
        check_gossip(group, self.topology)
        if self.topology.period(group.size) > 1:
            raise IncompatiblePartsError(
                f"ChocoSGD(topology={self.topology!r}) changes the neighbours between rounds, but a rank keeps copies "
                "of fixed neighbours. Use Ring() or another fixed graph."
            )
        memory = self.compressor.init(params.shape[0], params.dtype, group.seed, group.rank, group.size)
        return ChocoState(params.copy(), params.copy(), memory)

    def sync(self, group: Group, vector: FloatVector, weight: float, state: ChocoState) -> None:
        """Exchange compressed differences; see `AbstractStrategy.sync`."""
        if group.size == 1:
            return
        n, decode = vector.shape[0], self.compressor.decode
        own, of = weights(self.topology, group.rank, group.size)

        def encode() -> ByteVector:
            np.subtract(vector, state.public, out=state.scratch)
            payload = self.compressor.encode(state.scratch, state.memory)
            decode(payload, state.public, 1.0)
            decode(payload, state.mixed, own)
            return payload

        payload = encoding(group, n, encode)
        n_touched = min(n, payload.nbytes // vector.itemsize) if self.compressor.sparse else n
        arrived = np.empty_like(payload)
        for step in exchange_steps(self.topology, group.rank, group.size):
            outgoing, incoming = None if step.to is None else payload, None if step.source is None else arrived
            group.transport.exchange(step.to, outgoing, step.source, incoming, OP_GOSSIP)
            if step.source is not None:
                encoding(group, n_touched, partial(decode, arrived, state.mixed, of[step.source]))
        np.subtract(state.mixed, state.public, out=state.scratch)
        state.scratch *= vector.dtype.type(self.gamma)
        vector += state.scratch

    def collect(self, group: Group, params: FloatVector, weight: float, state: ChocoState) -> None:
        """Return the plain mean over ranks, which mixing has kept."""
        weighted_mean(group, params, 1.0 / group.size)
