"""The report of a study: one HTML file that needs nothing but itself, and its figures as files beside it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dsgd.errors import DsgdError
from dsgd.study import published, tables
from dsgd.study.claims import Claim, check_claims
from dsgd.study.grid import Study
from dsgd.study.rows import Row
from dsgd.study.summary import Summary, summarise

__all__ = ["check_extras", "doubts", "render", "verdict", "write_report"]

_EXTRAS: Final = ("matplotlib", "jinja2")
_TEMPLATES: Final = Path(__file__).parent / "templates"


def check_extras() -> None:
    """Raise if what the figures and the report need is not installed.

    Raises
    ------
    DsgdError
        Names what is missing and how to get it.
    """
    missing = [name for name in _EXTRAS if find_spec(name) is None]
    if missing:
        raise DsgdError(f"the study's report needs {' and '.join(missing)}: run `pip install 'dsgd[study]'`")


def write_report(study: Study, rows: Sequence[Row], out: str | os.PathLike[str]) -> Path:
    """Write ``report.html``, ``figures/*.png`` and ``msf.png`` from the rows of a study.

    Parameters
    ----------
    study : Study
        What was asked for.
    rows : sequence of dict
        Its finished runs; a study that was stopped early gives a report of what is there.
    out : str or path-like
        The folder.

    Returns
    -------
    pathlib.Path
        The report.

    Raises
    ------
    DsgdError
        There are no rows, or matplotlib or jinja2 is not installed.
    """
    check_extras()
    if not rows:
        raise DsgdError("the study has no finished run yet, so there is nothing to report: run it first")
    from dsgd.study import plots

    out = Path(out)
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    summary = summarise(rows)
    figures: list[dict[str, str]] = []
    for spec in plots.FIGURES if any(summary.parallel(name) for name in summary.datasets()) else ():
        light, dark = plots.draw(spec, summary), plots.draw(spec, summary, dark=True)
        (folder / f"{spec.name}.png").write_bytes(light)
        figures.append(
            {
                "title": spec.title,
                "caption": spec.caption,
                "name": spec.name,
                "light": _data(light),
                "dark": _data(dark),
            }
        )
    if figures:
        first = next((name for name in summary.datasets() if published.family(name) == "ijcnn1"), summary.datasets()[0])
        (out / "msf.png").write_bytes(plots.hero(summary, first))
    path = out / "report.html"
    path.write_text(render(study, rows, summary, figures), encoding="utf-8")
    return path


def render(study: Study, rows: Sequence[Row], summary: Summary, figures: Sequence[dict[str, str]]) -> str:
    """Return the report as HTML.

    Parameters
    ----------
    study : Study
        What was asked for.
    rows : sequence of dict
        Its finished runs.
    summary : Summary
        The same, put together.
    figures : sequence of dict
        ``title``, ``caption``, ``name``, and ``light`` and ``dark``: data addresses of the pictures.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    claims = check_claims(summary)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    return environment.get_template("report.html").render(
        verdict=verdict(summary, claims),
        claims=claims,
        figures=figures,
        data=tables.data_table(summary),
        results=[
            tables.results_table(summary, dataset, columns, title)
            for columns, title in ((tables.TIME, "Time"), (tables.WORTH, "Worth of the averaged model"))
            for dataset in summary.datasets()
        ],
        targets=tables.target_table(summary, excess=study.target_excess),
        facts=_facts(study, rows),
        warnings=doubts(rows),
        rows_address=_data(lines.encode(), "application/x-ndjson"),
        n_rows=len(rows),
    )


def verdict(summary: Summary, claims: Sequence[Claim]) -> str:
    """Return the answer of the study in a sentence or two.

    Parameters
    ----------
    summary : Summary
        The study.
    claims : sequence of Claim
        Its claims.
    """
    falls, speedups, best, losses, ranks = [], [], [], [], 0
    for dataset in summary.datasets():
        cells = {cell.every: cell for cell in summary.parallel(dataset)}
        sequential = summary.sequential(dataset)
        if 1 not in cells or published.RARE not in cells or sequential is None:
            continue
        first, rare = cells[1], cells[published.RARE]
        ranks = rare.ranks
        falls.append(1 - rare.median("communication_s") / first.median("communication_s"))
        speedups.append(first.median("train_s") / rare.median("train_s"))
        best.append(sequential.median("train_s") / min(cell.median("train_s") for cell in cells.values()))
        losses.append(100 * (rare.median("test_accuracy") - sequential.median("test_accuracy")))
    judged = [claim for claim in claims if claim.holds is not None]
    count = f"{sum(bool(claim.holds) for claim in judged)} of {len(judged)} published claims hold here."
    if not falls:
        return f"This study did not run both every=1 and every={published.RARE} on two or more processes. {count}"
    gain, best_gain, change = _range(speedups, "{:.0f}"), _range(best, "{:.2g}"), _range(losses, "{:+.2f}")
    return (
        f"On {ranks} processes, synchronising every {published.RARE} samples instead of every sample cut communication "
        f"by {_range(falls, '{:.1%}')} and made training {gain} times as fast, with test accuracy {change} points from "
        f"the sequential run. At its best period it was {best_gain} times as fast as the sequential run. {count}"
    )


def _range(values: Sequence[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def _facts(study: Study, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return what was run, where, as pairs of name and text."""
    last = rows[-1]
    machine = last["machine"]
    return [
        ("Command", last["command"]),
        ("Grid", f"ranks {_join(study.all_ranks())}; every {_join(study.every)}; seeds {_join(study.seeds)}"),
        (
            "Model",
            f"{study.loss} loss, alpha {study.alpha:g}, {study.schedule} schedule, {study.epochs} epochs, "
            f"{'with' if study.fit_intercept else 'no'} intercept, {study.dtype}, {study.partition} partition",
        ),
        ("Machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in last["versions"].items())),
        ("Commit", last["commit"] or "not run from a checkout"),
        ("Runs", f"{len(rows)}, from {min(row['when'] for row in rows)} to {max(row['when'] for row in rows)} (UTC)"),
    ]


def doubts(rows: Sequence[Row]) -> list[str]:
    """Return what makes the seconds of a study hard to compare with each other or with another study's.

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
    if rows[-1]["cluster"] != "local":
        return found
    most, cores = max(row["ranks"] for row in rows), rows[-1]["machine"]["cores"]
    if most > cores:
        found.append(f"{most} processes ran on {cores} cores: waiting includes waiting for a core.")
    load = max(row["load_at_start"] or 0.0 for row in rows)
    if load > 0.75 * cores:
        found.append(
            f"The machine was busy with other work when the study began (load {load:.1f} on {cores} cores). A rank "
            "that loses its core keeps its peers waiting: waiting times are too long, at large periods most of all."
        )
    return found


def _join(values: Sequence[Any]) -> str:
    return ", ".join(str(value) for value in values)


def _data(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
