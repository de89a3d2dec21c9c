"""What reports cite: BibTeX of every method and of this library."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import dsgd
from dsgd.report import Page, Publication, library_bibtex
from dsgd.report.provenance import LIBRARY_AUTHORS, LIBRARY_TITLE
from dsgd.study.published import SOURCES, citations, sources_of
from dsgd.sync import LocalSGD

ROOT = Path(__file__).parents[2]


def test_the_entry_of_the_library_is_that_of_its_citation_file() -> None:
    """Title, authors and version are said once: CITATION.cff, the installed version and the entry agree."""
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert [author["name"] for author in cff["authors"]] == [LIBRARY_AUTHORS]
    assert cff["title"] == LIBRARY_TITLE
    assert str(cff["version"]) == dsgd.__version__
    assert all(text in library_bibtex() for text in (LIBRARY_TITLE, LIBRARY_AUTHORS, dsgd.__version__))


def test_every_source_has_an_entry() -> None:
    """Keys are those of sources, no two are the same, braces match, and what is not known of one is left out."""
    assert all(source.publications for key, source in SOURCES.items() if key != "dsgd")
    entries = citations(SOURCES.values())
    keys = [re.findall(r"^@\w+\{([\w-]+),$", entry, re.MULTILINE) for entry in entries]
    assert all(len(found) == 1 for found in keys)
    assert len({found[0] for found in keys}) == len(entries)
    for entry in entries:
        assert entry.count("{") == entry.count("}")
        assert {"author", "title"} <= set(re.findall(r"^  (\w+) = \{.+\},$", entry, re.MULTILINE))
        assert "= {}" not in entry
    assert "year" not in Publication(("A", "others"), "T").bibtex("t")
    assert str(Publication(("A", "B", "others"), "T", 2020, "2001.1")) == "A, B et al., T, 2020 (arXiv 2001.1)"


def test_sources_are_found_in_what_was_run() -> None:
    """A strategy names its own source and those of its compressor and of its rule."""
    from dsgd.compress import TopK
    from dsgd.sync import AutoSync, ChocoSGD
    from dsgd.sync.adaptive import QSR

    def keys(*methods: object) -> list[str]:
        return [source.key for source in sources_of(map(repr, methods))]

    assert keys(LocalSGD(4)) == ["msf", "local"]
    assert keys(ChocoSGD(8, TopK(0.01), 0.04), AutoSync(rule=QSR())) == ["qsr", "choco"]


def test_a_page_cites_its_methods_and_the_library() -> None:
    """Every page has the entries that it is given, and that of this library."""
    text = Page("Q?", "A.", citations=citations([SOURCES["diloco"]])).render()
    assert "@misc{diloco," in text
    assert "@misc{dsgd," in text
