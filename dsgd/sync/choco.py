"""CHOCO-SGD: gossip of compressed differences.

Problem: gossip sends few vectors but whole ones, and averages of compressed models do not even agree in the end. What
is compressed here is the difference from what everybody knows of a rank already, which goes to zero as ranks agree.

Update, after every `every` rows: every rank has a public copy of its model, c_i, that its neighbours can follow, and
the mean of its neighbours' copies, ``s_i = sum_j W_ij c_j``. With Q the compressor::

    q_i = Q(x_i - c_i);  c_i <- c_i + q_i;  s_i <- s_i + sum_j W_ij q_j
    x_i <- x_i + gamma (s_i - c_i)

The mean over ranks stays, whatever Q leaves out. What it leaves out is sent later, so there is no other memory. With
the identity as Q and gamma = 1 it is `DPSGD`. The mean of the models is returned.

Cost per round: one payload per neighbour; one all-reduce of the model at the end. Two more vectors per rank, and what
the compressor remembers.

Source: Koloskova, Stich and Jaggi 2019, algorithm 2 in its memory-efficient form (algorithm 6); gamma by the
compressor, 0.04 for the largest 1 % of the entries there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from dsgd.collectives.compressed.encoding import encoding
from dsgd.collectives.gossip import check_gossip
from dsgd.collectives.group import Group
from dsgd.comm.frames import OP_GOSSIP
from dsgd.comm.topology import AbstractTopology, Ring
from dsgd.comm.topology.matching import exchange_steps
from dsgd.comm.topology.mixing import weights
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
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractRejoining, AbstractStrategy
from dsgd.sync.dpsgd import check_topology
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import check_numbers

__all__ = ["ChocoSGD", "ChocoState"]

# Compressors of sums over all ranks, or with a memory of their own.
_FOR_SUMS: Final = (DGC, DeMo, ErrorFeedback, GTopK, MajorityVote, PowerSGD)


@dataclass
class ChocoState(AbstractRejoining):
    """The state of CHOCO-SGD.

    Parameters
    ----------
    public : array, shape (n_params,)
        c of this rank: what its neighbours know of its model.
    mixed : array, shape (n_params,)
        s of this rank: the weighted mean of the public copies of its neighbours and its own.
    memory : AbstractMemory
        The state of the compressor.
    """

    public: FloatVector
    mixed: FloatVector
    memory: AbstractMemory

    def __post_init__(self) -> None:
        self.scratch = np.empty_like(self.public)

    def rejoin(self, params: FloatVector) -> None:
        """Take the public copy, which all ranks now have in common, for the mean of those of the neighbours too."""
        self.mixed[:] = self.public


@dataclass(frozen=True)
class ChocoSGD(AbstractStrategy[ChocoState]):
    """Average with neighbours every `every` rows, by compressed differences.

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

    every: int = 256
    compressor: AbstractCompressor[Any] = field(default_factory=lambda: TopK(0.1))
    gamma: float = 0.3
    topology: AbstractTopology = field(default_factory=Ring)
    weighs = "alike"
    ends_equal = False
    talks = "in pairs"
    taxonomy = Taxonomy("decentralised", "synchronous", "change", "gossip")

    def __post_init__(self) -> None:
        check_numbers(self, "every", low=1, integer=True)
        check_numbers(self, "gamma", low=0, high=1)
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
