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

Cost per round: about q n_active kernel values less cache hits. Source: block decomposition as in ThunderSVM (Wen et
al., JMLR 2018), without its early stop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsgd.svm.elimination import Elimination, EliminationRecord, Trail, eliminable
from dsgd.svm.kernel_matrix import KernelMatrix
from dsgd.svm.smo import collect, extremes, solve_block
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

__all__ = ["Dual", "Solution", "solve"]

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
        Kernel values among its samples. Those not active in it begin as left out: they come back if they violate.
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


class _Run:
    """The state of one run. Arrays named ``*_a`` hold the active samples, in the order of ``matrix.active``."""

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
        self.next_test = elimination.steps_between(n)
        self.is_eliminating = elimination.mode != "none"
        self.is_early_pending = elimination.mode == "libsvm"
        self.begin = time.perf_counter()
        if dual.u is not None:
            self.exact_u, self.exact_beta = dual.u.astype(np.float64), self._beta()
            self.u = self.exact_u.copy()
        elif self.alpha.any():
            self._refine()
        out = np.setdiff1d(np.arange(n), matrix.active)
        if len(out):
            self.trail.add(out, self._beta())
        self._load_active()

    # -- the loop ------------------------------------------------------------------------------------------------

    def solve(self) -> Solution:
        target = 0.9 * self.tol  # a little below, so that float32 rows rarely fail the proof
        while True:
            gap = self._scan()
            if gap >= target and self.n_iter < self.max_iter and self.n_stalls < 3:
                if self.is_early_pending and gap < 10 * self.tol:
                    self.is_early_pending = False
                    self._bring_back(early=True)
                elif not self._eliminate(gap):
                    self._round(gap)
                continue
            if self._bring_back() and self.n_iter < self.max_iter and self.n_stalls < 3:
                continue
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
        return float(extremes(*args))

    def _round(self, gap: float) -> None:
        """Solve one block and bring u of the active samples up to date."""
        n = len(self.u_a)
        chosen = self._choose()
        samples, where = np.unique(chosen % n, return_inverse=True)
        values = self.matrix.block(samples)
        if len(samples) != len(chosen) or (np.diff(where) != 1).any():
            values = values[np.ix_(where, where)]
        y, upper, alpha = (np.take(part, chosen) for part in (self.y_a, self.upper_a, self.alpha_a))
        before = alpha.copy()
        f = self.u_a[chosen % n] + np.take(self.c_a, chosen)
        inner_tol = max(0.5 * self.tol, 0.1 * gap)
        limit = min(100 * len(chosen), self.max_iter - self.n_iter)
        steps = solve_block(values, y, np.take(self.group_a, chosen), upper, alpha, f, inner_tol, limit, self.n_groups)
        self.alpha_a.reshape(-1)[chosen] = alpha
        moved = np.bincount(where, weights=(alpha - before) * y, minlength=len(samples)).astype(np.float64)
        changed = np.flatnonzero(moved)
        if len(changed):
            is_free = np.zeros(len(samples), dtype=np.bool_)
            is_free[where[(alpha > 0) & (alpha < upper)]] = True
            self.matrix.add(self.u_a, samples[changed], moved[changed], samples[~is_free])
            self.n_stalls = 0
        else:
            self._stall()
        self.n_iter += int(steps)
        self.n_rounds += 1
        self._record("block", gap)

    def _stall(self) -> None:
        """Nothing moved: rounding of the rows hides the descent, so go on from an exact u with float64 rows."""
        self.n_stalls += 1
        self.newest = self.newest[:0]
        if self.matrix.dtype == np.float32:
            self.matrix.set_dtype(np.float64)
        self._store_active()
        self._refine()
        self._load_active()

    def _choose(self) -> IntVector:
        """Return the flat numbers of the variables of the next block: the newest, then the worst violators."""
        chosen = self.newest
        taken = np.zeros(self.y_a.size, dtype=np.bool_)
        taken[chosen] = True
        q = self.q
        if len(self.u_a) <= 4 * self.largest_q:
            # Among few samples, a block of all free variables ends what else takes many rounds.
            n_free = int(np.count_nonzero((self.alpha_a > 0) & (self.alpha_a < self.upper_a)))
            q = min(max(q, 3 * n_free // 2), self.largest_q)
        room = max(1, (q - len(chosen)) // (2 * self.n_groups))
        new = []
        keys, places = np.empty(self.y_a.size), np.empty(self.y_a.size, dtype=np.int64)
        args = (self.u_a, self.c_a, self.y_a, self.upper_a, self.alpha_a, self.group_a)
        for g in range(self.n_groups):
            for side in (0, 1):
                count = collect(*args, self.least[g], self.most[g], side, g, keys, places)
                is_open = ~taken[places[:count]]
                ours, where = keys[:count][is_open], places[:count][is_open]
                if len(where) > room:
                    where = where[np.argpartition(ours, room - 1)[:room]]
                new.append(where)
                taken[where] = True
        fresh = np.concatenate(new)
        # The worst pair must be in the block: then a block always descends. It is, unless the newest hold it.
        self.newest = fresh[: q // 2] if len(fresh) else chosen[len(chosen) // 2 :]
        return np.sort(np.concatenate([chosen, fresh]))

    # -- elimination ---------------------------------------------------------------------------------------------

    def _eliminate(self, gap: float) -> bool:
        """Leave settled samples out if a test is due and enough of them are; return whether it was done."""
        if not self.is_eliminating or self.n_iter < self.next_test:
            return False
        if self.policy.waits_for_pressure and not self.matrix.is_pressed:
            return False
        n = len(self.u_a)
        # Each reconstruction that found violators says that tests come too soon.
        pause = self.policy.steps_between(self.matrix.n) * 2**self.n_false
        self.next_test = self.n_iter + min(pause, max(1, n) * 2**self.n_false)
        f = self.u_a + self.c_a
        out = eliminable(f, self.y_a, self.alpha_a, self.upper_a, self.group_a, self.least, self.most)
        count = int(out.sum())
        if count == 0 or count < self.policy.min_fraction * n:
            return False
        self._store_active()
        self.trail.add(self.matrix.active[out], self._beta())
        if len(self.trail) > _MAX_EVENTS:
            self._renew(*self.trail.join(self._beta()))
        self._keep(np.flatnonzero(~out))
        self.n_eliminated += count
        self._record("eliminate", gap)
        return True

    def _keep(self, keep: IntVector) -> None:
        n = len(self.u_a)
        place = np.full(n, -1, dtype=np.int64)
        place[keep] = np.arange(len(keep))
        variables = self.newest
        there = place[variables % n]
        self.newest = (variables // n * len(keep) + there)[there >= 0]
        self.matrix.shrink(keep)
        self._load_active()

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
        ids = self.trail.ids
        f = self.u[ids] + self.c[:, ids]
        y, alpha, upper = self.dual.y[:, ids], self.alpha[:, ids], self.dual.upper[:, ids]
        stays = eliminable(f, y, alpha, upper, self.group[:, ids], self.least, self.most)
        self.trail.restart(ids[stays], self._beta())
        back = ids[~stays]
        if len(back):
            self.n_false = min(self.n_false + 1, 20)
            n, m = len(self.u_a), len(self.u_a) + len(back)
            self.newest = self.newest // n * m + self.newest % n
            self.matrix.extend(back)
            self.n_returned += len(back)
        self._load_active()
        return len(back) > 0

    def _renew(self, ids: IntVector, before: FloatVector, beta: FloatVector) -> None:
        """Bring u of samples from the coefficients `before` to `beta`."""
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
        gap = float(
            extremes(self.u, self.c, self.dual.y, self.dual.upper, self.alpha, self.group, self.least, self.most)
        )
        self._load_active()
        self._record("verify", gap)
        self.active_gap = self._scan()
        if self.trail and self.policy.reconstruction != "none":
            self.n_reconstructions += 1
            if gap >= self.tol:
                self._return_violators()
            self._record("reconstruct", gap)
        return gap

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
            everyone = np.arange(self.matrix.n)
            self.exact_u += self.matrix.product(everyone, sources, change, np.float64)
        self.exact_beta = beta
        self.u = self.exact_u.copy()

    def _solution(self, gap: float) -> Solution:
        thresholds = np.empty(self.n_groups)
        f = self.u + self.c
        extremes(self.u, self.c, self.dual.y, self.dual.upper, self.alpha, self.group, self.least, self.most)
        for g in range(self.n_groups):
            free = (self.alpha > 0) & (self.alpha < self.dual.upper) & (self.group == g)
            ends = [end for end in (self.least[g], self.most[g]) if np.isfinite(end)]
            thresholds[g] = f[free].mean() if free.any() else (sum(ends) / len(ends) if ends else 0.0)
        objective = 0.5 * float(self._beta() @ self.u) + float((self.dual.p * self.alpha).sum())
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
            n_evaluations=self.matrix.n_evaluations,
            n_hits=self.matrix.n_hits,
            history=self.history,
        )

    # -- arrays --------------------------------------------------------------------------------------------------

    def _beta(self) -> FloatVector:
        """Return Σ yα by sample; the active ones must have been stored."""
        total: FloatVector = (self.dual.y * self.alpha).sum(axis=0)
        return total

    def _store_active(self) -> None:
        active = self.matrix.active
        self.u[active] = self.u_a
        self.alpha[:, active] = self.alpha_a

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
                len(self.matrix.active),
                gap,
                self.matrix.n_hits,
                self.matrix.n_evaluations,
                time.perf_counter() - self.begin,
            )
        )
