"""The file of rows: one JSON object per finished run, written as it is made.

An interrupted study resumes where it stopped: a run whose key is already in the file is not repeated. A line that was
cut off by a crash or a full disk is dropped when the file is opened for writing.
"""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dsgd.errors import DsgdError, MissingPackageError, ParseError
from dsgd.files import replacing

if TYPE_CHECKING:
    import pandas as pd

Row: TypeAlias = dict[str, Any]

#: Name of the file of rows in the folder of a study.
ROWS_FILE: Final = "rows.jsonl"


class AbstractRun(ABC):
    """One run of a study: a cell of its grid, with one seed or repetition."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return everything that decides what is run, as plain values."""

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
