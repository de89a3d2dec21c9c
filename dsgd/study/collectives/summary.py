"""Summary of the study of collectives: the fastest algorithm per gang, predictions, the cost of "auto"."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsgd.collectives import choose_algorithm
from dsgd.report import Claim, Table
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import grouped
from dsgd.study.published import STATEMENTS
from dsgd.study.verdict import Interval, largest, ratio, were_busy

__all__ = [
    "CollectiveGang",
    "check_collective_claims",
    "collective_table",
    "collective_verdict",
    "link_table",
    "size_text",
    "summarise_collectives",
]

_CLOSE: Final = 0.25
_NAMES: Final = {
    "inproc": "threads",
    "shm": "processes, memory",
    "spin": "processes, polled memory",
    "tcp": "processes, TCP",
}


@dataclass(frozen=True)
class CollectiveGang:
    """The runs of one gang.

    Parameters
    ----------
    wire : str
        What vectors travelled over.
    ranks : int
        How many ranks.
    rows : sequence of dict
        Its rows.
    """

    wire: str
    ranks: int
    rows: Sequence[Row]

    @property
    def name(self) -> str:
        """Its name in tables and figures."""
        return f"{self.ranks} {_NAMES[self.wire]}"

    def sizes(self) -> list[int]:
        """Return the lengths in bytes, ascending."""
        return sorted({row["n_bytes"] for row in self.rows})

    def algorithms(self) -> list[str]:
        """Return the algorithms, in the order of the study."""
        return list(dict.fromkeys(row["algorithm"] for row in self.rows))

    def at(self, n_bytes: int) -> dict[str, Row]:
        """Return the rows of one length by algorithm."""
        return {row["algorithm"]: row for row in self.rows if row["n_bytes"] == n_bytes}

    def auto(self, n_bytes: int) -> Row | None:
        """Return the row of the algorithm that ``"auto"`` chooses, or None if the study did not run it."""
        return self.at(n_bytes).get(choose_algorithm(n_bytes, self.ranks))

    def auto_ratio(self, n_bytes: int) -> float | None:
        """Return the time of the algorithm that ``"auto"`` chooses over that of the fastest one."""
        chosen = self.auto(n_bytes)
        fastest = min(row["seconds"] for row in self.at(n_bytes).values())
        return None if chosen is None else chosen["seconds"] / fastest

    def auto_excess(self) -> Interval | None:
        """Return the largest such ratio over all lengths, with its interval over the repetitions."""
        found = []
        for n_bytes in self.sizes():
            chosen = self.auto(n_bytes)
            if chosen is not None:
                fastest = min(self.at(n_bytes).values(), key=lambda row: row["seconds"])
                found.append(ratio(_times(chosen), _times(fastest)))
        known = [one for one in found if one is not None]
        return largest(known) if known else None

    def prediction(self) -> Interval | None:
        """Return predicted over measured time: the median over all runs, with its interval.

        It is the interval over the repetitions, and over the calibrations where the gang was calibrated several times.
        """
        calibrations = {_calibration(row) for row in self.rows}
        by_run: dict[Any, list[float]] = {}
        for row in self.rows:
            for repeat, seconds in _times(row).items():
                run = repeat if len(calibrations) == 1 else _calibration(row)
                by_run.setdefault(run, []).append(row["predicted_s"] / seconds)
        medians = {run: statistics.median(ratios) for run, ratios in by_run.items()}
        return ratio(medians, dict.fromkeys(medians, 1.0))

    def prediction_ratios(self) -> list[float]:
        """Return predicted over measured time of every run."""
        return [row["predicted_s"] / row["seconds"] for row in self.rows]


def summarise_collectives(rows: Iterable[Row]) -> list[CollectiveGang]:
    """Return the gangs of these rows, in order."""
    gangs = grouped(rows, "wire", "ranks").items()
    return [CollectiveGang(wire, ranks, found) for (wire, ranks), found in gangs]


def collective_table(gang: CollectiveGang) -> Table:
    """Return one row per length: measured and predicted times of each algorithm."""
    rows = []
    for n_bytes in gang.sizes():
        cells = gang.at(n_bytes)
        fastest = min(cells.values(), key=lambda row: row["seconds"])
        times = [f"{_us(cells[name]['seconds'])} ({_us(cells[name]['predicted_s'])})" for name in gang.algorithms()]
        chosen, ratio = gang.auto(n_bytes), gang.auto_ratio(n_bytes)
        text = "-" if chosen is None or ratio is None else f"{chosen['algorithm'].replace('_', ' ')} {ratio:.2f}"
        rows.append((size_text(n_bytes), *times, fastest["algorithm"].replace("_", " "), text))
    columns = ("bytes", *(name.replace("_", " ") for name in gang.algorithms()), "fastest", "auto: x fastest")
    note = (
        "Microseconds, medians of the slowest rank; in brackets what the model predicts from a calibration in the gang."
    )
    return Table(f"All-reduce, {gang.name}", columns, rows, note)


def link_table(gangs: Sequence[CollectiveGang]) -> Table:
    """Return the cost of a message in each gang, and how well it predicts the sums."""
    columns: dict[str, Callable[[CollectiveGang], str]] = {
        "gang": lambda gang: gang.name,
        "alpha us": lambda gang: f"{1e6 * gang.rows[0]['latency_s']:.1f}",
        "beta ns": lambda gang: f"{1e9 * gang.rows[0]['byte_s']:.3f}",
        "gamma ns": lambda gang: f"{1e9 * gang.rows[0]['added_byte_s']:.3f}",
        "predicted / measured": lambda gang: f"{statistics.median(gang.prediction_ratios()):.2f}",
        "within a quarter": lambda gang: f"{_share_close(gang.prediction_ratios()):.0%}",
    }
    note = (
        "Alpha per message, beta and gamma per byte, measured while all ranks exchange at once; medians of the ratios."
    )
    return Table.of("What a message costs", gangs, columns, note)


def check_collective_claims(gangs: Sequence[CollectiveGang]) -> list[Claim]:
    """Return what this library says of its collectives, compared with a study."""
    return [claim for gang in gangs for claim in (_auto_is_close(gang), _model_is_close(gang))]


def _auto_is_close(gang: CollectiveGang) -> Claim:
    found = gang.auto_excess()
    if found is None:
        return STATEMENTS["dsgd/collectives-auto"].not_run(gang.name, "Needs the algorithms that auto takes.")
    note = "At the worst of all lengths. By default auto uses one calibration, so that sums are equal on all wires."
    return STATEMENTS["dsgd/collectives-auto"].judged(
        gang.name, found, note, busy=were_busy(gang.rows), baseline=_always_ring(gang)
    )


def _model_is_close(gang: CollectiveGang) -> Claim:
    found = gang.prediction()
    if found is None:
        return STATEMENTS["dsgd/collectives-model"].not_run(gang.name, "Nothing was measured.")
    often = len({_calibration(row) for row in gang.rows})
    note = "Predicted over measured time, the median over lengths and algorithms; "
    note += (
        f"the interval is over {often} calibrations. "
        if often > 1
        else "the gang was calibrated once, so the interval does not show how much calibrations differ. "
    )
    note += "Ranks beyond the cores take turns, of which the model knows only what the calibration saw."
    return STATEMENTS["dsgd/collectives-model"].judged(gang.name, found, note, busy=were_busy(gang.rows))


def _always_ring(gang: CollectiveGang) -> str:
    """Return how much longer than the fastest one the ring takes, at the worst of all lengths."""
    rows = [gang.at(n_bytes) for n_bytes in gang.sizes() if "ring" in gang.at(n_bytes)]
    times = [at["ring"]["seconds"] / min(row["seconds"] for row in at.values()) for at in rows]
    return f"{max(times):.2f}x: always the ring" if times else ""


def collective_verdict(gangs: Sequence[CollectiveGang]) -> str:
    """Return the answer of the study in a sentence or two."""
    ratios = [r for gang in gangs for n_bytes in gang.sizes() if (r := gang.auto_ratio(n_bytes)) is not None]
    predictions = [ratio for gang in gangs for ratio in gang.prediction_ratios()]
    text = (
        f"The model predicted {_share_close(predictions):.0%} of {len(predictions)} times within a quarter "
        f"(median {statistics.median(predictions):.2f} of what was measured)."
    )
    if ratios:
        text += (
            f" The choice of auto took {statistics.median(ratios):.2f} times as long as the fastest algorithm in the "
            f"median, {max(ratios):.2f} times at worst."
        )
    return text


def size_text(n_bytes: int) -> str:
    """Return bytes as text: ``4 KiB``."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if n_bytes >= unit and n_bytes % unit == 0:
            return f"{n_bytes // unit} {name}"
    return f"{n_bytes:,} B"


def _times(row: Row) -> dict[int, float]:
    """Return the seconds of a sum by repetition; rows written before these were kept have the median alone."""
    return dict(enumerate(row.get("times_s", [row["seconds"]])))


def _calibration(row: Row) -> tuple[float, float]:
    """Return what a calibration found; two never find the same."""
    return row["latency_s"], row["byte_s"]


def _share_close(ratios: Sequence[float]) -> float:
    return sum(abs(ratio - 1.0) <= _CLOSE for ratio in ratios) / len(ratios)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f}"
