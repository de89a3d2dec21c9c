"""Summary of the study of elimination: medians over repetitions, and ratios to runs without it.

Ratios are taken within repetitions, in which methods took turns: whatever slows the machine for a while slows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsgd.study.elimination.grid import PRESETS, REFERENCE
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import AbstractCell, Stat, grouped

__all__ = ["EliminationCell", "EliminationSummary", "summarise_elimination"]

# The columns shared by runs that differ only in the repetition.
_KEY = ("problem", "method", "cache", "solver", "ranks")
_ORDER = {name: number for number, name in enumerate([*PRESETS, REFERENCE])}


@dataclass(frozen=True)
class EliminationCell(AbstractCell):
    """The runs that differ only in the repetition.

    Parameters
    ----------
    problem, method, cache, solver : str
        What was run.
    ranks : int or None
        Worker processes; None for a run in one process.
    rows : sequence of dict
        The rows, by repetition.
    """

    problem: str
    method: str
    cache: str
    solver: str
    ranks: int | None
    rows: Sequence[Row]

    def ratio(self, base: EliminationCell, name: str) -> Stat | None:
        """Return a column over that of another cell, repetition by repetition."""
        below = {row["repeat"]: row.get(name) for row in base.rows}
        pairs = [(row.get(name), below.get(row["repeat"])) for row in self.rows]
        return Stat.of(above / under for above, under in pairs if above is not None and under)

    def by_repeat(self, name: str) -> dict[int, float]:
        """Return a column by repetition, where it is known."""
        return self.column(name, "repeat")

    def share_of_cache(self) -> float:
        """Return the share of the kernel matrix in float32 that the cache holds."""
        row = self.rows[0]
        return float(row["cache_mb"] * 2**20 / (4.0 * row["rows"] ** 2))

    def least_values(self) -> float | None:
        """Return how many kernel values any solver needs for a gap over all samples; None for more than two classes.

        With s support vectors among n samples, this gap depends on every value between a support vector and a sample,
        and a solver cannot know a value without computing it: s n - s (s - 1) / 2 values, as K is symmetric.
        """
        row = self.rows[0]
        if row["classes"] > 2 or row.get("samples") is None:
            return None
        samples = self.median("samples")
        support = samples * self.median("n_support") / float(row["rows"])
        return support * samples - support * (support - 1.0) / 2.0

    def distance(self, base: EliminationCell) -> float | None:
        """Return how far the dual objective lies from that of another cell, relative to it."""
        ours, other = self.stat("objective"), base.stat("objective")
        return (
            None if ours is None or other is None else abs(ours.median - other.median) / max(abs(other.median), 1e-300)
        )


@dataclass(frozen=True)
class EliminationSummary:
    """All cells of a study.

    Parameters
    ----------
    cells : sequence of EliminationCell
        By problem, ranks, solver, cache and method.
    """

    cells: Sequence[EliminationCell]

    def problems(self) -> list[str]:
        """Return the names of the problems, in the order of the study."""
        return list(dict.fromkeys(cell.problem for cell in self.cells))

    def caches(self) -> list[str]:
        """Return the sizes of the cache that were run."""
        return list(dict.fromkeys(cell.cache for cell in self.cells if cell.ranks is None))

    def cache_text(self, cache: str) -> str:
        """Return what a cache holds, such as "Cache of 1 to 3 % of the matrix"."""
        if cache == "fits":
            return "Cache that fits"
        shares = [cell.share_of_cache() for cell in self.cells if cell.cache == cache and cell.ranks is None]
        least, most = (f"{100.0 * share:.2g}" for share in (min(shares), max(shares)))
        return f"Cache of {least if least == most else f'{least} to {most}'} % of the matrix"

    def tight(self) -> str:
        """Return the smallest cache that was run; "small" where none was."""
        caches = self.caches()
        return "small" if "small" in caches or not caches else caches[0]

    def cell(
        self, problem: str, method: str, cache: str, *, solver: str = "block", ranks: int | None = None
    ) -> EliminationCell | None:
        """Return one cell, or None if it has not been run."""
        wanted = (problem, method, cache, solver, ranks)
        return next((c for c in self.cells if (c.problem, c.method, c.cache, c.solver, c.ranks) == wanted), None)

    def presets(self, problem: str, cache: str) -> list[EliminationCell]:
        """Return the cells of the presets on a problem, in one process, the one without elimination first."""
        return [
            cell
            for cell in self.cells
            if (cell.problem, cell.cache, cell.ranks) == (problem, cache, None) and cell.method != REFERENCE
        ]

    def distributed(self, problem: str, solver: str, method: str) -> list[EliminationCell]:
        """Return the distributed cells of a problem, by rising ranks."""
        found = [
            cell
            for cell in self.cells
            if (cell.problem, cell.solver, cell.method) == (problem, solver, method) and cell.ranks is not None
        ]
        return sorted(found, key=lambda cell: cell.ranks or 0)


def summarise_elimination(rows: Iterable[Row]) -> EliminationSummary:
    """Return the cells that the rows of a study fall into."""
    groups = grouped(rows, *_KEY)
    place = {name: number for number, name in enumerate(dict.fromkeys(key[0] for key in groups))}
    keys = sorted(groups, key=lambda key: (place[key[0]], key[4] or 0, key[3], key[2] != "small", _ORDER[key[1]]))
    return EliminationSummary([EliminationCell(rows=groups[key], **dict(zip(_KEY, key, strict=True))) for key in keys])
