"""``dsgd study``, made of the declaration of each study, and ``dsgd claims``, which runs several."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from dsgd.cli.files import check_inputs, read_rows
from dsgd.cli.options import COMPRESS_HELP, JSON, SYNC_HELP, AsJson, examples, option, telling, variants, with_options
from dsgd.errors import InvalidParameterError

if TYPE_CHECKING:
    from dsgd.report import Page, Table
    from dsgd.study import StudyRun
    from dsgd.study.frame.study import Option, Study


#: The studies that are declared, with what the list of commands says of each.
STUDIES: Final[Mapping[str, str]] = {
    "collectives": "How long does a sum over all ranks take? Time every algorithm, and compare with the cost model.",
    "dnn": "Compare methods of training neural networks on handwritten digits: accuracy, seconds and bytes.",
    "elimination": "What does sample elimination save? Run every preset and evaluate the claims about it.",
    "failures": "What do machines that fail cost? Goodput by policy, interval of copies and strategy, simulated.",
    "features": "What do random features cost? Beside the exact kernel machine, and learnt by agents on many graphs.",
    "gtopk": "Train with gTop-k beside dense sums, and predict what sparse sums save on a slow network.",
    "msf": "How often must ranks synchronise? Sweep the period (model synchronisation frequency, hence MSF).",
    "scaling": "How far does synchronous SGD scale? Compare published speed-ups with those of the balance equations.",
    "speedup": "When are several processes faster than one? Seconds of whole fits to the same accuracy.",
    "strategies": "Which strategy is best? Compare seconds and bytes to a target, and accuracy.",
    "transports": "What do copies cost between two processes? Dask, sockets, MPI and memory, timed; copies counted.",
    "tuning": "How good are automatic periods? Seconds to a target for every rule, relative to the best fixed period.",
    "variance": "When is less noise in steps worth its cost? SRG, SAGA and SVRG beside SGD, by passes and by seconds.",
}

# -- how what is given is read ---------------------------------------------------------------------------------------


def numbers(param: typer.CallbackParam, text: str | None) -> tuple[int, ...] | None:
    """Return the whole numbers in a text such as ``1,4,16``, in the order given; None of None."""
    found = _words(text)
    for word in found or ():
        if not (word.isascii() and word.isdigit() and int(word) > 0):
            raise InvalidParameterError(
                f"{param.opts[0]} {text!r}: {word!r} is not a whole number above 0; give numbers with commas, as 1,4,16"
            )
    return None if found is None else tuple(map(int, found))


def _numbers_or_none(param: typer.CallbackParam, text: str | None) -> tuple[int, ...] | None:
    return () if text == "none" else numbers(param, text)


def _reals(param: typer.CallbackParam, text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(map(float, _words(text) or ()))
    except ValueError as error:
        raise InvalidParameterError(f"{param.opts[0]} {text!r}: give numbers with commas, as 0.5,10") from error


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(","))


def seeds(param: typer.CallbackParam, text: str | None) -> tuple[int, ...] | None:
    """Return the first so many seeds, those of a range such as ``5-14``, or those with commas between; None of None.

    Raises
    ------
    InvalidParameterError
        The text is none of these, or means no seed.
    """
    if text is None:
        return None
    found: set[int] = set()
    for word in (words := text.split(",")):
        first, dash, last = word.strip().partition("-")
        if not all(part.isascii() and part.isdigit() for part in (first, *([last] if dash else []))):
            raise InvalidParameterError(
                f"{param.opts[0]} {text!r}: {word!r} is no number and no range. Give how many (10), a range (5-14), or "
                "seeds with commas (3,7)"
            )
        alone = len(words) == 1 and not dash
        found |= set(range(int(first))) if alone else set(range(int(first), int(last or first) + 1))
    if not found:
        raise InvalidParameterError(f"{param.opts[0]} {text!r} means no seed: give at least one")
    return tuple(sorted(found))


def _underscored(text: str | None) -> str | None:
    """Return a name as the library has it, with ``_`` where the command line takes ``-`` too."""
    return None if text is None else text.replace("-", "_")


_GRID, _PLACE = "The grid", "Where ranks run"
_OUT: Final = option(Path, "--out", "-o", default=..., help="Folder for rows, figures and report.")
_FORCE: Final = option(bool, "--force", default=False, help="Repeat runs whose rows are in the folder already.")
_DEMO: Final = option(bool, "--demo", default=False, help="The small form: two cores, a minute or two.")
_SCHEDULER: Final = option(str | None, help="Use the cluster at this address; by default one is started here.")
# Where ranks may be simulated too.
_SIMULATED: Final[Mapping[str, Any]] = {
    "simulated": option(bool, "--simulated", default=False, panel=_PLACE, help="Ranks on a virtual clock."),
    "network": option(
        str | None, panel=_PLACE, help="Simulated ranks only: 1GbE, 10GbE, 100GbE, InfiniBand, NVLink, WAN."
    ),
}
_ON_SCHEDULER: Final = option(
    str | None, panel=_PLACE, help="Use the cluster at this address; by default workers are started here."
)
_DATA: Final[Mapping[str, Any]] = {
    "dataset": option(
        list[str] | None, "--dataset", "-d", help="Dataset; repeat for several. See `dsgd datasets list`."
    ),
    "files": option(
        list[str] | None,
        "--data",
        help="Your own rows instead: svmlight (plain, .gz, .bz2) or .npz (X, y); repeat for several files of one set, "
        "of which a fifth is tested on.",
    ),
    "rows": option(int | None, panel=_GRID, help="Training rows of each dataset."),
}
# What commands take that is no option of their study.
_MORE: Final[Mapping[str, Mapping[str, Any]]] = {
    "elimination": {
        "problem": option(
            list[str] | None, "--problem", "-p",
            help="Problem; repeat for several. All by default; a wrong name lists them.",
        ),
        "rows": option(int | None, "--rows", panel=_GRID, help="Rows of each problem."),
        "cost": option(float | None, "--cost", "-C", panel=_GRID, help="C; each problem has its own by default."),
    },
    "strategies": {
        "strategy": option(
            list[str] | None, "--strategy", "-s",
            help=f"What to compare; repeat for several: {SYNC_HELP}. All by default.",
        ),
        "compress": option(
            list[str] | None,
            help=f"Run those that take a compressor with this one as well; repeat for several: {COMPRESS_HELP}.",
        ),
    },
}  # fmt: skip

# -- the command of a study ------------------------------------------------------------------------------------------


class Studies(TyperGroup):
    """The commands of ``dsgd study``; a declaration is loaded when its command is called, and not for a list of all."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict(self.commands) | {name: TyperCommand(name, help=text) for name, text in STUDIES.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called, and what is left of its line."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in STUDIES:
            study = import_module(f"dsgd.study.{name}").STUDY
            made = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, add_completion=False)
            rows = "Every run becomes a row in OUT/rows.jsonl. The same command resumes an interrupted study. "
            where = f"{rows * bool(study.grids)}OUT/report.html is self-contained."
            text = "\n\n".join(filter(None, [STUDIES[study.name], study.about, where]))
            made.command(study.name, help=text, epilog=examples(*study.examples))(_function_of(study))
            command = typer.main.get_command(made)
        return name, command, rest


