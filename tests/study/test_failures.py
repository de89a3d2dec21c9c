"""The study of failures: the model that simulated machines are compared with, and what tables say of rows."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from dsgd.study import study_page
from dsgd.study.failures import STUDY, expected
from study_rows import made_rows

SMALL = STUDY.replace(strategies=("local",), rates=(1.0,), every=(30.0,), policies=("restart",), seeds=(0, 1))


def run(**changes: Any) -> SimpleNamespace:
    """Return the columns of a run on eight machines, of which one fails every 450 seconds."""
    machines = {"ranks": 8, "rate": 1.0, "policy": "restart", "strategy": "local"}
    seconds = {"every": 30.0, "seconds": 3600.0, "restart": 0.0, "copy": 1.0}
    return SimpleNamespace(**machines | seconds | changes)


def test_the_model_of_failures_has_its_known_limits() -> None:
    """Rare failures cost what copies take, Young's interval is the best one, and what begins anew rarely ends."""
    assert expected(run(rate=1e-6)) == pytest.approx(30.0 / 31.0, abs=1e-4)
    best_s = math.sqrt(2.0 * 450.0)
    shares = [expected(run(every=best_s * factor)) for factor in (0.5, 0.8, 1.0, 1.25, 2.0)]
    assert max(shares) == shares[2]
    assert expected(run(restart=45.0)) == pytest.approx(expected(run()) * math.exp(-0.1))
    # Eight failures are expected in an hour: the chance of none, times what an attempt costs.
    assert expected(run(policy="raise")) == pytest.approx(8.0 / math.expm1(8.0))
    assert expected(run(policy="shrink", rate=1e-6)) == pytest.approx(30.0 / 31.0, abs=1e-4)
    assert expected(run(policy="shrink")) < expected(run())
    assert expected(run(strategy="asgd")) == expected(run(every=60.0))


@pytest.mark.parametrize(("worse", "share"), [(0.5, "66.7%"), (0.0, "0.0%")])
def test_goodput_is_that_of_all_seconds_of_all_seeds(worse: float, share: str) -> None:
    """A fit that takes twice as long has twice the weight, and one that never ends has all of it."""

    def found(run: Any) -> dict[str, Any]:
        return {"goodput": worse if run.seed else 1.0, "n_failures": 2, "test_accuracy": 0.9}

    table = study_page(SMALL, made_rows(SMALL, found)).tables[0]
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert (cells["goodput"], cells["failures"]) == (share, "2")
    assert (cells["Daly"], cells["Young"]) == (f"{expected(run(restart=20.0)):.1%}", "30 s")
