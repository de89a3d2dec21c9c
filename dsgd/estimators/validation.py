"""Validation of linear models: the rows that are scored after every epoch, and the model as it is then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dsgd.errors import InvalidDataError
from dsgd.estimators.checks import check_rows
from dsgd.estimators.start import Start
from dsgd.estimators.tables import encoded
from dsgd.inputs.table_files import are_table_files
from dsgd.inputs.validation import ScoredRows, checked_block, refuse_unknown_labels, scorer_for, split_off
from dsgd.local import unpack
from dsgd.runtime.train import TrainJob
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
        here.encoder_, here.out_of_core = estimator.encoder_, False
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
