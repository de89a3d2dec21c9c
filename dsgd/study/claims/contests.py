"""Claims that follow from comparisons on simulated clusters: real training, virtual seconds, counted bytes.

Problem: methods at one common rate are compared at what suits one of them, and on a problem where nothing can be lost
every method keeps what it promises.

Method: one contest decides several statements, on three unlike problems. Every method has a rate of its own, and its
own parameters where it has them, of as many trials as every other (`search`), on seeds that decide nothing. Every
statement has controls that must fail it, tuned and measured as its method is: one average in all of training, which is
no communication, and a model of zeros. What saves seconds or bytes must keep the objective, within 5 %. Figures lie
between the lowest end of the intervals of all problems and the highest: what holds does so on each of them.

Seconds rest on an assumption: how long a rank computes between two exchanges. It is half as long as an exchange takes,
as long, and twice as long, about as where networks are trained; linear models on a fast core would make every saving of
communication look a hundredfold.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from dsgd import sync
from dsgd.compress import DGC, AdaptiveThreshold, ErrorFeedback, GTopK, OneBit, PowerSGD, TernGrad, Threshold, TopK
from dsgd.errors import InvalidDataError
from dsgd.estimators import SGDClassifier
from dsgd.local import AbstractRule, Adam
from dsgd.report import Claim
from dsgd.sim import Compute, SimulatedCluster
from dsgd.sim.network import AbstractStragglers
from dsgd.study.frame.data import DataSource, StudyData, load_data, objective, place
from dsgd.study.published import (
    GOOD,
    STATEMENTS,
    Control,
    Interval,
    Margin,
    Measure,
    Say,
    Statement,
    across,
    as_times,
    difference,
    exact,
    ratio,
    sampled,
)  # fmt: skip
from dsgd.sync.adaptive import QSR, AdaComm, DynamicAveraging, VarianceBand
from dsgd.types import FloatVector

_ALPHA: Final = 1e-4
# An exchange of a small vector between 8 ranks over 10GbE.
_EXCHANGE_S: Final = 1.1e-4
#: Seconds of computing over those of an exchange.
_PACES: Final = (0.5, 1.0, 2.0)
#: Of methods that save something, the most that their objective may be over the other's.
_KEPT: Final = Margin(most=1.05)
#: Trials are run with seeds from the one, what is reported with seeds from the other: none of these decided anything.
_TUNING_SEED, _REPORTED_SEED = 1_000, 2_000
_ONCE: Final = "one average"
_ZEROS: Final = "zeros"

#: A place in a search: the logarithm of the rate to base 2, and a step of each ladder.
Place: TypeAlias = tuple[float, ...]


def search(worth: Callable[[Place], float], start: Place, sizes: Sequence[int], trials: int) -> dict[Place, float]:
    """Return what was tried and what it was worth, the less the better.

    From the best place so far the rate goes up and down, by factors of four, then two, and so on; every other parameter
    one step of its ladder. When trials are used up, more are made until neither the best rate nor a parameter of the
    best is the last that was tried, except where a ladder ends.
    """
    found, step = {start: worth(start)}, 2.0

    def best() -> Place:
        return min(found, key=lambda at: found[at])

    def moved(at: Place, axis: int, change: float) -> Place | None:
        level = at[axis] + change
        return (*at[:axis], level, *at[axis + 1 :]) if not axis or 0 <= level < sizes[axis - 1] else None

    def fresh(steps: Sequence[float]) -> Place | None:
        near = (moved(best(), axis, sign * size) for axis, size in enumerate(steps) for sign in (1.0, -1.0))
        return next((one for one in near if one is not None and one not in found), None)

    def beyond() -> Place | None:
        at = best()
        for axis, size in enumerate((2.0, *(1.0 for _ in sizes))):
            for sign in (1.0, -1.0):
                further = moved(at, axis, sign * size)
                if further is not None and all(sign * tried[axis] <= sign * at[axis] for tried in found):
                    return further
        return None

    while len(found) < trials and step > 0.1:
        one = fresh((step, *(1.0 for _ in sizes)))
        if one is None:
            step /= 2.0
        else:
            found[one] = worth(one)
    while found[best()] < np.inf and (one := beyond()) is not None:
        found[one] = worth(one)
    return found


@dataclass(frozen=True)
class Tuned:
    """A method of a contest, with what is searched beside its rate: the values of each parameter, in order."""

    strategy: sync.AbstractStrategy[Any]
    ladders: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def start(self) -> Place:
        """Where its search begins: the rate that was given, and its own values."""
        own = ((ladder.index(getattr(self.strategy, name))) for name, ladder in self.ladders.items())
        return 0.0, *map(float, own)

    def at(self, place: Place) -> sync.AbstractStrategy[Any]:
        """Return the strategy at a place of the search."""
        values = {
            name: ladder[int(level)] for (name, ladder), level in zip(self.ladders.items(), place[1:], strict=True)
        }
        made: sync.AbstractStrategy[Any] = replace(self.strategy, **values)  # type: ignore[type-var]
        return made


@dataclass(frozen=True)
class Problem:
    """Rows, how ranks share them, and a rate to begin with."""

    source: DataSource
    partition: str
    eta0: float
    fit_intercept: bool = True

    @property
    def name(self) -> str:
        """What it is called in claims."""
        return f"{self.source.name} {self.partition}"


@lru_cache(maxsize=3)
def _loaded(source: DataSource) -> StudyData:
    return load_data(source, "float64")


@dataclass(frozen=True)
class Outcome:
    """What a training came to: figures by name, and of each test row whether it is predicted."""

    figures: Mapping[str, float]
    hits: FloatVector


#: Outcomes by seed; one that left the range of numbers is missing.
Outcomes: TypeAlias = dict[int, Outcome]


@dataclass(frozen=True)
class Found:
    """All outcomes of a contest, by problem, pace and method.

    `weights` are those of the test rows of a problem in balanced accuracy, and `rates` says what was chosen.
    """

    outcomes: Mapping[tuple[str, float, str], Outcomes]
    weights: Mapping[str, FloatVector]
    seeds: int
    where: str
    rates: Mapping[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """The names of the problems."""
        return list(self.weights)

    def column(self, problem: str, method: str, name: str, pace: float = 1.0) -> dict[int, float]:
        """Return a figure of a method by seed."""
        return {seed: one.figures[name] for seed, one in self.outcomes[problem, pace, method].items()}

    def ratio(self, above: str, below: str, name: str, pace: float = 1.0) -> list[Interval | None]:
        """Return the ratio of a figure of two methods, problem by problem."""
        return [ratio(*(self.column(problem, one, name, pace) for one in (above, below))) for problem in self.problems]

    def score(self, ours: str, other: str) -> list[Interval | None]:
        """Return the difference in accuracy or in balanced accuracy, whichever is lower, problem by problem.

        It is uncertain by the seeds and by the test rows.
        """
        made = []
        for problem, weights in self.weights.items():
            mine, its = (self.outcomes[problem, 1.0, one] for one in (ours, other))
            common = [seed for seed in mine if seed in its]
            if not common:
                return [None]
            change = np.mean([mine[seed].hits - its[seed].hits for seed in common], axis=0)
            two = []
            for by_row in (np.ones_like(weights), weights):
                sides = ({seed: float(np.mean(by_row * one[seed].hits)) for seed in common} for one in (mine, its))
                two.append(sampled(difference(*sides), by_row * change))
            made.append(min(two, key=lambda one: np.inf if one is None else one.estimate))
        return made


@dataclass(frozen=True)
class Versus:
    """How a statement is decided by two methods of a contest.

    Parameters
    ----------
    key : str
        That of the statement.
    measure : {"objective", "score", "seconds", "bytes", "saved"}
        The objective of `ours` over that of the other, its accuracy less that of the other, or how many times as many
        seconds or bytes the other takes; saved is the share of the bytes.
    ours, other : str
        Methods.
    keeps : str
        The figure of ours that may not be more than 5 % above that of the other; "" if there is none.
    controls : sequence of str
        What must fail.
    paces : sequence of float
        Seconds of computing over those of an exchange, at which seconds are measured.
    lacks : str
        What the statement is about and this contest has not, so that it decides nothing.
    """

    key: str
    measure: Literal["objective", "score", "seconds", "bytes", "saved"]
    ours: str
    other: str
    keeps: str = ""
    controls: Sequence[str] = (_ONCE, _ZEROS)
    paces: Sequence[float] = (1.0,)
    lacks: str = ""

    @property
    def statement(self) -> Statement:
        """What is decided."""
        return STATEMENTS[self.key]

    def parts(self, found: Found, method: str) -> list[Interval | None]:
        """Return the figure of a method on every problem, at every pace; None where it left the range of numbers."""
        if self.measure == "score":
            return found.score(method, self.other)
        if self.measure == "objective":
            return found.ratio(method, self.other, "objective")
        if method == _ZEROS or (method == _ONCE and self.measure != "seconds"):
            # Nothing is computed, or next to nothing is sent: all is saved.
            most = exact(1.0 if self.measure == "saved" else np.inf)
            return [most for _ in found.problems]
        name = "seconds" if self.measure == "seconds" else "bytes"
        times = [one for pace in self.paces for one in found.ratio(self.other, method, name, pace)]
        return [one and one.mapped(lambda x: 1.0 - 1.0 / x) for one in times] if self.measure == "saved" else times

    def kept(self, found: Found, method: str) -> list[Interval | None]:
        """Return what a method must keep over that of the other, on every problem."""
        return found.ratio(method, self.other, self.keeps) if self.keeps else []

    def words(self, found: Found, method: str) -> list[list[str]]:
        """Return the verdict on each problem, pace by pace; what is not kept counts for nothing."""
        parts, kept, n = self.parts(found, method), self.kept(found, method), len(found.problems)
        keeps = [_KEPT.verdict(one) if one else "fails" for one in kept] or ["holds"] * n
        rows = []
        for at in range(0, len(parts), n):
            row = parts[at : at + n]
            if self.statement.up_to:
                row = [max(row, key=lambda one: one.estimate if one else 0.0)] * n
            said = [self.statement.margin.verdict(one) if one else "fails" for one in row]
            # What is kept is no less than what is saved: it exceeds nothing.
            rows.append(
                [
                    one if kept in GOOD else min(one, kept, key=_ORDER.index)
                    for one, kept in zip(said, keeps, strict=False)
                ]
            )
        return rows

    def control(self, found: Found, name: str) -> Control:
        """Return a control with its verdict: it fails if it does on one problem, as a method must hold on all."""
        word = min((word for row in self.words(found, name) for word in row), key=_ORDER.index)
        saves = bool(self.keeps) and self.measure != "score"
        shown = self.kept(found, name) if saves else self.parts(found, name)
        return Control(name, across(shown, found.seeds), word, self.keeps if saves else "")

    def claim(self, found: Found) -> Claim:
        """Return the claim."""
        if any(len(found.outcomes[problem, 1.0, self.other]) < found.seeds for problem in found.problems):
            note = f"{self.other}, beside which it is measured, leaves the range of numbers."
            return self.statement.said(found.where, "diverged", "undecided", note)
        rows = self.words(found, self.ours)
        said = {_joint(row) for row in rows}
        verdict = min(said, key=_ORDER.index)
        if len(said) > 1 and "fails" in said:  # at some paces
            verdict = "assumption" if said & set(GOOD) else "undecided"
        counts = Counter(word for row in rows for word in row)
        parts = [
            f"{self.ours} beside {self.other}: {', '.join(f'{n} {word}' for word, n in counts.items())} of the "
            f"problems{' and paces' if len(rows) > 1 else ''}"
        ]
        for problem in found.problems:
            ends = (_median(found.column(problem, one, "objective")) for one in (self.ours, self.other))
            parts.append(f"Objectives on {problem} {' and '.join(ends)}")
        for pace in self.paces if len(self.paces) > 1 else ():
            part = across(found.ratio(self.other, self.ours, "seconds", pace), found.seeds)
            parts.append(f"Computing {pace:g} times an exchange: {part.text(as_times) if part else '-'}")
        if self.keeps:
            kept, what = across(self.kept(found, self.ours), found.seeds), self.keeps.replace("_", " ").capitalize()
            parts.append(f"{what} over the other's: {kept.text(as_times) if kept else '-'}")
        parts += [f"Rates of {one}: {found.rates[one]}" for one in (self.ours, self.other) if one in found.rates]
        controls = [self.control(found, name) for name in self.controls]
        figure = across(self.parts(found, self.ours), found.seeds)
        if self.lacks:
            shown = figure.text(self.statement.form) if figure else "diverged"
            return self.statement.not_run(found.where, f"{self.lacks} Without it {shown}. {'. '.join(parts)}.")
        return self.statement.judged(
            found.where, figure, f"{'. '.join(parts)}.", verdict=verdict, controls=controls, tuned="yes"
        )


#: Verdicts, from the worst.
_ORDER: Final = ("fails", "undecided", "holds", "exceeds")


def _joint(words: Sequence[str]) -> str:
    """Return the verdict of several problems: what holds does on each of them, what fails does on most."""
    if 2 * words.count("fails") > len(words):
        return "fails"
    return min(words, key=_ORDER.index) if set(words) <= set(GOOD) else "undecided"


def _median(by_seed: Mapping[int, float]) -> str:
    return f"{statistics.median(by_seed.values()):.4f}" if by_seed else "diverged"


_PROBLEMS: Final = (
    # An intercept would take steps as long as those of all 2,000 weights together.
    Problem(DataSource("epsilon-like", 1_000, 8_000), "shuffled", 4.0, fit_intercept=False),
    Problem(DataSource("w8a-like", 2_000, 40_000), "shuffled", 4.0),
    Problem(DataSource("ijcnn1-like", 2_000, 40_000), "feature-skewed", 0.5),
)
_WIDE: Final = (*_PROBLEMS[:2], Problem(DataSource("webspam-like", 2_000, 20_000), "feature-skewed", 4.0))


@dataclass(frozen=True)
class Contest:
    """Methods on some problems on a simulated cluster, each tuned, and what they decide.

    `period` says how many rows there are between two exchanges, which sets how slow cores are.
    """

    name: str
    methods: Mapping[str, Tuned | sync.AbstractStrategy[Any]]
    verdicts: Sequence[Versus]
    what: str
    ranks: int = 8
    period: int = 1
    stragglers: AbstractStragglers | str = "none"
    epochs: int = 8
    problems: Sequence[Problem] = _PROBLEMS
    seeds: int = 10
    trials: int = 10
    tuning_seeds: int = 1
    optimizer: AbstractRule | None = None

    def train(self, problem: Problem, strategy: Any, rate: float, seed: int, pace: float = 1.0) -> Outcome | None:
        """Return what a training comes to; None if the model leaves the range of numbers."""
        data = _loaded(problem.source)
        core = Compute(entry_s=0.0, row_s=pace * _EXCHANGE_S / self.period, source="assumed, from an exchange")
        cluster = SimulatedCluster(self.ranks, "10GbE", core, self.stragglers)
        blocks, _ = place(cluster, (data.X, data.y), self.ranks, problem.partition, seed=seed)
        model = SGDClassifier(
            loss="log_loss", alpha=_ALPHA, learning_rate="constant", eta0=rate, max_iter=self.epochs, tol=None,
            sync=strategy, fit_intercept=problem.fit_intercept, random_state=seed, n_jobs=self.ranks, client=cluster,
            optimizer=self.optimizer,
        )  # fmt: skip
        try:
            model.fit(blocks, None)
            reached = objective(model, data.X, data.y, loss="log_loss", alpha=_ALPHA)
            test_loss = objective(model, data.X_test, data.y_test, loss="log_loss", alpha=0.0)
        except InvalidDataError:
            return None
        figures = {
            "objective": reached, "test_loss": test_loss, "seconds": model.fit_report_["epochs"][-1]["seconds"],
            "bytes": float(model.ledger_.totals()["bytes_sent"]),
        }  # fmt: skip
        return Outcome(figures, (model.predict(data.X_test) == data.y_test).astype(float))

    def tune(self, problem: Problem, method: Tuned) -> tuple[sync.AbstractStrategy[Any], float]:
        """Return the strategy and the rate with the lowest objective of all trials, of seeds that decide nothing."""

        def worth(at: Place) -> float:
            seeds = range(_TUNING_SEED, _TUNING_SEED + self.tuning_seeds)
            made = [self.train(problem, method.at(at), problem.eta0 * 2.0 ** at[0], seed) for seed in seeds]
            ends = [np.inf if one is None else one.figures["objective"] for one in made]
            return float(np.nan_to_num(np.mean(ends), nan=np.inf))

        tried = search(worth, method.start, [len(ladder) for ladder in method.ladders.values()], self.trials)
        best = min(tried, key=lambda at: tried[at])
        return method.at(best), problem.eta0 * 2.0 ** best[0]

    def found(self, say: Say) -> Found:
        """Return the outcomes of all methods with all seeds, at what was chosen for each."""
        methods = {_ONCE: sync.OneShotAveraging(), **self.methods}
        outcomes, weights, chosen = dict[tuple[str, float, str], Outcomes](), {}, dict[str, list[str]]()
        reported = range(_REPORTED_SEED, _REPORTED_SEED + self.seeds)
        for number, problem in enumerate(self.problems):
            data = _loaded(problem.source)
            labels, codes, counts = np.unique(data.y_test, return_inverse=True, return_counts=True)
            weights[problem.name] = len(codes) / (len(labels) * counts[codes])
            for at, (name, given) in enumerate(methods.items()):
                say(f"{number * len(methods) + at + 1} of {len(methods) * len(self.problems)}: {name}, {problem.name}")
                method = given if isinstance(given, Tuned) else Tuned(given)
                strategy, rate = self.tune(problem, method)
                own = "".join(_own(key, getattr(strategy, key), ladder) for key, ladder in method.ladders.items())
                chosen.setdefault(name, []).append(f"{rate:.3g}{own}")
                for pace in self._paces(name):
                    made = ((seed, self.train(problem, strategy, rate, seed, pace)) for seed in reported)
                    outcomes[problem.name, pace, name] = {seed: one for seed, one in made if one is not None}
            majority = labels[np.argmax(np.unique(data.y, return_counts=True)[1])]
            none = {"objective": np.log(2.0), "test_loss": np.log(2.0)}
            zeros = Outcome(none, (data.y_test == majority).astype(float))
            outcomes[problem.name, 1.0, _ZEROS] = dict.fromkeys(reported, zeros)
        where = f"{len(self.problems)} problems, {self.ranks} simulated ranks"
        rates = {name: ", ".join(all_of) for name, all_of in chosen.items()}
        return Found(outcomes, weights, self.seeds, where, rates)

    def _paces(self, method: str) -> Iterator[float]:
        wanted = {pace for one in self.verdicts if method in (one.ours, one.other, *one.controls) for pace in one.paces}
        return iter(sorted({1.0, *wanted}))

    def run(self, out: Path, say: Say) -> list[Claim]:
        """Return the claims of all verdicts."""
        del out
        found = self.found(say)
        return [verdict.claim(found) for verdict in self.verdicts]

    def measure(self) -> Measure:
        """Return the measure that runs it, and what is run of it for a quick look."""
        sets = ", ".join(f"{one.source.name} ({one.source.rows:,} rows, {one.partition})" for one in self.problems)
        what = (
            f"{self.what} {self.ranks} simulated ranks, 10GbE, {self.epochs} epochs, on {sets}; {self.seeds} seeds. "
            f"Every method has the best rate, and own parameters, of {self.trials} trials with other seeds, or of more "
            "where the best is the last that was tried."
        )
        quick = None if self.seeds < 10 else replace(self, seeds=3, trials=3, problems=self.problems[:1]).measure()
        return Measure(self.name, tuple(verdict.statement for verdict in self.verdicts), what, self.run, quick=quick)


def _own(key: str, value: float, ladder: Sequence[float]) -> str:
    """Return what was chosen of a ladder, and whether it is an end of it."""
    return f" {key} {value:g}{' (the ladder ends there)' if value in (ladder[0], ladder[-1]) else ''}"


def _quality(key: str, ours: str, other: str) -> Versus:
    """Return how a lower or equal objective is decided."""
    return Versus(key, "objective", ours, other)


def _kept(
    key: str, ours: str, other: str, keeps: str = "test_loss", controls: Sequence[str] = (_ONCE, _ZEROS)
) -> Versus:
    """Return how the accuracy that is kept is decided: the loss of test rows, which does not saturate, is kept too."""
    return Versus(key, "score", ours, other, keeps, controls)


def _saves(key: str, measure: Literal["seconds", "bytes", "saved"], ours: str, other: str) -> Versus:
    """Return how savings are decided: at an objective within 5 %."""
    return Versus(key, measure, ours, other, "objective", paces=_PACES if measure == "seconds" else (1.0,))


_OFTEN: Final = "every row"
_MOMENTA: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
_PULLS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
#: Beyond 1 the centre would swing.
_BETAS: Final = (0.3, 0.5, 0.7, 0.9, 1.0)
_AVERAGES: Final = Contest(
    "averages",
    {
        _OFTEN: sync.LocalSGD(1),
        # The root of the rows of a rank over all epochs.
        "local 40": sync.LocalSGD(40),
        "local 64": sync.LocalSGD(64),
        "SlowMo 64": Tuned(sync.SlowMo(64, slow_momentum=0.2), {"slow_momentum": _MOMENTA}),
        "EASGD 64": Tuned(sync.EASGD(64), {"beta": _BETAS}),
        "LSGD 64": Tuned(sync.LeaderSGD(64), {"pull": _PULLS}),
        "Downpour 64": sync.Downpour(64),
        "AdaComm": sync.AutoSync(rule=AdaComm()),
        "variance band": sync.AutoSync(rule=VarianceBand()),
        "QSR": sync.AutoSync(rule=QSR()),
        "dynamic": sync.AutoSync(rule=DynamicAveraging()),
    },
    (
        _quality("local/rounds", "local 40", _OFTEN),
        _saves("adacomm/time", "seconds", "AdaComm", _OFTEN),
        _saves("adpa/time", "seconds", "variance band", _OFTEN),
        _saves("qsr/bytes", "saved", "QSR", _OFTEN),
        _kept("qsr/accuracy", "QSR", _OFTEN),
        _saves("dynamic/bytes", "bytes", "dynamic", "local 40"),
        _quality("dynamic/objective", "dynamic", "local 40"),
        _quality("slowmo/objective", "SlowMo 64", "local 64"),
        _quality("easgd/downpour", "EASGD 64", "Downpour 64"),
        _quality("lsgd/easgd", "LSGD 64", "EASGD 64"),
    ),
    "Strategies that average models beside an exchange after every row:",
)
_RARE: Final = Contest(
    "rare", {_OFTEN: sync.LocalSGD(1), "DiLoCo 500": sync.DiLoCo(500, 0.7, 0.9)},
    (
        Versus("diloco/bytes", "bytes", "DiLoCo 500", _OFTEN, controls=()),
        _quality("diloco/objective", "DiLoCo 500", _OFTEN),
    ),
    "Hundreds of steps between exchanges, with the published outer rate and momentum, 0.7 and 0.9:", ranks=2,
    epochs=16,
)  # fmt: skip
_KEPT_BACK: Final = "moments stay"
_MOMENTS: Final = Contest(
    "moments",
    {"local Adam": sync.DESLOC(64, 1, 1), "DES-LOC": sync.DESLOC(64, 3, 6), _KEPT_BACK: sync.LocalSGD(64)},
    (
        replace(_saves("desloc/bytes", "bytes", "DES-LOC", "local Adam"), controls=(_KEPT_BACK, _ONCE, _ZEROS)),
        replace(_quality("desloc/objective", "DES-LOC", "local Adam"), controls=(_KEPT_BACK, _ONCE, _ZEROS)),
    ),
    "Adam with its model averaged every 64 rows, first moments at every third average, second moments at every sixth:",
    problems=tuple(replace(one, eta0=0.02) for one in _PROBLEMS), optimizer=Adam(),
)  # fmt: skip
_SKEWED: Final = Contest(
    "skewed",
    {
        "local": sync.LocalSGD(64), "SCAFFOLD": sync.SCAFFOLD(64, stretch=16),
        "FedProx": Tuned(sync.FedProx(64, 0.001, stretch=16), {"mu": (0.0, 0.0001, 0.001, 0.01, 0.1)}),
    },
    (
        _quality("scaffold/skewed", "SCAFFOLD", "local"),
        replace(
            _kept("fedprox/skewed", "FedProx", "local", ""),
            lacks="Needs devices that stop early, whose work FedAvg drops; here are unlike rows alone.",
        ),
    ),
    "Every rank has rows of mostly one label, an exchange every 64:",
    problems=tuple(replace(one, partition="label-skewed") for one in _PROBLEMS),
)  # fmt: skip
_NEIGHBOURS: Final = Contest(
    "neighbours",
    {
        "all-reduce": sync.LocalSGD(8), "SGP": sync.SGP(8), "D-PSGD": sync.DPSGD(8), "AD-PSGD": sync.ADPSGD(8),
        "CHOCO": Tuned(sync.ChocoSGD(8, TopK(0.01), 0.04), {"gamma": (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)}),
    },
    (
        _kept("sgp/accuracy", "SGP", "all-reduce"),
        _saves("choco/bytes", "bytes", "CHOCO", "D-PSGD"),
        _saves("adpsgd/time", "seconds", "AD-PSGD", "all-reduce"),
    ),
    "Gossip beside an all-reduce, every 8 rows, with exponential stragglers:", period=8, stragglers="exponential",
)  # fmt: skip
_STRAGGLERS: Final = Contest(
    "stragglers",
    {
        "all wait": sync.BackupWorkers(4, 0), "one backup": sync.BackupWorkers(4, 1),
        "slack 3": sync.StaleSynchronous(4, 3),
    },
    (
        _saves("backup/time", "seconds", "one backup", "all wait"),
        _saves("ssp/time", "seconds", "slack 3", "all wait"),
    ),
    "What waits for stragglers beside what does not, batches of 4 rows, heavy-tailed times:", period=4,
    stragglers="heavy-tail", epochs=4,
)  # fmt: skip
_STALE: Final = Contest(
    "stale",
    {
        "ASGD": sync.ASGD(8),
        "DC-ASGD": Tuned(
            sync.DelayCompensatedASGD(8, 2.0, 0.95), {"compensation": (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)}
        ),
        "staleness-aware": sync.StalenessAware(8, usual=1.0), "synchronous": sync.BackupWorkers(8, 0),
    },
    (
        _quality("dcasgd/asynchronous", "DC-ASGD", "ASGD"),
        _quality("dcasgd/synchronous", "DC-ASGD", "synchronous"),
        _quality("staleness/objective", "staleness-aware", "ASGD"),
    ),
    "Asynchronous steps whose gradients are some thirty steps old:", ranks=32, period=8, stragglers="exponential",
    epochs=4,
)  # fmt: skip
#: No more than an entry or two of every gradient: what a compressor must not be mistaken for.
_STARVED: Final = "an entry in a thousand"
_COMPRESSED: Final = Contest(
    "compressed",
    {
        "dense": sync.MinibatchSGD(32), _STARVED: sync.MinibatchSGD(32, compressor=ErrorFeedback(TopK(0.001))),
        "gTop-k": sync.MinibatchSGD(32, compressor=GTopK(0.05)),
        "DGC": sync.MinibatchSGD(32, compressor=DGC(0.05)),
        "1 bit": sync.MinibatchSGD(32, compressor=ErrorFeedback(OneBit())),
        "TernGrad": sync.MinibatchSGD(32, compressor=TernGrad()),
        "PowerSGD": sync.MinibatchSGD(32, compressor=ErrorFeedback(PowerSGD(2))),
        "threshold": sync.MinibatchSGD(32, compressor=ErrorFeedback(Threshold(0.01))),
        "two thresholds": sync.MinibatchSGD(32, compressor=ErrorFeedback(AdaptiveThreshold(0.01))),
    },
    (
        *(
            _kept(key, ours, "dense", controls=(_STARVED, _ZEROS))
            for key, ours in (
                ("gtopk/accuracy", "gTop-k"), ("dgc/accuracy", "DGC"), ("onebit/accuracy", "1 bit"),
                ("terngrad/accuracy", "TernGrad"), ("powersgd/accuracy", "PowerSGD"),
                ("threshold/accuracy", "threshold"), ("adaptive-threshold/accuracy", "two thresholds"),
            )
        ),
        _saves("threshold/bytes", "bytes", "threshold", "dense"),
    ),
    "Compressed gradients of batches of 32 beside dense ones, 1 in 20 entries where few are sent:", epochs=3,
    problems=_WIDE,
)  # fmt: skip
_UNHURRIED: Final = Contest(
    "unhurried",
    {
        "asynchronous EASGD": Tuned(sync.AsyncEASGD(64), {"beta": _BETAS}),
        "asynchronous LSGD": Tuned(sync.AsyncLeaderSGD(64, n_groups=2), {"pull": _PULLS}),
    },
    (_quality("async-lsgd/easgd", "asynchronous LSGD", "asynchronous EASGD"),),
    "Servers that wait for nobody, an exchange every 64 rows, heavy-tailed times:", period=64,
    stragglers="heavy-tail",
)  # fmt: skip
#: The contests of this module, and their measures.
CONTESTS: Final = (_AVERAGES, _RARE, _MOMENTS, _COMPRESSED, _NEIGHBOURS, _STRAGGLERS, _UNHURRIED, _STALE, _SKEWED)
MEASURES: Final = tuple(contest.measure() for contest in CONTESTS)
