"""Whole trainings: every strategy and every compressor goes where its twin in plain numpy goes.

Four simulated ranks train, one of them is lost, the others resume from a checkpoint, and it joins again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.checkpoints import checkpoint
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sim import Compute, SimulatedCluster
from dsgd.sim.network import AbstractStragglers
from dsgd.sync import AbstractStrategy
from members import Member, having
from reference import trajectories as twins

#: Rows take so long that messages take no time beside them.
SLOW = Compute(row_s=1e-2)


@dataclass(frozen=True)
class InTurn(AbstractStragglers):
    """Each rank takes a little longer than the one before, so that they come in their order wherever they meet."""

    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return the factor of a rank."""
        return 1.0 + 0.02 * rank


def trained(strategy: AbstractStrategy[Any], folder: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the models of all ranks after every epoch, and the model that training returns."""
    X, y = twins.rows()
    sgd = SGD(Objective("squared_error", "l2", twins.ALPHA), schedule="constant", eta0=twins.RATE)
    n_epochs = sum(epochs for _, epochs in twins.GANGS)
    job = TrainJob(sgd, strategy, twins.FIRST, n_epochs, None, 5)
    after: list[np.ndarray] = []
    lost, write, returned = 0, checkpoint.write, np.zeros(0)

    def note(target: Checkpoint, state: Any) -> None:
        # A gang does not know that it will lose a rank: it trains on, and these epochs are dropped.
        if len(after) < lost and state.position[1] == 0:
            after.append(state.arrays["params"].copy())
        if state.position == (lost, 0):
            write(target, state)

    with mock.patch.object(checkpoint, "write", note):
        for size, epochs in twins.GANGS:
            shard, n = make_shard(X, y, shuffle=False), twins.N_ROWS // size
            data = [TrainData(shard.rows(n * rank, n * (rank + 1))) for rank in range(size)]
            part = replace(job, checkpoint=Checkpoint(folder, every_s=0), resume_from=str(folder) if lost else None)
            lost += epochs
            cluster = SimulatedCluster(size, "100GbE", compute=SLOW, stragglers=InTurn())
            returned = cluster.run(train, data, (part,), mail=mail_for(part)).value.params
    return after, returned


@pytest.mark.parametrize("member", having("training"), ids=repr)
def test_a_training_goes_where_its_twin_goes(member: Member, tmp_path: Path) -> None:
    """The models after every epoch are those of the twin, to ten digits; ranks of different rows make them move."""
    assert member.training is not None
    expected, last = twins.trajectory(member.training(member.strategy, member.twin))
    after, returned = trained(member.strategy, tmp_path)
    assert np.linalg.norm(expected[-1] - expected[0], axis=1).min() > 0.1
    for epoch, (ours, theirs) in enumerate(zip([*after, returned], [*expected, last], strict=True), 1):
        where = f"epoch {epoch}" if epoch <= len(after) else "the model that is returned"
        ours = np.broadcast_to(ours, theirs.shape)  # ranks with one model keep it once
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10, err_msg=f"{member!r} leaves its twin at {where}")
