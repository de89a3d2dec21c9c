"""A study is one declaration: a question, options, a grid of runs, a function that measures them, and one that reports.

::

    STUDY = Study(
        "msf", "How often must ranks synchronise?", ("msf",),
        options={"every": Option((1, 16, 256), "Samples between two averages.", least=1)},
        grids=[Grid(lambda s: {"ranks": (1, 2), "dataset": s.data, "every": s.every}, measure, fixed=("epochs",))],
        report=report,
    )
    rows = [run.row for run in run_study(STUDY.replace(every=[1, 64]), "study/")]
    study_page(STUDY, rows).save("study/")

A grid is the product of its axes, without the points that `where` refuses. A point is a run and makes a row; runs that
have a row are not made again. Runs that agree on the axes `together` share data and workers: `measure` gets them at
once and yields the contents of their rows in their order. An axis called ``dataset`` has data sources, which are
loaded; rows have their names and numbers of rows. Rows do not have axes whose name begins with an underscore: these
say which of the runs it is, but decide nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dsgd.errors import InvalidParameterError
from dsgd.report import Page, origin
from dsgd.study.frame.data import MissingData, cluster_where, load_or_keep, place_name
from dsgd.study.frame.report import doubts, facts
from dsgd.study.frame.rows import Record, Row, Run, StudyRun, check_rows
from dsgd.study.published import SOURCES, citations, sources_of

if TYPE_CHECKING:
    from distributed import Client

_AS_ALWAYS: Final = object()


@dataclass(frozen=True)
class Option:
    """A parameter of a study, on the command line as well.

    Parameters
    ----------
    default : object
        Its value; a tuple may hold several.
    help : str, default ""
        What it is, for ``--help``; without it the command line does not have it.
    demo : object, optional
        Its value in the small form of the study; as always by default.
    of : type, optional
        What the command line takes where the default does not tell: int or float. Numbers have commas between; words
        too, or are repeated options where it has other `flags`.
    words, seeds : bool, default False
        Whether words have commas between in any case, and whether these are seeds.
    flags : sequence of str
        Its names on the command line; ``--name`` by default.
    panel : str
        Where ``--help`` shows it.
    least, above : float
        The smallest value, and what values must be above.
    choices : sequence, optional
        All values that there are.
    may_be_empty : bool, default False
        Whether it may hold no value.
    check : callable, optional
        Raises if a value is none.
    """

    default: Any
    help: str = ""
    demo: Any = _AS_ALWAYS
    of: type | None = None
    words: bool = False
    seeds: bool = False
    flags: Sequence[str] = ()
    panel: str = "The grid"
    least: float | None = None
    above: float | None = None
    choices: Sequence[Any] = ()
    may_be_empty: bool = False
    check: Callable[[Any], object] | None = None

    def examine(self, name: str, value: Any) -> None:
        """Raise unless a value, or each of several, is in the domain; `name` says whose it is."""
        is_one = not isinstance(self.default, (tuple, list))
        if not is_one and not value and not self.may_be_empty:
            raise InvalidParameterError(f"{name}=() names nothing; give at least one.")
        for one in [value] if is_one else value:
            if self.least is not None and not one >= self.least:
                raise InvalidParameterError(f"{name} must be {self.least:g} or more. Got {one}.")
            if self.above is not None and not one > self.above:
                raise InvalidParameterError(f"{name} must be above {self.above:g}. Got {one}.")
            if self.choices and one not in self.choices:
                known = ", ".join(map(str, self.choices))
                raise InvalidParameterError(f"{name}={one!r} is unknown; choose one of {known}.")
            if self.check is not None and one is not None:
                self.check(one)


@dataclass(frozen=True)
class Batch:
    """What runs that are made together share: study, data, workers, rows of before, and all of them.

    There are no workers (None) where none are needed; what `Grid.opens` gives takes their place.
    """

    study: Study
    data: Any
    client: Client | None
    rows: Callable[..., list[Row]]
    runs: Sequence[Run]


@dataclass(frozen=True)
class Grid:
    """Runs of a study; see the module.

    Parameters
    ----------
    axes : callable
        Takes the study; returns the values of each axis, the outermost first.
    measure : callable
        Takes a `Batch` and its runs, yields the contents of their rows. A list is kept before any of it is yielded.
    fixed : sequence of str
        Options that rows have too, as they decide what is run.
    where : callable, optional
        Takes a run; whether there is such a one.
    derive : callable, optional
        Takes a run; returns further columns that decide what is run.
    together : sequence of str
        The axes on which runs must agree to be measured together.
    workers : callable, optional
        Takes a run; how many worker processes it needs. None by default.
    load : callable, optional
        Takes a data source, a precision and the rows so far; returns data, or what is left of them.
    opens : callable, optional
        Returns a context manager; what it gives is there while runs are made, instead of workers.
    """

    axes: Callable[[Study], Mapping[str, Iterable[Any]]]
    measure: Callable[[Batch, list[Run]], Iterable[Row]]
    fixed: Sequence[str] = ()
    where: Callable[[Run], bool] | None = None
    derive: Callable[[Run], Row] | None = None
    together: Sequence[str] = ("ranks", "dataset")
    workers: Callable[[Run], int] | None = None
    load: Callable[[Any, str, Sequence[Row]], Any] | None = None
    opens: Callable[[], AbstractContextManager[Any]] | None = None

    def batches(self, study: Study, load: Callable[[Any], Any]) -> Iterator[tuple[Any, list[Run]]]:
        """Yield the runs that are made together, with their data."""
        axes = {name: list(dict.fromkeys(values)) for name, values in self.axes(study).items()}
        sets: dict[Any, Any] = {}
        if next(iter(axes)) != "dataset":  # before work of minutes, not in it; a set per round need not stay
            sets = {source: load(source) for source in axes.get("dataset", ())}
        for _, points in itertools.groupby(
            (dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())),
            lambda point: [point[name] for name in self.together if name in point],
        ):
            data, runs = None, []
            for point in points:
                source = point.get("dataset")
                if source is not None and source not in sets:
                    sets = {source: load(source)}
                data = sets.get(source)
                runs += self._run(study, point, data)
            if runs:
                yield data, runs

    def _run(self, study: Study, point: dict[str, Any], data: Any) -> list[Run]:
        columns: Row = {}
        for name, value in point.items():
            columns |= (
                {"dataset": data.name, "rows": len(data.y), "test_rows": len(data.y_test)}
                if name == "dataset"
                else {name: value}
            )
        run = Run(study, columns)
        if self.where is not None and not self.where(run):
            return []
        columns |= {name: getattr(study, name) for name in self.fixed} | (self.derive(run) if self.derive else {})
        return [Run(study, columns)]


@dataclass(frozen=True)
class Study:
    """A study: its options are attributes, and `replace` gives them other values.

    Parameters
    ----------
    name : str
        What commands call it.
    question : str
        What it answers; the title of its page.
    sources : sequence of str
        Keys of the publications that it reproduces; those of the methods that were run by default.
    options : mapping of str to Option
        Its parameters.
    grids : sequence of Grid
        Its runs.
    report : callable
        Takes the study and its rows; returns the fields of its `dsgd.report.Page`, the study's own ``ran`` and
        ``doubts`` among them.
    about : str, default ""
        What ``--help`` says of it.
    examples : sequence of str
        Commands.
    columns : sequence of str
        What its progress shows of a run.
    check : callable, optional
        Takes the study; raises if its options do not go together.
    needs_rows : bool, default True
        Whether there is nothing to report without rows.
    simulated : str, default ""
        The network of simulated ranks, if ranks are workers unless they are simulated; it is the option ``network``.
    on_cluster : bool, default False
        Whether its ranks can be workers of a cluster that is there.
    values : mapping of str to object
        Values of the options.
    """

    name: str
    question: str
    sources: Sequence[str]
    options: Mapping[str, Option]
    grids: Sequence[Grid]
    report: Callable[[Study, Sequence[Row]], dict[str, Any]]
    about: str = ""
    examples: Sequence[str] = ()
    columns: Sequence[str] = ("dataset",)
    check: Callable[[Study], object] | None = None
    needs_rows: bool = True
    simulated: str = ""
    on_cluster: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = [name for name in self.values if name not in self.options]
        if unknown:
            known = ", ".join(self.options)
            raise InvalidParameterError(f"the study {self.name} has no option {unknown[0]!r}; it has {known}.")
        values = {name: option.default for name, option in self.options.items()} | dict(self.values)
        object.__setattr__(self, "values", values)
        for name, option in self.options.items():
            option.examine(f"the study {self.name}: {name}", values[name])
        if self.check is not None:
            self.check(self)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def replace(self, **values: Any) -> Study:
        """Return the study with other values of some options.

        Raises
        ------
        InvalidParameterError
            A value is outside its domain.
        """
        return replace(self, values={**self.values, **values})

    def demo(self) -> Study:
        """Return its small form, for two cores and a minute or two."""
        return self.replace(**{name: one.demo for name, one in self.options.items() if one.demo is not _AS_ALWAYS})

    def runs(self, rows: int = 0, test_rows: int = 0) -> list[Run]:
        """Return all runs, as if each set had so many rows."""

        def load(source: Any) -> Any:
            return source if hasattr(source, "y") else MissingData(source.name, range(rows), range(test_rows))

        return [run for grid in self.grids for _, runs in grid.batches(self, load) for run in runs]

    def count(self) -> int:
        """Return the number of runs."""
        return len(self.runs())


def run_study(
    study: Study,
    out: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    force: bool = False,
    command: str | None = None,
) -> Iterator[StudyRun]:
    """Make the runs of a study that have no row yet; yield every run of the grid when it is finished.

    Where ranks are worker processes, as many as are needed are started on this machine and closed again. What is timed
    does not load compiled code: a short fit precedes it.

    Parameters
    ----------
    study : Study
        What to run.
    out : str or path-like
        Folder of the study; rows go to ``rows.jsonl`` in it.
    scheduler : str, optional
        Address of an existing cluster; its workers should have one thread each.
    force : bool, default False
        Repeat all runs.
    command : str, optional
        The command recorded in rows; the command line of this process by default.

    Yields
    ------
    StudyRun
        In the order of the grids.

    Raises
    ------
    ClusterUnreachableError
        No scheduler answers at the address.
    ClusterError
        The cluster has fewer workers than ranks.
    DatasetError
        A dataset can be neither found nor generated.
    """
    network = study.values.get("network")
    record = Record(out, force=force, command=command, cluster=place_name(scheduler, network))
    for grid in study.grids:
        load = partial(_load, grid, study, record)
        for (n_workers, _), group in itertools.groupby(grid.batches(study, load), partial(_place, grid)):
            parts = list(group)
            n_workers *= not all(isinstance(data, MissingData) or record.has(runs) for data, runs in parts)
            workers = grid.opens() if grid.opens else cluster_where(n_workers > 0, n_workers, scheduler)
            with workers as client:
                for data, runs in parts:
                    if isinstance(data, MissingData):
                        yield from record.kept(runs)
                    else:
                        batch = Batch(study, data, client, record.rows, runs)
                        yield from record.finish(runs, partial(grid.measure, batch))


def _place(grid: Grid, batch: tuple[Any, list[Run]]) -> tuple[int, str]:
    """Return what batches must share to be made on the same workers: how many, and sets that are loaded one by one."""
    first = batch[1][0]
    n_workers = grid.workers(first) if grid.workers else 0
    return n_workers, first.dataset if next(iter(first.columns)) == "dataset" else ""


def _load(grid: Grid, study: Study, record: Record, source: Any) -> Any:
    """Return data, unless the axis has data already."""
    load = grid.load or load_or_keep
    return source if hasattr(source, "y") else load(source, study.values.get("dtype", "float64"), record.rows())


def study_page(study: Study, rows: Sequence[Row]) -> Page:
    """Return the report of a study from its finished runs, which may be some of them.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    if study.needs_rows:
        check_rows(rows)
    made_here = [origin() | {"when": datetime.now(UTC).isoformat(timespec="seconds")}]
    said = study.report(study, rows)
    sources = [SOURCES[key] for key in study.sources] or sources_of(row["sync"] for row in rows if "sync" in row)
    said.setdefault("source", "".join(f"{one.reference}." for one in sources[:1]) if study.sources else "")
    own, ran = said.pop("doubts", ()), said.pop("ran", ())
    said.setdefault("citations", citations(sources))
    said.setdefault("rows", list(rows))
    found = doubts(rows, own, asked=study.count()) if rows else ()
    return Page(title=study.question, ran=facts(rows or made_here, *ran), **said, doubts=found)
