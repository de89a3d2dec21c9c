"""Searches of scikit-learn that run here, and when that pays."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from numbers import Integral
from typing import Any, Final, Literal, cast

import joblib
import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state

_END: Final = np.iinfo(np.int32).max

#: Solvers that draw, of classes that have several.
_STOCHASTIC: Final = ("sag", "saga")


@contextlib.contextmanager
def drawn_seed(estimator: Any, y: Any) -> Iterator[Any]:
    """Draw what scikit-learn's fit would, so that later draws of a script are the same; return the first as a seed."""
    given = getattr(estimator, "random_state", None)
    if isinstance(given, Integral):
        yield given
        return
    generator = check_random_state(given)
    before = generator.get_state()
    try:
        yield _draw(estimator, y, generator)
    except BaseException:
        generator.set_state(before)
        raise


def _draw(estimator: Any, y: Any, generator: np.random.RandomState) -> int | None:
    name, n_draws = type(estimator).__name__, 1
    if name.startswith("SGD"):
        labels = np.asarray(y)
        n_classes = len(np.unique(labels)) if name == "SGDClassifier" else 0
        # The order, and the rows; of more classes each has a generator of its own, with this seed.
        n_draws = n_classes if n_classes > 2 else 2
        if estimator.early_stopping:
            if n_classes == 2:  # the rows come first
                generator.randint(_END)
                n_draws = 1
            estimator._make_validation_split(labels, sample_mask=np.ones(len(labels), dtype=bool))
    elif name == "PoissonRegressor" or getattr(estimator, "solver", "sag") not in _STOCHASTIC:
        return None
    return int(generator.randint(_END, size=n_draws)[0])


#: A list with the last machine, if there is one, while a loop of similar fits runs in this thread.
_here: Final = threading.local()


@contextlib.contextmanager
def near_fits() -> Iterator[None]:
    """Let the fits of a ``LinearSVC`` that this thread does inside begin at the weights of the one before.

    ``CalibratedClassifierCV`` trains on splits that share most rows. Every fit ends with a duality gap over its own
    rows below ``tol``, so what was taken over cannot show. Source: DeCoste and Wagstaff, KDD 2000 (alpha seeding).
    """
    before = getattr(_here, "last", None)
    _here.last = []
    try:
        yield
    finally:
        _here.last = before


