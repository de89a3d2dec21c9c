"""Gradients of less variance: rows drawn by importance, SVRG and SAGA.

Update, memory and sources: `dsgd.kernels.importance` and `dsgd.kernels.variance`. Every rank draws from its own rows: a
strategy minimises with drawn rows what it minimises without. SVRG and SAGA take steps of constant length and converge
linearly to the minimum of a smooth objective, where plain SGD stays at a distance or takes ever shorter steps. On
several ranks what is exchanged decides what is minimised:

- Gradients (`dsgd.sync.MinibatchSGD`): the gradient of a batch is ``sum (s_i - y_i) x_i`` over the rows of all ranks,
  and the mean m is that over all rows. Both methods are exact, with any number of ranks.
- Models, SVRG: at the end of an epoch ranks add up the full gradient, with an all-reduce. A local step is then ``grad
  f_i(w) - grad f_i(anchor) + grad F(anchor)``, which vanishes at the minimum over all rows on every rank, whatever rows
  it has: exact. Where ranks end an epoch with different models (gossip), each has a mean of its own, and what is said
  of SAGA holds.
- Models, SAGA: each rank reduces the noise of its own rows. With one row between exchanges that is exact. With more,
  the model is off the minimum in proportion to the rate, the rows between exchanges and how much the ranks' rows
  differ, like that of local gradient descent.

Cost: one number per row and output, and a model in float64. SVRG reads all rows once more at the end of an epoch.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.kernels import importance as kernels
from dsgd.kernels import variance as variance_kernels
from dsgd.kernels.importance import AHEAD, build, sum_levels
from dsgd.kernels.losses import LOSSES
from dsgd.kernels.order import GOLDEN
from dsgd.local.base import OF_ROWS, Steps
from dsgd.local.objective import Objective, n_params
from dsgd.local.shard import Residency, Shard
from dsgd.types import AnyArray, FloatVector, IntVector, WordVector
from dsgd.validation import Checked, check_number, number

# Rows whose content names a shard.
_NAMING: Final = 64

# Whole numbers up to here are exact in float64.
_EXACT: Final = 2**53


@dataclass(frozen=True)
class Importance(Checked):
    """Draw rows in proportion to the norms of their last seen gradients: stochastic reweighted gradients (SRG).

    Parameters
    ----------
    uniform : float, default 0.5
        Share theta of the draws that are uniform, in (0, 1]; only they set norms. A step is at most ``1 / uniform``
        times as long as without, and the noise at most as many times that of perfect norms: choose less at small rates.

    Raises
    ------
    InvalidParameterError
        The share is out of range.
    """

    uniform: float = number(0.5, low=0.0, high=1.0, open_low=True)

    def init(self, shard: Shard, seed: int) -> SamplingState:
        """Return the state before the first epoch.

        Parameters
        ----------
        shard : Shard
            The rows.
        seed : int
            Of the draws; ranks differ by their rows.
        """
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

    def arguments(self) -> kernels.Drawn:
        """Return the state as kernels take it."""
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


# The length of a step is one over so many times the largest curvature of a row.
_SAFE: Final = 3.0


@dataclass
class ReductionState:
    """What is remembered of rows, and scratch memory."""

    slopes: FloatVector
    mean: FloatVector
    reached: FloatVector = field(repr=False)
    mark: FloatVector
    rows: WordVector = field(repr=False)
    key: np.uint64
    refresh: float
    share: float = 0.0

    def vectors(self) -> dict[str, AnyArray]:
        """Return what belongs to the rows, by name."""
        return {OF_ROWS + "mark": self.mark, OF_ROWS + "slopes": self.slopes, OF_ROWS + "mean": self.mean}

    def add_mean(self, gradient: FloatVector) -> None:
        """Make of the mean change of slopes the direction of a step, in place, and move the mean along."""
        if self.refresh > 0.0:
            change = gradient * self.share
            gradient += self.mean.astype(gradient.dtype)
            self.mean += change
        else:
            gradient += self.mean.astype(gradient.dtype)

    def arguments(self) -> variance_kernels.Kept:
        """Return what is remembered as kernels take it."""
        return self.slopes, self.mean, self.reached, self.rows, self.key, self.refresh

    def remember(self, given: tuple[Any, ...], shard: Shard) -> None:
        """Remember the slopes of all rows at a model, and their mean gradient; `given` is of `SGD.arguments`."""
        rows, sparse, params, _, steps = given
        self.mean.fill(0.0)
        residency = None if shard.mapping is None else Residency(shard)
        stride = max(1, shard.n_rows if residency is None else residency.stride)
        for low in range(0, shard.n_rows, stride):
            high = min(shard.n_rows, low + stride)
            variance_kernels.remember_slopes(rows, sparse, params, steps, self.slopes, self.mean, low, high)
            if residency is not None:
                residency.at(high)
        self.mean /= max(1, shard.n_rows)


class AbstractReduction(Checked, ABC):
    """A method that reduces the variance of steps by what it remembers of each row.

    Attributes
    ----------
    step : float or None
        Length of a step; None finds it.
    refreshes : bool
        Whether a step on a row refreshes what is remembered of it.
    """

    step: float | None
    refreshes: ClassVar[bool]

    @property
    def steps(self) -> Steps:
        """A step per row, which depends on those before."""
        return Steps(repr(self), is_plain=False, draws_rows=self.refreshes, reduces=True)

    def init(self, shard: Shard, n_outputs: int, seed: int) -> ReductionState:
        """Return the state before the first step: nothing is remembered, and steps are plain ones at first.

        Parameters
        ----------
        shard : Shard
            The rows.
        n_outputs : int
            Outputs of the model.
        seed : int
            Of draws; ranks differ by their rows.
        """
        mark = mark_of(shard, whole=True)
        return ReductionState(
            slopes=np.zeros(max(1, shard.n_rows * n_outputs), shard.dtype),
            mean=np.zeros(n_params(shard.n_features, n_outputs)),
            reached=np.zeros(shard.n_features if shard.is_sparse else 0),
            mark=np.array([float(mark % 2**53)]),
            rows=np.zeros(AHEAD, np.uint64),
            key=key_of(mark, seed),
            refresh=1.0 / max(1, shard.n_rows) if self.refreshes else 0.0,
        )

    def curvature(self, shard: Shard, objective: Objective) -> tuple[float, float]:
        """Return the largest curvature of the objective of a row, with its penalty, and the sum of those of all others.

        That takes one pass over the rows; the sum is without penalties.
        """
        beside = float(objective.fit_intercept)
        values = shard.values.reshape(-1)
        square, others = variance_kernels.largest_square(
            values, shard.sparse, shard.index, shard.weights, shard.n_features, beside
        )
        largest = objective.row.curvature * float(objective.class_weights().max())
        return float(largest * square + objective.strength), float(largest * others)

    def length(self, curvature: float) -> float:
        """Return the length of a step where the largest curvature of any row of any rank is this one."""
        if self.step is not None:
            return float(self.step)
        return 1.0 / (_SAFE * curvature) if curvature > 0.0 else 1.0


@dataclass(frozen=True)
class SAGA(AbstractReduction):
    """SAGA: rows are drawn, and the slope of each is remembered when a step is taken on it.

    Steps have a length of their own: `learning_rate`, `eta0` and `power_t` of an estimator have no part in it.

    Parameters
    ----------
    step : float or None, default None
        Length of a step; below ``1 / alpha``. None takes ``1 / (3 L)``, with L the largest curvature of a row's
        objective, over all ranks.

    Raises
    ------
    InvalidParameterError
        The length is not above zero.
    """

    step: float | None = None
    refreshes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_step(self)


@dataclass(frozen=True)
class SVRG(AbstractReduction):
    """SVRG: the slopes of all rows are remembered at once, at the model at the end of an epoch; each is visited once.

    The first epoch takes plain steps. Lengths of steps are as in `SAGA`.

    Parameters
    ----------
    step : float or None, default None
        Length of a step, as in `SAGA`.
    every : int, default 1
        Epochs from one full gradient to the next.

    Raises
    ------
    InvalidParameterError
        The length is not above zero, or there is no whole number of epochs.
    """

    step: float | None = None
    every: int = number(1, low=1)
    refreshes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_step(self)


def _check_step(reduction: AbstractReduction) -> None:
    if reduction.step is not None:
        check_number(f"{type(reduction).__name__}(step=...)", reduction.step, low=0.0, open_low=True)


def check_reduction(
    reduction: AbstractReduction, objective: Objective, *, average: int = 0, sampling: object = None
) -> None:
    """Raise if a reduction cannot minimise an objective, or its steps are not all it asks for."""
    if objective.is_coupled:
        raise IncompatiblePartsError(
            f"{reduction!r} remembers slopes of one class against the rest, and loss={objective.loss!r} of several "
            "classes has slopes of all classes together: use loss='log_loss', or optimizer=None."
        )
    smooth = [name for name, row in LOSSES.items() if not row.has_corner]
    if objective.row.has_corner:
        raise IncompatiblePartsError(
            f"{reduction!r} needs a loss without a corner, at which slopes never settle: loss one of "
            f"{', '.join(smooth)}. Got {objective.loss!r}."
        )
    if reduction.step is None and not math.isfinite(objective.row.curvature):
        raise IncompatiblePartsError(
            f"{reduction!r} finds the length of its steps from the largest curvature of the loss, and that of "
            f"loss={objective.loss!r} has no bound: give the length, {type(reduction).__name__}(step=...), or "
            "the bound of a loss of your own, CustomLoss(..., curvature=...)."
        )
    if objective.strength * objective.l1_share > 0.0:
        raise IncompatiblePartsError(
            f"{reduction!r} has no L1 penalty: use penalty='l2' or None, or optimizer=None. Got {objective.penalty!r}."
        )
    if average:
        raise IncompatiblePartsError(f"{reduction!r} leaves no noise to average: leave average=False. Got {average!r}.")
    if sampling is not None:
        raise IncompatiblePartsError(
            f"{reduction!r} chooses rows by itself, and so does sampling={sampling!r}. Use one of them."
        )
    if reduction.step is not None and not reduction.step * objective.strength < 1.0:
        raise IncompatiblePartsError(
            f"{reduction!r} takes steps so long that the penalty turns the sign of weights: `step` must be below 1 / "
            f"alpha. Got alpha={objective.alpha!r}."
        )
