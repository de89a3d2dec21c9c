"""The interface between the rank loop and a model: rows, an optimiser that steps on them, its state.

The loop only knows how many rows a rank has, and cuts them by their places; models and gradients are flat vectors. All
else about rows, gradients and steps is in these classes. `dsgd.local.SGD` on a `dsgd.local.Shard` is one
implementation, a torch module on tensors (`dsgd.torch`) is the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from dsgd.kernels import state as places
from dsgd.types import AnyArray, FloatVector

#: What comes before the names of those vectors of a state that belong to the rows of its rank: their length differs
#: from rank to rank, and with other rows they begin anew. One of them, ``mark``, names the rows.
OF_ROWS: Final = "rows."


class AbstractRows(ABC):
    """The rows of a rank, in the order in which training walks them."""

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """How many rows an epoch visits."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that an epoch reads, where they are known; else 0."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> Self:
        """Return rows start..stop as views, for a thread that shares the memory of the others."""

    @abstractmethod
    def entries(self, start: int, stop: int) -> int:
        """Return the work of a visit to rows start..stop, for one output: multiplications with a weight."""

    @abstractmethod
    def digest(self) -> int:
        """Return a number that other rows, or the same ones in another order, would hardly have."""

    @abstractmethod
    def content(self) -> int:
        """Return a 64-bit fingerprint of the rows; those of parts add up, in any order."""


class _Counter:
    """One entry of a state's vector of counters, read and written as an attribute."""

    def __init__(self, place: int, text: str) -> None:
        self._place = place
        self.__doc__ = text

    @overload
    def __get__(self, state: None, owner: type) -> _Counter: ...
    @overload
    def __get__(self, state: AbstractState, owner: type) -> float: ...
    def __get__(self, state: AbstractState | None, owner: type) -> float | _Counter:
        return self if state is None else float(state.counters[self._place])

    def __set__(self, state: AbstractState, value: float) -> None:
        state.counters[self._place] = value


class AbstractState(ABC):
    """The state of an optimiser, besides the model.

    Attributes
    ----------
    counters : array of float64, shape (COUNTERS + n_losses,)
        What t, eta_scale, loss_sum, rate_factor, n_averaged, epoch, n_seen and output_losses read and write; see
        `new_counters`.
    on_gradient : callable or None
        Told from which place on a gradient is final, while it comes about from its end to its front. Whoever computes
        it in one go need not call it.
    """

    counters: FloatVector
    on_gradient: Callable[[int], None] | None = None

    t = _Counter(places.T, "Step that comes next, from 1.")
    eta_scale = _Counter(places.ETA_SCALE, "Factor of the rate of the adaptive schedule, 1 at first.")
    loss_sum = _Counter(places.LOSS_SUM, "Sum of losses in this epoch, each before its step; not weighted, no penalty.")
    rate_factor = _Counter(places.RATE_FACTOR, "Factor of the rate of every schedule, 1 at first.")
    n_averaged = _Counter(places.N_AVERAGED, "Models in the average.")

    @property
    @abstractmethod
    def averaged(self) -> FloatVector | None:
        """The averaged model, shape (n_params,), to read or write in place; None if averaging is off."""

    @abstractmethod
    def memory(self) -> dict[str, FloatVector]:
        """Return the memory of gradients, by name: the state that the momentum policy of a strategy acts on."""

    @abstractmethod
    def vectors(self) -> dict[str, AnyArray]:
        """Return what else this rank has of its own and must keep, by name; to be written in place.

        Names that begin with `OF_ROWS` belong to the rows of the rank.
        """

    @abstractmethod
    def statistics(self) -> dict[str, AnyArray]:
        """Return what goes with the model and is no parameter of it, by name; to be written in place."""

    @property
    def epoch(self) -> int:
        """Epoch, 1 for the first; 0 before `start_epoch`."""
        return int(self.counters[places.EPOCH])

    @epoch.setter
    def epoch(self, value: int) -> None:
        self.counters[places.EPOCH] = value

    @property
    def n_seen(self) -> int:
        """Rows seen in this epoch."""
        return int(self.counters[places.N_SEEN])

    @property
    def output_losses(self) -> FloatVector:
        """The parts of `loss_sum`, one for each output that has a loss of its own, shape (n_losses,)."""
        return self.counters[places.COUNTERS :]

    def start_epoch(self) -> None:
        """Begin the next epoch: the sums start from zero."""
        self.counters[places.EPOCH] += 1.0
        self.output_losses.fill(0.0)
        self.counters[places.LOSS_SUM] = 0.0
        self.counters[places.N_SEEN] = 0.0


def new_counters(n_losses: int) -> FloatVector:
    """Return the counters of a state before the first step, for so many losses of a row."""
    counters = np.zeros(places.COUNTERS + n_losses)
    counters[places.T] = counters[places.ETA_SCALE] = counters[places.RATE_FACTOR] = 1.0
    return counters


