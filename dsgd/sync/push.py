"""The common part of methods whose workers send gradients to a server that takes the steps.

Every worker takes its rows in batches. It sends the mean gradient of a batch, and continues from the model that it gets
back. All shards are cut into the same number of batches, whatever their length, so a gradient is weighted by its rows:
worker p, with n_p of n rows, sends ``(P n_p / n) g_p`` together with that factor, its share. P is the number of workers
that have rows.

A server takes few steps compared with a single rank, and its gradients are stale. If rates fall like 1 / t, as they do
by default, the model at the end of an epoch is therefore the mean over its last half (`dsgd.local.suffix`);
``suffix=0.0`` leaves the last model, as in the sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.sync.period import EveryRows
from dsgd.sync.server import AbstractServerStrategy, await_epoch_model, push
from dsgd.sync.taxonomy import Taxonomy
from dsgd.types import AnyArray, FloatVector

__all__ = ["AbstractPushStrategy", "PushState"]


@dataclass
class PushState:
    """The state of a worker towards its server.

    Parameters
    ----------
    version : array of int64, shape (1,)
        Version of the model that it has.

    Attributes
    ----------
    n_with_rows : float
        How many workers of this gang have rows.
    """

    version: AnyArray

    def __post_init__(self) -> None:
        self.n_with_rows = 1.0


class AbstractPushStrategy(AbstractServerStrategy[PushState]):
    """Workers send the gradient of each batch; what the server does with it is the method.

    Attributes
    ----------
    batch : int
        Rows of a worker's gradient.
    suffix : float
        If rates fall like 1 / t, the model at the end of an epoch is the mean over this share of its steps, the last
        ones.
    """

    batch: int
    suffix: float
    exchanges = "gradient"
    taxonomy = Taxonomy("centralised", "asynchronous", "gradient", "server")

    @final
    @property
    def period(self) -> EveryRows:
        """After every batch of the rank with the most rows."""
        return EveryRows(self.batch)

    @final
    def init(self, group: Group, params: FloatVector, weight: float) -> PushState:
        """Return the record of a worker that has the model of the server."""
        state = PushState(np.zeros(1, dtype=np.int64))
        with_rows = np.array([float(weight > 0.0)])
        group.allreduce(with_rows)
        state.n_with_rows = float(with_rows[0])
        return state

    @final
    def sync(self, group: Group, vector: FloatVector, weight: float, state: PushState) -> None:
        """Send the gradient and replace it by the model of the server; see `AbstractStrategy.sync`."""
        if (share := weight * state.n_with_rows) != 1.0:
            vector *= share
        push(group, vector, state.version, score=share)

    @final
    def settle(self, group: Group, params: FloatVector, state: PushState) -> None:
        """Replace the model by that of the server; see `AbstractUnderWay.settle`."""
        state.version[0] = await_epoch_model(group, params)

    @final
    def served(self, params: FloatVector, state: PushState) -> tuple[FloatVector, int]:
        """Return the model that the server gave last; see `AbstractServerStrategy.served`."""
        return params, int(state.version[0])
