"""Detection of runs without progress, from the gap and the dual objective.

A run may cycle, because rounding undoes the gain of steps or because a given matrix is not symmetric; it then ends with
its present solution. Where the lowest gap of a window is hardly below that of the window before, and the dual
objective, computed anew, is hardly below its lowest so far, there was no progress. "Hardly" means by less than a small
share both of the missing amount, which the duality gap bounds, and of the total progress: at this rate it would take a
hundred times as many steps as a run may take. Some such windows in a row are a standstill.

Cost: two comparisons for each look at the gap; one proof for each window without progress.
"""

from __future__ import annotations

import numpy as np

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
