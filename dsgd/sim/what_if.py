"""What a recorded run would have taken elsewhere: on another network, on other ranks, with another period.

Problem: users know what a run took, and ask what it would have taken with other settings.

Method: the rounds of the run are played again as `dsgd.sim.predict` plays rounds, with the recorded work of ranks in
the place of that of the cost model. A change of a setting changes the play; the result is the recorded time times what
the play has changed by, so that it is the recorded time where nothing is changed.

- Of a simulated run, network, work and stragglers are known.
- Of a real run, the rounds that the ledger has kept say how long ranks have worked, and how these times vary. The wire
  is fitted: messages cost what makes a played round as long as a recorded one. One run cannot tell what of that is
  latency, what bandwidth, and what is longer after more work, nor what of the work is per row and what per call. So
  two machines are fitted, which are far apart in this, and the interval spans both.
- Recorded seconds that are in no round (the ends of epochs, the loop itself) are kept: per epoch, or in part per round.

The interval also has the 10th and the 90th percentile over rounds that are drawn again (bootstrap), and a factor that
stands for what the play leaves out, the larger the further a period is from that of the run: `_MARGINS`. How often
intervals hold what was measured is measured (``python -m benchmarks run what_if``).

Cost: some milliseconds, for some tens of ranks.

Source: Efron 1979 (bootstrap).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from dsgd.collectives.cost import Link
from dsgd.compress import ErrorFeedback, parse_compressor
from dsgd.errors import InvalidParameterError
from dsgd.ledger import PHASES, Ledger
from dsgd.runtime.train.fused import is_plain
from dsgd.sim.cluster import SimulatedCluster
from dsgd.sim.exchanges import Exchanges
from dsgd.sim.network import AbstractStragglers, Compute, Network, network_for, stragglers_for
from dsgd.sim.prediction import Course, course_of, play, work_factors
from dsgd.sync import AbstractStrategy, EveryBatch, EveryEpoch, EveryRows, Once, RoundClock, resolve
from dsgd.types import FloatMatrix
from dsgd.validation import check_number

# Rounds of a rank and seconds of all ranks that a record keeps; and columns of a play.
_MOST_ROUNDS: Final = 256
_MOST_KEPT: Final = 4096
_MOST_PLAYED: Final = 64
# A rank that loses its core for a while, or compiles, works so many times as long as usual: this is counted apart.
_UNUSUAL: Final = 20.0
_MOST_ABOVE: Final = 2.0
# Of a longer round ranks wait longer, by so much of the longer work at most.
_MOST_WAIT: Final = 0.3
# Seconds of Python in a round outside of kernels that run many, and beside in one whose vectors are encoded, of the one
# machine and of the other. Threads of a process take turns in it. Measured with the benchmark.
_LOOP_S: Final = (2.5e-5, 5e-5)
_CODING_S: Final = (1.2e-4, 2.2e-4)
# Plays of rounds that are drawn again; fewer of many ranks, whose play takes longer.
_DRAWS, _MANY = 16, 64
_BETWEEN: Final = (0.1, 0.9)
# What a play leaves out, as a factor of the seconds: of a simulated run and of a real one, whatever was changed; of a
# real one, for every factor of four in its rounds, and where its network has a name, which is a nominal one.
_MARGINS: Final = {"simulated": 1.1, "real": 1.7, "rounds": 1.2, "network": 1.2}
# The knee of a curve is where its seconds come within this share of the least ones.
_NEAR: Final = 0.1


@dataclass(frozen=True)
class WhatIf:
    """What a run would have taken.

    Parameters
    ----------
    change : str
        What differs from the run.
    seconds : float
        Of training, until the last rank has ended.
    low, high : float
        The interval that `seconds` is in.
    phases : mapping of str to float
        What these are: ``compute_s``, ``encode_s`` and ``communication_s`` (wire and waiting) of a rank, in the mean
        over ranks, and ``other_s``, what was in no round.
    bytes_sent : float
        Of all ranks, for the algorithm.
    rounds : int
        Synchronisations.
    recorded_s : float
        What the run took.
    basis : str
        What this rests on.
    every : int or None
        The period that was asked for.
    """

    change: str
    seconds: float
    low: float
    high: float
    phases: Mapping[str, float]
    bytes_sent: float
    rounds: int
    recorded_s: float
    basis: str
    every: int | None = None

    def __str__(self) -> str:
        lines = [
            f"{self.change or 'as it was'}: {self.seconds:.3g} s ({self.low:.3g} to {self.high:.3g}), "
            f"and the run took {self.recorded_s:.3g}"
        ]
        for name, seconds in self.phases.items():
            share = seconds / self.seconds if self.seconds > 0 else 0.0
            lines.append(f"{name.removesuffix('_s'):>15} {seconds:>10.4g} s {share:>6.1%}")
        lines += [f"{'sent':>15} {self.bytes_sent / 1e6:>10.4g} MB in {self.rounds:,} rounds", self.basis]
        return "\n".join(lines)


@dataclass(frozen=True)
class Sweep:
    """What a run would have taken with each of several periods.

    Parameters
    ----------
    points : sequence of WhatIf
        One for each period, ascending.
    """

    points: Sequence[WhatIf]

    @property
    def knee(self) -> int:
        """The shortest period with which the run takes at most a tenth longer than with the best one."""
        most = (1.0 + _NEAR) * min(point.seconds for point in self.points)
        return next(int(point.every or 0) for point in self.points if point.seconds <= most)

    def __str__(self) -> str:
        head = f"{'every':>9} {'seconds':>10} {'from':>10} {'to':>10} {'communication':>14} {'sent, MB':>10}"
        lines = [head, "-" * len(head)]
        for point in self.points:
            share = point.phases["communication_s"] / point.seconds if point.seconds > 0 else 0.0
            numbers = f"{point.seconds:>10.4g} {point.low:>10.4g} {point.high:>10.4g}"
            lines.append(f"{point.every:>9,} {numbers} {share:>14.1%} {point.bytes_sent / 1e6:>10.4g}")
        knee = f"knee: every={self.knee}. Longer periods save less than a tenth of the time."
        return "\n".join([*lines, knee, self.points[0].basis])


class _Machine(NamedTuple):
    """Where rounds are played: ranks and links; seconds beside, per epoch and per round, and how the latter change."""

    cluster: SimulatedCluster
    epoch_s: float = 0.0
    round_s: float = 0.0
    kind: int = 0
    fuses: bool = False


class _Plan(NamedTuple):
    """What is played: how, on which rows, in how many rounds."""

    strategy: AbstractStrategy[Any]
    rows: Sequence[int]
    rounds: int


class _Played(NamedTuple):
    """What a play has taken, of which `coding_s` for coding and `other_s` in no round."""

    seconds: float
    compute_s: float
    coding_s: float
    other_s: float
    n_bytes: float


@dataclass(frozen=True)
class RunRecord:
    """What `dsgd.Ledger.what_if` needs to know of a run; a saved model has it as ``run_``.

    Parameters
    ----------
    strategy : AbstractStrategy
        How ranks were synchronised.
    rows : tuple of int, length n_ranks
        Rows of each rank.
    entries : float
        Entries of a row that a kernel visits, once for each output.
    density : float
        Stored entries over rows times columns; 1 for dense rows.
    n_params, itemsize : int
        Length of the model, and bytes of a number in it.
    epochs, rounds : int
        Epochs of training, and synchronisations.
    seconds : float
        Of training.
    bytes_sent : float
        By all ranks, for the algorithm.
    phases : tuple of float, length 5
        Seconds of the phases of a ledger, in the mean over ranks.
    round_s : float
        Seconds of a round, of the rank with the longest ones.
    exchange_s : float
        Seconds of an exchange whose ranks came at once; both are 0 of a simulated run.
    work_s : array of float64, shape (n_ranks, n_rounds)
        Seconds of work of ranks in some rounds; of a simulated run, none.
    cluster : SimulatedCluster or None
        Where a simulated run ran.
    threads : int
        Ranks of a process, which share its Python.
    fuses : bool
        Whether ranks share memory, so that kernels may run many rounds at once.
    """

    strategy: AbstractStrategy[Any]
    rows: tuple[int, ...]
    entries: float
    density: float
    n_params: int
    itemsize: int
    epochs: int
    rounds: int
    seconds: float
    bytes_sent: float
    phases: tuple[float, ...]
    round_s: float
    exchange_s: float
    work_s: FloatMatrix
    cluster: SimulatedCluster | None = None
    threads: int = 1
    fuses: bool = False

    @classmethod
    def of(cls, ledger: Ledger, *, seconds: float, cluster: SimulatedCluster | None, **known: Any) -> RunRecord:
        """Return the record of a run: of its ledger, and of what is known of it otherwise."""
        totals, size = ledger.totals(), len(ledger.ranks)
        phases = tuple(totals[f"{phase}_s"] / size for phase in PHASES)
        work_s: FloatMatrix = np.zeros((size, 0))
        round_s = exchange_s = 0.0
        if cluster is None:
            work_s, round_s, exchange_s = _recorded(ledger, min(_MOST_ROUNDS, max(1, _MOST_KEPT // size)))
        return cls(
            **known,
            epochs=max(1, *(len(one.epochs) for one in ledger.ranks)),
            rounds=int(totals["rounds"]),
            seconds=ledger.elapsed_s if cluster is not None else seconds,
            bytes_sent=totals["bytes_sent"],
            phases=phases,
            round_s=round_s,
            exchange_s=exchange_s,
            work_s=work_s,
            cluster=cluster,
        )

    def what_if(
        self,
        *,
        network: Network | str | None = None,
        ranks: int | None = None,
        every: int | None = None,
        compressor: Any = None,
        stragglers: AbstractStragglers | str | None = None,
        sync: Any = None,
        draws: int = _DRAWS,
    ) -> WhatIf:
        """Return what the run would have taken; see `dsgd.Ledger.what_if`.

        - `draws`: how often rounds are drawn again for the interval.
        """
        given = {"network": network, "ranks": ranks, "every": every, "compressor": compressor}
        given |= {"stragglers": stragglers, "sync": sync}
        changes = {name: value for name, value in given.items() if value is not None}
        size = len(self.rows)
        if ranks is not None:
            check_number("what_if(ranks=...)", ranks, low=1, high=sum(self.rows), integer=True)
            size = int(ranks)
        is_real = self.cluster is None
        if size > 1 and len(self.rows) == 1 and network is None and is_real:
            raise InvalidParameterError(
                f"what_if(ranks={ranks}): the run had one rank, and says nothing of a wire. Give network=... as well."
            )
        was = self._was()
        will_be = self._planned(was, size, every, compressor, sync) if changes else was
        rng, pairs, bounds = np.random.default_rng(0), [], []
        for machine, here in self._machines:
            there = _elsewhere(machine, network, size, stragglers)
            after, found = self._player(there, will_be), list[_Played]()
            for draw in range(draws // (4 if size > _MANY else 1) + 1 if is_real else 1):
                factors = self._work(rng if draw else None)
                found.append(after(self._reshaped(factors, was, will_be, stragglers)))
            pairs.append((here, found[0]))
            ratios = np.array([one.seconds for one in found]) / here.seconds
            bounds.append(np.quantile(ratios, _BETWEEN) if len(ratios) > 1 else ratios[[0, 0]])
        seconds = self.seconds * _mean([there.seconds / here.seconds for here, there in pairs])
        margin = _MARGINS["real" if is_real else "simulated"] if changes else 1.0
        if is_real:
            margin *= _MARGINS["rounds"] ** abs(math.log(will_be.rounds / was.rounds, 4))
            margin *= _MARGINS["network"] if network is not None else 1.0
        here, there_ = pairs[0]
        text = ", ".join(
            f"{name}={value if isinstance(value, str) else repr(value)}" for name, value in changes.items()
        )
        return WhatIf(
            text,
            seconds,
            min(seconds, self.seconds * min(low for low, _ in bounds)) / margin,
            max(seconds, self.seconds * max(high for _, high in bounds)) * margin,
            self._phases(seconds, pairs, will_be.rounds / was.rounds),
            self.bytes_sent * there_.n_bytes / here.n_bytes if here.n_bytes else there_.n_bytes,
            will_be.rounds,
            self.seconds,
            self._basis(network, margin),
            every,
        )

    def sweep(self, every: Sequence[int], **changes: Any) -> Sweep:
        """Return what the run would have taken with each of these periods; see `dsgd.Ledger.sweep`."""
        if not every:
            raise InvalidParameterError("sweep(every=...) is empty: give periods, as in [64, 256, 1024].")
        return Sweep([self.what_if(every=int(n), **changes) for n in sorted(every)])

    def advice(self, clearly: float) -> str:
        """Return in a line which longer period would take at most this share of the time; empty if none would."""
        if len(self.rows) == 1 or not self.seconds or not _period_name(self.strategy):
            return ""
        most, was = max(self.rows), self._was()
        own = getattr(self.strategy, "every", None)
        rows = own if isinstance(own, int) else max(1, round(self.epochs * most / was.rounds))
        longer = [rows * 4**k for k in range(1, 6) if rows * 4 ** (k - 1) < most]
        if not longer:
            return ""
        sweep = Sweep([self.what_if(every=n, draws=0) for n in longer])
        best = next(point for point in sweep.points if point.every == sweep.knee)
        if best.high > clearly * self.seconds:
            return ""
        now = self.what_if(draws=0)
        share = now.phases["communication_s"] / self.seconds
        return (
            f"advice: {share:.0%} of the seconds are communication; every={best.every} would take {best.seconds:.2g} s "
            f"({best.low:.2g} to {best.high:.2g}) instead of {self.seconds:.2g}."
        )

    def _was(self) -> _Plan:
        """Return what was run."""
        finds = self.strategy.adaptation is not None and self.rounds
        return _Plan(self.strategy, self.rows, self.rounds if finds else self._rounds_of(self.strategy, self.rows))

    def _planned(self, was: _Plan, size: int, every: int | None, compressor: Any, sync: Any) -> _Plan:
        """Return what would be run."""
        strategy: Any = self.strategy if sync is None else resolve(sync)
        if every is not None:
            check_number("what_if(every=...)", every, low=1, integer=True)
            name = _period_name(strategy)
            if not name:
                raise InvalidParameterError(
                    f"what_if(every=...): {type(strategy).__name__} has no period of rows. Give sync=... as well, such "
                    "as sync='local'."
                )
            # Batches are those of all ranks together.
            strategy = replace(strategy, **{name: every if name == "every" else every * size})
        if compressor is not None:
            if not any(field.name == "compressor" for field in fields(strategy)):
                raise InvalidParameterError(f"what_if(compressor=...): {type(strategy).__name__} takes none.")
            coder = parse_compressor(compressor) if isinstance(compressor, str) else compressor
            if strategy.exchanges == "gradient" and coder != "auto" and coder.needs_feedback:
                coder = ErrorFeedback(coder)
            strategy = replace(strategy, compressor=coder)
        n_rows, rows = sum(self.rows), self.rows
        if size != len(rows):
            rows = tuple(n_rows * (k + 1) // size - n_rows * k // size for k in range(size))
        if strategy.adaptation is not None and self.strategy.adaptation is not None:
            # It has found its period, and would find it again.
            return _Plan(strategy, rows, max(1, round(was.rounds * max(rows) / max(self.rows))))
        return _Plan(strategy, rows, self._rounds_of(strategy, rows))

    def _rounds_of(self, strategy: AbstractStrategy[Any], rows: Sequence[int]) -> int:
        """Return the synchronisations of a training."""
        period, shares = strategy.period.on_rows_of(self.density), list(rows)
        if isinstance(period, Once):
            return 1
        if isinstance(period, (EveryRows, EveryBatch, EveryEpoch)):
            return self.epochs * period.rounds_in_epoch(shares, 0)
        due = 0
        for epoch in range(self.epochs):
            n, is_last = period.rounds_in_epoch(shares, epoch), epoch == self.epochs - 1
            due += sum(period.is_due(RoundClock(epoch, k, n, is_last and k == n - 1)) for k in range(n))
        return max(1, due)

    def _player(self, machine: _Machine, plan: _Plan) -> Callable[[FloatMatrix | None], _Played]:
        """Return what plays the rounds of a plan with given factors of the work, or those of the stragglers."""
        cluster, exchanges = machine.cluster, Exchanges(machine.cluster, self.itemsize, "auto")
        course = self._course(exchanges, plan)
        round_s = machine.round_s
        if self.cluster is None and (plan.strategy is not self.strategy or machine.fuses != self.fuses):
            will_s = self._python_s(plan.strategy, machine.kind, together=machine.fuses)
            was_s = self._python_s(self.strategy, machine.kind, together=self.fuses)
            round_s = round_s + will_s - was_s if will_s > was_s else round_s * will_s / was_s if was_s else 0.0
        other_s = self.epochs * machine.epoch_s + plan.rounds * round_s
        coding_s = plan.rounds * course.exchange.params * exchanges.compute.param_s

        def played(factors: FloatMatrix | None) -> _Played:
            if factors is None:
                stragglers = stragglers_for(cluster.stragglers)
                factors = work_factors(stragglers, cluster.seed, cluster.ranks, plan.rounds)
            found = play(course, exchanges, factors, plan.rounds, self.epochs)
            return _Played(found.seconds + other_s, found.compute_s, coding_s, other_s, found.n_bytes)

        return played

    def _course(self, exchanges: Exchanges, plan: _Plan) -> Course:
        rows = self.epochs * max(plan.rows) / plan.rounds
        return course_of(plan.strategy, exchanges, self.n_params, rows, rows * self.entries)

    @cached_property
    def _machines(self) -> Sequence[tuple[_Machine, _Played]]:
        """The machine of a simulated run, or two that fit what was recorded; and the run itself, played on them."""
        was = self._was()
        if self.cluster is not None:
            machines = [_Machine(self.cluster)]
        else:
            machines = [self._fitted(was, by_latency=by_latency) for by_latency in (True, False)]
        return [(machine, self._player(machine, was)(self._work(None))) for machine in machines]

    def _fitted(self, was: _Plan, *, by_latency: bool) -> _Machine:
        """Return a machine, by latency or by waiting that grows with the work, whose rounds last as long."""
        size, work_s = len(self.rows), float(self.work_s.mean())
        factors = self._work(None)
        assert factors is not None  # it is a real run
        factors = factors[:, :_MOST_PLAYED]

        def machine(compute: Compute, wire: float = 0.0) -> SimulatedCluster:
            link = Link(byte_s=0.0, overhead_s=wire) if by_latency else Link(byte_s=wire)
            return SimulatedCluster(size, Network("that of the run", link, link), compute)

        def round_s(compute: Compute, wire: float = 0.0) -> float:
            course = self._course(Exchanges(machine(compute, wire), self.itemsize, "auto"), was)
            return float(course.seconds(factors * course.work_s) / factors.shape[1])

        compute, rows = Compute(0.0, 0.0, call_s=0.0), self.epochs * max(self.rows) / was.rounds
        if self._course(Exchanges(machine(compute), self.itemsize, "auto"), was).work_s > work_s:
            compute = replace(compute, param_s=0.0)
        left_s = work_s - self._course(Exchanges(machine(compute), self.itemsize, "auto"), was).work_s
        loop_s, most_s = self._python_s(was.strategy, not by_latency, together=self.fuses), 0.9 * max(0.0, left_s)
        # Of the work of a short round, the one machine takes nearly all for the loop around it.
        loop_s = most_s if not by_latency and left_s < 2.0 * loop_s else min(loop_s, most_s)
        compute = replace(compute, row_s=max(0.0, left_s - loop_s) / rows)
        whole_s = self.round_s - loop_s
        wanted_s = whole_s if by_latency else min(whole_s, round_s(compute) + self.exchange_s)
        low, high = 0.0, 1e-9 if by_latency else 1e-12
        while size > 1 and round_s(compute, high) < wanted_s and high < 1e3:
            low, high = high, 4.0 * high
        for _ in range(12 if low else 0):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if round_s(compute, middle) < wanted_s else (low, middle)
        rest_s = max(0.0, whole_s - round_s(compute, low))
        waits_s = min(rest_s, _MOST_WAIT * compute.row_s * rows)
        compute, loop_s = replace(compute, row_s=compute.row_s + waits_s / rows), loop_s + rest_s - waits_s
        made = _Machine(machine(compute, low), 0.0, loop_s, not by_latency, self.fuses)
        other_s = max(0.0, self.seconds - self._player(made, was)(self._work(None)).seconds)
        return made._replace(epoch_s=other_s / self.epochs)

    def _python_s(self, strategy: AbstractStrategy[Any], kind: int, *, together: bool) -> float:
        """Return the seconds of Python in a round of one of the two machines."""
        if together and is_plain(strategy):
            return 0.0
        return self.threads * (_LOOP_S[kind] + (strategy.compressor is not None) * _CODING_S[kind])

    def _work(self, rng: np.random.Generator | None) -> FloatMatrix | None:
        """Return the work of ranks in rounds over its mean, of rounds drawn again if there is a generator."""
        if self.cluster is not None:
            return None
        n, mean_s = self.work_s.shape[1], float(self.work_s.mean())
        drawn = np.arange(n) if rng is None else rng.integers(n, size=n)
        return self.work_s[:, drawn] / mean_s if mean_s > 0.0 else np.ones_like(self.work_s)

    def _reshaped(
        self, factors: FloatMatrix | None, was: _Plan, plan: _Plan, stragglers: AbstractStragglers | str | None
    ) -> FloatMatrix | None:
        """Return the factors of rounds of another length, of other ranks, and with stragglers."""
        if factors is None:
            return None
        size, n = len(plan.rows), factors.shape[1]
        length = round(max(plan.rows) / plan.rounds / (max(was.rows) / was.rounds))
        if length > 1:
            # A longer round is some of the old ones, one after another.
            starts, span = np.arange(0, n, min(n, length)), np.arange(min(n, length))
            factors = factors[:, (starts[:, None] + span) % n].mean(axis=2)
        if size != len(factors):
            factors = factors[np.arange(size) % len(factors)]
        if size > _MANY:
            factors = factors[:, :_MOST_PLAYED]
        if stragglers is not None:
            drawn = work_factors(
                stragglers_for(stragglers), 0, size, max(factors.shape[1], min(plan.rounds, _MOST_ROUNDS))
            )
            factors = factors[:, np.arange(drawn.shape[1]) % factors.shape[1]] * drawn
        return factors

    def _phases(self, seconds: float, pairs: Sequence[tuple[_Played, _Played]], rounds: float) -> dict[str, float]:
        """Return what seconds consist of, as rounds have become so many times as many."""
        spent_s, encode_s = self.phases[0] + self.phases[1], self.phases[1]
        work_s = spent_s * _mean([there.compute_s / here.compute_s if here.compute_s else 1.0 for here, there in pairs])
        coding_s = _mean([there.coding_s for _, there in pairs]) - rounds * _mean([here.coding_s for here, _ in pairs])
        encode_s = min(work_s, max(0.0, encode_s * rounds + coding_s))
        other_s = min(max(0.0, seconds - work_s), sum(there.other_s for _, there in pairs) / len(pairs))
        rest_s = max(0.0, seconds - work_s - other_s)
        return {"compute_s": work_s - encode_s, "encode_s": encode_s, "communication_s": rest_s, "other_s": other_s}

    def _basis(self, network: Network | str | None, factor: float) -> str:
        margin = f", and a factor of {factor:.2g} for what a play of rounds leaves out" if factor > 1.0 else ""
        if self.cluster is not None:
            return f"Rests on the links, work and stragglers of the simulation{margin}."
        wire = "one wire fitted to them as latency and one as bandwidth"
        if network is not None:
            wire = f"the links of {network_for(network).name}"
        n = self.work_s.shape[1]
        return f"Rests on {n:,} of {max(1, self.rounds):,} recorded rounds of {len(self.rows)} ranks, {wire}{margin}."


def _period_name(strategy: Any) -> str:
    """Return the parameter that says after how many rows ranks exchange; empty if there is none."""
    names = {field.name for field in fields(strategy)}
    return next((name for name in ("every", "batch") if name in names), "")


def _mean(values: Sequence[float]) -> float:
    """Return the geometric mean; zero if one of them is zero."""
    return math.prod(values) ** (1.0 / len(values))


def _recorded(ledger: Ledger, most: int) -> tuple[FloatMatrix, float, float]:
    """Return the work of ranks in recorded rounds; and in the mean a round of the slowest, and an exchange alone."""
    totals = np.array([[one.totals[f"{phase}_s"] for phase in PHASES[:4]] for one in ledger.ranks])
    totals /= max(1, max(int(one.totals["rounds"]) for one in ledger.ranks))
    of_ranks = [one.records[one.records["op"] == "sync"] for one in ledger.ranks]
    n = min(most, *(len(records) for records in of_ranks))
    if not n:
        work_s: FloatMatrix = totals[:, :2].sum(axis=1, keepdims=True)
        return work_s, float(totals.sum(axis=1).max()), float(totals[:, 2:].sum(axis=1).min())
    kept = [records[np.linspace(0, len(records) - 1, n).round().astype(int)] for records in of_ranks]
    work_s = np.array([records["compute_s"] + records["encode_s"] for records in kept])
    wire_s = np.array([records["wire_s"] + records["wait_s"] for records in kept])
    work_s = np.minimum(work_s, _UNUSUAL * np.median(work_s))
    wire_s = np.minimum(wire_s, _UNUSUAL * np.median(wire_s))
    # Not every round is timed, and totals stand for all. What is far above the records was in no usual round.
    round_s = (work_s + wire_s).mean(axis=1)
    scale = np.minimum(_MOST_ABOVE, totals.sum(axis=1) / np.maximum(round_s, 1e-12))
    work_s *= scale[:, None]
    return work_s, float((scale * round_s).max()), float(np.quantile(wire_s.min(axis=0), _BETWEEN[0]))


def _elsewhere(
    machine: _Machine, network: Network | str | None, size: int, stragglers: AbstractStragglers | str | None
) -> _Machine:
    """Return a machine with another network, other ranks or other stragglers."""
    cluster = replace(machine.cluster, ranks=size)
    if network is not None:
        cluster, machine = replace(cluster, network=network), machine._replace(fuses=False)
    if stragglers is not None:
        cluster = replace(cluster, stragglers=stragglers)
    return machine._replace(cluster=cluster)
