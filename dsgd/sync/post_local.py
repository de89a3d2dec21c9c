"""Post-local SGD: average often at first, less often later.

Problem: averages matter most while models move fast; later on, rare averages cost less and, on some problems, lead to
models that generalise better than those of large batches.

Update: that of local SGD, ``x_p <- sum_q v_q x_q``, every `first` rows in the first `epochs` epochs and every
`every` rows after them. An epoch always ends in an average.

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`; ``ceil(max rows / first)`` rounds per
epoch at first, about ``max rows / every`` later.

Source: Lin, Stich, Patel and Jaggi 2020, algorithm 2; theirs switches at the first cut of the rate, ours after a number
of epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.errors import InvalidParameterError
from dsgd.sync.compression import AbstractAveraging
from dsgd.sync.momentum import MomentumPolicy, check_momentum
from dsgd.sync.period import EveryRows, OftenThenRarely
from dsgd.validation import check_numbers

__all__ = ["PostLocalSGD"]


@dataclass(frozen=True)
class PostLocalSGD(AbstractAveraging):
    """Average the models every `first` rows for some epochs, then every `every` rows.

    Parameters
    ----------
    every : int, default 2048
        Rows of the rank with the most rows between two averages, later.
    first : int, default 128
        The same, at first; at most `every`.
    epochs : int, default 1
        Epochs until the switch.
    momentum : {"keep", "zero", "average"}, default "keep"
        What happens to the momentum of a local rule at an average; the source keeps it.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = 2048
    first: int = 128
    epochs: int = 1
    momentum: MomentumPolicy = "keep"
    weighs = "rates"

    def __post_init__(self) -> None:
        check_numbers(self, "every", "first", "epochs", low=1, integer=True)
        if self.first > self.every:
            raise InvalidParameterError(
                f"PostLocalSGD(first=...) must be at most every={self.every}: often at first, then rarely. "
                f"Got {self.first}."
            )
        check_momentum(self)

    @property
    def period(self) -> OftenThenRarely:
        """Every `first` rows for some epochs, then about every `every` rows."""
        return OftenThenRarely(EveryRows(self.first), self.every // self.first, self.epochs)
