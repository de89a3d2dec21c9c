"""Conversion of a user's data to row blocks on the cluster.

Dask arrays, dataframes, lists of delayed blocks, futures and svmlight files become one future per block, each a tuple
(X, y, sample_weight) on the worker that made it. Arrays of this process are cut by rows and handed to workers of this
host through shared memory (`dsgd.inputs.shared`). Others are sent them; they pass through the scheduler only if the
workers cannot be reached.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dsgd.errors import ClusterError, InvalidDataError, MemoryLimitError, PartitionMismatchError
from dsgd.inputs.blocks import Block, Partition, Spread, make_block, nbytes_of, partition_rows, side_by_side
from dsgd.inputs.frames import column_values
from dsgd.inputs.shared import SharedBlock, neighbours, share_block, spool
from dsgd.inputs.table_files import are_table_files
from dsgd.runtime.memory import refuse
from dsgd.stages import stage

if TYPE_CHECKING:
    from dsgd.runtime.gang.cluster import Cluster


# Blocks that are sent to be put on disk.
_PART_BYTES: Final = 32 << 20


def _computed(values: list[Any]) -> Any:
    """Compute delayed values on the current cluster, or in this process."""
    import dask

    return list(dask.compute(*values))


def is_collection(X: Any) -> bool:
    """Return whether X is a dask collection."""
    return hasattr(X, "__dask_graph__") and (hasattr(X, "dtype") or hasattr(X, "columns"))


def is_distributed(X: Any) -> bool:
    """Return whether X is, or can be made, on a cluster: dask collection, list of blocks, or svmlight file(s)."""
    return is_collection(X) or _is_path(X) or (isinstance(X, (list, tuple)) and bool(X) and _is_block(X[0]))


def feature_names(X: Any) -> Any:
    """Return the column names of a dask dataframe if all are strings, else None."""
    columns = getattr(X, "columns", None)
    if columns is None or not all(isinstance(c, str) for c in columns):
        return None
    return np.asarray(columns, dtype=object)


def check_targets(X: Any, y: Any, sample_weight: Any, *, supervised: bool = True) -> None:
    """Raise unless targets come from one source: an argument beside a collection, or blocks and files."""
    if is_collection(X):
        if y is None and supervised:
            raise InvalidDataError(
                "This estimator requires y to be passed, but the target y is None: pass a collection cut like X."
            )
    elif y is not None or sample_weight is not None:
        raise InvalidDataError(
            "y and sample_weight must be None when X is a list of blocks or files: "
            "a block is a tuple (X, y) or (X, y, sample_weight), a svmlight file holds its targets."
        )


def to_delayed_blocks(
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    supervised: bool = True,
    build: Callable[..., Any] = make_block,
    compute: Callable[[list[Any]], Any] = _computed,
) -> list[Any]:
    """Return one delayed (X, y, sample_weight) per row block."""
    import dask

    check_targets(X, y, sample_weight, supervised=supervised)
    build = dask.delayed(build, pure=False)
    if is_collection(X):
        rows, *others = _cut_alike(X, {"y": y, "sample_weight": sample_weight}, compute)
        return [build(*block) for block in zip(rows, *others, strict=True)]
    if _is_path(X) or _is_path(X[0]):
        if are_table_files(X):
            raise InvalidDataError(
                f"{X!r:.80}: fit of SGDClassifier and SGDRegressor reads tables from files; here pass a dask "
                "dataframe, as dask.dataframe.read_parquet returns."
            )
        from dsgd.datasets import read_svmlight

        return [build(block) for block in read_svmlight(X)]
    return [build(block) for block in X]


def check_room(cluster: Cluster, X: Any, advice: str) -> None:
    """Refuse rows of known size that exceed the memory of all workers, before any of them is computed."""
    if not isinstance(getattr(X, "_meta", None), np.ndarray) or _known_rows(X) is None or X.dtype.kind not in "fiub":
        return
    needed = X.size * (4 if X.dtype == np.float32 else 8)
    for is_last in (False, True):
        workers = cluster.survey([])["workers"]
        limits = [worker["memory_limit"] for worker in workers]
        used = sum(worker["memory_used"] for worker in workers)
        if not all(limits):
            return
        try:
            who = f"packing X, of shape {X.shape}, on {len(limits)} workers"
            refuse(who, needed, used=used, memory_limit=sum(limits), advice=advice)
            return
        except MemoryLimitError:
            # The memory use of workers is known from heartbeats; that of the last job may be free by now.
            if is_last:
                raise
            time.sleep(1.0)


def scatter_rows(cluster: Cluster, X: Any, y: Any, sample_weight: Any, spread: Spread) -> tuple[list[Any], Partition]:
    """Cut arrays of this process into row blocks, those of a worker consecutive, and send each to its worker."""
    threads = sorted(cluster.threads.items())
    places = [address for address, n in threads for _ in range(min(n, spread.ranks_per_worker or n))]
    n_ranks, pieces = spread.n_ranks or len(places), spread.pieces
    if spread.on_disk:
        pieces = max(pieces, -(-nbytes_of(X) // (n_ranks * _PART_BYTES)))
    partition = partition_rows(X.shape[0], sample_weight, n_ranks, pieces=pieces, seed=spread.seed)
    homes = [[places[k * len(places) // partition.n_blocks]] for k in range(partition.n_blocks)]
    futures: list[Any] = [None] * partition.n_blocks
    if not spread.on_disk:
        futures = _handed(cluster, (X, y, sample_weight), partition, homes)
    last: list[Any] = []
    for k in partition.reading_order():
        if futures[k] is not None:
            continue
        futures[k] = scatter_block(cluster, X, y, sample_weight, partition, k, homes[k], on_disk=spread.on_disk)
        if spread.on_disk:
            # A block that is not yet on disk is in memory, on the client and on the worker.
            with stage("hand over"):
                cluster.settle(last, "writing rows to the disks of workers")
            last = [futures[k]]
    return futures, partition


def _handed(cluster: Cluster, rows: Block, partition: Partition, homes: Sequence[Sequence[str]]) -> list[Any]:
    """Hand blocks to workers of this host through shared memory; return their futures, None for all others."""
    with stage("hand over") as it:
        near = neighbours(cluster, sorted({home[0] for home in homes}))

        shared: dict[int, SharedBlock] = {}

        def share(k: int) -> None:
            block = share_block(rows, partition, k) if homes[k][0] in near else None
            if block is not None:
                shared[k] = block

        futures: list[Any] = [None] * partition.n_blocks
        try:
            if near:
                side_by_side(share, partition.n_blocks)
            numbers = sorted(shared)
            found = cluster.scatter([shared[k] for k in numbers], [homes[k] for k in numbers])
            for k, future in zip(numbers, found, strict=True):
                # Where a worker could not take its block, the rows are sent.
                futures[k] = None if isinstance(future, OSError) else future
                it.nbytes += 0 if futures[k] is None else shared[k].nbytes
        finally:
            for block in shared.values():
                block.unlink()
    return futures


def scatter_block(
    cluster: Cluster,
    X: Any,
    y: Any,
    sample_weight: Any,
    partition: Partition,
    k: int,
    workers: list[str] | None = None,
    *,
    on_disk: bool = False,
) -> Any:
    """Send block k of a partition to one of `workers`, or to any if they cannot take it; see `scatter_rows`."""
    with stage("hand over") as it:
        block = partition.block((X, y, sample_weight), k)
        it.nbytes = nbytes_of(*block)
        for homes in (workers or [], []):
            [future] = cluster.scatter([block], [homes])
            if not isinstance(future, OSError):
                return cluster.submit(spool, future, workers=homes or None) if on_disk else future
    raise ClusterError(f"no worker of the cluster takes block {k} of the rows: {future}.") from future


def _is_path(X: Any) -> bool:
    if isinstance(X, (str, os.PathLike)):
        return True
    return isinstance(X, (list, tuple)) and bool(X) and isinstance(X[0], (str, os.PathLike))


def _is_block(item: Any) -> bool:
    return isinstance(item, (str, os.PathLike)) or (
        hasattr(item, "key") and (hasattr(item, "__dask_graph__") or hasattr(item, "client"))
    )


def _cut_alike(X: Any, others: dict[str, Any], compute: Callable[[list[Any]], Any]) -> list[list[Any]]:
    """Return the row blocks of a collection and of its targets and weights, cut alike."""
    named = {"X": X, **{name: np.asarray(v) if isinstance(v, (list, tuple)) else v for name, v in others.items()}}
    # Dask merges partitions when it reads few columns, so each frame by itself would be cut differently.
    is_alone = sum(map(_is_frame, named.values())) < 2
    ours = _row_parts(X, "X", optimize=is_alone)
    rows = _known_rows(X)
    cut: list[list[Any]] = [ours]
    for name in others:
        values = named[name]
        if values is None:
            cut.append([None] * len(ours))
            continue
        is_lazy = is_collection(values)
        parts = _row_parts(values, name, optimize=is_alone) if is_lazy else [values]
        theirs = _known_rows(values) if is_lazy else [len(values)]
        if is_lazy and len(parts) == len(ours) and (rows is None or theirs is None or rows == theirs):
            cut.append(parts)
            continue
        if is_lazy and rows is not None and theirs is not None:
            raise PartitionMismatchError(
                f"X has {len(ours)} blocks of {_short(rows)} rows and {name} has {len(parts)} blocks of "
                f"{_short(theirs)} rows. Rechunk them alike."
            )
        rows = compute([_n_rows(part) for part in ours]) if rows is None else rows
        theirs = compute([_n_rows(part) for part in parts]) if theirs is None else theirs
        cut.append(_recut(parts, theirs, rows, name))
    return cut


def _recut(parts: Sequence[Any], theirs: Sequence[int], ours: Sequence[int], name: str) -> list[Any]:
    """Concatenate `parts` of known numbers of rows and cut them into blocks of other numbers of rows."""
    import dask

    if sum(theirs) != sum(ours):
        raise PartitionMismatchError(f"X has {sum(ours)} rows and {name} has {sum(theirs)}.")
    joined = dask.delayed(_joined, pure=False)
    starts = np.cumsum([0, *theirs])
    blocks, begin = [], 0
    for n in ours:
        # At least one part, to give an empty block its dtype.
        first = max(0, min(int(np.searchsorted(starts, begin, "right")) - 1, len(parts) - 1))
        last = max(first + 1, int(np.searchsorted(starts, begin + n, "left")))
        spans = [(max(0, begin - int(start)), max(0, begin + n - int(start))) for start in starts[first:last]]
        if len(parts) == 1 and not hasattr(parts[0], "__dask_graph__"):
            blocks.append(_taken(parts[0], *spans[0]))
        else:
            blocks.append(joined(list(parts[first:last]), spans, name))
        begin += n
    return blocks


def _joined(parts: Sequence[Any], spans: Sequence[tuple[int, int]], name: str) -> Any:
    """Return the concatenation of some rows of some parts."""
    taken = [column_values(_taken(part, *span), name) for part, span in zip(parts, spans, strict=True)]
    return taken[0] if len(taken) == 1 else np.concatenate(taken)


def _taken(values: Any, start: int, stop: int) -> Any:
    return values.iloc[start:stop] if hasattr(values, "iloc") else values[start:stop]


def _n_rows(part: Any) -> Any:
    import dask

    return dask.delayed(_length, pure=False)(part)


def _length(part: Any) -> int:
    return int(part.shape[0]) if hasattr(part, "shape") else len(part)


def _is_frame(values: Any) -> bool:
    """Return whether values are a dask dataframe or series."""
    return is_collection(values) and hasattr(values, "map_partitions") and hasattr(values, "npartitions")


def _row_parts(X: Any, name: str, *, optimize: bool = True) -> list[Any]:
    """Return the row blocks of a collection as delayed objects; of a frame, without `optimize`, its partitions."""
    if _is_frame(X):
        try:
            # Unused columns are not read; without `optimize`, partitions keep their boundaries.
            X = X if optimize else X.simplify()
            return list(np.ravel(X.to_delayed(optimize_graph=optimize)))
        except ValueError:  # dask's optimizer does not know how to choose columns after categorize()
            return list(X.to_delayed(optimize_graph=False))
    if hasattr(X, "chunks") and X.ndim >= 2:
        for axis, n_blocks in enumerate(X.numblocks[1:], start=1):
            if n_blocks > 1:
                what = "columns" if X.ndim == 2 else f"axis {axis}"
                raise InvalidDataError(
                    f"{name} is chunked along its {what} ({n_blocks} column blocks); a rank needs whole rows. "
                    f"Use {name}.rechunk({{{axis}: -1}})."
                )
    return list(np.ravel(X.to_delayed(optimize_graph=True)))


def _known_rows(X: Any) -> list[int] | None:
    chunks = getattr(X, "chunks", None)
    if chunks is None or any(np.isnan(n) for n in chunks[0]):
        return None
    return [int(n) for n in chunks[0]]


def _short(rows: Sequence[int]) -> str:
    head = ", ".join(str(n) for n in rows[:6])
    return f"[{head}{', ...' if len(rows) > 6 else ''}]"