def _function_of(study: Study) -> Callable[..., None]:
    """Return the function of a command, whose parameters are the options of the study."""

    def run(out: Path, demo: bool = False, force: bool = False, as_json: bool = False, **values: Any) -> None:
        from dsgd.report import check_extras
        from dsgd.study.frame.study import run_study, study_page

        check_extras()  # before minutes of work, not after
        asked = _asked(study.demo() if demo else study, values, demo=demo)
        runs = run_study(asked, out, scheduler=values.get("scheduler"), force=force)
        rows = follow(runs, asked.count(), study.columns, out, quiet=as_json)
        tell(study_page(asked, rows), out, len(rows), as_json=as_json)

    parameters: dict[str, Any] = {"out": _OUT, **_MORE.get(study.name, {})}
    for name, declared in study.options.items():
        if declared.help and not (name == "network" and study.simulated):
            parameters |= _DATA if name == "data" else {name: _parameter(declared)}
    if study.simulated:
        parameters |= _SIMULATED
    if study.on_cluster:
        parameters["scheduler"] = _ON_SCHEDULER if study.simulated else _SCHEDULER
    if any(study.demo().values[name] is not value for name, value in study.values.items()):
        parameters["demo"] = _DEMO
    if study.grids:
        parameters["force"] = _FORCE
    parameters["as_json"] = JSON
    return with_options(parameters)(run)


