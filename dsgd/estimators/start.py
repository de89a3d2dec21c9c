"""What a fit begins from, checked: parameters, steps, an earlier model, more classes.

**More classes than before: outputs for labels that come late, beside those that the model has.**

Problem: which classes a stream of rows will bring is often not known when it begins.

Method: a new class gets an output of zeros, in the place that its label has among the sorted ones. Others keep theirs:
coefficients, averages and what the local rule remembers of each. Of two classes there is one output w, for the second
against the first; among more each has its own, -w and w, or -w/2 and w/2 where they share one loss, whose differences
are what counts. The decision between the two is the same, and with softmax the ratio of their probabilities.

The step counter goes on, and so does the mean of the iterates, in which a new output is zero at the steps before it
came. These are counted, and the model gets the mean over the others (`present_mean`).

What cannot be said of a new output begins anew for all: the account of the L1 penalty, since one of zeros would owe
what has fallen due before it was there; what was remembered of rows; and what strategies and compressors remember,
whose vectors may be of any form. So do models of ranks that stay apart, from their mean.

**What a fit leaves on its estimator, and what a later ``partial_fit`` begins with.**

Problem: a model may come home as two, the last one and the mean of the iterates, of which scikit-learn calls the mean
``coef_``. Steps must go on from the last one.

Method: both are kept where they differ, under scikit-learn's names, with the number of models in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_X_y

from dsgd.comm.memory.cores import count_cores
from dsgd.errors import DivergenceWarning, IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.estimators.tables import check_encoder
from dsgd.inputs.blocks import Block, nbytes_of
from dsgd.inputs.callbacks import History
from dsgd.inputs.frames import in_memory, validated
from dsgd.inputs.rows import LocalRows, Rows, check_any_weight, check_sample_weight
from dsgd.inputs.shared import is_simulated
from dsgd.inputs.validation import refuse_idle, take_best
from dsgd.kernel_approximation import RandomFeatures
from dsgd.kernels.losses import LOSSES
from dsgd.kernels.scaled import PENALTIES
from dsgd.kernels.state import COUNTERS
from dsgd.ledger import Ledger
from dsgd.local import SGD, AbstractReduction, AbstractRule, CustomLoss, Objective
from dsgd.local.features import RandomMap
from dsgd.local.objective import loss_row, pack, unpack
from dsgd.local.rules import check_learning_rate, resolve_optimizer, schedule_of, steps_of
from dsgd.local.variance import check_reduction, resolve_sampling
from dsgd.runtime.checkpoints.checkpoint import SavedState
from dsgd.runtime.rank import GangResult
from dsgd.runtime.train import TrainResult
from dsgd.runtime.train.job import Divergence
from dsgd.stages import stage
from dsgd.sync import check_combination, resolve
from dsgd.types import AnyArray, IntVector
from dsgd.validation import check_bool, check_choice, check_n_jobs, check_number, check_numbers, warn_user

#: The losses with a threshold, and its default.
_THRESHOLDS: Final = {"huber": 0.1, "epsilon_insensitive": 0.1, "squared_epsilon_insensitive": 0.1}


def losses_for(*, classification: bool) -> Mapping[str, tuple[Any, ...]]:
    """Return the losses of an estimator by name: a classifier also gets those of regression that suit -1 and 1."""
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


@dataclass(frozen=True)
class Start:
    """Where training begins: a model, what ``partial_fit`` has left, and at how many steps each output was `absent`."""

    is_first: bool = True
    is_part: bool = False
    coef: AnyArray | None = None
    intercept: AnyArray | None = None
    t: float = 1.0
    averaged: tuple[AnyArray, AnyArray] | None = None
    n_averaged: int = 0
    absent: IntVector | None = None
    left: SavedState | None = None
    validation: tuple[Any, Any, Any] | None = None
    classes: AnyArray | None = None


def initial(value: Any, shape: tuple[int, ...], name: str, dtype: str) -> AnyArray:
    """Return coefficients or intercepts to begin with, in this shape; zeros for None."""
    if value is None:
        return np.zeros(shape, dtype=dtype)
    try:
        array = np.asarray(value.toarray() if hasattr(value, "toarray") else value, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InvalidDataError(f"Provided {name} holds other things than numbers: {error}.") from error
    if array.size != math.prod(shape):
        raise InvalidDataError(f"Provided {name} does not match dataset: shape {array.shape}, expected {shape}.")
    return array.reshape(shape)


def rows_here(estimator: Any, X: Any, y: Any, sample_weight: Any, start: Start) -> LocalRows:
    """Return rows of this process, checked but for values that are not finite: `LocalRows.check` reads them."""
    if isinstance(X, Rows):
        rows = X.local()
        X.show(estimator, first=start.is_first)
        return rows
    # Those of tables have columns to be named.
    finite = not (isinstance(X, np.ndarray) or issparse(X))
    with stage("check") as it:
        block = check_rows(estimator, X, y, sample_weight, start, finite=finite)
        it.nbytes = nbytes_of(block[0]) if finite else 0
    return LocalRows(block, is_finite=finite or estimator.encoder_ is not None)


def check_rows(estimator: Any, X: Any, y: Any, sample_weight: Any, start: Start, *, finite: bool = True) -> Block:
    """Validate arrays of this process; return (X, y, sample_weight). Without `finite` values of X are not read."""
    options: dict[str, Any] = {
        "accept_sparse": "csr",
        "dtype": [np.float64, np.float32],
        "order": "C",
        "y_numeric": not estimator._is_classification,
    }
    if estimator.encoder_ is not None:  # it has seen the columns, and has no numbers that are not finite
        X, y = check_X_y(X, y, ensure_all_finite=False, **options)
    else:
        X, y = validated(estimator, X, y, ensure_all_finite=finite, reset=start.is_first, **options)
    return X, y, check_sample_weight(in_memory(sample_weight), X)


def check_all(estimator: Any, X: Any, y: Any, sample_weight: Any, start: Start) -> Block:
    """Validate arrays of this process that go to other ranks; return (X, y, sample_weight)."""
    rows = rows_here(estimator, X, y, sample_weight, start)
    check_any_weight(rows.block[2])
    rows.check(count_cores(), type(estimator).__name__)
    return rows.block


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


#: As `classes` of ``partial_fit``: those of the rows so far.
GROW: Final = "grow"

#: What each of two outputs gets of the one that there was, of vectors that a rule remembers.
_OF_RULE: Final = {"rule.velocity": (-1.0, 1.0), "rule.second": (1.0, 1.0)}


@dataclass(frozen=True)
class _Outputs:
    """Where the outputs of a model go in one of more classes."""

    places: IntVector
    n: int

    @property
    def n_before(self) -> int:
        """Outputs there were."""
        return 1 if len(self.places) == 2 else len(self.places)

    def spread(self, table: AnyArray, pair: tuple[float, float]) -> AnyArray:
        """Return a table of all outputs, shape (n, ...), from that of those before, shape (n_before, ...)."""
        rows = table if self.n_before > 1 else np.concatenate([table * factor for factor in pair])
        whole = np.zeros((self.n, *table.shape[1:]), table.dtype)
        # Added, so that a zero has no sign.
        whole[self.places] += rows
        return whole

    def model(self, coef: Any, intercept: Any, *, coupled: bool) -> tuple[AnyArray, AnyArray]:
        """Return coefficients, shape (n, n_features), and intercepts, shape (n,)."""
        pair = (-0.5, 0.5) if coupled else (-1.0, 1.0)
        dense = np.asarray(coef.toarray() if hasattr(coef, "toarray") else coef).reshape(self.n_before, -1)
        return self.spread(dense, pair), self.spread(np.reshape(intercept, self.n_before), pair)

    def state(self, left: SavedState, *, coupled: bool) -> SavedState:
        """Return what ranks remember: their counters and the memory of their rule."""
        arrays, is_sparse = left.arrays, left.configuration["sparse"]
        counters = arrays["counters"][:, :COUNTERS]
        # The sums of an epoch that is over.
        of_losses = np.zeros((len(counters), 1 if coupled else self.n))
        kept = {name: arrays[name] for name in ("rows", "rule.steps") if name in arrays}
        kept["counters"] = np.hstack([counters, of_losses])
        for name, pair in _OF_RULE.items():
            if name in arrays:
                d = arrays[name].shape[1] // self.n_before - 1
                parts = [unpack(vector, d, self.n_before, sparse=is_sparse) for vector in arrays[name]]
                kept[name] = np.stack(
                    [pack(self.spread(w, pair), self.spread(b, pair), sparse=is_sparse) for w, b in parts]
                )
        return replace(left, arrays=kept)


def grown(start: Start, classes: AnyArray | None, *, coupled: bool) -> Start:
    """Return where training begins with outputs for all `classes`, sorted; the same, if it has them."""
    if classes is None or start.classes is None or len(classes) == len(start.classes):
        return start
    outputs = _Outputs(np.searchsorted(classes, start.classes), len(classes))
    absent = np.zeros(outputs.n_before, np.int64) if start.absent is None else start.absent
    coef, intercept = outputs.model(start.coef, start.intercept, coupled=coupled)
    return replace(
        start,
        classes=classes,
        coef=coef,
        intercept=intercept,
        averaged=None if start.averaged is None else outputs.model(*start.averaged, coupled=coupled),
        absent=start.n_averaged + outputs.spread(absent - start.n_averaged, (1, 1)) if start.n_averaged else None,
        left=None if start.left is None else outputs.state(start.left, coupled=coupled),
    )


def present_mean(
    coef: AnyArray, intercept: AnyArray, absent: IntVector | None, n_averaged: int
) -> tuple[AnyArray, AnyArray]:
    """Return the mean of the iterates, over those in which each output was there."""
    if absent is None:
        return coef, intercept
    # An output that has come after all of them is zero, whatever it is divided by.
    factors = (n_averaged / np.maximum(n_averaged - absent, 1)).astype(coef.dtype)
    return coef * factors[:, None], intercept * factors


def joined(classes: AnyArray, labels: AnyArray) -> AnyArray:
    """Return the classes of both, sorted."""
    are_texts = {array.dtype.kind in "US" for array in (classes, labels) if array.dtype.kind != "O"}
    try:
        if len(are_texts) > 1:
            raise TypeError("texts and numbers")
        return np.union1d(classes, labels)
    except TypeError as error:
        raise InvalidDataError(
            f"y holds labels that cannot be sorted among classes={classes!r}: {labels!r}. Labels of one model are all "
            "texts or all numbers."
        ) from error


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
    entries, width = vars(estimator).pop("_entries")
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
    client = estimator._deployment.client
    record = partial(
        _record,
        strategy=resolve(estimator.sync),
        rows=tuple(int(stat["rows"] or 0) for stat in gang.stats),
        entries=entries * k if given is None else (entries + k) * d,
        density=entries / width,
        n_params=len(result.params),
        itemsize=result.params.itemsize,
        seconds=min(result.history[-1].seconds if result.history else elapsed_s, elapsed_s),
        cluster=client if is_simulated(client) else None,
        threads=max(estimator.fit_report_["ranks_per_worker"]) if gang.ledger.workers else len(gang.stats),
        fuses=len(gang.stats) <= count_cores() and all(stat["transport"] in _IN_MEMORY for stat in gang.stats),
    )
    estimator.ledger_ = replace(estimator.ledger_, record=record)
    if result.note:
        warn_user(result.note, RuntimeWarning)
    if result.divergence is not None and result.divergence.is_useless:
        _warn_of_divergence(estimator, result.divergence)


# Transports of ranks that see each other's memory.
_IN_MEMORY: Final = ("inproc", "shm", "spin")


def _record(ledger: Ledger, **known: Any) -> Any:
    """Return what is recorded of a run; what it is made of is loaded when it is asked for."""
    from dsgd.sim import RunRecord

    return RunRecord.of(ledger, **known)


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
