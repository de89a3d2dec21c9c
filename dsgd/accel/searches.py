"""Share work among the fits of a search of scikit-learn.

Problem: a `GridSearchCV` fits every candidate on every split by itself. Fits that differ only in C have similar
solutions and need the same kernel rows. And one fit of a hundred may be too short for loading our solvers to pay, even
if all of them together are not.

Method: while a grid search or a randomized search runs, the fits in its thread know its candidates. The first fit of an
``SVC`` or ``SVR`` on some rows solves all values of C that candidates combine with its other parameters, from the
smallest to the largest, and keeps the solutions for later fits. Rows are recognised by their contents, so they may come
out of a pipeline. scikit-learn does the rest of the search: scores, tables, errors and the best model.

Cost: one hash of the rows per fit, and the memory of the rows of each split (`_MOST_BYTES` at most) until its last C is
taken.

Source: `dsgd.svm.svm_path`, as in `dsgd.model_selection.SVMSearchCV`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, cast

import joblib
import numpy as np
import scipy.sparse as sp

from dsgd.accel.worth import shape_of

#: Rows of the largest problem from which a chain is faster than fits; an SVR has two variables for each.
_LEAST_ROWS: Final = 1500
#: Bytes of rows that are kept for candidates to come; fits beyond that are solved one by one.
_MOST_BYTES: Final = 2**28
_FEWEST_SPLITS: Final = 2
#: Parameters in which fits of a chain may differ: without probabilities the second changes nothing.
_ALONE: Final = ("C", "random_state")

_here: Final = threading.local()


class _Search:
    """A running search, and the chains of solutions that later fits will take."""

    def __init__(self, candidates: Sequence[Mapping[str, Any]], estimator: Any) -> None:
        self.candidates = candidates
        self._steps: dict[str, Any] = {"": estimator, **estimator.get_params()}
        self._chains: dict[str, tuple[Any, set[float], int]] = {}

    def costs(self, plain: type, parameters: Mapping[str, Any]) -> list[float]:
        """Return, ascending, the C of the candidates that share all other parameters with an estimator of a class.

        Steps of other classes may have a C, too, and two steps of this one: then those of a step that has this C.
        """
        found: dict[str, set[float]] = {}
        for candidate in self.candidates:
            for name, value in candidate.items():
                prefix, _, last = name.rpartition("C")
                step = prefix.removesuffix("__")
                if last or (prefix and step == prefix) or not _is_cost(value):
                    continue
                owner = candidate.get(step, self._steps.get(step))
                is_set_above = any(other and step.startswith(f"{other}__") for other in candidate)
                is_other = type(owner) is not plain
                if is_other or is_set_above:
                    continue
                own = cast(Any, owner).get_params(deep=False)  # mypy takes what is of a type for an object
                others = {key: candidate.get(prefix + key, own[key]) for key in own if key not in _ALONE}
                if all(each is parameters[key] or _is_same(each, parameters[key]) for key, each in others.items()):
                    found.setdefault(step, set()).add(float(value))
        return min((sorted(costs) for costs in found.values() if parameters["C"] in costs), key=len, default=[])

    def take(self, key: str, costs: Sequence[float], cost: float, n_bytes: int, solve: Callable[[], Any]) -> Any:
        """Return the model for one C, solving the chain first if needed; None if its rows take too many bytes."""
        if key not in self._chains:
            if n_bytes + sum(each for _, _, each in self._chains.values()) > _MOST_BYTES:
                return None
            self._chains[key] = solve(), set(costs), n_bytes
        path, left, _ = self._chains[key]
        left.discard(cost)
        if not left:
            del self._chains[key]
        return path.estimator(costs.index(cost))


def told(run: Callable[..., None]) -> Callable[..., None]:
    """Return the ``_run_search`` of a search, wrapped so that the fits inside know the candidates."""

    @functools.wraps(run)
    def run_search(self: Any, evaluate_candidates: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        def evaluate(candidate_params: Any, *args: Any, **kwargs: Any) -> Any:
            candidates = list(candidate_params)
            with _running(_Search(candidates, self.estimator)):
                return evaluate_candidates(candidates, *args, **kwargs)

        run(self, evaluate, *args, **kwargs)

    return run_search


@contextlib.contextmanager
def _running(search: _Search) -> Iterator[None]:
    before = getattr(_here, "search", None)
    _here.search = search
    try:
        yield
    finally:
        _here.search = before


def is_searching() -> bool:
    """Return whether a search runs in this thread."""
    return getattr(_here, "search", None) is not None


def n_fits_to_come() -> int:
    """Return how many fits like this one are known to come, itself included."""
    search: _Search | None = getattr(_here, "search", None)
    return 1 if search is None else _FEWEST_SPLITS * len(search.candidates)


def trained_in_chain(estimator: Any, kind: Any, parameters: Mapping[str, Any], X: Any, y: Any, weights: Any) -> Any:
    """Return our model, solved together with other candidates of the search; None where that would not pay."""
    search: _Search | None = getattr(_here, "search", None)
    if search is None or parameters["kernel"] not in ("rbf", "poly", "sigmoid") or parameters["max_iter"] != -1:
        return None
    costs = search.costs(type(estimator), estimator.get_params(deep=False))
    if len(costs) < 2 or _largest_problem(kind, y) < _LEAST_ROWS:
        return None
    if parameters.get("probability", False) not in (False, "deprecated"):
        return None
    if weights is not None and parameters["gamma"] == "scale":
        return None  # in ours weights count for the width, and the first fit finds the one of scikit-learn
    from dsgd.errors import InvalidDataError
    from dsgd.svm import svm_path

    others = {name: value for name, value in parameters.items() if name not in {*_ALONE, "gamma"}}
    key = joblib.hash((kind.__name__, parameters["gamma"], others, X, y, weights))

    def solve() -> Any:
        gammas = [parameters["gamma"]]
        return svm_path(X, y, Cs=costs, gammas=gammas, sample_weight=weights, estimator=kind, **others)

    # What cannot be solved at one C may be at this one: the fit finds out.
    with contextlib.suppress(InvalidDataError):
        model = search.take(key, costs, float(parameters["C"]), _n_bytes(X), solve)
        return None if model is None else model.set_params(**parameters)
    return None


def _is_cost(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 < value < math.inf


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values of a parameter are equal; values that are not plain never are."""
    return isinstance(value, (str, int, float, type(None))) and isinstance(other, type(value)) and value == other


def _largest_problem(kind: Any, y: Any) -> int:
    """Return the number of variables of the largest problem of a fit: of two classes, or of all rows."""
    targets = np.asarray(y)
    if kind.__name__ == "SVR":
        return 2 * len(targets)
    counts = np.unique(targets, return_counts=True)[1].tolist()
    return max((a + b for a, b in combinations(counts, 2)), default=0)


def _n_bytes(X: Any) -> int:
    return 12 * int(X.nnz) if sp.issparse(X) else 8 * math.prod(shape_of(X))
