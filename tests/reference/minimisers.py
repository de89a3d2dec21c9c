"""Quadratics, and where strategies settle on them: the minimum of all rows, or a bias that has a closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
            part = (1.0 - pull) * (1.0 - np.array(decay) ** (len(y) / 3 / -(-most // every)))
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
    within : float
        The furthest from there that it may end, over the rate: how far its ranks drift apart, or how old gradients are.
    at : callable
        Takes the rows of the ranks, alpha, the rate and the epochs of a call, and returns the points that it may be.
    ranks : int
        How many there are.
    rate : float
        The rate of its steps.
    speed : float
        How fast it goes there, beside one rank.
    """

    within: float = 1.5
    at: Callable[..., list[np.ndarray]] = pooled
    ranks: int = 4
    rate: float = 0.04
    speed: float = 1.0
