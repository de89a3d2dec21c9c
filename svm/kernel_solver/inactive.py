"""The samples that the block solver has left out: when they are removed, updated and returned.

See `dsgd.svm.kernel_solver.elimination` for the test and the schedules. Nothing here decides whether a run is done:
that is the proof over all samples (`dsgd.svm.kernel_solver.block`).
"""

from __future__ import annotations

import numpy as np

from dsgd.svm.kernel_solver.elimination import Elimination, Trail, eliminable
from dsgd.svm.kernel_solver.rebalance import rebalance
from dsgd.svm.kernel_solver.state import State
from dsgd.svm.kernels.numbering import find
from dsgd.types import AnyArray, FloatVector, IntVector

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
        """Note that samples of this rank, whose u is right, are left out, and how far they are beyond the extremes.

        All ranks call this together.
        """
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
