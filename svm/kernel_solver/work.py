"""What a run of the block solver did, by its phases: seconds of this rank, and amounts of work of all ranks.

The amounts do not depend on the machine, and hardly on the number of ranks, so a run on one rank says what each of many
would have to do: see `dsgd.study.svm_rounds`. A lap takes two readings of a counter and of the clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dsgd.types import FloatVector

#: The phases of a round: the extremes; the choice of variables; the rows of their features; the steps within the block;
#: the update of the indicators. All else is a check: samples left out or brought back, batches, proofs.
PHASES: Final = ("scan", "choose", "rows", "solve", "update", "check")
#: Amounts over all rounds: active samples looked at, variables of blocks, those of them that the round before had not,
#: steps times the variables of their block, squares of the variables, and values that were read from cached rows.
AMOUNTS: Final = ("looked", "variables", "fresh", "step_variables", "squares", "read_values")


def _zeros(n: int) -> FloatVector:
    return np.zeros(n)


@dataclass
class Work:
    """Seconds and amounts of a run, or of several.

    - `amounts`, shape (6,): by `AMOUNTS`, on this rank; in a solution on all. What every rank does alike is counted
      on rank 0.
    """

    seconds: FloatVector = field(default_factory=lambda: _zeros(len(PHASES)))
    values: FloatVector = field(default_factory=lambda: _zeros(len(PHASES)))
    amounts: FloatVector = field(default_factory=lambda: _zeros(len(AMOUNTS)))

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
