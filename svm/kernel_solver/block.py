"""The block solver: working sets of violating variables, elimination, and a proof of the gap.

It minimises ½ α'Qα + p'α over 0 ≤ α ≤ C with y'α fixed (for ν-SVMs: fixed for each sign), Q_ij = y_i y_j K_ij. With
u = K(yα) by sample and f = u + y·p by variable, α is optimal within tol when max f over I_low − min f over I_up
< tol, LIBSVM's own criterion. One round

1. takes q variables: the newest half of the last round, then the worst violators of both sides;
2. solves the q × q problem in float64 (`dsgd.svm.kernel_solver.smo`);
3. adds the rows of the variables that moved to u: cached ones, or computed in slabs by one product each;
4. now and then leaves samples out (`dsgd.svm.kernel_solver.growth`).

A large problem begins with few of its samples (`dsgd.svm.kernel_solver.growth`).

**It ends.** Each pass of the loop does one of the following, and none of them forever:

* a round takes at least one step, or stalls; steps are at most `max_iter`, and the third stall in a row ends the run;
* samples are left out: at least one step lies between two tests;
* samples come back: no more than were left out before;
* a batch of a large problem comes;
* the proof holds, or no step is allowed any more: the run ends;
* or none of these: a look at samples left out that finds no violator, which lowers the gap at which the next is due;
  the one early reconstruction; a look at whether the run stands still, with a window of steps between two; or a proof
  that fails. After a proof that fails the worst pair of *all* samples is
  active, as samples come back by the extremes over all of them (`InactiveSamples`), and so the next pass is a round.

So at most four passes in a row make no progress. After a fifth, the run ends with the gap that it has. It also ends
where the gap is below what rounding may do to f and proofs after ever more steps do not see it halve, and where neither
the gap nor the dual objective comes nearer (`dsgd.svm.kernel_solver.elimination`): rounding may undo what steps gain
long before they are spent.

Rows may be float32. When the gap closes, u is brought up to date for the samples left out and violators come back. Then
u is computed for **all** samples in float64. Only a gap below tol there ends the run; otherwise it continues from that
u, so errors of float32 rows affect only later changes.

Samples may be divided among p ranks (`dsgd.svm.kernels.peers`); the loop is the same. Per round the ranks find their
extremes (3 doubles) and the worst candidates of all (f, number, value and signed bound of 3q/4, and f of the newest),
each in log2 p messages per rank, the features of the newly chosen travel from their holders (q/2 rows), and rank 0
sends the q new values. A proof sends the features of all samples whose variable has changed since the last; where those
of all samples are few bytes, they travel once. When the active samples of a rank exceed the mean by half, rows move.

Cost per round: about q n_active/p kernel values less cache hits. Source: block decomposition as in ThunderSVM (Wen et
al., JMLR 2018), without its early stop.
"""

from __future__ import annotations

import numpy as np

from dsgd.svm.kernel_solver.elimination import Elimination, Standstill
from dsgd.svm.kernel_solver.growth import Growth, InactiveSamples, begin_small
from dsgd.svm.kernel_solver.problem import Dual, Solution, refuse
from dsgd.svm.kernel_solver.smo import collect, solve_block
from dsgd.svm.kernel_solver.state import BestLists, State, best_of
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.rows import find, mask_of
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

_SMALL = 50_000
_LARGEST_BLOCK = 2048  # 32 megabytes of values
#: Largest number of passes in a row without progress.
_MOST_IDLE = 4
#: Steps between proofs if rounding hides the gap, doubled each time, and proofs in a row in which it does not halve.
_BLIND_STEPS, _BLIND_PROOFS = 1000, 3
#: Float32 rows round f by this share of eps times the largest kernel value times the sum of α, as measured (0.03 to
#: 0.15 on a dozen sets). Where that is above `tol` they serve until the gap has come down to so many times as much.
_ROUNDING, _FAR_ABOVE = 0.1, 10.0
#: Rows of a block in which the largest kernel value is searched.
_SOME_ROWS = 16
#: Samples that a large problem begins with, in blocks. A batch costs some twenty rounds more, each of them as much as
#: a few times the values of a block, and saves a part of its own square: it must be larger than a block.
_FIRST_BLOCKS = 2