@dataclass(frozen=True)
class Steps:
    """The properties of an optimiser's steps that a strategy must know."""

    name: str
    rows: int = 1
    by_row: bool = True
    rows_given: bool = False
    remembers: bool = False
    is_plain: bool = True
    draws_rows: bool = False
    reduces: bool = False
    once_a_round: bool = False
    may_overflow: bool = False


RowsT = TypeVar("RowsT", bound=AbstractRows)
StateT = TypeVar("StateT", bound=AbstractState)


@dataclass(frozen=True)
class Evaluation:
    """Sums over rows; those of several ranks add up entry by entry."""

    loss_sum: float = 0.0
    weight_sum: float = 0.0
    n_rows: float = 0.0
    n_correct: float = 0.0
    sq_error_sum: float = 0.0
    y_sum: float = 0.0
    y2_sum: float = 0.0

    def as_vector(self) -> FloatVector:
        """Return the sums as a float64 vector of seven, to reduce over ranks."""
        return np.array(list(vars(self).values()), np.float64)

    @classmethod
    def from_vector(cls, sums: ArrayLike) -> Evaluation:
        """Return the evaluation whose `as_vector` is `sums`."""
        return cls(*(float(value) for value in np.asarray(sums)))

    @property
    def mean_loss(self) -> float:
        """Loss per unit of row weight; NaN without rows."""
        return self.loss_sum / self.weight_sum if self.weight_sum else float("nan")

    @property
    def accuracy(self) -> float:
        """Share of the row weight classified correctly; NaN without rows."""
        return self.n_correct / self.weight_sum if self.weight_sum else float("nan")

    @property
    def r2(self) -> float:
        """Coefficient of determination, ``1 - sum (y - p)^2 / sum (y - mean y)^2``; NaN where it has no meaning."""
        if not self.weight_sum:
            return float("nan")
        spread = self.y2_sum - self.y_sum**2 / self.weight_sum
        return 1.0 - self.sq_error_sum / spread if spread > 0.0 else float("nan")


class AbstractLocalOptimizer(ABC, Generic[RowsT, StateT]):
    """Steps on the rows of one rank.

    An optimiser is a frozen record of its parameters; all that changes is in the model `params`, one flat vector, and
    in the state that `init` makes.
    """

    @property
    @abstractmethod
    def steps(self) -> Steps:
        """How it steps."""

    @property
    @abstractmethod
    def n_outputs(self) -> int:
        """How many times a step goes over the entries of a row: once for each output."""

    @property
    @abstractmethod
    def n_losses(self) -> int:
        """How many losses a row has: one for each output that is trained by itself."""

    @abstractmethod
    def init(self, rows: RowsT) -> StateT:
        """Return the state to train on `rows` from the start, with all scratch memory in it."""

    @abstractmethod
    def arrange(self, rows: RowsT, state: StateT) -> None:
        """Make the order in which the present epoch of `state` walks the rows; it depends on nothing but the epoch."""

    @abstractmethod
    def bind(self, params: FloatVector, rows: RowsT, state: StateT) -> Callable[[int, int], object]:
        """Return what takes local steps on the rows at the places start..stop of the walk, in order.

        It updates `params` and `state` in place.
        """

    @abstractmethod
    def gradient(
        self, params: FloatVector, rows: RowsT, start: int, stop: int, out: FloatVector, state: StateT
    ) -> None:
        """Write into `out` the sum over rows start..stop of the weighted gradients of the loss, penalty left out."""

    @abstractmethod
    def step(self, params: FloatVector, mean_gradient: FloatVector, n_rows: int, state: StateT) -> None:
        """Take one step along the mean gradient of `n_rows` rows (of all ranks), penalty included; none if no rows.

        Nor where the gradient is not finite and `Steps.may_overflow` says that this is no error.
        """

    @abstractmethod
    def rate_sum(self, t_start: float, state: StateT) -> float:
        """Return the sum of the rates of steps t_start..t, the last left out; they are those of the last call."""

    @abstractmethod
    def planned_rates(self, starts: FloatVector, counts: FloatVector) -> FloatVector:
        """Return the sums of the rates of ``counts[k]`` steps from ``starts[k]`` on, up to a common factor.

        Parameters
        ----------
        starts, counts : array of float64, shape (n,)
            The first steps, from 1, and how many there are of each; all in one epoch.
        """

    @abstractmethod
    def evaluate(self, params: FloatVector, rows: RowsT, state: StateT) -> Evaluation:
        """Return how good a model is on some rows."""

    @abstractmethod
    def objective_sums(self, params: FloatVector, rows: RowsT, state: StateT) -> FloatVector:
        """Return what of each loss is to become smaller from epoch to epoch, shape (n_losses,), times rows seen.

        That is the sum of the losses of this epoch, each before its step, and for each of their rows the penalty, which
        is that of the present model.
        """

    @abstractmethod
    def settle(self, params: FloatVector, rows: RowsT, state: StateT, *, is_last: bool) -> FloatVector | None:
        """Return what of the statistics of the model is averaged over the ranks now, in place; None if there is none.

        Called at the end of every epoch, and once more with `is_last` for the model that training returns.
        """
