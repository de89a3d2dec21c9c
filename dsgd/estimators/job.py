"""The job of a fit: what packs the rows of a rank, and what trains on them.

Problem: parameters of an estimator, summaries of its rows and the model it begins with must agree before a rank starts.

Method: everything is resolved here, once, on the side of the user: the classes, the numbers' precision, the layout of
the parameters, the strategy, the optimiser. Ranks get two records, and no estimator.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsgd.estimators.growth import grown
from dsgd.estimators.packing import Packer, weight_scale_of
from dsgd.estimators.start import Start, initial
from dsgd.estimators.steps import map_of, optimizer_of
from dsgd.estimators.validation import watched
from dsgd.inputs.blocks import BlockSummary, check_summaries
from dsgd.local import pack
from dsgd.runtime.checkpoints.checkpoint import as_checkpoint
from dsgd.runtime.checkpoints.container import describe
from dsgd.runtime.train import TrainJob
from dsgd.runtime.train.state import goes_on
from dsgd.stages import stage
from dsgd.sync import resolve
from dsgd.types import FloatVector


def job_of(estimator: Any, summaries: Sequence[BlockSummary], start: Start, seed: int) -> tuple[Packer, TrainJob, Any]:
    """Return what packs the rows, what trains on them, and what rank 0 alone is given for it."""
    check_summaries(summaries)
    with stage("labels"):
        estimator._learn_targets(summaries)
    objective = estimator._objective(summaries)
    start = grown(start, estimator._classes(), coupled=objective.is_coupled)
    sparse, d = next(s.sparse for s in summaries if s.rows), estimator._width
    dtype = "float64" if any(s.dtype != "float32" for s in summaries if s.rows) else "float32"
    early = estimator.early_stopping and not start.is_part
    packer = Packer(
        classes=estimator._classes(),
        n_features=d,
        dtype=dtype,
        sparse=sparse,
        shuffle=bool(estimator.shuffle),
        seed=seed,
        validation_fraction=float(estimator.validation_fraction) if early and start.validation is None else 0.0,
        out_of_core=estimator.out_of_core,
        weight_scale=weight_scale_of(summaries, is_part=start.is_part),
        spread_classes=not _averages(estimator, summaries, start),
    )
    drawn = estimator._random_map = map_of(estimator, start, seed)
    by_column, width = sparse and not drawn, drawn.n_components if drawn else d  # features of sparse rows are dense

    def flat(coef: Any, intercept: Any) -> FloatVector:
        return pack(coef, intercept, sparse=by_column, dtype=dtype)

    k, estimator._absent = objective.n_outputs, start.absent
    coef = initial(start.coef, (k, width), "coef_init", dtype)
    intercept = initial(start.intercept, (k,), "intercept_init", dtype)
    steps = optimizer_of(estimator, objective, seed)
    job = TrainJob(
        optimizer=steps,
        strategy=resolve(estimator.sync),
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
    )
    if not start.is_part:
        resume_from = None if estimator.resume_from is None else os.fspath(estimator.resume_from)
        job = replace(job, checkpoint=as_checkpoint(estimator.checkpoint), resume_from=resume_from)
        return packer, *watched(estimator, start, job, width=width, n_outputs=k, by_column=by_column)
    configuration = describe({"sync": job.strategy, "optimizer": steps.rule or steps.reduction, "sparse": by_column})
    epochs_before = start.left.position[0] if start.left and goes_on(start.left, configuration) else 0
    job = replace(job, leaves=configuration, epochs_before=epochs_before)  # in another one it would mean another thing
    return packer, job, start.left if epochs_before else None


def _averages(estimator: Any, summaries: Sequence[BlockSummary], start: Start) -> bool:
    """Return whether training gets so far that several models are averaged."""
    n_steps = (1 if start.is_part else estimator.max_iter) * sum(s.visits for s in summaries)
    return bool(0 < estimator.average < start.t + n_steps - 1)
