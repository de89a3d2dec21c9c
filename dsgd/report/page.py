"""The page of a report, one self-contained HTML file; and where its numbers come from.

Where a row was measured: machine, versions, commit and command.

What to cite: a publication as text and as BibTeX, and the entry of this library.

Only what is known of a publication is written: a list of authors that is not whole ends in "others", and a year or a
place that is not known is left out.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psutil

from dsgd.errors import DsgdError
from dsgd.report.figures import Figure
from dsgd.report.tables import Claim, Table, sort_value

# Other work that takes more than this share of the cores is felt: one process that computes, on two cores.
_BUSY: Final = 0.4

# The system counts in hundredths of a second.
_LOOK_S: Final = 0.25
_PACKAGES: Final = ("dsgd", "numpy", "scipy", "numba", "scikit-learn", "dask", "distributed")


def machine() -> dict[str, str | int | float]:
    """Return the CPU model, the cores this process may use, the memory in GiB and the operating system."""
    # Here, as the process that draws figures needs nothing of what this loads, which takes as long as drawing two.
    from dsgd.comm.memory.cores import count_cores

    return {
        "cpu": _cpu_model(),
        "cores": count_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def load() -> float:
    """Return how many cores other processes use now, as an average over a quarter of a second that this call takes."""
    began, before = time.monotonic(), _others_s()
    time.sleep(_LOOK_S)
    used = (_others_s() - before) / (time.monotonic() - began)
    return round(max(used, 0.0), 2)


def _others_s() -> float:
    """Return the processor seconds that all cores have spent so far on anything but this process."""
    times = psutil.cpu_times()
    # Time of guests is part of that of users, and what waits for a disk leaves the core to others.
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - guests - idle - time.process_time())


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of packages, by default those that decide the figures."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit() -> str | None:
    """Return the commit this package runs from, with ``+`` when files differ from it; None outside a checkout."""
    folder = Path(__file__).resolve().parent
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def command_line(argv: Sequence[str] | None = None) -> str:
    """Return the command that was run, with absolute paths cut to their last part."""
    words = list(sys.argv if argv is None else argv)
    if words and Path(words[0]).name == "__main__.py":
        words[0] = "dsgd"
    return " ".join(Path(word).name if word.startswith(("/", "~")) else word for word in words)


def origin(command: str | None = None) -> dict[str, Any]:
    """Return what every row of a study says of where it was made.

    Parameters
    ----------
    command : str, optional
        The command; that of this process by default.
    """
    return {
        "machine": machine(),
        "load_at_start": load(),
        "versions": versions(),
        "commit": commit(),
        "command": command or command_line(),
    }


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def ran(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return where and when rows were made, as pairs of name and text.

    Parameters
    ----------
    rows : sequence of dict
        Rows with ``machine``, ``versions``, ``commit`` and ``when``.
    """
    last = rows[-1]
    machine = last["machine"]
    return [
        ("Machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in last["versions"].items())),
        ("Commit", last["commit"] or "not run from a checkout"),
        ("Runs", f"{len(rows)}, from {min(row['when'] for row in rows)} to {max(row['when'] for row in rows)} (UTC)"),
    ]


def origin_doubts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what makes the seconds of rows from several places hard to compare.

    Parameters
    ----------
    rows : sequence of dict
        Rows of one study.
    """
    found = []
    for name, what in (("machine", "machines"), ("versions", "versions"), ("commit", "commits")):
        n_kinds = len({json.dumps(row[name], sort_keys=True) for row in rows})
        if n_kinds > 1:
            found.append(f"The rows come from {n_kinds} different {what}: their seconds do not compare.")
    return found


def is_busy(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a machine was busy with other work when runs on it began: rows as for `load_doubts`."""
    return any(row["load_at_start"] > _BUSY * row["machine"]["cores"] for row in rows)


def load_doubts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what makes times too long: a busy machine, or more ranks than cores.

    Parameters
    ----------
    rows : sequence of dict
        Rows of runs on this machine, with ``machine``, ``load_at_start`` and ``ranks`` where there were any.
    """
    cores = rows[-1]["machine"]["cores"]
    ranks = max(row.get("ranks") or 1 for row in rows)
    found = []
    if ranks > cores:
        found.append(f"{ranks} ranks ran on {cores} cores: they took turns, and waiting includes waiting for a core.")
    if is_busy(rows):
        load = max(row["load_at_start"] for row in rows)
        found.append(
            f"The machine was busy when the study began: other work used {load:.1f} of {cores} cores. Times are "
            "too long and vary, waiting for others most of all. Counts do not depend on it."
        )
    return found


#: Title and authors of this library, those of CITATION.cff.
LIBRARY_TITLE: Final = "dsgd: parallel SGD and SVMs on Dask with a tunable model synchronisation frequency"
LIBRARY_AUTHORS: Final = "The dsgd developers"
_OTHERS: Final = "others"


@dataclass(frozen=True)
class Publication:
    """A publication.

    Parameters
    ----------
    authors : sequence of str
        Surnames in their order; the last is ``"others"`` where there are more.
    title : str
        The title.
    year : int or None, default None
        When it was published.
    arxiv : str, default ""
        Its number at arXiv.
    venue : str, default ""
        The conference.
    """

    authors: Sequence[str]
    title: str
    year: int | None = None
    arxiv: str = ""
    venue: str = ""

    def __str__(self) -> str:
        """Return it in a line: authors, title, year and number."""
        *first, last = self.authors
        joint = " et al." if last == _OTHERS else f" and {last}"
        names = ", ".join(first) + joint if first else last
        when = " ".join(filter(None, (self.venue, str(self.year or ""))))
        number = f" (arXiv {self.arxiv})" if self.arxiv else ""
        return ", ".join(filter(None, (names, self.title, when))) + number

    def bibtex(self, key: str) -> str:
        """Return its BibTeX entry.

        Parameters
        ----------
        key : str
            The key of the entry.
        """
        fields = {
            "author": " and ".join(self.authors),
            "title": f"{{{self.title}}}",  # in braces of its own: styles leave its capitals alone
            "booktitle": self.venue,
            "year": str(self.year or ""),
            "eprint": self.arxiv,
            "archiveprefix": "arXiv" if self.arxiv else "",
        }
        return _entry("inproceedings" if self.venue else "misc", key, fields)


def library_bibtex() -> str:
    """Return the BibTeX entry of this library, in the installed version."""
    fields = {
        "author": f"{{{LIBRARY_AUTHORS}}}",  # one name, not given names and a surname
        "title": f"{{{LIBRARY_TITLE}}}",
        "note": f"version {version('dsgd')}",
    }
    return _entry("misc", "dsgd", fields)


def _entry(kind: str, key: str, fields: dict[str, str]) -> str:
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])


_EXTRAS: Final = ("jinja2", "matplotlib")
_TEMPLATES: Final = Path(__file__).parent / "templates"


def check_extras(what: str = "the report", *names: str) -> None:
    """Raise if what figures and reports need is not installed.

    Parameters
    ----------
    what : str, default "the report"
        What needs it, for the error.
    *names : str
        The packages; all that reports need by default.

    Raises
    ------
    DsgdError
        Names what is missing and how to get it.
    """
    missing = [name for name in names or _EXTRAS if find_spec(name) is None]
    if missing:
        raise DsgdError(f"{what} needs {' and '.join(missing)}: run `pip install 'dsgd[study]'`")


@dataclass(frozen=True)
class Page:
    """What a report says.

    Parameters
    ----------
    title : str
        The question that was asked.
    answer : str
        The answer; its first sentence is set large.
    ran : sequence of (str, str)
        What was run, with what and where: names and texts. See `dsgd.report.ran`.
    highlights : sequence of (str, str), optional
        Two to four figures that stand out: the figure, and what it is.
    doubts : sequence of str, optional
        Reasons why the figures are hard to compare, a sentence each.
    overview : Table, optional
        What the page opens with.
    data : sequence of Table, optional
        The data sets.
    claims : sequence of Claim, optional
        Published claims, and whether they hold here.
    source : str, optional
        Whose claims they are.
    folded : bool, default False
        Whether the notes of claims are folded: of many claims, so that they can be read as a table.
    figures : sequence of Figure, optional
        The figures.
    tables : sequence of Table, optional
        Tables that are open.
    details : sequence of Table, optional
        Tables that are folded.
    rows : sequence of dict, optional
        All rows; the page offers them for download.
    citations : sequence of str, optional
        BibTeX entries of the methods; that of this library comes after them.
    """

    title: str
    answer: str
    ran: Sequence[tuple[str, str]] = ()
    highlights: Sequence[tuple[str, str]] = ()
    doubts: Sequence[str] = ()
    overview: Table | None = None
    data: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    source: str = ""
    folded: bool = False
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    details: Sequence[Table] = ()
    rows: Sequence[dict[str, Any]] = ()
    citations: Sequence[str] = ()

    def render(self) -> str:
        """Return the page as HTML.

        Raises
        ------
        DsgdError
            jinja2 or matplotlib is not installed.
        """
        return self._render(None)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into a file, whose folder is made if it is not there; return its path.

        Parameters
        ----------
        path : str or path-like
            The file, as ``study/report.html``.

        Raises
        ------
        DsgdError
            jinja2 or matplotlib is not installed.
        """
        path, text = Path(path), self.render()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def save(self, out: str | os.PathLike[str]) -> Path:
        """Write ``report.html`` and a picture of every figure, ``figures/*.png``; return the path of the report.

        Parameters
        ----------
        out : str or path-like
            The folder.

        Raises
        ------
        DsgdError
            jinja2 or matplotlib is not installed.
        """
        folder = Path(out) / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        path = Path(out) / "report.html"
        path.write_text(self._render(folder), encoding="utf-8")
        return path

    def _render(self, folder: Path | None) -> str:
        """Return the page; write a picture of every figure into the folder, if there is one."""
        check_extras()
        import jinja2

        from dsgd.report.png import canvas, picture, vectors

        drawings = []
        for figure in self.figures:
            drawn = canvas(figure)
            drawings.append(vectors(drawn, figure))
            if folder is not None:
                drawn.set_layout_engine("none")  # it has been laid out
                (folder / f"{figure.name}.png").write_bytes(picture(drawn))
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_TEMPLATES),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        environment.filters |= {"script": _script, "sort_value": sort_value}
        citations = "\n\n".join([*self.citations, library_bibtex()])
        return environment.get_template("page.html").render(page=self, citations=citations, drawings=drawings)


def _script(value: Any) -> Any:
    """Return a value as JSON that may stand in a script element."""
    import markupsafe  # comes with jinja2

    return markupsafe.Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))
