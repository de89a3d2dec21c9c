"""Claims on the rate of local gradient descent: logistic regression on unlike clients whose rows a plane separates.

Update, as Crawshaw, Woodworth and Liu 2025 (arXiv 2501.13790 and 2506.13974): each of M clients takes K steps
``w_m <- w_m - eta grad F_m(w_m)`` along the whole gradient of its mean loss, then all have the mean of these models; R
rounds. Rows are at most one long, so that gradients change by H = 1/4 at most. Theory for any smooth convex loss wants
eta below 1 / (K H), where the loss is one over R and more local steps bring nothing.

These are the steps of ``SGDClassifier(loss="log_loss", penalty=None, fit_intercept=False, optimizer=Momentum(0.0,
batch=n), sync=LocalSGD(K * n))`` on n rows a client, repeated. Here seeds and rates are one array, so that thousands of
rounds take seconds; `by_estimator` is that fit, beside which every measure holds a run of these.

Of separable rows with the margin g the loss tends to ``1 / (g^2 eta K R)``: all three powers are -1, and so is the
constant. How many rounds are enough depends on the margin; one set for which they are not is measured, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from scipy.special import expit
from sklearn.datasets import load_digits

from dsgd.estimators import SGDClassifier
from dsgd.local import Momentum
from dsgd.report import Claim
from dsgd.sim import SimulatedCluster
from dsgd.study.published import STATEMENTS, Interval, Measure, Say, across, average, statements
from dsgd.svm import LinearSVC
from dsgd.sync import LocalSGD
from dsgd.types import AnyArray, FloatMatrix, FloatVector

_SEEDS: Final = range(10)
_ROUNDS: Final = 2_048
#: Rounds at which losses are compared.
_LATE: Final = (1_024, 1_448, _ROUNDS)
_EVERY: Final = (1, 4, 16)
#: One over H, beyond which a single step may overshoot.
_UNIT: Final = 4.0
_STEPS: Final = (1.0, 4.0, 16.0, 64.0)
_LARGEST: Final = 256.0
#: Rounds at the classical step before the large one.
_WARM_UP: Final = 32
_CHECKED: Final = 32

_STAGES: Final = "two stages"
_SMALL: Final = "a step of 1/(K H)"
_ONCE: Final = "one average"
_BOTH: Final = "rows that no plane separates"
_CALM: Final = "the loss at a step of 1/(K H)"


def pair(seed: int) -> AnyArray:
    """Return two clients with a row each, which point in nearly opposite directions and are unlike in length."""
    rng = np.random.default_rng(seed)
    near, short = rng.uniform(0.2, 0.3), rng.uniform(0.3, 0.6)
    far = np.sqrt(1.0 - near**2)
    return np.array([[[near, far]], [[short * near, -short * far]]])


def opposed(seed: int) -> AnyArray:
    """Return four clients with ten rows of ten columns, two and two in opposite directions, of unlike lengths."""
    rng = np.random.default_rng(seed)
    Z = 0.2 * rng.standard_normal((4, 10, 10))
    for client, size in enumerate((1.0, 1.0, -0.4, -0.4)):
        Z[client, :, 1] += size * rng.uniform(0.3, 1.0, 10)
    Z[:, :, 0] = 0.08 * rng.uniform(1.0, 2.0, (4, 10))
    return _within_one(Z)


def digits(seed: int) -> AnyArray:
    """Return five clients with ten images each: one has zeros, the others have the digits to be told from them."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    drawn = [
        rng.choice(np.flatnonzero(np.isin(y, own)), 10, replace=False)
        for own in ((0,), (1, 2), (3, 4), (5, 6), (7, 8, 9))
    ]
    return _within_one(np.where(y == 0, 1.0, -1.0)[drawn][..., None] * X[drawn])


