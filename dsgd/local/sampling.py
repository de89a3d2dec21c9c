"""Which rows local steps are taken on: each once an epoch, or drawn in proportion to their gradients.

Method, cost and source: `dsgd.kernels.importance`. Every rank draws from its own rows, so that the mean over its draws
is that over its rows: a strategy minimises with drawn rows what it minimises without.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.kernels import importance as kernels
from dsgd.kernels.rng import GOLDEN
from dsgd.kernels.sum_tree import build, sum_levels
from dsgd.local.base import OF_ROWS
from dsgd.local.shard import Shard
from dsgd.types import AnyArray, FloatVector, IntVector, WordVector
from dsgd.validation import check_number

# Rows whose content names a shard.
_NAMING: Final = 64
# Whole numbers up to here are exact in float64.
_EXACT: Final = 2**53


@dataclass(frozen=True)
class Importance:
    """Draw rows in proportion to the norms of their last seen gradients: stochastic reweighted gradients (SRG)."""

    uniform: float = 0.5

    def __post_init__(self) -> None:
        check_number("Importance(uniform=...)", self.uniform, low=0.0, high=1.0, open_low=True)

    def init(self, shard: Shard, seed: int) -> SamplingState:
        """Return the state before the first epoch."""
        levels, mark = sum_levels(shard.n_rows), mark_of(shard)
        return SamplingState(
            tree=np.zeros(levels[-1]),
            levels=levels,
            filled=np.zeros(1),
            mark=np.array([float(mark % _EXACT)]),
            which=np.zeros(kernels.AHEAD, np.uint64),
            rows=np.zeros(kernels.AHEAD, np.uint64),
            scales=np.zeros(kernels.AHEAD),
            key=key_of(mark, seed),
            uniform=self.uniform,
        )


@dataclass
class SamplingState:
    """The norms of a rank's rows, and scratch memory."""

    tree: FloatVector
    levels: IntVector
    filled: FloatVector
    mark: FloatVector
    which: WordVector = field(repr=False)
    rows: WordVector = field(repr=False)
    scales: FloatVector = field(repr=False)
    key: np.uint64
    uniform: float

    @property
    def norms(self) -> FloatVector:
        """The norms of all rows, padded with zeros; to be written in place before an epoch."""
        return self.tree[: self.levels[1]]

    def begin_epoch(self) -> None:
        """Add up the norms, which an epoch that visits every row, or a saved state, has left."""
        build(self.tree, self.levels)

    def vectors(self) -> dict[str, AnyArray]:
        """Return what belongs to the rows, by name."""
        return {OF_ROWS + "mark": self.mark, OF_ROWS + "filled": self.filled, OF_ROWS + "norms": self.norms}

    def arguments(self) -> tuple[object, ...]:
        """Return what the kernels take between the order of the epoch and the places."""
        return self.tree, self.levels, self.filled, self.which, self.rows, self.scales, self.key, self.uniform


def mark_of(shard: Shard, *, whole: bool = False) -> int:
    """Return a number that other rows would hardly have, the same wherever they are: of the first rows, or of all."""
    n_naming = shard.n_rows if whole else min(shard.n_rows, _NAMING)
    order = zlib.crc32(shard.targets.tobytes())
    return (shard.rows(0, n_naming).content() + (order << 32) + shard.n_rows) % 2**64


def key_of(mark: int, seed: int) -> np.uint64:
    """Return what names a stream of draws, of rows with this mark."""
    return np.uint64((mark ^ (seed * int(GOLDEN))) % 2**64)


def resolve_sampling(sampling: object) -> Importance | None:
    """Return what `sampling` means: ``"uniform"`` is None, ``"importance"`` is ``Importance()``."""
    if sampling == "uniform":
        return None
    if sampling == "importance":
        return Importance()
    if not isinstance(sampling, Importance):
        raise InvalidParameterError(
            f"sampling must be 'uniform', 'importance' or an Importance of dsgd.local. Got {sampling!r}."
        )
    return sampling
