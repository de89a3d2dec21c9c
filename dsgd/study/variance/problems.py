"""Strongly convex problems of the study of variance: with rows that stand out, and without."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dsgd.local import Objective
from dsgd.study.frame.data import StudyData, checksum_of
from dsgd.types import AnyArray

__all__ = ["FAR", "N_NUMBERS", "TOY", "Problem", "far_targets", "of_data", "one_of_many"]

#: Names of the two that have outliers.
TOY: Final = "one of 40"
FAR: Final = "far targets"
#: Numbers of the first.
N_NUMBERS: Final = 40

_TOY_EPOCHS: Final = 30
_FAR_ROWS: Final = 20


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows and a strongly convex objective.

    Parameters
    ----------
    name : str
        What it is called.
    source : str
        What its rows are, or where they are from.
    X : array or CSR matrix, shape (n_rows, n_features)
        Rows.
    y : array, shape (n_rows,)
        Targets.
    objective : Objective
        The objective.
    longer : int, default 1
        How many times as many epochs it takes as others.
    rate : float or None, default None
        Length of a step of SGD and SRG; None is ``1 / (4 L)``, with L the largest curvature of a row's objective.
    """

    name: str
    source: str
    X: Any = field(repr=False)
    y: AnyArray = field(repr=False)
    objective: Objective
    longer: int = 1
    rate: float | None = None

    def describe(self) -> dict[str, Any]:
        """Return the columns of a row that describe the rows."""
        return {
            "source": self.source,
            "features": int(self.X.shape[1]),
            "checksum": checksum_of(self.X, self.y),
            "loss": self.objective.loss,
            "alpha": self.objective.strength,
        }


def one_of_many() -> Problem:
    """Return the mean of 40 numbers, 0 but for one that is 1: El Hanchi and Stephens 2020."""
    numbers = np.zeros(N_NUMBERS)
    numbers[0] = 1.0
    mean = Objective("squared_error", None, fit_intercept=False)
    text = f"{N_NUMBERS} numbers, one of them an outlier"
    return Problem(TOY, text, np.ones((N_NUMBERS, 1)), numbers, mean, _TOY_EPOCHS, 0.01)


def far_targets(rows: int) -> Problem:
    """Return ridge regression on normal rows, 20 of which have targets far off.

    Parameters
    ----------
    rows : int
        Rows, 100 or more.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 10))
    y = X @ rng.standard_normal(10) + 0.1 * rng.standard_normal(rows)
    far = np.arange(0, rows, rows // _FAR_ROWS)[:_FAR_ROWS]
    y[far] += 50.0 * rng.standard_normal(far.size)
    return Problem(
        FAR, f"normal rows, {_FAR_ROWS} of them with targets far off", X, y, Objective("squared_error", "l2", 1e-3)
    )


def of_data(data: StudyData) -> Problem:
    """Return regularised logistic regression on the rows of a set; the largest label is against all others.

    Parameters
    ----------
    data : StudyData
        The set, in float64.
    """
    signs = np.where(data.y == np.max(data.y), 1.0, -1.0)
    return Problem(data.name, data.source, data.X, signs, Objective("log_loss", "l2", 1e-2))
