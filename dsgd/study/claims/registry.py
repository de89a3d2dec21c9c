"""The registry: every published figure and the measure that decides it; what runs measures, and the page of claims.

A measure is one row, on disk as soon as it is decided. The page is a table to read in two minutes, and behind it every
claim with its data and its reasons.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from dsgd.errors import InvalidParameterError
from dsgd.report import Claim, Page, Table, seconds_text
from dsgd.study.claims import codes, contests, fits, local_gd, studies
from dsgd.study.frame.report import doubts, facts
from dsgd.study.frame.rows import Row, Run, check_rows
from dsgd.study.frame.study import Batch, Grid, Study, run_study
from dsgd.study.published import GOOD, STATEMENTS, Measure, Statement, citations

_ALL: Final = (*codes.MEASURES, *contests.MEASURES, *fits.MEASURES, *local_gd.MEASURES, *studies.MEASURES)

#: All measures by name. Those that time this machine come first: later the load would be that of the others.
MEASURES: Final = MappingProxyType({measure.name: measure for measure in sorted(_ALL, key=lambda one: not one.timed)})

#: The measure of each statement, by the key of the statement.
MEASURE_OF: Final = MappingProxyType(
    {statement.key: measure for measure in MEASURES.values() for statement in measure.statements}
)


def chosen(only: Sequence[str] = ()) -> list[Statement]:
    """Return the statements that some words choose; all if there are none.

    Parameters
    ----------
    only : sequence of str
        Each the key of a source, of a statement, or the name of a measure.

    Raises
    ------
    InvalidParameterError
        A word chooses none.
    """
    found: dict[str, Statement] = {}
    for word in only:
        own = {
            key: statement
            for key, statement in STATEMENTS.items()
            if word in (key, statement.source.key, MEASURE_OF[key].name)
        }
        if not own:
            keys = dict.fromkeys(statement.source.key for statement in STATEMENTS.values())
            raise InvalidParameterError(
                f"--only {word!r} is no claim: give a source ({', '.join(keys)}), or what `dsgd claims --list` shows, "
                "as gtopk/dense."
            )
        found |= own
    return [statement for statement in STATEMENTS.values() if not only or statement.key in found]


# Raised when the same measures come to mean other runs: rows of before are made again.
_DEFINITION: Final = 1


def _study(measures: Mapping[str, Measure], measured: Callable[[Batch, list[Run]], Iterable[Row]]) -> Study:
    """Return the study of some measures, whose runs are named by what they run and what their statements say."""

    def decides(run: Run) -> Row:
        measure = measures[run.measure]
        judged = repr([(one.key, one.text, one.figure, one.margin, one.kind) for one in measure.statements])
        digest = hashlib.blake2b(judged.encode(), digest_size=4).hexdigest()
        return {"what": measure.what, "definition": _DEFINITION, "statements": digest}

    grid = Grid(lambda study: {"measure": list(measures)}, measured, derive=decides, together=("measure",))
    return Study("claims", "Do published figures hold here?", (), {}, [grid], lambda study, rows: {})


def key_of(measure: Measure) -> str:
    """Return the name of a measure in the file of rows, which changes with what it runs and what its statements say."""
    return _study({measure.name: measure}, lambda batch, runs: ()).runs()[0].key


def run_claims(
    statements: Sequence[Statement],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    quick: bool = False,
    command: str | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Iterator[Row]:
    """Yield a row for each measure that decides some statements, when it is done.

    A measure that is in ``rows.jsonl`` already is not run again, and one that was interrupted goes on in its folder.

    Parameters
    ----------
    statements : sequence of Statement
        What is to be decided; see `chosen`.
    out : str or path-like
        The folder; rows of what measures run go to a folder of its own for each.
    force : bool, default False
        Run all measures again.
    quick : bool, default False
        Run what takes long on fewer seeds with fewer trials, or leave it out.
    command : str, optional
        The command recorded in rows; the command line of this process by default.
    on_progress : callable, optional
        Is told what is run, with numbers, as a text.

    Yields
    ------
    dict
        ``measure``, ``what``, ``seconds``, ``claims`` and where it was run.
    """
    asked = {MEASURE_OF[statement.key].name for statement in statements}
    measures = {name: (quick and one.quick) or one for name, one in MEASURES.items() if name in asked}
    names = list(measures)
    say = on_progress or (lambda text: None)

    def measured(batch: Batch, runs: list[Run]) -> Iterator[Row]:
        for run in runs:
            head, folder = f"{names.index(run.measure) + 1} of {len(names)}: {run.measure}", Path(out) / run.measure
            say(head)
            if force:
                shutil.rmtree(folder, ignore_errors=True)
            start = time.perf_counter()
            claims = measures[run.measure].claims(folder, partial(_told, say, head))
            yield {"seconds": time.perf_counter() - start, "claims": [asdict(claim) for claim in claims]}

    yield from (done.row for done in run_study(_study(measures, measured), out, force=force, command=command))


def _told(say: Callable[[str], object], head: str, text: str) -> None:
    say(f"{head}, {text}")


def claims_of(rows: Sequence[Row], statements: Sequence[Statement]) -> list[Claim]:
    """Return the claims in some rows that are of these statements, in the order of the statements."""
    made = [
        Claim(**{**found, "interval": None if found["interval"] is None else tuple(found["interval"])})
        for row in rows
        for found in row["claims"]
    ]
    return [claim for statement in statements for claim in made if claim.key == statement.key]


_OPEN: Final = ("undecided", "no claim", "not run", "assumption", "arithmetic")
_MOST: Final = {"holds": "hold", "exceeds": "are exceeded", "fails": "fail", "undecided": "are undecided"}


def claims_page(rows: Sequence[Row], statements: Sequence[Statement]) -> Page:
    """Return the page of what measures have decided.

    Parameters
    ----------
    rows : sequence of dict
        Their rows; see `run_claims`.
    statements : sequence of Statement
        What was asked for.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    check_rows(rows)
    timed = [row for row in rows if MEASURES[row["measure"]].timed]
    claims = claims_of(rows, statements)
    published = sum(statement.source.key != "dsgd" for statement in statements)
    counted = [one for one in statements if one.kind != "arithmetic"]
    counts = Counter(verdict_of(own) for own in _by_statement(claims, counted).values())
    mixed = sum(n for word, n in counts.items() if word not in (*GOOD, *_OPEN, "fails"))
    places = "key = key | where = where | tolerance = tolerance | measure = measure"
    of_source = (
        "system = system | proposes = proposes | class = implemented_by | switched on by = switched_on | "
        "reference = reference"
    )
    sources = {one.source.key: one.source for one in statements}.values()
    return Page(
        title="Do published figures hold here?",
        answer=_answer(claims, statements),
        highlights=[
            *((str(counts[word]), f"statements {text} on all data") for word, text in _MOST.items() if counts[word]),
            *([(str(mixed), "statements hold on some data")] if mixed else []),
        ],
        doubts=doubts(timed) if timed else (),
        overview=overview_table(claims, statements),
        claims=claims,
        source=(
            f"{published} statements of publications and {len(statements) - published} promises of this "
            "library, each on all data that it was measured on. Holds: inside the published range, with the whole "
            "interval over the runs. The reasons are folded behind each verdict."
        ),
        folded=True,
        details=[
            overview_table(claims, statements, arithmetic=True),
            Table.of(
                "Where figures are published, and what counts as the same",
                statements,
                places,
                n_text=4,
                tolerance=lambda one: one.tolerance or "the published figure",
                measure=lambda one: MEASURE_OF[one.key].name,
            ),
            Table.of("What was run", rows, "measure = measure | what = what | s = seconds:.1f", n_text=2),
            Table.of("Sources", sources, of_source, n_text=5),
        ],
        ran=facts(rows, ("Measures", f"{len(rows)}, {seconds_text(sum(row['seconds'] for row in rows))} together")),
        rows=claims_facts(claims),
        citations=citations(statement.source for statement in statements),
    )


