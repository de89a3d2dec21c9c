"""Claims that follow from comparisons on simulated clusters: real training, virtual seconds, counted bytes.

One comparison decides several statements. All are on generated rows, at one constant rate for all methods. Cores are so
slow that what a rank computes between two exchanges takes about as long as the exchange, as it does where networks are
trained: linear models on a fast core would make every saving of communication look a hundredfold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from dsgd import sync
from dsgd.compress import DGC, AdaptiveThreshold, ErrorFeedback, GTopK, OneBit, PowerSGD, TernGrad, Threshold, TopK
from dsgd.estimators import SGDClassifier
from dsgd.report import Claim
from dsgd.sim import Compute, SimulatedCluster
from dsgd.sim.network import AbstractStragglers
from dsgd.study.comparison.compare import compare
from dsgd.study.comparison.result import Comparison, StrategyCell
from dsgd.study.frame.data import DataSource, StudyData, load_data
from dsgd.study.published import STATEMENTS, Measure, Say, Statement, as_times
from dsgd.sync.adaptive import QSR, AdaComm, DynamicAveraging, VarianceBand

_SEEDS: Final = 5
# An exchange of a small vector between 8 ranks over 10GbE.
_EXCHANGE_S: Final = 1.1e-4
_SPARSE: Final = DataSource("webspam-like", 4_000, 4_000)
_WIDE: Final = DataSource("epsilon-like", 2_000, 2_000)
#: The objective of a model of zeros under the logistic loss.
_ZERO: Final = math.log(2.0)


@dataclass(frozen=True)
class Versus:
    """How a statement is decided by a comparison of two methods."""

    statement: Statement
    judge: Callable[[Statement, Comparison, StrategyCell, StrategyCell], Claim]
    ours: str
    other: str

    def claim(self, found: Comparison) -> Claim:
        """Return the claim; a method that diverges decides nothing, but against itself."""
        ours, other = found.cells[self.ours], found.cells[self.other]
        for cell in (ours, other):
            if cell.n_diverged:
                note = f"{cell.name} leaves the range of numbers with {cell.n_diverged} seeds."
                return self.statement.said(found.gang.name, "diverged", "fails" if cell is ours else "undecided", note)
        return self.judge(self.statement, found, ours, other)


def judge_over(
    column: str,
    statement: Statement,
    found: Comparison,
    ours: StrategyCell,
    other: StrategyCell,
    *,
    saved: bool = False,
) -> Claim:
    """Judge how many times as much of a column the other needs; with `saved`, what share of it is saved."""
    times = other.over(ours, column)
    one_rank, baseline = found.gang.sequential.median(column), f"1x: {other.name}"
    if column == "train_s":
        baseline = f"{as_times(other.median(column) / one_rank)}: one rank"
    if saved and times:
        times, baseline = times.mapped(lambda value: 1.0 - 1.0 / value), f"0%: {other.name}"
    ends = f"objectives {ours.median('objective'):.4f} and {other.median('objective'):.4f}"
    note = f"{ours.name} beside {other.name}: {ends}."
    return statement.judged(found.gang.name, times, note, baseline=baseline)


def judge_objective(statement: Statement, found: Comparison, ours: StrategyCell, other: StrategyCell) -> Claim:
    """Judge the training objective over that of the other."""
    times = ours.over(other, "objective")
    zeros = f"{_ZERO / other.median('objective'):.2f}x: a model of zeros"
    note = f"{ours.name} {ours.median('objective'):.4f}, {other.name} {other.median('objective'):.4f}."
    return statement.judged(found.gang.name, times, note, baseline=zeros)


def judge_accuracy(statement: Statement, found: Comparison, ours: StrategyCell, other: StrategyCell) -> Claim:
    """Judge the test accuracy less that of the other."""
    change = ours.minus(other, "test_accuracy")
    commonest = statement.form(other.median("majority_accuracy") - other.median("test_accuracy"))
    note = f"{ours.name} {ours.median('test_accuracy'):.2%}, {other.name} {other.median('test_accuracy'):.2%}."
    return statement.judged(
        found.gang.name, change, note, trivial=other.is_trivial, baseline=f"{commonest}: commonest label"
    )


_SECONDS: Final = partial(judge_over, "train_s")
_BYTES: Final = partial(judge_over, "bytes_sent")
_SAVED: Final = partial(judge_over, "bytes_sent", saved=True)


@lru_cache(maxsize=2)
def _loaded(source: DataSource) -> StudyData:
    return load_data(source, "float64")


@dataclass(frozen=True)
class _Contest:
    """A comparison on a simulated cluster, and what it decides; see `dsgd.compare`.

    `period` says how many rows there are between two exchanges, which sets how slow cores are.
    """

    name: str
    methods: Mapping[str, Any]
    verdicts: Sequence[Versus]
    what: str
    source: DataSource = _SPARSE
    ranks: int = 8
    period: int = 1
    stragglers: AbstractStragglers | str = "none"
    partition: str = "shuffled"
    eta0: float = 0.5
    epochs: int = 8

    def run(self, out: Path, say: Say) -> list[Claim]:
        """Return the claims of all verdicts; rows go to a folder."""
        data = _loaded(self.source)
        core = Compute(entry_s=0.0, row_s=_EXCHANGE_S / self.period, source="as long as an exchange")
        found = compare(
            self.methods,
            data.X,
            data.y,
            test=(data.X_test, data.y_test),
            name=data.name,
            cluster=SimulatedCluster(self.ranks, "10GbE", core, self.stragglers),
            partition=self.partition,
            seeds=_SEEDS,
            epochs=self.epochs,
            looks=[self.epochs],
            out=out,
            on_progress=say,
            estimator=SGDClassifier(loss="log_loss", learning_rate="constant", eta0=self.eta0),
        )
        return [verdict.claim(found) for verdict in self.verdicts]

    def measure(self) -> Measure:
        """Return the measure that runs it."""
        what = (
            f"{self.what} {self.ranks} simulated ranks, 10GbE, {self.source.rows:,} rows of {self.source.name}, "
            f"{self.epochs} epochs, {_SEEDS} seeds, eta0 {self.eta0:g}."
        )
        return Measure(self.name, tuple(verdict.statement for verdict in self.verdicts), what, self.run)


_OFTEN: Final = "every row"
_AVERAGES: Final = _Contest(
    "averages",
    {
        _OFTEN: sync.LocalSGD(1),
        # The root of the 4,000 rows of a rank over 8 ranks.
        "local 22": sync.LocalSGD(22),
        "local 64": sync.LocalSGD(64),
        "SlowMo 64": sync.SlowMo(64),
        "EASGD 64": sync.EASGD(64),
        "LSGD 64": sync.LeaderSGD(64),
        "Downpour 64": sync.Downpour(64),
        "DiLoCo 500": sync.DiLoCo(500),
        "AdaComm": sync.AutoSync(rule=AdaComm()),
        "variance band": sync.AutoSync(rule=VarianceBand()),
        "QSR": sync.AutoSync(rule=QSR()),
        "dynamic": sync.AutoSync(rule=DynamicAveraging()),
    },
    (
        Versus(STATEMENTS["local/rounds"], judge_objective, "local 22", _OFTEN),
        Versus(STATEMENTS["adacomm/time"], _SECONDS, "AdaComm", _OFTEN),
        Versus(STATEMENTS["adpa/time"], _SECONDS, "variance band", _OFTEN),
        Versus(STATEMENTS["qsr/bytes"], _SAVED, "QSR", _OFTEN),
        Versus(STATEMENTS["qsr/accuracy"], judge_accuracy, "QSR", _OFTEN),
        Versus(STATEMENTS["dynamic/bytes"], _BYTES, "dynamic", "local 22"),
        Versus(STATEMENTS["dynamic/objective"], judge_objective, "dynamic", "local 22"),
        Versus(STATEMENTS["slowmo/objective"], judge_objective, "SlowMo 64", "local 64"),
        Versus(STATEMENTS["diloco/bytes"], _BYTES, "DiLoCo 500", _OFTEN),
        Versus(STATEMENTS["diloco/objective"], judge_objective, "DiLoCo 500", _OFTEN),
        Versus(STATEMENTS["easgd/downpour"], judge_objective, "EASGD 64", "Downpour 64"),
        Versus(STATEMENTS["lsgd/easgd"], judge_objective, "LSGD 64", "EASGD 64"),
    ),
    "Strategies that average models beside an exchange after every row:",
)
_SKEWED: Final = _Contest(
    "skewed",
    {
        "local": sync.LocalSGD(256), "SCAFFOLD": sync.SCAFFOLD(256, stretch=16),
        "FedProx": sync.FedProx(256, 0.001, stretch=16),
    },
    (
        Versus(STATEMENTS["scaffold/skewed"], judge_objective, "SCAFFOLD", "local"),
        Versus(STATEMENTS["fedprox/skewed"], judge_accuracy, "FedProx", "local"),
    ),
    "Every rank has rows of mostly one label, an exchange every 256:", partition="label-skewed",
)  # fmt: skip
_NEIGHBOURS: Final = _Contest(
    "neighbours",
    {
        "all-reduce": sync.LocalSGD(8), "SGP": sync.SGP(8), "D-PSGD": sync.DPSGD(8), "AD-PSGD": sync.ADPSGD(8),
        "CHOCO": sync.ChocoSGD(8, TopK(0.01), 0.04),
    },
    (
        Versus(STATEMENTS["sgp/accuracy"], judge_accuracy, "SGP", "all-reduce"),
        Versus(STATEMENTS["choco/bytes"], _BYTES, "CHOCO", "D-PSGD"),
        Versus(STATEMENTS["adpsgd/time"], _SECONDS, "AD-PSGD", "all-reduce"),
    ),
    "Gossip beside an all-reduce, every 8 rows, with exponential stragglers:", source=_WIDE, period=8,
    stragglers="exponential", eta0=2.0,
)  # fmt: skip
_STRAGGLERS: Final = _Contest(
    "stragglers",
    {
        "all wait": sync.BackupWorkers(8, 0), "one backup": sync.BackupWorkers(8, 1),
        "slack 3": sync.StaleSynchronous(8, 3),
    },
    (
        Versus(STATEMENTS["backup/time"], _SECONDS, "one backup", "all wait"),
        Versus(STATEMENTS["ssp/time"], _SECONDS, "slack 3", "all wait"),
    ),
    "What waits for stragglers beside what does not, heavy-tailed times:", period=8, stragglers="heavy-tail",
    epochs=4,
)  # fmt: skip
_STALE: Final = _Contest(
    "stale",
    {
        "ASGD": sync.ASGD(8), "DC-ASGD": sync.DelayCompensatedASGD(8, 2.0, 0.95),
        "staleness-aware": sync.StalenessAware(8, usual=1.0), "synchronous": sync.BackupWorkers(8, 0),
    },
    (
        Versus(STATEMENTS["dcasgd/asynchronous"], judge_objective, "DC-ASGD", "ASGD"),
        Versus(STATEMENTS["dcasgd/synchronous"], judge_objective, "DC-ASGD", "synchronous"),
        Versus(STATEMENTS["staleness/objective"], judge_objective, "staleness-aware", "ASGD"),
    ),
    "Asynchronous steps whose gradients are some thirty steps old:", ranks=32, period=8, stragglers="exponential",
    eta0=2.0, epochs=4,
)  # fmt: skip
_COMPRESSED: Final = _Contest(
    "compressed",
    {
        "dense": sync.MinibatchSGD(32), "gTop-k": sync.MinibatchSGD(32, compressor=GTopK(0.05)),
        "DGC": sync.MinibatchSGD(32, compressor=DGC(0.05)),
        "1 bit": sync.MinibatchSGD(32, compressor=ErrorFeedback(OneBit())),
        "TernGrad": sync.MinibatchSGD(32, compressor=TernGrad()),
        "PowerSGD": sync.MinibatchSGD(32, compressor=ErrorFeedback(PowerSGD(2))),
    },
    (
        Versus(STATEMENTS["gtopk/accuracy"], judge_accuracy, "gTop-k", "dense"),
        Versus(STATEMENTS["dgc/accuracy"], judge_accuracy, "DGC", "dense"),
        Versus(STATEMENTS["onebit/accuracy"], judge_accuracy, "1 bit", "dense"),
        Versus(STATEMENTS["terngrad/accuracy"], judge_accuracy, "TernGrad", "dense"),
        Versus(STATEMENTS["powersgd/accuracy"], judge_accuracy, "PowerSGD", "dense"),
    ),
    "Compressed gradients of batches of 32 beside dense ones, 1 in 20 entries where few are sent:", eta0=4.0,
    epochs=4,
)  # fmt: skip
_THRESHOLDS: Final = _Contest(
    "thresholds",
    {
        "dense": sync.MinibatchSGD(32), "threshold": sync.MinibatchSGD(32, compressor=ErrorFeedback(Threshold(0.01))),
        "two thresholds": sync.MinibatchSGD(32, compressor=ErrorFeedback(AdaptiveThreshold(0.01))),
    },
    (
        Versus(STATEMENTS["threshold/bytes"], _BYTES, "threshold", "dense"),
        Versus(STATEMENTS["threshold/accuracy"], judge_accuracy, "threshold", "dense"),
        Versus(STATEMENTS["adaptive-threshold/accuracy"], judge_accuracy, "two thresholds", "dense"),
    ),
    "Gradients of batches of 32, of which signs and places are sent, beside dense ones of 255 entries:", eta0=4.0,
    epochs=4,
)  # fmt: skip
_UNHURRIED: Final = _Contest(
    "unhurried",
    {"asynchronous EASGD": sync.AsyncEASGD(64), "asynchronous LSGD": sync.AsyncLeaderSGD(64, n_groups=2)},
    (Versus(STATEMENTS["async-lsgd/easgd"], judge_objective, "asynchronous LSGD", "asynchronous EASGD"),),
    "Servers that wait for nobody, an exchange every 64 rows, heavy-tailed times:", period=64,
    stragglers="heavy-tail",
)  # fmt: skip
#: The measures of this module.
MEASURES: Final = tuple(
    contest.measure()
    for contest in (
        _AVERAGES, _COMPRESSED, _THRESHOLDS, _NEIGHBOURS, _STRAGGLERS, _UNHURRIED, _STALE, _SKEWED,
    )
)  # fmt: skip
