"""A kernel SVM on a cluster: every rank runs the estimator's training on its own rows, and keeps what it has found.

**What is kept, so that a gang formed anew goes on from it** (`Progress`). A worker is lost after an hour, and the
features, variables and kernel rows that it held with it. All that a run has found is in its variables, of which most
are zero.

The variables of each block are known to every rank, so every rank keeps those that are not zero: of the problem at
hand, at most every half second, and of those that are solved. The ranks of the next gang take the newest copy that any
of them has. A problem whose samples are the same begins with its variables from there: K(yα) is computed once. Where
copies of a row are merged in another way, it begins from zero.

With ``checkpoint=`` rank 0 writes the same to disk (`dsgd.runtime.checkpoints.checkpoint`), for another fit or gang.

The proof at the end is over all samples and knows nothing of the beginning, so the solution is as exact as any other;
its last digits may differ.

Cost: 24 bytes for each variable that is not zero, sorted each time. Source: the recovery of "Fault tolerant support
vector machines" (Shohdy, Vishnu, Agrawal, ICPP 2016), which sends α as well and computes the gradient again.

**The gang** (`Gang`). Targets, weights, and coefficients at the end, are gathered, so every rank computes bounds, duals
and thresholds as one process does; the solver keeps of them what belongs to its own samples. A `Gang` computes what
needs features: equal rows (merged on their own ranks), gamma and the mean (from sums over ranks), the columns of kernel
values, and the support vectors, which rank 0 collects.
"""

from __future__ import annotations

import copy
import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from dsgd.errors import CheckpointError
from dsgd.linear_model.fits import Packer
from dsgd.linear_model.fits import RankRows as PlainRows
from dsgd.runtime.checkpoints import checkpoint
from dsgd.runtime.checkpoints.checkpoint import share
from dsgd.runtime.checkpoints.container import describe
from dsgd.runtime.deployment import as_gang
from dsgd.runtime.rank import Rank
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.svm.kernels.functions import Kernel, is_far, is_sparse_cheaper, row_sums, survey, width_of
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.peers import Peers
from dsgd.svm.kernels.rows import fingerprints, merge_prints, rows_are_equal
from dsgd.svm.kernels.threads import Pool
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

#: Seconds between two copies.
_EVERY_S: Final = 0.5

#: Parameters that say where and how fast a problem is solved, and how exactly, but not which.
_FREE: Final = frozenset(
    (
        *("cache_size", "client", "elimination", "max_iter", "n_jobs", "shrinking", "solver", "tol", "verbose"),
        *("break_ties", "decision_function_shape", "random_state"),
    )
)


@dataclass(frozen=True)
class Saving:
    """Where the variables of a fit are written, and read from."""

    target: checkpoint.Checkpoint | None
    resume_from: str | None
    configuration: Mapping[str, Any]
    content: int


def saving_of(model: Any, content: Callable[[], int]) -> Saving | None:
    """Return where a model, not fitted, wants its variables written; None if nowhere."""
    gang = as_gang(model.client)
    if gang.checkpoint is None and gang.resume_from is None:
        return None
    params = {name: value for name, value in model.get_params(deep=False).items() if name not in _FREE}
    params |= {"estimator": type(model).__name__, "classes": getattr(model, "classes_", None)}
    if params.get("probability", "deprecated") not in (False, "deprecated"):
        params["folds"] = model._fold_seed
    resume_from = None if gang.resume_from is None else os.fspath(gang.resume_from)
    return Saving(checkpoint.as_checkpoint(gang.checkpoint), resume_from, describe(params), content())


