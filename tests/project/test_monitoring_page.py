"""The page on monitoring and the dashboard know every metric, and no other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dsgd.runtime.metrics import METRICS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_has_every_metric() -> None:
    """Name, page, label and text of each metric are in the table, in the same order."""
    text = (DOCS / "monitoring.rst").read_text(encoding="utf-8")
    text = text[text.index(".. begin: metrics") : text.index(".. end: metrics")]
    lines = re.findall(r"^``(dsgd_\w+)`` +(scheduler|workers)(?: +``(\w+)``)? +(.+)$", text, re.MULTILINE)
    assert lines == [(metric.name, metric.place, metric.label, metric.text) for metric in METRICS.values()]


def test_the_dashboard_asks_for_every_metric_and_no_other() -> None:
    """Each query of the dashboard names metrics that there are, with labels that they have; all are on it."""
    board = json.loads((DOCS / "grafana" / "dsgd.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    asked = {name for query in queries for name in re.findall(r"\bdsgd_\w+", query)}
    assert asked == set(METRICS)
    for query in queries:
        labels = {METRICS[name].label for name in re.findall(r"\bdsgd_\w+", query)}
        used = {*re.findall(r"by \((\w+)\)", query), *re.findall(r"{(\w+)=", query)}
        assert used <= labels | {"instance"}, query
        rates = re.findall(r"(?:rate|increase)\((dsgd_\w+)", query)
        assert {name for name in re.findall(r"\bdsgd_\w+", query) if METRICS[name].is_counter} == set(rates)


def test_the_dashboard_has_one_place_for_each_panel() -> None:
    """Panels have numbers of their own, do not overlap, and are described."""
    panels = json.loads((DOCS / "grafana" / "dsgd.json").read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert all(panel["description"].endswith(".") for panel in panels if panel["type"] != "row")


def test_the_dashboard_is_what_grafana_imports() -> None:
    """It has the fields that Grafana's published schema of dashboards and of time series requires, with values of it.

    Grafana has not imported it: there is none where tests run.
    """
    board = json.loads((DOCS / "grafana" / "dsgd.json").read_text(encoding="utf-8"))
    assert re.fullmatch(r"[\w-]{8,40}", board["uid"])
    assert board["title"]
    assert board["schemaVersion"] >= 36
    assert board["time"].keys() == {"from", "to"}
    sources = {f"${{{one['name']}}}" for one in board["templating"]["list"] if one["type"] == "datasource"}
    for panel in board["panels"]:
        if panel["type"] == "row":
            assert panel["panels"] == []  # what is below an open row stands beside it
            continue
        assert panel["type"] == "timeseries"
        assert panel["options"]["legend"].keys() == {"showLegend", "displayMode", "placement", "calcs"}
        assert panel["options"]["tooltip"].keys() == {"mode", "sort"}
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
        assert panel["fieldConfig"]["defaults"]["unit"] in {"none", "s", "percentunit", "ops", "Bps"}
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names) > 0
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert panel["datasource"]["uid"] in sources
            # A label that the query does not keep would be shown empty.
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown == set(re.findall(r"by \((\w+)\)", target["expr"])), target["expr"]


_TOKEN = re.compile(r"\s*(\d+(?:[smhd])?|\$__rate_interval|\w+|\"[^\"]*\"|[-+*/(){}\[\]=,])")
_SUMS = ("sum", "max")


def _read_query(text: str) -> None:
    """Fail where a query is not in the part of PromQL that the dashboard uses.

    That is sums of numbers, products and calls: ``sum by (label) (...)``, ``rate(counter{label="value"}[1h])``.
    """
    tokens = [*_TOKEN.findall(text), ""]
    assert "".join(tokens) == "".join(text.split()), text

    def take(*expected: str) -> str:
        assert not expected or tokens[0] in expected, f"{text}: {tokens[0]!r} where {expected} should be"
        return tokens.pop(0)

    def value() -> None:
        factor()
        while tokens[0] in tuple("+-*/"):
            take()
            factor()

    def factor() -> None:
        word = take()
        if word == "(":
            value()
            take(")")
        elif word in _SUMS:
            if tokens[0] == "by":
                take(), take("("), take(), take(")")
            take("("), value(), take(")")
        elif word in ("rate", "increase"):
            take("("), selector(), take("["), take("$__rate_interval", "1h"), take("]"), take(")")
        elif word == "scalar":
            take("("), value(), take(")")
        elif word == "clamp_min":
            take("("), value(), take(","), value(), take(")")
        elif word.startswith("dsgd_"):
            tokens.insert(0, word)
            selector()
        else:
            assert word.isdigit(), f"{text}: {word!r}"

    def selector() -> None:
        assert take() in METRICS
        if tokens[0] == "{":
            take(), take(), take("="), take(), take("}")

    value()
    assert tokens == [""], f"{text}: {tokens} is left"


def test_the_queries_of_the_dashboard_are_promql() -> None:
    """Every query parses, and one that is cut short, misspelt or has a range in the wrong place does not."""
    panels = json.loads((DOCS / "grafana" / "dsgd.json").read_text(encoding="utf-8"))["panels"]
    for query in [target["expr"] for panel in panels for target in panel.get("targets", ())]:
        _read_query(query)
    for wrong in ("sum(dsgd_ranks", "total(dsgd_ranks)", "rate(dsgd_rounds_total)", "dsgd_jobs[1h]", "sum(dsgd_none)"):
        with pytest.raises(AssertionError):
            _read_query(wrong)


def test_the_logging_configuration_of_the_page_works(tmp_path: Path) -> None:
    """Dask takes the configuration as it stands on the page, and a record becomes a line of JSON with its job."""
    text = (DOCS / "monitoring.rst").read_text(encoding="utf-8")
    block = text[text.index("   logging:\n") :].split("\n\n", 1)[0]
    (tmp_path / "logging.yaml").write_text(textwrap.dedent(block))
    code = (
        "import distributed, logging; from dsgd.runtime.logs import working_for\n"
        "with working_for('j', 1, 4): logging.getLogger('dsgd.runtime').info('pack took %d s', 3)\n"
    )
    command, env = [sys.executable, "-c", code], os.environ | {"DASK_CONFIG": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    line = json.loads(done.stderr)
    assert (line.pop("time")[-1], line) == (
        "Z",
        {"level": "INFO", "logger": "dsgd.runtime", "message": "pack took 3 s", "job": "j", "formed": 1, "rank": 4},
    )
