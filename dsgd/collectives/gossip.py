"""Averaging with the neighbours of a graph.

Problem: an all-reduce ends when the slowest rank and the slowest link have finished, and its cost grows with the number
of ranks. A rank that only exchanges with a few peers pays for those alone.

Update, for the graph of round k:

- `neighbour_mean`: ``x_i <- sum_j W_ij x_j`` with the weights of `dsgd.comm.topology.weights`. If W is doubly
  stochastic, the mean over ranks stays and all ranks converge to it.
- `push_sum`: every rank cuts its mass (w z, w), a vector and a weight, into equal parts, keeps one, sends one to each
  of its out-peers and adds those it receives. The sums of both over ranks stay on any graph, so that the ratio z
  converges to the mean where plain mixing would converge to something else.

Cost per rank and round: one message of the vector (and, for `push_sum`, of one more element) per peer;
`gossip_cost`. It does not depend on the number of ranks.

What comes in is added in the order of `dsgd.comm.topology.exchange_steps`, which is that of the graph alone:
the same bits on every wire.

Source: Kempe, Dobra and Gehrke 2003 (push-sum); Lian et al. 2017 (D-PSGD); Assran et al. 2019 (SGP).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dsgd.collectives.cost import Cost
from dsgd.collectives.group import Group
from dsgd.comm.frames import HEADER_BYTES, OP_GOSSIP
from dsgd.comm.topology import AbstractTopology, Step, exchange_steps, shares, weights
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.types import FloatMatrix, FloatVector


# Infinities are mixed as IEEE 754 says: a warning on one rank, raised as an error, would take the gang down.
@np.errstate(over="ignore", invalid="ignore")
def neighbour_mean(
    group: Group, vector: FloatVector, topology: AbstractTopology, round_number: int, scratch: FloatMatrix
) -> None:
    """Replace `vector` by the weighted mean over this rank and its neighbours in a round."""
    check_gossip(group, topology)
    _check_scratch(vector, scratch)
    plan = _plan(topology, group.rank, group.size, round_number % topology.period(group.size))
    mixed, arrived = scratch
    np.multiply(vector, vector.dtype.type(plan.own), out=mixed)
    for step, weight in zip(plan.steps, plan.weights, strict=True):
        group.transport.exchange(step.to, vector, step.source, arrived, OP_GOSSIP)
        if step.source is not None:
            arrived *= vector.dtype.type(weight)
            mixed += arrived
            group.transport.worked(n_bytes=arrived.nbytes)
    vector[:] = mixed


@np.errstate(over="ignore", invalid="ignore")
def push_sum(
    group: Group, mass: FloatVector, topology: AbstractTopology, round_number: int, scratch: FloatMatrix
) -> None:
    """Send shares of a vector and its weight to peers, and add the shares received.

    - `mass`, shape (n + 1,): ``mass[:n]`` is the vector times its weight and ``mass[n]`` the weight, which starts
      as 1; both change in place. The estimate of the mean is ``mass[:n] / mass[n]``.
    """
    check_gossip(group, topology)
    _check_scratch(mass, scratch)
    plan = _plan(topology, group.rank, group.size, round_number % topology.period(group.size))
    part, arrived = scratch
    np.multiply(mass, mass.dtype.type(plan.share), out=part)
    mass[:] = part
    for step in plan.steps:
        group.transport.exchange(step.to, part, step.source, arrived, OP_GOSSIP)
        if step.source is not None:
            mass += arrived
            group.transport.worked(n_bytes=arrived.nbytes)


def check_gossip(group: Group, topology: AbstractTopology) -> None:
    """Raise `IncompatiblePartsError` if a rank could not reach all of its peers."""
    if group.transport.processes and group.transport.mailbox is None:
        raise IncompatiblePartsError(
            f"{topology} needs ranks that reach each other one by one, and the ranks here are threads of several "
            "processes, of which only the first threads do. Start workers with one thread each, or train on the "
            "threads of one process."
        )


def gossip_cost(topology: AbstractTopology, rank: int, size: int, n: int, itemsize: int, round_number: int = 0) -> Cost:
    """Return what `rank` sends in a round of gossip about n elements; for `push_sum` the weight is one of them."""
    messages = len(topology.out_peers(rank, size, round_number))
    return Cost(messages * (n * itemsize + HEADER_BYTES), messages)


class _Plan(NamedTuple):
    """The work of a rank in a round: its steps, the weight of each received vector, its own weight, and its share."""

    steps: tuple[Step, ...]
    weights: tuple[float, ...]
    own: float
    share: float


@lru_cache(maxsize=1024)
def _plan(topology: AbstractTopology, rank: int, size: int, round_number: int) -> _Plan:
    steps = exchange_steps(topology, rank, size, round_number)
    own, of = weights(topology, rank, size, round_number)
    arriving = tuple(0.0 if step.source is None else of[step.source] for step in steps)
    return _Plan(steps, arriving, own, shares(topology, rank, size, round_number))


def _check_scratch(vector: FloatVector, scratch: FloatMatrix) -> None:
    if scratch.shape != (2, *vector.shape) or scratch.dtype != vector.dtype:
        raise InvalidParameterError(
            f"scratch=... must have shape {2, *vector.shape} and dtype {vector.dtype}. Got {scratch.shape} and "
            f"{scratch.dtype}."
        )
