"""Making the shard of a rank of its blocks, on the rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from dsgd.inputs.blocks import Block, BlockSummary, hold_out, widen
from dsgd.inputs.shared import scratch_folder, visit
from dsgd.local.blocks import WINDOW_BYTES, Selection
from dsgd.local.ingest import ShardBuilder
from dsgd.local.shard import STRIDE_BYTES
from dsgd.runtime.memory import MemoryDemand
from dsgd.runtime.train.job import TrainData
from dsgd.runtime.train.visits import entries_per_call
from dsgd.stages import stage
from dsgd.types import AnyArray

#: What to do with rows that are more than memory.
OUT_OF_CORE_ADVICE: Final = (
    "Set client=Gang(out_of_core=True) to keep rows on the disks of the workers, give workers more memory, or use "
    "more workers."
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
    """Packs the blocks of a rank into its shards; without `held_out` each rank draws the rows that it holds out."""

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
        self._look(blocks, rank_number, training, validation)
        for X, _, _ in visit(blocks):
            training.place(widen(X, self.n_features))
            if self.validation_fraction:
                validation.place(widen(X, self.n_features))
        shard = replace(training.finish(), seed=self.seed if self.shuffle else None)
        return TrainData(shard, validation.finish() if self.validation_fraction else None)

    def _look(
        self, blocks: Sequence[Block], rank_number: int, training: ShardBuilder, validation: ShardBuilder
    ) -> None:
        """Show all blocks to both builders; apart, so that no column is held longer."""
        rng = np.random.default_rng([self.seed, rank_number]) if self.validation_fraction else None
        for X, y, weights in visit(blocks):
            if isinstance(X, Selection):
                y, weights = X.of(y), None if weights is None else X.of(weights)
            X, targets = widen(X, self.n_features), self.targets(y)
            if rng is None:
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

    Rounded to float32, so that it does not depend on blocks, and one for whole numbers up to 16 and for `partial_fit`,
    where a weight says how much the call counts.
    """
    if is_part or all(summary.weight is None for summary in summaries):
        return 1.0
    total = sum(summary.rows if summary.weight is None else summary.weight for summary in summaries)
    return float(np.float32(sum(summary.visits for summary in summaries) / total)) if total > 0.0 else 1.0
