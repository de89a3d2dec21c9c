"""Golden trajectories: every strategy and every compressor goes where its twin in plain numpy has gone.

Four simulated ranks train, one of them is lost, the others resume from a checkpoint, and it joins again. A difference
is reported with the epoch in which it begins. ``make golden`` writes the files again, from the twins.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import dsgd.sync
from dsgd import compress
from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.checkpoints import writer
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sim import Compute, SimulatedCluster
from dsgd.sim.compute import AbstractStragglers
from dsgd.sync import AbstractStrategy
from golden_members import FOLDER, MEMBERS, Member, text_of
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
    lost, write, returned = 0, writer.write, np.zeros(0)

    def note(target: Checkpoint, state: Any) -> None:
        # A gang does not know that it will lose a rank: it trains on, and these epochs are dropped.
        if len(after) < lost and state.position[1] == 0:
            after.append(state.arrays["params"].copy())
        if state.position == (lost, 0):
            write(target, state)

    with mock.patch.object(writer, "write", note):
        for size, epochs in twins.GANGS:
            shard, n = make_shard(X, y, shuffle=False), twins.N_ROWS // size
            data = [TrainData(shard.rows(n * rank, n * (rank + 1))) for rank in range(size)]
            part = replace(job, checkpoint=Checkpoint(folder, every_s=0), resume_from=str(folder) if lost else None)
            lost += epochs
            cluster = SimulatedCluster(size, "100GbE", compute=SLOW, stragglers=InTurn())
            returned = cluster.run(train, data, (part,), mail=mail_for(part)).value.params
    return after, returned


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_a_training_goes_where_it_went(member: Member, tmp_path: Path) -> None:
    """The models after every epoch are those of the file, to ten digits."""
    file = FOLDER / f"{member.name}.json"
    golden = json.loads(file.read_text())
    assert golden["strategy"] == type(member.strategy).__name__
    after, returned = trained(member.strategy, tmp_path)
    assert len(after) == len(golden["models"])
    found = [*after, returned[None]]
    expected = [np.array(models) for models in [*golden["models"], [golden["returned"]]]]
    for epoch, (ours, theirs) in enumerate(zip(found, expected, strict=True), 1):
        apart = np.abs(ours - theirs)
        if not apart.max() <= 1e-10:
            rank, entry = np.unravel_index(apart.argmax(), apart.shape)
            last = np.abs(found[-1] - expected[-1]).max()
            where = f"epoch {epoch}" if epoch <= len(after) else "the model that is returned"
            pytest.fail(
                f"{member.strategy!r} leaves {file.name} at {where}: rank {rank} has {ours[rank, entry]!r} at place "
                f"{entry} and not {np.broadcast_to(theirs, ours.shape)[rank, entry]!r}, {apart.max():.2g} apart; in "
                f"the end {last:.2g}."
            )


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_files_are_what_twins_write(member: Member) -> None:
    """No file is older than its twin, and ranks of different rows make a trajectory that moves."""
    written, again = ((json.loads(text)) for text in ((FOLDER / f"{member.name}.json").read_text(), text_of(member)))
    assert [len(models) for models in written["models"]] == [len(models) for models in again["models"]]
    for ours, theirs in zip(
        [*written["models"], written["returned"]], [*again["models"], again["returned"]], strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-11)
    assert np.linalg.norm(np.subtract(written["models"][-1][0], written["models"][0][0])) > 0.1


def test_every_strategy_and_every_compressor_has_a_file() -> None:
    """What is offered is in the list, but for memories, names and what makes no method of its own."""
    strategies = {type(member.strategy).__name__ for member in MEMBERS}
    offered = {
        name
        for name, value in vars(dsgd.sync).items()
        if isinstance(value, type) and issubclass(value, AbstractStrategy) and not name.startswith("Abstract")
    }
    assert offered <= strategies
    used = " ".join(repr(member.strategy) for member in MEMBERS)
    for name, value in vars(compress).items():
        if isinstance(value, type) and issubclass(value, compress.AbstractCompressor):
            assert name == "AbstractCompressor" or f"{name}(" in used
