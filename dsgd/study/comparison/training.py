"""Learning curves: what a method would return after so many rows, and what that took.

Every point of a curve is a training of its own, from the same start and with the same seed, because what ranks have in
the middle of a run is not what training returns: models are still apart, messages under way. Within the first epoch a
point is the training on a part of the rows of each rank, which are drawn once, so that a longer part holds the shorter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from dsgd.errors import InvalidDataError
from dsgd.estimators import SGDClassifier
from dsgd.sim import SimulatedCluster
from dsgd.study.comparison.methods import family
from dsgd.study.frame.data import StudyData, place
from dsgd.study.frame.measure import objective, point, score, spent
from dsgd.study.frame.rows import Row
from dsgd.sync import resolve

if TYPE_CHECKING:
    from distributed import Client

_PARTS: Final = (0.125, 0.25, 0.5)


class DivergedError(InvalidDataError):
    """The model of a run left the range of numbers."""

    def __init__(self, error: InvalidDataError, row: Row) -> None:
        super().__init__(str(error))
        self.row = row


@dataclass(eq=False)
class Held:
    """Rows as ranks hold them, all or a part; those of workers stay there as long as this is kept."""

    where: Client | SimulatedCluster | None
    data: StudyData
    ranks: int
    partition: str
    seed: int = 0
    blocks: dict[float, tuple[list[Any], int]] = field(default_factory=dict)

    def part(self, share: float) -> tuple[list[Any], int]:
        """Return the blocks of a share of the rows of each rank, above 0 and at most 1, and how many rows that is."""
        if share not in self.blocks:
            rows = self.data.X, self.data.y
            self.blocks[share] = place(self.where, rows, self.ranks, self.partition, seed=self.seed, share=share)
        return self.blocks[share]


def looks(epochs: int) -> list[int]:
    """Return after how many epochs the model of a run is looked at.

    - returned: powers of two and the numbers midway between them, and `epochs` itself.

    Examples
    --------
    >>> looks(10)
    [1, 2, 3, 4, 6, 8, 10]
    """
    powers = [2**level for level in range(epochs.bit_length())]
    found = {epochs, *powers, *(power + power // 2 for power in powers if power + power // 2 < epochs)}
    return sorted(found)


def looks_within(epochs: int) -> list[float]:
    """Return the same, and before them an eighth, a quarter and a half of the first epoch."""
    return [*_PARTS, *looks(epochs)]


def train_curve(model: SGDClassifier, held: Held, at: Iterable[float]) -> Row:
    """Train a classifier for each point of its curve, and return what a row says of it.

    - returned: the last point, what it took by phase, and ``curve``: of each point ``epoch``, ``rows``,
      ``objective`` (of the training rows), ``test_accuracy``, ``seconds`` (from the first row to the end of the
      last epoch), ``bytes_sent`` and ``messages`` of all ranks for the algorithm, and those of control.
    """
    data, curve = held.data, list[Row]()
    model.set_params(client=held.where, n_jobs=held.ranks)
    alpha = 0.0 if model.penalty is None else model.alpha
    try:
        if not isinstance(held.where, SimulatedCluster):
            # Loading compiled code is in no timing.
            model.set_params(max_iter=1).fit(held.part(1.0)[0], None)
        for look in at:
            blocks, n_rows = held.part(min(1.0, float(look)))
            model.set_params(max_iter=max(1, math.ceil(look))).fit(blocks, None)
            worth = objective(model, data.X, data.y, loss=str(model.loss), alpha=alpha)
            test = score(model, data.X_test, data.y_test)
            curve.append(
                {
                    **point(model, look),
                    "rows": n_rows * max(1, math.ceil(look)),
                    "objective": worth,
                    "test_accuracy": test["accuracy"],
                }
            )
    except InvalidDataError as error:
        raise DivergedError(error, {"family": family(resolve(model.sync)), "curve": curve}) from error
    return {
        "family": family(resolve(model.sync)),
        "test_accuracy": test["accuracy"],
        "balanced_accuracy": test["balanced_accuracy"],
        "objective": curve[-1]["objective"],
        "train_s": curve[-1]["seconds"],
        **spent(model),
        "curve": curve,
    }
