"""The result of a comparison: rows, tables, figures and a page."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from dsgd.report import Page, Table, byte_text, check_extras, seconds_text
from dsgd.study.comparison.figures import curves_figure, front_figure
from dsgd.study.comparison.methods import SEQUENTIAL
from dsgd.study.comparison.search import search_table
from dsgd.study.comparison.summary import (
    StrategyCell,
    StrategyGang,
    gang_of,
    strategy_answer,
    strategy_table,
    versus_table,
)
from dsgd.study.frame.report import data_table, doubts, facts, joined
from dsgd.study.frame.rows import Row, to_frame
from dsgd.study.published import citations, sources_of
from dsgd.study.verdict import were_busy

if TYPE_CHECKING:
    import pandas as pd

_WIDTH: Final = 170


@dataclass(frozen=True, repr=False)
class Comparison:
    """What `dsgd.compare` has measured.

    ``print`` shows its table and its answer.

    Parameters
    ----------
    rows : sequence of dict
        One row per method and seed, those of one rank first: what was run, on what, what it took, and its ``curve``.
    search : sequence of dict
        One row per trial of the search for rates and periods, ``chosen`` or not; empty if nothing was tuned.
    target_excess : float
        The target is the final training objective of one rank times (1 + `target_excess`).
    given_target : float or None, default None
        The target, where it was given.
    """

    rows: Sequence[Row]
    search: Sequence[Row]
    target_excess: float
    given_target: float | None = None

    @property
    def gang(self) -> StrategyGang:
        """The methods with what they reach, beside one rank."""
        alone = [row for row in self.rows if row["strategy"] == SEQUENTIAL]
        others = [row for row in self.rows if row["strategy"] != SEQUENTIAL]
        return gang_of(self.rows[0]["dataset"], self.rows[0]["where"], alone, others, self.given_target)

    @property
    def cells(self) -> Mapping[str, StrategyCell]:
        """The seeds of each method by its name, with medians and intervals."""
        return {cell.name: cell for cell in self.gang.cells}

    @property
    def target(self) -> float:
        """The training objective that is the target."""
        return self.gang.target(self.target_excess)

    @property
    def answer(self) -> str:
        """Who reaches the target soonest, and who with the fewest bytes, in a sentence or two."""
        return strategy_answer(self.gang, self.target_excess)

    def table(self) -> Table:
        """Return a row per method: seconds, bytes and epochs to the target, accuracy, objective; medians over seeds."""
        return strategy_table(self.gang, excess=self.target_excess)

    def versus(self) -> Table:
        """Return how each method compares with the first, with 95 % intervals over the seeds, and what they decide."""
        return versus_table(self.gang, excess=self.target_excess, busy=_is_here(self.rows) and were_busy(self.rows))

    def __str__(self) -> str:
        """Return the tables and the answer as text."""
        from rich.console import Console

        text = io.StringIO()
        console = Console(file=text, width=_WIDTH, highlight=False)
        for table in self._tables():
            console.print(table.renderable())
        console.print(self.answer, markup=False)
        lines = text.getvalue().splitlines()
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self) -> str:
        """Return what was compared, in a line."""
        seeds = len({row["seed"] for row in self.rows})
        return f"<Comparison of {', '.join(self.cells)} on {self.gang.name}, {seeds} seeds>"

    def to_frame(self, of: Literal["runs", "curves", "search"] = "runs") -> pd.DataFrame:
        """Return rows as a pandas frame.

        Parameters
        ----------
        of : {"runs", "curves", "search"}, default "runs"
            A row per method and seed; a row per point of their curves, with ``strategy`` and ``seed``; or a row per
            trial of the search.

        Raises
        ------
        MissingPackageError
            pandas is not installed; `rows` and `search` hold the same, as dictionaries.
        """
        return to_frame(self.search if of == "search" else self.rows, curves=of == "curves")

    def plot(self, path: str | os.PathLike[str] | None = None, *, dark: bool = False) -> Any:
        """Draw the learning curves against rows, bytes, messages and seconds.

        Parameters
        ----------
        path : str or path-like, optional
            A PNG file to write as well.
        dark : bool, default False
            Draw on a dark ground.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.

        Raises
        ------
        DsgdError
            matplotlib is not installed; says how to get it.
        """
        check_extras("plot()", "matplotlib")
        from dsgd.report.png import canvas, picture

        drawn = canvas(curves_figure(self.gang, self.target_excess), dark=dark)
        if path is not None:
            Path(path).write_bytes(picture(drawn))
        return drawn

    def page(self) -> Page:
        """Return the page: answer, figures, tables, what was run, and all rows to download."""
        first, gang, rows = self.rows[0], self.gang, [*self.rows, *self.search]
        ranks = f"{gang.where}; seeds {joined(sorted({row['seed'] for row in self.rows}))}"
        model = f"{first['model']}; {first['partition']} partition; looked at after {joined(first['looks'])} epochs"
        names = {row["strategy"]: row for row in self.rows}
        methods = Table(
            "Methods",
            ("strategy", "sync=", "rate"),
            [(name, row["sync"], f"{row['eta0']:g}") for name, row in names.items()],
            f"Rates are those of the {first['schedule']} schedule." if first["schedule"] != "optimal" else
            "The schedule is optimal, which has no first rate of its own.",
            n_text=2,
        )  # fmt: skip
        return Page(
            title="How do these methods compare?",
            answer=self.answer,
            ran=facts(rows, ("Ranks", ranks), ("Model", model)),
            highlights=self._highlights(),
            doubts=doubts(self.rows),
            data=[data_table(self.rows, "features", "non-zero", "commonest label")],
            figures=[curves_figure(gang, self.target_excess), front_figure(gang, self.target_excess)],
            tables=self._tables(),
            details=[methods, *([search_table(self.search)] if self.search else [])],
            rows=rows,
            citations=citations(sources_of(row["sync"] for row in self.rows)),
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into one HTML file, which needs nothing else; return its path.

        Parameters
        ----------
        path : str or path-like
            The file, as ``comparison.html``; its folder is made if it is not there.

        Raises
        ------
        DsgdError
            jinja2 or matplotlib is not installed; says how to get them.
        """
        return self.page().write(path)

    def _tables(self) -> list[Table]:
        return [self.table(), *([self.versus()] if len(self.gang.cells) > 1 else [])]

    def _highlights(self) -> list[tuple[str, str]]:
        gang = self.gang
        reached = gang.reached(self.target_excess)
        found = [(f"{len(reached)} of {len(gang.cells)}", "methods reach the target")]
        if reached:
            soonest = min(reached, key=lambda name: reached[name]["seconds"])
            fewest = min(reached, key=lambda name: reached[name]["bytes_sent"])
            found.append((seconds_text(reached[soonest]["seconds"]), f"to the target, soonest: {soonest}"))
            found.append((byte_text(reached[fewest]["bytes_sent"]), f"to the target, fewest: {fewest}"))
        return found


def _is_here(rows: Sequence[Row]) -> bool:
    """Return whether the load of this machine says anything of the seconds."""
    return bool(rows[-1]["cluster"] == "local")
