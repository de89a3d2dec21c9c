"""What a fit of a kernel SVM on a cluster keeps, so that a gang that is formed anew goes on from it.

Problem: a worker is lost after an hour, and the features and kernel rows that it held with it. All else that a run has
found is in its variables, n numbers that every rank knows after every round.

Method: every rank keeps a copy of the variables of the problem at hand, at most every half second, and those of the
problems that are solved (a fit has one for each pair of classes). The ranks of the next gang take the newest copy that
any of them has (`dsgd.runtime.checkpoints.snapshot`). A problem whose samples are the same begins with its variables
from there: K(yα) is computed once, s n values for s support vectors divided among ranks, and the run goes on. Where
copies of a row have come to lie on other ranks and are merged in another way, it begins from zero.

The proof at the end is over all samples and knows nothing of the beginning, so the solution is as exact as any other;
its last digits may differ.

Cost: a copy of n numbers each time. Source: the recovery of "Fault tolerant support vector machines" (Shohdy, Vishnu,
Agrawal, ICPP 2016), which sends α as well and computes the gradient again.
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
from dsgd.types import AnyArray, FloatMatrix, IntVector

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
        self._order: IntVector = np.empty(0, dtype=np.int64)
        self._copied_s, self._offset = time.perf_counter(), 0
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
        # Samples come in an order that depends on who holds them: variables are kept in that of the rows.
        self._order, self._offset = np.argsort(rows), 0
        self._digest = zlib.crc32(np.ascontiguousarray(rows[self._order]).tobytes())
        kept, told = self._found.get(f"alpha {self._number}"), self._found.get(f"told {self._number}")
        if kept is None or told is None or told[0] != self._digest or kept.shape != dual.alpha.shape:
            return dual
        self._offset = int(told[1])
        alpha = np.empty(kept.shape)
        alpha[:, self._order] = kept
        return replace(dual, alpha=np.clip(alpha, 0.0, dual.upper), u=None)

    def note(self, alpha: FloatMatrix, n_rounds: int) -> None:
        """Take the variables after so many rounds; they are the same on all ranks."""
        now = time.perf_counter()
        if self._keeper is not None and now - self._copied_s >= _EVERY_S:
            self._keep(alpha, self._offset + n_rounds, self._number)
            self._copied_s = now

    def end(self, alpha: FloatMatrix, n_rounds: int) -> None:
        """Take the variables of the solution of the problem."""
        if self._keeper is not None:
            self._keep(alpha, self._offset + n_rounds, self._number + 1)

    def _keep(self, alpha: FloatMatrix, n_rounds: int, number: int) -> None:
        """Keep the variables; `number` is that of the problem at which a run that begins with them is."""
        assert self._keeper is not None
        # A copy is never changed: the arrays of the last snapshot serve the next one.
        self._kept = {
            **self._kept,
            f"alpha {self._number}": alpha[:, self._order],
            f"told {self._number}": np.array([self._digest, n_rounds], dtype=np.int64),
        }
        self._keeper.latest = Snapshot((number, n_rounds if number == self._number else 0), self._kept)
