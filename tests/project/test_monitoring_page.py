"""The page on monitoring and the dashboard know every metric, and no other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from dsgd.runtime.metrics import METRICS

DOCS = Path(__file__).parents[2] / "docs"


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
