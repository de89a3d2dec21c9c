"""The blocks of a rank packed into its shards; runs on the rank, beside the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsgd.inputs.blocks import Block, widen
from dsgd.inputs.spool import scratch_folder, visit
from dsgd.local import ShardBuilder
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
    out_of_core : bool, default False
        Whether shards lie in files, and not in memory.
    """

    classes: AnyArray | None
    n_features: int
    dtype: str
    sparse: bool
    shuffle: bool
    seed: int
    validation_fraction: float
    out_of_core: bool = False

    def __call__(self, blocks: Sequence[Block], rank_number: int) -> TrainData:
        """Return the rows of rank `rank_number`, made of its blocks in order; each is looked at twice."""
        rng = np.random.default_rng([self.seed, rank_number])
        folder = scratch_folder() if self.out_of_core else None
        training, validation = self._builder(folder), self._builder(folder)
        for X, y, weights in visit(blocks):
            X, targets = widen(X, self.n_features), self.targets(y)
            if not self.validation_fraction:
                training.look(X, targets, weights)
                continue
            # A row of weight zero is not visited: each of the two shards takes the rows that the other leaves out.
            held_out = hold_out(targets, self.validation_fraction, rng, stratify=self.classes is not None)
            weights = np.ones(len(targets)) if weights is None else weights
            training.look(X, targets, np.where(held_out, 0.0, weights))
            validation.look(X, targets, np.where(held_out, weights, 0.0))
        for X, _, _ in visit(blocks):
            training.place(widen(X, self.n_features))
            if self.validation_fraction:
                validation.place(widen(X, self.n_features))
        return TrainData(training.finish(), validation.finish() if self.validation_fraction else None)

    def targets(self, y: AnyArray) -> AnyArray:
        """Return what the kernels learn: -1/+1 for two classes, codes for more, values for regression."""
        if self.classes is None:
            return np.asarray(y, dtype=self.dtype)
        codes = np.searchsorted(self.classes, y)
        return (2.0 * codes - 1.0 if len(self.classes) == 2 else codes).astype(self.dtype)

    def _builder(self, folder: str | None) -> ShardBuilder:
        return ShardBuilder(
            n_features=self.n_features,
            dtype=self.dtype,
            sparse=self.sparse,
            shuffle=self.shuffle,
            seed=self.seed,
            folder=folder,
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
