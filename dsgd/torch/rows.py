"""The rows of a rank as tensors, their weights, and the running statistics that they leave in a module.

Weights: the weighted mean of all rows is sum w_i l_i / sum w_i, and a step sees one batch of one rank. So weights are
divided by their mean over all rows of all ranks, and the loss of a batch of n rows is sum w_i l_i / n. Its expectation
over batches is the weighted mean; of a batch with all rows, on however many ranks, it is the weighted mean itself, so
that whole numbers do what repeated rows do, and zeros what absent rows do. A batch whose rows all weigh nothing is a
step of zero, and not 0/0. Weights of one go the way of no weights.

Statistics: the running mean and variance of a batch normalisation are not trained; docs/torch.rst says what
``batch_norm`` makes of them. ``"average"`` is exact, since a running mean is linear in what goes into it.
``"recompute"`` leaves them while training lasts. Buffers of other layers are those of rank 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dsgd.errors import InvalidDataError
from dsgd.inputs.blocks import Block, BlockSummary, hold_out
from dsgd.inputs.frames import in_memory
from dsgd.inputs.rows import check_sample_weight
from dsgd.kernels.order import mix64_each
from dsgd.kernels.rows import fingerprint_dense
from dsgd.local.base import AbstractRows
from dsgd.local.shard import split
from dsgd.runtime.train import TrainData
from dsgd.torch.flat import NamedTensors
from dsgd.types import AnyArray

#: Rows of a forward pass without gradients.
ROWS_PER_LOOK: Final = 512

# A digest reads this many entries of the rows, spread over all of them.
_SAMPLE: Final = 65_536


@dataclass(frozen=True)
class TensorRows(AbstractRows):
    """Rows of a rank."""

    inputs: Any
    targets: Any
    shuffle: bool
    seed: int
    place: int = 0
    work: int = 1
    weights: Any = None

    @property
    def n_rows(self) -> int:
        """How many rows an epoch visits."""
        return len(self.inputs)

    @property
    def nbytes(self) -> int:
        """Bytes of inputs and targets; of a dataset they are not known."""
        return 0 if self.targets is None else int(self.inputs.nbytes + self.targets.nbytes)

    def rows(self, start: int, stop: int) -> Self:
        """Return rows start..stop; tensors are views, and of a dataset the others are left out."""
        if self.targets is None:
            return replace(self, inputs=torch.utils.data.Subset(self.inputs, range(start, stop)))
        weights = None if self.weights is None else self.weights[start:stop]
        return replace(self, inputs=self.inputs[start:stop], targets=self.targets[start:stop], weights=weights)

    def entries(self, start: int, stop: int) -> int:
        """Return the multiplications of a visit to rows start..stop."""
        return (stop - start) * self.work

    def digest(self) -> int:
        """Return a checksum over a sample of the rows; of a dataset, over its length."""
        if self.targets is None:
            return zlib.crc32(str(self.n_rows).encode())
        code = zlib.crc32(str(tuple(self.inputs.shape)).encode())
        for tensor in self._tensors:
            vector = tensor.reshape(-1).numpy()
            code = zlib.crc32(vector[:: max(1, vector.size // _SAMPLE)].tobytes(), code)
        return code

    def content(self) -> int:
        """Return the wrap-around sum of a hash of (input, target) over the rows; of a dataset, their number."""
        if self.targets is None:
            return self.n_rows
        total = 0
        for start in range(0, self.n_rows, ROWS_PER_LOOK):
            part = self.rows(start, start + ROWS_PER_LOOK)
            prints = np.zeros(part.n_rows, np.uint64)
            for tensor in part._tensors:
                # As bytes, so that all types of numbers are one.
                content = tensor.reshape(part.n_rows, -1).contiguous().view(torch.uint8).numpy()
                hashes = np.zeros(part.n_rows, np.uint64)
                fingerprint_dense(content.astype(np.uint32), hashes)
                prints = mix64_each(prints ^ hashes)
            total += int(prints.sum(dtype=np.uint64))
        return total % 2**64

    @property
    def _tensors(self) -> tuple[Any, ...]:
        """All that a row has."""
        return (self.inputs, self.targets) if self.weights is None else (self.inputs, self.targets, self.weights)

    def order(self, epoch: int) -> AnyArray | None:
        """Return the places of the rows in the order of an epoch; None is the order in which they are."""
        if not self.shuffle:
            return None
        return np.random.default_rng([self.seed, epoch]).permutation(self.n_rows)

    def batch(self, order: AnyArray | None, start: int, stop: int) -> tuple[Any, Any]:
        """Return the inputs and the targets of rows start..stop of an order, as tensors on the CPU."""
        if self.targets is None:
            numbers: Sequence[int] = range(start, stop) if order is None else order[start:stop].tolist()
            pairs = [self.inputs[k] for k in numbers]
            return torch.utils.data.default_collate(pairs)  # type: ignore[no-any-return]
        if order is None:
            return self.inputs[start:stop], self.targets[start:stop]
        places = torch.from_numpy(order[start:stop])
        return self.inputs.index_select(0, places), self.targets.index_select(0, places)

    def weights_of(self, order: AnyArray | None, start: int, stop: int) -> Any:
        """Return the weights of rows start..stop of an order, as a tensor on the CPU; None if all are one."""
        if self.weights is None:
            return None
        part = self.weights[start:stop] if order is None else self.weights[torch.from_numpy(order[start:stop])]
        return None if bool((part == 1.0).all()) else part


def as_tensor(values: Any, dtype: torch.dtype | None = None) -> Any:
    """Return an array as a tensor that shares its memory where it can; bools and other floats are converted."""
    array = np.ascontiguousarray(values)
    if not array.flags.writeable:
        # A view of memory that nobody may write to, such as a block that Dask holds.
        array = array.copy()
    tensor = torch.from_numpy(array)
    is_number = tensor.is_floating_point() or tensor.dtype == torch.bool
    return tensor.to(dtype) if dtype is not None and is_number else tensor


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
            rows = self._rows(
                as_tensor(X, getattr(torch, self.dtype)), self.targets(y), rank_number, self._weights(blocks)
            )
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


def checked_weights(sample_weight: Any, X: Any) -> AnyArray | None:
    """Return checked weights in float64, whatever numbers the rows are made of."""
    return check_sample_weight(in_memory(sample_weight), np.empty((len(X), 0)))


def mean_weight(summaries: Sequence[BlockSummary]) -> float | None:
    """Return the mean weight of the rows of all blocks; None if no block has weights."""
    if all(summary.weight is None for summary in summaries):
        return None
    total = sum(summary.rows if summary.weight is None else summary.weight for summary in summaries)
    if not total:
        raise InvalidDataError("Sample weights must contain at least one non-zero number.")
    return total / sum(summary.rows for summary in summaries)


#: What becomes of running statistics.
BatchNormPolicy: TypeAlias = Literal["average", "local", "recompute"]
_RUNNING = "running"


class ModuleStatistics(NamedTensors):
    """The buffers of a module, as one vector for the running statistics and one of each dtype for all others."""

    def __init__(self, module: nn.Module) -> None:
        #: Layers that keep running statistics.
        self.layers = [m for m in module.modules() if isinstance(m, _NormBase) and m.running_mean is not None]
        running = [b for layer in self.layers for b in (layer.running_mean, layer.running_var) if b is not None]
        kinds: dict[str, list[torch.Tensor]] = {}
        for tensor in running:
            kinds.setdefault(f"{_RUNNING}.{tensor.dtype}", []).append(tensor)
        known = {id(tensor) for tensor in running}
        for tensor in module.buffers():
            if id(tensor) not in known:
                kinds.setdefault(f"other.{tensor.dtype}", []).append(tensor)
        # numpy has no bfloat16.
        super().__init__(
            {n.replace("torch.", ""): found for n, found in kinds.items() if found[0].dtype != torch.bfloat16}
        )

    def running(self) -> AnyArray | None:
        """Return the running statistics, shape (n,); None if there are none."""
        return next((v for name, v in self.vectors().items() if name.startswith(_RUNNING)), None)

    def load(self, vectors: dict[str, AnyArray]) -> None:
        """Take up buffers that another copy of the module had."""
        self._may_differ = True
        for name, vector in vectors.items():
            self._flat[name].host[...] = vector.reshape(self._flat[name].host.shape)
        self.to_device()

    def recompute(self, module: nn.Module, rows: TensorRows, device: torch.device) -> None:
        """Replace running statistics by those of one pass over the rows; batches count alike."""
        momenta = [layer.momentum for layer in self.layers]
        module.eval()
        for layer in self.layers:
            layer.reset_running_stats()
            layer.momentum = None
            layer.train()
        with torch.no_grad():
            n_batches = -(-rows.n_rows // ROWS_PER_LOOK)
            for k in range(n_batches):
                inputs, _ = rows.batch(None, *split(rows.n_rows, n_batches, k))
                module(inputs.to(device))
        for layer, momentum in zip(self.layers, momenta, strict=True):
            layer.momentum = momentum