def odd_or_even(seed: int) -> AnyArray:
    """Return five clients with forty images of two digits each, odd or even: a margin of a hundredth or less."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(np.flatnonzero(y // 2 == client), 40, replace=False) for client in range(5)]
    return _within_one(np.where(y % 2, 1.0, -1.0)[drawn][..., None] * X[drawn])


#: Rows of clients by problem, each times its label: shape (n_clients, n_rows, n_columns).
PROBLEMS: Final[Mapping[str, Callable[[int], AnyArray]]] = MappingProxyType(
    {"two rows": pair, "opposed groups": opposed, "digits": digits}
)


def _within_one(Z: AnyArray) -> AnyArray:
    scaled: AnyArray = Z / np.linalg.norm(Z, axis=-1).max()
    return scaled


def losses(Z: AnyArray, rates: FloatMatrix, every: int) -> AnyArray:
    """Return the loss of the mean model after each round, shape (n_rounds, n_problems, n_schedules).

    - Z, shape (n_problems, n_clients, n_rows, n_columns): rows times labels.
    - rates, shape (n_rounds, n_schedules): the step of each round.
    """
    (problems, clients, n, columns), schedules = Z.shape, rates.shape[1]
    own = np.repeat(Z[:, None], schedules, axis=1).reshape(-1, n, columns)
    turned, whole = np.ascontiguousarray(own.transpose(0, 2, 1)), own.reshape(-1, clients * n, columns)
    models, found = np.zeros((problems * schedules, columns, 1)), np.empty((len(rates), problems * schedules))
    for at, row in enumerate(rates):
        step = np.tile(np.repeat(row / n, clients), problems)[:, None, None]
        local = np.repeat(models, clients, axis=0)
        for _ in range(every):
            local = local + step * (turned @ expit(-(own @ local)))
        models = local.reshape(-1, clients, columns, 1).mean(axis=1)
        found[at] = np.logaddexp(0.0, -(whole @ models)).mean(axis=(1, 2))
    return found.reshape(len(rates), problems, schedules)


def by_estimator(Z: AnyArray, rate: float, every: int, rounds: int) -> FloatVector:
    """Return the losses of one problem at a constant step, shape (n_rounds,), as the estimator trains it."""
    clients, n, columns = Z.shape
    labels = np.where(np.arange(clients * n) % 2, 1.0, -1.0)
    X = Z.reshape(-1, columns) * labels[:, None]
    blocks = [
        (np.tile(own, (every, 1)), np.tile(of_own, every))
        for own, of_own in zip(X.reshape(clients, n, columns), labels.reshape(clients, n), strict=True)
    ]
    model = SGDClassifier(
        loss="log_loss", penalty=None, fit_intercept=False, learning_rate="constant", eta0=rate, shuffle=False,
        optimizer=Momentum(0.0, batch=n), sync=LocalSGD(every * n), client=SimulatedCluster(clients), max_iter=rounds,
        tol=None, early_stopping=True, n_iter_no_change=rounds + 1, random_state=0,
        scoring=lambda model, X, y: -float(np.logaddexp(0.0, -y * (X @ model.coef_[0])).mean()),
    )  # fmt: skip
    return -np.array(model.fit(blocks, None, X_val=X, y_val=labels).history_[:, "valid_score"])


def powers(cells: Mapping[tuple[float, ...], FloatVector]) -> FloatMatrix:
    """Return the power of each factor in positive figures, shape (n_factors, n_problems): least squares of logs."""
    design = np.column_stack([np.log(list(cells)), np.ones(len(cells))])
    found: FloatMatrix = np.linalg.lstsq(design, np.log(list(cells.values())), rcond=None)[0][:-1]
    return found


def margin_of(Z: AnyArray) -> float:
    """Return the margin of rows: the least distance from the best plane through zero."""
    labels = np.where(np.arange(Z[..., 0].size) % 2, 1.0, -1.0)
    model = LinearSVC(C=1e6, loss="hinge", fit_intercept=False, tol=1e-6, max_iter=100_000)
    return 1.0 / float(np.linalg.norm(model.fit(Z.reshape(-1, Z.shape[-1]) * labels[:, None], labels).coef_))


def _column(step: float) -> FloatMatrix:
    return np.full((_ROUNDS, 1), step)


def _late(curves: Mapping[int, AnyArray]) -> dict[tuple[float, ...], FloatVector]:
    """Return the late losses by steps between averages and rounds, of losses of shape (n_rounds, n_seeds)."""
    return {(every, after): of[after - 1] for every, of in curves.items() for after in _LATE}


def _figures(make: Callable[[int], AnyArray]) -> dict[str, AnyArray]:
    """Return the figures of a problem by what they are of, each of shape (n_figures, n_seeds)."""
    Z = np.stack([make(seed) for seed in _SEEDS])
    # A row of either label on each client: no plane separates them.
    both = np.concatenate([Z, -Z[:, :, :1]], axis=2)
    curves, once = defaultdict[Any, dict[int, AnyArray]](dict), dict[tuple[float, ...], FloatVector]()
    for every in _EVERY:
        small = _column(_UNIT / every)
        rates: dict[Any, FloatMatrix] = {_SMALL: small}
        rates[_STAGES] = np.concatenate([small[:_WARM_UP], _column(_UNIT)[_WARM_UP:]])
        rates |= {step: _column(step) for step in (*_STEPS, _LARGEST)}
        for at, curve in zip(rates, np.moveaxis(losses(Z, np.hstack(list(rates.values())), every), 2, 0), strict=True):
            curves[at][every] = curve
        curves[_BOTH][every] = losses(both, _column(_UNIT), every)[:, :, 0]
        once[every,] = losses(Z, _column(_UNIT)[:1], every * _ROUNDS)[0, :, 0]
    most = _EVERY[-1]
    constant = {(step, *at): of for step in _STEPS for at, of in _late(curves[step]).items()}
    highest = {at: curves[at][most].max(axis=0, keepdims=True) / np.log(2.0) for at in (_SMALL, _LARGEST)}
    # What steps times losses tend to.
    limit = 1.0 / (np.array([margin_of(one) for one in Z]) ** 2 * most * _ROUNDS)
    rises = np.diff(curves[_LARGEST][most], axis=0) > 0.0
    ours = by_estimator(Z[0], _STEPS[-1], most, _CHECKED)
    return {
        "localgd/rate": powers(_late(curves[_STAGES])), _SMALL: powers(_late(curves[_SMALL])), _ONCE: powers(once),
        "localgd/instability": powers(constant), _BOTH: powers(_late(curves[_BOTH])),
        "localgd/unstable": highest[_LARGEST], _CALM: highest[_SMALL],
        "law": np.array([step * curves[step][most][-1] / limit for step in (*_STEPS, _LARGEST)]),
        "rises": np.where(rises.any(axis=0), _ROUNDS - np.argmax(rises[::-1], axis=0), 0)[None],
        "off": np.abs(ours / curves[_STEPS[-1]][most][:_CHECKED, 0] - 1.0)[:, None],
    }  # fmt: skip


def _means(figures: AnyArray) -> list[Interval]:
    """Return the mean of each figure over the seeds."""
    return [one for row in figures if (one := average(dict(enumerate(row)))) is not None]


def _claim(key: str, found: Mapping[str, Mapping[str, AnyArray]], controls: Mapping[str, float], note: str) -> Claim:
    """Return a claim on all figures of all problems, with its controls and what each is furthest from."""
    statement = STATEMENTS[key]
    parts = {name: [one for of in found.values() for one in _means(of[name])] for name in (key, *controls)}
    # A control is judged by what of it is furthest from a value.
    made = [
        statement.control(name, max(parts[name], key=lambda one: abs(one.estimate - aim)))
        for name, aim in controls.items()
    ]
    each = (f"{name} {', '.join(one.text(statement.form) for one in _means(of[key]))}" for name, of in found.items())
    where = f"{len(PROBLEMS)} problems, 2 to 5 clients"
    return statement.judged(
        where, across(parts[key], len(_SEEDS)), f"{note} {'; '.join(each)}.", controls=made, tuned="no"
    )


def _measured(out: Path, say: Say) -> list[Claim]:
    del out
    found = {}
    for number, (name, make) in enumerate(PROBLEMS.items()):
        say(f"{number + 1} of {len(PROBLEMS)}: {name}")
        found[name] = _figures(make)
    hard = np.stack([odd_or_even(seed) for seed in _SEEDS[:3]])
    early = powers(_late({every: losses(hard, _column(_UNIT), every)[:, :, 0] for every in _EVERY})).mean(axis=1)
    least = min(map(margin_of, hard))
    law = np.array([of["law"].mean(axis=1) for of in found.values()])
    off, rises = (max(float(of[key].max()) for of in found.values()) for key in ("off", "rises"))
    same = f"`SGDClassifier` itself has the same losses to {off:.0e} in {_CHECKED} rounds at eta = {_STEPS[-1]:g}."
    within = f"{law[:, :-1].min():.2f} to {law[:, :-1].max():.2f}"
    return [
        _claim(
            "localgd/rate", found, {_SMALL: -1.0, _ONCE: -1.0},
            f"{_WARM_UP} of the rounds at 1/(K H), then 1/H = {_UNIT:g}. {same} Where rounds are not enough, of 40 odd "
            f"or even digits a client with a margin of {least:.3f} or more, the powers are {early[0]:.2f} and "
            f"{early[1]:.2f}. Powers of K and of R:",
        ),
        _claim(
            "localgd/instability", found, {_BOTH: -1.0},
            f"After {_ROUNDS:,} rounds of {_EVERY[-1]} steps the loss is {within} of 1/(g^2 eta K R), g the margin of "
            "the rows. Powers of eta, of K and of R:",
        ),
        _claim(
            "localgd/unstable", found, {_CALM: 0.0},
            f"At eta = {_LARGEST:g}, {_EVERY[-1]} local steps. It rises for the last time after {rises:.0f} rounds at "
            f"most, and ends at {law[:, -1].min():.2f} to {law[:, -1].max():.2f} of 1/(g^2 eta K R).",
        ),
    ]  # fmt: skip


#: The measure of this module.
MEASURES: Final = (
    Measure(
        "local-gd", statements("localgd"),
        f"Local gradient descent on {len(PROBLEMS)} separable problems of {len(_SEEDS)} seeds: two clients with a row "
        f"each, four with ten, and five with ten of scikit-learn's digits; {_ROUNDS:,} rounds of "
        f"{', '.join(map(str, _EVERY))} steps of 1 to {_LARGEST:g}.",
        _measured,
    ),
)  # fmt: skip
