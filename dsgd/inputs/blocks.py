"""Blocks of rows: what they hold, how they are dealt to ranks, and what a fit asks of them.

Summaries are made on the workers, where the data is: a few numbers per block, so the client learns classes, counts,
widths and defects without receiving any rows.

**Assignment of rows to blocks.** The order of rows often has a meaning (a time series, one class after the other).
Ranks with consecutive rows then have different kinds of rows, and models that are rarely averaged suffer: on ijcnn1, a
time series, one average of the models of sixteen ranks is 1.8 points below one rank, and as good as it if rows are
assigned at random, which methods that average models assume.

Update: rows are dealt in the order of the listing, each to a rank drawn from those that have the fewest visits so far;
where there are very many, chunks of 32 neighbours. So every P neighbours go to P different ranks, and all ranks have
rows from everywhere in equal parts, to one visit or a chunk where no row has a weight. Who gets a row depends on (seed,
number of the row), so threads, workers and simulated ranks train on the same rows, and get the same model to the bit.
Blocks of all ranks with the same place come from the same part of an array, each in its order, so little of an array in
a file is in memory at a time.

Cost: 10 ns and 12 bytes per row, of very many 2 ns and 8 bytes; and a copy of the rows of a block while it is sent.
Threads of this process read the rows where they are.

Source: Zinkevich, Weimer, Smola and Li 2010, algorithm 3 ("randomly partition the examples"); here without replacement
from every P neighbours (systematic sampling).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.sparse import issparse

from dsgd.comm.memory.cores import count_cores
from dsgd.errors import InvalidDataError
from dsgd.inputs.frames import column_values, table_values
from dsgd.inputs.tables import is_table
from dsgd.kernels.order import CHUNK, deal_rows
from dsgd.local.blocks import Piece, Selection
from dsgd.local.shard import MAX_COPIES, count_visits, split
from dsgd.runtime.deployment import Gang
from dsgd.runtime.memory import MemoryDemand
from dsgd.runtime.rank import Mail, RankProgram
from dsgd.stages import carried, stage
from dsgd.types import AnyArray, FloatVector, IndexVector, IntVector
from dsgd.validation import warn_user

Block: TypeAlias = tuple[Any, Any, Any]  # X (n, d) dense or CSR, y (n,), sample_weight (n,) or None


#: The labels of the first rows are counted one by one, if they are few: to sort a column takes longer.
_FIRST_ROWS: Final = 1024
_FEW_LABELS: Final = 32


@dataclass(frozen=True)
class BlockSummary:
    """A summary of a block for the client."""

    rows: int
    n_features: int
    nbytes: int
    dtype: str
    sparse: bool
    classes: AnyArray | None = None
    counts: AnyArray | None = None
    problem: str = ""
    nnz: int = 0
    visits: int = 0
    weight: float | None = None
    least: float = math.inf


def make_block(X: Any, y: Any = None, sample_weight: Any = None) -> Block:
    """Convert a chunk, partition or tuple to (X, y, sample_weight) of numpy arrays and CSR matrices."""
    if isinstance(X, (tuple, list)) and y is None:
        X, y, sample_weight = (*X, None)[:3]
    if hasattr(X, "tocsr"):
        X = X.tocsr()
    else:
        X = table_values(X) if is_table(X) else np.asarray(X)
    if y is not None:
        y = column_values(y, "y")
        y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
    if sample_weight is not None:
        sample_weight = column_values(sample_weight, "sample_weight").ravel()
    return X, y, sample_weight


def summarise(
    block: Block,
    *,
    classification: bool,
    supervised: bool = True,
    any_shape: bool = False,
    rows_are_checked: bool = False,
) -> BlockSummary:
    """Summarise a block."""
    X, y, weights = block
    sparse = sp.issparse(X)
    problem = "" if rows_are_checked else _row_problem(X, any_shape=any_shape)
    problem = problem or _weight_problem(X, weights)
    if supervised and not problem:
        problem = _target_problem(X, y, classification=classification, any_shape=any_shape)
    n_features = X.shape[1] if X.ndim == 2 or (any_shape and X.ndim > 2) else 0
    classes = counts = None
    if classification and y is not None and not problem:
        try:
            classes, counts = _distinct(y)
        except TypeError as error:
            problem = f"y mixes labels that cannot be sorted ({error}); use one type of label"
            if any(label is None for label in y):
                problem = "y has missing values; drop the rows without a value"
    dtype = "float32" if X.dtype == np.float32 else "float64"
    n_visits = X.shape[0] if weights is None or problem else int(count_visits(np.asarray(weights, np.float64)).sum())
    nnz = int(X.nnz) if sparse else int(X.size)
    total = None if weights is None or problem else float(np.sum(weights, dtype=np.float64))
    has_numbers = supervised and not classification and not problem and len(y) > 0
    return BlockSummary(
        X.shape[0],
        n_features,
        nbytes_of(X),
        dtype,
        sparse,
        classes,
        counts,
        problem,
        nnz=nnz,
        visits=n_visits,
        weight=total,
        least=float(np.min(y)) if has_numbers else math.inf,
    )


def _distinct(y: AnyArray) -> tuple[AnyArray, IntVector]:
    """Return the labels, sorted, and how many rows have each; few of them are counted without sorting."""
    if len(y) > 8 * _FIRST_ROWS and len(labels := np.unique(y[:_FIRST_ROWS])) <= _FEW_LABELS:
        counts = np.array([np.count_nonzero(y == label) for label in labels])
        if counts.sum() == len(y):
            return labels, counts
    return np.unique(y, return_counts=True)


def summarise_part(rows: Block, mine: slice | IndexVector, **expected: bool) -> BlockSummary:
    """Summarise some rows of an array as the block of them would be, without taking them out."""
    X, y, weights = rows
    n_rows = mine.stop - mine.start if isinstance(mine, slice) else mine.shape[0]
    # As large as the rows, and of one number.
    outline = np.broadcast_to(np.zeros((), X.dtype), (n_rows, *X.shape[1:]))
    columns = [None if part is None else part[mine] for part in (y, weights)]
    found = summarise((outline, columns[0], columns[1]), **expected)
    if not sp.issparse(X):
        return found
    nnz = int(np.diff(X.indptr)[mine].sum())
    nbytes = nnz * (X.data.itemsize + X.indices.itemsize) + (n_rows + 1) * X.indptr.itemsize
    return replace(found, sparse=True, nnz=nnz, nbytes=nbytes)


def _row_problem(X: Any, *, any_shape: bool) -> str:
    if X.ndim != 2 and not (any_shape and X.ndim > 2):
        return f"X has {X.ndim} dimension(s), expected 2"
    if X.dtype.kind not in "fiub":
        return f"X has dtype {X.dtype}, expected numbers"
    values = X.data if sp.issparse(X) else X
    if values.dtype.kind == "f" and not (has_finite_sum(values) or np.isfinite(values).all()):
        return f"Input X contains {'NaN' if np.isnan(values).any() else 'infinity'}"
    return ""


def has_finite_sum(values: AnyArray) -> bool:
    """Return whether the sum of values is finite, as then each of them is: one pass that allocates nothing."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.sum(values)))


