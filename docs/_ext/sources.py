"""The directives ``source``, ``source-claims`` and ``source-index``: what the registry and the rows say of sources.

`dsgd.study.published` has each source with its class, what switches it on and its statements, and
docs/figures/claims.jsonl the rows of a run of ``dsgd claims``. The pages in docs/sources add what no program knows.
"""

from __future__ import annotations

import ast
import functools
import importlib
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from dsgd import compress
from dsgd.compress.base import AbstractCompressor
from dsgd.kernel_approximation import RandomFeatures
from dsgd.local import AbstractCycle, AbstractReduction, AbstractRule, Importance
from dsgd.report import Claim
from dsgd.study.claims import claims_of
from dsgd.study.claims.registry import verdict_of
from dsgd.study.frame.rows import read_rows
from dsgd.study.published import SOURCES, STATEMENTS, Source, Statement
from dsgd.sync import AbstractPeriod, AbstractStrategy, adaptive

ROWS = Path(__file__).parents[1] / "figures" / "claims.jsonl"
_TALKS = {
    "together": "between all ranks",
    "in pairs": "with neighbours",
    "by mailbox": "by mailbox, when a rank is ready",
}
_MODULES = {
    "pack_trees": "dsgd.collectives.algorithms.packing",
    "tree_allreduce": "dsgd.collectives.algorithms.packing",
    "Group": "dsgd.collectives",
    "SVC": "dsgd.svm",
    "SGDClassifier": "dsgd",
}


def lines_of(source: Source) -> list[str]:
    """Return the Python that switches a source on: imports, and a call."""
    text = source.switched_on
    argument, _, call = text.partition("=")
    if argument in ("optimizer", "sampling", "features", "learning_rate"):
        name, home = call.partition("(")[0], "dsgd.kernel_approximation" if argument == "features" else "dsgd.local"
        fitted = f'clf = SGDClassifier(loss="log_loss", {argument}={call}).fit(X, y)'
        return ["from dsgd import SGDClassifier", f"from {home} import {name}", fitted]
    if not text.startswith("sync="):
        names = [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.id in _MODULES]
        return [*(f"from {_MODULES[name]} import {name}" for name in reversed(names)), _fitted(text)]
    call, used = _qualified(text.removeprefix("sync="))
    own = [name for name in used if name not in (*compress.__all__, *adaptive.__all__)]
    beside = {"compress": compress.__all__, "adaptive": adaptive.__all__}
    packages = [name for name, known in beside.items() if any(word in known for word in used)]
    first = ["from dsgd import " + ", ".join(["SGDClassifier", *(name for name in packages if name == "compress")])]
    if own:
        first.append(f"from dsgd.sync import {', '.join([*own, *(name for name in packages if name == 'adaptive')])}")
    return [*first, f"clf = SGDClassifier(sync={call}).fit(X, y)"]


def _fitted(text: str) -> str:
    return f"clf = {text}.fit(X, y)" if text.startswith(("SVC", "SGDClassifier")) else text


def _qualified(text: str) -> tuple[str, list[str]]:
    """Return a call with compressors and rules named by their packages, and all names in it."""
    tree = ast.parse(text, mode="eval")
    used = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used.append(node.id)
            for package in (compress, adaptive):
                if node.id in package.__all__:
                    node.id = f"{package.__name__.rpartition('.')[2]}.{node.id}"
    return ast.unparse(tree).replace("'", '"'), used


def kind_of(source: Source) -> str:
    """Return what kind of thing a source is here, in a few words."""
    where, _, name = source.implemented_by.rpartition(".")
    item: Any = getattr(importlib.import_module(where), name)
    if isinstance(item, type) and issubclass(item, AbstractStrategy):
        ends = "are equal after it" if item.ends_equal else "may differ until the end"
        return f"A strategy: {item.exchanges}s are exchanged {_TALKS[item.talks]}; models {ends}."
    if isinstance(item, type) and issubclass(item, AbstractCompressor):
        words = {
            "unbiased": item.unbiased,
            "sparse": item.sparse,
            "with a memory of its own": item.remembers,
            "in need of error feedback": item.needs_feedback,
        }
        return f"A compressor: {', '.join(word for word, has in words.items() if has) or 'biased'}."
    if isinstance(item, type) and issubclass(item, adaptive.AbstractRule):
        return "A rule for the period of `AutoSync`."
    if isinstance(item, type) and issubclass(item, AbstractPeriod):
        return "When ranks exchange: made by a parameter of the strategy."
    if isinstance(item, type) and issubclass(item, AbstractCycle):
        return "A schedule of rates, beside any strategy."
    if isinstance(item, type) and issubclass(item, AbstractReduction):
        return "A local optimiser of linear models, without noise at the minimum."
    if isinstance(item, type) and issubclass(item, AbstractRule):
        return "A local optimiser: one step a round, along the gradient of all of its rows."
    if item is RandomFeatures:
        return "What a model is linear in; a transformer too."
    if item is Importance:
        return "A way to draw rows, beside any local optimiser."
    return "An estimator." if hasattr(item, "fit") else "A collective."