def solve(
    dual: Dual,
    matrix: KernelMatrix,
    *,
    tol: float,
    max_iter: int,
    elimination: Elimination,
    block_size: int | None = None,
) -> Solution:
    """Solve the dual to `tol`; unconverged if steps ran out, rounding keeps the gap open, or nothing came nearer."""
    return _Run(dual, matrix, tol, max_iter, elimination, block_size).solve()


class _Run:
    """The loop of one run."""

    def __init__(
        self,
        dual: Dual,
        matrix: KernelMatrix,
        tol: float,
        max_iter: int,
        elimination: Elimination,
        block_size: int | None,
    ) -> None:
        n = matrix.n
        self.matrix, self.peers, self.tol, self.policy = matrix, matrix.peers, tol, elimination
        self.max_iter = max_iter if max_iter >= 0 else max(10_000_000, 100 * n)
        # In a small problem most values of a large block would be computed for rows that never move.
        self.q = min(dual.y.size, block_size or min(512 if n <= _SMALL else 1024, max(64, dual.y.size // 8)))
        self.largest_q = min(dual.y.size, block_size or _LARGEST_BLOCK)
        self.n_failed = self.n_idle = 0
        self.effort = 0  # steps, or variables of blocks of fewer steps, by which the run is watched for progress
        self.done: tuple[int, ...] = ()
        self.largest_value = 0.0  # of the kernel, in blocks
        self.lowest_gap, self.n_blind, self.next_proof = np.inf, 0, 0
        self.standstill = Standstill(n)
        self.is_early_pending = elimination.mode == "libsvm"
        self.state = State(dual, matrix)
        self.left_out = InactiveSamples(self.state, elimination, tol, self.q)
        batches = begin_small(dual, matrix, _FIRST_BLOCKS * self.q) if elimination.waits_for_pressure else []
        self.growth = Growth(self.state, self.left_out, batches, self.q)
        self.state.load_active()
        #: The variables of the last block, ascending, their values, and their bounds, each with its sign.
        self.last: tuple[IntVector, FloatVector, FloatVector] = (np.empty(0, np.int64), np.empty(0), np.empty(0))

    def solve(self) -> Solution:
        """Run to the end."""
        state, target = self.state, 0.9 * self.tol  # a little below, so that float32 rows rarely fail the proof
        while True:
            self.matrix.pool.check()
            state.lap("check")
            with self.peers.round("check"):
                gap = state.scan()
            state.lap("scan")
            if not state.is_finite or self._is_coarse(gap):
                with self.peers.round("check"):
                    gap = self._mend()
            if self._is_idle():
                break
            if self.standstill.is_suspected(self.effort, gap):
                with self.peers.round("check"):
                    is_over = self._stands_still()
                if is_over:
                    return state.solution(self.tol)
                continue
            if state.counts.n_iter < self.max_iter and self.growth.is_due(gap):
                with self.peers.round("check"):
                    self.growth.grow()
                continue
            if not self._is_capped() and not self.growth.batches and self.left_out.is_due(gap):
                with self.peers.round("check"):
                    self.left_out.look_again(gap)
                continue
            if gap >= target and not self._is_capped() and not self._is_blind(gap):
                if self.is_early_pending and gap < 10 * self.tol:
                    self.is_early_pending = False
                    with self.peers.round("check"):
                        self.left_out.bring_back(early=True)
                elif not self.left_out.eliminate(gap):
                    with self.peers.round("sync"):
                        self._round(gap)
                continue
            with self.peers.round("check"):
                is_open = self.left_out.bring_back()
            if is_open and not self._is_capped():
                continue
            with self.peers.round("check"):
                gap, active_gap = self._verify()
            if gap < self.tol or self._is_capped() or self.policy.reconstruction == "none":
                return state.solution(self.tol)
            if self._is_hidden(gap):
                return state.solution(self.tol)
            if active_gap < self.tol:  # rows are exact enough; inactive samples violate
                continue
            self.n_failed += 1
            target = min(target, 0.5 * self.tol)
            if self.n_failed >= 2 and self.matrix.dtype == np.float32:
                self.matrix.set_dtype(np.float64)
        with self.peers.round("check"):
            self._verify()
        return state.solution(self.tol)

    def _is_idle(self) -> bool:
        """Return whether so many passes made no progress that the run would not end: see the proof above."""
        state = self.state
        done = (state.counts.n_rounds, state.counts.n_eliminated, state.counts.n_returned, len(self.growth.batches))
        self.n_idle = self.n_idle + 1 if done == self.done else 0
        self.done = done
        return self.n_idle > _MOST_IDLE

    def _stands_still(self) -> bool:
        """Return whether there was no progress, after a proof; float32 rows, a possible cause, become float64."""
        self._verify()
        is_certain = self.standstill.is_certain(*self.state.worth())
        if self.matrix.dtype == np.float32:
            self.matrix.set_dtype(np.float64)
            return False
        return is_certain

    def _is_coarse(self, gap: float) -> bool:
        """Return whether the rounding of float32 rows, larger than `tol`, begins to show in the gap."""
        if self.matrix.dtype != np.float32:
            return False
        rounding = _ROUNDING * np.finfo(np.float32).eps * self.largest_value * self.state.total
        return bool(rounding > self.tol and gap < _FAR_ABOVE * rounding)

    def _is_blind(self, gap: float) -> bool:
        """Return whether the gap may be rounding only, and a proof is due to check that."""
        if self.matrix.dtype == np.float32 or self.effort < self.next_proof:
            return False
        return bool(gap < np.finfo(np.float64).eps * self.largest_value * self.state.total)

    def _is_hidden(self, gap: float) -> bool:
        """Return whether proofs, of which the last has found `gap`, see no progress where rounding hides it."""
        if self._is_blind(gap):
            self.n_blind = 0 if gap < 0.5 * self.lowest_gap else self.n_blind + 1
            self.lowest_gap = min(self.lowest_gap, gap)
            self.next_proof = self.effort + _BLIND_STEPS * 2**self.n_blind
        return self.n_blind > _BLIND_PROOFS

    def _mend(self) -> float:
        """Continue in float64 from indicators that float32 rows made infinite or too coarse; return the gap."""
        state = self.state
        if self.matrix.dtype == np.float32:
            self.matrix.set_dtype(np.float64)
        state.store_active()
        state.refine()
        state.load_active()
        gap = state.scan()
        if not state.is_finite:
            raise refuse(self.matrix.kernel)
        return gap

    def _is_capped(self) -> bool:
        return self.state.counts.n_iter >= self.max_iter or self.state.n_stalls >= 3

    def _verify(self) -> tuple[float, float]:
        """Compute u in float64, activate violators; return the gap over all samples and that over the active ones."""
        state = self.state
        state.store_active()
        state.refine()
        gap = state.scan_all()
        state.load_active()
        state.record("verify", gap)
        active_gap = state.scan()
        self.left_out.take_proof(gap)
        return gap, active_gap

    def _round(self, gap: float) -> None:
        """Solve one block and bring u of the active samples up to date."""
        state, n_newest, n_hits = self.state, len(self.state.newest), self.matrix.n_hits
        state.lap("check")
        chosen, f, before, bounds = self._choose()
        state.lap("choose")
        if len(state.dual.y) == 1:
            samples, where = chosen, np.arange(len(chosen))
        else:
            samples, where = np.unique(chosen % self.matrix.n, return_inverse=True)
        picked = self.matrix.pick(samples)
        state.lap("rows")
        y, upper = np.copysign(1.0, bounds), np.abs(bounds)
        answer = np.concatenate([before, [0.0, 0.0]])  # and the steps, and the largest value of some rows
        if self.peers.rank == 0:
            values = self.matrix.block(picked)
            if len(samples) != len(chosen) or (np.diff(where) != 1).any():
                values = self.matrix.dealt(values, where)
            inner_tol = max(0.5 * self.tol, 0.1 * gap)
            limit = min(100 * len(chosen), self.max_iter - state.counts.n_iter)
            group = (y < 0).astype(np.int64) if state.n_groups > 1 else np.zeros(len(y), dtype=np.int64)
            answer[-2] = solve_block(values, y, group, upper, answer[:-2], f, inner_tol, limit, state.n_groups)
            # A value that overflows lets no step be taken: of a sample it is the product with itself that
            # overflows first, unless a callable says otherwise.
            some = values[:: 1 + len(chosen) // _SOME_ROWS]
            answer[-1] = max(float(np.abs(some).max()), float(np.abs(np.diagonal(values)).max()))
            if not np.isfinite(answer.sum() + f.sum()):
                answer[-2] = np.nan
        self.peers.agree(answer)
        state.lap("solve")
        alpha, (steps, largest) = answer[:-2], answer[-2:]
        if np.isnan(steps):
            if self.matrix.dtype == np.float64:
                raise refuse(self.matrix.kernel)
            alpha, steps, largest = before, 0, 0.0  # counts as a stall: rows are float64 after it
        self.largest_value = max(self.largest_value, float(largest))
        state.change(chosen, before, alpha, upper)
        self.last = chosen, alpha, bounds
        moved = np.bincount(where, weights=(alpha - before) * y, minlength=len(samples)).astype(np.float64)
        changed = np.flatnonzero(moved)
        if len(changed):
            is_free = mask_of(where[(alpha > 0) & (alpha < upper)], len(samples))
            self.matrix.add(state.u_a, picked, changed, moved[changed], samples[~is_free])
            state.n_stalls = 0
        else:
            # Nothing moved: rounding of the rows hides the descent, so continue from an exact u with float64 rows.
            state.n_stalls += 1
            state.newest = state.newest[:0]
            if self.matrix.dtype == np.float32:
                self.matrix.set_dtype(np.float64)
            state.store_active()
            state.refine()
            state.load_active()
        state.counts.n_iter += int(steps)
        # Where rounding undoes the gain a round may take a single step, and cost as much as one of thousands.
        self.effort += max(int(steps), len(chosen))
        state.counts.n_rounds += 1
        n_read = (self.matrix.n_hits - n_hits) * len(self.matrix.active)
        state.counts.work.add(looked=len(self.matrix.active), read_values=n_read)
        if self.peers.rank == 0:
            q = len(chosen)
            state.counts.work.add(variables=q, fresh=q - n_newest, step_variables=int(steps) * q, squares=q * q)
        state.lap("update")
        state.record("block", gap)
        self.peers.keep(chosen, alpha, state.counts.n_rounds)

    def _choose(self) -> tuple[IntVector, FloatVector, FloatVector, FloatVector]:
        """Return the variables v n + i of the next block, ascending, with f, values and signed bounds."""
        newest, n, q = self.state.newest, self.matrix.n, self.q
        if self.matrix.n_active <= 4 * self.largest_q:
            # Among few samples, a block of all free variables ends what else takes many rounds.
            q = min(max(q, 3 * self.state.n_free // 2), self.largest_q)
        room = max(1, (q - len(newest)) // (2 * self.state.n_groups))
        position = self.matrix.where(newest % n)
        here = position >= 0
        f_newest: FloatVector = np.zeros(len(newest))
        f_newest[here] = self.state.u_a[position[here]] + self.state.c_a[newest[here] // n, position[here]]
        offers = self._offer(room)
        if not self.peers.is_alone:
            offers, f_newest = self._exchange(offers, f_newest, room)
        taken = newest
        fresh, f_fresh, told = [], [], [self._remembered(newest)]
        for number, (keys, variables, *more) in enumerate(offers):
            some = np.flatnonzero(find(variables, taken) < 0)
            if not self.peers.is_alone:  # they come sorted
                some = some[:room]
            elif len(some) > room:
                some = some[np.argpartition(keys[some], room - 1)[:room]]
            taken = np.concatenate([taken, variables[some]])
            fresh.append(variables[some])
            f_fresh.append(-keys[some] if number % 2 else keys[some])
            told.append(np.array(more)[:, some])
        found = np.concatenate(fresh)
        # The worst pair must be in the block: then a block always descends. It is, unless the newest hold it.
        self.state.newest = found[: q // 2] if len(found) else newest[len(newest) // 2 :]
        chosen = np.concatenate([newest, found])
        order = np.argsort(chosen)
        alpha, bounds = np.concatenate(told, axis=1)[:, order]
        return chosen[order], np.concatenate([f_newest, *f_fresh])[order], alpha, bounds

    def _remembered(self, newest: IntVector) -> FloatMatrix:
        """Return the values and the signed bounds of variables that were in the last block, shape (2, q)."""
        chosen, alpha, bounds = self.last
        places = np.searchsorted(chosen, newest)
        return np.stack([alpha[places], bounds[places]])

    def _offer(self, room: int) -> list[tuple[AnyArray, ...]]:
        """Return the worst violators here but the newest, per group: those of I_up by f, then those of I_low by −f."""
        n_active, active, n = len(self.state.u_a), self.matrix.active, self.matrix.n
        keys, places = np.empty(self.state.y_a.size), np.empty(self.state.y_a.size, dtype=np.int64)
        position = self.matrix.where(self.state.newest % n)
        here = position >= 0
        is_newest = mask_of(self.state.newest[here] // n * n_active + position[here], self.state.y_a.size)
        state = self.state
        args = (state.u_a, state.c_a, state.y_a, state.upper_a, state.alpha_a, state.group_a)
        offers: list[tuple[AnyArray, ...]] = []
        for g in range(self.state.n_groups):
            for side in (0, 1):
                count = collect(*args, self.state.least[g], self.state.most[g], side, g, keys, places)
                is_open = ~is_newest[places[:count]]
                ours, where = keys[:count][is_open], places[:count][is_open]
                most = room * (1 + side)
                if self.peers.is_alone and len(where) > most:
                    some = np.argpartition(ours, most - 1)[:most]
                    ours, where = ours[some], where[some]
                numbers = where
                if n_active:
                    numbers = where // n_active * n + active[where % n_active]
                if not self.peers.is_alone:
                    some = best_of(ours, numbers, most)
                    ours, numbers, where = ours[some], numbers[some], where[some]
                y, upper, alpha = (np.take(part, where) for part in (state.y_a, state.upper_a, state.alpha_a))
                offers.append((ours, numbers, alpha, y * upper))
        return offers

    def _exchange(
        self, offers: list[tuple[AnyArray, ...]], f_newest: FloatVector, room: int
    ) -> tuple[list[tuple[AnyArray, ...]], FloatVector]:
        """Return the best offers of all ranks, ties by number, and f of the newest variables, in one message."""
        ours = np.array([self.matrix.n_hits, self.matrix.n_evaluations], dtype=np.float64)
        lists = BestLists(tuple(room * (1 + number % 2) for number in range(len(offers))), n_told=2)
        words = lists.pack(offers, np.concatenate([f_newest, ours]))
        self.peers.combine(words, lists)
        joined, added = lists.unpack(words)
        self.state.told = added[-2:] - ours
        return joined, added[:-2]
