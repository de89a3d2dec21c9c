"""The blocks of a rank packed into its shards; runs on the rank, beside the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsgd.inputs.blocks import Block, widen
from dsgd.local import Shard, concat_blocks
from dsgd.runtime.train import TrainData
from dsgd.types import AnyArray

__all__ = ["Packer", "hold_out"]


@dataclass(frozen=True)
class Packer:
    """Packs the blocks of a rank into its shards; sent to every rank.

    Parameters
    ----------
    classes : array or None
        All classes, sorted; None for regression.
    n_features : int
        Width of the model.
    dtype : str
        ``"float32"`` or ``"float64"``.
    sparse : bool
        Whether shards are CSR.
    shuffle : bool
        Whether rows are walked in the keyed order or as given.
    seed : int
        Seed of the order and of the validation split.
    validation_fraction : float
        Share of the rows held out; 0 for none.
    """

    classes: AnyArray | None
    n_features: int
    dtype: str
    sparse: bool
    shuffle: bool
    seed: int
    validation_fraction: float

    def __call__(self, blocks: Sequence[Block], rank_number: int) -> TrainData:
        """Return the rows of rank `rank_number`, made of its blocks in order."""
        encoded = [(widen(X, self.n_features), self.targets(y), weights) for X, y, weights in blocks]
        if not self.validation_fraction:
            return TrainData(self._pack(encoded))
        rng = np.random.default_rng([self.seed, rank_number])
        held_out = [
            hold_out(t, self.validation_fraction, rng, stratify=self.classes is not None) for _, t, _ in encoded
        ]
        kept = [_take(block, ~mask) for block, mask in zip(encoded, held_out, strict=True)]
        validation = [_take(block, mask) for block, mask in zip(encoded, held_out, strict=True)]
        return TrainData(self._pack(kept), self._pack(validation))

    def targets(self, y: AnyArray) -> AnyArray:
        """Return what the kernels learn: -1/+1 for two classes, codes for more, values for regression."""
        if self.classes is None:
            return np.asarray(y, dtype=self.dtype)
        codes = np.searchsorted(self.classes, y)
        return (2.0 * codes - 1.0 if len(self.classes) == 2 else codes).astype(self.dtype)

    def _pack(self, blocks: Sequence[Block]) -> Shard:
        return concat_blocks(
            blocks,
            n_features=self.n_features,
            dtype=self.dtype,
            sparse=self.sparse,
            shuffle=self.shuffle,
            seed=self.seed,
        )


def hold_out(targets: AnyArray, fraction: float, rng: np.random.Generator, *, stratify: bool) -> AnyArray:
    """Choose rows for validation.

    Parameters
    ----------
    targets : array, shape (n,)
        Encoded targets.
    fraction : float
        Share to hold out, of every class when stratified; at least one row of the whole is kept for training.
    rng : numpy.random.Generator
        Draws the rows.
    stratify : bool
        Whether each class gives its share.

    Returns
    -------
    array of bool, shape (n,)
        True where a row is held out.
    """
    mask = np.zeros(len(targets), dtype=bool)
    groups = [np.flatnonzero(targets == value) for value in np.unique(targets)] if stratify else [np.arange(len(mask))]
    for rows in groups:
        n_held = min(round(fraction * len(rows)), len(rows) - 1)
        mask[rng.permutation(rows)[: max(0, n_held)]] = True
    return mask


def _take(block: Block, mask: AnyArray) -> Block:
    X, targets, weights = block
    return X[mask], targets[mask], None if weights is None else weights[mask]
