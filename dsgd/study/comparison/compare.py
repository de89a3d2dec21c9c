"""The comparison of methods: checks, the search, the runs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sklearn.base import clone

from dsgd.errors import InvalidParameterError
from dsgd.estimators import SGDClassifier
from dsgd.sim import SimulatedCluster
from dsgd.study.comparison.methods import SEQUENTIAL, Methods, opened, read_methods
from dsgd.study.comparison.problem import (
    ComparisonRun,
    Problem,
    check_estimator,
    check_looks,
    rehearse,
    split_data,
)
from dsgd.study.comparison.result import Comparison
from dsgd.study.comparison.search import chosen_runs, mark_chosen, trials
from dsgd.study.frame.rows import Row
from dsgd.study.frame.runner import Record
from dsgd.study.frame.workers import place_name
from dsgd.sync import AbstractStrategy, EpochAveraging
from dsgd.validation import check_number

if TYPE_CHECKING:
    from distributed import Client


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
    read_methods(methods, every, "threads")
    with opened(cluster, ranks) as place, _folder(out) as folder:
        chosen = {SEQUENTIAL: EpochAveraging(), **read_methods(methods, every, place.kind)}
        data = split_data(model, X, y, test, partition, place.ranks, name=name)
        problem = Problem(data, clone(model).set_params(encoder=None), place, partition, at)
        rehearse(problem, {name: one for name, one in chosen.items() if name != SEQUENTIAL})
        scheduler = "a client" if place.kind == "workers" and cluster != "workers" else None
        network = place.kind if place.kind == "simulated" else None
        record = Record(folder, command=_command(), cluster=place_name(scheduler, network), where=place.text)
        session = _Session(problem, record, (target_excess, target))
        with _shown(on_progress) as say:
            return session.run(chosen, all_seeds, int(tune), say)


class _Session:
    """The state of one call of `compare`."""

    def __init__(self, problem: Problem, record: Record, target: tuple[float, float | None]) -> None:
        self._problem, self._record, self._target = problem, record, target
        self._held: tuple[tuple[int, int], Any] | None = None
        self._done = self._total = 0

    def run(
        self,
        methods: Mapping[str, AbstractStrategy[Any]],
        seeds: Sequence[int],
        n_trials: int,
        say: Callable[[str, int, int], None],
    ) -> Comparison:
        """Search, where that is asked for, and run all methods with all seeds."""
        problem, ranks, eta0 = self._problem, self._problem.place.ranks, float(self._problem.estimator.eta0)
        first = {
            name: ComparisonRun(problem, name, one, 1 if name == SEQUENTIAL else ranks, eta0, seeds[0])
            for name, one in methods.items()
        }
        tried = trials(problem, methods, n_trials, max(seeds) + 1) if n_trials else []
        self._total = len(tried) + len(seeds) * len(methods)
        search = mark_chosen(self._rows(tried, say), *self._target) if tried else []
        if search:
            first = chosen_runs(tried, search)
        # Methods take turns: what else the machine does in a while is felt by all of them.
        runs = [run.with_seed(seed) for seed in seeds for run in first.values()]
        return Comparison(self._rows(runs, say), search, *self._target)

    def _rows(self, runs: Sequence[ComparisonRun], say: Callable[[str, int, int], None]) -> list[Row]:
        return [run.row for run in self._record.finish(runs, partial(self._measure, say, runs))]

    def _measure(
        self, say: Callable[[str, int, int], None], asked: Sequence[ComparisonRun], missing: Sequence[ComparisonRun]
    ) -> Iterator[Row]:
        """Train what has no row yet, and say so."""
        self._done += len(asked) - len(missing)
        for run in missing:
            say(f"{'search, ' * (run.stage == 'search')}{run.name}, seed {run.seed}", self._done, self._total)
            at = run.ranks, run.seed
            if self._held is None or self._held[0] != at:
                self._held = None  # before others take their memory
                self._held = at, self._problem.held(*at)
            yield self._problem.train(run, self._held[1])
            self._done += 1


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, Sequence):
        for seed in seeds:
            check_number("compare(seeds=...)", seed, low=0, integer=True)
        if not seeds or len(set(seeds)) < len(seeds):
            raise InvalidParameterError(f"compare(seeds=...) must be a number, or seeds, each once. Got {seeds!r}.")
        return [int(seed) for seed in seeds]
    check_number("compare(seeds=...)", seeds, low=1, integer=True)
    return list(range(int(seeds)))


def _command() -> str:
    """Return what rows say they were made by."""
    return f"dsgd.compare in {Path(sys.argv[0]).name or 'an interactive session'}"


@contextmanager
def _folder(out: str | os.PathLike[str] | None) -> Iterator[str | os.PathLike[str]]:
    """Give the folder of rows, for the time of the call where none is asked for."""
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory() as folder:
        yield folder


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