@functools.cache
def _claims() -> dict[str, list[Claim]]:
    found: dict[str, list[Claim]] = {}
    for claim in claims_of(read_rows(ROWS), list(STATEMENTS.values())):
        found.setdefault(claim.key, []).append(claim)
    return found


class SourceFacts(SphinxDirective):
    """Show where a source is published, what its class is, and what switches it on."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a list of fields and a block of Python."""
        source = SOURCES[self.arguments[0]]
        lines = [
            f":Published: {_plain(source.reference)}",
            f":Class: `{source.implemented_by}`. {kind_of(source)}",
            f":Claims: ``dsgd claims --only {source.key}``",
            "",
            ".. code-block:: python",
            "   :class: wrapped",
            "",
            *(f"   {line}" for line in lines_of(source)),
        ]
        return self.parse_text_to_nodes("\n".join(lines))


class SourceClaims(SphinxDirective):
    """Show the claims of a source with our figures, why what does not hold does not, and its BibTeX entry."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a table, reasons, and a block."""
        source = SOURCES[self.arguments[0]]
        self.env.note_dependency(str(ROWS))
        own = [one for one in STATEMENTS.values() if one.source == source]
        table = _table(
            ("Statement", "Published", "Here", "Without it", "Verdict"),
            (28, 18, 26, 16, 12),
            [cells for one in own for cells in _rows(one)],
        )
        reasons = [
            f"* *{_plain(claim.name)}* ({_plain(claim.dataset)}): {_plain(claim.note)}"
            for one in own
            for claim in _claims().get(one.key, ())
            if claim.verdict not in ("holds", "exceeds") and claim.note
        ]
        why = ["", "What is behind those that do not hold:", "", *reasons, ""] if reasons else [""]
        entries = textwrap.indent("\n\n".join(source.bibtex), "   ").splitlines()
        cite = [".. code-block:: none", "   :class: wrapped", "", *entries] if source.bibtex else []
        where = "The figures are those of the run of ``dsgd claims`` that :doc:`/claims` shows."
        return self.parse_text_to_nodes("\n".join([*table, *why, where, "", *cite]))


def _rows(statement: Statement) -> Iterable[Sequence[str]]:
    for claim in _claims().get(statement.key, ()):
        there = "" if claim.dataset == "-" else f", {claim.dataset}"
        published = f"{statement.figure} ({statement.where})"
        yield (statement.text, published, claim.ours + there, claim.baseline, f"**{claim.verdict}**")


class SourceIndex(SphinxDirective):
    """Show all sources: what each proposes, and how many of its claims hold here."""

    def run(self) -> list[nodes.Node]:
        """Return a table with a link to each page."""
        self.env.note_dependency(str(ROWS))
        rows = []
        for source in SOURCES.values():
            own = [_claims().get(key, []) for key, one in STATEMENTS.items() if one.source == source]
            verdicts = ", ".join(dict.fromkeys(verdict_of(claims) for claims in own if claims))
            rows.append((f":doc:`{source.key}`", _plain(source.proposes), verdicts))
        return self.parse_text_to_nodes("\n".join(_table(("Source", "Proposes", "Claims here"), (16, 64, 20), rows)))


def _table(head: Sequence[str], widths: Sequence[int], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {' '.join(map(str, widths))}", ""]
    for row in (head, *rows):
        lines += [f"   {'* -' if number == 0 else '  -'} {_cell(cell)}" for number, cell in enumerate(row)]
    return lines


def _cell(text: str) -> str:
    if text in ("", "-"):
        return "–"  # a lone hyphen begins a list
    return text if text.startswith((":doc:", "**")) else _plain(text)


def _plain(text: str) -> str:
    """Return text of which no character is markup."""
    return "".join(f"\\{letter}" if letter in "*`|_\\" else letter for letter in text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_directive("source", SourceFacts)
    app.add_directive("source-claims", SourceClaims)
    app.add_directive("source-index", SourceIndex)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