def begin_near(model: Any, parameters: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Return a context to fit one of our ``LinearSVC`` in, which begins near the last one of the same parameters."""
    last = getattr(_here, "last", None)
    return contextlib.nullcontext() if last is None else _begin_near(model, parameters, last)


@contextlib.contextmanager
def _begin_near(model: Any, parameters: Mapping[str, Any], last: list[Any]) -> Iterator[None]:
    if last and last[0][1] == parameters:
        model._near = last[0][0]
    try:
        yield
    finally:
        vars(model).pop("_near", None)
    last[:] = [(model, dict(parameters))]


#: Solvers that are loaded apart from each other.
Kind = Literal["glm", "kernel", "linear", "sgd"]

#: Seconds of scikit-learn's fits after which loading has paid: twice those of loading, as ours take half at most.
WORTH_S: Final = 1.1

#: Below this a call of ours costs more than it saves, loaded or not.
TINY_S: Final = 3e-3

# Generalised linear models of scikit-learn are compiled code as well, and as fast on few rows.
_TINY_FITS: Final[dict[Kind, int]] = {"glm": 30}

#: Seconds of fits whose estimates would be right, which count beside the actual ones where estimates are corrected: a
#: fit of a few rows, which takes a hundred times its estimate to be called at all, says nothing of larger ones.
CONFIDENCE_S: Final = 0.1

# Nanoseconds of LIBSVM per pair of rows, of a row and a support vector in a prediction, and per product of entries in
# either; of LIBLINEAR and of SGD per entry and per row of a pass; and passes.
_PAIR_NS, _PREDICTED_NS, _PRODUCT_NS = 1.5, 35.0, 0.5

# Entries of sparse rows are scattered, and LIBLINEAR passes over them more often; so do models that end at a gradient.
_ENTRY_NS, _SPARSE_NS, _ROW_NS, _PASSES = 1.5, 10.0, 60.0, 20


class Worth:
    """The seconds that this process has spent in fits of scikit-learn that we could have done.

    Loading the solvers takes half a second. They are loaded once the estimate for a fit, plus what scikit-learn's
    solver of the same kind has taken so far, exceeds `WORTH_S`: loading never costs a script more than half of the time
    it has computed (ski rental: Karlin et al. 1988). Predictions of kernel machines count, and fits that a search has
    yet to do.
    """

    def __init__(self) -> None:
        self._spent_s: dict[Kind, float] = defaultdict(float)
        self._estimated_s: dict[Kind, float] = defaultdict(float)
        self._loaded: set[Kind] = set()
        self._lock = threading.Lock()

    def is_ours(self, estimated_s: float, kind: Kind, n_calls: int = 1) -> bool:
        """Return whether our solver should do a call, one of `n_calls`, that would take scikit-learn `estimated_s`."""
        with self._lock:
            spent, estimated = self._spent_s[kind], self._estimated_s[kind]
            seconds = estimated_s * (spent + CONFIDENCE_S) / (estimated + CONFIDENCE_S)
            if seconds < TINY_S * _TINY_FITS.get(kind, 1):
                return False
            return kind in self._loaded or spent + n_calls * seconds > WORTH_S

    def loaded(self, kind: Kind) -> None:
        """Note that our solver is loaded."""
        self._loaded.add(kind)

    def spend(self, seconds: float, estimated_s: float, kind: Kind) -> None:
        """Add the actual and the estimated seconds of a fit by scikit-learn."""
        with self._lock:
            self._spent_s[kind] += seconds
            self._estimated_s[kind] += estimated_s


def estimated_seconds(X: Any, kind: Kind) -> float:
    """Return roughly the seconds of a fit by scikit-learn: LIBSVM with a kernel, otherwise passes over the rows."""
    n_rows, n_columns = shape_of(X)
    entries = float(X.nnz) if sp.issparse(X) else float(n_rows * n_columns)
    if kind == "kernel":
        return 1e-9 * n_rows * (n_rows * _PAIR_NS + entries * _PRODUCT_NS)
    each_ns = _SPARSE_NS if kind != "sgd" and sp.issparse(X) else _ENTRY_NS
    passes = 5 * _PASSES if kind == "glm" else _PASSES
    return 1e-9 * passes * (entries * each_ns + n_rows * _ROW_NS)


def prediction_seconds(X: Any, n_vectors: int) -> float:
    """Return roughly the seconds of a prediction by LIBSVM with so many support vectors."""
    n_rows, n_columns = shape_of(X)
    entries = float(X.nnz) if sp.issparse(X) else float(n_rows * n_columns)
    return 1e-9 * n_vectors * (n_rows * _PREDICTED_NS + entries * _PRODUCT_NS)


def shape_of(X: Any) -> tuple[int, int]:
    """Return the numbers of rows and columns, as far as they are known without a copy."""
    shape = getattr(X, "shape", None)
    if shape is None:
        n_rows = len(X) if hasattr(X, "__len__") else 0
        first: Any = X[0] if n_rows and hasattr(X, "__getitem__") else None
        return n_rows, len(first) if hasattr(first, "__len__") and not isinstance(first, str) else 1
    return (int(shape[0]) if shape else 0), (int(shape[1]) if len(shape) > 1 else 1)


#: Rows of the largest problem from which a chain is faster than fits; an SVR has two variables for each.
_LEAST_ROWS: Final = 1500

#: Bytes of rows that are kept for candidates to come; fits beyond that are solved one by one.
_MOST_BYTES: Final = 2**28
_FEWEST_SPLITS: Final = 2

#: Parameters in which fits of a chain may differ: without probabilities the second changes nothing.
_ALONE: Final = ("C", "random_state")


class _Search:
    """A running search, and the chains of solutions that later fits will take.

    The first fit of an ``SVC`` or ``SVR`` on some rows solves all values of C that candidates combine with its other
    parameters (`dsgd.svm.svm_path`), and keeps the solutions; rows are recognised by their contents, so they may come
    out of a pipeline. Cost: one hash of the rows per fit, and the rows of each split (`_MOST_BYTES` at most) until its
    last C.
    """

    def __init__(self, candidates: Sequence[Mapping[str, Any]], estimator: Any) -> None:
        self.candidates = candidates
        self._steps: dict[str, Any] = {"": estimator, **estimator.get_params()}
        self._chains: dict[str, tuple[Any, set[float], int]] = {}

    def costs(self, plain: type, parameters: Mapping[str, Any]) -> list[float]:
        """Return, ascending, the C of the candidates that share all other parameters with an estimator."""
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
