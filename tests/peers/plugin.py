"""A pytest plugin that puts our estimators in the place of scikit-learn's before its test modules are imported.

Loaded by ``-p peers.plugin``. What every test came to is written to the file that ``DSGD_PEERS_REPORT`` names, as JSON:
the test's number in scikit-learn's tree, "passed", "failed" or "skipped", and the line that says why it failed.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import pytest

import dsgd
import dsgd.svm

#: Our classes, by the modules that tests import theirs from.
REPLACED = {
    "sklearn.svm": dsgd.svm,
    "sklearn.svm._classes": dsgd.svm,
    "sklearn.linear_model": dsgd,
    "sklearn.linear_model._stochastic_gradient": dsgd,
}
NAMES = ("SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM", "LinearSVC", "LinearSVR", "SGDClassifier", "SGDRegressor")

_outcomes: dict[str, tuple[str, str]] = {}


def pytest_configure() -> None:
    """Replace the names."""
    for theirs, ours in REPLACED.items():
        module = importlib.import_module(theirs)
        for name in NAMES:
            if hasattr(module, name) and hasattr(ours, name):
                setattr(module, name, getattr(ours, name))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take down what a test came to; an error before or after it counts as a failure."""
    before, _ = _outcomes.get(report.nodeid, ("passed", ""))
    if report.outcome == "passed" or before == "failed":
        _outcomes.setdefault(report.nodeid, ("passed", ""))
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash is not None else str(report.longrepr)).splitlines()
    _outcomes[report.nodeid] = (report.outcome, lines[0] if lines else "")


def pytest_sessionfinish() -> None:
    """Write the report."""
    Path(os.environ["DSGD_PEERS_REPORT"]).write_text(json.dumps(_outcomes), encoding="utf-8")
