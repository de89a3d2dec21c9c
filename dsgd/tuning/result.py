"""The result of tuning: the recommendation, and every candidate with its predictions and measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dsgd.sim import SavedCosts
from dsgd.tuning.space import Candidate, Point, estimator_line, import_lines


@dataclass(frozen=True)
class Trial:
    """A candidate and its measurements.

    Parameters
    ----------
    candidate : Candidate
        What was tried, and what was predicted of it.
    rung : int
        The last rung that it ran in, from 1; 0 if it never ran.
    curve : sequence of Point
        Seconds and held-out scores of its longest run, epoch by epoch.
    epoch_s : float
        Measured seconds of an epoch; nan if it never ran.
    seconds : float
        Until the target was reached; infinite if it was not.
    best_score : float
        The best score on the rows held out that was reached for good; minus infinity if it never ran.
    note : str, default ""
        Why it did not run, or what went wrong.
    """

    candidate: Candidate
    rung: int = 0
    curve: Sequence[Point] = field(default=(), repr=False)
    epoch_s: float = math.nan
    seconds: float = math.inf
    best_score: float = -math.inf
    note: str = ""

    @property
    def predicted_s(self) -> float:
        """Seconds to the target with the epochs it took and the seconds predicted for each; infinite like `seconds`."""
        epochs = sum(point.seconds <= self.seconds for point in self.curve)
        return epochs * self.candidate.predicted_s if math.isfinite(self.seconds) else math.inf

    def as_row(self) -> dict[str, Any]:
        """Return plain values; what is not a number is None."""
        numbers = {
            "predicted_epoch_s": self.candidate.predicted_s,
            "measured_epoch_s": self.epoch_s,
            "predicted_s": self.predicted_s,
            "measured_s": self.seconds,
            "best_score": self.best_score,
        }
        return {
            "candidate": self.candidate.label,
            "sync": repr(self.candidate.sync),
            "learning_rate": self.candidate.steps.learning_rate,
            "eta0": self.candidate.steps.eta0,
            "rung": self.rung,
            "epochs": len(self.curve),
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "note": self.note,
            "curve": [list(point) for point in self.curve],
        }


#: Candidates that the text of a result shows, and the width of its lines.
_MOST_SHOWN: Final = 10
_WIDTH: Final = 120


@dataclass(frozen=True, repr=False)
class TuningResult:
    """The result of tuning: the recommendation, and how it was found.

    Parameters
    ----------
    estimator : estimator
        With the best parameters; as it was given, if no candidate was measured. Not fitted.
    table : tuple of Trial
        All candidates, the best first.
    metric : {"accuracy", "r2"}
        What the held-out score is.
    target : float
        The score that candidates were to reach: the best that any reached for good, less `margin`.
    margin : float
        See `target`.
    ranks : int
        How many ranks trained.
    n_rows, n_all : int
        Rows that were used, held-out ones among them, and rows there were.
    validation_fraction : float
        Share of rows held out.
    calibration : SavedCosts or None
        The cost model of the cluster; None where there was no time to measure it, and predictions are estimates.
    seconds, budget : float
        What tuning took and was allowed to take.
    client_lines : tuple of str
        The lines that make a client of a cluster like the one that trained, see `dsgd.tuning.space.client_lines`.
    """

    estimator: Any
    table: tuple[Trial, ...]
    metric: str
    target: float
    margin: float
    ranks: int
    n_rows: int
    n_all: int
    validation_fraction: float
    calibration: SavedCosts | None
    seconds: float
    budget: float
    client_lines: tuple[str, ...] = ()

    @property
    def best(self) -> Trial:
        """The first candidate of the table, which is recommended if any was measured."""
        return self.table[0]

    @property
    def n_measured(self) -> int:
        """How many candidates have a score on the rows held out."""
        return sum(math.isfinite(trial.best_score) for trial in self.table)

    @property
    def line(self) -> str:
        """The call that makes the estimator, to be pasted; the client, if there is one, is called ``client``."""
        return estimator_line(self.estimator)

    @property
    def code(self) -> str:
        """Imports, what makes the client, and the line."""
        imports, made = import_lines(self.estimator), list(self.client_lines)
        return "\n".join([*made[:-1], *imports, "", *made[-1:], f"model = {self.line}"])

    @property
    def answer(self) -> str:
        """The recommendation in a sentence."""
        best = self.best
        share = "" if self.n_rows == self.n_all else f" of {self.n_rows:,} of {self.n_all:,} rows"
        if not self.n_measured:
            return (
                f"None of {len(self.table)} candidates ran to the end of an epoch within {self.budget:g} s, so the "
                "estimator is as it was given. Give it more time with budget=."
            )
        compared = "measured alone, with nothing to compare it to" if self.n_measured == 1 else ""
        compared = compared or f"the best of {self.n_measured} that were measured"
        return (
            f"{best.candidate.label} ({compared}, of {len(self.table)} candidates): reaches "
            f"{self.metric} {self.target:.4f}{share} in {best.seconds:.3g} s of "
            f"training on {self.ranks} {'rank' if self.ranks == 1 else 'ranks'} ({best.predicted_s:.3g} s predicted)."
        )

    def __repr__(self) -> str:
        lines = [f"TuningResult: {self.answer}", "", self.line, ""]
        rows = [("", f"best {self.metric}", "seconds to target", "epochs")]
        for trial in self.table[:_MOST_SHOWN]:
            score = f"{trial.best_score:.4f}" if math.isfinite(trial.best_score) else trial.note or "not measured"
            seconds = f"{trial.seconds:.3g}" if math.isfinite(trial.seconds) else "-"
            rows.append((trial.candidate.label, score, seconds, str(len(trial.curve))))
        lines += ["  ".join(row) for row in rows]
        if len(self.table) > _MOST_SHOWN:
            lines.append(f"and {len(self.table) - _MOST_SHOWN} more: see table, or as_mapping()")
        return "\n".join(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in lines)

    def as_mapping(self) -> dict[str, Any]:
        """Return everything as plain values."""
        best = self.best.as_row()
        known = self.calibration
        return {
            "line": self.line,
            "code": self.code,
            "answer": self.answer,
            "metric": self.metric,
            "target": self.target if math.isfinite(self.target) else None,
            "margin": self.margin,
            "predicted_s": best["predicted_s"],
            "measured_s": best["measured_s"],
            "ranks": self.ranks,
            "rows": self.n_rows,
            "rows_in_all": self.n_all,
            "validation_fraction": self.validation_fraction,
            "seconds": self.seconds,
            "budget": self.budget,
            "calibration": None
            if known is None
            else {"file": str(known.path), "reused": known.reused, "seconds": known.seconds},
            "candidates": [trial.as_row() for trial in self.table],
        }
