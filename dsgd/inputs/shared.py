"""Blocks of this machine: in memory that local workers share, in files, and of simulated ranks."""

from __future__ import annotations

import math
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp

from dsgd.comm.memory.segment import Segment, shared_folder
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.inputs import blocks as row_blocks
from dsgd.kernels.rows import take_entries
from dsgd.local.shard import MappedFile, mapped_bytes, word_type
from dsgd.runtime.rank import GangResult
from dsgd.types import AnyArray, IndexVector

if TYPE_CHECKING:
    from dsgd.runtime.gang.cluster import Cluster
    from dsgd.sim import SimulatedCluster


_FROM_BYTES: Final = 1 << 20

#: Arrays begin at multiples of it.
_LINE: Final = 64
_PROOF_BYTES: Final = 4096

#: A block may take so much of the free memory of this kind: ranks and other programs need some, too.
_SHARE: Final = 0.5

#: For each client, which workers have found a segment and which have not.
_KNOWN: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()


class _Part(NamedTuple):
    """An array to be written, and what writes it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Callable[[AnyArray], object]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class _Place(NamedTuple):
    """Where an array lies in a segment."""

    first: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def array(self, segment: Segment) -> AnyArray:
        """Return the array; it keeps the memory."""
        found: AnyArray = np.ndarray(self.shape, self.dtype, buffer=segment.array, offset=self.first)
        return found


class SharedBlock:
    """A block in a segment, made by `share_block`. Unpickled it is the block itself: a tuple (X, y, sample_weight).

    Rows of an array of this process would travel to a worker as messages of Dask, copied into a socket and out of it by
    one thread. Instead they are copied into a segment (`dsgd.comm.memory.segment`), without the interpreter lock; Dask
    sends this object, pickled as the name of its segment, and unpickling it on a worker of the same host maps the
    segment. Then the segment loses its name, and the system frees it with the arrays of the worker. To whatever happens
    later the block is like any other: Dask may move, spill or lose it. A worker is handed segments after it has found
    one that was made for it to find. Where it cannot, where less than twice the memory is free, and for blocks below
    `_FROM_BYTES`, Dask sends the rows.
    """

    def __init__(
        self,
        segment: Segment,
        places: Mapping[str, _Place],
        sent: Mapping[str, AnyArray],
        form: tuple[type[Any], int] | None,
    ) -> None:
        self._segment, self._rest = segment, (dict(places), dict(sent), form)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays in the segment."""
        places: dict[str, _Place] = self._rest[0]
        return sum(place.nbytes for place in places.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return _mapped, (self._segment.name, len(self._segment.array), *self._rest)

    def unlink(self) -> None:
        """Take the name of the segment away; a process that has mapped it keeps it."""
        self._segment.unlink()


def share_block(rows: row_blocks.Block, partition: row_blocks.Partition, k: int) -> SharedBlock | None:
    """Copy block k of a partition into shared memory; None if it is small, holds no numbers, or finds no room."""
    X, y, weights = rows
    mine = partition.rows(k)
    columns = {"y": y, "weights": weights}
    parts: dict[str, _Part] = {}
    if sp.issparse(X):
        parts.update(_sparse_parts(X, mine))
    elif not X.dtype.hasobject:
        columns["X"] = X
    n_rows = partition.n_rows(k)
    for name, column in columns.items():
        if column is not None and not column.dtype.hasobject:
            parts[name] = _Part((n_rows, *column.shape[1:]), column.dtype, partial(_take, column, mine))
    if "X" not in parts or sum(part.nbytes for part in parts.values()) < _FROM_BYTES:
        return None
    sent = {name: column[mine] for name, column in columns.items() if column is not None and name not in parts}
    form = (type(X), X.shape[1]) if sp.issparse(X) else None
    written = _written(parts)
    return None if written is None else SharedBlock(*written, sent, form)


def neighbours(cluster: Cluster, workers: Sequence[str]) -> set[str]:
    """Return the workers that can be handed blocks in shared memory: each is asked once whether it finds a segment."""
    known = _KNOWN.setdefault(cluster.client, {})
    # Workers inside this process are given the arrays themselves.
    asked = [address for address in workers if address not in known and not address.startswith("inproc://")]
    if asked:
        known.update(_asked(cluster, asked))
    return {address for address in workers if known.get(address, False)}


def _written(parts: Mapping[str, _Part]) -> tuple[Segment, dict[str, _Place]] | None:
    """Return a segment with these arrays one after another, and where each of them lies."""
    places: dict[str, _Place] = {}
    size = 0
    for name, part in parts.items():
        places[name] = _Place(size, part.shape, part.dtype.str)
        size += -(-part.nbytes // _LINE) * _LINE
    try:
        if size > _SHARE * shutil.disk_usage(shared_folder()).free:
            return None
        segment = Segment.create(size)
    except OSError:
        return None
    try:
        for name, part in parts.items():
            part.fill(places[name].array(segment))
    except BaseException:
        segment.unlink()
        raise
    return segment, places


def _take(column: AnyArray, rows: slice | IndexVector, out: AnyArray) -> None:
    """Write some rows of an array."""
    if isinstance(rows, slice) or not column.flags.c_contiguous:
        out[...] = column[rows]
    else:
        # Straight to `out`, which raising for a wrong number would not allow.
        np.take(column, rows, axis=0, out=out, mode="clip")


def _sparse_parts(X: Any, mine: slice | IndexVector) -> dict[str, _Part]:
    """Return the arrays of some rows of a CSR matrix; entries go straight from there to where they will lie."""
    lengths = np.diff(X.indptr)[mine]
    starts = np.zeros(lengths.shape[0] + 1, X.indptr.dtype)
    np.cumsum(lengths, out=starts[1:])
    parts = {"indptr": _Part(starts.shape, starts.dtype, partial(_copy, starts))}
    for name, entries in (("X", X.data), ("indices", X.indices)):
        fill = partial(_take_entries, entries, X.indptr, mine, starts)
        parts[name] = _Part((int(starts[-1]),), entries.dtype, fill)
    return parts


def _copy(array: AnyArray, out: AnyArray) -> None:
    out[...] = array


def _take_entries(
    entries: AnyArray, indptr: AnyArray, rows: slice | IndexVector, starts: AnyArray, out: AnyArray
) -> None:
    """Write the entries of some rows, which begin at `starts` of `out`."""
    if isinstance(rows, slice):
        out[...] = entries[indptr[rows.start] : indptr[rows.stop]]
    elif entries.itemsize in (4, 8) and all(array.flags.carray for array in (entries, indptr)):
        bits = word_type(entries.dtype)
        take_entries(
            entries.view(bits), indptr.view(word_type(indptr.dtype)), rows.astype(np.int64), starts, out.view(bits)
        )
    else:
        # Other types are rare, and the kernel would be compiled once more for arrays that cannot be written to.
        out[...] = entries[np.arange(starts[-1]) + np.repeat(indptr[rows] - starts[:-1], np.diff(starts))]


def _mapped(
    name: str,
    size: int,
    places: Mapping[str, _Place],
    sent: Mapping[str, AnyArray],
    form: tuple[type[Any], int] | None,
) -> row_blocks.Block:
    """Return the block that lies in a segment."""
    segment = Segment.open(name, size)
    segment.close()
    found = {**{each: place.array(segment) for each, place in places.items()}, **sent}
    X = found["X"]
    if form is not None:
        kind, width = form
        X = kind((X, found["indices"], found["indptr"]), shape=(len(found["indptr"]) - 1, width), copy=False)
    return X, found.get("y"), found.get("weights")


def _asked(cluster: Cluster, workers: Sequence[str]) -> dict[str, bool]:
    """Return which workers find a segment that is made for this."""
    try:
        segment = Segment.create(_PROOF_BYTES)
    except OSError:
        return dict.fromkeys(workers, False)
    secret = secrets.token_bytes(16)
    segment.array[: len(secret)] = np.frombuffer(secret, np.uint8)
    try:
        found = cluster.run(_finds, segment.name, secret, workers=workers)
    finally:
        segment.unlink()
    return {address: answer is True for address, answer in found.items()}


def _finds(name: str, secret: bytes) -> bool:
    """Return whether a segment of that name is here, and begins with `secret`."""
    try:
        segment = Segment.open(name, _PROOF_BYTES)
    except OSError:
        return False
    segment.close()
    return bool(segment.array[: len(secret)].tobytes() == secret)


class SpooledBlock:
    """A block (X, y, sample_weight) whose arrays lie in a file; iterates over the three.

    A block that is read only twice need not stay in memory. It is copied into an unnamed file in the local directory of
    the worker that made it, and Dask holds the mapping: its reference counts decide when the file is removed. The files
    of a worker that dies vanish with it; Dask computes their blocks again. Other workers are sent plain arrays.
    """

    def __init__(self, block: row_blocks.Block, mapping: MappedFile) -> None:
        self._block, self._mapping = block, mapping

    def __iter__(self) -> Iterator[Any]:
        return iter(self._block)

    def release(self) -> None:
        """Release the memory of the block until it is read again."""
        self._mapping.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._block,)


def spool(block: row_blocks.Block, folder: str | None = None) -> row_blocks.Block | SpooledBlock:
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


def make_spooled_block(X: Any, y: Any = None, sample_weight: Any = None) -> row_blocks.Block | SpooledBlock:
    """Convert a chunk, partition or tuple to a block on disk; see `make_block`."""
    return spool(row_blocks.make_block(X, y, sample_weight))


def look(block: row_blocks.Block | SpooledBlock, expected: row_blocks.Expected) -> row_blocks.BlockSummary:
    """Summarise a block, see `summarise`. A block on disk takes no memory afterwards."""
    (summary,) = [row_blocks.summarise(b, **asdict(expected)) for b in visit([block])]
    return summary


def visit(blocks: Iterable[Any]) -> Iterator[row_blocks.Block]:
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


def is_simulated(client: Any) -> TypeGuard[SimulatedCluster]:
    """Return whether a client is a simulated cluster."""
    # Where nobody has loaded their class there are none, and to load it takes as long as many a fit.
    module = sys.modules.get("dsgd.sim.cluster")
    return module is not None and isinstance(client, module.SimulatedCluster)


@dataclass(frozen=True)
class SimulatedBlocks:
    """The counterpart of `dsgd.inputs.placed.ClusterBlocks` on a simulated cluster."""

    cluster: SimulatedCluster
    blocks: Sequence[row_blocks.Block]
    summaries: Sequence[row_blocks.BlockSummary]
    order: IndexVector | None = None

    def targets(self) -> AnyArray:
        """Return the targets of all rows, in the order of the blocks."""
        return np.concatenate([row_blocks.targets_of(block) for block in self.blocks])

    def run(self, work: row_blocks.Work, terms: row_blocks.Terms) -> GangResult:
        """Run a rank program over the blocks, as `ClusterBlocks.run`; how workers hold rows has no effect here."""
        for name, asked in terms.gang.given(of_workers=True).items():
            raise IncompatiblePartsError(
                f"{name}={asked!r} applies to real clusters, but client={self.cluster!r} is simulated. Leave it out."
            )
        blocks: list[Any] = list(self.blocks)
        beside = work.beside
        if work.numbered:
            beside = list(accumulate((s.rows for s in self.summaries[:-1]), initial=0))
        if beside is not None:
            blocks = [(*block, each) for block, each in zip(self.blocks, beside, strict=True)]
        data = [work.pack([block], rank) for rank, block in enumerate(blocks)]
        return self.cluster.run(
            work.program, data, work.args, on_event=terms.on_event, mail=work.mail, given=work.given
        )


def cut_rows(
    cluster: SimulatedCluster, rows: row_blocks.Block, expected: row_blocks.Expected, spread: row_blocks.Spread
) -> SimulatedBlocks:
    """Cut arrays into one block per rank, as for workers, and summarise each."""
    _check_spread(cluster, spread)
    X, _, weights = rows
    partition = row_blocks.partition_rows(X.shape[0], weights, cluster.ranks, seed=spread.seed)
    blocks = [partition.block(rows, k) for k in range(cluster.ranks)]
    return SimulatedBlocks(cluster, blocks, [look(block, expected) for block in blocks], partition.order)


def holds_blocks(X: Any) -> bool:
    """Return whether X is a list of the blocks of all ranks: tuples (X, y) or (X, y, sample_weight)."""
    return isinstance(X, (list, tuple)) and bool(X) and all(_is_block(item) for item in X)


def _is_block(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) in (2, 3) and len(getattr(item[0], "shape", ())) > 1


def take_rows(
    cluster: SimulatedCluster, X: Sequence[Any], expected: row_blocks.Expected, spread: row_blocks.Spread
) -> SimulatedBlocks:
    """Summarise the blocks of each rank without changing them, like blocks made on workers."""
    _check_spread(cluster, spread)
    if len(X) != cluster.ranks:
        raise InvalidDataError(f"X is a list of {len(X)} blocks, but client={cluster!r} wants one for each rank.")
    blocks = [row_blocks.make_block(block) for block in X]
    return SimulatedBlocks(cluster, blocks, [look(block, expected) for block in blocks])


def _check_spread(cluster: SimulatedCluster, spread: row_blocks.Spread) -> None:
    """Raise unless the cluster has the number of ranks asked for, and rows are in memory."""
    n_ranks = spread.n_ranks
    if n_ranks is not None and n_ranks != cluster.ranks:
        raise InvalidParameterError(f"n_jobs={n_ranks} is not what client={cluster!r} has: leave n_jobs at None.")
    if spread.on_disk:
        raise IncompatiblePartsError(f"out_of_core=True applies to real clusters, but client={cluster!r} is simulated.")
