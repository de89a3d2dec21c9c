"""Elimination of samples, and what is recorded of a run: its schedule, its work by phases, and whether it stands still.

**Work.** Seconds of this rank by phases of the block solver, and amounts of work of all ranks. The amounts do not
depend on the machine, and hardly on the number of ranks, so a run on one rank says what each of many would have to do:
see `dsgd.study.svm_rounds`. A lap takes two readings of a counter and of the clock.

**Standstill.** A run may cycle, because rounding undoes the gain of steps or because a given matrix is not symmetric;
it then ends with its present solution. Where the lowest gap of a window is hardly below that of the window before, and
the dual objective, computed anew, is hardly below its lowest so far, there was no progress. "Hardly" means by less than
a small share both of the missing amount, which the duality gap bounds, and of the total progress: at this rate it would
take a hundred times as many steps as a run may take. Some such windows in a row are a standstill.

Cost: two comparisons for each look at the gap; one proof for each window without progress.

**Elimination.** A sample whose variables are at a bound can only violate optimality on one side. While its indicator f
is beyond the extreme of the other side, it forms no violating pair, and its kernel column is not needed. Every few
steps such samples are removed. Their f becomes stale; it is updated from the variables that have changed since
(``delta``) before the solver accepts convergence.

Source: Vishnu, Narasimhan, Holder, Kerbyson, Hoisie, "Fast and Accurate SVMs on Large Scale Systems", IEEE
Cluster 2015, for the schedule of thresholds; Joachims 1999 and LIBSVM for the test. Departure: only samples that
violate come back, not all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.svm.kernels.rows import mask_of
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector
from dsgd.validation import check_bool, check_choice, check_number

#: The phases of a round: the extremes; the choice of variables; the rows of their features; the steps within the block;
#: the update of the indicators. All else is a check: samples left out or brought back, batches, proofs.
PHASES: Final = ("scan", "choose", "rows", "solve", "update", "check")

#: Amounts over all rounds: active samples looked at, variables of blocks, those of them that the round before had not,
#: steps times the variables of their block, squares of the variables, and values that were read from cached rows.
AMOUNTS: Final = ("looked", "variables", "fresh", "step_variables", "squares", "read_values")


@dataclass
class Work:
    """Seconds and amounts (`AMOUNTS`) of a run, or of several; what all ranks do alike is counted on rank 0."""

    seconds: FloatVector = field(default_factory=partial(np.zeros, len(PHASES)))
    values: FloatVector = field(default_factory=partial(np.zeros, len(PHASES)))
    amounts: FloatVector = field(default_factory=partial(np.zeros, len(AMOUNTS)))

    def __add__(self, later: Work) -> Work:
        """Return the work of both."""
        return Work(self.seconds + later.seconds, self.values + later.values, self.amounts + later.amounts)

    def add(self, **amounts: float) -> None:
        """Add amounts by name."""
        for name, amount in amounts.items():
            self.amounts[AMOUNTS.index(name)] += amount

    def told(self) -> FloatVector:
        """Return what is summed over ranks, as one vector."""
        return np.concatenate([self.values, self.amounts])

    def hear(self, told: FloatVector) -> None:
        """Take the sums over ranks of what they told."""
        self.values, self.amounts = told[: len(PHASES)], told[len(PHASES) :]


class Watch:
    """Says to which phase time and kernel values belong."""

    def __init__(self, work: Work, n_evaluations: int = 0) -> None:
        self._work = work
        self._values, self._time = n_evaluations, time.perf_counter()

    def lap(self, phase: str, n_evaluations: int) -> None:
        """Charge to a phase what has been since the last lap, `n_evaluations` being the values computed so far."""
        now, number = time.perf_counter(), PHASES.index(phase)
        self._work.seconds[number] += now - self._time
        self._work.values[number] += n_evaluations - self._values
        self._time, self._values = now, n_evaluations


#: Steps of a window: so many, or so many for each sample.
_STEPS, _STEPS_PER_SAMPLE = 100_000, 20

#: The lowest gap falls to this share of that before, or hardly at all.
_FALL = 0.9

#: Share of what is missing, or of all that was won, by which the objective falls: a run has at most a hundred windows.
_SHARE = 1e-4

#: Windows in a row that win nothing.
_MOST = 2


class Standstill:
    """The watch over one run."""

    def __init__(self, n: int) -> None:
        self._window = max(_STEPS, _STEPS_PER_SAMPLE * n)
        self._end = self._window
        self._lowest = self._before = np.inf
        self._objective = self._first = np.inf
        self._n_idle = 0

    def is_suspected(self, n_iter: int, gap: float) -> bool:
        """Return whether a window has ended in which the gap has hardly fallen; then call `is_certain`."""
        self._lowest = min(self._lowest, gap)
        if n_iter < self._end:
            return False
        is_falling = self._lowest < _FALL * self._before
        self._before, self._lowest, self._end = self._lowest, np.inf, n_iter + self._window
        self._n_idle = 0 if is_falling else self._n_idle
        return not is_falling

    def is_certain(self, objective: float, duality_gap: float) -> bool:
        """Return whether the run stands still, after a window in which the gap has hardly fallen."""
        if np.isinf(self._first):
            self._first = self._objective = objective
        least = _SHARE * min(duality_gap, self._first - self._objective)
        has_won = self._objective - objective > least
        self._objective = min(self._objective, objective)
        self._n_idle = 0 if has_won else self._n_idle + 1
        return self._n_idle >= _MOST


#: What a record of a run may tell of.
EVENTS: Final = ("block", "eliminate", "grow", "rebalance", "reconstruct", "verify")


@dataclass(frozen=True)
class Elimination:
    """When samples are left out.

    Parameters
    ----------
    mode : {"multi", "single", "libsvm", "none"}
        Whether elimination continues after a reconstruction (``multi``) or not (``single``); ``libsvm`` also
        reconstructs once when the gap comes below ten times the tolerance.
    every : int or float, default 0.1
        Steps between two tests: a number of two-variable steps, or a share of the samples. Tests fall on the end of a
        block.
    min_fraction : float, default 0.1
        Samples are left out only if they are at least this share of the active samples; fewer are not worth a repack.
    reconstruction : {"delta", "full", "none"}, default "delta"
        How stale indicators are updated: from the changed variables, or from all support vectors. ``none`` updates
        nothing: the solution is approximate, and ``gap_`` says by how much.
    waits_for_pressure : bool, default False
        Leave samples out only once the requested kernel rows come close to what the cache can hold, or have been read
        from it as many times as there are samples, and then only if the counts so far show that it pays. If there are
        many samples whose rows do not fit into the cache, begin with a few (`dsgd.svm.kernel_solver.growth`).
    """

    mode: str = "multi"
    every: int | float = 0.1
    min_fraction: float = 0.1
    reconstruction: str = "delta"
    waits_for_pressure: bool = False

    def __post_init__(self) -> None:
        check_choice("Elimination(mode=...)", self.mode, ("multi", "single", "libsvm", "none"))
        check_number("Elimination(every=...)", self.every, low=0, open_low=True)
        check_number("Elimination(min_fraction=...)", self.min_fraction, low=0, high=1)
        check_bool("Elimination(waits_for_pressure=...)", self.waits_for_pressure)
        check_choice("Elimination(reconstruction=...)", self.reconstruction, ("delta", "full", "none"))

    def starts_idle(self) -> bool:
        """Return whether nothing is left out at first."""
        return self.mode == "none" or self.waits_for_pressure

    def steps_between(self, n_samples: int) -> int:
        """Return the two-variable steps between two tests."""
        if self.mode == "libsvm":
            return min(n_samples, 1000)
        whole = isinstance(self.every, int | np.integer)
        return max(1, int(self.every if whole else self.every * n_samples))


@dataclass(slots=True)  # not frozen: a fit of many classes makes ten thousand, and freezing takes four times as long
class EliminationRecord:
    """The state of the solver after one block, for plots of a run.

    Parameters
    ----------
    event : {"block", "eliminate", "grow", "rebalance", "reconstruct", "verify"}
        The last action; ``"grow"`` evaluates samples for the first time, ``"rebalance"`` moves samples between ranks.
    n_iter : int
        Two-variable steps so far.
    n_active : int
        Active samples.
    gap : float
        Largest violation among them.
    cache_hits, kernel_evaluations : int
        Rows found in the cache and kernel values computed, so far.
    seconds : float
        Since the start.
    """

    event: str
    n_iter: int
    n_active: int
    gap: float
    cache_hits: int
    kernel_evaluations: int
    seconds: float


_PRESETS = {
    "auto": Elimination("multi", every=0.02, min_fraction=0.05, waits_for_pressure=True),
    "none": Elimination("none"),
    "single": Elimination("single"),
    "multi": Elimination("multi"),
    "libsvm": Elimination("libsvm", min_fraction=0.0),
    "aggressive": Elimination("multi", every=2, min_fraction=0.0),
    "average": Elimination("multi", every=500, min_fraction=0.05),
    "conservative": Elimination("multi", every=0.5),
}


def resolve_elimination(where: str, value: str | Elimination) -> Elimination:
    """Return the policy behind a name.

    ``auto`` begins with few samples where there are many whose rows do not fit into the cache. Otherwise it eliminates
    once that pays: when the kernel rows asked for have filled half of the cache, or were read from it as many times as
    there are samples, and the values still to come are worth a mistake.
    """
    if isinstance(value, Elimination):
        return value
    if not isinstance(value, str) or value not in _PRESETS:
        names = ", ".join(repr(name) for name in _PRESETS)
        raise InvalidParameterError(f"{where} must be one of {names} or an Elimination. Got {value!r}.")
    return _PRESETS[value]


def eliminable(
    f: FloatMatrix,
    y: FloatMatrix,
    alpha: FloatMatrix,
    upper: FloatMatrix,
    group: AnyArray,
    least: FloatVector,
    most: FloatVector,
) -> AnyArray:
    """Return which samples may be left out, shape (n,): all their variables sit settled at a bound."""
    at_zero, at_upper = alpha <= 0, alpha >= upper
    low_only = np.where(y > 0, at_upper, at_zero) & (f < least[group])
    up_only = np.where(y > 0, at_zero, at_upper) & (f > most[group])
    return np.asarray((low_only | up_only).all(axis=0))


@dataclass
class _Event:
    """Who was left out, and the old coefficients of those that changed until the next event."""

    ids: IntVector
    changed: IntVector
    old: FloatVector

    def add_changes(self, changed: IntVector, old: FloatVector, n: int) -> None:
        """Record later changes among n samples; samples that had changed before keep their older coefficient."""
        is_fresh = ~mask_of(self.changed, n)[changed]
        self.changed = np.concatenate([self.changed, changed[is_fresh]])
        self.old = np.concatenate([self.old, old[is_fresh]])


class Trail:
    """Events of elimination, with what is needed to know the coefficients at each.

    The indicators of inactive samples are right for the coefficients of their event. Those are restored by going back
    from the present ones, event by event, so all events together keep one number per change, not n each.

    Samples may be divided among ranks. Each then has the samples of every event that lie with it, by their places among
    its own, and coefficients, shape (n,), are those of its own; all ranks call the methods together.
    """

    def __init__(self, n: int, count: Callable[..., IntVector] = lambda *numbers: np.array(numbers)) -> None:
        self._events: list[_Event] = []
        self._last: FloatVector = np.zeros(n)
        self._count = count

    def __len__(self) -> int:
        return len(self._events)

    @property
    def ids(self) -> IntVector:
        """Samples left out, int64."""
        return np.concatenate([np.empty(0, dtype=np.int64), *(event.ids for event in self._events)])

    def add(self, ids: IntVector, beta: FloatVector) -> None:
        """Add an event: `ids` are left out, their indicators right for the coefficients `beta`, shape (n,)."""
        self._note(beta)
        self._events.append(_Event(ids, np.empty(0, dtype=np.int64), np.empty(0)))

    def remove(self, ids: IntVector) -> None:
        """Forget that samples are left out."""
        stays = ~mask_of(ids, len(self._last))
        for event in self._events:
            event.ids = event.ids[stays[event.ids]]

    def restart(self, ids: IntVector, beta: FloatVector) -> None:
        """Forget all events; `ids` are left out from now on, none if no rank has any."""
        self._events = []
        self._last = beta.copy()
        if self._count(len(ids))[0]:
            self.add(ids, beta)

    def columns(self) -> list[FloatVector]:
        """Return what there is for each sample of this rank, as vectors."""
        found = [self._last]
        for event in self._events:
            is_in, old = np.zeros(len(self._last)), np.full(len(self._last), np.nan)
            is_in[event.ids], old[event.changed] = 1.0, event.old
            found += [is_in, old]
        return found

    def take_columns(self, columns: list[FloatVector]) -> None:
        """Take the same of the samples that this rank has now."""
        self._last, *rest = columns
        for event, is_in, old in zip(self._events, rest[::2], rest[1::2], strict=True):
            event.ids, event.changed = np.flatnonzero(is_in), np.flatnonzero(~np.isnan(old))
            event.old = old[event.changed]

    def know(self, ids: IntVector, beta: FloatVector) -> None:
        """Take the coefficients of samples that never had any as if they had always been those of `beta`."""
        self._last[ids] = beta[ids]

    def _note(self, beta: FloatVector) -> None:
        """Note with the newest event what has changed since."""
        if self._events:
            changed = np.flatnonzero(beta != self._last)
            self._events[-1].add_changes(changed, self._last[changed], len(beta))
        self._last = beta.copy()

    def back(self, beta: FloatVector) -> Iterator[tuple[IntVector, FloatVector]]:
        """Yield the ids of each event, newest first, and the coefficients then; the array is reused."""
        self._note(beta)
        state = beta.copy()
        for event in reversed(self._events):
            state[event.changed] = event.old
            yield event.ids, state

    def join(self, beta: FloatVector) -> tuple[IntVector, FloatVector, FloatVector]:
        """Make the cheaper of two neighbouring events; return whose indicators to renew, from what to what."""
        sizes = [size for event in self._events[:-1] for size in (len(event.ids), len(event.changed))]
        totals = self._count(*sizes)
        k = int(np.argmin(totals[::2] * totals[1::2]))
        states = [state.copy() for _, state in islice(self.back(beta), len(self) - k)]
        first, second = self._events[k : k + 2]
        if k:
            self._events[k - 1].add_changes(first.changed, first.old, len(beta))
        self._events[k : k + 2] = [_Event(np.concatenate([first.ids, second.ids]), second.changed, second.old)]
        return first.ids, states[-1], states[-2]
