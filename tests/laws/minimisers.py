"""What each strategy minimises: the second list of the family, with the asynchronous methods in it.

Every strategy has a line here, and on quadratics its model is where the line says, within a number times the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dsgd.comm.topology import Exponential, Grid, Ring, Star
from dsgd.compress import ErrorFeedback, TopK
from dsgd.sync import (
    ADMM,
    ADPSGD,
    ASGD,
    DPSGD,
    EASGD,
    SCAFFOLD,
    SGP,
    AbstractStrategy,
    AnytimeSGD,
    AsyncADMM,
    AsyncEASGD,
    AsyncLeaderSGD,
    AutoSync,
    BackupWorkers,
    ChocoSGD,
    DecoupledDiLoCo,
    DelayCompensatedASGD,
    DiLoCo,
    Downpour,
    EagerDiLoCo,
    EpochAveraging,
    FedProx,
    Hogwild,
    LeaderSGD,
    LocalSGD,
    MinibatchSGD,
    OneShotAveraging,
    OverlapSGP,
    PostLocalSGD,
    SlowMo,
    StalenessAware,
    StaleSynchronous,
    StreamingDiLoCo,
)
from dsgd.sync.adaptive import FixedPeriod

Block = tuple[np.ndarray, np.ndarray]

#: Optima of the ranks in the three coordinates, and how curved their objectives are: the first is the same on all
#: ranks, the second differs, in the third both do.
SAME = 1.5
OPTIMA = np.array([3.0, 0.0, 2.0, -1.0, 1.0, -2.0])
CURVATURE = np.array([0.9, 1.1, 1.0, 0.8, 1.2, 0.9])


def quadratics(rows: Sequence[int]) -> list[Block]:
    """Return the rows of each rank: multiples of basis vectors, so that squared errors are exact quadratics.

    They come in no order, in which rounds could see one coordinate more often than another.
    """
    rng, blocks = np.random.default_rng(0), []
    for rank, n in enumerate(rows):
        slopes = np.array([1.0, 1.0, CURVATURE[rank]])
        optimum = np.array([SAME, OPTIMA[rank], -OPTIMA[rank]])
        place = rng.permutation(n) % 3
        X = np.zeros((n, 3))
        X[np.arange(n), place] = slopes[place]
        blocks.append((X, X @ optimum))
    return blocks


def minimiser(blocks: Sequence[Block], alpha: float, weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return where ``sum_p weights_p f_p(x) / sum(weights) + alpha |x|^2 / 2`` is least; f_p is a mean over rows."""
    weights = np.asarray(weights, dtype=float) / np.sum(weights)
    terms = [(weight / len(y), X, y) for weight, (X, y) in zip(weights, blocks, strict=True) if weight > 0.0]
    gram = sum(share * X.T @ X for share, X, _ in terms)
    return np.linalg.solve(gram + alpha * np.eye(3), sum(share * X.T @ y for share, X, y in terms))


def pooled(blocks: Sequence[Block], alpha: float, **_: Any) -> list[np.ndarray]:
    """The minimiser of what all rows together define."""
    return [minimiser(blocks, alpha, [len(y) for _, y in blocks])]


def stretches(
    blocks: Sequence[Block], alpha: float, *, rate: float, epochs: int, at_a_time: int | None = None
) -> list[np.ndarray]:
    """What a mean weighted by rows settles at if each rank walks its rows some times in between; all, or so many.

    A rank goes the part ``c_p`` of its way to its own minimum, and the mean of what all of them change is zero; for
    short stretches that is the minimum of ``sum_p n_p^2 f_p``, for long ones the mean of the ranks' own minima.
    """
    parts, own = [], []
    for X, y in blocks:
        decay = [(1.0 - rate * (alpha + slope**2)) * (1.0 - rate * alpha) ** 2 for slope in np.abs(X).max(axis=0)]
        parts.append(len(y) * (1.0 - np.array(decay) ** (len(y) / 3 * (at_a_time or epochs))))
        own.append(minimiser([(X, y)], alpha, [1.0]))
    return [np.sum(np.array(parts) * own, axis=0) / np.sum(parts, axis=0)]


def led(pull: float, every: int, blocks: Sequence[Block], alpha: float, *, rate: float, **_: Any) -> list[np.ndarray]:
    """Where pulls to a leader that rests at its own minimum balance the steps; for each rank that may lead.

    The leader is at ``z``, a rank goes the part c to its own minimum ``m`` between two exchanges: it ends at ``x = (1 -
    pull) (x + c (m - x)) + pull z``. What is returned is the mean of these, weighted by rows.
    """
    most = max(len(y) for _, y in blocks)
    own = [minimiser([block], alpha, [1.0]) for block in blocks]
    found = []
    for leader in own:
        ends = []
        for (X, y), goal in zip(blocks, own, strict=True):
            decay = [(1.0 - rate * (alpha + slope**2)) * (1.0 - rate * alpha) ** 2 for slope in np.abs(X).max(axis=0)]
            part = (1.0 - pull) * (1.0 - np.array(decay) ** (every / 3 * len(y) / most))
            ends.append((part * goal + pull * leader) / (part + pull))
        found.append(np.average(ends, axis=0, weights=[len(y) for _, y in blocks]))
    return found


