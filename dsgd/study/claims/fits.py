"""Claims on methods that differ in their rates: fits of one estimator each, on generated rows and of several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from dsgd.estimators import SGDClassifier
from dsgd.local import Cyclical, OneCycle
from dsgd.report import Claim
from dsgd.sim import SimulatedCluster
from dsgd.study.frame.data import DataSource, StudyData, load_data, objective
from dsgd.study.published import STATEMENTS, Interval, Measure, Say, difference, ratio, statements
from dsgd.sync import MinibatchSGD

_SEEDS: Final = range(10)
_RANKS: Final = 8
_ALPHA: Final = 1e-4
_SOURCE: Final = DataSource("webspam-like", 4_000, 4_000)
#: Batches and rates change so often; there are so many of both.
_EPOCHS, _EPOCHS_EACH, _FIRST_RATE, _FIRST_BATCH = 10, 2, 4.0, 32
#: The bounds of cycles, and fixed rates between them and beyond.
_LOW, _PEAK, _FIXED = 0.05, 6.0, (0.02, 0.05, 0.12, 0.3, 0.75, 1.8)
_CYCLE_EPOCHS: Final = 20
_LONG: Final = 40
_SHORTER: Final = (1, 2, 3, 4, 6, 8, 12, 16, 20, 27, 40)


@lru_cache(maxsize=1)
def _data() -> StudyData:
    return load_data(_SOURCE, "float64")


def _made(seed: int, ranks: int = _RANKS, **options: Any) -> SGDClassifier:
    """Return a logistic regression of some ranks that is not trained."""
    client: Any = SimulatedCluster(ranks, "10GbE") if ranks > 1 else None
    return SGDClassifier(loss="log_loss", alpha=_ALPHA, tol=None, random_state=seed, client=client, **options)


def _worth(model: SGDClassifier) -> tuple[float, float]:
    """Return the training objective of a model, and its accuracy on test rows."""
    data = _data()
    found = objective(model, data.X, data.y, loss="log_loss", alpha=_ALPHA)
    return found, float(model.score(data.X_test, data.y_test))


def _fitted(seed: int, ranks: int = _RANKS, **options: Any) -> tuple[SGDClassifier, float, float]:
    """Return a model that some ranks have trained, its objective and its accuracy."""
    model = _made(seed, ranks, **options).fit(_data().X, _data().y)
    return model, *_worth(model)


def fewest(counts: Sequence[int], reached: Callable[[int], bool]) -> float:
    """Return the first of some ascending counts with which something is reached; infinity if there is none."""
    return next((float(count) for count in counts if reached(count)), np.inf)


#: The name of a control, and its figure.
_Control: TypeAlias = tuple[str, Interval | None]


def _judged(
    key: str, found: Interval | None, note: str, baseline: str, ranks: str, control: _Control | None = None
) -> Claim:
    statement = STATEMENTS[key]
    controls = [statement.control(*control)] if control else []
    data, tuned = f"{_data().name}, {ranks}", "yes" if "cycl" in key else "no"
    return statement.judged(data, found, note, baseline=baseline, controls=controls, tuned=tuned)


def _ratio(
    key: str,
    above: Mapping[int, float],
    below: Mapping[int, float],
    note: str,
    baseline: str,
    ranks: str,
    control: _Control | None = None,
) -> Claim:
    if not all(0.0 < value < np.inf for value in (*above.values(), *below.values())):
        # What a seed does not reach at all must not be left out of the mean.
        data = f"{_data().name}, {ranks}"
        return STATEMENTS[key].said(data, "not reached with all seeds", "fails", note, baseline=baseline)
    return _judged(key, ratio(above, below), note, baseline, ranks, control)


def _growing(out: Path, say: Say) -> list[Claim]:
    del out
    data, labels = _data(), np.unique(_data().y)
    # Of batches that grow, and of rates that fall: objective, accuracy and updates by seed.
    found: list[list[dict[int, float]]] = [[{}, {}, {}], [{}, {}, {}]]
    # Of neither: the rate and the batch stay.
    still: list[dict[int, float]] = [{}, {}]
    for seed in _SEEDS:
        say(f"seed {seed + 1} of {len(_SEEDS)}")
        plain: dict[str, Any] = {"learning_rate": "constant", "eta0": _FIRST_RATE}
        sync = MinibatchSGD(_FIRST_BATCH, growth=2.0, growth_every=_EPOCHS_EACH)
        grown, *of_grown = _fitted(seed, sync=sync, max_iter=_EPOCHS, **plain)
        falls, taken = _made(seed, sync=MinibatchSGD(_FIRST_BATCH), **plain), 0
        for epoch in range(_EPOCHS):
            falls.set_params(eta0=_FIRST_RATE / 2.0 ** (epoch // _EPOCHS_EACH))
            falls.partial_fit(data.X, data.y, classes=labels)
            taken += falls.ledger_.totals()["rounds"]
        _, still[0][seed], still[1][seed] = _fitted(seed, sync=MinibatchSGD(_FIRST_BATCH), max_iter=_EPOCHS, **plain)
        values = (*of_grown, float(grown.ledger_.totals()["rounds"])), (*_worth(falls), float(taken))
        for own, three in zip(found, values, strict=True):
            for by_seed, value in zip(own, three, strict=True):
                by_seed[seed] = value
    note = (
        f"Batches of {_FIRST_BATCH} rows that double every {_EPOCHS_EACH} epochs, beside rates of {_FIRST_RATE:g} that "
        f"are halved as often; {_EPOCHS} epochs."
    )
    (objectives, accuracies, updates), (of_falls, falls_accuracies, falls_updates) = found
    ranks, fall = f"{_RANKS} simulated ranks", "a rate that falls"
    return [
        _ratio(
            "growing/objective",
            objectives,
            of_falls,
            note,
            f"1x: {fall}",
            ranks,
            ("neither changes", ratio(still[0], of_falls)),
        ),
        _judged(
            "growing/accuracy",
            difference(accuracies, falls_accuracies),
            note,
            f"0: {fall}",
            ranks,
            ("neither changes", difference(still[1], falls_accuracies)),
        ),
        _ratio("growing/updates", falls_updates, updates, note, f"1x: {fall}", ranks),
    ]


def _cycles(out: Path, say: Say) -> list[Claim]:
    del out
    objectives: dict[Any, dict[int, float]] = {name: {} for name in ("cycles", *_FIXED)}
    accuracies: dict[Any, dict[int, float]] = {name: {} for name in ("cycles", *_FIXED)}
    faster, rows = dict[int, float](), len(_data().y)
    for seed in _SEEDS:
        say(f"seed {seed + 1} of {len(_SEEDS)}")
        cycle = Cyclical("triangular2", _PEAK, half_cycle=2 * rows)
        ways: dict[Any, dict[str, Any]] = {"cycles": {"learning_rate": cycle, "eta0": _LOW}}
        ways |= {rate: {"learning_rate": "constant", "eta0": rate} for rate in _FIXED}
        for name, options in ways.items():
            _, objectives[name][seed], accuracies[name][seed] = _fitted(seed, 1, max_iter=_CYCLE_EPOCHS, **options)
        target = min(_fitted(seed, 1, max_iter=_LONG, learning_rate="constant", eta0=rate)[1] for rate in _FIXED)

        def reached(epochs: int, seed: int = seed, target: float = target) -> bool:
            half, tail = int(0.45 * epochs * rows), max(1, int(0.1 * epochs * rows))
            schedule = OneCycle(2.0 * _PEAK, half, tail)
            return _fitted(seed, 1, learning_rate=schedule, eta0=_LOW, max_iter=epochs)[1] <= target

        faster[seed] = _LONG / fewest(_SHORTER, reached)
    best = min(_FIXED, key=lambda rate: float(np.median(list(objectives[rate].values()))))
    note = (
        f"{_CYCLE_EPOCHS} epochs: rates of {_LOW:g} to {_PEAK * _LOW:g} in cycles of four epochs, each half "
        f"as high as the one before, beside the best fixed rate, {best:g}."
    )
    of_one = (
        f"The epochs that a rate up to {2 * _PEAK * _LOW:g} and down again takes to the loss of the best "
        f"fixed rate after {_LONG} epochs. The loss is convex: there are no valleys that large rates would leave."
    )
    worst = max(_FIXED, key=lambda rate: float(np.median(list(objectives[rate].values()))))
    untuned = f"a fixed rate of {worst:g}"
    changed, fixed, once = difference(accuracies["cycles"], accuracies[best]), "the best fixed rate", "one rank"
    share = f"{np.median(list(accuracies[best].values())):.2%}: {fixed}"
    return [
        _judged(
            "cyclical/accuracy", changed, note, share, once, (untuned, difference(accuracies[worst], accuracies[best]))
        ),
        _ratio(
            "cyclical/objective",
            objectives["cycles"],
            objectives[best],
            note,
            f"1x: {fixed}",
            once,
            (untuned, ratio(objectives[worst], objectives[best])),
        ),
        _ratio("one-cycle/epochs", faster, dict.fromkeys(faster, 1.0), of_one, f"1x: {fixed}", once),
    ]


def _what(text: str) -> str:
    return f"{text} {_SOURCE.rows:,} rows of {_SOURCE.name}, {len(_SEEDS)} seeds."


#: The measures of this module.
MEASURES: Final = (
    Measure(
        "growing", statements("growing/objective", "growing/accuracy", "growing/updates"),
        _what(f"Batches that grow beside rates that fall, {_RANKS} simulated ranks,"), _growing,
    ),
    Measure(
        "cycles", statements("cyclical/accuracy", "cyclical/objective", "one-cycle/epochs"),
        _what("Rates in cycles, and one cycle, beside fixed ones; one rank,"), _cycles,
    ),
)  # fmt: skip
