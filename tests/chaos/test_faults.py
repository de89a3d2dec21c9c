"""One scenario for every fault; `test_soak` draws more of them at random."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.scenarios import Scenario, draw

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario("SIGKILL", "training", n_fits=2),
        Scenario("SIGKILL", "training", policy="restart"),
        Scenario("SIGSTOP", "load", policy="shrink", kind="array"),
        Scenario("retire", "epoch end"),
        Scenario("worker restart", "load"),
        Scenario("cluster restart", "plan"),
        Scenario("client SIGKILL", "rendezvous", kind="numpy"),
        Scenario("ctrl-C", "queue"),
        Scenario("half-open connection", "rendezvous"),
        Scenario("garbage on the data port", "first round"),
        Scenario("full /dev/shm", "plan"),
        Scenario("delay", "training"),
        Scenario("wrong clock", "load"),
        Scenario("EMFILE", "load"),
        Scenario("ctrl-C twice", "first round"),
        Scenario("downscaling", "collect"),
        Scenario("SIGKILL", "after"),
        Scenario("partition", "training", policy="restart", seed=1),
        Scenario("scheduler SIGKILL", "training"),
    ],
    ids=lambda scenario: f"{scenario.fault} at {scenario.step}, {scenario.policy}",
)
def test_a_fault_leaves_nothing_behind(stage: Callable[[Scenario], None], scenario: Scenario) -> None:
    """The fit ends as it must, nothing of it is left on the cluster, and the cluster trains on."""
    stage(scenario)


def test_a_scenario_can_be_replayed() -> None:
    """The same seed and number draw the same scenario, others draw others."""
    drawn = [draw(seed, number) for seed in (0, 1) for number in range(50)]
    assert drawn == [draw(seed, number) for seed in (0, 1) for number in range(50)]
    assert len(set(drawn)) == len(drawn)
