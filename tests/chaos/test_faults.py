"""One scenario for every fault; `test_soak` draws more of them at random."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.scenarios import Scenario, draw
from chaos.table import newest, summary

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


def test_the_table_of_a_soak_counts_each_run_once() -> None:
    """A run that was played again counts as it ended last, and it is not forgotten that it had failed before."""
    rows = [
        {"seed_of_soak": 0, "number": 0, "fault": "SIGKILL", "complaint": "left behind", "outcome": "model"},
        {"seed_of_soak": 0, "number": 1, "fault": "SIGKILL", "outcome": "error", "seconds": 0.5},
        {"seed_of_soak": 0, "number": 0, "fault": "SIGKILL", "outcome": "model", "seconds": 0.25},
        {"seed_of_soak": 1, "number": 0, "fault": "ctrl-C", "complaint": "harmed", "outcome": "interrupted"},
    ]
    found = summary(newest(rows))
    assert (found["SIGKILL"]["runs"], found["SIGKILL"]["model"], found["SIGKILL"]["error"]) == (2, 1, 1)
    assert (found["SIGKILL"]["worst_s"], found["SIGKILL"]["left behind"]) == (0.5, 0)
    assert found["SIGKILL"]["ever failed"] == found["ctrl-C"]["ever failed"] == 1
    assert (found["ctrl-C"]["harmed"], found["ctrl-C"]["worst_s"]) == (1, None)


def test_a_scenario_can_be_replayed() -> None:
    """The same seed and number draw the same scenario, others draw others."""
    drawn = [draw(seed, number) for seed in (0, 1) for number in range(50)]
    assert drawn == [draw(seed, number) for seed in (0, 1) for number in range(50)]
    assert len(set(drawn)) == len(drawn)
