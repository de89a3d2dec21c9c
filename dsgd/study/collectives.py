"""The study of collectives: how long an all-reduce takes, measured and predicted, by algorithm, length and ranks.

In every gang alpha, beta and gamma are measured first, and the times of all sums predicted from them. Short sums are
timed in batches, one after the other as in training. The time of a sum is that of the slowest rank. The algorithms of
one length take turns, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np

from dsgd.collectives import Group, Link, allreduce_cost, allreduce_seconds, calibrate, choose_algorithm
from dsgd.collectives.cost import ALGORITHMS
from dsgd.errors import InvalidParameterError
from dsgd.report import Axis, Claim, Figure, Line, Mark, Panel, Publication, Table
from dsgd.report.figures import MARKERS, MUTED, SERIES, TEXT
from dsgd.runtime.rank import Rank
from dsgd.sim.calibration import run_measurement
from dsgd.study.frame.report import joined
from dsgd.study.frame.rows import Row, Run, cells_of
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.published import STATEMENTS, Interval, largest, ratio, were_busy

__all__ = ["STUDY"]

#: Threads of this process, and worker processes over shared memory, polled shared memory and TCP.
_NAMES: Final = {
    "inproc": "threads", "shm": "processes, memory", "spin": "processes, polled memory", "tcp": "processes, TCP",
}  # fmt: skip
# Sums between two readings of the clock.
_MOST, _BATCH_BYTES = 20, 8 << 20
_CLOSE: Final = 0.25
# Where the costs of the algorithms are from.
_COSTS: Final = {
    "mpich": Publication(
        ("Thakur", "Rabenseifner", "Gropp"), "Optimization of Collective Communication Operations in MPICH", 2005
    ),
    "two-tree": Publication(
        ("Sanders", "Speck", "Träff"), "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009
    ),
}


def _whole(n_bytes: int) -> None:
    if n_bytes % 4:
        raise InvalidParameterError(f"the study collectives: sizes must be multiples of 4 bytes. Got {n_bytes}.")


# -- measuring -----------------------------------------------------------------------------------------------------


def _measure(batch: Batch, runs: Sequence[Run]) -> list[Row]:
    """Let a gang make sums."""
    gang = run_measurement(
        measure,
        ([run.settings() for run in runs],),
        client=batch.client,
        ranks=runs[0].ranks,
        transport=runs[0].wire,
        ranks_per_worker=1,
    )
    found: list[Row] = gang.value
    return found


def measure(rank: Rank, data: Any, sums: Sequence[Row]) -> list[Row]:
    """Time sums, each an ``algorithm`` and ``n_bytes``; a rank program."""
    del data
    transport, link = rank.group.transport, calibrate(rank.group)
    times: list[list[float]] = []
    for n_bytes in dict.fromkeys(one["n_bytes"] for one in sums):
        same = [one for one in sums if one["n_bytes"] == n_bytes]
        groups = [Group(transport, one["algorithm"], hosts=[0] * rank.size) for one in same]
        vector = np.zeros(n_bytes // 4, dtype=np.float32)
        batch = max(2, min(_MOST, _BATCH_BYTES // n_bytes))
        seconds = np.zeros((same[0]["repeats"] + 2, len(same)))
        for line in seconds:
            for k, group in enumerate(groups):
                rank.check()
                rank.group.barrier()
                begin = rank.ledger.clock()
                for _ in range(batch):
                    group.allreduce(vector)
                line[k] = (rank.ledger.clock() - begin) / batch
        rank.group.allreduce(seconds, "max")
        # The first two repetitions also make plans and scratch memory.
        times += seconds[2:].T.tolist()
    rows = []
    for one, own in zip(sums, times, strict=True):
        name, n_bytes = one["algorithm"], one["n_bytes"]
        costs = [allreduce_cost(r, rank.size, n_bytes // 4, 4, name) for r in range(rank.size)]
        rows.append(
            {
                "seconds": statistics.median(own),
                "fastest_s": min(own),
                "times_s": own,
                "predicted_s": allreduce_seconds(name, n_bytes, rank.size, link),
                "bytes_sent": sum(cost.n_bytes for cost in costs),
                "messages": sum(cost.messages for cost in costs),
                **vars(link),
            }
        )
    return rows


# -- reading rows --------------------------------------------------------------------------------------------------


class _Gang:
    """The runs of one gang."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.ranks = rows, rows[0]["ranks"]
        self.name = f"{self.ranks} {_NAMES[rows[0]['wire']]}"
        self.algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
        # Rows of one length by algorithm, lengths ascending.
        self.at: dict[int, dict[str, Row]] = {n_bytes: {} for n_bytes in sorted({row["n_bytes"] for row in rows})}
        for row in rows:
            self.at[row["n_bytes"]][row["algorithm"]] = row
        # The choice of ``"auto"`` by length, where the study ran it, and its time over that of the fastest.
        self.auto = {
            n_bytes: at[name]
            for n_bytes, at in self.at.items()
            if (name := choose_algorithm(n_bytes, self.ranks)) in at
        }
        self.auto_ratios = {n: row["seconds"] / self.fastest(n)["seconds"] for n, row in self.auto.items()}
        self.ratios = [row["predicted_s"] / row["seconds"] for row in rows]
        self.calibrations = {_calibration(row) for row in rows}

    def fastest(self, n_bytes: int) -> Row:
        """Return the row of the fastest algorithm of a length."""
        return min(self.at[n_bytes].values(), key=lambda row: row["seconds"])

    def auto_excess(self) -> Interval | None:
        """Return the largest ratio of auto over all lengths, with its interval over the repetitions."""
        found = [ratio(_times(row), _times(self.fastest(n_bytes))) for n_bytes, row in self.auto.items()]
        known = [one for one in found if one is not None]
        return largest(known) if known else None

    def prediction(self, predicted_s: Callable[[Row], float] = itemgetter("predicted_s")) -> Interval | None:
        """Return predicted over measured time: the median over all runs, with its interval.

        It is the interval over the repetitions, and over the calibrations where the gang was calibrated several times.
        """
        by_run: dict[Any, list[float]] = {}
        for row in self.rows:
            for repeat, seconds in _times(row).items():
                run = repeat if len(self.calibrations) == 1 else _calibration(row)
                by_run.setdefault(run, []).append(predicted_s(row) / seconds)
        medians = {run: statistics.median(ratios) for run, ratios in by_run.items()}
        return ratio(medians, dict.fromkeys(medians, 1.0))


