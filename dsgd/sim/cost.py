"""The cost model: predicted seconds of an epoch, from work, wire and waiting.

Problem: the choice of a period, a batch or a compressor divides seconds between work and communication. Users want to
know the cost of each choice before they spend minutes on training.

Model: an epoch is R rounds and an end. In a round a rank works on h rows with e entries, c = h row_s + e entry_s
seconds, and synchronises a vector of n bytes::

    epoch  = R (c + round(n) + wait(c)) + end
    P != Q : round(n) + allreduce(n, P) - allreduce(n, Q)     and     wait(c) m(P) / m(Q)

``round(n)`` is the time of a round without work on Q ranks that are all awake, for this strategy with this compressor,
measured at some lengths and interpolated. ``wait(c)`` is the additional time of a round with c seconds of work,
measured at some c: ranks that work longer finish further apart, and one that has waited long sleeps. For other numbers
of ranks, wire is scaled by the closed form of the all-reduce with the measured alpha, beta and gamma
(`dsgd.collectives.cost`), and waiting by m(P), the mean of the largest of P standard normal numbers. Fragments that are
exchanged beside the next round cost what is left of ``round(n / F)`` after its work.

Cost: some arithmetic.

Source: Hockney 1994 (alpha and beta); Valiant 1990 (supersteps); Dean and Barroso 2013 (the slowest of many). That cost
per all-reduce grows with the period is an observation of Abeykoon, Fox and Kim 2019 (arXiv 1905.01219).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Final, Literal, get_args

from dsgd.collectives.cost import DEFAULT_LINK, Link, allreduce_seconds, choose_algorithm, tally_seconds
from dsgd.errors import InvalidParameterError
from dsgd.sim.calibration import Calibration
from dsgd.sim.network import Compute, Network
from dsgd.sync import AbstractStrategy, EveryBatch, EveryEpoch, EveryRows, LocalSGD, RoundClock, resolve
from dsgd.sync.base import Exchange
from dsgd.validation import check_number

Layout = Literal["dense", "sparse"]

# A late epoch: strategies that start differently are priced by their later behaviour.
_LATE_EPOCH: Final = 1_000_000
# Names that strategies have for the parameter that sets how often ranks exchange.
_PERIODS: Final = frozenset({"every", "batch"})
#: And those of how long a step is.
_LENGTHS: Final = frozenset({"rates"})
# What ranks sum at the end of an epoch: losses, counts and the like.
_CONTROL_BYTES: Final = 200
# Parameters of a long model.
_LONG: Final = 1 << 20


@dataclass(frozen=True)
class RowCost:
    """The time of a kernel per row, with all ranks at work.

    Parameters
    ----------
    row_s : float
        Seconds per row.
    entry_s : float
        Seconds per entry of a row.
    """

    row_s: float
    entry_s: float

    def seconds(self, rows: float, entries: float) -> float:
        """Return the seconds of so many rows with so many entries in all."""
        return rows * self.row_s + entries * self.entry_s


@dataclass(frozen=True)
class Workload:
    """The data of a training run, as the cost model sees them.

    Parameters
    ----------
    n_rows : int
        Of all ranks together, in equal shares.
    entries_per_row : float
        Entries of a row; of dense rows, columns.
    n_params : int
        Length of the model: outputs times columns and intercept, fitted or not.
    n_outputs : int, default 1
        Outputs; every row is visited once for each.
    layout : {"dense", "sparse"}
        How rows are stored.
    dtype : {"float64", "float32"}
        Precision of rows and model.
    row_s : float or None, default None
        Seconds per row if these rows themselves were measured. None takes the calibration, whose rows all have a loss;
        the rows of a model that classifies most of them correctly cost less.

    Raises
    ------
    InvalidParameterError
        There are no rows.
    """

    n_rows: int
    entries_per_row: float
    n_params: int
    n_outputs: int = 1
    layout: Layout = "dense"
    dtype: str = "float64"
    row_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse a training on nothing."""
        check_number("Workload(n_rows=...)", self.n_rows, low=1)

    @property
    def density(self) -> float:
        """Entries of a row over those that a dense one has."""
        return min(1.0, self.entries_per_row * self.n_outputs / self.n_params) if self.layout == "sparse" else 1.0

    @property
    def n_bytes(self) -> int:
        """Bytes of the model."""
        return self.n_params * (4 if self.dtype == "float32" else 8)