class Progress:
    """The variables of the problems of a fit, on one of its ranks; all ranks make it together."""

    def __init__(self, rank: Rank, saving: Saving | None = None) -> None:
        self._rank, self._saving = rank, saving
        self._keeper, self._number, self._digest = rank.keeper, -1, 0
        self._is_on = rank.keeper is not None or (saving is not None and saving.target is not None)
        self._job_id, self._position = rank.job_id or secrets.token_hex(8), (0, 0)
        target = None if saving is None or rank.number else saving.target
        self._writer = None if target is None else checkpoint.CheckpointWriter(target)
        #: What the user should know; mostly nothing.
        self.note_for_user = ""
        self._kept: dict[str, AnyArray] = {}
        self._found: dict[str, AnyArray] = {}
        self._rows: IntVector = np.empty(0, dtype=np.int64)
        self._numbers: IntVector = np.empty(0, dtype=np.int64)
        self._alpha: FloatVector = np.empty(0)
        self._news: list[tuple[IntVector, FloatVector]] = []
        self._copied_s, self._offset, self._n_variables = time.perf_counter(), 0, 1
        self._recall()

    @property
    def is_wanted(self) -> bool:
        """Whether variables are kept, or those of an earlier fit are gone on from."""
        return self._is_on or self._saving is not None

    # -- what was kept before ------------------------------------------------------------------------------------

    def _recall(self) -> None:
        """Take the newest variables that there are in the memory of a rank or on disk, if there are any."""
        rank, saving = self._rank, self._saving
        mine = None if self._keeper is None else self._keeper.latest
        own = checkpoint.newest_own(None if saving is None else saving.target, rank, mine)
        mine = mine if own is None else checkpoint.Snapshot(own.position, own.arrays)
        root = None if self._keeper is None else checkpoint.find_newest(rank.group, mine)
        if root is not None:
            arrays = mine.arrays if mine is not None and rank.number == root else None
            self.note_for_user = "" if own is None or root else own.note
            self._found = share(rank.group, arrays, root)
            return
        if saving is None:
            return
        state = self._read(saving) if rank.number == 0 else None
        found = np.array([state is not None], dtype=np.int64)
        rank.group.broadcast(found, 0)
        if found[0]:
            self.note_for_user = "" if state is None else state.note
            self._found = share(rank.group, None if state is None else state.arrays, 0)

    def _read(self, saving: Saving) -> checkpoint.SavedState | None:
        """Return the state to resume from, None if the fit begins anew; refuse a folder of another fit."""
        place = checkpoint.place_to_resume(saving.target, saving.resume_from, formed=self._rank.formed)
        if place is None:
            return None
        state = checkpoint.read_newest(place, saving.configuration)
        content = state.arrays.get("content")
        if content is None or content.dtype != np.uint64 or content.shape != (1,):
            raise CheckpointError(f"resume_from={place!r} is no checkpoint of an SVM: it does not say of which rows.")
        if int(content[0]) != saving.content:
            raise CheckpointError(
                f"resume_from={place!r} was trained on other rows, or on these in another order. Fit with the same "
                "data."
            )
        return state

    # -- problems ------------------------------------------------------------------------------------------------

    def begin(self, rows: IntVector, dual: Dual) -> Dual:
        """Return the next problem, from the variables that were kept if there are some for the same samples."""
        self._number += 1
        # Samples come in an order that depends on who holds them: variables are kept by the numbers of the rows.
        self._rows, self._offset, self._news, self._n_variables = rows, 0, [], len(dual.y)
        self._digest = zlib.crc32(np.sort(rows).tobytes())
        kept, told = self._found.get(f"alpha {self._number}"), self._found.get(f"told {self._number}")
        if kept is not None and told is not None:
            try:
                digest, n_variables, offset = told.tolist()
                if (digest, n_variables) == (self._digest, len(dual.y)):
                    alpha = np.clip(self._placed(kept, dual.alpha.shape), 0.0, dual.upper)
                    dual, self._offset = replace(dual, alpha=alpha, u=None), int(offset)
            except (LookupError, TypeError, ValueError) as error:
                raise CheckpointError(f"the variables that were kept are not those of this fit: {error}") from error
        self._take(dual.alpha)
        return dual

    def _take(self, alpha: FloatMatrix) -> None:
        """Take the variables of all samples."""
        which, samples = np.nonzero(alpha)
        self._numbers, self._alpha, self._news = which * alpha.shape[1] + samples, alpha[which, samples], []

    def _placed(self, kept: AnyArray, shape: tuple[int, ...]) -> FloatMatrix:
        """Return variables that were kept, as those of the samples of the problem."""
        alpha, order = np.zeros(shape), np.argsort(self._rows)
        which, rows, values = kept
        if not np.isfinite(kept).all():
            raise ValueError("some are not finite")
        alpha[which.astype(np.int64), order[np.searchsorted(self._rows, rows, sorter=order)]] = values
        return alpha

    def note(self, numbers: IntVector, alpha: FloatVector, n_rounds: int) -> None:
        """Take variables that were set (of sample i, numbers v n + i), and how many rounds there were."""
        if not self._is_on or self._number < 0:
            return
        self._news.append((numbers, alpha))
        now = time.perf_counter()
        if now - self._copied_s >= _EVERY_S:
            self._settle()
            self._keep(self._offset + n_rounds, self._number)
            self._write_if_due()
            self._copied_s = now

    def end(self, alpha: FloatMatrix, n_rounds: int) -> None:
        """Take the variables of the solution of the problem."""
        if self._is_on:
            self._take(alpha)
            self._keep(self._offset + n_rounds, self._number + 1)
            self._write_if_due()

    def _settle(self) -> None:
        """Take the news into the variables that are not zero: of each the last one counts."""
        numbers = np.concatenate([self._numbers, *(part for part, _ in self._news)])[::-1]
        alpha = np.concatenate([self._alpha, *(part for _, part in self._news)])[::-1]
        numbers, last = np.unique(numbers, return_index=True)
        is_used = alpha[last] != 0.0
        self._numbers, self._alpha, self._news = numbers[is_used], alpha[last][is_used], []

    def _keep(self, n_rounds: int, number: int) -> None:
        """Keep the variables; `number` is that of the problem at which a run that begins with them is."""
        n = len(self._rows)
        which, samples = np.divmod(self._numbers, n) if n else (self._numbers, self._numbers)
        # A copy is never changed: the arrays of the last snapshot serve the next one.
        self._kept = {
            **self._kept,
            f"alpha {self._number}": np.stack([which.astype(np.float64), self._rows[samples], self._alpha]),
            f"told {self._number}": np.array([self._digest, self._n_variables, n_rounds], dtype=np.int64),
        }
        self._position = number, n_rounds if number == self._number else 0
        if self._keeper is not None:
            self._keeper.latest = checkpoint.Snapshot(self._position, self._kept)

    # -- on disk -------------------------------------------------------------------------------------------------

    def _write_if_due(self) -> None:
        """Write what is kept, on rank 0 and if it is time."""
        if self._writer is not None and self._writer.is_due:
            self._writer.write(self._state())

    def close(self) -> None:
        """Write what is kept when all problems are solved; if that fails the model is complete, and a note says so."""
        if self._writer is not None:
            self.note_for_user = self._writer.write_last(self._state()) or self.note_for_user

    def _state(self) -> checkpoint.SavedState:
        assert self._saving is not None
        arrays = {**self._kept, "content": np.array([self._saving.content], dtype=np.uint64)}
        configuration, formed = self._saving.configuration, self._rank.formed
        return checkpoint.SavedState(self._position, self._rank.size, configuration, arrays, "", self._job_id, formed)