def _target_problem(X: Any, y: Any, *, classification: bool, any_shape: bool) -> str:
    if y is None:
        return "there are no targets: y is missing"
    has_shape = y.ndim == 1 or (any_shape and not classification and y.ndim == 2)
    if not has_shape or len(y) != X.shape[0]:
        return f"X has {X.shape[0]} rows and y has shape {y.shape}"
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        return "Input y contains NaN or infinity"
    if not classification and y.dtype.kind not in "fiub":
        return f"y has dtype {y.dtype}, expected numbers"
    return ""


def _weight_problem(X: Any, weights: Any) -> str:
    if weights is None:
        return ""
    if len(weights) != X.shape[0]:
        return f"X has {X.shape[0]} rows and sample_weight has {len(weights)}"
    if not np.isfinite(weights).all() or (weights < 0).any():
        return "sample_weight must be finite and not negative"
    return ""


def nbytes_of(*arrays: Any) -> int:
    """Return the bytes of arrays, CSR matrices and nothing (None)."""
    parts = [(a.data, a.indices, a.indptr) if sp.issparse(a) else (a,) for a in arrays if a is not None]
    return sum(int(part.nbytes) for each in parts for part in each)


def targets_of(block: Block) -> Any:
    """Return the targets of a block."""
    _, y, _ = block
    return y


def widen(X: Any, n_features: int) -> Any:
    """Return a CSR block with `n_features` columns, a view; svmlight files do not say how many there are."""
    if sp.issparse(X) and X.shape[1] < n_features:
        return sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], n_features))
    return X


def check_summaries(summaries: Sequence[BlockSummary]) -> None:
    """Raise for the first block that cannot be trained on, or if blocks do not match."""
    for number, summary in enumerate(summaries):
        if summary.problem:
            raise InvalidDataError(f"block {number} of {len(summaries)}: {summary.problem}.")
    if not sum(s.rows for s in summaries):
        raise InvalidDataError("Found array with 0 sample(s) in all blocks together; a minimum of 1 is required.")
    filled = [s for s in summaries if s.rows]
    if len({s.sparse for s in filled}) > 1:
        raise InvalidDataError("some blocks of X are sparse and some are dense. Convert them to one kind.")
    widths = {s.n_features for s in filled}
    if widths == {0}:
        raise InvalidDataError("Found array with 0 feature(s) in all blocks; a minimum of 1 is required.")
    if len(widths) > 1 and not filled[0].sparse:
        raise InvalidDataError(f"blocks of X have different numbers of features: {sorted(widths)}.")


