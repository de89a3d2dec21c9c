"""The comparison of methods: the search for rate and period, and the runs.

Problem: methods that are compared at one rate and one period are compared at what suits one of them.

Method: trials lie on a grid around what was given, rates and periods in powers of four, own parameters in the values
that were listed, the nearest first. All trials
of all methods have one seed, which no run of the comparison has. The target is the best final objective among them and
a little. Of each method the trial is taken that reaches it in the fewest seconds; where none does, the one with the
lowest objective. What was tried is reported.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sklearn.base import clone

from dsgd.errors import InvalidParameterError
from dsgd.estimators import SGDClassifier
from dsgd.sim import SimulatedCluster
from dsgd.study.comparison.result import QUESTION, Comparison, first_point
from dsgd.study.comparison.runs import (
    SEQUENTIAL,
    Entry,
    Held,
    Methods,
    Problem,
    check_estimator,
    check_looks,
    opened,
    parameters_of,
    period_of,
    read_methods,
    rehearse,
    split_data,
    with_period,
)
from dsgd.study.frame.rows import Row, Run, cells_of
from dsgd.study.frame.study import Batch, Grid, Option, Study, run_study
from dsgd.sync import AbstractStrategy, EpochAveraging
from dsgd.validation import check_number

if TYPE_CHECKING:
    from distributed import Client

_STEP: Final = 4.0
_REACH: Final = 3


def compare(
    methods: Methods,
    X: Any,
    y: Any,
    *,
    cluster: Client | SimulatedCluster | str | None = None,
    ranks: int | None = None,
    seeds: int | Sequence[int] = 3,
    partition: str = "shuffled",
    every: int | None = None,
    tune: int = 0,
    tune_over: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
    epochs: int = 4,
    looks: Iterable[float] | None = None,
    estimator: SGDClassifier | None = None,
    test: float | tuple[Any, Any] = 0.25,
    target: float | None = None,
    target_excess: float = 0.02,
    name: str = "data",
    out: str | os.PathLike[str] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Train a classifier with each of several methods, and compare their cost and their results.

    A run of one rank is always included. Its final training objective, plus a margin, is the target for the other
    methods unless a target is given. Each method is trained with each seed, and once more for each point of its
    learning curve.

    Parameters
    ----------
    methods : mapping of str to strategy, or sequence of str
        The methods to compare, by their names in tables. A method is anything that ``sync=`` of an estimator takes:
        strategies with their compressors and topologies, numbers of rows, and strings such as ``"diloco:every=512"`` or
        ``"package.module:Mine"``. In a sequence, each string is its own name.
    X : array, CSR matrix, table or files of tables, shape (n_rows, n_features)
        Rows; this process reads files. The `encoder` of `estimator` learns the columns of all rows once.
    y : array or str, shape (n_rows,)
        Labels, of two classes or more, or the name of their column.
    cluster : distributed.Client, dsgd.sim.SimulatedCluster, str or None, default None
        Where ranks run: on a cluster, one rank per worker; on a simulated cluster, by a virtual clock; with
        ``"workers"``, in worker processes that are started for the comparison; with the address of a scheduler, on its
        cluster; with None, in threads of this process.
    ranks : int, optional
        Number of ranks; by default the number of workers or simulated ranks, or else four.
    seeds : int or sequence of int, default 3
        How often each method is trained, or the seeds themselves. They determine the partition, the order of rows, and
        stragglers.
    partition : str, default "shuffled"
        Which rows each rank holds; see `dsgd.datasets.split_rows`: ``"shuffled"``, ``"contiguous"``,
        ``"label-skewed"``, ``"feature-skewed"``, ``"dirichlet:0.5"`` (labels) or ``"quantity:0.5"`` (sizes).
    every : int, optional
        The period, in rows of a rank, of all methods that have one; by default each keeps its own.
    tune : int, default 0
        Number of trials, the same for each method, in which its rate and period are searched first: in powers of four
        around the given values, with a seed that no run of the comparison uses. 0 searches nothing. Rates are searched
        if the schedule of the estimator has an initial rate (``learning_rate="constant"``, ``"invscaling"`` or
        ``"adaptive"``).
    tune_over : mapping, optional
        Parameters of their own that are searched as well, by method: their values in order, of which the method has
        one, as in ``{"SlowMo": {"slow_momentum": (0.0, 0.2, 0.4)}}``. The number of trials stays `tune`.
    epochs : int, default 4
        Passes over the rows.
    looks : iterable of float, optional
        Epochs of the points of learning curves: fractions of the first epoch, or whole numbers. By default an eighth, a
        quarter and a half of the first epoch, and then 1, 2, 3, 4, 6, 8, ... epochs.
    estimator : SGDClassifier, optional
        The model, with its loss, penalty, schedule and optimiser, by default `SGDClassifier()`. The comparison sets how
        long, where and with which strategy it trains.
    test : float or tuple (X, y), default 0.25
        The share of rows that is held out for testing, stratified by label, or the test rows.
    target : float, optional
        The training objective that methods should reach.
    target_excess : float, default 0.02
        How far the target lies above the final objective of one rank, if `target` is not given.
    name : str, default "data"
        The name of the data in tables.
    out : str or path-like, optional
        A folder for the rows of results. An interrupted comparison continues there, and finished runs are not repeated.
    on_progress : callable, optional
        Called with a line of text before every run. By default, a bar is shown if standard error is a terminal.

    Returns
    -------
    Comparison
        Rows, tables, figures and a page. No claim is made for a method that is no better than always predicting the
        most common label, or whose model leaves the range of numbers.

    Raises
    ------
    InvalidParameterError
        A parameter is out of range, or a method is unknown or cannot run there. Methods are tried on a few rows before
        the first measurement.
    InvalidDataError
        The rows cannot be trained on.
    ClusterError
        The cluster has fewer workers than ranks.

    Examples
    --------
    >>> import dsgd
    >>> from dsgd.sim import SimulatedCluster
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(600, random_state=0)
    >>> methods = {"often": 8, "rarely": 64, "gossip": "sgp:every=8"}
    >>> found = dsgd.compare(methods, X, y, cluster=SimulatedCluster(4, "10GbE"), seeds=2, epochs=2)
    >>> [(row["strategy"], row["messages"]) for row in found.rows if row["seed"] == 0]
    [('sequential', 0), ('often', 240), ('rarely', 32), ('gossip', 128)]
    """
    model, at, all_seeds = check_estimator(estimator), check_looks(epochs, looks), _seeds(seeds)
    check_number("compare(tune=...)", tune, low=0, integer=True)
    check_number("compare(target_excess=...)", target_excess, low=0)
    if target is not None:
        check_number("compare(target=...)", target, low=0, open_low=True)
    # Before workers are started: what is wrong with methods does not depend on how many there are.
    over = _check_over(read_methods(methods, every, "threads"), tune_over or {}, int(tune))
    with opened(cluster, ranks) as place, tempfile.TemporaryDirectory() as passing, _shown(on_progress) as say:
        chosen = {SEQUENTIAL: EpochAveraging(), **read_methods(methods, every, place.kind)}
        data = split_data(model, X, y, test, partition, place.ranks, name=name)
        problem = Problem(data, clone(model).set_params(encoder=None), place, partition, at)
        rehearse(problem, {name: one for name, one in chosen.items() if name != SEQUENTIAL})
        tried = _trials(problem, chosen, over, int(tune)) if tune else []
        entries = [_entry(problem, name, one) for name, one in chosen.items()]
        n_runs = len(tried) + len(all_seeds) * len(entries)

        def made(stage: str, seeds: Sequence[int], own: Sequence[Entry], first: int) -> list[Row]:
            study = _study(problem, stage, seeds, own, lambda text, number: say(text, first + number, n_runs))
            scheduler = "a client" if place.kind == "workers" and cluster != "workers" else None
            command = f"dsgd.compare in {Path(sys.argv[0]).name or 'an interactive session'}"
            return [run.row for run in run_study(study, out or passing, scheduler=scheduler, command=command)]

        search = _mark_chosen(made("search", [max(all_seeds) + 1], tried, 0), target_excess, target) if tried else []
        if search:
            entries = [entry for entry, row in zip(tried, search, strict=True) if row["chosen"]]
        # Methods take turns: what else the machine does in a while is felt by all of them.
        return Comparison(made("final", all_seeds, entries, len(tried)), search, target_excess, target)


