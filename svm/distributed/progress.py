"""What a fit of a kernel SVM on a cluster keeps, so that a gang that is formed anew goes on from it.

Problem: a worker is lost after an hour, and the features, variables and kernel rows that it held with it. All that a run
has found is in its variables, of which most are zero.

Method: the variables of each block are known to every rank, so every rank keeps those that are not zero: of the problem at
hand, at most every half second, and of those that are solved (a fit has one for each pair of classes). The ranks of the
next gang take the newest copy that any of them has (`dsgd.runtime.checkpoints.snapshot`). A problem whose samples are the
same begins with its variables from there: K(yα) is computed once, s n values for s support vectors divided among ranks,
and the run goes on. Where copies of a row have come to lie on other ranks and are merged in another way, it begins from
zero.

The proof at the end is over all samples and knows nothing of the beginning, so the solution is as exact as any other;
its last digits may differ.

Cost: 24 bytes for each variable that is not zero, sorted each time. Source: the recovery of "Fault tolerant support vector
machines" (Shohdy, Vishnu, Agrawal, ICPP 2016), which sends α as well and computes the gradient again.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import replace
from typing import Final

import numpy as np

from dsgd.runtime.checkpoints.snapshot import Snapshot, find_newest, share
from dsgd.runtime.rank import Rank
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

__all__ = ["Progress"]

#: Seconds between two copies.
_EVERY_S: Final = 0.5


class Progress:
    """The variables of the problems of a fit, on one of its ranks; all ranks make it together.

    Parameters
    ----------
    rank : Rank
        This member of the gang; without a keeper nothing is kept.
    """

    def __init__(self, rank: Rank) -> None:
        self._keeper, self._number, self._digest = rank.keeper, -1, 0
        self._kept: dict[str, AnyArray] = {}
        self._found: dict[str, AnyArray] = {}
        self._rows: IntVector = np.empty(0, dtype=np.int64)
        self._numbers, self._alpha = np.empty(0, dtype=np.int64), np.empty(0)
        self._news: list[tuple[IntVector, FloatVector]] = []
        self._copied_s, self._offset, self._n_variables = time.perf_counter(), 0, 1
        mine = None if self._keeper is None else self._keeper.latest
        root = None if self._keeper is None else find_newest(rank.group, mine)
        if root is not None:
            arrays = mine.arrays if mine is not None and rank.number == root else None
            self._found = share(rank.group, arrays, root)

    def begin(self, rows: IntVector, dual: Dual) -> Dual:
        """Return the next problem, from the variables that were kept if there are some for the same samples.

        Parameters
        ----------
        rows : int64 array, shape (n,)
            The rows of the whole that are its samples.
        dual : Dual
            The problem; variables it begins with are replaced.
        """
        self._number += 1
        # Samples come in an order that depends on who holds them: variables are kept by the numbers of the rows.
        self._rows, self._offset, self._news, self._n_variables = rows, 0, [], len(dual.y)
        self._digest = zlib.crc32(np.sort(rows).tobytes())
        kept, told = self._found.get(f"alpha {self._number}"), self._found.get(f"told {self._number}")
        if kept is not None and told is not None and told[:2].tolist() == [self._digest, len(dual.y)]:
            self._offset = int(told[2])
            dual = replace(dual, alpha=np.clip(self._placed(kept, dual.alpha.shape), 0.0, dual.upper), u=None)
        flat = dual.alpha.reshape(-1)
        self._numbers = np.flatnonzero(flat)
        self._alpha = flat[self._numbers]
        return dual

    def _placed(self, kept: AnyArray, shape: tuple[int, ...]) -> FloatMatrix:
        """Return variables that were kept, as those of the samples of the problem."""
        alpha, order = np.zeros(shape), np.argsort(self._rows)
        which, rows, values = kept
        alpha[which.astype(np.int64), order[np.searchsorted(self._rows, rows, sorter=order)]] = values
        return alpha

    def note(self, numbers: IntVector, alpha: FloatVector, n_rounds: int) -> None:
        """Take variables that were set, the same on all ranks, and how many rounds there were.

        Variable v of sample i has the number v n + i.
        """
        if self._keeper is None:
            return
        self._news.append((numbers, alpha))
        now = time.perf_counter()
        if now - self._copied_s >= _EVERY_S:
            self._settle()
            self._keep(self._offset + n_rounds, self._number)
            self._copied_s = now

    def end(self, alpha: FloatMatrix, n_rounds: int) -> None:
        """Take the variables of the solution of the problem."""
        if self._keeper is not None:
            flat = alpha.reshape(-1)
            self._numbers, self._news = np.flatnonzero(flat), []
            self._alpha = flat[self._numbers]
            self._keep(self._offset + n_rounds, self._number + 1)

    def _settle(self) -> None:
        """Take the news into the variables that are not zero: of each the last one counts."""
        numbers = np.concatenate([self._numbers, *(part for part, _ in self._news)])[::-1]
        alpha = np.concatenate([self._alpha, *(part for _, part in self._news)])[::-1]
        numbers, last = np.unique(numbers, return_index=True)
        is_used = alpha[last] != 0.0
        self._numbers, self._alpha, self._news = numbers[is_used], alpha[last][is_used], []

    def _keep(self, n_rounds: int, number: int) -> None:
        """Keep the variables; `number` is that of the problem at which a run that begins with them is."""
        assert self._keeper is not None
        n = len(self._rows)
        which, samples = np.divmod(self._numbers, n) if n else (self._numbers, self._numbers)
        # A copy is never changed: the arrays of the last snapshot serve the next one.
        self._kept = {
            **self._kept,
            f"alpha {self._number}": np.stack([which.astype(np.float64), self._rows[samples], self._alpha]),
            f"told {self._number}": np.array([self._digest, self._n_variables, n_rounds], dtype=np.int64),
        }
        self._keeper.latest = Snapshot((number, n_rounds if number == self._number else 0), self._kept)