def _parameter(one: Option) -> Any:
    """Return the parameter of a command for an one."""
    default, flags = one.default, one.flags
    many, settings = isinstance(default, (tuple, list)), dict[str, Any](help=one.help, panel=one.panel)
    if one.seeds:
        return option(str | None, **settings, callback=seeds)
    kind: Any = list[str] if many else one.of or (str if default is None else type(default))
    if many and (one.of is int or (default and isinstance(default[0], int))):
        kind, settings["callback"] = str, _numbers_or_none if one.may_be_empty else numbers
    elif many and default and isinstance(default[0], float):
        kind, settings["callback"] = str, _reals
    elif one.words or (many and not flags):
        kind, settings["callback"] = str, _words
    elif kind is str and one.choices:
        settings["callback"] = _underscored
    if kind is int and one.least is not None:
        settings["min"] = int(one.least)
    return option(kind | None, *flags, **settings)


def _asked(preset: Study, values: dict[str, Any], *, demo: bool) -> Study:
    """Return the study that a command line asks for: the preset, with the values that are given."""
    from dsgd.study.frame.data import DataSource

    given = {name: value for name, value in values.items() if value is not None}
    simulated = bool(given.get("simulated")) or demo
    if preset.simulated:
        _check_place(given, simulated=simulated)
        if simulated:
            given.setdefault("network", preset.network or preset.simulated)
    if "data" in preset.options and {"dataset", "rows", "files"} & set(given):
        own = {source.name: source for source in preset.data}
        other = preset.data[0] if demo else DataSource("any")
        if "files" in given:
            files = given["files"]
            if "dataset" in given:
                raise InvalidParameterError(
                    f"--data {files[0]} are rows of your own, and --dataset {given['dataset'][0]} names a set: leave "
                    "one of them out"
                )
            check_inputs(files)
            other, own = replace(other, read=partial(read_rows, files)), {}
            given["dataset"] = [PurePath(files[0]).name]
        data = [own.get(name, replace(other, name=name)) for name in given.get("dataset") or own]
        if (rows := given.get("rows")) is not None:
            data = [replace(source, rows=rows, test_rows=None) for source in data]
        given["data"] = tuple(data)
    known = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if name in preset.options}
    study = preset.replace(**known)
    if study.name == "strategies" and ("strategy" in given or "compress" in given):
        from dsgd.study.strategies import chosen

        # Each strategy bare and with the compressors that it takes; of all those that can run there.
        return study.replace(
            strategies=variants(given.get("strategy") or list(chosen(study)), given.get("compress", ()))
        )
    if study.name == "elimination":
        from dsgd.study.svm_problems import find_problem

        problems = {found.name: found for found in study.problems}
        changes = {name: given[key] for name, key in (("rows", "rows"), ("C", "cost")) if key in given}
        names = given.get("problem") or problems
        return study.replace(
            problems=tuple(replace(problems.get(name) or find_problem(name), **changes) for name in names)
        )
    return study


def _check_place(given: Mapping[str, Any], *, simulated: bool) -> None:
    """Refuse options of simulated ranks where they are real, and of real ones where they are simulated."""
    for name in ("network", "stragglers"):
        if name in given and not simulated:
            raise InvalidParameterError(
                f"--{name} {given[name]!r} applies to simulated ranks: add --simulated, or leave it out"
            )
    if "scheduler" in given and simulated:
        raise InvalidParameterError(
            f"--scheduler {given['scheduler']!r} applies to real workers, but ranks are simulated: leave one of the "
            "two out"
        )


app = typer.Typer(no_args_is_help=True, cls=Studies)


@app.callback()
def _study() -> None:
    """Measure and answer a question; some reproduce a paper."""


# -- what commands of studies print ----------------------------------------------------------------------------------


def tell(page: Page, out: Path, n_runs: int, *, as_json: bool) -> None:
    """Write a report with its pictures, and print what it says: tables and claims for people, or one JSON object."""
    path = page.save(out)
    if as_json:
        found = {
            "report": str(path),
            "rows": str(out / "rows.jsonl"),
            "n_runs": n_runs,
            "answer": page.answer,
            "doubts": list(page.doubts),
            "claims": [asdict(claim) | {"verdict": claim.verdict} for claim in page.claims],
        }
        typer.echo(json.dumps(found))
        return
    from dsgd.report import claims_table

    show(page, [*page.tables, *([claims_table(page.claims)] if page.claims else [])], path)


