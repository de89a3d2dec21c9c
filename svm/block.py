"""The exact solver: blocks of violating variables, one product per block, elimination, and a proof of the gap.

It minimises ½ α'Qα + p'α over 0 ≤ α ≤ C with y'α fixed (for ν-SVMs: fixed for each sign), Q_ij = y_i y_j K_ij. With
u = K(yα) by sample and f = u + y·p by variable, α is optimal within tol when max f over I_low − min f over I_up
< tol, LIBSVM's own criterion. One round

1. takes q variables: the newest half of the last round, then the worst violators of both sides;
2. solves the q × q problem in float64 (`dsgd.svm.smo`);
3. adds the rows of the variables that moved to u: cached ones, or computed in slabs by one product each;
4. now and then leaves samples out (`dsgd.svm.elimination`).

Rows may be float32. When the gap closes, u is brought up to date for the samples left out and violators come back. Then
u is computed for **all** samples in float64. Only a gap below tol there ends the run; otherwise it goes on from that u,
so errors of float32 rows count only for what changes after.

Samples may be divided among p ranks (`dsgd.svm.peers`); the loop is the same. Per round each rank then tells the others
its extremes (2 doubles) and its worst candidates (about 3q/2 doubles and ids, and f of the newest), the features of
the newly chosen travel from their holders (q/2 rows), rank 0 solves the block and sends the q new values. Elimination
sends the numbers of samples left out, a proof the features of all samples whose variable has changed since the last.
When the active samples of a rank come to exceed the mean by half, rows move.

Cost per round: about q n_active/p kernel values less cache hits. Source: block decomposition as in ThunderSVM (Wen et
al., JMLR 2018), without its early stop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from dsgd.svm.elimination import Elimination, EliminationRecord, Trail, eliminable
from dsgd.svm.kernel_matrix import KernelMatrix
from dsgd.svm.rebalance import rebalance
from dsgd.svm.smo import collect, extremes, solve_block
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

__all__ = ["Dual", "Solution", "find_thresholds", "solve"]

_MAX_EVENTS = 32
_SMALL = 50_000
_LARGEST_BLOCK = 2048  # 32 megabytes of values


@dataclass(frozen=True)
class Dual:
    """The dual problem; r variables share each of n samples (r = 2 for regression).

    Parameters
    ----------
    y : array, shape (r, n)
        Signs of variables, ±1.
    p : array, shape (r, n)
        Linear term.
    upper : array, shape (r, n)
        Upper bounds, above zero.
    alpha : array, shape (r, n)
        A feasible start.
    by_sign : bool
        Whether the sum is fixed for each sign (ν-SVMs).
    u : array, shape (n,), or None
        K(yα) of the start in float64, where it is known: no kernel value is then needed to begin.
    """

    y: FloatMatrix
    p: FloatMatrix
    upper: FloatMatrix
    alpha: FloatMatrix
    by_sign: bool = False
    u: FloatVector | None = None


@dataclass(frozen=True)
class Solution:
    """What the solver found.

    Parameters
    ----------
    alpha : array, shape (r, n)
        The variables.
    u : array, shape (n,)
        K(yα), float64.
    thresholds : array, shape (n_groups,)
        The f at which variables are free, per group.
    gap, objective : float
        The largest violation and the dual objective, over all samples in float64.
    converged : bool
        Whether gap < tol.
    n_iter, n_rounds : int
        Two-variable steps; blocks.
    n_eliminated, n_reconstructions, n_returned : int
        Samples left out, times that indicators were renewed, samples that came back.
    n_evaluations, n_hits : int
        Kernel values computed; rows found in the cache.
    history : list of EliminationRecord
        The run.
    """

    alpha: FloatMatrix
    u: FloatVector
    thresholds: FloatVector
    gap: float
    objective: float
    converged: bool
    n_iter: int
    n_rounds: int
    n_eliminated: int
    n_reconstructions: int
    n_returned: int
    n_evaluations: int
    n_hits: int
    history: list[EliminationRecord] = field(default_factory=list)


def solve(
    dual: Dual,
    matrix: KernelMatrix,
    *,
    tol: float,
    max_iter: int,
    elimination: Elimination,
    block_size: int | None = None,
) -> Solution:
    """Solve the dual to `tol`.

    Parameters
    ----------
    dual : Dual
        The problem.
    matrix : KernelMatrix
        Kernel values among its samples. Those not active in it begin as left out: they come back if they violate. If
        samples are divided among ranks, all ranks call this together and get the same solution.
    tol : float
        The gap to reach.
    max_iter : int
        Two-variable steps at most; below zero, max(10⁷, 100 n) as in LIBSVM.
    elimination : Elimination
        When samples are left out.
    block_size : int or None
        Variables per block; None chooses by the number of samples.
    """
    return _Run(dual, matrix, tol, max_iter, elimination, block_size).solve()


def find_thresholds(
    f: FloatMatrix, alpha: FloatMatrix, upper: FloatMatrix, group: AnyArray, least: FloatVector, most: FloatVector
) -> FloatVector:
    """Return the f at which variables are free, their mean, or the middle of the extremes, shape (n_groups,)."""
    thresholds: FloatVector = np.empty(len(least))
    for g in range(len(least)):
        free = (alpha > 0) & (alpha < upper) & (group == g)
        ends = [end for end in (least[g], most[g]) if np.isfinite(end)]
        thresholds[g] = f[free].mean() if free.any() else (sum(ends) / len(ends) if ends else 0.0)
    return thresholds


class _Run:
    """The state of one run. Arrays named ``*_a`` hold the active samples here, in the order of ``matrix.active``.

    The dual, `alpha` and `trail` are known to every rank for all samples; `u` is right for those that lie here.
    """

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
        self.dual, self.matrix, self.tol, self.policy = dual, matrix, tol, elimination
        self.peers = matrix.peers
        self.max_iter = max_iter if max_iter >= 0 else max(10_000_000, 100 * n)
        # In a small problem most values of a large block would be computed for rows that never move.
        self.q = min(dual.y.size, block_size or min(512 if n <= _SMALL else 1024, max(64, dual.y.size // 8)))
        self.largest_q = min(dual.y.size, block_size or _LARGEST_BLOCK)
        self.n_groups = 2 if dual.by_sign else 1
        self.group = (dual.y < 0).astype(np.int64) if dual.by_sign else np.zeros(dual.y.shape, dtype=np.int64)
        self.c = dual.y * dual.p
        self.alpha: FloatMatrix = dual.alpha.astype(np.float64)
        self.u: FloatVector = np.zeros(n)
        self.exact_beta: FloatVector = np.zeros(n)
        self.exact_u: FloatVector = np.zeros(n)
        self.trail = Trail(n)
        self.newest: IntVector = np.empty(0, dtype=np.int64)
        self.least, self.most = np.empty(self.n_groups), np.empty(self.n_groups)
        self.history: list[EliminationRecord] = []
        self.n_iter = self.n_rounds = self.n_eliminated = self.n_reconstructions = self.n_returned = 0
        self.n_failed = self.n_stalls = self.n_false = 0
        self.active_gap = np.inf
        self.is_pressed = False
        self.told = np.zeros(2)  # what other ranks have told of their kernel values and hits
        self.next_test = elimination.steps_between(n)
        self.is_eliminating = elimination.mode != "none"
        self.is_early_pending = elimination.mode == "libsvm"
        self.begin = time.perf_counter()
        if dual.u is not None:
            self.exact_u, self.exact_beta = dual.u.astype(np.float64), self._beta()
            self.u = self.exact_u.copy()
        elif self.alpha.any():
            self._refine()
        out = self.peers.join(np.setdiff1d(matrix.mine, matrix.active))
        if len(out):
            self.trail.add(out, self._beta())
        self._load_active()

    # -- the loop ------------------------------------------------------------------------------------------------

    def solve(self) -> Solution:
        """Run to the end."""
        target = 0.9 * self.tol  # a little below, so that float32 rows rarely fail the proof
        while True:
            with self.peers.round("control"):
                gap = self._scan()
            if gap >= target and self.n_iter < self.max_iter and self.n_stalls < 3:
                if self.is_early_pending and gap < 10 * self.tol:
                    self.is_early_pending = False
                    with self.peers.round("control"):
                        self._bring_back(early=True)
                elif not self._eliminate(gap):
                    with self.peers.round("sync"):
                        self._round(gap)
                continue
            with self.peers.round("control"):
                is_open = self._bring_back()
            if is_open and self.n_iter < self.max_iter and self.n_stalls < 3:
                continue
            with self.peers.round("control"):
                gap = self._verify()
            is_capped = self.n_iter >= self.max_iter or self.n_stalls >= 3
            if gap < self.tol or is_capped or self.policy.reconstruction == "none":
                return self._solution(gap)
            if self.active_gap < self.tol:  # rows are good enough; it was samples left out that violate
                continue
            self.n_failed += 1
            target = min(target, 0.5 * self.tol)
            if self.n_failed >= 2 and self.matrix.dtype == np.float32:
                self.matrix.set_dtype(np.float64)

    def _scan(self) -> float:
        """Return the gap over the active samples."""
        args = (self.u_a, self.c_a, self.y_a, self.upper_a, self.alpha_a, self.group_a, self.least, self.most)
        gap = float(extremes(*args))
        self.is_pressed = self.policy.waits_for_pressure and self.matrix.is_pressed
        return gap if self.peers.is_alone else self._agree_on_extremes()

    def _agree_on_extremes(self) -> float:
        """Make the extremes, and whether any cache is short, those of all ranks; return the gap."""
        words = np.concatenate([self.least, -self.most, [-float(self.is_pressed)]])
        self.peers.lowest(words)
        self.least[:], self.most[:] = words[: self.n_groups], -words[self.n_groups : -1]
        self.is_pressed = bool(words[-1])
        return float((self.most - self.least).max())

    def _round(self, gap: float) -> None:
        """Solve one block and bring u of the active samples up to date."""
        chosen, f = self._choose()
        samples, where = np.unique(chosen % self.matrix.n, return_inverse=True)
        picked = self.matrix.pick(samples)
        before, y, upper = (np.take(part, chosen) for part in (self.alpha, self.dual.y, self.dual.upper))
        answer = np.append(before, 0.0)
        if self.peers.rank == 0:
            values = self.matrix.block(picked)
            if len(samples) != len(chosen) or (np.diff(where) != 1).any():
                values = values[np.ix_(where, where)]
            inner_tol = max(0.5 * self.tol, 0.1 * gap)
            limit = min(100 * len(chosen), self.max_iter - self.n_iter)
            group = np.take(self.group, chosen)
            answer[-1] = solve_block(values, y, group, upper, answer[:-1], f, inner_tol, limit, self.n_groups)
        self.peers.agree(answer)
        alpha = answer[:-1]
        self._set_alpha(chosen, alpha)
        moved = np.bincount(where, weights=(alpha - before) * y, minlength=len(samples)).astype(np.float64)
        changed = np.flatnonzero(moved)
        if len(changed):
            is_free = np.zeros(len(samples), dtype=np.bool_)
            is_free[where[(alpha > 0) & (alpha < upper)]] = True
            self.matrix.add(self.u_a, picked, changed, moved[changed], samples[~is_free])
            self.n_stalls = 0
        else:
            self._stall()
        self.n_iter += int(answer[-1])
        self.n_rounds += 1
        self._record("block", gap)

    def _set_alpha(self, chosen: IntVector, alpha: FloatVector) -> None:
        self.alpha.reshape(-1)[chosen] = alpha
        position = self.matrix.position[chosen % self.matrix.n]
        here = position >= 0
        self.alpha_a[chosen[here] // self.matrix.n, position[here]] = alpha[here]

    def _stall(self) -> None:
        """Nothing moved: rounding of the rows hides the descent, so go on from an exact u with float64 rows."""
        self.n_stalls += 1
        self.newest = self.newest[:0]
        if self.matrix.dtype == np.float32:
            self.matrix.set_dtype(np.float64)
        self._store_active()
        self._refine()
        self._load_active()

    def _choose(self) -> tuple[IntVector, FloatVector]:
        """Return the variables of the next block, ascending, and their f: the newest, then the worst violators.

        Variable v of sample i has the number v n + i.
        """
        newest, n, q = self.newest, self.matrix.n, self.q
        if self.matrix.n_active <= 4 * self.largest_q:
            # Among few samples, a block of all free variables ends what else takes many rounds.
            n_free = int(np.count_nonzero((self.alpha > 0) & (self.alpha < self.dual.upper)))
            q = min(max(q, 3 * n_free // 2), self.largest_q)
        room = max(1, (q - len(newest)) // (2 * self.n_groups))
        position = self.matrix.position[newest % n]
        here = position >= 0
        f_newest: FloatVector = np.zeros(len(newest))
        f_newest[here] = self.u_a[position[here]] + self.c_a[newest[here] // n, position[here]]
        offers = self._offer(room)
        if not self.peers.is_alone:
            offers, f_newest = self._exchange(offers, f_newest, room)
        taken = np.zeros(self.alpha.size, dtype=np.bool_)
        taken[newest] = True
        fresh, f_fresh = [], []
        for number, (keys, variables) in enumerate(offers):
            is_open = ~taken[variables]
            keys, variables = keys[is_open], variables[is_open]
            if len(keys) > room:
                best = np.argpartition(keys, room - 1)[:room]
                keys, variables = keys[best], variables[best]
            taken[variables] = True
            fresh.append(variables)
            f_fresh.append(-keys if number % 2 else keys)
        found = np.concatenate(fresh)
        # The worst pair must be in the block: then a block always descends. It is, unless the newest hold it.
        self.newest = found[: q // 2] if len(found) else newest[len(newest) // 2 :]
        chosen = np.concatenate([newest, found])
        order = np.argsort(chosen)
        return chosen[order], np.concatenate([f_newest, *f_fresh])[order]

    def _offer(self, room: int) -> list[tuple[FloatVector, IntVector]]:
        """Return the worst violators that lie here: per group, those of I_up by f, then those of I_low by −f.

        A variable may be on both sides, so the second side has twice the room. The newest are not among them.
        """
        n_active, active, n = len(self.u_a), self.matrix.active, self.matrix.n
        keys, places = np.empty(self.y_a.size), np.empty(self.y_a.size, dtype=np.int64)
        is_newest = np.zeros(self.y_a.size, dtype=np.bool_)
        position = self.matrix.position[self.newest % n]
        here = position >= 0
        is_newest[self.newest[here] // n * n_active + position[here]] = True
        args = (self.u_a, self.c_a, self.y_a, self.upper_a, self.alpha_a, self.group_a)
        offers = []
        for g in range(self.n_groups):
            for side in (0, 1):
                count = collect(*args, self.least[g], self.most[g], side, g, keys, places)
                is_open = ~is_newest[places[:count]]
                ours, where = keys[:count][is_open], places[:count][is_open]
                most = room * (1 + side)
                if len(where) > most:
                    best = np.argpartition(ours, most - 1)[:most]
                    ours, where = ours[best], where[best]
                if n_active:
                    where = where // n_active * n + active[where % n_active]
                offers.append((ours, where))
        return offers

    def _exchange(
        self, offers: list[tuple[FloatVector, IntVector]], f_newest: FloatVector, room: int
    ) -> tuple[list[tuple[FloatVector, IntVector]], FloatVector]:
        """Return the offers of all ranks, and f of the newest variables from whoever holds them: one message."""
        rooms = [room * (1 + number % 2) for number in range(len(offers))]
        size, ends = sum(rooms), np.cumsum([0, *rooms])
        words = np.zeros(2 * size + len(f_newest) + 2)
        words[:size] = np.inf
        for start, (keys, variables) in zip(ends, offers, strict=False):
            words[start : start + len(keys)] = keys
            words[size + start : size + start + len(keys)] = variables
        words[2 * size : -2] = f_newest
        words[-2:] = self.matrix.n_hits, self.matrix.n_evaluations
        heard = self.peers.all_of(words)
        self.told = heard[:, -2:].sum(axis=0) - words[-2:]
        joined = []
        for start, stop in pairwise(ends):
            keys = heard[:, start:stop].ravel()
            variables = heard[:, size + start : size + stop].ravel().astype(np.int64)
            order = np.lexsort((variables, keys))
            order = order[np.isfinite(keys[order])]
            joined.append((keys[order], variables[order]))
        return joined, heard[:, 2 * size : -2].sum(axis=0)

    # -- elimination ---------------------------------------------------------------------------------------------

    def _eliminate(self, gap: float) -> bool:
        """Leave settled samples out if a test is due and enough of them are; return whether it was done."""
        if not self.is_eliminating or self.n_iter < self.next_test:
            return False
        if self.policy.waits_for_pressure and not self.is_pressed:
            return False
        with self.peers.round("control"):
            return self._leave_out(gap)

    def _leave_out(self, gap: float) -> bool:
        n = self.matrix.n_active
        # Each reconstruction that found violators says that tests come too soon.
        pause = self.policy.steps_between(self.matrix.n) * 2**self.n_false
        self.next_test = self.n_iter + min(pause, max(1, n) * 2**self.n_false)
        f = self.u_a + self.c_a
        out = eliminable(f, self.y_a, self.alpha_a, self.upper_a, self.group_a, self.least, self.most)
        total = np.array([float(out.sum())])
        self.peers.add_up(total)
        count = int(total[0])
        if count == 0 or count < self.policy.min_fraction * n:
            return False
        self._store_active()
        gone = self.peers.join(self.matrix.active[out])
        self.trail.add(gone, self._beta())
        if len(self.trail) > _MAX_EVENTS:
            self._renew(*self.trail.join(self._beta()))
        self._keep(np.flatnonzero(~out), gone)
        self.n_eliminated += count
        self._record("eliminate", gap)
        return True

    def _keep(self, keep: IntVector, gone: IntVector) -> None:
        is_gone = np.zeros(self.matrix.n, dtype=np.bool_)
        is_gone[gone] = True
        self.newest = self.newest[~is_gone[self.newest % self.matrix.n]]
        self.matrix.shrink(keep, gone)
        self._rebalance()
        self._load_active()

    def _rebalance(self) -> None:
        """Let rows move if the active samples have come to lie too unevenly; u must have been stored."""
        if not self.peers.is_alone and rebalance(self.matrix, self.u, self.exact_u):
            self._record("rebalance", float((self.most - self.least).max()))

    def _bring_back(self, *, early: bool = False) -> bool:
        """Renew u of the samples left out and make those active again that violate; return whether there were any.

        Unless it is `early`, this is left to the proof, which needs the right u of all samples anyway, where it would
        not be much less work: then the proof is the reconstruction.
        """
        if not self.trail or self.policy.reconstruction == "none":
            return False
        self._store_active()
        beta = self._beta()
        if self.policy.reconstruction == "delta" and not early:
            work = sum(len(ids) * np.count_nonzero(beta != before) for ids, before in self.trail.back(beta))
            if 4 * work > self.matrix.n * len(self._refinement(beta)[0]):
                return False
        for ids, before in self.trail.back(beta):
            self._renew(ids, before, beta)
        self.n_reconstructions += 1
        has_violators = self._return_violators()
        self._record("reconstruct", self._scan())
        return has_violators

    def _return_violators(self) -> bool:
        """Given a right u everywhere, make the samples left out active that violate."""
        if self.policy.mode == "single":
            self.is_eliminating = False
        left_out = self.trail.ids
        ids = self.peers.mine(left_out)
        f = self.u[ids] + self.c[:, ids]
        y, alpha, upper = self.dual.y[:, ids], self.alpha[:, ids], self.dual.upper[:, ids]
        stays = eliminable(f, y, alpha, upper, self.group[:, ids], self.least, self.most)
        back = self.peers.join(ids[~stays])
        is_back = np.zeros(self.matrix.n, dtype=np.bool_)
        is_back[back] = True
        self.trail.restart(left_out[~is_back[left_out]], self._beta())
        if len(back):
            self.n_false = min(self.n_false + 1, 20)
            self.matrix.extend(back)
            self.n_returned += len(back)
            self._rebalance()
        self._load_active()
        return len(back) > 0

    def _renew(self, ids: IntVector, before: FloatVector, beta: FloatVector) -> None:
        """Bring u of samples from the coefficients `before` to `beta`."""
        ids = self.peers.mine(ids)
        if self.policy.reconstruction == "full":
            sources = np.flatnonzero(beta)
            self.u[ids] = self.matrix.product(ids, sources, beta[sources], self.matrix.dtype)
            return
        change = beta - before
        sources = np.flatnonzero(change)
        self.u[ids] += self.matrix.product(ids, sources, change[sources], self.matrix.dtype)

    # -- the proof -----------------------------------------------------------------------------------------------

    def _verify(self) -> float:
        """Compute u of all samples in float64 and return the gap over all of them; violators become active."""
        self._store_active()
        self._refine()
        gap = self._scan_all()
        self._load_active()
        self._record("verify", gap)
        self.active_gap = self._scan()
        if self.trail and self.policy.reconstruction != "none":
            self.n_reconstructions += 1
            if gap >= self.tol:
                self._return_violators()
            self._record("reconstruct", gap)
        return gap

    def _scan_all(self) -> float:
        """Return the gap over all samples, active or not."""
        parts = [self.u, self.c, self.dual.y, self.dual.upper, self.alpha, self.group]
        if not self.peers.is_alone:
            parts = [np.ascontiguousarray(part[..., self.matrix.mine]) for part in parts]
        gap = float(extremes(*parts, self.least, self.most))
        return gap if self.peers.is_alone else self._agree_on_extremes()

    def _refinement(self, beta: FloatVector) -> tuple[IntVector, FloatVector, bool]:
        """Return which coefficients u must be renewed from in float64, by how much, and whether that is from zero."""
        change = beta - self.exact_beta
        sources = np.flatnonzero(change)
        if len(sources) > np.count_nonzero(beta):  # from scratch is less work, and drops old rounding
            sources = np.flatnonzero(beta)
            return sources, beta[sources], True
        return sources, change[sources], False

    def _refine(self) -> None:
        """Set u to K(yα) in float64, from the last exact u and what has changed since."""
        beta = self._beta()
        sources, change, is_fresh = self._refinement(beta)
        if is_fresh:
            self.exact_u[:] = 0.0
        if len(sources):
            here = self.matrix.mine
            self.exact_u[here] += self.matrix.product(here, sources, change, np.float64)
        self.exact_beta = beta
        self.u = self.exact_u.copy()

    def _solution(self, gap: float) -> Solution:
        if not self.peers.is_alone:
            there = np.setdiff1d(np.arange(self.matrix.n), self.matrix.mine)
            self.u[there] = 0.0
            self.peers.add_up(self.u)
        extremes(self.u, self.c, self.dual.y, self.dual.upper, self.alpha, self.group, self.least, self.most)
        f = self.u + self.c
        thresholds = find_thresholds(f, self.alpha, self.dual.upper, self.group, self.least, self.most)
        objective = 0.5 * float(self._beta() @ self.u) + float((self.dual.p * self.alpha).sum())
        counts = np.array([self.matrix.n_hits, self.matrix.n_evaluations], dtype=np.float64)
        self.peers.add_up(counts)
        return Solution(
            alpha=self.alpha,
            u=self.u,
            thresholds=thresholds,
            gap=max(gap, 0.0) if np.isfinite(gap) else 0.0,
            objective=objective,
            converged=gap < self.tol,
            n_iter=self.n_iter,
            n_rounds=self.n_rounds,
            n_eliminated=self.n_eliminated,
            n_reconstructions=self.n_reconstructions,
            n_returned=self.n_returned,
            n_evaluations=int(counts[1]),
            n_hits=int(counts[0]),
            history=self.history,
        )

    # -- arrays --------------------------------------------------------------------------------------------------

    def _beta(self) -> FloatVector:
        """Return Σ yα by sample."""
        total: FloatVector = (self.dual.y * self.alpha).sum(axis=0)
        return total

    def _store_active(self) -> None:
        self.u[self.matrix.active] = self.u_a

    def _load_active(self) -> None:
        active = self.matrix.active

        def take(part: AnyArray) -> Any:
            return np.ascontiguousarray(part[:, active])

        self.u_a = self.u[active]
        self.alpha_a, self.c_a, self.y_a = take(self.alpha), take(self.c), take(self.dual.y)
        self.upper_a, self.group_a = take(self.dual.upper), take(self.group)

    def _record(self, event: str, gap: float) -> None:
        self.history.append(
            EliminationRecord(
                event,
                self.n_iter,
                self.matrix.n_active,
                gap,
                self.matrix.n_hits + int(self.told[0]),
                self.matrix.n_evaluations + int(self.told[1]),
                time.perf_counter() - self.begin,
            )
        )
