"""Row blocks on the disks of the workers, for data larger than their memory.

Problem: Dask holds the blocks of a collection in the memory of its workers, or compresses them to disk when memory runs
out and reads them back whole. Rows that are read only twice need neither.

Method: a block is copied into an unnamed file in the local directory of the worker that made it, and Dask holds the
mapping of that file. It costs no memory while it is not read, and Dask's reference counts decide when the file is
removed. The files of a worker that dies vanish with it; Dask computes their blocks again like any others. Blocks are
sent to other workers as plain arrays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import scipy.sparse as sp

from dsgd.inputs.asked import Expected
from dsgd.inputs.blocks import Block, BlockSummary, make_block, summarise
from dsgd.local.mapped import MappedFile, mapped_bytes
from dsgd.types import AnyArray


class SpooledBlock:
    """A block (X, y, sample_weight) whose arrays lie in a file; iterates over the three."""

    def __init__(self, block: Block, mapping: MappedFile) -> None:
        self._block, self._mapping = block, mapping

    def __iter__(self) -> Iterator[Any]:
        return iter(self._block)

    def release(self) -> None:
        """Release the memory of the block until it is read again."""
        self._mapping.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._block,)


def spool(block: Block, folder: str | None = None) -> Block | SpooledBlock:
    """Copy a block to disk."""
    X, y, weights = block
    if X.dtype.kind not in "fiub" or X.ndim != 2:
        return block
    arrays = [X.data, X.indices, X.indptr] if sp.issparse(X) else [X]
    sizes = [array.nbytes for array in (*arrays, y, weights) if _is_plain(array)]
    mapping = MappedFile(folder or scratch_folder(), mapped_bytes(*sizes))
    mapped = [mapping.put(array) for array in arrays]
    rows = sp.csr_array(tuple(mapped), shape=X.shape) if sp.issparse(X) else mapped[0]
    y, weights = (mapping.put(column) if _is_plain(column) else column for column in (y, weights))
    return SpooledBlock((rows, y, weights), mapping)


def make_spooled_block(X: Any, y: Any = None, sample_weight: Any = None) -> Block | SpooledBlock:
    """Convert a chunk, partition or tuple to a block on disk; see `make_block`."""
    return spool(make_block(X, y, sample_weight))


def look(block: Block | SpooledBlock, expected: Expected) -> BlockSummary:
    """Summarise a block, see `summarise`. A block on disk takes no memory afterwards."""
    (summary,) = [summarise(b, **asdict(expected)) for b in visit([block])]
    return summary


def visit(blocks: Iterable[Any]) -> Iterator[Block]:
    """Yield blocks one at a time; a block on disk releases its memory when the next one is requested."""
    for block in blocks:
        if isinstance(block, SpooledBlock):
            yield tuple(block)
            block.release()
        else:
            yield block


def scratch_folder() -> str:
    """Return where this process may put large files: the local directory of its worker, else that of the system."""
    from distributed import get_worker

    try:
        folder: str = get_worker().local_directory
    except ValueError:
        return tempfile.gettempdir()
    return folder


def _is_plain(column: AnyArray | None) -> bool:
    """Return whether an array is bytes, and not references to objects."""
    return column is not None and not column.dtype.hasobject