def shared_optimum(blocks: Sequence[Block], alpha: float, **_: Any) -> list[np.ndarray]:
    """The minimum where all ranks have it in common; nothing is claimed of other coordinates."""
    return [np.where([True, False, False], pooled(blocks, alpha)[0], np.nan)]


@dataclass(frozen=True)
class Settles:
    """Where a strategy settles.

    Parameters
    ----------
    strategy : AbstractStrategy
        The strategy.
    within : float
        The furthest from there that it may end, over the rate: how far its ranks drift apart, or how old gradients are.
    at : callable
        Takes the rows of the ranks, alpha, the rate and the epochs of a call, and returns the points that it may be.
    in_calls : callable or None
        The same for many calls, where that differs.
    ranks : int
        How many there are.
    rate : float
        The rate of its steps.
    speed : float
        How fast it goes there, beside one rank.
    """

    strategy: AbstractStrategy[Any]
    within: float = 3.0
    at: Callable[..., list[np.ndarray]] = pooled
    in_calls: Callable[..., list[np.ndarray]] | None = None
    ranks: int = 4
    rate: float = 0.02
    speed: float = 1.0

    def __repr__(self) -> str:
        return repr(self.strategy)


def on_graphs(strategy: Any, *regular: Any, within: float = 6.0) -> list[Settles]:
    """Return a strategy on regular graphs, on a star and on a grid of two by three."""
    own = [replace(strategy, topology=topology) for topology in (*regular, Star())]
    return [*(Settles(s, within) for s in own), Settles(replace(strategy, topology=Grid()), within, ranks=6)]


#: Every strategy; the graphs of those that have one.
MINIMISERS = [
    Settles(LocalSGD(12)),
    Settles(LocalSGD(12, overlap=True)),
    Settles(LocalSGD(12, compressor="auto")),
    Settles(LocalSGD(12, compressor=ErrorFeedback(TopK(0.5)))),
    Settles(AutoSync(rule=FixedPeriod(12))),
    Settles(PostLocalSGD(24, 6)),
    Settles(EpochAveraging()),
    Settles(SlowMo(12, 0.4)),
    Settles(DiLoCo(12)),
    Settles(EagerDiLoCo(12, 0.7, 0.3)),
    # Three fragments would lose steps on the same third of the rows in every epoch.
    Settles(StreamingDiLoCo(12, 4), speed=0.7),
    Settles(FedProx(12, stretch=6)),
    Settles(SCAFFOLD(12, stretch=6)),
    Settles(ADMM(12, 0.5, stretch=6)),
    Settles(MinibatchSGD(8), rate=0.06),
    Settles(OneShotAveraging(), at=stretches),
    Settles(AnytimeSGD(1e9), at=partial(stretches, at_a_time=1)),
    Settles(EASGD(12), 8.0),
    Settles(LeaderSGD(12, global_pull=0.3), 5.0, partial(led, 0.3, 12), shared_optimum),
    *on_graphs(DPSGD(12), Ring()),
    *on_graphs(SGP(12), Exponential()),
    *on_graphs(OverlapSGP(12), Exponential(), Ring()),
    *on_graphs(OverlapSGP(6, 3), Exponential()),
    *on_graphs(ChocoSGD(6, TopK(0.5), 0.5), Ring()),
    Settles(ADPSGD(6), 6.0),
    # Prices begin anew in each call.
    Settles(AsyncADMM(6, 0.5, stretch=3), speed=0.4),
    Settles(AsyncEASGD(6), 8.0, speed=0.7),
    Settles(DecoupledDiLoCo(6)),
    Settles(Downpour(6), speed=0.5),
    Settles(ASGD(6)),
    # The first gradients of an epoch are of another age on every rank.
    Settles(StalenessAware(3), at=shared_optimum, rate=0.06),
    Settles(DelayCompensatedASGD(6)),
    Settles(StaleSynchronous(6)),
    Settles(BackupWorkers(3, backups=0), rate=0.06),
    Settles(BackupWorkers(3, backups=1), at=shared_optimum, rate=0.06),
    Settles(AsyncLeaderSGD(12), at=shared_optimum),
    Settles(AsyncLeaderSGD(12, n_groups=2), at=shared_optimum),
    # Simulated threads walk one after the other, and what the last has seen counts more.
    Settles(Hogwild(), 15.0),
]