@dataclass(frozen=True)
class EpochCost:
    """The predicted time of an epoch.

    Parameters
    ----------
    seconds : float
        All of it.
    compute_s, sync_s, wait_s : float
        Of which work, wire with the overhead of rounds, and waiting for others; the rest is the end of the epoch.
    rounds : int
        Synchronisations.
    """

    seconds: float
    compute_s: float
    sync_s: float
    wait_s: float
    rounds: int

    @property
    def communication(self) -> float:
        """Share of synchronising and waiting."""
        return (self.sync_s + self.wait_s) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class CostModel:
    """A cost model, measured on a gang, which predicts the time of training.

    Parameters
    ----------
    calibration : Calibration
        Ranks, alpha, beta, gamma and the constants of a simulated twin.
    rows : mapping of str to RowCost
        Cost of rows by ``"dense float64 model"``: layout, precision, and whether models or gradients are exchanged.
    rounds : mapping of str to sequence of (int, float)
        By `kind_of` a strategy: bytes of the vector, and seconds of a round without work. Ascending.
    waits : sequence of (float, float)
        Seconds of work in a round, and seconds that the round takes beyond work and `rounds`, which may be negative.
        Ascending.
    end_s : float
        Seconds of the end of an epoch.
    transport : str
        The transport of the ranks.
    """

    calibration: Calibration
    rows: Mapping[str, RowCost] = field(default_factory=dict)
    rounds: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    waits: Sequence[tuple[float, float]] = ((0.0, 0.0),)
    end_s: float = 0.0
    transport: str = ""

    @property
    def link(self) -> Link:
        """Alpha, beta and gamma."""
        return replace(self.calibration.network.between, added_byte_s=self.calibration.compute.added_byte_s)

    def epoch(self, workload: Workload, sync: Any, ranks: int | None = None) -> EpochCost:
        """Return what an epoch takes.

        Parameters
        ----------
        workload : Workload
            The rows.
        sync : object
            The strategy, as estimators take it.
        ranks : int or None, default None
            How many; None takes as many as were measured.

        Returns
        -------
        EpochCost
            Its seconds.

        Raises
        ------
        InvalidParameterError
            The strategy or rows of this kind were not measured.
        """
        strategy, size = resolve(sync), self.calibration.ranks if ranks is None else ranks
        shares = [workload.n_rows * (k + 1) // size - workload.n_rows * k // size for k in range(size)]
        compute_s = self._work_s(workload, strategy, max(shares))
        period = strategy.period.on_rows_of(workload.density)
        rounds = period.rounds_in_epoch(shares, _LATE_EPOCH)
        if not isinstance(period, (EveryRows, EveryBatch, EveryEpoch)):
            rounds = sum(period.is_due(RoundClock(_LATE_EPOCH, k, rounds, is_last=False)) for k in range(rounds))
        if size == 1:
            alone = rounds if strategy.exchanges == "gradient" else 0
            return EpochCost(compute_s + self.end_s, compute_s, 0.0, 0.0, alone)
        wait_s = self.wait_s(compute_s / max(rounds, 1), size)
        sync_s = rounds * max(0.0, self._round_s(strategy, workload.n_bytes, size) + min(0.0, wait_s))
        if _sends_parts(strategy) and strategy.hides_exchange:
            sync_s = max(0.0, sync_s - compute_s)
        wait_s = rounds * max(0.0, wait_s)
        there, here = (tally_seconds(_CONTROL_BYTES, n, self.link) for n in (size, self.calibration.ranks))
        end_s = max(0.0, self.end_s + there - here)
        return EpochCost(compute_s + sync_s + wait_s + end_s, compute_s, sync_s, wait_s, rounds)

    def wait_s(self, work_s: float, ranks: int | None = None) -> float:
        """Return the time of a round of `work_s` seconds of work beyond work and synchronisation.

        Below zero where ranks that work for a while find the message there when they look.
        """
        size = self.calibration.ranks if ranks is None else ranks
        return interpolate(self.waits, work_s) * spread(size) / spread(self.calibration.ranks)

    def merged(self, other: CostModel) -> CostModel:
        """Return this model with what another one of the same gang knows besides."""
        rows, rounds = {**other.rows, **self.rows}, {**other.rounds, **self.rounds}
        return replace(self, rows=rows, rounds=rounds)

    def _work_s(self, workload: Workload, strategy: AbstractStrategy[Any], n_rows: int) -> float:
        if workload.row_s is not None:
            return n_rows * workload.row_s
        key = _row_key(workload, strategy)
        if key not in self.rows:
            raise InvalidParameterError(
                f"CostModel.epoch(workload=...): rows of the kind {key!r} were not measured, only "
                f"{', '.join(map(repr, self.rows))}. Measure them with `dsgd calibrate`, or give Workload(row_s=...)."
            )
        visits = n_rows * workload.n_outputs
        return self.rows[key].seconds(visits, visits * workload.entries_per_row)

    def _round_s(self, strategy: AbstractStrategy[Any], n_bytes: int, size: int) -> float:
        """Return the seconds of a round without work of ranks that are awake."""
        n_bytes = min(n_bytes, strategy.sent_values(n_bytes))
        kind = kind_of(strategy)
        if kind not in self.rounds:
            raise InvalidParameterError(
                f"CostModel.epoch(sync=...): rounds of {kind} were not measured, only those of "
                f"{', '.join(self.rounds)}. Pass it to dsgd.sim.measure_costs(strategies=...)."
            )
        there, here = (
            allreduce_seconds(choose_algorithm(n_bytes, ranks), n_bytes, ranks, self.link)
            for ranks in (size, self.calibration.ranks)
        )
        return max(0.0, interpolate(self.rounds[kind], n_bytes) + (there - here))


def estimated_costs(ranks: int, strategies: Sequence[Any] = ()) -> CostModel:
    """Return a model of a gang that was not measured: estimates for cores of a server that share memory."""
    compute = Compute()
    way = Link(byte_s=DEFAULT_LINK.byte_s, overhead_s=DEFAULT_LINK.alpha_s)
    twin = Calibration(ranks, Network("estimated", way, way, source=compute.source), compute)
    row = RowCost(compute.row_s, compute.entry_s)
    rows = {
        f"{layout} {dtype} {exchanges}": row
        for layout in get_args(Layout)
        for dtype in ("float64", "float32")
        for exchanges in get_args(Exchange)
    }

    def round_s(n_bytes: int) -> float:
        wire_s = allreduce_seconds(choose_algorithm(n_bytes, ranks), n_bytes, ranks, DEFAULT_LINK)
        return compute.call_s + n_bytes / 8 * compute.param_s + wire_s

    points = tuple((float(n_bytes), round_s(n_bytes)) for n_bytes in (8, 1 << 14, 1 << 20))
    rounds = {kind_of(sync): points for sync in (LocalSGD(), *strategies)}
    return CostModel(twin, rows, rounds, end_s=2 * round_s(_CONTROL_BYTES), transport="estimated")


def kind_of(sync: Any) -> str:
    """Return what strategies have in common whose rounds cost the same: all but their period and their rates.

    Examples
    --------
    >>> kind_of(LocalSGD(every=512)), kind_of(64), kind_of("local")
    ('LocalSGD', 'LocalSGD', 'LocalSGD')
    """
    strategy: Any = resolve(sync)
    if _sends_parts(strategy) or not _PERIODS & set(vars(strategy)):
        # A strategy without a period of its own takes plain means, and parts are summed as short models are.
        strategy = LocalSGD(compressor=strategy.compressor)
    parameters = ((f, getattr(strategy, f.name)) for f in fields(strategy) if f.name not in _PERIODS | _LENGTHS)
    given = ", ".join(f"{f.name}={value!r}" for f, value in parameters if value != f.default)
    return type(strategy).__name__ + (f"({given})" if given else "")


def _sends_parts(strategy: AbstractStrategy[Any]) -> bool:
    """Return whether a round exchanges a part of the model."""
    return strategy.sent_values(_LONG) < _LONG


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return the value at x of straight lines through points: constant before the first, beyond the last by its line.

    Examples
    --------
    >>> interpolate([(0.0, 1.0), (2.0, 3.0)], 1.0)
    2.0
    >>> interpolate([(0.0, 1.0), (0.0, 3.0)], 1.0)
    3.0
    """
    if x <= points[0][0] or len(points) == 1:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    (x0, y0), (x1, y1) = points[-2:]
    # A line that falls at the end is not continued, and rows too fast to be measured put both points at one place.
    if x1 == x0:
        return y1
    return y1 + max(0.0, y1 - y0) * (x - x1) / (x1 - x0)


def spread(ranks: int) -> float:
    """Return the mean of the largest of so many standard normal numbers, by Blom's quantiles (1958), within 5 %."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def _row_key(workload: Workload, strategy: AbstractStrategy[Any]) -> str:
    return f"{workload.layout} {workload.dtype} {strategy.exchanges}"
