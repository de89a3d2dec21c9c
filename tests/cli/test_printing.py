"""What people have named is printed as it is: no markup of rich, no control of the terminal."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.console

from dsgd import SGDClassifier
from dsgd.cli import fit, jobs, options
from dsgd.jobs import JobInfo
from dsgd.printing import printable
from dsgd.report.tables import Table

NAMES = (
    "[/b]",
    "[/x]",
    "[red]",
    "\\[/b]",
    "a\\",
    "\x1b[2J\x1b]0;owned\x07",
    "one\ntwo\tthree",
    "\u202egnp.exe",
    "\ud800",
    "å 数",
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[io.StringIO, _Terminal], ids=["file", "terminal"])
def out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what takes the place of the standard output."""
    monkeypatch.setenv("COLUMNS", "400")
    return request.param()


def check(text: str, name: str) -> None:
    """Fail unless a name stands in what was printed, and nothing there moves or reverses the rest."""
    assert printable(name) in text
    assert all(bad not in text for bad in ("\x1b]", "\x1b[2J", "\x07", "\u202e", "two\tthree"))


@pytest.mark.parametrize("name", NAMES)
def test_jobs_of_anybody_are_listed(name: str, out: Any) -> None:
    """An owner, a title or a strategy of one user does not break the list of all."""
    known = {"id": "1" * 32, "title": name, "owner": name, "strategy": name, "state": "running"}
    job = JobInfo(**{field: known.get(field) for field in JobInfo.__dataclass_fields__})  # type: ignore[arg-type]
    with redirect_stdout(out):
        options.print_table(jobs._COLUMNS, [jobs._cells(job)], numbers=range(4, 7))
    check(out.getvalue(), name)
    assert len(out.getvalue().strip().split("\n")) == 2


@pytest.mark.parametrize("name", NAMES[:-2])
def test_classes_of_any_name_are_shown(name: str, out: Any) -> None:
    """The table of a fit has the labels as they are."""
    X = np.random.default_rng(0).standard_normal((20, 2))
    model = SGDClassifier(max_iter=2, tol=None).fit(X, np.where(X[:, 0] > 0, name, "other"))
    with redirect_stdout(out):
        fit._show(model, fit._report(model, Path("model.dsgd")))
    check(out.getvalue(), repr(name)[1:-1])


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_reports_have_names_as_they_are(name: str, out: Any) -> None:
    """Title, headings, cells and note are texts."""
    rich.console.Console(file=out, width=400).print(Table(name, [name], [[name]], name).renderable())
    shown = out.getvalue()
    check(shown, name.split("\n")[0])
    assert shown.count(printable(name.split("\n")[0])) >= 4
