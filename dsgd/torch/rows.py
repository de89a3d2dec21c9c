"""The rows of a rank as tensors: images, sequences or plain features, with their targets."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import torch

from dsgd.kernels.order import mix64_each
from dsgd.kernels.rows import fingerprint_dense
from dsgd.local.base import AbstractRows
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