def claims_facts(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Return claims as plain values, each with its source, its place there and what was run."""
    return [
        {
            "key": claim.key, "system": claim.system, "reference": STATEMENTS[claim.key].source.reference,
            "where": STATEMENTS[claim.key].where, "statement": claim.name, "figure": claim.published,
            "tolerance": STATEMENTS[claim.key].tolerance, "ran": MEASURE_OF[claim.key].what, "data": claim.dataset,
            "ours": claim.ours, "interval": claim.interval, "baseline": claim.baseline, "control": claim.control,
            "seeds": claim.seeds, "tuned": claim.tuned, "verdict": claim.verdict, "why": claim.note,
        }
        for claim in claims
    ]  # fmt: skip


def overview_table(claims: Sequence[Claim], statements: Sequence[Statement], *, arithmetic: bool = False) -> Table:
    """Return a row per statement: the verdict over all data, who says what, the figure there and here, and its control.

    What follows from definitions is no claim: it has a table of its own.
    """
    rows = []
    for key, own in _by_statement(claims, statements).items():
        one, more = STATEMENTS[key], f", +{len(own) - 1}" if len(own) > 1 else ""
        if (one.kind == "arithmetic") is arithmetic:
            first = own[0]
            shown = first.control or first.baseline or "-", f"{first.seeds or '-'}", first.tuned or "-"
            rows.append((verdict_of(own), one.source.system, one.text, one.figure, first.ours + more, *shown))
    columns = ("verdict", "system", "statement", "published", "here", "control", "seeds", "tuned")
    if arithmetic:
        return Table("Arithmetic: it follows from definitions, and is not counted", columns, rows, n_text=6)
    note = (
        "Control: what must fail, measured beside it, or what there is without the method. Of several data the first, "
        "and how many more there are. 2/5 hold: of five claims on different data two hold or are exceeded."
    )
    return Table("Every statement", columns, rows, note, n_text=6)


def verdict_of(claims: Sequence[Claim]) -> str:
    """Return the verdict of a statement over all its data: the one that they share, or how many hold.

    Of figures "up to N" the largest counts.
    """
    if STATEMENTS[claims[0].key].up_to:
        claims = [max(claims, key=lambda one: one.interval[0] if one.interval else -math.inf)]
    words = {claim.verdict for claim in claims}
    good = sum(claim.verdict in GOOD for claim in claims)
    return words.pop() if len(words) == 1 else f"{good}/{len(claims)} hold"


def list_table(statements: Sequence[Statement]) -> Table:
    """Return what can be asked for: keys, statements, figures and where they are published."""
    rows = [(one.key, one.text, one.figure, one.where, MEASURE_OF[one.key].name) for one in statements]
    return Table("Statements", ("key", "statement", "published", "where", "measure"), rows, n_text=5)


def _by_statement(claims: Sequence[Claim], statements: Sequence[Statement]) -> dict[str, list[Claim]]:
    found = {one.key: [claim for claim in claims if claim.key == one.key] for one in statements}
    return {key: own for key, own in found.items() if own}


def _answer(claims: Sequence[Claim], statements: Sequence[Statement]) -> str:
    claims = [claim for claim in claims if STATEMENTS[claim.key].kind != "arithmetic"]
    statements = [one for one in statements if one.kind != "arithmetic"]
    decided = [claim for claim in claims if claim.verdict not in _OPEN]
    good = sum(claim.verdict in GOOD for claim in decided)
    left = Counter(claim.verdict for claim in claims if claim.verdict in _OPEN)
    text = f"{good} of {len(decided)} decided claims hold or are exceeded, of {len(statements)} statements."
    if left:
        text += f" {', '.join(f'{n} {word}' for word, n in left.most_common())}."
    failed = list(dict.fromkeys(claim.system for claim in decided if claim.verdict == "fails"))
    return text + (f" Something fails of: {', '.join(failed)}." if failed else "")