def show(page: Page, tables: Sequence[Table], path: Path) -> None:
    """Print what a report says, and where it is, for people."""
    from dsgd.report import show_tables

    console = show_tables(tables)
    console.print(page.answer, markup=False)
    for doubt in page.doubts:
        console.print(f"Note: {doubt}", markup=False)
    typer.echo(f"\nreport: {path}")


def follow(
    runs: Iterator[StudyRun], total: int, columns: Sequence[str], out: Path, *, quiet: bool
) -> list[dict[str, Any]]:
    """Go through the runs of a study with a progress bar that shows some columns; return their rows."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    parts = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*parts, console=console, transient=True, disable=quiet or not console.is_terminal)
    rows: list[dict[str, Any]] = []
    n_resumed, seen = 0, ""
    try:
        with bar:
            task = bar.add_task("loading data", total=total)
            for run in runs:
                rows.append(run.row)
                n_resumed += run.resumed
                text = _described(run.row, columns)
                bar.update(task, advance=1, description=text)
                if text != seen and not (quiet or console.is_terminal or run.resumed):
                    typer.echo(f"{text} ...", err=True)
                seen = text
    except KeyboardInterrupt:
        typer.echo(f"{len(rows)} of {total} runs are saved; run the same command to resume.", err=True)
        raise
    from dsgd.study.frame.data import missing_runs

    missing = missing_runs(len(rows), total)
    if missing and not quiet:
        typer.echo(missing, err=True)
    if n_resumed and not quiet:
        typer.echo(f"{n_resumed} of {len(rows)} runs were in {out} already; --force runs them again.", err=True)
    return rows


def _described(row: dict[str, Any], columns: Sequence[str]) -> str:
    ranks = row.get("ranks")
    text = ", ".join(str(row[name]) for name in columns if name in row)
    return text if ranks is None else f"{text} on {ranks} rank{'s' * (ranks > 1)}"


CLAIMS_EXAMPLES: Final = examples(
    "dsgd claims --list",
    "dsgd claims --only gtopk --out claims/",
    "dsgd claims --only diloco/bytes --only scaffold --json",
    "dsgd claims --quick --out quick/",
    "dsgd claims --out claims/",
)
_Only: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--only", help="A source, as gtopk, a claim, as gtopk/dense, or a measure; repeat for several."),
]
_Out: TypeAlias = Annotated[Path, typer.Option("--out", "-o", help="Folder for rows and the page.")]


def claims(
    only: _Only = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what can be measured, and measure nothing.")] = False,
    out: _Out = Path("claims"),
    force: Annotated[bool, typer.Option("--force", help="Measure again what is in the folder already.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer seeds and trials, without the longest measures: some minutes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Do published figures hold here? Measure those of all methods, on the simulator and on this machine.

    Every measure becomes a row in OUT/rows.jsonl; the same command resumes where it was interrupted. OUT/report.html is
    self-contained, OUT/claims.json holds every claim with its interval. All of it takes up to 25 minutes on two cores.
    """
    from dsgd.report import check_extras, show_tables
    from dsgd.study import claims as api

    statements = api.chosen(only or ())
    if listed:
        table = api.list_table(statements)
        if as_json:
            typer.echo(json.dumps([dict(zip(table.columns, row, strict=True)) for row in table.rows]))
        else:
            show_tables([table])
        return
    check_extras()  # before minutes of work, not after
    with telling(quiet=as_json) as say:
        rows = list(api.run_claims(statements, out, force=force, quick=quick, on_progress=_heads(say)))
    page = api.claims_page(rows, statements)
    path = page.save(out)
    found = {"answer": page.answer, "report": str(path), "claims": list(page.rows)}
    (out / "claims.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found))
        return
    tables = (api.overview_table(page.claims, statements, arithmetic=apart) for apart in (True, False))
    show(page, [table for table in tables if table.rows], path)


def _heads(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return what tells of each measure once where lines stay, and all of its progress on a terminal."""
    seen: set[str] = set()

    def tell(text: str) -> None:
        head = text.partition(", ")[0]
        if sys.stderr.isatty() or head not in seen:
            say(text)
        seen.add(head)

    return tell
