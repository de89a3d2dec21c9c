"""Candidates: which parameters may differ between columns, and the models that they make on each split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from sklearn.base import clone

from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.estimators.base import AbstractSGD
from dsgd.estimators.packing import Packer
from dsgd.estimators.parameters import check_parameters
from dsgd.estimators.steps import optimizer_of
from dsgd.inputs import BlockSummary
from dsgd.inputs.rows import LocalRows, Rows
from dsgd.inputs.shared import scratch_folder
from dsgd.local import Shard, ShardBuilder
from dsgd.local.blocks import Selection
from dsgd.model_selection.training import Model
from dsgd.types import AnyArray

#: The parameters that a column has of its own, or that say when it stops or is averaged.
OF_COLUMNS: Final = frozenset(
    {
        "alpha",
        "class_weight",
        "epsilon",
        "eta0",
        "fit_intercept",
        "l1_ratio",
        "learning_rate",
        "loss",
        "max_iter",
        "n_iter_no_change",
        "penalty",
        "power_t",
        "quantile",
        "sync",
        "tol",
        "tweedie_power",
    }
)
# What columns do without, and its value then.
_WITHOUT: Final[Mapping[str, Any]] = {
    "average": False,
    "checkpoint": None,
    "early_stopping": False,
    "features": None,
    "optimizer": None,
    "restore_best": False,
    "resume_from": None,
    "sampling": "uniform",
    "scoring": None,
}
# What else the ranks of a cluster do without.
_ON_CLUSTER: Final[Mapping[str, Any]] = {"elastic": False, "on_failure": "raise", "out_of_core": False}


@dataclass(frozen=True)
class PackedRows:
    """All rows in the order of training, and which of them each split trains on."""

    shard: Shard
    kept: AnyArray


def check_base(estimator: Any) -> None:
    """Raise where columns cannot be what an estimator trains."""
    if not isinstance(estimator, AbstractSGD):
        raise InvalidParameterError(
            "SGDSearchCV(estimator=...) must be an SGDClassifier or SGDRegressor of dsgd: columns of one weight matrix "
            f"are models that are linear in the same rows. Got {estimator!r}. Use GridSearchCV for pipelines, or "
            "transform the rows before."
        )
    for name, value in _WITHOUT.items():
        given = getattr(estimator, name)
        if given is not value and given != value:
            raise IncompatiblePartsError(
                f"SGDSearchCV takes plain steps by row: {type(estimator).__name__}({name}={given!r}) does not go with "
                "it. Leave it out, set it on best_estimator_ afterwards, or use GridSearchCV."
            )


def check_in_process(settings: Sequence[Mapping[str, Any]]) -> None:
    """Raise `IncompatiblePartsError` where candidates differ in what only ranks of a cluster have."""
    if any("sync" in each for each in settings):
        raise IncompatiblePartsError(
            "SGDSearchCV(param_grid=...) has sync, but in this process all columns train on one rank, for which a "
            "period changes nothing. Pass client=... to the estimator, a dsgd.sim.SimulatedCluster for one, or dask "
            "collections; or leave sync out."
        )


def check_on_cluster(estimator: AbstractSGD, X: Any, scorers: Mapping[str, Any]) -> None:
    """Raise `IncompatiblePartsError` where the ranks of a cluster cannot search as an estimator and scorers want it."""
    strange = [name for name, scorer in scorers.items() if not isinstance(scorer, str)]
    if strange:
        raise IncompatiblePartsError(
            "SGDSearchCV on a cluster scores where the rows are, by sums: scoring may be None, 'accuracy' of a "
            f"classifier or 'r2' of a regressor. Got {', '.join(strange)}."
        )
    if isinstance(X, Rows):
        raise IncompatiblePartsError(
            "SGDSearchCV on a cluster takes arrays or dask collections, and no Rows: pass X and y."
        )
    for name, value in _ON_CLUSTER.items():
        given = getattr(estimator, name)
        if given is not value and given != value:
            raise IncompatiblePartsError(
                f"SGDSearchCV on a cluster does not go with {type(estimator).__name__}({name}={given!r}). "
                "Leave it out, or use GridSearchCV."
            )


def check_candidates(estimator: AbstractSGD, candidates: Sequence[Mapping[str, Any]]) -> list[AbstractSGD]:
    """Return an estimator for each candidate, each with good parameters."""
    if not candidates:
        raise InvalidParameterError("SGDSearchCV(param_grid=...) has no candidate.")
    strange = sorted({name for candidate in candidates for name in candidate} - OF_COLUMNS)
    if strange:
        raise IncompatiblePartsError(
            f"SGDSearchCV(param_grid=...) has {', '.join(strange)}: candidates may differ in "
            f"{', '.join(sorted(OF_COLUMNS))}. Set others on the estimator, or use GridSearchCV."
        )
    made = [clone(estimator).set_params(**candidate) for candidate in candidates]
    for each in made:
        check_parameters(each)
    return made


def pack_rows(estimator: AbstractSGD, rows: LocalRows, packer: Packer, splits: Sequence[tuple[Any, Any]]) -> PackedRows:
    """Return the rows in the order in which a fit of the estimator on all of them walks them."""
    X, y, weights = rows.block
    builder = ShardBuilder(
        n_features=packer.n_features,
        dtype=packer.dtype,
        sparse=packer.sparse,
        shuffle=packer.shuffle,
        seed=packer.seed,
        folder=scratch_folder() if packer.out_of_core else None,
        weight_scale=packer.weight_scale,
        copies=True,
    )
    piece = None if packer.out_of_core else rows.piece
    block = X if piece is None else Selection(piece, None, X.shape[1])
    builder.look(block, packer.targets(y), weights)
    builder.place(block)
    walk = builder.walk
    shard = replace(builder.finish(), seed=packer.seed if packer.shuffle else None)
    kept = np.zeros((len(splits), shard.n_rows), np.uint8)
    for number, (train, _) in enumerate(splits):
        flags = np.zeros(rows.n_rows, np.uint8)
        flags[train] = 1
        if len(train) != int(flags.sum()):
            raise InvalidDataError(f"split {number} of cv trains on a row more than once; SGDSearchCV masks rows.")
        kept[number] = flags if walk is None else flags[walk]
        if not kept[number].any():
            raise InvalidDataError(f"split {number} of cv has no rows to train on, or none with a weight.")
    return PackedRows(shard, kept)


def make_models(
    candidates: Sequence[AbstractSGD], summary: BlockSummary, y: AnyArray, splits: Sequence[tuple[Any, Any]]
) -> list[Model]:
    """Return the models of all candidates on all splits, candidate by candidate."""
    summaries = [_of_split(summary, y, train, number) for number, (train, _) in enumerate(splits)]
    models = []
    for number, candidate in enumerate(candidates):
        for split, each in enumerate(summaries):
            objective = candidate._objective([each])
            if objective.is_coupled:
                raise IncompatiblePartsError(
                    f"SGDSearchCV trains every class in a column of its own, and loss={objective.loss!r} has one loss "
                    "for all of them: use loss='log_loss', or GridSearchCV."
                )
            optimizer = optimizer_of(candidate, objective, 0)
            models.append(
                Model(number, split, optimizer, candidate.tol, candidate.n_iter_no_change, candidate.max_iter)
            )
    return models


def _of_split(summary: BlockSummary, y: AnyArray, train: AnyArray, number: int) -> BlockSummary:
    """Return a summary with the class counts of the rows that a split trains on."""
    if summary.classes is None:
        return summary
    counts = np.bincount(np.searchsorted(summary.classes, y[train]), minlength=len(summary.classes))
    if not counts.all():
        missing = summary.classes[counts == 0]
        raise InvalidDataError(
            f"split {number} of cv trains on no row of {missing!r}. Take a splitter that stratifies, or fewer folds."
        )
    return replace(summary, counts=counts)
