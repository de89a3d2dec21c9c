"""Claims on methods that differ in their rates, or in how near the optimum they come: fits of one estimator each.

All are on generated rows and simulated ranks, and of several seeds. The optimum is that of L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from dsgd.estimators import SGDClassifier
from dsgd.local import Cyclical, OneCycle
from dsgd.report import Claim
from dsgd.sim import SimulatedCluster
from dsgd.study.frame.data import DataSource, load_data
from dsgd.study.published import STATEMENTS, Interval, Measure, Say, Statement, difference, ratio, statements
from dsgd.sync import MinibatchSGD
from dsgd.types import FloatMatrix, FloatVector

_SEEDS: Final = range(5)
_RANKS: Final = 8
_ALPHA: Final = 1e-4
_SOURCE: Final = DataSource("webspam-like", 4_000, 4_000)
#: Batches and rates change so often; there are so many of both.
_EPOCHS, _EPOCHS_EACH, _FIRST_RATE, _FIRST_BATCH = 10, 2, 4.0, 32
#: The bounds of cycles, and the fixed rates between them.
_LOW, _PEAK, _FIXED = 0.05, 6.0, (0.05, 0.12, 0.3)
_CYCLE_EPOCHS: Final = 20
_LONG: Final = 40
_SHORTER: Final = (1, 2, 3, 4, 6, 8, 12, 16, 20, 27, 40)


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


def _what(text: str) -> str:
    return f"{text} {_SOURCE.rows:,} rows of {_SOURCE.name}, {len(_SEEDS)} seeds."


#: The measures of this module.
MEASURES: Final = (
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
)
