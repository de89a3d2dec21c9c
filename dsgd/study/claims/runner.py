"""Running measures: one row per measure, and on disk as soon as it is decided."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dsgd.report import Claim
from dsgd.study.claims.measure import Measure
from dsgd.study.claims.registry import MEASURE_OF, MEASURES
from dsgd.study.frame.rows import AbstractRun, Row
from dsgd.study.frame.runner import Record
from dsgd.study.published import Statement

# Raised when the same measures come to mean other runs: rows of before are made again.
_DEFINITION = 1


@dataclass(frozen=True)
class _Run(AbstractRun):
    measure: Measure

    def settings(self) -> Row:
        """Return what decides what is run and how it is judged: the measure, and what its statements say."""
        judged = repr([(one.key, one.text, one.figure, one.margin) for one in self.measure.statements])
        digest = hashlib.blake2b(judged.encode(), digest_size=4).hexdigest()
        return {
            "measure": self.measure.name, "what": self.measure.what, "definition": _DEFINITION, "statements": digest,
        }  # fmt: skip


def key_of(measure: Measure) -> str:
    """Return the name of a measure in the file of rows, which changes with what it runs and what its statements say."""
    return _Run(measure).key


def run_claims(
    statements: Sequence[Statement],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
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
    runs = [_Run(measure) for name, measure in MEASURES.items() if name in asked]
    record = Record(out, force=force, command=command)
    say = on_progress or _say_nothing
    for number, run in enumerate(runs, start=1):
        head = f"{number} of {len(runs)}: {run.measure.name}"
        say(head)
        measured = partial(_measured, Path(out) / run.measure.name, force, partial(_told, say, head))
        yield from (done.row for done in record.finish([run], measured))


def _say_nothing(text: str) -> None:
    del text


def _told(on_progress: Callable[[str], None], head: str, text: str) -> None:
    on_progress(f"{head}, {text}")


def _measured(out: Path, force: bool, say: Callable[[str], None], runs: Sequence[_Run]) -> Iterator[Row]:
    for run in runs:
        if force:
            shutil.rmtree(out, ignore_errors=True)
        start = time.perf_counter()
        claims = run.measure.claims(out, say)
        yield {"seconds": time.perf_counter() - start, "claims": [asdict(claim) for claim in claims]}


def claims_of(rows: Sequence[Row], statements: Sequence[Statement]) -> list[Claim]:
    """Return the claims in some rows that are of these statements, in the order of the statements."""
    made = [_claim(found) for row in rows for found in row["claims"]]
    return [claim for statement in statements for claim in made if claim.key == statement.key]


def _claim(found: dict[str, Any]) -> Claim:
    interval = found["interval"]
    return Claim(**{**found, "interval": None if interval is None else tuple(interval)})
