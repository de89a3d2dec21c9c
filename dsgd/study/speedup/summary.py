"""Summary of the study of speed-up: how soon each way to fit is accurate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsgd.report import Claim, Table, byte_text, figure_text
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import AbstractCell, grouped
from dsgd.study.published import STATEMENTS, Statement
from dsgd.study.speedup.grid import Way
from dsgd.study.verdict import ratio, were_busy

__all__ = [
    "SpeedupCell",
    "SpeedupSet",
    "check_speedup_claims",
    "speedup_table",
    "speedup_verdict",
    "summarise_speedup",
]

_PEER, _ONE = Way("scikit-learn", 1), Way("threads", 1)


@dataclass(frozen=True)
class SpeedupCell(AbstractCell):
    """The fits of one way that differ only in the seed.

    Parameters
    ----------
    way : Way
        The way.
    epochs : int
        Passes over the rows.
    rows : sequence of dict
        The rows of its seeds.
    """

    way: Way
    epochs: int
    rows: Sequence[Row]


@dataclass(frozen=True)
class SpeedupSet:
    """All fits on one dataset.

    Parameters
    ----------
    dataset : str
        Name of the data.
    cells : sequence of SpeedupCell
        By way and epochs.
    margin : float
        See `SpeedupStudy`.
    """

    dataset: str
    cells: Sequence[SpeedupCell]
    margin: float

    @property
    def ways(self) -> list[Way]:
        """The ways, in the order of the study."""
        return list(dict.fromkeys(cell.way for cell in self.cells))

    @property
    def target(self) -> float:
        """The test accuracy from which on a way is accurate."""
        return max(cell.median("test_accuracy") for cell in self.cells) - self.margin

    @property
    def majority(self) -> float:
        """The test accuracy of always predicting the commonest label."""
        return self.cells[0].median("majority_accuracy")

    def curve(self, way: Way) -> list[SpeedupCell]:
        """Return the fits of a way, by their epochs."""
        return sorted((cell for cell in self.cells if cell.way == way), key=lambda cell: cell.epochs)

    def soonest(self, way: Way) -> SpeedupCell | None:
        """Return the shortest fits of a way that are accurate, medians over seeds; None if none is."""
        accurate = [cell for cell in self.curve(way) if cell.median("test_accuracy") >= self.target]
        return min(accurate, key=lambda cell: cell.median("fit_s"), default=None)

    def gain(self, way: Way, over: Way) -> float | None:
        """Return how many times as soon as another one a way is accurate; None where one of them is not."""
        ours, theirs = self.soonest(way), self.soonest(over)
        return theirs.median("fit_s") / ours.median("fit_s") if ours and theirs else None

    def best(self) -> Way | None:
        """Return the way of several workers that have their rows that is accurate first; None if none is."""
        found = {way: cell for way in self.ways if way.place == "workers" and (cell := self.soonest(way))}
        return min(found, key=lambda way: found[way].median("fit_s"), default=None)


def summarise_speedup(rows: Iterable[Row], *, margin: float) -> list[SpeedupSet]:
    """Return one entry per dataset.

    Parameters
    ----------
    rows : iterable of dict
        Rows of one study.
    margin : float
        See `SpeedupStudy`.
    """
    found = []
    for (dataset,), own in grouped(rows, "dataset").items():
        cells = [
            SpeedupCell(Way(place, ranks), epochs, seeds)
            for (place, ranks, epochs), seeds in grouped(own, "place", "ranks", "epochs").items()
        ]
        found.append(SpeedupSet(dataset, cells, margin))
    return found


def speedup_table(one: SpeedupSet) -> Table:
    """Return how soon each way is accurate, and what of that is training."""
    rows = []
    for way in one.ways:
        cell = one.soonest(way)
        best = max(one.curve(way), key=lambda other: other.median("test_accuracy"))
        shown = cell or best
        train, sent = shown.stat("train_s"), shown.stat("bytes_sent")
        rows.append(
            (
                way.name,
                str(shown.epochs),
                figure_text(cell.median("fit_s")) if cell else "not reached",
                figure_text(train.median) if train else "-",
                _times(one.gain(way, _ONE)),
                _times(one.gain(way, _PEER)),
                f"{shown.median('test_accuracy'):.2%}",
                figure_text(shown.median("made_s")),
                byte_text(sent.median) if sent and sent.median else "-",
            )
        )
    columns = (
        "way", "epochs", "seconds", "of these training", "x 1 thread", "x scikit-learn", "accuracy", "rows ready in s",
        "sent",
    )  # fmt: skip
    note = (
        f"Seconds of the shortest whole fit whose test accuracy is {one.target:.2%} or more (the best of all, less "
        f"{100 * one.margin:.1f} points); always predicting the commonest label scores {one.majority:.2%}. Medians "
        "over seeds. Rows ready: to make or load the rows where they are trained on, before any fit."
    )
    return Table(f"Seconds to {one.target:.2%} on {one.dataset}", columns, rows, note)


def speedup_verdict(sets: Sequence[SpeedupSet]) -> str:
    """Return the answer of the study, a sentence per dataset."""
    sentences = []
    for one in sets:
        way = one.best()
        if way is None:
            sentences.append(f"On {one.dataset} no fit on several workers reached {one.target:.2%}.")
            continue
        cell, over_one, over_peer = one.soonest(way), one.gain(way, _ONE), one.gain(way, _PEER)
        assert cell is not None  # the best is accurate
        sentences.append(
            f"On {one.dataset} ({cell.rows[0]['rows']:,} rows), {way.name} that have their rows reach "
            f"{one.target:.2%} in {figure_text(cell.median('fit_s'))} s, {_times(over_one)} as fast as one thread and "
            f"{_times(over_peer)} as fast as scikit-learn."
        )
    return " ".join(sentences)


def check_speedup_claims(sets: Sequence[SpeedupSet]) -> list[Claim]:
    """Return the promises of this library about several processes, and whether they hold here."""
    others = (STATEMENTS["dsgd/speedup-one"], _ONE), (STATEMENTS["dsgd/speedup-peer"], _PEER)
    return [_sooner(one, statement, other) for one in sets for statement, other in others]


def _sooner(one: SpeedupSet, statement: Statement, other: Way) -> Claim:
    """Return whether the best several workers are accurate before another way is."""
    way = one.best()
    ours, theirs = one.soonest(way) if way else None, one.soonest(other)
    if way is None or ours is None or theirs is None:
        return statement.not_run(one.dataset, f"Not both reached {one.target:.2%}: train for more epochs.")
    found = ratio(theirs.column("fit_s"), ours.column("fit_s"))
    # Seeds are run in their order, so that both have the first.
    assert found is not None
    note = (
        f"{other.name} {figure_text(theirs.median('fit_s'))} s ({theirs.epochs} epochs), {way.name} "
        f"{figure_text(ours.median('fit_s'))} s ({ours.epochs} epochs), whole fits."
    )
    trivial = one.target <= one.majority
    return statement.judged(
        one.dataset, found, note, trivial=trivial, busy=were_busy([*ours.rows, *theirs.rows]), baseline="1x"
    )


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2g}x"
