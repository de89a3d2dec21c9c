"""Tables of the docs that are made of measured rows."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import numpy as np

from dsgd import SGDClassifier
from dsgd.sim import SimulatedCluster
from dsgd.study.claims import MEASURES, key_of
from dsgd.svm import SVC, LinearSVC
from dsgd.sync.names import STRATEGIES

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "figures"


def test_the_tables_of_strategies_are_those_of_their_rows():
    """The tables on the page say what the rows say, and every row passes but the one that the page names."""
    rows = [json.loads(line) for line in (FIGURES / "strategies.jsonl").read_text(encoding="utf-8").splitlines()]
    for name, text in runpy.run_path(str(FIGURES / "strategies.py"))["tables"]().items():
        assert (FIGURES / name).read_text(encoding="utf-8") == text, f"run docs/figures/strategies.py: {name} is old"
    newest = {(row["case"], row["gang"], row["ranks"], row["strategy"]): row for row in rows}
    far = [key for key, row in newest.items() if row["score"] < row["sequential"] - 0.01]
    assert far == [("a9a", "simulated", 2, "minibatch 512, scaled")]


def test_pages_count_the_strategies_that_there_are():
    """README and the first page of the docs say how many strategies one argument chooses from."""
    for path in DOCS.parent / "README.md", DOCS / "index.rst":
        assert re.findall(r"(\d+) strategies", path.read_text(encoding="utf-8")) == [str(len(STRATEGIES))]


def test_the_table_of_strategies_shows_what_they_save():
    """One average at the end sends an eightieth of what 80 averages do, and control is not in it."""
    rows = [json.loads(line) for line in (FIGURES / "strategies.jsonl").read_text(encoding="utf-8").splitlines()]
    runs = {
        row["strategy"]: row for row in rows if (row["case"], row["gang"], row["ranks"]) == ("ijcnn1", "simulated", 16)
    }
    # Twenty-two features and an intercept of eight bytes each, in 64 messages of recursive doubling.
    assert runs["one-shot"]["bytes_sent"] == 64 * (40 + 8 * 23)
    assert runs["local"]["bytes_sent"] == 80 * runs["one-shot"]["bytes_sent"]
    assert (
        len({run["control_bytes_sent"] for name, run in runs.items() if name in ("local", "one-shot", "diloco")}) == 1
    )


def test_the_keys_of_the_report_are_those_of_fits():
    """The page on the ledger lists the keys of every kind of model, under the kinds that have them."""
    text = (DOCS / "ledger.rst").read_text(encoding="utf-8")
    text = text[text.index(".. begin: keys of fit_report_") : text.index(".. end: keys of fit_report_")]
    of_all, of_sgd, of_linear, of_torch, of_svms, of_linear_svms = (
        {key for line in re.findall(r"^``.*``$", part, re.MULTILINE) for key in re.findall(r"``(\w+)``", line)}
        for part in re.split(r"^(?:Models|linear|torch|kernel|and linear)\b.*$", text, flags=re.MULTILINE)
    )
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = X[:, 0] > 0

    def keys(estimator):
        return set(estimator.fit(X, y).fit_report_)

    assert keys(SGDClassifier(n_jobs=2)) == of_all | of_sgd | of_linear
    assert keys(SVC(client=SimulatedCluster(2))) == of_all | of_svms
    assert keys(LinearSVC(client=SimulatedCluster(2))) == of_all | of_linear_svms
    source = (DOCS.parent / "dsgd" / "torch" / "estimator.py").read_text(encoding="utf-8")
    told = source[source.index("self._take_report(") :]
    told = told[: told.index("\n        )")]
    assert {*re.findall(r"^            (\w+)=", told, re.MULTILINE)} == of_torch | of_sgd | {"elapsed_s", "converged"}


def test_the_tables_of_claims_are_those_of_the_registry_and_of_a_run():
    """Every source has its class, and every statement the verdict of a run that measured what is measured today."""
    for name, text in runpy.run_path(str(FIGURES / "claims.py"))["tables"]().items():
        assert (FIGURES / name).read_text(encoding="utf-8") == text, f"run docs/figures/claims.py: {name} is old"
    rows = [json.loads(line) for line in (FIGURES / "claims.jsonl").read_text(encoding="utf-8").splitlines()]
    old = [row["measure"] for row in rows if row["key"] != key_of(MEASURES[row["measure"]])]
    assert not old, f"run `dsgd claims`, then docs/figures/claims.py with its folder: {old} have changed"
    assert {row["measure"] for row in rows} == set(MEASURES)
