"""The command of a study, made of its declaration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

from dsgd.cli import study_options as options
from dsgd.cli.parts import COMPRESS_HELP, SYNC_HELP, variants
from dsgd.cli.study import check_place, follow, sized, tell
from dsgd.cli.training_options import AsJson, examples

if TYPE_CHECKING:
    from dsgd.study.frame.study import Option, Study

#: The studies that are declared, with what the list of commands says of each.
STUDIES: Final[Mapping[str, str]] = {
    "collectives": "How long does a sum over all ranks take? Time every algorithm, and compare with the cost model.",
    "dnn": "Compare methods of training neural networks on handwritten digits: accuracy, seconds and bytes.",
    "elimination": "What does sample elimination save? Run every preset and evaluate the claims about it.",
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

_Strategy: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--strategy", "-s", help=f"What to compare; repeat for several: {SYNC_HELP}. All by default."),
]
_Compress: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help=f"Run those that take a compressor with this one as well; repeat for several: {COMPRESS_HELP}."),
]
# What commands take that is no option of their study.
_Problem: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--problem", "-p", help="Problem; repeat for several. All by default; a wrong name lists them."),
]
_ProblemRows: TypeAlias = Annotated[int | None, options.grid_option("--rows", help="Rows of each problem.")]
_Cost: TypeAlias = Annotated[
    float | None, options.grid_option("--cost", "-C", help="C; each problem has its own by default.")
]
_MORE: Final[Mapping[str, Mapping[str, Any]]] = {
    "elimination": {"problem": _Problem, "rows": _ProblemRows, "cost": _Cost},
    "strategies": {"strategy": _Strategy, "compress": _Compress},
}


class Studies(TyperGroup):
    """The commands of ``dsgd study``; a declaration is loaded when its command is called, and not for a list of all."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = dict(self.commands) | {name: TyperCommand(name, help=text) for name, text in STUDIES.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called, and what is left of its line."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in STUDIES:
            command = _command_of(import_module(f"dsgd.study.{name}").STUDY)
        return name, command, rest


def _command_of(study: Study) -> Any:
    """Return the command of a study."""
    app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, add_completion=False)
    app.command(study.name, help=_help_of(study), epilog=examples(*study.examples))(_function_of(study))
    return typer.main.get_command(app)


def _help_of(study: Study) -> str:
    rows = "Every run becomes a row in OUT/rows.jsonl. The same command resumes an interrupted study. "
    where = f"{rows * bool(study.grids)}OUT/report.html is self-contained."
    return "\n\n".join([STUDIES[study.name], *([study.about] if study.about else []), where])


def _function_of(study: Study) -> Callable[..., None]:
    """Return the function of a command, whose parameters are the options of the study."""

    def run(out: Path, demo: bool = False, force: bool = False, as_json: bool = False, **values: Any) -> None:
        from dsgd.report import check_extras
        from dsgd.study.frame.study import report_of, run_study

        check_extras()  # before minutes of work, not after
        preset = study.demo() if demo else study
        scheduler = values.get("scheduler")
        asked = _asked(preset, values, demo=demo)
        runs = run_study(asked, out, scheduler=scheduler, force=force)
        rows = follow(runs, asked.count(), study.columns, out, quiet=as_json)
        report = report_of(asked, rows)
        tell(report.page, out, report.tables, {"n_runs": len(rows), **report.facts}, as_json=as_json)

    parameters: dict[str, Any] = {"out": options.Out, **_MORE.get(study.name, {})}
    for name, option in study.options.items():
        if option.help and not (name == "network" and study.simulated):
            parameters |= _parameters(name, option)
    if study.simulated:
        parameters |= {"simulated": options.Simulated, "network": options.OnNetwork}
    if study.on_cluster:
        parameters["scheduler"] = options.OnScheduler if study.simulated else options.Scheduler
    if any(study.demo().values[name] is not value for name, value in study.values.items()):
        parameters["demo"] = Annotated[bool, typer.Option("--demo", help="The small form: two cores, a minute or two.")]
    if study.grids:
        parameters["force"] = options.Force
    parameters["as_json"] = AsJson
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=kind,
                default=inspect.Parameter.empty if name == "out" else False if _is_flag(name) else None,
            )
            for name, kind in parameters.items()
        ]
    )  # fmt: skip
    run.__annotations__ = parameters
    return run


def _is_flag(name: str) -> bool:
    return name in ("simulated", "demo", "force", "as_json")


def _parameters(name: str, option: Option) -> dict[str, Any]:
    """Return the parameters of a command for an option, by name."""
    from dsgd.study.frame.data import DataSource

    default = option.default
    many = isinstance(default, (tuple, list))
    settings: dict[str, Any] = {"help": option.help, "rich_help_panel": option.panel}
    if many and default and isinstance(default[0], DataSource):
        return {"dataset": options.Dataset, "rows": options.Rows}
    if option.seeds:
        return {name: options.Seeds}
    kind: Any = list[str] if many else bool if isinstance(default, bool) else type(default)
    if option.numbers:
        kind, settings["callback"] = str, options.numbers_or_none if option.may_be_empty else options.numbers
    elif option.words or (many and not option.flags):
        kind, settings["callback"] = str, options.words
    elif kind is type(None):
        kind = int if option.number else float if option.real else str
    if kind is int and option.least is not None:
        settings["min"] = int(option.least)
    if kind is str and option.choices and not many:
        settings["callback"] = options.underscored
    return {name: Annotated[kind | None, typer.Option(*option.flags, **settings)]}


def _asked(preset: Study, values: dict[str, Any], *, demo: bool) -> Study:
    """Return the study that a command line asks for: the preset, with the values that are given."""
    from dsgd.study.frame.data import DataSource

    given = {name: value for name, value in values.items() if value is not None}
    network, simulated = given.get("network"), bool(given.get("simulated")) or demo
    if preset.simulated:
        late = given.get("stragglers")
        check_place(simulated=simulated, scheduler=given.get("scheduler"), network=network, stragglers=late)
        if simulated:
            given.setdefault("network", preset.network or preset.simulated)
    if "data" in preset.options and ("dataset" in given or "rows" in given):
        own = {source.name: source for source in preset.data}
        other = preset.data[0] if demo else DataSource("any")
        data = [own.get(name, replace(other, name=name)) for name in given.get("dataset") or own]
        given["data"] = sized(data, given.get("rows"))
    known = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if name in preset.options}
    study = preset.replace(**known)
    if study.name == "strategies":
        return study.replace(strategies=_strategies(study, values))
    return study.replace(problems=_problems(study, values)) if study.name == "elimination" else study


def _problems(study: Study, values: dict[str, Any]) -> tuple[Any, ...]:
    """Return the problems with so many rows and this cost."""
    from dsgd.study.svm_problems import find_problem

    own = {found.name: found for found in study.problems}
    changes = {name: values[key] for name, key in (("rows", "rows"), ("C", "cost")) if values.get(key) is not None}
    return tuple(replace(own.get(name) or find_problem(name), **changes) for name in values.get("problem") or own)


def _strategies(study: Study, values: dict[str, Any]) -> dict[str, Any] | None:
    """Return the strategies by name, each bare and with the compressors that it takes; None for all of them."""
    from dsgd.study.strategies import chosen

    strategy, compress = values.get("strategy"), values.get("compress") or ()
    # Of all strategies only those that can run there are meant.
    return variants(list(strategy or chosen(study)), compress) if strategy or compress else None


app = typer.Typer(no_args_is_help=True, cls=Studies)


@app.callback()
def _study() -> None:
    """Measure and answer a question; some reproduce a paper."""
