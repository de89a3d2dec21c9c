"""What a fit leaves on its estimator, and what a later ``partial_fit`` begins with.

Problem: a model may come home as two, the last one and the mean of the iterates, of which scikit-learn calls the mean
``coef_``. Steps must go on from the last one.

Method: both are kept where they differ, under scikit-learn's names, with the number of models in the mean.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dsgd.errors import DivergenceWarning, InvalidDataError
from dsgd.estimators.growth import present_mean
from dsgd.estimators.start import Start, initial
from dsgd.inputs.callbacks import History
from dsgd.inputs.validation import take_best
from dsgd.local import unpack
from dsgd.runtime.rank import GangResult
from dsgd.runtime.train import TrainResult
from dsgd.runtime.train.job import Divergence
from dsgd.sync import resolve
from dsgd.validation import check_number, warn_user

#: The last model and the mean of the models, there where they are two; named as in scikit-learn.
BESIDE: Final = ("_standard_coef", "_standard_intercept", "_average_coef", "_average_intercept")
#: The model of each rank, there where a strategy keeps them.
OF_RANKS: Final = ("rank_coef_", "rank_intercept_")


def take_in(estimator: Any, gang: GangResult, *, sparse: bool, elapsed_s: float) -> None:
    """Set the fitted attributes from what the gang brought home."""
    result: TrainResult = gang.value
    given = estimator._random_map
    d, sparse = (given.n_components, False) if given is not None else (estimator._width, sparse)
    k = len(result.params) // (d + 1)
    coef, intercept = unpack(result.params, d, k, sparse=sparse)
    estimator._n_averaged, estimator._left = result.n_averaged, result.left
    for name in (*BESIDE, *OF_RANKS):
        estimator.__dict__.pop(name, None)
    if result.averaged is not None:
        estimator._standard_coef, estimator._standard_intercept = coef, intercept
        coef, intercept = unpack(result.averaged, d, k, sparse=sparse)
        estimator._average_coef, estimator._average_intercept = coef, intercept
        coef, intercept = present_mean(coef, intercept, estimator._absent, result.n_averaged)
    estimator.coef_, estimator.intercept_ = estimator._shape_model(coef, intercept)
    if result.of_ranks is not None:
        models = [estimator._shape_model(*unpack(one, d, k, sparse=sparse)) for one in result.of_ranks]
        estimator.rank_coef_, estimator.rank_intercept_ = (np.stack(parts) for parts in zip(*models, strict=True))
    estimator.n_iter_ = result.n_iter
    estimator.t_ = result.t
    estimator.loss_curve_ = [record.train_loss for record in result.history]
    estimator.sync_history_ = result.periods
    estimator.history_ = History.of(result.history, gang.ledger)
    take_best(estimator, result.history)
    estimator._take_report(
        gang,
        strategy=repr(resolve(estimator.sync)),
        elapsed_s=elapsed_s,
        epochs=[dict(vars(record)) for record in result.history],
        converged=result.converged and result.divergence is None,
        diverged=result.divergence is not None and result.divergence.is_useless,
        stragglers=[
            {**vars(slow), "worker": gang.stats[slow.rank]["worker"], "host": gang.stats[slow.rank]["host"]}
            for slow in result.stragglers
        ],
        rows_lost=max((event["rows_lost"] for event in gang.recoveries), default=0),
    )
    if result.note:
        warn_user(result.note, RuntimeWarning)
    if result.divergence is not None and result.divergence.is_useless:
        _warn_of_divergence(estimator, result.divergence)


def _warn_of_divergence(estimator: Any, found: Divergence) -> None:
    targets = "" if estimator._is_classification else " and the targets"
    steps = f"learning_rate={estimator.learning_rate!r}, eta0={estimator.eta0!r}"
    if str(estimator.optimizer).lower().startswith(("saga", "svrg")):
        steps = f"optimizer={estimator.optimizer!r}"
    warn_user(
        f"{type(estimator).__name__} diverged: the objective is {found.end:.3g} after the last step, and was "
        f"{found.begin:.3g} before the first. Scale the features{targets}, for instance with StandardScaler, or take "
        f"shorter steps ({steps}).",
        DivergenceWarning,
    )


def resumed(estimator: Any) -> Start:
    """Return the state from which a later ``partial_fit`` continues."""
    n_averaged = getattr(estimator, "_n_averaged", 0)
    return Start(
        is_first=not hasattr(estimator, "coef_"),
        is_part=True,
        # If steps are averaged, coef_ is the mean, and the steps continue from their last model.
        coef=getattr(estimator, "_standard_coef", getattr(estimator, "coef_", None)),
        intercept=getattr(estimator, "_standard_intercept", getattr(estimator, "intercept_", None)),
        t=getattr(estimator, "t_", 1.0),
        averaged=(estimator._average_coef, estimator._average_intercept) if n_averaged else None,
        n_averaged=n_averaged,
        absent=getattr(estimator, "_absent", None) if n_averaged else None,
        left=getattr(estimator, "_left", None),
        classes=estimator._classes() if hasattr(estimator, "coef_") else None,
    )


def check_resumable(estimator: Any) -> None:
    """Refuse a model, of a file, whose further training would not begin where it says."""
    start = resumed(estimator)
    if start.is_first or start.coef is None:
        return
    name, (k, d) = type(estimator).__name__, (1, *start.coef.shape)[-2:]
    check_number(f"{name}.t_", start.t, low=0, open_high=True)
    check_number(f"{name}._n_averaged", start.n_averaged, low=0, high=2**53, integer=True)
    for of, pair in (("the last model", (start.coef, start.intercept)), ("the mean", start.averaged or (None, None))):
        initial(pair[0], (k, d), f"coef of {of}", "float64")
        initial(pair[1], (k,), f"intercept of {of}", "float64")
    initial(start.absent, (k,), "count of steps without a class", "int64")
    if start.left is not None:
        n, arrays = start.left.world_size, start.left.arrays
        counters = arrays["counters"]
        if arrays["rows"].shape != (n,) or counters.ndim != 2 or len(counters) != n or counters.dtype != np.float64:
            raise InvalidDataError(f"what {n} ranks have left is of {arrays['rows'].shape} and {counters.shape}")
