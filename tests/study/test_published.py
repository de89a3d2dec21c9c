"""Verdicts: what of an interval over runs lies inside a margin; and what reports cite, BibTeX of every method."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

import dsgd
from dsgd.report import Publication, library_bibtex
from dsgd.report.page import LIBRARY_AUTHORS, LIBRARY_TITLE
from dsgd.study import published
from dsgd.sync import LocalSGD

ROOT = Path(__file__).parents[2]


def test_intervals_are_those_of_paired_tests(rng: np.random.Generator) -> None:
    """Differences and logarithms of ratios have the interval of scipy's t-test over the runs that both sides have."""
    ours, other = rng.lognormal(size=7), rng.lognormal(size=7)
    pairs = [dict(enumerate(values)) for values in (ours, other)]
    found = published.difference(*pairs)
    expected = stats.ttest_rel(ours, other).confidence_interval()
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    found = published.ratio(*pairs)
    expected = stats.ttest_rel(np.log(ours), np.log(other)).confidence_interval()
    assert found is not None
    assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert found.estimate == pytest.approx(stats.gmean(ours / other))
    assert published.difference({0: 1.0, 1: 2.0, 2: 9.0}, {2: 4.0}) == published.Interval(5.0, -math.inf, math.inf, 1)
    assert published.ratio({0: 1.0}, {1: 1.0}) is None
    assert published.ratio({0: math.inf}, {0: 1.0}) is None
    assert published.average({}) is None
    found, expected = published.average(pairs[0]), stats.ttest_1samp(ours, 0.0).confidence_interval()
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_the_largest_of_several_figures_is_as_uncertain_as_they_are() -> None:
    """A bound holds for the largest if it holds for each, fails if it fails for one, and is undecided otherwise."""
    below, across, above = (published.Interval(low + 0.2, low, low + 0.4, 5) for low in (0.5, 0.9, 1.3))
    once = published.Interval(0.1, -math.inf, math.inf, 1)
    bound = published.Margin(most=1.25)
    said = [
        bound.verdict(published.largest(found)) for found in ([below], [below, across], [above, across], [below, once])
    ]
    assert said == ["holds", "undecided", "fails", "undecided"]


def test_figures_over_problems_lie_between_their_ends_and_scores_are_as_sure_as_test_rows_allow() -> None:
    """Over problems the interval covers each; of equal seeds a score is still uncertain by the rows it was drawn on."""
    whole = published.across([published.Interval(1.0, 0.9, 1.1, 5), published.Interval(2.0, 1.8, 2.2, 5)], 5)
    assert whole == published.Interval(1.5, 0.9, 2.2, 5)
    assert published.across([published.exact(1.0), None], 5) is None
    by_row = np.array([1.0, -1.0] * 50)
    found = published.sampled(published.Interval(0.0, 0.0, 0.0, 5), by_row)
    assert found is not None
    assert found.high == pytest.approx(stats.norm.ppf(0.975) / 10)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (17, 23, "holds"), (16, 24, "holds"), (25, 30, "exceeds"), (23, 25, "undecided"), (15, 17, "undecided"),
        (10, 15.9, "fails"), (15, 25, "undecided"),
    ],
)  # fmt: skip
def test_a_published_range_is_judged_by_the_whole_interval(low: float, high: float, verdict: str) -> None:
    """Inside it holds, above it exceeds, below it fails, and across an end it is undecided."""
    assert published.Margin(16, 24).verdict(published.Interval((low + high) / 2, low, high, 3)) == verdict


def test_what_should_be_small_fails_above_its_margin() -> None:
    """Of a promise of at most so much, less holds and is nothing to be exceeded."""
    found = [published.Margin(most=1.15).verdict(published.Interval(low, low, low + 0.1, 3)) for low in (0.3, 1.1, 1.2)]
    assert found == ["holds", "undecided", "fails"]


def test_counts_are_certain_and_one_run_is_not() -> None:
    """What is the same in every run is judged on any machine, one run is not, nor seconds of a busy machine."""
    source = published.Source("s", "S", "R", "dsgd.sync.LocalSGD", "sync=2", "P.")
    statement = published.Statement("s/c", source, "c", "at least 2", "abstract", published.Margin(2), "{:g}".format)
    said = [
        statement.judged("d", found, busy=busy).verdict
        for found, busy in (
            (published.exact(3), True),
            (published.Interval(3, -math.inf, math.inf, 1), False),
            (published.Interval(3, 2.5, 3.5, 3), True),
            (published.Interval(3, 2.5, 3.5, 3), False),
        )
    ]
    assert said == ["holds", "undecided", "undecided", "holds"]
    assert "every run" in statement.judged("d", published.exact(3)).note
    trivial = statement.judged("d", published.exact(3), trivial=True)
    assert (trivial.verdict, trivial.holds) == ("no claim", None)
    assert (trivial.key, trivial.system, trivial.published, trivial.interval) == ("s/c", "S", "at least 2", (3, 3, 3))
    assert statement.judged("d", published.Interval(3, -math.inf, math.inf, 1)).interval is None


# -- citations -----------------------------------------------------------------------------------------------------


def test_the_entry_of_the_library_is_that_of_its_citation_file() -> None:
    """Title, authors and version are said once: CITATION.cff, the installed version and the entry agree."""
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert [author["name"] for author in cff["authors"]] == [LIBRARY_AUTHORS]
    assert cff["title"] == LIBRARY_TITLE
    assert str(cff["version"]) == dsgd.__version__
    assert all(text in library_bibtex() for text in (LIBRARY_TITLE, LIBRARY_AUTHORS, dsgd.__version__))


def test_every_source_has_an_entry() -> None:
    """Keys are those of sources, no two are the same, braces match, and what is not known of one is left out."""
    assert all(source.publications for key, source in published.SOURCES.items() if key != "dsgd")
    entries = published.citations(published.SOURCES.values())
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
        return [source.key for source in published.sources_of(map(repr, methods))]

    assert keys(LocalSGD(4)) == ["msf", "local"]
    assert keys(ChocoSGD(8, TopK(0.01), 0.04), AutoSync(rule=QSR())) == ["qsr", "choco"]
