"""Rows: one JSON object per finished run, on disk as it is made, and cells, rows that agree in some columns.

An interrupted study resumes where it stopped: a run whose key is already in the file is not repeated. A line that was
cut off by a crash or a full disk is dropped when the file is opened for writing.

Cells have medians over the repetitions, because a run on a busy machine is sometimes far slower than its repetitions,
but never far faster.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, overload

from dsgd.errors import DsgdError, MissingPackageError, ParseError
from dsgd.files import replacing
from dsgd.report import origin
from dsgd.study.published import Interval, difference, ratio, were_busy

if TYPE_CHECKING:
    import pandas as pd

Row: TypeAlias = dict[str, Any]

#: Name of the file of rows in the folder of a study.
ROWS_FILE: Final = "rows.jsonl"


@dataclass(frozen=True)
class Run:
    """A point of a grid: its columns are attributes, and `study` has the options."""

    study: Any
    columns: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["columns"][name]
        except KeyError:
            raise AttributeError(name) from None

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        return {name: value for name, value in self.columns.items() if not name.startswith("_")}

    @property
    def key(self) -> str:
        """The run's name in the file of rows; equal settings give equal keys."""
        return " ".join(f"{name}={value}" for name, value in self.settings().items())


def picked(item: object, *names: str) -> Row:
    """Return these attributes by name."""
    return {name: getattr(item, name) for name in names}


@dataclass(frozen=True)
class StudyRun:
    """A finished run.

    Parameters
    ----------
    row : dict
        Its row.
    resumed : bool
        Whether the row was there already and nothing was run.
    """

    row: Row
    resumed: bool


def check_rows(rows: Sequence[Row]) -> None:
    """Raise if a study has no rows to report."""
    if not rows:
        raise DsgdError("the study has no finished run yet, so there is nothing to report: run it first")


def parse_rows(text: str, name: str) -> list[Row]:
    """Return the rows in `text`, without a torn last line."""
    rows: list[Row] = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or "key" not in row:
                raise ValueError("not an object with a 'key'")
            if not line.endswith("\n"):
                raise ValueError("no end of line")
        except ValueError as error:
            if number == len(lines):
                break
            raise ParseError(name, number, f"not a row of a study ({error}); correct or remove the line") from error
        rows.append(row)
    return rows


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """Return the rows of a file, or none if there is no such file.

    Raises
    ------
    ParseError
        If a line that is not the last is damaged.
    """
    path = Path(path)
    return parse_rows(path.read_text(encoding="utf-8"), path.name) if path.exists() else []