@dataclass(frozen=True)
class RankRows(PlainRows):
    """The rows of one rank, with their numbers."""

    ids: IntVector


class RowPacker(Packer):
    """Packs numbered blocks ``(X, y, sample_weight, first)`` into the rows of a rank; sent to every rank."""

    def __call__(self, blocks: Sequence[Any], rank_number: int) -> RankRows:
        """Return the rows of a rank, made of its blocks in order."""
        blocks = list(blocks)  # each is looked at several times
        rows = super().__call__(blocks, rank_number)
        X = rows.X
        if not self.sparse:
            X = np.ascontiguousarray(X)
        else:
            X = sp.csr_matrix(X, copy=len(blocks) == 1 and not X.has_canonical_format)
            X.sum_duplicates()
        ids = np.concatenate([np.zeros(0, np.int64), *(block[3] + np.arange(block[0].shape[0]) for block in blocks)])
        return RankRows(X, rows.targets, rows.weights, ids)


class Gang:
    """What an estimator asks the other ranks while it is fitted on all of them."""

    def __init__(self, rank: Rank, data: RankRows, n_classes: int | None = None, model: Any = None) -> None:
        self.rank = rank
        self._ids, self._order = data.ids, np.argsort(data.ids)
        self.n_rows = int(self._sum(len(data.ids))[0])
        self._holder = np.empty(self.n_rows, dtype=np.min_scalar_type(rank.group.size - 1))
        for number, part in self._each(data.ids):
            self._holder[part] = number
        codes = data.targets if n_classes is None else data.targets.astype(np.min_scalar_type(n_classes))
        self.target = self._everyone(codes)
        ends = np.array([data.weights.min(initial=np.inf), -data.weights.max(initial=-np.inf)])
        rank.group.allreduce(ends, "min")
        if ends[0] == -ends[1]:  # as mostly: they are one number, and take no memory
            self.weights = np.broadcast_to(ends[0], self.n_rows)
        else:
            self.weights = self._everyone(data.weights)
        self.is_sparse = False
        saving = None if model is None else saving_of(model, lambda: self._content(data))
        self.progress = Progress(rank, saving)
        #: Who represents equal rows, and who represents each, after `merge`.
        self.merged: tuple[IntVector, IntVector] = (np.empty(0, np.int64), np.empty(0, np.int64))

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank.number == 0

    def publish(self, event: Mapping[str, Any]) -> None:
        """Tell who watches the fit; rank 0 only."""
        self.rank.publish(event)

    def _everyone(self, ours: AnyArray) -> AnyArray:
        """Return the values of all rows, in the order of rows."""
        out = np.empty(self.n_rows, dtype=ours.dtype)
        for number, part in self._each(ours[self._order]):
            out[self._holder == number] = part
        return out

    def _content(self, data: RankRows) -> int:
        """Return a hash of the rows of all ranks with their numbers, whoever holds them."""
        words = fingerprints(data.X, data.targets) + data.ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ data.weights.view(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        ours = np.array([(words ^ (words >> np.uint64(31))).sum(dtype=np.uint64)])
        return int(self.rank.group.roll_call(ours.view(np.int64)).view(np.uint64).sum(dtype=np.uint64))

    def _local(self, rows: IntVector) -> IntVector:
        """Return where rows of this rank are among its own."""
        places: IntVector = self._order[np.searchsorted(self._ids, rows, sorter=self._order)]
        return places

    def _is_here(self, rows: IntVector) -> AnyArray:
        return np.asarray(self._holder[rows] == self.rank.number)

    def _sum(self, *values: Any) -> FloatVector:
        total = np.array(values, dtype=np.float64)
        self.rank.group.allreduce(total)
        return total

    def count_bytes(self, X: Any) -> int:
        """Return how many bytes the rows of all ranks take."""
        parts = (X.data, X.indices, X.indptr) if sp.issparse(X) else (X,)
        return int(self._sum(sum(part.nbytes for part in parts))[0])

    def gather_rows(self, X: Any) -> Any:
        """Return the rows of all ranks, in the order of rows, on every rank."""
        X, ledger = X[self._order], self.rank.ledger
        ledger.begin_round("rows")
        if not sp.issparse(X):
            whole: Any = np.empty((self.n_rows, X.shape[1]), dtype=X.dtype)
            for number, part in self._each(X.reshape(-1)):
                whole[self._holder == number] = part.reshape(-1, X.shape[1])
        else:
            narrow, parts = np.int32 if X.shape[1] < 2**31 else np.int64, []
            pieces = X.data, X.indices.astype(narrow, copy=False), np.diff(X.indptr).astype(np.int64)
            for (_, data), (_, indices), (_, lengths) in zip(*map(self._each, pieces), strict=True):
                starts = np.concatenate([[0], np.cumsum(lengths)])
                parts.append(sp.csr_matrix((data, indices, starts), shape=(len(lengths), X.shape[1])))
            order = np.argsort(np.argsort(self._holder, kind="stable"))
            whole = sp.vstack(parts, format="csr")[order]
        ledger.end_round()
        return whole

    def merge(self, X: Any, target: AnyArray, weights: FloatVector) -> tuple[IntVector, IntVector, FloatVector]:
        """Merge equal rows of the same rank: `dsgd.svm.kernels.rows.merge_rows` over all ranks.

        Each rank sorts its own rows. Which numbers the samples get follows from the fingerprints of the others, one
        rank after another.
        """
        salt = np.uint64((self.rank.number * 0x9E3779B97F4A7C15) % 2**64)
        targets = target[self._ids].astype(np.float64)
        keys, has_clash = fingerprints(X, targets) ^ salt, [False]

        def are_equal(rows: IntVector, others: IntVector) -> bool:
            has_clash[0] = bool(self._sum(float(not rows_are_equal(X, targets, rows, others)))[0])
            return not has_clash[0]

        first, owner, total = merge_prints(keys, weights[self._ids], are_equal)
        if has_clash[0]:  # no rows are merged, and samples come in the order of rows
            keys = self._ids.astype(np.uint64)
            order = np.argsort(keys[first])
            first, total, owner[first[order]] = first[order], total[order], np.arange(len(first))
        return self._number(keys[first], first, owner, total)

    def _number(
        self, keys: AnyArray, first: IntVector, owner: IntVector, total: FloatVector
    ) -> tuple[IntVector, IntVector, FloatVector]:
        """Return what `merge` does, from what each rank has found of its rows and the ascending keys of its samples."""
        numbers = np.arange(len(keys))
        for number, theirs in self._each(keys):
            if number != self.rank.number:
                numbers += np.searchsorted(theirs, keys, side="right" if number < self.rank.number else "left")
        n_samples, width = int(self._sum(len(keys))[0]), np.int32 if self.n_rows < 2**31 else np.int64
        whole: tuple[AnyArray, AnyArray, FloatVector] = (
            np.empty(n_samples, width),
            np.full(self.n_rows, -1, width),
            np.empty(n_samples),
        )
        where, owners = self._each(numbers), np.append(numbers, -1)[owner]
        for (_, theirs), (_, rows), (_, sums) in zip(
            where, self._each(self._ids[first]), self._each(total), strict=True
        ):
            whole[0][theirs], whole[2][theirs] = rows, sums
        for (_, rows), (_, theirs) in zip(self._each(self._ids), self._each(owners), strict=True):
            whole[1][rows] = theirs
        self.merged = whole[:2]
        return whole

    def _each(self, ours: AnyArray) -> Iterator[tuple[int, AnyArray]]:
        """Yield a vector of each rank in turn, with its number: one is in memory at a time."""
        group = self.rank.group
        for number, length in enumerate(group.allgather(np.array([len(ours)])).ravel().tolist()):
            part = np.ascontiguousarray(ours) if number == self.rank.number else np.empty(length, ours.dtype)
            group.broadcast(part, number)
            yield number, part

    def make_kernel(
        self, kernel: Kernel, gamma: str | float, X: Any, totals: FloatVector, first: IntVector, *, balanced: bool
    ) -> Kernel:
        """Return the kernel with gamma, mean and lengths of the representatives `first`, with weights `totals`."""
        d, is_ours = int(X.shape[1]), self._is_here(first)
        rows = self._local(first[is_ours])
        if sp.issparse(X):
            n, nnz = self._sum(X.shape[0], X.nnz)
            self.is_sparse = is_sparse_cheaper(int(n), d, int(nnz)) and kernel.function is None
        if isinstance(gamma, str) and gamma == "scale":
            share = totals[is_ours] / (float(totals.sum()) * d)
            mean = float(self._sum(share @ row_sums(X, None)[rows])[0])
            variance = float(self._sum(share @ row_sums(X, mean)[rows])[0])
            gamma = width_of(d, mean, variance)
        elif isinstance(gamma, str):
            gamma = 1.0 / d
        kernel = replace(kernel, gamma=float(gamma))
        if (kernel.name == "rbf" or (balanced and kernel.name == "linear")) and not self.is_sparse:
            total = np.asarray(X[rows].sum(axis=0, dtype=np.float64)).ravel()
            self.rank.group.allreduce(total)
            kernel = replace(kernel, shift=total / len(first))
        if kernel.function is not None:
            return kernel
        kernel = self._survey(kernel, X, rows)
        if kernel.name == "linear" and kernel.shift is not None and not is_far(kernel):
            kernel = self._survey(replace(kernel, shift=None), X, rows)
        return kernel

    def _survey(self, kernel: Kernel, X: Any, rows: IntVector) -> Kernel:
        """Return the kernel with what all ranks know of some rows of each."""
        kernel = survey(kernel, X, rows, sparse=self.is_sparse)
        largest = np.array([kernel.largest_square])
        self.rank.group.allreduce(largest, "max")
        return replace(kernel, largest_square=float(largest[0]))

    def make_matrix(
        self, kernel: Kernel, X: Any, rows: IntVector, dtype: Any, pool: Pool, cache_bytes: int
    ) -> KernelMatrix:
        """Return the kernel values among some rows of the whole, divided among their holders."""
        holder = self._holder[rows]
        return KernelMatrix(
            kernel,
            X,
            samples=self._local(rows[holder == self.rank.number]),
            dtype=dtype,
            cache_bytes=cache_bytes,
            pool=pool,
            peers=Peers(len(rows), self.rank.group, holder, self.rank.check, self.progress.note),
            shift=None if self.is_sparse else kernel.shift,
            sparse=self.is_sparse,
        )

    def collect(self, X: Any, rows: IntVector) -> Any:
        """Return some rows of X, in their order, on rank 0; the others get an empty X."""
        group = self.rank.group
        group.ledger.begin_round("collect")
        part = X[self._local(rows[self._is_here(rows)])]
        # Parts arrive by rank; this restores the requested order.
        order = np.argsort(np.argsort(self._holder[rows], kind="stable"))
        if not sp.issparse(part):
            parts = group.gather(np.ascontiguousarray(part).reshape(-1))
            whole = None if parts is None else np.concatenate(parts).reshape(-1, X.shape[1])
        else:
            pieces = [part.data, part.indices.astype(np.int64), np.diff(part.indptr).astype(np.int64)]
            found = [group.gather(piece) for piece in pieces]
            whole = None
            if self.leads:
                data, indices, lengths = (np.concatenate(piece or []) for piece in found)
                starts = np.concatenate([[0], np.cumsum(lengths)])
                whole = sp.csr_matrix((data, indices, starts), shape=(len(rows), X.shape[1]))
        group.ledger.end_round()
        return X[:0] if whole is None else whole[order]


def fit_on_rank(rank: Rank, data: RankRows, model: Any) -> dict[str, Any] | None:
    """Fit a copy of `model` together with the other ranks; a rank program."""
    model, gang = join_gang(rank, data, model, keeps=True)
    model._fit_rows(data.X, gang.target, gang.weights)
    gang.progress.close()
    if not gang.leads:
        return None
    notes = model.__dict__.pop("_note", ""), gang.progress.note_for_user
    return {**model._fitted_state(), "_note": " ".join(note for note in notes if note)}


def join_gang(rank: Rank, data: RankRows, model: Any, *, keeps: bool = False) -> tuple[Any, Gang]:
    """Return a copy of a model that asks the gang, and the gang."""
    model = copy.copy(model)  # ranks may be threads
    if model.n_jobs is None or model.n_jobs < 0:
        model.n_jobs = max(1, rank.n_threads + 1 + (model.n_jobs or -1))
    rank.ledger.begin_round("setup")
    n_classes = len(model.classes_) if hasattr(model, "classes_") else None
    gang = Gang(rank, data, n_classes, model if keeps else None)
    rank.ledger.end_round()
    model._gang = gang
    return model, gang
