"""``dsgd demo``: what synchronisation costs and what processes gain, in two minutes."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsgd.cli.options import examples
from dsgd.cli.study import follow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsgd.report import Page
    from dsgd.study import DataSource, Study


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
    from dsgd.report import show_tables
    from dsgd.study import msf, speedup

    api.check_extras()  # before minutes of work, not after
    console = Console(width=_WIDTH, highlight=False)
    console.print(
        "Linear SVMs are trained on one and on two worker processes, which synchronise after every sample, or after 4, "
        "16, ... 4096. Then fits to the same accuracy are timed on threads, on processes and in scikit-learn. On two "
        "idle cores that takes about a minute and a half.\n"
    )
    sync, several = msf.STUDY.demo(), speedup.STUDY.demo()
    sync = sync.replace(data=[replace(one, rows=n) for one, n in zip(sync.data, _ROWS, strict=True)])
    several = several.replace(data=several.data[:1], epochs=several.epochs[:1])
    console.print("1 of 3: compiling, which takes a while the first time on a machine")
    _compile(sync, several)
    quiet = not sys.stderr.isatty()
    console.print("2 of 3: how often must processes synchronise?")
    rows = follow(api.run_study(sync, out, force=force), sync.count(), ("dataset",), out, quiet=quiet)
    console.print("3 of 3: when are two processes faster than one?")
    beside = out / "speedup"
    runs = api.run_study(several, beside, force=force)
    fits = follow(runs, several.count(), ("place", "dataset"), beside, quiet=quiet)

    pages = {out: api.study_page(sync, rows), beside: api.study_page(several, fits)}
    console.print()
    show_tables([msf.results_table(rows, rows[0]["dataset"], _COLUMNS)])
    console.print()
    for n, finding in enumerate((*_sentences(pages[out])[:2], _sentences(pages[beside])[0]), start=1):
        console.print(f"{n}. {finding}", markup=False)
    for doubt in pages[out].doubts:
        console.print(f"Note: {doubt}", markup=False)
    console.print()
    for folder, page in pages.items():
        typer.echo(f"report: {page.save(folder)}")


def _compile(sync: Study, several: Study) -> None:
    """Run both studies on few rows, so that this process and the workers have their kernels on disk."""
    from rich.console import Console
    from rich.progress import track

    from dsgd import study as api
    from dsgd.kernels.jit import SAID

    sync = sync.replace(data=_few_rows(sync.data), every=(1, 64), seeds=(0,), epochs=1)
    several = several.replace(data=_few_rows(several.data), seeds=(0,))
    bar = Console(stderr=True)
    os.environ[SAID] = "1"
    try:
        with tempfile.TemporaryDirectory() as folder:
            runs = chain(api.run_study(sync, folder), api.run_study(several, Path(folder) / "speedup"))
            total = sync.count() + several.count()
            for _ in track(runs, "Compiling", total, console=bar, transient=True, disable=not bar.is_terminal):
                pass
    finally:
        del os.environ[SAID]


def _few_rows(data: Sequence[DataSource]) -> list[DataSource]:
    return [replace(one, rows=500, test_rows=100) for one in data]


def _sentences(page: Page) -> list[str]:
    return re.split(r"(?<=\.) (?=[A-Z0-9])", page.answer)