def _study(
    problem: Problem, stage: str, seeds: Sequence[int], entries: Sequence[Entry], say: Callable[[str, int], None]
) -> Study:
    """Return the study that trains some methods with some seeds; `say` gets what is trained and its number."""

    def measure(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
        held: Held | None = None
        for run in runs:
            number = seeds.index(run.seed) * len(entries) + entries.index(run._entry)
            say(f"{'search, ' * (stage == 'search')}{run.strategy}, seed {run.seed}", number)
            if held is None or held.ranks != run.ranks:
                held = None  # before others take their memory
                held = problem.held(run.ranks, run.seed)
            yield problem.train(run._entry, held)

    grid = Grid(
        lambda study: {"dataset": [problem.data], "seed": seeds, "_entry": entries},
        measure,
        derive=lambda run: problem.settings(run._entry, stage) | {"where": problem.place.text},
        together=("seed",),
        opens=nullcontext,  # ranks are there already
    )
    network = problem.place.kind if problem.place.kind == "simulated" else None
    return Study("compare", QUESTION, (), {"network": Option(network)}, [grid], lambda study, rows: {})


def _entry(problem: Problem, name: str, strategy: AbstractStrategy[Any], eta0: float | None = None) -> Entry:
    ranks = 1 if name == SEQUENTIAL else problem.place.ranks
    return Entry(name, strategy, ranks, float(problem.estimator.eta0) if eta0 is None else eta0)


#: Values of parameters by method and name.
_Over: TypeAlias = Mapping[str, Mapping[str, Sequence[Any]]]


def _check_over(methods: Mapping[str, AbstractStrategy[Any]], over: _Over, tune: int) -> _Over:
    """Return the parameters to search, if methods have them and all values."""
    if over and not tune:
        raise InvalidParameterError("compare(tune_over=...) needs tune, the number of trials of each method.")
    for name, ladders in over.items():
        if name not in methods:
            raise InvalidParameterError(
                f"compare(tune_over=...): {name!r} is none of the methods, {', '.join(methods)}."
            )
        for key, values in ladders.items():
            own = getattr(methods[name], key, None)
            if key not in parameters_of(methods[name]) or key == period_of(methods[name])[0] or own not in values:
                raise InvalidParameterError(
                    f"compare(tune_over=...): {name!r} is {methods[name]!r}. Give values of its parameters, its own "
                    f"among them; its period is searched in any case. Got {key!r}: {values!r}."
                )
            for value in values:
                replace(methods[name], **{key: value})  # type: ignore[type-var]
    return over


def _trials(problem: Problem, methods: Mapping[str, AbstractStrategy[Any]], over: _Over, n: int) -> list[Entry]:
    """Return the trials of all methods, `n` of each at most, method by method, and of one rank first."""
    found = []
    for name, strategy in methods.items():
        period = None if name == SEQUENTIAL else period_of(strategy)[1]
        rates = range(-_REACH, _REACH + 1) if problem.has_rate else (0,)
        periods = range(-_REACH, _REACH + 1) if period else (0,)
        ladders = over.get(name, {})
        own = [list(values).index(getattr(strategy, key)) for key, values in ladders.items()]
        steps = [range(-at, len(values) - at) for at, values in zip(own, ladders.values(), strict=True)]
        # Nearest first; of equally near ones the larger rate, then the shorter period.
        grid = sorted(
            product(rates, periods, *steps),
            key=lambda at: (sum(map(abs, at)), sum(map(abs, at[1:])), -at[0], at[1:]),
        )
        entries = dict[tuple[str, float], Entry]()
        for rate, longer, *along in grid:
            moved = with_period(strategy, max(1, round(period * _STEP**longer))) if period else strategy
            changes = {key: ladders[key][at + step] for key, at, step in zip(ladders, own, along, strict=True)}
            moved = replace(moved, **changes)  # type: ignore[type-var]
            entry = _entry(problem, name, moved, problem.estimator.eta0 * _STEP**rate)
            entries.setdefault((repr(moved), entry.eta0), entry)
        found += list(entries.values())[:n]
    return found


def _mark_chosen(rows: Sequence[Row], excess: float, target: float | None) -> list[Row]:
    """Return the rows of a search, each with ``chosen``, whether it is the best of its method, and ``to_target_s``."""
    if target is None:
        target = min((row["objective"] for row in rows if not row["diverged"]), default=0.0) * (1.0 + excess)
    marked = []
    for cell in cells_of(rows, "strategy"):
        standings = []
        for row in cell.rows:
            point = None if row["diverged"] else first_point(row["curve"], target)
            reached = None if point is None else float(point["seconds"])
            worth = row.get("objective") if reached is None else reached
            standings.append((row["diverged"], reached is None, float("inf") if worth is None else worth, reached))
        best = min(range(len(standings)), key=lambda place: standings[place][:3])
        marked += [
            {**row, "to_target_s": standing[-1], "chosen": place == best}
            for place, (row, standing) in enumerate(zip(cell.rows, standings, strict=True))
        ]
    return marked


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, Sequence):
        for seed in seeds:
            check_number("compare(seeds=...)", seed, low=0, integer=True)
        if not seeds or len(set(seeds)) < len(seeds):
            raise InvalidParameterError(f"compare(seeds=...) must be a number, or seeds, each once. Got {seeds!r}.")
        return [int(seed) for seed in seeds]
    check_number("compare(seeds=...)", seeds, low=1, integer=True)
    return list(range(int(seeds)))


@contextmanager
def _shown(on_progress: Callable[[str], None] | None) -> Iterator[Callable[[str, int, int], None]]:
    """Give what is told of every run: the name, how many are done, and of how many."""
    if on_progress is not None:
        yield lambda text, done, total: on_progress(f"{done + 1} of {total}: {text}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    parts = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*parts, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("comparing", total=None)
        yield lambda text, done, total: bar.update(task, description=text, completed=done, total=total)
