"""The study of speed-up: when several processes are faster than one, and than scikit-learn.

What is timed is what a user waits for: a call of ``fit``, from its checks to its last synchronisation. Rows of a
generated set are made on the workers that train on them, a chunk per task, and are there before a fit begins; those of
a set on disk are sent there before. Code is compiled before the first timed fit of every way. Scikit-learn and one
thread are included always: what is faster is faster than these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sklearn.linear_model import SGDClassifier as Peer

from dsgd.datasets import TWINS
from dsgd.estimators import SGDClassifier
from dsgd.report import Axis, Bars, Claim, Figure, Level, Line, Panel, Table, Words, byte_text, figure_text, span_of
from dsgd.report.figures import ORANGE
from dsgd.study.frame import options
from dsgd.study.frame.data import DataSource, StudyData, place, score
from dsgd.study.frame.report import data_table, joined, line_of
from dsgd.study.frame.rows import Cell, Row, Run, any_busy, cells_of
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.published import STATEMENTS

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["STUDY"]

_PEER, _ONE = ("scikit-learn", 1), ("threads", 1)
#: Where a model is trained. Workers have their rows before the fit begins, unless they are sent.
_PLACES: Final = ("scikit-learn", "threads", "workers", "workers, rows sent")
# Blocks of each worker.
_CHUNKS: Final = 4
_MAKING_S: Final = 3600.0


# -- measuring -----------------------------------------------------------------------------------------------------


def _measure(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    described, ways = batch.data.describe(), dict[tuple[str, int], _Fit]()
    for run in runs:
        way = run.place, run.ranks
        if way not in ways:
            ways[way] = _Fit(run, batch)
        yield described | ways[way].measure(run.epochs, run.seed)


class _Fit:
    """Fits of one way on one dataset, with its rows where they are wanted and its code compiled."""

    def __init__(self, run: Run, batch: Batch) -> None:
        self._data, self.made_s, self._rows = batch.data, batch.data.loaded_s, (batch.data.X, batch.data.y)
        self._is_peer = run.place == "scikit-learn"
        kind: Callable[..., Any] = Peer if self._is_peer else partial(SGDClassifier, n_jobs=run.ranks)
        self._make = partial(kind, loss=run.loss, alpha=run.alpha, average=True, tol=None)
        if run.place in ("workers", "workers, rows sent"):
            self._make = partial(self._make, client=batch.client)
        if run.place == "workers":
            assert batch.client is not None  # the grid asks for workers
            begin = time.perf_counter()
            self._rows = rows_there(batch.client, self._data, run.ranks, run.dtype), None
            self.made_s = time.perf_counter() - begin
        if not self._is_peer:
            self._make(max_iter=1).fit(*self._rows)

    def measure(self, epochs: int, seed: int) -> Row:
        """Fit; return what the row says of it."""
        model = self._make(max_iter=epochs, random_state=seed)
        begin = time.perf_counter()
        model.fit(*self._rows)
        fit_s = time.perf_counter() - begin
        test = score(model, self._data.X_test, self._data.y_test)
        row = {"fit_s": fit_s, "made_s": self.made_s, "test_accuracy": test["accuracy"]}
        if self._is_peer:
            return row
        # Of ranks that work side by side, the stages of the slowest.
        stages: dict[str, float] = {}
        for entry in model.fit_report_["stages"]:
            stages[entry["stage"]] = max(stages.get(entry["stage"], 0.0), entry["seconds"])
        return {**row, "train_s": stages["train"], "bytes_sent": int(model.ledger_.totals()["bytes_sent"])}


def rows_there(client: Client, data: StudyData, ranks: int, dtype: str) -> list[Any]:
    """Return blocks that lie on so many workers, made by them where they are generated; wait until they are there."""
    from distributed import wait

    workers = sorted(client.nthreads())
    recipe = TWINS.get(data.name.removesuffix("-like")) if data.bayes_accuracy is not None else None
    if recipe is None or len(workers) < ranks:
        # Says what to do where there are too few workers.
        return place(client, (data.X, data.y), ranks, "shuffled")[0]
    edges = np.linspace(0, len(data.y), _CHUNKS * ranks + 1).astype(int).tolist()
    blocks = [
        client.submit(recipe.twin.rows, first, stop, dtype=dtype, workers=[workers[k // _CHUNKS]], pure=False)
        for k, (first, stop) in enumerate(pairwise(edges))
    ]
    with client.as_current():  # it is never the default one
        wait(blocks, timeout=_MAKING_S)
    return blocks


# -- reading rows --------------------------------------------------------------------------------------------------


def _name(way: tuple[str, int]) -> str:
    """Return what a way is called in tables, ``2 workers``."""
    where, ranks = way
    if where == "scikit-learn":
        return where
    kind, comma, rest = where.partition(",")
    return f"{ranks} {kind if ranks > 1 else kind.removesuffix('s')}{comma}{rest}"


class _Set:
    """All fits on one dataset; a way is accurate from the target on, the best test accuracy of all less the margin."""

    def __init__(self, rows: Sequence[Row], margin: float) -> None:
        cells = cells_of(rows, "place", "ranks", "epochs")
        self.name, self.margin = rows[0]["dataset"], margin
        self.ways: dict[tuple[str, int], list[Cell]] = {}
        for cell in cells:
            self.ways.setdefault((cell.place, cell.ranks), []).append(cell)
        for own in self.ways.values():
            own.sort(key=lambda cell: cell.epochs)
        self.target = max(cell.median("test_accuracy") for cell in cells) - margin
        self.majority = cells[0].median("majority_accuracy")

    def soonest(self, way: tuple[str, int]) -> Cell | None:
        """Return the shortest fits of a way that are accurate, medians over seeds; None if none is."""
        accurate = [cell for cell in self.ways.get(way, ()) if cell.median("test_accuracy") >= self.target]
        return min(accurate, key=lambda cell: cell.median("fit_s"), default=None)

    def gain(self, way: tuple[str, int], over: tuple[str, int]) -> float | None:
        """Return how many times as soon as another one a way is accurate; None where one of them is not."""
        ours, theirs = self.soonest(way), self.soonest(over)
        return theirs.median("fit_s") / ours.median("fit_s") if ours and theirs else None

    def best(self) -> tuple[str, int] | None:
        """Return the way of several workers that have their rows that is accurate first; None if none is."""
        found = {way: cell for way in self.ways if way[0] == "workers" and (cell := self.soonest(way))}
        return min(found, key=lambda way: found[way].median("fit_s"), default=None)


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2g}x"


def _judge(one: _Set, key: str, other: tuple[str, int]) -> Claim:
    """Return whether the best several workers are accurate before another way is."""
    way, statement = one.best(), STATEMENTS[key]
    ours, theirs = one.soonest(way) if way else None, one.soonest(other)
    if way is None or ours is None or theirs is None:
        return statement.not_run(one.name, f"Not both reached {one.target:.2%}: train for more epochs.")
    found = theirs.over(ours, "fit_s")
    note = (
        f"{_name(other)} {figure_text(theirs.median('fit_s'))} s ({theirs.epochs} epochs), {_name(way)} "
        f"{figure_text(ours.median('fit_s'))} s ({ours.epochs} epochs), whole fits."
    )
    busy = any_busy(ours, theirs)
    return statement.judged(one.name, found, note, trivial=one.target <= one.majority, busy=busy, baseline="1x")


# -- reporting -----------------------------------------------------------------------------------------------------


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    sets = [_Set(cell.rows, study.margin) for cell in cells_of(rows, "dataset")]
    ways = list(dict.fromkeys(way for one in sets for way in one.ways))
    highlights = []
    for other, text in ((_ONE, "one thread"), (_PEER, "scikit-learn")):
        gains = [gain for one in sets if (way := one.best()) and (gain := one.gain(way, other))]
        if gains:
            highlights.append((span_of(gains, "{:.2g}") + "x", f"as fast as {text}, workers that have their rows"))
    curves = (
        "Test accuracy against the seconds of a whole fit, from its checks to its last synchronisation; a point for "
        "each number of epochs. Medians over seeds, bars from the fastest to the slowest."
    )
    bars = "Seconds of the shortest fit that is accurate, over those of one thread of dsgd: lower is better."
    commonest = "commonest label: test accuracy of always predicting it."
    return {
        "answer": " ".join(map(_answer, sets)),
        "ran": [
            ("Ways", f"{'; '.join(map(_name, ways))}; seeds {joined(study.seeds)}"),
            (
                "Model",
                f"averaged SGD, {study.loss} loss, alpha {study.alpha:g}, {study.dtype}; {joined(study.epochs)} epochs",
            ),
        ],
        "highlights": highlights,
        "data": [data_table(rows, "features", "non-zero", "commonest label", "best possible", note=commonest)],
        "claims": [
            _judge(one, key, other)
            for one in sets
            for key, other in (("dsgd/speedup-one", _ONE), ("dsgd/speedup-peer", _PEER))
        ],
        "source": "The claims are those of this library. Rows are made by the workers that train on them.",
        "figures": [
            Figure("speedup", "Accuracy against seconds", curves, [_curves(one, ways) for one in sets], columns=2),
            Figure("speedup_seconds", "Seconds to the accuracy", bars, [_bars(one) for one in sets], columns=2),
        ],
        "tables": [_table(one) for one in sets],
    }


def _answer(one: _Set) -> str:
    way = one.best()
    cell = one.soonest(way) if way else None
    if way is None or cell is None:
        return f"On {one.name} no fit on several workers reached {one.target:.2%}."
    return (
        f"On {one.name} ({cell.rows[0]['rows']:,} rows), {_name(way)} that have their rows reach "
        f"{one.target:.2%} in {figure_text(cell.median('fit_s'))} s, {_times(one.gain(way, _ONE))} as fast as one "
        f"thread and {_times(one.gain(way, _PEER))} as fast as scikit-learn."
    )


def _table(one: _Set) -> Table:
    """Return how soon each way is accurate, and what of that is training."""
    rows = []
    for way, cells in one.ways.items():
        cell = one.soonest(way)
        shown = cell or max(cells, key=lambda other: other.median("test_accuracy"))
        train, sent = shown.stat("train_s"), shown.stat("bytes_sent")
        rows.append(
            (
                _name(way),
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
    return Table(f"Seconds to {one.target:.2%} on {one.name}", columns, rows, note)


def _curves(one: _Set, ways: Sequence[tuple[str, int]]) -> Panel:
    """Return accuracy over seconds, a line per way."""
    marks: list[Line | Level] = [Level(one.target, "target", ORANGE)]
    for number, way in enumerate(ways):
        cells = one.ways.get(way, [])
        ends = [(cell, stat) for cell in cells if (stat := cell.stat("fit_s"))]
        x, ranges = [stat.median for _, stat in ends], [(stat.low, stat.high) for _, stat in ends]
        y, names = [cell.median("test_accuracy") for cell in cells], [f"{_name(way)}, {c.epochs} epochs" for c in cells]
        marks.append(line_of(_name(way), x, y, number, ranges=ranges, ranges_along="x", names=names))
    return Panel(one.name, Axis("time of a fit", "log", "s"), Axis("test accuracy", unit="%"), marks)


def _bars(one: _Set) -> Panel:
    """Return the seconds to the accuracy, a bar per way that reaches it."""
    found = [(way, cell.median("fit_s")) for way in one.ways if (cell := one.soonest(way))]
    alone = one.soonest(_ONE)
    unit = alone.median("fit_s") if alone else 1.0
    heights, places = [seconds / unit for _, seconds in found], [float(k) for k in range(len(found))]
    bars = Bars(
        "",
        [place - 0.35 for place in places],
        [place + 0.35 for place in places],
        [0.0] * len(found),
        heights,
        names=[f"{_name(way)}: {figure_text(seconds)} s" for way, seconds in found],
    )
    words = Words(places, heights, [f"{figure_text(seconds)} s" for _, seconds in found])
    # A line for each word of a name.
    ticks = {float(k): _name(way).replace(", ", "\n").replace(" ", "\n", 1) for k, (way, _) in enumerate(found)}
    top = Axis("time, 1 thread = 1", low=0.0, high=1.15 * max(heights, default=1.0))
    return Panel(one.name, Axis(ticks=ticks, grid=False), top, [bars, words])


#: The study.
STUDY: Final = Study(
    "speedup",
    "When are several processes faster than one?",
    ("local",),
    options={
        "data": options.data(
            [DataSource("higgs-like", 4_000_000, 400_000), DataSource("criteo-like", 1_000_000, 100_000)],
            demo=(DataSource("higgs-like", 2_000_000, 100_000), DataSource("criteo-like", 600_000, 50_000)),
        ),
        "ranks": Option((2,), "Numbers of threads, and of worker processes, as 2,4.", least=2),
        "epochs": Option(
            (1, 2, 5, 10), "Passes over the rows, as 1,2,5: a fit for each number.", least=1, demo=(1, 4)
        ),
        "seeds": options.seeds(),
        "alpha": options.alpha(1e-6),
        "loss": options.loss("hinge"),
        "dtype": options.dtype(),
        "margin": Option(
            0.002, "Accurate is what is at most so much below the best test accuracy, as 0.002.", panel="The model",
            least=0,
        ),
    },
    grids=[
        Grid(
            # Ways take turns, so that each meets the same moments of a busy machine.
            lambda s: {
                "dataset": s.data, "seed": s.seeds, "epochs": sorted(set(s.epochs)), "place": _PLACES,
                "ranks": sorted({1, *s.ranks}),
            },
            _measure,
            ("alpha", "loss", "dtype"),
            where=lambda run: run.place == "threads" or (run.ranks == 1) == (run.place == "scikit-learn"),
            together=("dataset",),
            workers=lambda run: max(run.study.ranks),
        )
    ],
    report=_report,
    about="Rows of generated sets are made by the workers that train on them.",
    examples=(
        "dsgd study speedup --demo --out demo/",
        "dsgd study speedup -d higgs-like --rows 10000000 --ranks 2,4,8,16 --seeds 5 --out study/",
        "dsgd study speedup -d criteo-like --rows 45000000 --ranks 64 --scheduler tcp://10.0.0.5:8786 --out study/",
    ),
    columns=("place", "dataset"),
    on_cluster=True,
)  # fmt: skip
