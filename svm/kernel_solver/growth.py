"""Large problems from few samples: solve a part, add as many samples again, and repeat.

Elimination alone cannot help a run in its first half: while most variables still have to move, the extremes lie far
apart and nothing is settled, and each of those variables costs a kernel row over all samples. Among a few samples such
a row is short, and the machine found there predicts the place of most of the others. So each time a batch as large as
all earlier ones is added:

1. u of the batch is computed in float64, and counts towards the proof (`dsgd.svm.kernel_solver.exact_sums`);
2. of the samples that violate by more than the margin, as much of each sign as the other has goes to its bound at once,
   and that is added to u of the samples looked at so far, in float64 too: most stay there, and their rows are never
   needed again. The values that told of such a sample are those that it adds, so they are computed once. If too many
   of those of the last batch have come back, this is left to the blocks;
3. those settled by more than the margin are left out, the others become active.

Predictions from few samples are sometimes wrong. So when all are there and the gap has come down, those left out are
looked at again (`InactiveSamples.look_again`), before the free variables have settled: a mistake that only the proof
finds moves all of these once more, at n values each.

The cost of the first samples predicts that of the whole without this method: the same for each pair of samples. Half of
that is saved at best, where support vectors are at their bounds; free ones change to the end, and cost their n values
each time. If the rounds that batches add are not worth this, the rest comes as one batch, of which all become active.

The proof finds all other wrong predictions, like any wrong elimination. Cost: that of a run on the first samples, and n
values in float64 for each variable that goes to its bound.

Samples may be divided among ranks: what is large, the values that tell of a batch, is divided (`ExactSums.look`), and
choices follow from numbers that are equal on all ranks.

Source: chunking (Vapnik 1982; Osuna, Freund, Girosi 1997) with the batches of a cascade (Graf et al., NIPS 2004).
Departures: one run and one set of indicators, and step 2.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dsgd.svm.kernel_solver.inactive import InactiveSamples
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.svm.kernel_solver.state import State
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.numbering import mask_of
from dsgd.types import FloatVector, IntVector

#: A problem is large if it has so many times the samples that it would begin with.
_TIMES_FIRST = 8
#: A batch comes when the gap is below this share of the one at the start.
_DONE = 0.1
#: The margin as a share of the gap at the start, which is twice the margin of a classifier.
_MARGIN = 0.06
#: Of the variables that went to their bounds this share must have stayed there if more are to be sent: one that comes
#: back costs its n values a second time.
_RIGHT = 0.8
#: What a batch costs in rounds, in cheap kernel values for each value of a block: some twenty of them, in each of which
#: the steps and the choice of variables take as long as two and a half times the values.
_BATCH_ROUNDS = 50


def begin_small(dual: Dual, matrix: KernelMatrix, n_first: int) -> list[IntVector]:
    """Leave only a few samples active where that pays; return the others in batches, none where it does not.

    It pays where the rows of all samples do not fit into the cache and there are enough of them, and is meant for
    problems that start at zero. All ranks leave the same samples active.
    """
    n = matrix.n
    is_at_zero = dual.u is None and not dual.alpha.any() and matrix.n_active == n
    if not (is_at_zero and matrix.is_large) or n < _TIMES_FIRST * n_first:
        return []
    order = np.random.default_rng(0).permutation(n)
    ends = [n]
    while ends[0] >= 2 * n_first:
        ends.insert(0, ends[0] // 2)
    is_first = mask_of(order[: ends[0]], n)
    held = matrix.held()
    matrix.shrink(np.flatnonzero(is_first[matrix.active]), held[is_first[held]], n - ends[0])
    return [np.sort(order[start:stop]) for start, stop in pairwise(ends)]


class Growth:
    """The batches that are still to come."""

    def __init__(self, state: State, left_out: InactiveSamples, batches: list[IntVector], block_size: int) -> None:
        self.state, self.left_out, self.batches = state, left_out, batches
        self._batch_cost = float(_BATCH_ROUNDS * block_size**2)
        self._is_first, self._takes_all = True, False
        self._before = state.matrix.n_evaluations
        self._scale: float | None = None
        self._raised: IntVector = np.empty(0, dtype=np.int64)
        self._raises = True
        if batches:
            left_out.is_sure = True
            state.exact.set_aside(np.concatenate(batches))

    def is_due(self, gap: float) -> bool:
        """Return whether the next batch should come, the gap over the active samples being `gap`."""
        if not self.batches:
            return False
        tol = self.left_out.tol
        if self._scale is None and tol <= gap < np.inf:  # before, the samples at hand say nothing of the problem
            self._scale = gap
            self.left_out.scale = gap
            self.left_out.margin = _MARGIN * gap
        return self._scale is None or gap < max(_DONE * self._scale, tol) or self.state.n_stalls > 0

    def grow(self) -> None:
        """Look at the next batch."""
        if self._is_first:
            self._is_first = False
            self._judge()
        state, left_out, ids = self.state, self.left_out, self.batches.pop(0)
        state.store_active()
        has_both_sides = bool(np.isfinite(state.least).all() and np.isfinite(state.most).all())
        is_selective = has_both_sides and not self._takes_all
        self._raises = self._raises and self._stayed()
        ours = state.peers.mine(ids)
        places = state.peers.place(ours)
        u, change = state.exact.look(ids, state.beta(), self._raise if is_selective and self._raises else None)
        state.u[places] = u
        is_raised = (state.alpha[:, places] != 0.0).any(axis=0)
        slack = left_out.slack(ours)  # to the machine of before, as the variables that were raised
        state.u += change
        self._raised = ours[is_raised]
        left_out.trail.know(places[is_raised], state.beta())
        is_gone = np.zeros(len(ours), dtype=np.bool_)
        if is_selective:
            is_gone = ~is_raised & (slack > left_out.margin)
            left_out.add(ours[is_gone], slack[is_gone])
        n_gone = int(state.peers.count(np.count_nonzero(is_gone))[0])
        state.matrix.extend(ours[~is_gone], len(ids) - n_gone)
        state.counts.n_eliminated += n_gone
        state.n_stalls = 0
        if not self.batches:
            left_out.margin = 0.0
        state.load_active()
        state.record("grow", state.scan())

    def _judge(self) -> None:
        """Make one batch of all that are left if batches would cost more than they save."""
        matrix, alpha = self.state.matrix, self.state.alpha
        at_bound = np.count_nonzero(alpha >= self.state.dual.upper)
        n_at_bound, n_used = matrix.peers.count(at_bound, np.count_nonzero(alpha)).tolist()
        settled = n_at_bound / max(1, n_used)
        spent = np.array([matrix.n_evaluations - self._before], dtype=np.float64)
        matrix.peers.add_up(spent)
        # Ranks share the values, and solve the blocks one after another.
        foretold = float(spent[0]) / matrix.peers.size * (matrix.n / (matrix.n - sum(map(len, self.batches)))) ** 2
        if 0.5 * settled * foretold * matrix.value_cost < len(self.batches) * self._batch_cost:
            self.batches = [np.sort(np.concatenate(self.batches))]
            self._takes_all, self.left_out.is_sure = True, False

    def _stayed(self) -> bool:
        """Return whether most of the variables that were last moved to their bounds are still there."""
        peers = self.state.peers
        ids = peers.place(peers.mine(self._raised))  # those that have moved to another rank do not count
        stayed = np.count_nonzero((self.state.alpha[:, ids] >= self.state.dual.upper[:, ids]).any(axis=0))
        n_stayed, n_raised = peers.count(stayed, len(ids)).tolist()
        return bool(n_stayed >= _RIGHT * n_raised)

    def _raise(self, ids: IntVector, u: FloatVector) -> FloatVector:
        """Move variables of new samples that violate by far to their bounds, with y'α as it is; return Σ yα of each."""
        state, dual = self.state, self.state.dual
        middle = 0.5 * (state.least[0] + state.most[0])
        r = len(dual.y)
        y, upper, c = np.split(state.peers.fetch(ids, np.concatenate([dual.y, dual.upper, state.c])), [r, 2 * r])
        violation = y * (middle - u - c)
        alpha = _even(violation.ravel(), y.ravel(), upper.ravel(), self.left_out.margin).reshape(y.shape)
        numbers = (np.arange(r)[:, None] * state.matrix.n + ids).ravel()
        state.change(numbers, np.zeros(alpha.size), alpha.ravel(), upper.ravel())
        state.peers.keep(numbers, alpha.ravel(), state.counts.n_rounds)
        return np.asarray((y * alpha).sum(axis=0))


def _even(violation: FloatVector, y: FloatVector, upper: FloatVector, least: float) -> FloatVector:
    """Return the variables that violate by more than `least` at their bounds, the worst first, with sums even."""
    order = np.argsort(-violation, kind="stable")
    order = order[violation[order] > least]
    sides = [order[y[order] > 0], order[y[order] < 0]]
    total = min(float(upper[side].sum()) for side in sides)
    alpha = np.zeros(len(y))
    for side in sides:
        ends = np.cumsum(upper[side])
        alpha[side] = np.clip(total - (ends - upper[side]), 0.0, upper[side])
    return alpha
