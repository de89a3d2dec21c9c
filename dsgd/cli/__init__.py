"""The command line: its commands, by what they work on.

Modules of commands import what they run with inside their functions, so that ``dsgd --help`` answers at once; a test
holds that.
"""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from dsgd import __version__
from dsgd.cli import datasets, fit, jobs, machine, simulate, study, tune

__all__ = ["app"]

app = typer.Typer(
    name="dsgd",
    help="Train linear models, linear SVMs among them, by parallel SGD on a Dask cluster, with a tunable "
    "synchronisation period.",
    epilog="Every command has --help with an example. Add --debug to any of them to see the traceback of an error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dsgd {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


app.command("fit", epilog=fit.EXAMPLES)(fit.fit)
app.command("predict", epilog=fit.PREDICT_EXAMPLES)(fit.predict)
app.command("score", epilog=fit.SCORE_EXAMPLES)(fit.score)
app.add_typer(study.app, name="study")
app.add_typer(datasets.app, name="datasets", help="List, fetch and make data sets.")
app.add_typer(jobs.app, name="jobs", help="List, show and stop the jobs of a cluster.")
app.command("tune", epilog=tune.EXAMPLES)(tune.tune)
app.command("calibrate", epilog=machine.CALIBRATE_EXAMPLES)(machine.calibrate)
app.command("simulate", epilog=simulate.EXAMPLES)(simulate.simulate)
app.command("what-if", epilog=simulate.WHAT_IF_EXAMPLES)(simulate.what_if)
app.command("claims", epilog=study.CLAIMS_EXAMPLES)(study.claims)
app.command("info", epilog=machine.INFO_EXAMPLES)(machine.info)
app.command("warm", epilog=machine.WARM_EXAMPLES)(machine.warm)

# A terminal breaks the lines of a paragraph where it ends; those of the source would be broken twice.
for _group in (app, study.app, datasets.app, jobs.app):
    for _command in _group.registered_commands:
        _text = inspect.getdoc(_command.callback) or ""
        _command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in _text.split("\n\n"))
