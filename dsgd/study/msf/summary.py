"""Summary of the study of the period: runs that differ only in the seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsgd.ledger import PHASES
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import AbstractCell, Stat, grouped

__all__ = ["Cell", "Summary", "difference", "summarise", "target_reached"]


@dataclass(frozen=True)
class Cell(AbstractCell):
    """The runs that differ only in the seed.

    Parameters
    ----------
    dataset : str
        Name of the data.
    ranks : int
        Worker processes.
    every : int or None
        Synchronisation period; None for the sequential run.
    rows : sequence of dict
        The rows of its seeds.
    """

    dataset: str
    ranks: int
    every: int | None
    rows: Sequence[Row]

    def stat(self, name: str) -> Stat | None:
        """Return a column over the seeds, or None where no row has it.

        Parameters
        ----------
        name : str
            A column of the rows; ``"communication_s"`` stands for wire plus wait, ``"other_s"`` for the time that
            the ledger charges to no phase. Seconds of phases, bytes and messages are given per rank.
        """
        return Stat.of(_value(row, name) for row in self.rows)

    def by_seed(self, name: str) -> dict[int, float]:
        """Return a column by seed, as `stat` has it."""
        values = {row["seed"]: _value(row, name) for row in self.rows}
        return {seed: value for seed, value in values.items() if value is not None}


@dataclass(frozen=True)
class Summary:
    """All cells of a study.

    Parameters
    ----------
    cells : sequence of Cell
        In the order of the study: by dataset, ranks, period.
    """

    cells: Sequence[Cell]

    def datasets(self) -> list[str]:
        """Return the names of the data, in the order of the study."""
        return list(dict.fromkeys(cell.dataset for cell in self.cells))

    def sequential(self, dataset: str) -> Cell | None:
        """Return the sequential runs of a dataset."""
        return self.cell(dataset, 1, None)

    def cell(self, dataset: str, ranks: int, every: int | None) -> Cell | None:
        """Return one cell, or None if it has not been run."""
        wanted = (dataset, ranks, every)
        return next((cell for cell in self.cells if (cell.dataset, cell.ranks, cell.every) == wanted), None)

    def parallel(self, dataset: str, ranks: int | None = None) -> list[Cell]:
        """Return the cells with a period, by rising period; of the most ranks that were run by default."""
        cells = [cell for cell in self.cells if cell.dataset == dataset and cell.every is not None]
        most = max((cell.ranks for cell in cells), default=0) if ranks is None else ranks
        return sorted((cell for cell in cells if cell.ranks == most), key=lambda cell: cell.every or 0)

    def ranks(self, dataset: str) -> list[int]:
        """Return the numbers of ranks above one that were run."""
        return sorted({cell.ranks for cell in self.cells if cell.dataset == dataset and cell.every is not None})


def summarise(rows: Iterable[Row]) -> Summary:
    """Return the cells that the rows of a study fall into."""
    groups = grouped(rows, "dataset", "ranks", "every")
    order = {dataset: number for number, dataset in enumerate(dict.fromkeys(dataset for dataset, _, _ in groups))}
    keys = sorted(groups, key=lambda key: (order[key[0]], key[1], key[2] or 0))
    return Summary([Cell(dataset, ranks, every, groups[dataset, ranks, every]) for dataset, ranks, every in keys])


def difference(cell: Cell, other: Cell, name: str) -> tuple[float, float | None]:
    """Return the difference of the means of a column over seeds between two cells, and its standard error.

    Means, because scores scatter to both sides: the median of three seeds is no more certain, and has no standard
    error.

    Parameters
    ----------
    cell, other : Cell
        Runs whose seeds are drawn independently.
    name : str
        A column that every row has.

    Returns
    -------
    tuple of (float, float or None)
        Difference and standard error; no error where a cell has one seed only.
    """
    ours, theirs = ([float(row[name]) for row in each.rows] for each in (cell, other))
    change = statistics.fmean(ours) - statistics.fmean(theirs)
    if min(len(ours), len(theirs)) < 2:
        return change, None
    return change, math.sqrt(sum(statistics.variance(values) / len(values) for values in (ours, theirs)))


def target_reached(row: Row, target: float) -> tuple[int, float] | None:
    """Return the epochs and seconds after which the training loss of a run was first `target` or less.

    Parameters
    ----------
    row : dict
        A row with a ``curve``.
    target : float
        Mean training loss of an epoch.

    Returns
    -------
    tuple of (int, float) or None
        Epochs and seconds; None if the run never reached it.
    """
    for point in row.get("curve", ()):
        if point["train_loss"] is not None and point["train_loss"] <= target:
            return int(point["epoch"]), float(point["seconds"])
    return None


_CONTROL = frozenset({"control_s", "control_bytes_sent", "control_messages"})
_PER_RANK = _CONTROL | {"compute_s", "encode_s", "wire_s", "wait_s", "bytes_sent", "messages"}


def _value(row: Row, name: str) -> float | None:
    if name == "communication_s":
        wire, wait = _value(row, "wire_s"), _value(row, "wait_s")
        return None if wire is None or wait is None else wire + wait
    if name == "other_s":  # the loop around the phases, which the ledger does not charge
        spent = [_value(row, f"{phase}_s") for phase in PHASES]
        # The ledger of short rounds is an estimate from a sample of them, so its sum may exceed the time that passed.
        return None if None in spent else max(0.0, float(row["train_s"]) - sum(s for s in spent if s is not None))
    # In rows from before control was counted separately, other columns include it.
    value = row.get(name, 0.0 if name in _CONTROL else None)
    if value is None:
        return None
    return float(value) / row["ranks"] if name in _PER_RANK else float(value)
