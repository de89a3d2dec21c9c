"""Row blocks of a simulated cluster: one per rank, in this process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.inputs.asked import OF_CLUSTERS, Expected, Spread, Terms, Work
from dsgd.inputs.blocks import Block, BlockSummary, make_block, targets_of
from dsgd.inputs.partition import partition_rows
from dsgd.inputs.spool import look
from dsgd.runtime.rank import GangResult
from dsgd.types import AnyArray, IndexVector

if TYPE_CHECKING:
    from dsgd.sim import SimulatedCluster


def is_simulated(client: Any) -> TypeGuard[SimulatedCluster]:
    """Return whether a client is a simulated cluster."""
    # Where nobody has loaded their class there are none, and to load it takes as long as many a fit.
    module = sys.modules.get("dsgd.sim.cluster")
    return module is not None and isinstance(client, module.SimulatedCluster)


@dataclass(frozen=True)
class SimulatedBlocks:
    """The counterpart of `dsgd.inputs.ClusterBlocks` on a simulated cluster.

    - `order`, shape (n_rows,): the rows of an array in the order of the blocks; None where blocks have consecutive
      rows.
    """

    cluster: SimulatedCluster
    blocks: Sequence[Block]
    summaries: Sequence[BlockSummary]
    order: IndexVector | None = None

    def targets(self) -> AnyArray:
        """Return the targets of all rows, in the order of the blocks."""
        return np.concatenate([targets_of(block) for block in self.blocks])

    def run(self, work: Work, terms: Terms) -> GangResult:
        """Run a rank program over the blocks; see `dsgd.inputs.ClusterBlocks.run`.

        Parameters about how workers cut and hold rows have no effect here.
        """
        for name, only in OF_CLUSTERS.items():
            asked = getattr(terms, name)
            if asked != only:
                raise IncompatiblePartsError(
                    f"{name}={asked!r} applies to real clusters, but client={self.cluster!r} is simulated. "
                    f"Leave {name} at {only!r}."
                )
        blocks: list[Any] = list(self.blocks)
        beside = work.beside
        if work.numbered:
            beside = list(accumulate((s.rows for s in self.summaries[:-1]), initial=0))
        if beside is not None:
            blocks = [(*block, each) for block, each in zip(self.blocks, beside, strict=True)]
        data = [work.pack([block], rank) for rank, block in enumerate(blocks)]
        return self.cluster.run(
            work.program, data, work.args, on_event=terms.on_event, mail=work.mail, given=work.given
        )


def cut_rows(cluster: SimulatedCluster, rows: Block, expected: Expected, spread: Spread) -> SimulatedBlocks:
    """Cut arrays into one block per rank, as for workers, and summarise each."""
    _check_spread(cluster, spread)
    X, _, weights = rows
    partition = partition_rows(X.shape[0], weights, cluster.ranks, seed=spread.seed)
    blocks = [partition.block(rows, k) for k in range(cluster.ranks)]
    return SimulatedBlocks(cluster, blocks, [look(block, expected) for block in blocks], partition.order)


def holds_blocks(X: Any) -> bool:
    """Return whether X is a list of the blocks of all ranks: tuples (X, y) or (X, y, sample_weight)."""
    return isinstance(X, (list, tuple)) and bool(X) and all(_is_block(item) for item in X)


def _is_block(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) in (2, 3) and len(getattr(item[0], "shape", ())) > 1


def take_rows(cluster: SimulatedCluster, X: Sequence[Any], expected: Expected, spread: Spread) -> SimulatedBlocks:
    """Summarise the blocks of each rank without changing them, like blocks made on workers."""
    _check_spread(cluster, spread)
    if len(X) != cluster.ranks:
        raise InvalidDataError(f"X is a list of {len(X)} blocks, but client={cluster!r} wants one for each rank.")
    blocks = [make_block(block) for block in X]
    return SimulatedBlocks(cluster, blocks, [look(block, expected) for block in blocks])


def _check_spread(cluster: SimulatedCluster, spread: Spread) -> None:
    """Raise unless the cluster has the number of ranks asked for, and rows are in memory."""
    n_ranks = spread.n_ranks
    if n_ranks is not None and n_ranks != cluster.ranks:
        raise InvalidParameterError(f"n_jobs={n_ranks} is not what client={cluster!r} has: leave n_jobs at None.")
    if spread.on_disk:
        raise IncompatiblePartsError(f"out_of_core=True applies to real clusters, but client={cluster!r} is simulated.")
