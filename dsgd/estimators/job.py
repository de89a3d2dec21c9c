"""The job of a fit: packed rows, validation rows, and what ranks run.

Problem: parameters of an estimator, summaries of its rows and the model it begins with must agree before a rank starts.

Method: everything is resolved here, once, on the side of the user: the classes, the numbers' precision, the layout of
the parameters, the strategy, the optimiser. Ranks get two records, and no estimator.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsgd.errors import InvalidDataError
from dsgd.estimators.packing import Packer, weight_scale_of
from dsgd.estimators.start import Start, check_rows, grown, initial, map_of, optimizer_of
from dsgd.estimators.tables import encoded
from dsgd.inputs.blocks import BlockSummary, check_summaries
from dsgd.inputs.table_files import are_table_files
from dsgd.inputs.validation import ScoredRows, checked_block, refuse_unknown_labels, scorer_for, split_off
from dsgd.local.objective import pack, unpack
from dsgd.runtime.checkpoints.checkpoint import as_checkpoint
from dsgd.runtime.checkpoints.container import describe
from dsgd.runtime.train import TrainJob
from dsgd.runtime.train.state import goes_on
from dsgd.stages import stage
from dsgd.sync import resolve
from dsgd.types import AnyArray, FloatVector


@dataclass(frozen=True)
class _ModelOf:
    """Makes an estimator of a parameter vector."""

    estimator: Any
    n_features: int
    n_outputs: int
    by_column: bool

    def __call__(self, params: FloatVector, statistics: Mapping[str, AnyArray]) -> Any:
        model = self.estimator
        coef, intercept = unpack(params, self.n_features, self.n_outputs, sparse=self.by_column)
        model.coef_, model.intercept_ = model._shape_model(coef, intercept)
        return model


def with_validation(estimator: Any, rows: tuple[Any, Any, Any], start: Start) -> tuple[tuple[Any, Any, Any], Start]:
    """Return the rows to train on, and where training begins with the validation rows as training takes rows."""
    if start.validation is not None:
        if are_table_files(start.validation[0]) and estimator.encoder_ is None:
            raise InvalidDataError(
                f"X_val names files of tables, and the training rows are none: load {start.validation[0]!r:.80} first."
            )
        # Read and encoded here, wherever the model is trained.
        here = _bare(estimator)
        here.encoder_ = estimator.encoder_
        return rows, replace(start, validation=encoded(here, start.validation, goes_on=True))
    if start.is_part or not estimator.early_stopping or estimator.scoring is None:
        return rows, start
    rows, validation = split_off(estimator, rows)
    return rows, replace(start, validation=validation)


def watched(
    estimator: Any, start: Start, job: TrainJob, *, width: int, n_outputs: int, by_column: bool
) -> tuple[TrainJob, ScoredRows | None]:
    """Return the job, and what scores its model on the validation rows; None if there are none."""
    given = start.validation
    if given is None:
        return job, None
    block = checked_block(lambda: check_rows(estimator, *given, Start(is_first=False)))
    if estimator._is_classification:
        refuse_unknown_labels(block[1], estimator.classes_)
    if (deviance := estimator._deviance) is not None:
        deviance.check_targets(float(block[1].min()))
    model = _bare(estimator)
    model.n_features_in_ = estimator._width
    found = ScoredRows(_ModelOf(model, width, n_outputs, by_column), scorer_for(model), block)
    found.try_out(type(estimator).__name__, estimator.scoring, job.initial, {})
    if job.checkpoint is not None or job.resume_from is not None:
        job = replace(job, source={**job.source, "validation": found.identity})
    return job, found


def _bare(estimator: Any) -> Any:
    """Return the estimator without a client, listeners, a model or names of columns: it takes rows as encoded."""
    bare = estimator._without_client()
    for name in ("_audience", "feature_names_in_", "encoder_", "coef_", "intercept_"):
        vars(bare).pop(name, None)
    return bare


def job_of(estimator: Any, summaries: Sequence[BlockSummary], start: Start, seed: int) -> tuple[Packer, TrainJob, Any]:
    """Return what packs the rows, what trains on them, and what rank 0 alone is given for it."""
    check_summaries(summaries)
    with stage("labels"):
        estimator._learn_targets(summaries)
    objective, gang = estimator._objective(summaries), estimator._deployment
    start = grown(start, estimator._classes(), coupled=objective.is_coupled)
    sparse, d = next(s.sparse for s in summaries if s.rows), estimator._width
    dtype = "float64" if any(s.dtype != "float32" for s in summaries if s.rows) else "float32"
    early = estimator.early_stopping and not start.is_part
    n_steps = (1 if start.is_part else estimator.max_iter) * sum(s.visits for s in summaries)
    packer = Packer(
        classes=estimator._classes(),
        n_features=d,
        dtype=dtype,
        sparse=sparse,
        shuffle=bool(estimator.shuffle),
        seed=seed,
        validation_fraction=float(estimator.validation_fraction) if early and start.validation is None else 0.0,
        out_of_core=gang.out_of_core,
        weight_scale=weight_scale_of(summaries, is_part=start.is_part),
        # Where training gets so far that several models are averaged, their mean needs no spread.
        spread_classes=not 0 < estimator.average < start.t + n_steps - 1,
    )
    drawn = estimator._random_map = map_of(estimator, start, seed)
    by_column, width = sparse and not drawn, drawn.n_components if drawn else d  # features of sparse rows are dense

    def flat(coef: Any, intercept: Any) -> FloatVector:
        return pack(coef, intercept, sparse=by_column, dtype=dtype)

    k, estimator._absent = objective.n_outputs, start.absent
    n_rows = max(1, sum(s.rows for s in summaries))
    estimator._entries = (sum(s.nnz for s in summaries) / n_rows if sparse else float(d)), d
    coef = initial(start.coef, (k, width), "coef_init", dtype)
    intercept = initial(start.intercept, (k,), "intercept_init", dtype)
    steps, strategy = optimizer_of(estimator, objective, seed), resolve(estimator.sync)
    if start.is_part:
        # In another configuration, what is left would mean another thing.
        leaves = describe({"sync": strategy, "optimizer": steps.rule or steps.reduction, "sparse": by_column})
        epochs_before = start.left.position[0] if start.left and goes_on(start.left, leaves) else 0
        kept: dict[str, Any] = {"leaves": leaves, "epochs_before": epochs_before}
    else:
        resume_from = None if gang.resume_from is None else os.fspath(gang.resume_from)
        kept = {"checkpoint": as_checkpoint(gang.checkpoint), "resume_from": resume_from}
    job = TrainJob(
        optimizer=steps,
        strategy=strategy,
        initial=flat(coef, intercept),
        max_iter=1 if start.is_part else estimator.max_iter,
        tol=None if start.is_part else estimator.tol,
        n_iter_no_change=estimator.n_iter_no_change,
        early_stopping=early,
        scoring=estimator._deviance or ("accuracy" if estimator._is_classification else "r2"),
        validates=start.validation is not None,
        restore_best=bool(estimator.restore_best),
        t_start=start.t,
        average_start=None if start.averaged is None else flat(*start.averaged),
        n_averaged=start.n_averaged,
        seed=seed,
        source={"rows": packer} | ({"features": drawn} if drawn else {}),
        **kept,
    )
    if start.is_part:
        return packer, job, start.left if job.epochs_before else None
    return packer, *watched(estimator, start, job, width=width, n_outputs=k, by_column=by_column)
