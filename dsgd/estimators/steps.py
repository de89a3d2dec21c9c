"""What takes the steps of an estimator, and what its model is linear in."""

from __future__ import annotations

from typing import Any

from dsgd.errors import InvalidParameterError
from dsgd.estimators.start import Start
from dsgd.local import SGD, AbstractReduction, AbstractRule, Objective, RandomMap, resolve_sampling
from dsgd.local.rules import resolve_optimizer


def optimizer_of(estimator: Any, objective: Objective, seed: int) -> SGD:
    """Return what takes the steps; its random map is known."""
    given = resolve_optimizer(f"{type(estimator).__name__}(optimizer=...)", estimator.optimizer)
    # A reduction has steps of its own.
    reduction = given if isinstance(given, AbstractReduction) else None
    return SGD(
        objective=objective,
        schedule="constant" if reduction else estimator.learning_rate,
        eta0=1.0 if reduction else float(estimator.eta0),
        power_t=float(estimator.power_t),
        average=int(estimator.average),
        rule=given if isinstance(given, AbstractRule) else None,
        sampling=resolve_sampling(estimator.sampling),
        seed=seed,
        reduction=reduction,
        features=estimator._random_map,
    )


def map_of(estimator: Any, start: Start, seed: int) -> RandomMap | None:
    """Return what the model is linear in; one that goes on with coefficients goes on with their features."""
    if estimator.features is None:
        return None
    kept: RandomMap | None = estimator._random_map
    drawn: RandomMap
    if kept is None or (start.coef is None and start.is_first):
        drawn = estimator.features.as_map(seed)
        return drawn
    if estimator.features.as_map(kept.seed) != kept:
        raise InvalidParameterError(
            f"{type(estimator).__name__}(features={estimator.features!r}) is not what the coefficients belong to, with "
            f"which training would go on: {kept!r}. Set it back, or fit without warm_start and coef_init."
        )
    return kept


def map_bytes(estimator: Any) -> int:
    """Return the memory of the frequencies of features, while they are drawn in float64."""
    given: RandomMap | None = estimator._random_map
    return 0 if given is None else 2 * 8 * given.n_components * (estimator._width + 1)
