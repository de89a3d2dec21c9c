"""Gangs of thousands join, and end well or not: members are coroutines, and of the rest only the plugin is real."""

from __future__ import annotations

import pytest

from benchmarks.simulation.control_plane import CASES, ControlPlane


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("n", [1024, 4096])
@pytest.mark.parametrize("how", CASES)
def test_a_gang_of_thousands_ends_and_leaves_nothing(how: str, n: int) -> None:
    """However it ends, every member is told once, and nothing is left in the scheduler."""
    plane = ControlPlane(n, apart_s=0.0005)
    plugin, messages = plane.plugin, plane.traffic.messages
    try:
        plane.run(how)
        assert not plugin.registry.jobs
        assert not plugin.registry.leases
        assert not plugin._meetings
        assert not plugin._changed
        assert messages["to workers"] <= 3 * n
        assert messages.total() <= 10.5 * n
    finally:
        plane.close()