def _times(row: Row) -> dict[int, float]:
    """Return the seconds of a sum by repetition; rows written before these were kept have the median alone."""
    return dict(enumerate(row.get("times_s", [row["seconds"]])))


def _calibration(row: Row) -> tuple[float, float]:
    """Return what a calibration found; two never find the same."""
    return row["latency_s"], row["byte_s"]


def _bytes_alone_s(row: Row) -> float:
    """Return what a model predicts in which messages cost nothing but their bytes."""
    link = Link(byte_s=row["byte_s"], added_byte_s=row["added_byte_s"])
    return allreduce_seconds(row["algorithm"], row["n_bytes"], row["ranks"], link)


def _share_close(ratios: Sequence[float]) -> float:
    return sum(abs(one - 1.0) <= _CLOSE for one in ratios) / len(ratios)


def _claims(gang: _Gang) -> list[Claim]:
    """Return what this library says of its collectives, compared with a study."""
    auto, model = STATEMENTS["dsgd/collectives-auto"], STATEMENTS["dsgd/collectives-model"]
    busy, excess, found = were_busy(gang.rows), gang.auto_excess(), gang.prediction()
    rings = [at["ring"]["seconds"] / gang.fastest(n)["seconds"] for n, at in gang.at.items() if "ring" in at]
    ring = f"{max(rings):.2f}x: always the ring" if rings else ""
    note = "At the worst of all lengths. By default auto uses one calibration, so that sums are equal on all wires."
    control, often = model.control("bytes alone", gang.prediction(_bytes_alone_s)), len(gang.calibrations)
    over = (
        f"the interval is over {often} calibrations."
        if often > 1
        else "the gang was calibrated once, so the interval does not show how much calibrations differ."
    )
    told = (
        f"Predicted over measured time, the median over lengths and algorithms; {over} Ranks beyond the cores take "
        "turns, of which the model knows only what the calibration saw."
    )
    return [
        auto.not_run(gang.name, "Needs the algorithms that auto takes.")
        if excess is None
        else auto.judged(gang.name, excess, note, busy=busy, baseline=ring),
        model.not_run(gang.name, "Nothing was measured.")
        if found is None
        else model.judged(gang.name, found, told, busy=busy, controls=[control]),
    ]


