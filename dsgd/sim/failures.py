"""Machines that stop during a simulated training: when, and what that costs.

Problem: a long training loses machines, and how often it keeps its state and what it does then decide how much of the
time of the others counts.

Method: failures of a machine are a Poisson process, drawn for each machine by itself, or come from a trace. They strike
at their time, whatever ranks do then; ranks stop together, and those of the next gang go on from the newest state that
a survivor holds, as on workers (`dsgd.runtime.Gang`). A machine that comes back joins at the end of an epoch, and
nothing is done again for it. Equal seeds give equal failures under every policy.

Source: Young 1974 and Daly 2006 (intervals of checkpoints and the time that is lost).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dsgd.errors import InvalidParameterError
from dsgd.runtime.checkpoints.checkpoint import Snapshot, SnapshotKeeper
from dsgd.sim.events import VirtualClock
from dsgd.sim.network import draw_uniform
from dsgd.validation import Checked, check_number, number

#: After so many failures in a row before the first new copy of a state no training gets on.
MOST_IN_VAIN: Final = 100
# Failures are drawn apart from stragglers, whose seed is the same.
_STREAM: Final = 1 << 32


@dataclass(frozen=True)
class Failures(Checked):
    """When machines stop, and what it takes to go on without them.

    Parameters
    ----------
    rate : float, default 0
        Failures of a machine per hour, at random.
    trace : sequence of (float, int), default empty
        Further failures: the virtual second, and the machine, which is the rank at the start.
    restart_s : float, default 10
        Seconds from a failure until ranks go on: it is noticed, a machine takes the place of the lost one where the
        policy is to restart, and ranks are connected.
    every_s : float, default 0.5
        Seconds of training from one copy of the state to the next; workers take them as often.
    copy_s : float, default 0
        Seconds that ranks stop for each copy, as where a large state goes to a disk. Young's interval, from which
        `every_s` should not be far, is ``sqrt(2 copy_s M)`` if one of all machines fails every M seconds.
    return_s : float, default 60
        Seconds from a failure until the machine is back, with its rows, where the policy is ``"elastic"``. It joins at
        the end of the epoch, and to connect ranks anew takes `restart_s` again.

    Raises
    ------
    InvalidParameterError
        A number is negative, or an entry of `trace` is no time and machine.

    Examples
    --------
    >>> from dsgd.sim import Failures, SimulatedCluster
    >>> flaky = SimulatedCluster(8, failures=Failures(rate=2.0, restart_s=30.0), on_failure="restart")
    """

    rate: float = number(0.0, low=0)
    trace: Sequence[tuple[float, int]] = ()
    restart_s: float = number(10.0, low=0)
    every_s: float = number(0.5, low=0)
    copy_s: float = number(0.0, low=0)
    return_s: float = number(60.0, low=0)

    def __post_init__(self) -> None:
        """Refuse a trace that is none."""
        super().__post_init__()
        for entry in self.trace:
            if len(entry) != 2:
                raise InvalidParameterError(f"Failures(trace=...) has pairs of a second and a machine. Got {entry!r}.")
            check_number("Failures(trace=...), a second", entry[0], low=0)
            check_number("Failures(trace=...), a machine", entry[1], low=0, integer=True)

    def first(self, seed: int, machines: Sequence[int], after: float) -> tuple[float, int]:
        """Return the first failure of some machines after a time, and whose it is; at infinity if there is none."""
        told = [(at, machine) for at, machine in self.trace if machine in machines and at > after]
        drawn = [(next(at for at in self._drawn(seed, machine) if at > after), machine) for machine in machines]
        return min([*told, *drawn])

    def _drawn(self, seed: int, machine: int) -> Iterator[float]:
        at, k = 0.0, 0
        while self.rate > 0.0:
            at -= 3600.0 / self.rate * math.log(draw_uniform(seed, _STREAM + machine, k))
            k += 1
            yield at
        yield math.inf


class Keeper(SnapshotKeeper):
    """The keeper of a simulated rank: it asks for a pause when a machine is back."""

    def __init__(self, latest: Snapshot | None, failures: Failures) -> None:
        super().__init__(latest, failures.every_s)
        self.clock, self.joins_at = VirtualClock(), math.inf

    @property
    def pause_requested(self) -> bool:
        """Whether ranks are to stop at the end of their epoch."""
        return self.clock.now >= self.joins_at

    @pause_requested.setter
    def pause_requested(self, _: bool) -> None: ...


class History:
    """The failures of one training so far, and what is left of its gang.

    - `machines`, `keepers`: of each rank its machine, and what keeps its state.
    - `began`, `stops`: when ranks go on, and the next failure: when and of which machine.
    - `n_in_vain`: how many failures there were since a state was copied.
    """

    def __init__(self, failures: Failures, seed: int, machines: list[int]) -> None:
        self._failures, self._seed, self._size = failures, seed, len(machines)
        self.machines = machines
        self.keepers = [Keeper(None, failures) for _ in machines]
        self.began, self.stops = 0.0, failures.first(seed, machines, 0.0)
        self.events: list[dict[str, Any]] = []
        self.n_in_vain = 0
        # Machines that are gone, and when they are back.
        self._lost: dict[int, float] = {}
        # Of this gang: each rank copies at the same moments.
        self._n_copies = [0] * self._size
        self._trained_s = self._counted_s = 0.0

    def join(self, rank: int, clock: VirtualClock) -> Keeper:
        """Return the keeper of a rank that begins."""
        keeper = self.keepers[rank]
        keeper.clock, keeper.joins_at = clock, min(self._lost.values(), default=math.inf)
        keeper.on_copy = partial(self._charge_copy, rank, clock)
        return keeper

    def _charge_copy(self, rank: int, clock: VirtualClock) -> None:
        """Let a rank stop for a copy of its state."""
        clock.now += self._failures.copy_s
        clock.ideal += self._failures.copy_s
        self._n_copies[rank] += 1

    def heed(self, policy: str, rows: Sequence[int | None]) -> int:
        """Take in that a machine stopped; return the rank that it was."""
        at, machine = self.stops
        rank, began, before_s = self.machines.index(machine), self.began, self._trained_s
        if policy in ("shrink", "elastic"):
            self._lost[machine] = at + self._failures.return_s if policy == "elastic" else math.inf
        left = [other for other in self.machines if other not in self._lost]
        kept = {other: keeper.latest for other, keeper in zip(self.machines, self.keepers, strict=True)}
        self._go_on(at, left, {**kept, machine: None})
        self.n_in_vain = 0 if self._trained_s > before_s else self.n_in_vain + 1
        undone_s = max(at - began, 0.0) - (self._trained_s - before_s)
        self._record("lost", policy, rows, rank=rank, worker=f"simulated rank {rank}", host=f"machine {machine}",
                     at_s=at, undone_s=undone_s)  # fmt: skip
        return rank

    def rejoin(self, rows: Sequence[int | None]) -> None:
        """Take in that ranks have paused, and that the machines that are back join them."""
        at = max(keeper.clock.now for keeper in self.keepers)
        back = [machine for machine, returns in self._lost.items() if returns <= at]
        for machine in back:
            del self._lost[machine]
        kept = {machine: keeper.latest for machine, keeper in zip(self.machines, self.keepers, strict=True)}
        self._go_on(at, sorted([*self.machines, *back]), kept)
        self._record("joined", "elastic", rows, rank=None, worker="", host="", at_s=at, undone_s=0.0)

    def _go_on(self, at: float, machines: list[int], kept: Mapping[int, Snapshot | None]) -> None:
        """Prepare the next gang, whose ranks have these snapshots."""
        copies = [copy for machine in machines if (copy := kept.get(machine)) is not None]
        # That of training that counts: what came after the copy is done again.
        trained_s = max((float(copy.arrays["seconds"][0]) for copy in copies), default=0.0)
        # What the newest copy took came after it.
        copied_s = self._failures.copy_s * max(max(self._n_copies) - 1, 0)
        self._counted_s += len(self.machines) * max(trained_s - self._trained_s - copied_s, 0.0)
        self._n_copies = [0] * self._size
        self.machines, self.keepers = machines, [Keeper(kept.get(machine), self._failures) for machine in machines]
        self._trained_s, self.began = trained_s, at + self._failures.restart_s
        self.stops = self._failures.first(self._seed, machines, at) if machines else (math.inf, -1)

    def _record(self, kind: str, policy: str, rows: Sequence[int | None], **facts: Any) -> None:
        lost = sorted(self._lost)
        known = [rows[machine] for machine in lost]
        n_rows = None if None in known else sum(number for number in known if number is not None)
        after = {"ranks": len(self.machines), "blocks_lost": lost, "rows_lost": n_rows}
        self.events.append({"kind": kind, "policy": policy, **facts, **after, "seconds": self._failures.restart_s})

    def goodput(self, elapsed_s: float) -> float:
        """Return the share of the seconds of all machines, at the end, that went into training that counts."""
        copied_s = self._failures.copy_s * max(self._n_copies)
        counted = self._counted_s + len(self.machines) * (elapsed_s - self.began - copied_s)
        return counted / (self._size * elapsed_s) if elapsed_s > 0.0 else 1.0
