"""What a synchronisation strategy is: when ranks talk and what they say.

A strategy is a frozen dataclass of its policy alone; what changes during training lives in a record that `init` makes
and the rank loop hands back. The loop cuts every epoch into rounds of the same number on every rank: rank r with n_r
rows works on rows ``[n_r k // K, n_r (k + 1) // K)`` in round k of K, so ranks with unequal shards never wait for a
step that a peer does not have, and averages are weighted by rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

from dsgd.collectives.group import Group
from dsgd.types import FloatVector

__all__ = ["AbstractStrategy", "Exchange", "RoundClock"]

Exchange = Literal["model", "gradient"]


class RoundClock(NamedTuple):
    """Where a rank is in training, when it asks its strategy whether a synchronisation is due.

    Parameters
    ----------
    epoch : int
        Epoch, from 0.
    round : int
        Round inside the epoch, from 0.
    rounds : int
        Rounds in an epoch.
    is_last : bool
        Whether this is the last round of the whole training.
    """

    epoch: int
    round: int
    rounds: int
    is_last: bool

    @property
    def ends_epoch(self) -> bool:
        """Whether this is the last round of its epoch."""
        return self.round == self.rounds - 1


class AbstractStrategy(ABC):
    """When ranks talk, and what they say.

    Attributes
    ----------
    exchanges : {"model", "gradient"}
        ``"model"``: ranks step on their own and the strategy mixes their models.
        ``"gradient"``: ranks compute a gradient, the strategy mixes gradients and every rank takes the same step.
    fuses : bool
        Whether every round ends in the weighted mean of all models and in nothing else, so that several of them may
        run inside one kernel (`dsgd.runtime.fused`).
    overlap : bool
        Whether the exchange of a round, but for the last of an epoch, runs beside the steps of the next one
        (`dsgd.sync.delayed`).
    """

    exchanges: ClassVar[Exchange]
    fuses: ClassVar[bool] = False
    overlap: bool = False

    @abstractmethod
    def rounds_per_epoch(self, rows: list[int]) -> int:
        """Return into how many rounds an epoch is cut.

        Parameters
        ----------
        rows : list of int, length world size
            Rows of each rank.
        """

    @abstractmethod
    def is_due(self, clock: RoundClock) -> bool:
        """Return whether the ranks synchronise at the end of this round; the same on every rank."""

    @abstractmethod
    def sync(self, group: Group, vector: FloatVector, weight: float) -> None:
        """Mix `vector` over the ranks, in place.

        Parameters
        ----------
        group : Group
            The ranks of the gang.
        vector : array, shape (n_params,)
            The model or the gradient, as `exchanges` says.
        weight : float
            Share of this rank in the mean: its rows over the rows of all; the weights of a gang add up to one.
        """
