"""Chains of candidates: those that differ in C alone, by ascending C, on the training rows of one split.

Two routes lead along a chain, and both end at every point as a cold fit does, to its tolerance:

* a path (`dsgd.svm.svm_path`), where a point starts from the one before and they share kernel rows. Where rows are so
  wide that a path keeps distances for its other widths, chains that differ in gamma alone follow one path;
* fits. Problems of few rows are solved faster by the solvers that a fit has for them (`dsgd.svm.kernel_solver.direct`,
  `dsgd.svm.kernel_solver.class_pairs`, and `dsgd.svm.kernel_solver.linear_start` for linear ones): to begin near the
  solution saves a seventh of the steps there, and hardly any time.

On either, a machine that has no variable at its upper bound is that of every larger C: higher bounds let no variable
move that could not move before. So it is neither solved nor scored again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final

import numpy as np
from sklearn.base import clone

from dsgd.errors import InvalidDataError
from dsgd.svm import SVC, SVR, svm_path
from dsgd.svm.kernels.distances import share_pays
from dsgd.types import AnyArray

#: The rows of the largest problem from which a path is faster than fits.
LEAST_ON_PATH: Final = 1500

#: What is rounded where equal rows share a coefficient.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Chain:
    """Candidates that differ in C, or in C and gamma, alone."""

    model: Any
    costs: tuple[float, ...]
    gammas: tuple[Any, ...]
    members: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Split:
    """The rows that a chain is solved on."""

    X: Any
    y: AnyArray
    weights: AnyArray | None


@dataclass(frozen=True)
class Point:
    """One point of a chain."""

    members: tuple[int, ...]
    is_first: bool
    make: Callable[[], Any]
    seconds: float


def make_chains(candidates: Sequence[Any], settings: Sequence[Mapping[str, Any]], *, join: bool) -> list[Chain]:
    """Return the chains of candidates; with `join` those that have all C in common are one for all gammas."""
    found: dict[str, dict[float, list[int]]] = {}
    for number, (candidate, setting) in enumerate(zip(candidates, settings, strict=True)):
        others = repr(sorted((name, value) for name, value in setting.items() if name not in ("C", "gamma")))
        key = f"{others} {candidate.gamma!r}"
        found.setdefault(key, {}).setdefault(float(candidate.C), []).append(number)
    groups: dict[str, list[list[tuple[float, list[int]]]]] = {}
    for key, by_cost in found.items():
        points = sorted(by_cost.items())
        others = key.rpartition(" ")[0]
        groups.setdefault(f"{others} {[cost for cost, _ in points]}" if join else key, []).append(points)
    chains = []
    for group in groups.values():
        widths = tuple(candidates[points[0][1][0]].gamma for points in group)
        members = tuple(tuple(numbers) for points in group for _, numbers in points)
        costs = tuple(cost for cost, _ in group[0])
        chains.append(Chain(candidates[members[0][0]], costs, widths, members))
    return chains


def follows_path(model: Any, y: AnyArray, n_points: int) -> bool:
    """Return whether the chain of a model follows a path on rows with these targets, not point by point."""
    has_curves = getattr(model, "probability", False) not in (False, "deprecated")
    if has_curves or model.solver != "block" or n_points == 1:
        return False
    if model.client is not None:  # where a gang starts once for all points
        return True
    if isinstance(model.kernel, str) and model.kernel == "linear":
        return False
    if isinstance(model, SVR):
        return 2 * len(y) >= LEAST_ON_PATH  # two variables for each row
    counts = np.unique(y, return_counts=True)[1].tolist()
    return max((a + b for a, b in combinations(counts, 2)), default=0) >= LEAST_ON_PATH


def make_points(chain: Chain, split: Split, n_jobs: int | None) -> Iterator[Point]:
    """Yield the points of a chain, all C of the first gamma, then of the next."""
    model = chain.model if n_jobs is None else clone(chain.model).set_params(n_jobs=n_jobs)
    spent, path = [0.0] * len(chain.members), None
    if follows_path(model, split.y, len(chain.members)):
        begin = time.perf_counter()
        options = {key: value for key, value in model.get_params(deep=False).items() if key not in ("C", "gamma")}
        kind, weights = SVC if isinstance(model, SVC) else SVR, split.weights
        # What cannot be solved at one width may be at others: fits find out.
        with contextlib.suppress(InvalidDataError):
            path = svm_path(
                split.X, split.y, Cs=chain.costs, gammas=chain.gammas, sample_weight=weights, estimator=kind, **options
            )
            seconds = [point.seconds for point in path.points]
            rest = max(0.0, time.perf_counter() - begin - sum(seconds)) / len(seconds)
            spent = [each + rest for each in seconds]

    def make(number: int) -> Any:
        if path is not None:
            return path.estimator(number)
        width, cost = divmod(number, len(chain.costs))
        point = clone(model).set_params(C=chain.costs[cost], gamma=chain.gammas[width])
        return point.fit(split.X, split.y, sample_weight=split.weights)

    for number, members in enumerate(chain.members):
        yield Point(members, number % len(chain.costs) == 0, partial(make, number), spent[number])


def is_inside(model: Any, split: Split) -> bool:
    """Return whether a fitted model has no variable at its upper bound, so that it is that of every larger C."""
    support = model.support_
    weights = np.ones(len(support)) if split.weights is None else np.asarray(split.weights, np.float64)[support]
    if isinstance(model, SVC):
        upper = model._bounds(np.searchsorted(model.classes_, split.y[support]), weights)
    else:
        upper = model._bounds(weights)
    return bool(model.converged_ and (np.abs(model._dense_coefs()) < (1.0 - _ROUNDING) * upper).all())


def shares_distances(estimator: Any, X: Any) -> bool:
    """Return whether a path over rows keeps their distances for its other widths."""
    return not callable(estimator.kernel) and hasattr(X, "shape") and share_pays(X)
