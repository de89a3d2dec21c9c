"""Which samples of a large problem are active: those left out, batches that come later, and rows that move.

**Moves between ranks** (`rebalance`). Elimination leaves some ranks with fewer active samples than others, which then
wait in every round. When the largest count exceeds the mean by half, ranks above the mean hand samples over to those
below it: features, indicators, and with them the columns of the kernel. All ranks compute the same plan from what they
all know; each row moves once, straight to its new holder. Source: the imbalance that Vishnu et al. (IEEE Cluster 2015)
measure but do not act upon.

**Samples left out** (`InactiveSamples`): when they are removed, updated and returned. See
`dsgd.svm.kernel_solver.elimination` for the test and the schedules. Nothing here decides whether a run is done: that is
the proof over all samples (`dsgd.svm.kernel_solver.block`).

**Large problems from few samples** (`Growth`): solve a part, add as many samples again, and repeat
(docs/elimination.rst). Elimination alone cannot help while the extremes lie far apart. Among a few samples a kernel row
is short, and the machine found there predicts the place of most of the others. So with each batch:

1. u of the batch is computed in float64, and counts towards the proof (`dsgd.svm.kernel_solver.state`);
2. of the samples that violate by more than the margin, as much of each sign as the other has goes to its bound at once,
   and that is added to u of the samples looked at so far, in float64 too: most stay there, and their rows are never
   needed again. The values that told of such a sample are those that it adds, so they are computed once. If too many
   of those of the last batch have come back, this is left to the blocks;
3. those settled by more than the margin are left out, the others become active.

Predictions from few samples are sometimes wrong. So when all are there and the gap has come down, those left out are
looked at again (`InactiveSamples.look_again`): a mistake that only the proof finds moves all free variables once more.

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

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from dsgd.svm.kernel_solver.elimination import Elimination, Trail, eliminable
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.svm.kernel_solver.state import State
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.rows import find, mask_of
from dsgd.types import AnyArray, FloatVector, IntVector

_UNEVEN = 1.5


def plan_moves(loads: IntVector) -> list[tuple[int, int, int]]:
    """Return (from, to, how many) so that all ranks come to hold the mean; empty while that is not worth it."""
    total, size = int(loads.sum()), len(loads)
    if total < 2 * size or loads.max() * size <= _UNEVEN * total:
        return []
    targets = np.array([total * (r + 1) // size - total * r // size for r in range(size)])
    surplus = loads - targets
    moves = []
    takers = [r for r in range(size) if surplus[r] < 0]
    for giver in np.flatnonzero(surplus > 0):
        while surplus[giver] > 0:
            taker = takers[0]
            count = int(min(surplus[giver], -surplus[taker]))
            moves.append((int(giver), taker, count))
            surplus[giver] -= count
            surplus[taker] += count
            if surplus[taker] == 0:
                takers.pop(0)
    return moves


def rebalance(matrix: KernelMatrix, columns: Callable[[], list[AnyArray]]) -> list[AnyArray] | None:
    """Move active samples if they lie too unevenly; all ranks call this together."""
    loads = matrix.peers.all_of(np.array([len(matrix.active)], dtype=np.int64)).ravel()
    moves = plan_moves(loads)
    if not moves:
        return None
    active = matrix.peers.join(matrix.active)
    starts = np.concatenate([[0], np.cumsum(loads)])
    ends = starts[1:].copy()
    plan = []
    for giver, taker, count in moves:
        plan.append((giver, taker, active[ends[giver] - count : ends[giver]]))
        ends[giver] -= count
    moved = _hand_over(matrix, plan, columns())
    matrix.move(plan)
    return moved


def _hand_over(matrix: KernelMatrix, plan: list[tuple[int, int, IntVector]], columns: list[AnyArray]) -> list[AnyArray]:
    """Send what belongs to samples that move, and return what belongs to those that a rank has after it."""
    peers, before = matrix.peers, matrix.mine
    lines = [np.atleast_2d(column) for column in columns]
    height = sum(map(len, lines))
    given, taken, arrived = [before[:0]], [before[:0]], [np.empty((height, 0))]
    for giver, taker, ids in plan:
        sent = None
        if peers.rank == giver:
            places = peers.place(ids)
            sent = np.concatenate([line[:, places] for line in lines]).astype(np.float64)
            given.append(ids)
        part = peers.hand_over(giver, taker, sent, (height, len(ids)), np.float64)
        if part is not None:
            taken.append(ids)
            arrived.append(part)
    stays = find(before, np.concatenate(given)) < 0
    order, new = np.argsort(np.concatenate([before[stays], *taken])), np.concatenate(arrived, axis=1)
    found, first = [], 0
    for column, line in zip(columns, lines, strict=True):
        more = new[first : first + len(line)].astype(column.dtype)
        found.append(np.concatenate([line[:, stays], more], axis=1)[:, order].reshape(*column.shape[:-1], -1))
        first += len(line)
    return found


_MAX_EVENTS = 32

#: What the rounds after a mistake cost, in cheap kernel values for each value of a block: some ten of them, in each of
#: which the steps and the choice of variables take as long as two and a half times the values.
_LATE_ROUNDS = 25

#: With a sample that the proof finds wrongly left out those return that are beyond the extremes by less than this share
#: of the gap: they follow as soon as the first ones move.
_NEIGHBOURS = 0.2

#: Samples left out are looked at again before the proof if they were beyond the extremes by less than this share of the
#: gap at the start; if some were left out while few samples were known, by less than the second.
_REACH, _REACH_EARLY = 0.04, 1.0

#: When violators have come back, those follow that were beyond by less than this share of the worst violation.
_REACH_AGAIN = 0.25

#: They are first looked at when the gap has come down to this share of that at the start, then when it has come down to
#: this share of the worst violation.
_FIRST_LOOK, _NEXT_LOOK = 0.1, 0.1


class InactiveSamples:
    """What is left out, and the decisions about it."""

    def __init__(self, state: State, policy: Elimination, tol: float, block_size: int) -> None:
        self.state, self.policy, self.tol = state, policy, tol
        self._block_size = block_size
        self.trail = Trail(len(state.matrix.mine), state.peers.count)
        self.scale: float | None = None  # the gap at the start of a run that begins with few samples
        self.margin = 0.0  # how far beyond the extremes a sample must be
        self.is_sure = not policy.waits_for_pressure  # whether leaving out pays whatever the cache holds
        self._is_eliminating = policy.mode != "none"
        self._next_test = policy.steps_between(state.matrix.n)
        self._n_false = 0
        self._slack: FloatVector = np.full(len(state.matrix.mine), np.inf)  # when they were left out or last looked at
        self._has_early = False  # whether samples were left out while few were known
        self._worst = np.inf  # the worst violation that was found last among the samples left out
        self._largest_gap, self._spent = 0.0, 0
        matrix = state.matrix
        if matrix.n_active < matrix.n:
            out = np.setdiff1d(matrix.mine, matrix.active, assume_unique=True)
            self.trail.add(state.peers.place(out), state.beta())

    # -- out -----------------------------------------------------------------------------------------------------

    def eliminate(self, gap: float) -> bool:
        """Leave settled samples out if a test is due and enough of them are; return whether it was done."""
        state = self.state
        if gap >= self._largest_gap:
            self._largest_gap, self._spent = gap, state.matrix.n_evaluations
        if not self._is_eliminating or state.counts.n_iter < self._next_test or not (self.is_sure or state.is_pressed):
            return False
        with state.peers.round("check"):
            return self._leave_out(gap)

    def _leave_out(self, gap: float) -> bool:
        state, n = self.state, self.state.matrix.n_active
        # Each reconstruction that found violators says that tests come too soon.
        pause = self.policy.steps_between(state.matrix.n) * 2**self._n_false
        self._next_test = state.counts.n_iter + min(pause, max(1, n) * 2**self._n_false)
        f = state.u_a + state.c_a
        out = self._settled(f, state.y_a, state.alpha_a, state.upper_a, state.group_a)
        spent = state.matrix.n_evaluations
        totals = np.array([out.sum(), spent, spent - self._spent], dtype=np.float64)
        state.peers.add_up(totals)
        count = int(totals[0])
        if count == 0 or count < self.policy.min_fraction * n:
            return False
        if not self.is_sure and not self._pays(count / n, gap, float(totals[1]), float(totals[2])):
            return False
        state.store_active()
        gone = state.matrix.active[out]
        self.add(gone, self.slack(gone) if self.scale is not None else np.full(len(gone), np.inf))
        self._keep(np.flatnonzero(~out), gone, count)
        state.counts.n_eliminated += count
        state.record("eliminate", gap)
        return True

    def _pays(self, share: float, gap: float, spent: float, since: float) -> bool:
        """Return whether leaving out a share of the active samples saves more than it costs, by counts.

        It saves that share of the kernel values that are still to come: as many per factor of e that the gap falls as
        since it was largest, or before it has fallen by that, as many as so far. It costs n values for each free
        variable, which moves on after the proof that finds a mistake, and some rounds.
        """
        state, fallen = self.state, np.log(self._largest_gap / gap)
        left = since / fallen * np.log(max(gap / self.tol, 1.0)) if fallen >= 1.0 else spent
        if self.trail:
            return True  # that cost is spent
        n_free = state.n_free
        saved = (share * left - n_free * state.matrix.n) * state.matrix.value_cost
        return bool(saved > _LATE_ROUNDS * self._block_size**2)

    def _settled(self, f: AnyArray, y: AnyArray, alpha: AnyArray, upper: AnyArray, group: AnyArray) -> AnyArray:
        least, most = self.state.least - self.margin, self.state.most + self.margin
        return eliminable(f, y, alpha, upper, group, least, most)

    def settled_among(self, ids: IntVector) -> AnyArray:
        """Return which of some samples of this rank, whose u is right, may be left out, shape (m,)."""
        state, dual = self.state, self.state.dual
        ids = state.peers.place(ids)
        f = state.u[ids] + state.c[:, ids]
        return self._settled(f, dual.y[:, ids], state.alpha[:, ids], dual.upper[:, ids], state.group[:, ids])

    def slack(self, ids: IntVector) -> FloatVector:
        """Return how far samples of this rank at a bound, whose u is right, are beyond the extremes; −∞ if free."""
        state, dual = self.state, self.state.dual
        ids = state.peers.place(ids)
        f = state.u[ids] + state.c[:, ids]
        y, alpha, upper, group = dual.y[:, ids], state.alpha[:, ids], dual.upper[:, ids], state.group[:, ids]
        at_zero, at_upper = alpha <= 0, alpha >= upper
        low_only, up_only = np.where(y > 0, at_upper, at_zero), np.where(y > 0, at_zero, at_upper)
        beyond = np.where(low_only, state.least[group] - f, np.where(up_only, f - state.most[group], -np.inf))
        found: FloatVector = beyond.min(axis=0)
        return found

    def add(self, ids: IntVector, slack: FloatVector) -> None:
        """Note that samples here, whose u is right, are left out, and how far; called by all ranks together."""
        beta, places = self.state.beta(), self.state.peers.place(ids)
        self.trail.add(places, beta)
        self._slack[places] = slack
        self._has_early |= self.margin > 0.0
        if len(self.trail) > _MAX_EVENTS:
            self._renew(*self.trail.join(beta))

    def _keep(self, keep: IntVector, gone: IntVector, n_gone: int) -> None:
        """Leave some active samples of this rank active, by position; others are `gone`, `n_gone` on all ranks."""
        state = self.state
        held, newest = state.matrix.held(), state.newest % state.matrix.n
        stays = [np.ones(len(samples), dtype=np.bool_) for samples in (held, newest)]
        for part in state.peers.parts(gone):
            for samples, still in zip((held, newest), stays, strict=True):
                still &= find(samples, part) < 0
        state.newest = state.newest[stays[1]]
        state.matrix.shrink(keep, held[stays[0]], n_gone)
        self._rebalance()
        state.load_active()

    def _rebalance(self) -> None:
        """Let rows move if the active samples have come to lie too unevenly; u must have been stored."""
        state = self.state
        if state.peers.is_alone:
            return
        own = [*state.columns(), self._slack], self.trail.columns
        moved = rebalance(state.matrix, lambda: [*own[0], *own[1]()])
        if moved is not None:
            n_state = len(own[0])
            state.take_columns(moved[: n_state - 1])
            self._slack = moved[n_state - 1]
            self.trail.take_columns(moved[n_state:])
            state.record("rebalance", float((state.most - state.least).max()))

    # -- back ----------------------------------------------------------------------------------------------------

    def bring_back(self, *, early: bool = False) -> bool:
        """Renew u of the samples left out and make those active again that violate; return whether there were any.

        Unless it is `early`, this is left to the proof, which needs the right u of all samples anyway, where it would
        not be much less work: then the proof is the reconstruction.
        """
        state = self.state
        if not self.trail or self.policy.reconstruction == "none":
            return False
        state.store_active()
        beta = state.beta()
        if self.policy.reconstruction == "delta" and not early:
            sizes = [n for ids, old in self.trail.back(beta) for n in (len(ids), np.count_nonzero(beta != old))]
            totals = state.peers.count(*sizes)
            work = int((totals[::2] * totals[1::2]).sum())
            if 4 * work > state.exact.work(beta):
                return False
        for ids, before in self.trail.back(beta):
            self._renew(ids, before, beta)
        state.counts.n_reconstructions += 1
        has_violators = self._return_violators(0.0)
        state.record("reconstruct", state.scan())
        return has_violators

    def is_due(self, gap: float) -> bool:
        """Return whether to look again, the gap over the active samples being `gap`."""
        if not self.trail or self.scale is None or self._worst < 2.0 * self.tol:
            return False
        return gap < (_FIRST_LOOK * self.scale if np.isinf(self._worst) else max(_NEXT_LOOK * self._worst, self.tol))

    def look_again(self, gap: float) -> bool:
        """Renew u of those samples left out that are likeliest to violate, in float64; return whether any come back.

        These are most of them at first if few samples were known when some were left out, else those that were hardly
        beyond the extremes. A violator that only the proof finds costs n values for each free variable, all of which
        move once more; what is computed here counts for the proof.
        """
        state = self.state
        ids, scale = self.trail.ids, self.scale or 0.0
        reach = min((_REACH_EARLY if self._has_early else _REACH) * scale, _REACH_AGAIN * self._worst)
        places = np.sort(ids[self._slack[ids] < reach])
        self._worst = gap
        if not state.peers.count(len(places))[0]:
            return False
        state.store_active()
        beta, ids = state.beta(), state.matrix.mine[places]
        state.u[places] = state.exact.renew(ids, beta)
        slack = self._slack[places] = self.slack(ids)
        back = ids[slack <= 0.0]
        self.trail.remove(places)
        self.trail.add(places[slack > 0.0], beta)
        state.counts.n_reconstructions += 1
        n_back = int(state.peers.count(len(back))[0])
        if n_back:
            worst = slack.min(initial=np.inf, keepdims=True)
            state.peers.lowest(worst)
            self._worst = max(gap, -float(worst[0]))
        self._return(back, n_back)
        state.record("reconstruct", state.scan())
        return n_back > 0

    def _return(self, back: IntVector, n_back: int) -> None:
        """Make samples of this rank active again, `n_back` on all ranks."""
        state = self.state
        if n_back:
            self._n_false = min(self._n_false + 1, 20)
            state.matrix.extend(back, n_back)
            state.counts.n_returned += n_back
            self._rebalance()
        state.load_active()

    def take_proof(self, gap: float) -> None:
        """Use that u is right everywhere, and `gap` the gap over all samples, as a reconstruction."""
        if self.trail and self.policy.reconstruction != "none":
            self.state.counts.n_reconstructions += 1
            if gap >= self.tol:
                if self.scale is not None:
                    places = self.trail.ids
                    self._slack[places] = self.slack(self.state.matrix.mine[places])
                    self._worst = gap
                self._return_violators(_NEIGHBOURS * gap)
            self.state.record("reconstruct", gap)

    def _return_violators(self, margin: float) -> bool:
        """Given a right u everywhere, make the samples left out active that violate, or nearly do.

        The extremes are those over all samples. Against those of the active ones two samples left out that violate with
        each other may both look settled, all the more where no active variable is free; then none would ever return.
        """
        state = self.state
        state.scan_all()
        if self.policy.mode == "single":
            self._is_eliminating = False
        left_out, self.margin = self.trail.ids, margin
        is_settled = self.settled_among(state.matrix.mine[left_out])
        back = state.matrix.mine[left_out[~is_settled]]
        self.margin = 0.0
        self.trail.restart(left_out[is_settled], state.beta())
        n_back = int(state.peers.count(len(back))[0])
        self._return(back, n_back)
        return n_back > 0

    def _renew(self, places: IntVector, before: FloatVector, beta: FloatVector) -> None:
        """Bring u of samples of this rank, by place, from the coefficients `before` to `beta`."""
        state, is_full = self.state, self.policy.reconstruction == "full"
        sources, coefs = state.peers.entries(beta if is_full else beta - before)
        sums = state.matrix.product(state.matrix.mine[places], sources, coefs, state.matrix.dtype)
        state.u[places] = sums if is_full else state.u[places] + sums


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
    """Leave a few samples active where that pays, the same on all ranks; return the others in batches."""
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
        if self._raises:  # as long as most of the variables that were last moved to their bounds are still there
            there = state.peers.place(state.peers.mine(self._raised))  # those that moved to another rank do not count
            stayed = np.count_nonzero((state.alpha[:, there] >= state.dual.upper[:, there]).any(axis=0))
            n_stayed, n_raised = state.peers.count(stayed, len(there)).tolist()
            self._raises = bool(n_stayed >= _RIGHT * n_raised)
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