def hold_out(targets: AnyArray, fraction: float, rng: np.random.Generator, *, stratify: bool) -> AnyArray:
    """Choose rows for validation."""
    mask = np.zeros(len(targets), dtype=bool)
    groups = [np.flatnonzero(targets == value) for value in np.unique(targets)] if stratify else [np.arange(len(mask))]
    for rows in groups:
        n_held = min(round(fraction * len(rows)), len(rows) - 1)
        mask[rng.permutation(rows)[: max(0, n_held)]] = True
    return mask


Packed = TypeVar("Packed")

# Who gets a row must be independent of the order in which ranks visit their rows, which has the same seed.
_SALT = 0xD6E8FEB86659FD93

# Of so many rows for each rank chunks stay together: lines and pages that several ranks read cost each of them.
_MANY_ROWS = 16_384


@dataclass(frozen=True)
class Partition:
    """The rows of every block, rank by rank, from `partition_rows`; `order` is None for consecutive rows."""

    stops: tuple[int, ...]
    pieces: int = 1
    order: IndexVector | None = None

    @property
    def n_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.stops) - 1

    @property
    def n_blocks(self) -> int:
        """How many blocks there are."""
        return self.n_ranks * self.pieces

    def rows(self, k: int) -> slice | IndexVector:
        """Return the rows of block k, ascending, as an index of the array."""
        start, stop = self._span(k)
        return slice(start, stop) if self.order is None else self.order[start:stop]

    def n_rows(self, k: int) -> int:
        """Return how many rows block k has."""
        start, stop = self._span(k)
        return stop - start

    def block(self, rows: Block, k: int) -> Block:
        """Return block k of (X, y, sample_weight)."""
        mine = self.rows(k)
        X, y, weights = rows
        return _taken(X, mine), None if y is None else y[mine], None if weights is None else weights[mine]

    def _span(self, k: int) -> tuple[int, int]:
        rank, piece = divmod(k, self.pieces)
        first, last = self.stops[rank : rank + 2]
        start, stop = split(last - first, self.pieces, piece)
        return first + start, first + stop

    def reading_order(self) -> list[int]:
        """Return the numbers of the blocks in the order in which they lie in the array."""
        blocks = range(self.n_blocks)
        return list(blocks) if self.order is None else sorted(blocks, key=lambda k: (k % self.pieces, k))


