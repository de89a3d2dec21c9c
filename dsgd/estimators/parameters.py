"""Checks of the parameters of the estimators."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.estimators.tables import check_encoder
from dsgd.inputs.validation import refuse_idle
from dsgd.kernel_approximation import RandomFeatures
from dsgd.kernels import LOSSES, PENALTIES
from dsgd.local import AbstractReduction, CustomLoss, Objective
from dsgd.local.cycles import check_learning_rate, schedule_of
from dsgd.local.objective import loss_row
from dsgd.local.rules import resolve_optimizer, steps_of
from dsgd.local.variance import check_reduction, resolve_sampling
from dsgd.sync import check_combination, resolve
from dsgd.validation import check_bool, check_choice, check_n_jobs, check_numbers, warn_user

#: The losses with a threshold, and its default.
_THRESHOLDS: Final = {"huber": 0.1, "epsilon_insensitive": 0.1, "squared_epsilon_insensitive": 0.1}


def losses_for(*, classification: bool) -> Mapping[str, tuple[Any, ...]]:
    """Return the losses of an estimator by name, each with its row of the table and the default of its threshold.

    A regression loss can classify, on targets of -1 and 1, unless it has a log link or asks for a quantile; the other
    way round makes no sense.
    """
    classifies = {name for name, row in LOSSES.items() if not row.has_log_link and row.parameter in (None, "epsilon")}
    rows = {
        name: row
        for name, row in LOSSES.items()
        if (name in classifies if classification else row.task == "regression")
    }
    return MappingProxyType(
        {name: (row, _THRESHOLDS[name]) if name in _THRESHOLDS else (row,) for name, row in rows.items()}
    )


def loss_parameter(estimator: Any) -> float:
    """Return the parameter that the loss of an estimator reads; `epsilon`, where it reads none."""
    return float(getattr(estimator, loss_row(estimator.loss).parameter or "epsilon"))


def check_whole_fit(estimator: Any) -> None:
    """Raise `InvalidParameterError` for what only ``fit`` can do, where ``partial_fit`` was called."""
    if estimator.early_stopping:
        raise InvalidParameterError(
            f"{type(estimator).__name__}: early_stopping should be False with partial_fit, which trains for one epoch "
            "on the rows of each call. Watch a score of your own between calls."
        )
    refuse_idle(estimator, has_rows=False)


def check_parameters(estimator: Any) -> None:
    """Check every parameter that does not depend on the data."""
    name = type(estimator).__name__
    _check_loss(estimator)
    check_choice(f"{name}(penalty=...)", estimator.penalty, [p for p in PENALTIES if p != "none"])
    check_learning_rate(f"{name}(learning_rate=...)", estimator.learning_rate)
    check_numbers(estimator, "alpha", low=0)
    if estimator.penalty == "elasticnet" and estimator.l1_ratio is None:
        raise InvalidParameterError(
            f"{name}: l1_ratio must be set when penalty is 'elasticnet', to a number in the range [0, 1]. Got None."
        )
    check_numbers(estimator, "l1_ratio", low=0, high=1, optional=True)
    for flag in ("fit_intercept", "shuffle", "early_stopping", "restore_best", "warm_start"):
        check_bool(f"{name}({flag}=...)", getattr(estimator, flag))
    check_numbers(estimator, "max_iter", "n_iter_no_change", low=1, integer=True)
    check_numbers(estimator, "tol", optional=True)
    check_numbers(estimator, "eta0", low=0, open_low=True)
    check_numbers(estimator, "power_t")
    if estimator.power_t < 0:
        warn_user(
            "Negative values for `power_t` are deprecated, as in scikit-learn 1.8, and become an error when they do "
            f"there. Got {name}(power_t={estimator.power_t!r}).",
            FutureWarning,
        )
    check_numbers(estimator, "validation_fraction", low=0, high=1, open_low=True, open_high=True)
    if not isinstance(estimator.average, (bool, np.bool_)):
        check_numbers(estimator, "average", low=0, integer=True)
    check_n_jobs(name, estimator.n_jobs)
    if schedule_of(estimator.learning_rate).needs_alpha and estimator.alpha == 0:
        raise InvalidParameterError(
            f"{name}(alpha=...) must be greater than zero since learning_rate={estimator.learning_rate!r} divides "
            "by it. Got 0."
        )
    optimizer = resolve_optimizer(f"{name}(optimizer=...)", estimator.optimizer)
    sampling = resolve_sampling(estimator.sampling)
    steps = steps_of(optimizer, sampling)
    if steps.draws_rows and estimator._deployment.out_of_core:
        drawing = steps.name if sampling is None else repr(sampling)
        raise IncompatiblePartsError(
            f"{name}(client=Gang(out_of_core=True)) reads rows from files in the order in which they lie there, and "
            f"{drawing} draws them: every row would be a read from disk. Use one of them."
        )
    if isinstance(optimizer, AbstractReduction):
        share, parameter = float(estimator.l1_ratio or 0), loss_parameter(estimator)
        objective = Objective(estimator.loss, estimator.penalty, float(estimator.alpha), share, parameter)
        check_reduction(optimizer, objective, average=estimator.average, sampling=sampling)
    check_combination(resolve(estimator.sync), steps)
    _check_features(estimator, sampling, optimizer)


def _check_loss(estimator: Any) -> None:
    """Check the loss, and the parameters of all losses."""
    where = f"{type(estimator).__name__}(loss=...)"
    if isinstance(estimator.loss, CustomLoss):
        estimator.loss.check(where, targets=(-1.0, 1.0) if estimator._is_classification else (1.0,))
    else:
        check_choice(where, estimator.loss, estimator.loss_functions)
    check_numbers(estimator, "epsilon", low=0)
    if not estimator._is_classification:
        check_numbers(estimator, "quantile", low=0, high=1, open_low=True, open_high=True)
        check_numbers(estimator, "tweedie_power", low=1, high=2)


def _check_features(estimator: Any, sampling: object, optimizer: object) -> None:
    """Check what rows become, and that nothing is asked for that does without rows of features."""
    name, features, strategy = type(estimator).__name__, estimator.features, resolve(estimator.sync)
    check_encoder(name, estimator.encoder)
    if features is None:
        return
    if not isinstance(features, RandomFeatures):
        raise InvalidParameterError(
            f"{name}(features=...) must be None or RandomFeatures of dsgd.kernel_approximation. Got {features!r}."
        )
    features.check()
    beside = {
        "sampling": sampling,
        "optimizer": optimizer if isinstance(optimizer, AbstractReduction) else None,
        "sync": strategy if strategy.shares_memory or strategy.n_servers else None,
    }
    for parameter, value in beside.items():
        if value is not None:
            raise IncompatiblePartsError(
                f"{name}(features=...) makes features block by block, as rows are visited, which {parameter}={value!r} "
                "does not do. Leave one of them out, or fit on features that a transformer has made before."
            )
