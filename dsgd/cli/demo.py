"""``dsgd demo``: what synchronisation costs and what processes gain, in two minutes."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsgd.cli.study import follow
from dsgd.cli.training_options import examples

if TYPE_CHECKING:
    from dsgd.report import Page

__all__ = ["EXAMPLES", "demo"]

EXAMPLES: Final = examples("dsgd demo", "dsgd demo --out results/demo/")

_WIDTH: Final = 100
# Of the data sets of the first study: as many again would take twice as long.
_ROWS: Final = (6_000, 5_000, 4_000)
_COLUMNS: Final = ("ranks", "every", "time s", "comm. share", "comm. saved", "x sequential", "accuracy")


def demo(
    out: Annotated[Path, typer.Option(help="The folder of the reports.")] = Path("demo"),
    force: Annotated[bool, typer.Option("--force", help="Run what is in the folder already, too.")] = False,
) -> None:
    """Run two small studies on worker processes, and say what they found.

    They are dsgd study msf --demo and dsgd study speedup --demo with half of the rows and one of the data sets.
    """
    from rich.console import Console

    from dsgd import study as api
    from dsgd.cli.warm import compile_ahead
    from dsgd.study import speedup

    api.check_extras()  # before minutes of work, not after
    console = Console(width=_WIDTH, highlight=False)
    console.print(
        "Linear SVMs are trained on one and on two worker processes, which synchronise after every sample, or after 4, "
        "16, ... 4096. Then fits to the same accuracy are timed on threads, on processes and in scikit-learn. On two "
        "idle cores that takes about a minute and a half.\n"
    )
    console.print("1 of 3: compiling, the first time on a machine")
    compile_ahead(["sgd"])
    quiet = not sys.stderr.isatty()
    sync, several = api.demo_study(), speedup.demo_speedup_study()
    sync = replace(sync, data=[replace(one, rows=n) for one, n in zip(sync.data, _ROWS, strict=True)])
    several = replace(several, data=several.data[:1], epochs=several.epochs[:1])
    console.print("2 of 3: how often must processes synchronise?")
    rows = follow(api.run_study(sync, out, force=force), sync.count(), ("dataset",), out, quiet=quiet)
    console.print("3 of 3: when are two processes faster than one?")
    beside = out / "speedup"
    runs = speedup.run_speedup_study(several, beside, force=force)
    fits = follow(runs, several.count(), ("place", "dataset"), beside, quiet=quiet)

    pages = {out: api.study_page(sync, rows), beside: speedup.speedup_page(several, fits)}
    console.print()
    summary = api.summarise(rows)
    console.print(api.results_table(summary, summary.datasets()[0], _COLUMNS).renderable())
    console.print()
    for n, finding in enumerate((*_sentences(pages[out])[:2], _sentences(pages[beside])[0]), start=1):
        console.print(f"{n}. {finding}", markup=False)
    for doubt in pages[out].doubts:
        console.print(f"Note: {doubt}", markup=False)
    console.print()
    for folder, page in pages.items():
        typer.echo(f"report: {page.save(folder)}")


def _sentences(page: Page) -> list[str]:
    return re.split(r"(?<=\.) (?=[A-Z0-9])", page.answer)
