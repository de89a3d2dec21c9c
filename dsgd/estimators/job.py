"""The job of a fit: packed rows, validation rows, and what ranks run.

Making the shard of a rank of its blocks, on the rank.

Validation of linear models: the rows that are scored after every epoch, and the model as it is then.

The job of a fit: what packs the rows of a rank, and what trains on them.

Problem: parameters of an estimator, summaries of its rows and the model it begins with must agree before a rank starts.

Method: everything is resolved here, once, on the side of the user: the classes, the numbers' precision, the layout of
the parameters, the strategy, the optimiser. Ranks get two records, and no estimator.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.estimators.start import Start, check_rows, grown, initial, map_of, optimizer_of
from dsgd.estimators.tables import encoded
from dsgd.inputs.blocks import Block, BlockSummary, check_summaries, hold_out, widen
from dsgd.inputs.shared import scratch_folder, visit
from dsgd.inputs.table_files import are_table_files
from dsgd.inputs.validation import ScoredRows, checked_block, refuse_unknown_labels, scorer_for, split_off
from dsgd.local.blocks import WINDOW_BYTES, Selection
from dsgd.local.ingest import ShardBuilder
from dsgd.local.objective import pack, unpack
from dsgd.local.shard import STRIDE_BYTES
from dsgd.runtime.checkpoints.checkpoint import as_checkpoint
from dsgd.runtime.checkpoints.container import describe
from dsgd.runtime.memory import MemoryDemand
from dsgd.runtime.train import TrainJob
from dsgd.runtime.train.job import TrainData
from dsgd.runtime.train.state import goes_on
from dsgd.runtime.train.visits import entries_per_call
from dsgd.stages import stage
from dsgd.sync import resolve
from dsgd.types import AnyArray, FloatVector

#: What to do with rows that are more than memory.
OUT_OF_CORE_ADVICE: Final = (
    "Set out_of_core=True to keep rows on the disks of the workers, give workers more memory, or use more of them."
)

# A row needs this much while its place is decided, row starts included.
_ORDER_BYTES: Final = 40

# Compiled kernels and what loads with them, at the first fit of a worker.
_LIBRARY_BYTES: Final = 32 << 20

# Between the seeds of two ranks, so that those of neighbouring seeds of a user do not meet.
_SEED_STEP: Final = 0x9E3779B97F4A7C15

# The model, its gradient, copies for averaging and for the wire.
_N_MODELS: Final = 8


@dataclass(frozen=True)
class Packer:
    """Packs the blocks of a rank into its shards; sent to every rank.

    - `held_out`, shape (n,): which rows are held out, where one rank has them all in one block; None has each rank
      draw its own.
    """

    classes: AnyArray | None
    n_features: int
    dtype: str
    sparse: bool
    shuffle: bool
    seed: int
    validation_fraction: float
    out_of_core: bool = False
    held_out: AnyArray | None = None
    weight_scale: float = field(default=1.0, metadata={"of_rows": True})
    spread_classes: bool = True

    def __call__(self, blocks: Sequence[Block], rank_number: int) -> TrainData:
        """Return the rows of rank `rank_number`, made of its blocks in order; each is looked at twice."""
        folder = scratch_folder() if self.out_of_core else None
        training, validation = self.builder(folder, rank_number), self.builder(folder, rank_number)
        self._look(blocks, np.random.default_rng([self.seed, rank_number]), training, validation)
        for X, _, _ in visit(blocks):
            training.place(widen(X, self.n_features))
            if self.validation_fraction:
                validation.place(widen(X, self.n_features))
        shard = replace(training.finish(), seed=self.seed if self.shuffle else None)
        return TrainData(shard, validation.finish() if self.validation_fraction else None)

    def _look(
        self, blocks: Sequence[Block], rng: np.random.Generator, training: ShardBuilder, validation: ShardBuilder
    ) -> None:
        """Show all blocks to both builders; apart, so that no column is held longer."""
        for X, y, weights in visit(blocks):
            if isinstance(X, Selection):
                y, weights = X.of(y), None if weights is None else X.of(weights)
            X, targets = widen(X, self.n_features), self.targets(y)
            if not self.validation_fraction:
                training.look(X, targets, weights)
                continue
            # A row of weight zero is not visited: each of the two shards takes the rows that the other leaves out.
            held_out = self.held_out
            if held_out is None:
                held_out = hold_out(targets, self.validation_fraction, rng, stratify=self.classes is not None)
            weights = np.ones(len(targets)) if weights is None else weights
            training.look(X, targets, np.where(held_out, 0.0, weights))
            validation.look(X, targets, np.where(held_out, weights, 0.0))

    def demand(self, summaries: Sequence[BlockSummary], n_params: int, beside: int = 0) -> MemoryDemand:
        """Return how much memory ranks will need on their workers."""
        size = np.dtype(self.dtype).itemsize
        order = _ORDER_BYTES + 2 * size
        per_rank = _N_MODELS * n_params * size
        if self.out_of_core:
            return MemoryDemand(
                tuple(order * s.visits for s in summaries),
                per_worker=_LIBRARY_BYTES + beside + 2 * WINDOW_BYTES,
                per_rank=per_rank + 3 * STRIDE_BYTES + entries_per_call(n_params) * (size + 4),
                advice="Give workers more memory, cut the data into smaller blocks, or use more workers.",
            )
        per_entry = size + 4 if self.sparse else size
        nnz = [s.nnz * s.visits // max(s.rows, 1) for s in summaries]
        packed = tuple(order * s.visits + per_entry * n for s, n in zip(summaries, nnz, strict=True))
        return MemoryDemand(packed, _LIBRARY_BYTES + beside, per_rank, OUT_OF_CORE_ADVICE)

    def targets(self, y: AnyArray) -> AnyArray:
        """Return what the kernels learn: -1/+1 for two classes, codes for more, values for regression."""
        with stage("labels", y.nbytes):
            if self.classes is None:
                return np.asarray(y, dtype=self.dtype)
            if len(self.classes) == 2:
                # Not numpy.where, which takes five times as long.
                signs: AnyArray = (y == self.classes[1]).astype(self.dtype)
                signs *= 2.0
                signs -= 1.0
                return signs
            return np.searchsorted(self.classes, y).astype(self.dtype)

    def builder(self, folder: str | None, rank_number: int, *, copies: bool = False) -> ShardBuilder:
        """Return what makes the shard of a rank, in a file of a folder if there is one."""
        return ShardBuilder(
            n_features=self.n_features,
            dtype=self.dtype,
            sparse=self.sparse,
            shuffle=self.shuffle,
            # Neighbours in the listing are dealt to different ranks, which should not visit them at the same time.
            seed=self.seed + _SEED_STEP * rank_number,
            folder=folder,
            weight_scale=self.weight_scale,
            copies=copies,
            spread_classes=self.spread_classes,
        )


def weight_scale_of(summaries: Sequence[BlockSummary], *, is_part: bool) -> float:
    """Return the factor by which weights of visits add up to the number of visits.

    The mean loss of a visit is then the mean loss by the sample weights as they were given. It is rounded to float32,
    so that it does not depend on the blocks that the sums were taken over, and is one for whole numbers up to 16. So it
    is for a call of ``partial_fit``, where a weight says how much the call counts, and not only its rows.
    """
    if is_part or all(summary.weight is None for summary in summaries):
        return 1.0
    total = sum(summary.rows if summary.weight is None else summary.weight for summary in summaries)
    return float(np.float32(sum(summary.visits for summary in summaries) / total)) if total > 0.0 else 1.0


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
