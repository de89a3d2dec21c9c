"""How long a job waits for what, where that is said, and what an error tells of the ranks."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone

import gang_programs as programs
from dsgd import SGDClassifier
from dsgd.cli import fit as command
from dsgd.errors import GangTimeoutError, InvalidParameterError
from dsgd.runtime import Timeouts
from dsgd.runtime.timeouts import DEFAULT_TIMEOUTS
from gang_cluster import client_fixture, cluster_fixture, on_ranks

cluster = cluster_fixture(2)
client = client_fixture(2)


def test_what_is_nearer_comes_first() -> None:
    """A limit is what the call says, else the record, else Dask's configuration, else the default."""
    assert Timeouts().settled() == Timeouts(**DEFAULT_TIMEOUTS)
    with dask.config.set({"dsgd.runtime.timeouts": {"queue": "2 minutes", "peer": 7, "lease": 9.5}}):
        settled = Timeouts(peer=3.0).settled(hung=1.0, queue=None)
    assert settled == Timeouts(peer=3.0, queue=120.0, hung=1.0, lease=9.5, scheduler=DEFAULT_TIMEOUTS["scheduler"])
    assert Timeouts().settled() == Timeouts(**DEFAULT_TIMEOUTS)


@pytest.mark.parametrize("value", ["soon", 0, -3, [], "-1s"])
def test_a_setting_that_is_no_time_is_named(value: Any) -> None:
    """What Dask's configuration says wrongly is refused with the name of the setting."""
    with (
        dask.config.set({"dsgd.runtime.timeouts.hung": value}),
        pytest.raises(InvalidParameterError, match=r"dsgd\.runtime\.timeouts\.hung"),
    ):
        Timeouts().settled()


def test_limits_of_estimators_and_of_the_command_line() -> None:
    """Estimators take them as a parameter, which is checked, and the command line by name."""
    model = clone(SGDClassifier(timeouts=Timeouts(queue=5.0)))
    assert model.timeouts == Timeouts(queue=5.0)
    for wrong in (5.0, "queue=5"):
        with pytest.raises(InvalidParameterError, match=r"SGDClassifier\(timeouts=\.\.\.\) must be"):
            SGDClassifier(timeouts=wrong).fit(np.eye(2), [0, 1])
    with pytest.raises(InvalidParameterError, match=r"Timeouts\(queue=\.\.\.\)"):
        Timeouts(queue=-1.0)
    assert command._timeouts(["queue=1h", "hung=30"]) == Timeouts(queue=3600.0, hung=30.0)
    assert command._timeouts(None) is None
    for wrong_text in ("queue", "queue=soon", "que=3", "hung=-1"):
        with pytest.raises(InvalidParameterError, match="--timeout"):
            command._timeouts([wrong_text])


@pytest.mark.cluster
def test_a_missed_deadline_tells_where_all_ranks_were(client: Client) -> None:
    """The error of a rank that waited in vain has the stacks of all ranks: its own, and what the other one did."""
    with pytest.raises(GangTimeoutError, match="rank 0 waited 2 s for rank 1") as caught:
        on_ranks(client, programs.wait_for_one_that_wanders, timeouts=Timeouts(peer=2.0))
    told = "\n".join(caught.value.__notes__)
    first, second = told.split("rank 0 on worker tcp://")[-1].split("rank 1 on worker tcp://")
    assert "in wander_off" in second
    assert "in wander_off" not in first
    assert "in allreduce" in first


@pytest.mark.cluster
def test_limits_reach_a_fit_on_a_cluster(client: Client) -> None:
    """An estimator waits for its peers as long as it is told to."""
    rows = np.random.default_rng(0).standard_normal((60, 3))
    slow = programs.SlowRounds(every=5, pause_s=0.0)
    model = SGDClassifier(client=client, sync=slow, max_iter=2, tol=None, timeouts=Timeouts(peer=41.0))
    assert model._terms(None).timeouts == Timeouts(peer=41.0)
    assert model.fit(rows, rows[:, 0] > 0).n_iter_ == 2
