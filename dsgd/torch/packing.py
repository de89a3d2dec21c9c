"""Packing the blocks of a rank into tensors, on the rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from dsgd.errors import InvalidDataError
from dsgd.inputs.blocks import Block, hold_out
from dsgd.local.shard import split
from dsgd.runtime.train import TrainData
from dsgd.torch.rows import TensorRows, as_tensor
from dsgd.types import AnyArray

# Between the seeds of two ranks, so that those of neighbouring seeds of a user do not meet.
_SEED_STEP: Final = 7919


@dataclass(frozen=True)
class TensorPacker:
    """Packs the blocks of a rank; sent to every rank."""

    classes: AnyArray | None
    dtype: str
    shuffle: bool
    seed: int
    validation_fraction: float
    as_floats: bool
    work: int
    dataset: Callable[[int, int], Any] | None = None
    n_parts: int = 0
    mean_weight: float | None = None

    def __call__(self, blocks: Sequence[Block], rank_number: int) -> TrainData:
        """Return the rows of rank `rank_number`, made of its blocks in order."""
        pairs = [pair for block in blocks for pair in self._load(block)]
        if len(pairs) == 1 and len(pairs[0]) == 1:
            rows = self._rows(pairs[0][0], None, rank_number)
        elif any(len(pair) == 1 for pair in pairs):
            rows = self._rows(torch.utils.data.ConcatDataset([pair[0] for pair in pairs]), None, rank_number)
        elif pairs:
            filled = [pair for pair in pairs if len(pair[0])] or pairs[:1]
            X = filled[0][0] if len(filled) == 1 else np.concatenate([np.asarray(X) for X, _ in filled])
            y = np.concatenate([np.asarray(y) for _, y in filled])
            rows = self._rows(as_tensor(X, self._torch_dtype), self.targets(y), rank_number, self._weights(blocks))
        else:
            rows = self._rows(torch.zeros(0), torch.zeros(0), rank_number)
        if not self.validation_fraction or not rows.n_rows:
            return TrainData(rows, rows.rows(0, 0) if self.validation_fraction else None)
        codes = np.zeros(rows.n_rows) if rows.targets is None or rows.targets.ndim > 1 else rows.targets.numpy()
        rng = np.random.default_rng([self.seed, rank_number])
        stratify = self.classes is not None and rows.targets is not None
        held_out = hold_out(codes, self.validation_fraction, rng, stratify=stratify)
        return TrainData(_chosen(rows, ~held_out), _chosen(rows, held_out))

    def targets(self, y: AnyArray) -> torch.Tensor:
        """Return what the criterion takes: codes of classes, or numbers in the dtype of the module."""
        if self.classes is None:
            return torch.from_numpy(np.array(y, dtype=self.dtype))
        codes = np.searchsorted(self.classes, y)
        wrong = np.flatnonzero(self.classes[np.minimum(codes, len(self.classes) - 1)] != y)
        if wrong.size:
            raise InvalidDataError(f"y holds {y[wrong[0]]!r}, which is not among the classes {self.classes!r}.")
        return torch.from_numpy(codes.astype(self.dtype if self.as_floats else np.int64))

    @property
    def _torch_dtype(self) -> torch.dtype:
        return torch.float32 if self.dtype == "float32" else torch.float64

    def _rows(self, inputs: Any, targets: Any, rank: int, weights: Any = None) -> TensorRows:
        return TensorRows(inputs, targets, self.shuffle, self.seed + _SEED_STEP * rank, rank, self.work, weights)

    def _weights(self, blocks: Sequence[Block]) -> Any:
        """Return the weights of the rows of some blocks, as shares of the mean weight of all ranks."""
        if self.mean_weight is None or self.dataset is not None:
            return None
        given = [np.ones(len(X)) if weights is None else np.asarray(weights) for X, _, weights in blocks]
        return torch.from_numpy((np.concatenate(given) / self.mean_weight).astype(self.dtype))

    def _load(self, block: Block) -> list[tuple[Any, ...]]:
        """Return the (X, y) of a block, or what the dataset makes of the parts that it names."""
        if self.dataset is None:
            return [block[:2]]
        made = [self.dataset(int(part), self.n_parts) for part in np.asarray(block[0]).ravel()]
        return [tuple(part) if isinstance(part, (tuple, list)) else (part,) for part in made]


def cut(data: TrainData, n: int) -> list[TrainData]:
    """Return the rows of n ranks that are threads of one process: views, each with a seed and a number of its own."""

    def part(rows: Any, k: int) -> TensorRows:
        piece: TensorRows = rows.rows(*split(rows.n_rows, n, k))
        return replace(piece, seed=rows.seed + _SEED_STEP * k, place=rows.place + k)

    held_out = data.validation
    return [TrainData(part(data.shard, k), None if held_out is None else part(held_out, k)) for k in range(n)]


def _chosen(rows: TensorRows, mask: AnyArray) -> TensorRows:
    places = np.flatnonzero(mask)
    if rows.targets is None:
        return replace(rows, inputs=torch.utils.data.Subset(rows.inputs, places.tolist()))
    chosen = torch.from_numpy(places)
    inputs, targets = (part.index_select(0, chosen) for part in (rows.inputs, rows.targets))
    weights = None if rows.weights is None else rows.weights.index_select(0, chosen)
    return replace(rows, inputs=inputs, targets=targets, weights=weights)