def to_frame(rows: Sequence[Row], *, curves: bool = False) -> pd.DataFrame:
    """Return rows of a study as a pandas frame.

    Parameters
    ----------
    rows : sequence of dict
        The rows.
    curves : bool, default False
        Return a row per point of their curves, with ``strategy`` and ``seed``, and not one per run, without curve.

    Raises
    ------
    MissingPackageError
        pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError(
            "to_frame() needs pandas, which is not installed here. Install it with: pip install pandas; or use the "
            "rows as they are, a list of dictionaries."
        ) from error

    if curves:
        return pd.DataFrame(
            [{"strategy": row["strategy"], "seed": row["seed"], **at} for row in rows for at in row["curve"]]
        )
    # What is a record itself has no place in a cell.
    return pd.DataFrame([{name: v for name, v in row.items() if not isinstance(v, (dict, list))} for row in rows])


class RowFile:
    """The rows of a study, on disk and in memory.

    Parameters
    ----------
    path : str or path-like
        The file; made with its folder when it is not there. A torn last line is removed from it.
    force : bool, default False
        Drop the rows that are in the file.

    Raises
    ------
    ParseError
        If a line that is not the last is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._rows: dict[str, Row] = {} if force else {row["key"]: row for row in read_rows(self.path)}
        text = "".join(_line(row) for row in self._rows.values())
        if not self.path.exists() or self.path.read_text(encoding="utf-8") != text:
            with replacing(self.path) as aside:  # an interrupt here loses nothing
                aside.write_text(text, encoding="utf-8")

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a finished run; it is on disk when this returns. Numbers that are not finite become null."""
        kept: Row = _plain(dict(row))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(kept))
            file.flush()
            os.fsync(file.fileno())
        self._rows[kept["key"]] = kept

    def matching(self, columns: Mapping[str, Any]) -> list[Row]:
        """Return the rows that have these values, in the order in which they were made."""
        wanted = columns.items()
        return [row for row in self._rows.values() if all(row.get(name) == value for name, value in wanted)]

    def select(self, keys: Iterable[str]) -> list[Row]:
        """Return the rows with these keys, in the order of the keys; keys without a row are skipped."""
        return [self._rows[key] for key in keys if key in self._rows]


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Record:
    """The finished runs of a study, one row each, in the folder of the study."""

    def __init__(
        self, out: str | os.PathLike[str], *, force: bool = False, command: str | None = None, **about: Any
    ) -> None:
        self._rows = RowFile(Path(out) / ROWS_FILE, force=force)
        self._about = {**origin(command), **about}

    def has(self, runs: Iterable[Run]) -> bool:
        """Return whether all of these runs are finished."""
        return all(run.key in self._rows for run in runs)

    def rows(self, **columns: Any) -> list[Row]:
        """Return the rows that have these values, in the order in which they were made."""
        return self._rows.matching(columns)

    def kept(self, runs: Iterable[Run]) -> Iterator[StudyRun]:
        """Yield those of some runs that have a row; nothing is run."""
        for row in self._rows.select(run.key for run in runs):
            yield StudyRun(row, resumed=True)

    def finish(self, runs: Sequence[Run], measure: Callable[[list[Run]], Iterable[Row]]) -> Iterator[StudyRun]:
        """Yield all of these runs in their order, each when its row is on disk."""
        missing = {run.key: run for run in runs if run.key not in self._rows}
        found = measure(list(missing.values())) if missing else ()
        made = zip(missing.values(), found, strict=True)
        if isinstance(found, list):
            for run, row in made:
                self._add(run, row)
        for run in runs:
            if run.key not in self._rows:
                self._add(*next(made))
            yield StudyRun(self._rows.select([run.key])[0], resumed=run.key not in missing)

    def _add(self, run: Run, found: Mapping[str, Any]) -> None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        self._rows.append({"key": run.key, **run.settings(), **found, "when": when, **self._about})


CellT = TypeVar("CellT", bound="Cell")
_LEARNT: Final = 0.005


class Stat(NamedTuple):
    """One quantity over the repetitions of a run: median, lowest and highest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Stat | None:
        """Return the quantity of the values that are not None, or None if there are none."""
        known = [float(value) for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None

    def under(self, above: float = 1.0) -> Stat | None:
        """Return `above` over the quantity; None where it is not positive."""
        return Stat(above / self.median, above / self.high, above / self.low) if self.low > 0 else None


class Cell:
    """Rows that differ only in the seed or the repetition; what they agree in is an attribute."""

    def __init__(self, rows: Sequence[Row], value: Callable[[Row, str], float | None] = Row.get) -> None:
        self.rows, self._value = rows, value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["rows"][0][name]
        except KeyError:
            raise AttributeError(name) from None

    def stat(self, name: str) -> Stat | None:
        """Return a column over the repetitions, or None if no row has it."""
        return Stat.of(self._value(row, name) for row in self.rows)

    def median(self, name: str) -> float:
        """Return the median of a column."""
        stat = self.stat(name)
        if stat is None:
            raise KeyError(name)
        return stat.median

    def medians(self, *names: str) -> dict[str, float | None]:
        """Return the medians of columns by name, None for those that no row has."""
        stats = {name: self.stat(name) for name in names}
        return {name: stat.median if stat else None for name, stat in stats.items()}

    def column(self, name: str) -> dict[Any, float]:
        """Return a column by the seed or repetition of its row, where it is known."""
        values = {row["repeat"] if "repeat" in row else row["seed"]: self._value(row, name) for row in self.rows}
        return {key: float(value) for key, value in values.items() if value is not None}

    def over(self, other: Cell, name: str) -> Interval | None:
        """Return the interval of the ratio of a column over the repetitions of both; None if they share none."""
        return ratio(self.column(name), other.column(name))

    def minus(self, other: Cell, name: str) -> Interval | None:
        """Return the interval of the difference of a column over the repetitions of both; None if they share none."""
        return difference(self.column(name), other.column(name))

    @property
    def is_trivial(self) -> bool:
        """Whether it is less than half a point better than always predicting the commonest label: it claims nothing."""
        ours, commonest = self.stat("test_accuracy"), self.stat("majority_accuracy")
        return ours is None or (commonest is not None and ours.median - commonest.median < _LEARNT)

    def curve(self) -> list[dict[str, float]]:
        """Return the ``curve`` of the rows point by point, medians over the repetitions."""
        points = zip(*(row["curve"] for row in self.rows), strict=True)
        return [{name: statistics.median(point[name] for point in seeds) for name in seeds[0]} for seeds in points]

    def along(self, name: str) -> list[Stat]:
        """Return a column of the ``curve`` of the rows, point by point."""
        points = zip(*(row["curve"] for row in self.rows), strict=True)
        return [stat for seeds in points if (stat := Stat.of(point[name] for point in seeds))]


def any_busy(*cells: Cell) -> bool:
    """Return whether the machine was busy with other work while it made some of these cells."""
    return any(were_busy(cell.rows) for cell in cells)


@overload
def cells_of(rows: Iterable[Row], *by: str) -> list[Cell]: ...


@overload
def cells_of(rows: Iterable[Row], *by: str, make: Callable[[list[Row]], CellT]) -> list[CellT]: ...


def cells_of(rows: Iterable[Row], *by: str, make: Callable[[list[Row]], Any] = Cell) -> list[Any]:
    """Return the cells of the rows that agree in the columns `by`, in order of first appearance."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in by), []).append(row)
    return [make(own) for own in found.values()]


def only(cells: Iterable[CellT], **columns: Any) -> list[CellT]:
    """Return the cells that have these values."""
    return [cell for cell in cells if all(getattr(cell, name, None) == value for name, value in columns.items())]


def one_of(cells: Iterable[CellT], **columns: Any) -> CellT | None:
    """Return the first cell that has these values, or None."""
    return next(iter(only(cells, **columns)), None)


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of the points that no other beats in both numbers (the Pareto front), in rising order."""

    def is_beaten(own: tuple[float, float]) -> bool:
        return any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in points.values())

    return sorted((name for name, point in points.items() if not is_beaten(point)), key=lambda name: points[name])
