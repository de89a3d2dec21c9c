"""Array aliases: the name says the shape, docstrings say the meaning."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

AnyArray: TypeAlias = NDArray[Any]
FloatVector: TypeAlias = NDArray[np.floating[Any]]  # (n,), float32 or float64
FloatMatrix: TypeAlias = NDArray[np.floating[Any]]  # (n, m), float32 or float64, C-contiguous
IntVector: TypeAlias = NDArray[np.int64]  # (n,)
IntMatrix: TypeAlias = NDArray[np.int64]  # (n, m), C-contiguous
IndexVector: TypeAlias = NDArray[np.uint32]  # (nnz,), column numbers of a CSR shard
PointerVector: TypeAlias = NDArray[np.uint64]  # (n_rows + 1,), row starts of a CSR shard
ByteVector: TypeAlias = NDArray[np.uint8]  # (n,), what travels
WordVector: TypeAlias = NDArray[np.uint64]  # (n,), bits packed into words
