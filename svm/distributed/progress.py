"""What a fit of a kernel SVM on a cluster keeps, so that a gang that is formed anew goes on from it.

Problem: a worker is lost after an hour, and the features, variables and kernel rows that it held with it. All that a
run has found is in its variables, of which most are zero.

Method: the variables of each block are known to every rank, so every rank keeps those that are not zero: of the problem
at hand, at most every half second, and of those that are solved (a fit has one for each pair of classes). The ranks of
the next gang take the newest copy that any of them has (`dsgd.runtime.checkpoints.checkpoint`). A problem whose samples
are the same begins with its variables from there: K(yα) is computed once, s n values for s support vectors divided
among ranks, and the run goes on. Where copies of a row have come to lie on other ranks and are merged in another way,
it begins from zero.

With ``checkpoint=`` rank 0 writes the same to disk, in the format of all checkpoints
(`dsgd.runtime.checkpoints.checkpoint`), and another fit, or the next gang of this one, goes on from there in the same
way.

The proof at the end is over all samples and knows nothing of the beginning, so the solution is as exact as any other;
its last digits may differ.

Cost: 24 bytes for each variable that is not zero, sorted each time. Source: the recovery of "Fault tolerant support
vector machines" (Shohdy, Vishnu, Agrawal, ICPP 2016), which sends α as well and computes the gradient again.
"""

from __future__ import annotations

import os
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from dsgd.errors import CheckpointError
from dsgd.runtime.checkpoints.checkpoint import (
    AUTO,
    Checkpoint,
    CheckpointWriter,
    SavedState,
    Snapshot,
    as_checkpoint,
    check_place,
    find_newest,
    is_empty,
    read_newest,
    read_own,
    same_place,
    share,
)
from dsgd.runtime.checkpoints.container import describe
from dsgd.runtime.rank import Rank
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

#: Seconds between two copies.
_EVERY_S: Final = 0.5
#: Parameters that say where and how fast a problem is solved, and how exactly, but not which.
_FREE: Final = frozenset(
    (
        *("cache_size", "checkpoint", "client", "elimination", "max_iter", "n_jobs", "on_failure"),
        *("resume_from", "shrinking", "solver", "tol", "transport", "verbose"),
        *("break_ties", "decision_function_shape", "random_state"),
    )
)


@dataclass(frozen=True)
class Saving:
    """Where the variables of a fit are written, and read from."""

    target: Checkpoint | None
    resume_from: str | None
    configuration: Mapping[str, Any]
    content: int


def saving_of(model: Any, content: Callable[[], int]) -> Saving | None:
    """Return where a model, not fitted, wants its variables written; None if nowhere."""
    if model.checkpoint is None and model.resume_from is None:
        return None
    params = {name: value for name, value in model.get_params(deep=False).items() if name not in _FREE}
    params |= {"estimator": type(model).__name__, "classes": getattr(model, "classes_", None)}
    if params.get("probability", "deprecated") not in (False, "deprecated"):
        params["folds"] = model._fold_seed
    resume_from = None if model.resume_from is None else os.fspath(model.resume_from)
    return Saving(as_checkpoint(model.checkpoint), resume_from, describe(params), content())


class Progress:
    """The variables of the problems of a fit, on one of its ranks; all ranks make it together."""

    def __init__(self, rank: Rank, saving: Saving | None = None) -> None:
        self._rank, self._saving = rank, saving
        self._keeper, self._number, self._digest = rank.keeper, -1, 0
        self._is_on = rank.keeper is not None or (saving is not None and saving.target is not None)
        self._job_id, self._position = rank.job_id or secrets.token_hex(8), (0, 0)
        target = None if saving is None or rank.number else saving.target
        self._writer = None if target is None else CheckpointWriter(target)
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
        mine, own = None if self._keeper is None else self._keeper.latest, None
        if rank.number == 0 and rank.formed and saving is not None and saving.target is not None:
            own = read_own(saving.target.path, self._job_id, (0, 0) if mine is None else mine.position)
            mine = mine if own is None else Snapshot(own.position, own.arrays)
        root = None if self._keeper is None else find_newest(rank.group, mine)
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

    def _read(self, saving: Saving) -> SavedState | None:
        """Return the state to resume from, None if the fit begins anew; refuse a folder of another fit."""
        place = saving.resume_from
        if place == AUTO:
            assert saving.target is not None
            place = None if is_empty(saving.target.path) else os.fspath(saving.target.path)
        target = saving.target
        if target is not None and not self._rank.formed:
            check_place(target, goes_on=place is not None and same_place(place, target.path))
        if place is None:
            return None
        state = read_newest(place, saving.configuration)
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
        """Take variables that were set, the same on all ranks, and how many rounds there were.

        Variable v of sample i has the number v n + i.
        """
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
            self._keeper.latest = Snapshot(self._position, self._kept)

    # -- on disk -------------------------------------------------------------------------------------------------

    def _write_if_due(self) -> None:
        """Write what is kept, on rank 0 and if it is time."""
        if self._writer is not None and self._writer.is_due:
            self._writer.write(self._state())

    def close(self) -> None:
        """Write what is kept when all problems are solved; if that fails the model is complete, and a note says so."""
        if self._writer is not None:
            self.note_for_user = self._writer.write_last(self._state()) or self.note_for_user

    def _state(self) -> SavedState:
        assert self._saving is not None
        arrays = {**self._kept, "content": np.array([self._saving.content], dtype=np.uint64)}
        configuration, formed = self._saving.configuration, self._rank.formed
        return SavedState(self._position, self._rank.size, configuration, arrays, "", self._job_id, formed)
