"""What a local optimiser is: what a rank does with its own rows between two synchronisations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from dsgd.local.shard import Shard
from dsgd.types import FloatVector

__all__ = ["AbstractLocalOptimizer"]

StateT = TypeVar("StateT")


class AbstractLocalOptimizer(ABC, Generic[StateT]):
    """Steps on the rows of one rank.

    An optimiser is a frozen record of its parameters; all that changes is in the model `params`, one flat vector, and
    in the state that `init` makes.
    """

    @abstractmethod
    def init(self, shard: Shard) -> StateT:
        """Return the state to train on `shard` from the start, with all scratch memory in it."""

    @abstractmethod
    def run(self, params: FloatVector, shard: Shard, start: int, stop: int, state: StateT) -> None:
        """Take one step on each of the rows start..stop, in order, updating `params` and `state` in place."""

    @abstractmethod
    def gradient(
        self, params: FloatVector, shard: Shard, start: int, stop: int, out: FloatVector, state: StateT
    ) -> None:
        """Write into `out` the sum over rows start..stop of the weighted gradients of the loss, penalty left out."""

    @abstractmethod
    def step(self, params: FloatVector, mean_gradient: FloatVector, n_rows: int, state: StateT) -> None:
        """Take one step along the mean gradient of `n_rows` rows (of all ranks), penalty included; none if no rows."""
