"""The problems of the study of elimination: real sets and generated ones.

Elimination depends on samples that settle at a bound early. The generated sets differ in exactly this: clean clusters
(few samples matter), randomly flipped labels (half of these samples stay at C), a checkerboard with a large C (few
support vectors, many steps) and clusters in so many dimensions that nearly every support vector is free.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from dsgd.datasets import load
from dsgd.errors import InvalidParameterError
from dsgd.study.frame.data import checksum_of, density, file_names
from dsgd.types import AnyArray, FloatMatrix, FloatVector


@dataclass(frozen=True)
class Problem:
    """A training set and the settings of the machine."""

    name: str
    rows: int
    C: float
    gamma: float | str = "scale"
    text: str = ""

    def __post_init__(self) -> None:
        if self.rows < 100:
            raise InvalidParameterError(f"Problem({self.name!r}, rows={self.rows}): a study needs at least 100 rows.")
        if not self.C > 0:
            raise InvalidParameterError(f"Problem({self.name!r}, C={self.C}): C must be above 0.")


#: Name -> problem, in the order of the report.
PROBLEMS: Final[Mapping[str, Problem]] = MappingProxyType(
    {
        problem.name: problem
        for problem in (
            Problem("clean", 20_000, 10.0, text="clusters in 20 dimensions, no noise"),
            Problem("noisy", 20_000, 1.0, text="clusters in 20 dimensions, a fifth of the labels drawn at random"),
            Problem("checkerboard", 20_000, 1000.0, 10.0, text="4 x 4 fields in two dimensions, large C"),
            Problem("free-svs", 6_000, 10.0, text="20 clusters in 784 dimensions: nearly all support vectors are free"),
            Problem("a9a", 32_561, 1.0, text="census income, sparse"),
            Problem("w8a", 49_749, 10.0, text="web pages, sparse"),
            Problem("ijcnn1", 49_990, 10.0, text="engine misfires"),
            Problem("covtype", 20_000, 10.0, text="forest cover, the second class against the others, standardised"),
            Problem("mnist", 10_000, 10.0, text="digits, odd against even, scaled to [0, 1]"),
            Problem("usps", 7_291, 10.0, text="digits, ten classes one against one"),
        )
    }
)


@dataclass(frozen=True, eq=False)
class ProblemData:
    """The rows of a problem."""

    problem: Problem
    source: str
    X: Any = field(repr=False)
    y: AnyArray = field(repr=False)
    y_test: Sequence[Any] = ()

    @property
    def name(self) -> str:
        """The name of the problem."""
        return self.problem.name

    def describe(self) -> dict[str, Any]:
        """Return the columns of a row that describe the data."""
        return {
            "text": self.problem.text,
            "source": self.source,
            "checksum": checksum_of(self.X, self.y),
            "features": int(self.X.shape[1]),
            "classes": len(np.unique(self.y)),
            "density": density(self.X),
        }


def find_problem(name: str) -> Problem:
    """Return the problem of a name."""
    if name not in PROBLEMS:
        raise InvalidParameterError(f"unknown problem {name!r}; choose from {', '.join(PROBLEMS)}")
    return PROBLEMS[name]


def load_problem(problem: Problem, *, data_home: str | os.PathLike[str] | None = None) -> ProblemData:
    """Generate or load the rows of a problem, without downloads."""
    if problem.name in _GENERATED:
        X, y = _GENERATED[problem.name](problem.rows, np.random.default_rng(0))
        return ProblemData(problem, f"generated, seed 0: {problem.text}", X, y)
    name, shape = _REAL[problem.name]
    data = load(name, download=False, data_home=data_home)
    X, y = shape(data.X, data.y)
    if problem.rows < len(y):
        chosen = np.sort(np.random.default_rng(0).choice(len(y), problem.rows, replace=False))
        X, y = X[chosen], y[chosen]
    return ProblemData(replace(problem, rows=len(y)), file_names(data.source), X, y)


# -- generated -----------------------------------------------------------------------------------------------------


def _clusters(n: int, rng: np.random.Generator, *, noise: float) -> tuple[FloatMatrix, FloatVector]:
    """Return ten Gaussian clusters in 20 dimensions, five of each class; a share of the labels is drawn at random."""
    centres = rng.choice([-1.0, 1.0], (10, 20)) * (rng.random((10, 20)) < 0.5)
    which = rng.integers(0, 10, n)
    X = centres[which] + rng.normal(size=(n, 20)) * rng.uniform(0.6, 1.4, (10, 20))[which]
    y = np.where(which % 2 == 0, 1.0, -1.0)
    anew = rng.random(n) < noise
    y[anew] = rng.choice([-1.0, 1.0], int(anew.sum()))
    return X, y


def _checkerboard(n: int, rng: np.random.Generator) -> tuple[FloatMatrix, FloatVector]:
    X = rng.uniform(0.0, 4.0, (n, 2))
    return X, np.where(np.floor(X).sum(axis=1) % 2 == 0, 1.0, -1.0)


def _free(n: int, rng: np.random.Generator) -> tuple[FloatMatrix, FloatVector]:
    centres = rng.normal(size=(20, 784))
    which = rng.integers(0, 20, n)
    return centres[which] + 1.5 * rng.normal(size=(n, 784)), np.where(which % 2 == 0, 1.0, -1.0)


_GENERATED: Final[Mapping[str, Callable[[int, np.random.Generator], tuple[FloatMatrix, FloatVector]]]] = {
    "clean": lambda n, rng: _clusters(n, rng, noise=0.0),
    "noisy": lambda n, rng: _clusters(n, rng, noise=0.2),
    "checkerboard": _checkerboard,
    "free-svs": _free,
}


# -- real ----------------------------------------------------------------------------------------------------------


def _as_is(X: Any, y: FloatVector) -> tuple[Any, FloatVector]:
    return X, y


def _second_class(X: Any, y: FloatVector) -> tuple[Any, FloatVector]:
    X = np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)
    deviation = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), np.where(y == 2, 1.0, -1.0)


def _odd_digits(X: Any, y: FloatVector) -> tuple[Any, FloatVector]:
    X = np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)
    return X / X.max(), np.where(y % 2 == 1, 1.0, -1.0)


_REAL: Final[Mapping[str, tuple[str, Callable[[Any, FloatVector], tuple[Any, FloatVector]]]]] = {
    "a9a": ("a9a", _as_is),
    "w8a": ("w8a", _as_is),
    "ijcnn1": ("ijcnn1", _as_is),
    "covtype": ("covtype-subset", _second_class),
    "mnist": ("mnist", _odd_digits),
    "usps": ("usps", _as_is),
}
