"""Calibration: constants come from what was measured, and a measured simulator has them again."""

from __future__ import annotations

from typing import Any

import pytest

from dsgd.errors import InvalidParameterError
from dsgd.sim import Compute, Link, Network, SimulatedCluster, calibrate, calibration
from dsgd.sync import ASGD, DPSGD, OneShotAveraging

WAY = Link(byte_s=2e-9, overhead_s=3e-4)
COMPUTE = Compute(entry_s=3e-9, row_s=4e-8, param_s=2e-9, call_s=5e-5, added_byte_s=0.0)


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure on fewer rows: what is measured here is not meant to be precise."""
    small = {"_WIDE": 64, "_LONG": 4096, "_MANY": 64, "_N_TURNS": 1}
    for name, value in small.items():
        monkeypatch.setattr(calibration, name, value)
    monkeypatch.setattr(calibration, "_KINDS", ((8, 1), (8, 64), (64, 64), (4096, 1)))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "sync"), [(2, None), (3, DPSGD(every=9))], ids=repr)
def test_the_constants_of_a_simulator_are_found_again(ranks, sync, monkeypatch):
    """Where the gang that is measured is itself simulated, calibration finds the numbers that it was given."""
    cluster = SimulatedCluster(ranks, Network("given", WAY, WAY), COMPUTE)
    monkeypatch.setattr(calibration, "run_on_threads", lambda program, data, args: cluster.run(program, data, args))
    found = calibrate(ranks=ranks, sync=sync)
    assert found.ranks == ranks
    assert found.network.between.byte_s == pytest.approx(WAY.byte_s, rel=0.02)
    assert found.network.between.alpha_s == pytest.approx(WAY.alpha_s, rel=0.02)
    for name in ("entry_s", "row_s", "call_s", "param_s"):
        assert getattr(found.compute, name) == pytest.approx(getattr(COMPUTE, name), rel=0.1), name
    assert found.cluster() == SimulatedCluster(ranks, found.network, found.compute)


@pytest.mark.slow
def test_threads_can_be_measured():
    """Two threads of this process give numbers that a cluster can be simulated with."""
    found = calibrate()
    assert found.ranks == 2
    assert found.compute.entry_s >= 0.0
    assert "2 ranks over inproc" in found.network.source
    assert found.cluster().ranks == 2


@pytest.mark.parametrize(
    "options", [{"ranks": 1}, {"sync": ASGD()}, {"sync": OneShotAveraging()}], ids=lambda options: str(options)
)
def test_what_cannot_be_measured_is_refused(options: dict[str, Any]):
    """One rank alone, servers, and strategies without a period of rows are refused by name."""
    with pytest.raises(InvalidParameterError, match="calibrate"):
        calibrate(**options)
