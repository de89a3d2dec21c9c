"""Claims on methods that differ in their rates, or in how near the optimum they come: fits of one estimator each.

All are on generated rows and simulated ranks, and of several seeds. The optimum is that of L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import minimize

from dsgd.compress import DeMo
from dsgd.datasets import split_rows
from dsgd.estimators import SGDClassifier
from dsgd.local import Adam, Cyclical, OneCycle
from dsgd.report import Claim
from dsgd.sim import SimulatedCluster
from dsgd.study.claims.measure import Measure, Say
from dsgd.study.frame.data import DataSource, load_data
from dsgd.study.published import STATEMENTS, Statement, statements
from dsgd.study.verdict import Interval, difference, ratio
from dsgd.sync import ADMM, AbstractStrategy, LocalSGD, MinibatchSGD
from dsgd.types import FloatMatrix, FloatVector

__all__ = ["MEASURES", "fewest"]

_SEEDS: Final = range(5)
_RANKS: Final = 8
_ALPHA: Final = 1e-4
_SOURCE: Final = DataSource("webspam-like", 4_000, 4_000)
#: How far above the least objective modest accuracy is.
_MODEST: Final = 0.01
#: An exchange an epoch.
_SOLVER: Final = ADMM(4_000 // _RANKS)
_ITERATIONS: Final = range(4, 81, 4)
#: Batches and rates change so often; there are so many of both.
_EPOCHS, _EPOCHS_EACH, _FIRST_RATE, _FIRST_BATCH = 10, 2, 4.0, 32
#: The bounds of cycles, and the fixed rates between them.
_LOW, _PEAK, _FIXED = 0.05, 6.0, (0.05, 0.12, 0.3)
_CYCLE_EPOCHS: Final = 20
_LONG: Final = 40
_SHORTER: Final = (1, 2, 3, 4, 6, 8, 12, 16, 20, 27, 40)
_RATES: Final = (0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class _Problem:
    """A logistic regression, and what may be said of a model."""

    X: FloatMatrix
    y: Any
    X_test: FloatMatrix
    y_test: Any
    name: str

    def fitted(self, seed: int, *, ranks: int = _RANKS, **options: Any) -> SGDClassifier:
        """Return a model that some ranks have trained."""
        model = self.made(seed, ranks=ranks, **options)
        model.fit(self.X, self.y)
        return model

    def made(self, seed: int, *, ranks: int = _RANKS, **options: Any) -> SGDClassifier:
        """Return a model that is not trained."""
        client: Any = SimulatedCluster(ranks, "10GbE") if ranks > 1 else None
        return SGDClassifier(loss="log_loss", alpha=_ALPHA, tol=None, random_state=seed, client=client, **options)

    def objective(self, model: SGDClassifier) -> float:
        """Return the mean loss and the penalty on the training rows."""
        return self._value(np.append(model.coef_[0], model.intercept_[0]))[0]

    def accuracy(self, model: SGDClassifier) -> float:
        """Return the share of test rows that are told."""
        return float(model.score(self.X_test, self.y_test))

    @cached_property
    def least(self) -> float:
        """The least objective that there is."""
        begin = np.zeros(self.X.shape[1] + 1)
        return float(minimize(self._value, begin, jac=True, method="L-BFGS-B", options={"maxiter": 5000}).fun)

    def skewed(self, seed: int) -> _Problem:
        """Return the rows in an order in which every rank has mostly one label."""
        order = np.concatenate(split_rows(self.y, _RANKS, "label-skewed", seed=seed))
        return _Problem(self.X[order], self.y[order], self.X_test, self.y_test, self.name)

    def _value(self, point: FloatVector) -> tuple[float, FloatVector]:
        signs = np.where(self.y == np.unique(self.y)[1], 1.0, -1.0)
        margins = signs * (self.X @ point[:-1] + point[-1])
        slopes = -signs * np.exp(-np.logaddexp(0.0, margins)) / len(signs)
        penalty = 0.5 * _ALPHA * float(point[:-1] @ point[:-1])
        gradient = np.append(self.X.T @ slopes + _ALPHA * point[:-1], slopes.sum())
        return float(np.logaddexp(0.0, -margins).mean()) + penalty, gradient


@lru_cache(maxsize=1)
def _problem() -> _Problem:
    data = load_data(_SOURCE, "float64")
    return _Problem(np.asarray(data.X), data.y, np.asarray(data.X_test), data.y_test, data.name)


def fewest(counts: Sequence[int], reached: Callable[[int], bool]) -> float:
    """Return the first of some ascending counts with which something is reached; infinity if there is none."""
    return next((float(count) for count in counts if reached(count)), np.inf)


def _judged(statement: Statement, found: Interval | None, note: str, baseline: str) -> Claim:
    return (
        statement.not_run(_data(), note) if found is None else statement.judged(_data(), found, note, baseline=baseline)
    )


def _data() -> str:
    return f"{_problem().name}, {_RANKS} simulated ranks"


def _ratio(statement: Statement, above: Mapping[int, float], below: Mapping[int, float], note: str, base: str) -> Claim:
    if not all(0.0 < value < np.inf for value in (*above.values(), *below.values())):
        # What a seed does not reach at all must not be left out of the mean.
        return statement.said(_data(), "not reached with all seeds", "fails", note, baseline=base)
    return _judged(statement, ratio(above, below), note, base)


def _median(values: Mapping[int, float]) -> float:
    return float(np.median(list(values.values())))


def _above(problem: _Problem, seed: int, sync: AbstractStrategy[Any], iterations: int) -> float:
    """Return how far above the least objective a model is after so many exchanges, one an epoch, as a share of it."""
    model = problem.fitted(seed, sync=sync, learning_rate="constant", eta0=0.5, max_iter=iterations)
    return problem.objective(model) / _problem().least - 1.0


def _iterations(out: Path, say: Say) -> list[Claim]:
    del out
    problem, needed, local = _problem(), {}, {}
    rows = _SOLVER.every
    for seed in _SEEDS:
        say(f"seed {seed + 1} of {len(_SEEDS)}")
        above = partial(_above, problem.skewed(seed), seed)
        needed[seed] = fewest(_ITERATIONS, lambda n, above=above: above(_SOLVER, n) <= _MODEST)  # type: ignore[misc]
        local[seed] = fewest(_ITERATIONS, lambda n, above=above: above(LocalSGD(rows), n) <= _MODEST)  # type: ignore[misc]
    note = (
        f"Every rank has rows of mostly one label and walks over its {rows} rows between two exchanges, in place of a "
        "minimum."
    )
    one = dict.fromkeys(needed, 1.0)
    return [_ratio(STATEMENTS["admm/iterations"], needed, one, note, f"{_median(local):.0f} iterations: local SGD")]


def _growing(out: Path, say: Say) -> list[Claim]:
    del out
    problem, labels = _problem(), np.unique(_problem().y)
    objectives, accuracies, updates = ([dict[int, float](), dict[int, float]()] for _ in range(3))
    for seed in _SEEDS:
        say(f"seed {seed + 1} of {len(_SEEDS)}")
        plain: dict[str, Any] = {"learning_rate": "constant", "eta0": _FIRST_RATE}
        sync = MinibatchSGD(_FIRST_BATCH, growth=2.0, growth_every=_EPOCHS_EACH)
        grown = problem.fitted(seed, sync=sync, max_iter=_EPOCHS, **plain)
        falls = problem.made(seed, sync=MinibatchSGD(_FIRST_BATCH), **plain)
        taken = 0
        for epoch in range(_EPOCHS):
            falls.set_params(eta0=_FIRST_RATE / 2.0 ** (epoch // _EPOCHS_EACH))
            falls.partial_fit(problem.X, problem.y, classes=labels)
            taken += falls.ledger_.totals()["rounds"]
        for number, (model, count) in enumerate(((grown, grown.ledger_.totals()["rounds"]), (falls, taken))):
            objectives[number][seed], accuracies[number][seed] = problem.objective(model), problem.accuracy(model)
            updates[number][seed] = float(count)
    note = (
        f"Batches of {_FIRST_BATCH} rows that double every {_EPOCHS_EACH} epochs, beside rates of {_FIRST_RATE:g} that "
        f"are halved as often; {_EPOCHS} epochs."
    )
    return [
        _ratio(STATEMENTS["growing/objective"], objectives[0], objectives[1], note, "1x: a rate that falls"),
        _judged(STATEMENTS["growing/accuracy"], difference(*accuracies), note, "0: a rate that falls"),
        _ratio(STATEMENTS["growing/updates"], updates[1], updates[0], note, "1x: a rate that falls"),
    ]


def _cycles(out: Path, say: Say) -> list[Claim]:
    del out
    problem = _problem()
    objectives: dict[Any, dict[int, float]] = {name: {} for name in ("cycles", "one", *_FIXED)}
    accuracies: dict[Any, dict[int, float]] = {name: {} for name in ("cycles", *_FIXED)}
    faster: dict[int, float] = {}
    rows = len(problem.y)
    for seed in _SEEDS:
        say(f"seed {seed + 1} of {len(_SEEDS)}")
        cycle = Cyclical("triangular2", _PEAK, half_cycle=2 * rows)
        ways: dict[Any, dict[str, Any]] = {"cycles": {"learning_rate": cycle, "eta0": _LOW}}
        ways |= {rate: {"learning_rate": "constant", "eta0": rate} for rate in _FIXED}
        for name, options in ways.items():
            model = problem.fitted(seed, ranks=1, max_iter=_CYCLE_EPOCHS, **options)
            objectives[name][seed], accuracies[name][seed] = problem.objective(model), problem.accuracy(model)
        target = min(
            problem.objective(problem.fitted(seed, ranks=1, max_iter=_LONG, learning_rate="constant", eta0=rate))
            for rate in _FIXED
        )

        def reached(epochs: int, seed: int = seed, target: float = target) -> bool:
            half, tail = int(0.45 * epochs * rows), max(1, int(0.1 * epochs * rows))
            options: dict[str, Any] = {
                "learning_rate": OneCycle(2.0 * _PEAK, half, tail),
                "eta0": _LOW,
                "max_iter": epochs,
            }
            return problem.objective(problem.fitted(seed, ranks=1, **options)) <= target

        faster[seed] = _LONG / fewest(_SHORTER, reached)
    best = min(_FIXED, key=lambda rate: _median(objectives[rate]))
    note = (
        f"{_CYCLE_EPOCHS} epochs: rates of {_LOW:g} to {_PEAK * _LOW:g} in cycles of four epochs, each half "
        f"as high as the one before, beside the best fixed rate, {best:g}."
    )
    changed = difference(accuracies["cycles"], accuracies[best])
    of_one = (
        f"The epochs that a rate up to {2 * _PEAK * _LOW:g} and down again takes to the loss of the best "
        f"fixed rate after {_LONG} epochs. The loss is convex: there are no valleys that large rates would leave."
    )
    claims = [
        _judged(
            STATEMENTS["cyclical/accuracy"], changed, note, f"{_median(accuracies[best]):.2%}: the best fixed rate"
        ),
        _ratio(
            STATEMENTS["cyclical/objective"], objectives["cycles"], objectives[best], note, "1x: the best fixed rate"
        ),
        _ratio(STATEMENTS["one-cycle/epochs"], faster, dict.fromkeys(faster, 1.0), of_one, "1x: the best fixed rate"),
    ]
    return [replace(claim, dataset=f"{problem.name}, one rank") for claim in claims]


def _momentum(out: Path, say: Say) -> list[Claim]:
    del out
    problem, ways = _problem(), ("DeMo", "Adam")
    objectives: dict[tuple[str, float], dict[int, float]] = {way: {} for way in product(ways, _RATES)}
    for seed in _SEEDS:
        say(f"seed {seed + 1} of {len(_SEEDS)}")
        for way, rate in objectives:
            options: dict[str, Any] = {"learning_rate": "invscaling", "power_t": 0.5, "eta0": rate, "max_iter": 4}
            options |= {"optimizer": Adam()} if way == "Adam" else {}
            sync = MinibatchSGD(32, compressor=DeMo() if way == "DeMo" else None)
            objectives[way, rate][seed] = problem.objective(problem.fitted(seed, sync=sync, **options))
    best = {way: min(_RATES, key=lambda rate, way=way: _median(objectives[way, rate])) for way in ways}  # type: ignore[misc]
    ours, theirs = (objectives[way, best[way]] for way in ways)
    note = (
        f"Batches of 32, 4 epochs, rates that fall like the root of the steps, from {best['DeMo']:g} and for Adam from "
        f"{best['Adam']:g}: objectives {_median(ours):.4f} and {_median(theirs):.4f}. Signs send 8 of 64 waves here."
    )
    return [_ratio(STATEMENTS["demo/objective"], ours, theirs, note, "1x: Adam")]


def _what(text: str) -> str:
    return f"{text} {_SOURCE.rows:,} rows of {_SOURCE.name}, {len(_SEEDS)} seeds."


#: The measures of this module.
MEASURES: Final = (
    Measure(
        "iterations",
        statements("admm/iterations"),
        _what(f"Exchanges of ADMM to an objective 1 % above the least; unlike rows on {_RANKS} simulated ranks,"),
        _iterations,
    ),
    Measure(
        "growing",
        statements("growing/objective", "growing/accuracy", "growing/updates"),
        _what(f"Batches that grow beside rates that fall, {_RANKS} simulated ranks,"),
        _growing,
    ),
    Measure(
        "cycles",
        statements("cyclical/accuracy", "cyclical/objective", "one-cycle/epochs"),
        _what("Rates in cycles, and one cycle, beside fixed ones; one rank,"),
        _cycles,
    ),
    Measure(
        "momentum",
        statements("demo/objective"),
        _what(f"DeMo beside Adam on whole gradients, each at the best of four rates; {_RANKS} simulated ranks,"),
        _momentum,
    ),
)
