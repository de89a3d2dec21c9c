"""The page of claims: a table to read in two minutes, and behind it every claim with its data and its reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from dsgd.report import Claim, Page, Table, seconds_text
from dsgd.study.claims.registry import MEASURE_OF, MEASURES
from dsgd.study.claims.runner import claims_of
from dsgd.study.frame.report import doubts, facts
from dsgd.study.frame.rows import Row, check_rows
from dsgd.study.published import STATEMENTS, Source, Statement, citations

_GOOD: Final = ("holds", "exceeds")
_OPEN: Final = ("undecided", "no claim", "not run")
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
    counts = Counter(verdict_of(own) for own in _by_statement(claims, statements).values())
    published = {statement.key for statement in statements if statement.source.key != "dsgd"}
    return Page(
        title="Do published figures hold here?",
        answer=_answer(claims, statements),
        highlights=_highlights(counts),
        doubts=doubts(timed) if timed else (),
        overview=overview_table(claims, statements),
        claims=claims,
        source=(
            f"{len(published)} statements of publications and {len(statements) - len(published)} promises of this "
            "library, each on all data that it was measured on. Holds: inside the published range, with the whole "
            "interval over the runs. The reasons are folded behind each verdict."
        ),
        folded=True,
        details=[_places(statements), _measures(rows), _sources(statements)],
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
            "ours": claim.ours, "interval": claim.interval, "baseline": claim.baseline, "verdict": claim.verdict,
            "why": claim.note,
        }
        for claim in claims
    ]  # fmt: skip


def overview_table(claims: Sequence[Claim], statements: Sequence[Statement]) -> Table:
    """Return a row per statement: who says what, the figure there and here, and the verdict over all data."""
    rows = [
        (verdict_of(own), one.source.system, one.text, one.figure, *_spans(own))
        for one, own in ((STATEMENTS[key], own) for key, own in _by_statement(claims, statements).items())
    ]
    columns = ("verdict", "system", "statement", "published", "here", "without it")
    note = (
        "Of several data the first, and how many more there are. 2/5 hold: of five claims on different data two hold "
        "or are exceeded, and others do not."
    )
    return Table("Every statement", columns, rows, note, n_text=6)


def verdict_of(claims: Sequence[Claim]) -> str:
    """Return the verdict of a statement over all its data: the one that they share, or how many hold."""
    words = {claim.verdict for claim in claims}
    good = sum(claim.verdict in _GOOD for claim in claims)
    return words.pop() if len(words) == 1 else f"{good}/{len(claims)} hold"


def list_table(statements: Sequence[Statement]) -> Table:
    """Return what can be asked for: keys, statements, figures and where they are published."""
    rows = [(one.key, one.text, one.figure, one.where, MEASURE_OF[one.key].name) for one in statements]
    return Table("Statements", ("key", "statement", "published", "where", "measure"), rows, n_text=5)


def _by_statement(claims: Sequence[Claim], statements: Sequence[Statement]) -> dict[str, list[Claim]]:
    found = {one.key: [claim for claim in claims if claim.key == one.key] for one in statements}
    return {key: own for key, own in found.items() if own}


def _highlights(counts: Counter[str]) -> list[tuple[str, str]]:
    """Return how many statements have which verdict on all their data; and how many have not the same on all."""
    found = [(str(counts[word]), f"statements {text} on all data") for word, text in _MOST.items() if counts[word]]
    mixed = sum(n for word, n in counts.items() if word not in (*_GOOD, *_OPEN, "fails"))
    return [*found, *([(str(mixed), "statements hold on some data")] if mixed else [])]


def _spans(claims: Sequence[Claim]) -> tuple[str, str]:
    """Return what was measured and what is reached without it, of the first data and how many more there are."""
    more = f", +{len(claims) - 1}" if len(claims) > 1 else ""
    return claims[0].ours + more, claims[0].baseline or "-"


def _answer(claims: Sequence[Claim], statements: Sequence[Statement]) -> str:
    decided = [claim for claim in claims if claim.verdict not in _OPEN]
    good = sum(claim.verdict in _GOOD for claim in decided)
    left = Counter(claim.verdict for claim in claims if claim.verdict in _OPEN)
    text = f"{good} of {len(decided)} decided claims hold or are exceeded, of {len(statements)} statements."
    if left:
        text += f" {', '.join(f'{n} {word}' for word, n in left.most_common())}."
    failed = list(dict.fromkeys(claim.system for claim in decided if claim.verdict == "fails"))
    return text + (f" Something fails of: {', '.join(failed)}." if failed else "")


def _places(statements: Sequence[Statement]) -> Table:
    rows = [
        (one.key, one.where, one.tolerance or "the published figure", MEASURE_OF[one.key].name) for one in statements
    ]
    return Table(
        "Where figures are published, and what counts as the same",
        ("key", "where", "tolerance", "measure"),
        rows,
        n_text=4,
    )


def _measures(rows: Sequence[Row]) -> Table:
    cells = [(row["measure"], row["what"], f"{row['seconds']:.1f}") for row in rows]
    return Table("What was run", ("measure", "what", "s"), cells, n_text=2)


def _sources(statements: Sequence[Statement]) -> Table:
    sources: dict[str, Source] = {one.source.key: one.source for one in statements}
    rows = [(one.system, one.proposes, one.implemented_by, one.switched_on, one.reference) for one in sources.values()]
    return Table("Sources", ("system", "proposes", "class", "switched on by", "reference"), rows, n_text=5)