# -- reporting -----------------------------------------------------------------------------------------------------


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    gangs = [_Gang(cell.rows) for cell in cells_of(rows, "wire", "ranks")]
    ratios = [one for gang in gangs for one in gang.ratios]
    chosen = [one for gang in gangs for one in gang.auto_ratios.values()]
    answer = (
        f"The model predicted {_share_close(ratios):.0%} of {len(ratios)} times within a quarter "
        f"(median {statistics.median(ratios):.2f} of what was measured)."
    )
    highlights = [(f"{statistics.median(ratios):.2f}", "predicted over measured time, median")]
    if chosen:
        answer += (
            f" The choice of auto took {statistics.median(chosen):.2f} times as long as the fastest algorithm in the "
            f"median, {max(chosen):.2f} times at worst."
        )
        highlights.append((f"{statistics.median(chosen):.2f}x", "the fastest algorithm's time with auto, median"))
    sizes = joined(map(_size_text, sorted(set(study.sizes))))
    return {
        "answer": answer,
        "ran": [("Grid", f"vectors of {sizes}; {study.repeats} repetitions, algorithms in turn")],
        "highlights": [*highlights, (f"{len(rows):,}", f"sums timed in {len(gangs)} gangs")],
        "data": [_link_table(gangs)],
        "claims": [claim for gang in gangs for claim in _claims(gang)],
        "source": (
            "The claims are those of this library. Costs of the algorithms are those of "
            f"{'; '.join(map(str, _COSTS.values()))}."
        ),
        "figures": [_figure(gangs)],
        "tables": [*map(_table, gangs)],
        "citations": [one.bibtex(key) for key, one in _COSTS.items()],
    }