def partition_rows(
    n_rows: int, sample_weight: FloatVector | None, n_ranks: int, *, pieces: int = 1, seed: int | None = None
) -> Partition:
    """Assign the rows of an array to ranks."""
    visits = None if sample_weight is None else count_visits(np.asarray(sample_weight, np.float64))
    if seed is None or n_ranks == 1:
        return Partition(_stops(visits, n_rows, n_ranks), pieces)
    with stage("order"):
        run = CHUNK if n_rows >= _MANY_ROWS * n_ranks else 1
        pools, sizes = np.zeros((MAX_COPIES * run + 1, n_ranks), np.uint32), np.zeros(MAX_COPIES * run + 1, np.int64)
        pools[0], sizes[0] = np.arange(n_ranks), n_ranks
        ranks, order = np.empty(-(-n_rows // run), np.uint32), np.empty(n_rows, np.uint32)
        given = np.empty(0, np.int64) if visits is None else visits
        counts, heads = np.zeros((2, n_ranks), np.int64)
        dealt, key = (counts, heads, ranks, order), np.uint64((seed ^ _SALT) % 2**64)
        deal_rows(given, n_rows, run, key, (pools, sizes), dealt)
        return Partition(tuple(np.cumsum([0, *counts]).tolist()), pieces, order)


def pack_for_threads(
    rows: Block,
    n_ranks: int,
    pack: Callable[[Sequence[Block], int], Packed],
    *,
    seed: int | None,
    readable: Piece | None = None,
) -> list[Packed]:
    """Return the data of ranks that are threads of this process; each packs its own."""
    X, y, weights = rows
    with stage("pack"):
        partition = partition_rows(X.shape[0], weights, n_ranks, seed=seed)

        def share(rank: int) -> Packed:
            if readable is None:
                return pack([partition.block(rows, rank)], rank)
            mine = partition.rows(rank)
            index = None if n_ranks == 1 else np.arange(mine.start, mine.stop) if isinstance(mine, slice) else mine
            return pack([(Selection(readable, index, X.shape[1]), y, weights)], rank)

        return side_by_side(share, n_ranks)


def side_by_side(work: Callable[[int], Packed], n: int) -> list[Packed]:
    """Return ``work(k)`` for every k below n, each called in a thread of its own."""
    if n == 1:
        return [work(0)]
    with ThreadPoolExecutor(min(n, count_cores())) as threads:
        begun = [threads.submit(carried(work, leads=k == 0), k) for k in range(n)]
        return [each.result() for each in begun]


def _stops(visits: IntVector | None, n_rows: int, n_ranks: int) -> tuple[int, ...]:
    """Cut consecutive rows into parts of visits as equal as can be."""
    # Visits before each row, and all of them.
    before = np.arange(n_rows + 1) if visits is None else np.concatenate([[0], np.cumsum(visits)])
    total = int(before[-1])
    stops = [0]
    for rank in range(1, n_ranks):
        goal = total * rank // n_ranks
        stop = min(int(np.searchsorted(before, goal, "right")) - 1, max(n_rows - 1, 0))
        edges = [stop, min(stop + 1, n_rows)]
        off, nearest = min((abs(int(before[edge]) - goal), edge) for edge in edges)
        stops.append(nearest if off <= _reach(total, n_ranks) else stop)
    return (*stops, n_rows)


def _reach(total: int, n_ranks: int) -> int:
    """Return how far from an even cut a row of several visits may take it: little enough that every rank has rows."""
    return max(0, min(MAX_COPIES, (total // n_ranks - 1) // 2))


def _taken(X: Any, rows: slice | IndexVector) -> Any:
    """Return some rows of an array, or of a CSR matrix; neighbours as views."""
    if not (issparse(X) and isinstance(rows, slice)):
        return X[rows]
    pointers = X.indptr[rows.start : rows.stop + 1]
    entries = slice(pointers[0], pointers[-1])
    parts = (X.data[entries], X.indices[entries], pointers - pointers[0])
    return type(X)(parts, shape=(rows.stop - rows.start, X.shape[1]), copy=False)


#: Threads beyond both of these mostly wait.
_CROWD: Final = 32
_CROWD_PER_CORE: Final = 4


@dataclass(frozen=True)
class Expected:
    """Requirements for rows and targets; the keywords of `summarise`."""

    classification: bool = False
    supervised: bool = True
    any_shape: bool = False
    rows_are_checked: bool = False


@dataclass(frozen=True)
class Spread:
    """The number of ranks, and how rows are distributed to them."""

    n_ranks: int | None = None
    ranks_per_worker: int | None = None
    pieces: int = 1
    on_disk: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class Work:
    """The work of the ranks on the blocks; see `dsgd.runtime.run_on_cluster`."""

    program: RankProgram
    pack: Callable[[Sequence[Block], int], Any]
    args: tuple[Any, ...]
    cut: Callable[[Any, int], Sequence[Any]] | None = None
    numbered: bool = False
    beside: Sequence[Any] | None = None
    demand: MemoryDemand | None = None
    mail: Mail | None = None
    given: Any = None


@dataclass(frozen=True)
class Terms:
    """The deployment of an estimator, who listens, and its title; see `dsgd.runtime.run_on_cluster`."""

    gang: Gang
    on_event: Callable[[Mapping[str, Any]], None] | None = None
    title: str | None = None


def count_threads(n_jobs: int | None, n_rows: int | None = None, least_rows: int = 1) -> int:
    """Return the threads that ``n_jobs`` asks for: None is 1, −1 one per core."""
    cores = count_cores()
    n = 1 if n_jobs is None else n_jobs if n_jobs > 0 else max(1, cores + 1 + n_jobs)
    if n_rows is None:
        return n
    useful = max(1, min(n, n_rows // least_rows))
    if n_jobs is not None and n_jobs > max(1, n_rows):
        warn_user(
            f"n_jobs={n_jobs} is more than the {n_rows} rows: trained on {useful} rank(s).",
            UserWarning,
        )
    if useful > max(_CROWD, _CROWD_PER_CORE * cores):
        warn_user(
            f"n_jobs={n_jobs} makes {useful} ranks share {cores} cores, and at every synchronisation each waits for "
            "all others: n_jobs=-1 is faster. To see what so many ranks would do, pass client=SimulatedCluster(...).",
            UserWarning,
        )
    return useful


def ranks_asked(n_jobs: int | None) -> int | None:
    """Return the ranks on a cluster that ``n_jobs`` asks for: its number, or None for as many as possible."""
    return n_jobs if n_jobs is not None and n_jobs > 0 else None