def _size_text(n_bytes: int) -> str:
    """Return bytes as text: ``4 KiB``."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if n_bytes >= unit and n_bytes % unit == 0:
            return f"{n_bytes // unit} {name}"
    return f"{n_bytes:,} B"


def _table(gang: _Gang) -> Table:
    """Return one row per length: measured and predicted times of each algorithm."""

    def us(row: Row) -> str:
        return f"{1e6 * row['seconds']:,.0f} ({1e6 * row['predicted_s']:,.0f})"

    rows = []
    for n_bytes, at in gang.at.items():
        auto = gang.auto.get(n_bytes)
        text = f"{auto['algorithm'].replace('_', ' ')} {gang.auto_ratios[n_bytes]:.2f}" if auto else "-"
        fastest = gang.fastest(n_bytes)["algorithm"].replace("_", " ")
        rows.append((_size_text(n_bytes), *(us(at[name]) for name in gang.algorithms), fastest, text))
    columns = ("bytes", *(name.replace("_", " ") for name in gang.algorithms), "fastest", "auto: x fastest")
    note = (
        "Microseconds, medians of the slowest rank; in brackets what the model predicts from a calibration in the gang."
    )
    return Table(f"All-reduce, {gang.name}", columns, rows, note)


def _link_table(gangs: Sequence[_Gang]) -> Table:
    """Return the cost of a message in each gang, and how well it predicts the sums."""
    columns = (
        "gang = name | alpha us = alpha | beta ns = beta | gamma ns = gamma | predicted / measured = ratio | "
        "within a quarter = close"
    )
    note = (
        "Alpha per message, beta and gamma per byte, measured while all ranks exchange at once; medians of the ratios."
    )
    return Table.of(
        "What a message costs",
        gangs,
        columns,
        note,
        alpha=lambda gang: f"{1e6 * gang.rows[0]['latency_s']:.1f}",
        beta=lambda gang: f"{1e9 * gang.rows[0]['byte_s']:.3f}",
        gamma=lambda gang: f"{1e9 * gang.rows[0]['added_byte_s']:.3f}",
        ratio=lambda gang: f"{statistics.median(gang.ratios):.2f}",
        close=lambda gang: f"{_share_close(gang.ratios):.0%}",
    )


def _figure(gangs: Sequence[_Gang]) -> Figure:
    """Return the time by length, a panel per gang."""
    panels = []
    for gang in gangs:
        marks: list[Mark] = []
        sizes = list(gang.at)
        for name in gang.algorithms:
            cells = [at[name] for at in gang.at.values()]
            number, label = ALGORITHMS.index(name), name.replace("_", " ")
            colour, marker = (*SERIES, MUTED)[number], (*MARKERS, "plus")[number]
            predicted, said = [row["predicted_s"] for row in cells], [f"{label}, predicted"] * len(sizes)
            marks.append(Line("predicted", sizes, predicted, colour, dash="dashed", width=1.0, names=said))
            marks.append(Line(label, sizes, [row["seconds"] for row in cells], colour, marker, width=1.6))
        if gang.auto:
            y = [row["seconds"] for row in gang.auto.values()]
            marks.append(Line("choice of auto", list(gang.auto), y, TEXT, "circle", width=0.0, size=14.0, hollow=True))
        ticks = {float(n_bytes): _size_text(n_bytes) for n_bytes in sizes}
        panels.append(Panel(gang.name, Axis("length", "log", ticks=ticks), Axis("time", "log", "s"), marks))
    caption = (
        "Median time of an all-reduce of float32 vectors, of the slowest rank: marked as measured, dashed as the model "
        "predicts from a calibration in the same gang. Rings mark the choice of auto."
    )
    columns = 2 if len(gangs) == 4 else 3
    return Figure("collectives", "Time by length", caption, panels, columns, height=320, share="y")


#: The study.
STUDY: Final = Study(
    "collectives",
    "How long does a sum over all ranks take?",
    (),
    options={
        "wires": Option(
            ("inproc", "shm", "tcp"), "inproc (threads), shm, spin and tcp, as shm,tcp.", choices=tuple(_NAMES),
            demo=("inproc", "shm"),
        ),
        "ranks": Option((2, 4, 8), "Numbers of ranks, as 2,4,8.", least=2, demo=(2, 4)),
        "sizes": Option(
            (8, 512, 4_096, 32_768, 262_144, 2_097_152, 16_777_216), "Bytes of the vectors, as 8,4096,1048576.",
            least=4, check=_whole, demo=(8, 4_096, 65_536, 1_048_576),
        ),
        "algorithms": Option(
            ALGORITHMS, "Algorithms, as ring,rabenseifner; a wrong name lists them.", choices=ALGORITHMS
        ),
        "repeats": Option(30, "Times that each sum is made.", least=1, demo=20),
    },
    grids=[
        Grid(
            lambda s: {
                "ranks": sorted(s.ranks), "wire": s.wires, "n_bytes": sorted(s.sizes), "algorithm": s.algorithms
            },
            _measure,
            ("repeats",),
            together=("ranks", "wire"),
            workers=lambda run: 0 if run.wire == "inproc" else run.ranks,
        )
    ],
    report=_report,
    about="In every gang alpha, beta and gamma are measured first, and the times of all sums predicted from them.",
    examples=(
        "dsgd study collectives --demo --out demo/",
        "dsgd study collectives --wires shm,tcp --ranks 2,4 --sizes 8,4096,65536,1048576 --repeats 50 --out study/",
        "dsgd study collectives --wires tcp --ranks 16 --scheduler tcp://10.0.0.5:8786 --out study/",
    ),
    columns=("wire",),
    on_cluster=True,
)  # fmt: skip
