"""Row blocks of a simulated cluster: they lie in this process, one per rank, as they would lie on the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.inputs.blocks import Block, BlockSummary, summarise
from dsgd.inputs.dealing import deal_rows
from dsgd.runtime.rank import GangResult, Mail, RankProgram
from dsgd.sim import SimulatedCluster

__all__ = ["SimulatedBlocks", "cut_rows"]


@dataclass(frozen=True)
class SimulatedBlocks:
    """What `dsgd.inputs.ClusterBlocks` is on a cluster.

    Parameters
    ----------
    cluster : SimulatedCluster
        Where ranks run.
    blocks : sequence of tuple
        Of each rank, (X, y, sample_weight).
    summaries : sequence of BlockSummary
        What one look at each has shown.
    """

    cluster: SimulatedCluster
    blocks: Sequence[Block]
    summaries: Sequence[BlockSummary]

    def run(
        self,
        program: RankProgram,
        pack: Callable[[Sequence[Any], int], Any],
        args: tuple[Any, ...],
        *,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
        transport: str = "auto",
        numbered: bool = False,
        on_failure: object = "raise",
        elastic: bool = False,
        mail: Mail | None = None,
        given: Any = None,
        title: str | None = None,
        **others: Any,
    ) -> GangResult:
        """Run a rank program over the blocks; see `dsgd.inputs.ClusterBlocks.run`.

        Raises
        ------
        IncompatiblePartsError
            What is asked for needs machines that exist.
        """
        del others  # how workers cut and hold rows
        for name, asked, only in (
            ("transport", transport, "auto"),
            ("on_failure", on_failure, "raise"),
            ("elastic", elastic, False),
        ):
            if asked != only:
                raise IncompatiblePartsError(
                    f"{name}={asked!r} is of real clusters, client={self.cluster!r} is a simulated one. Leave {name} "
                    f"at {only!r}."
                )
        blocks: list[Any] = list(self.blocks)
        if numbered:
            first = 0
            for k, block in enumerate(self.blocks):
                blocks[k] = (*block, first)
                first += self.summaries[k].rows
        data = [pack([block], rank) for rank, block in enumerate(blocks)]
        return self.cluster.run(program, data, args, on_event=on_event, mail=mail, given=given)


def cut_rows(
    cluster: SimulatedCluster,
    rows: Block,
    n_ranks: int | None,
    *,
    out_of_core: bool,
    classification: bool,
    supervised: bool,
    any_shape: bool = False,
    seed: int | None = None,
) -> SimulatedBlocks:
    """Cut arrays into one block per rank, as they would be sent to workers, and look at each.

    Parameters
    ----------
    cluster : SimulatedCluster
        Says how many ranks there are.
    rows : tuple
        (X, y, sample_weight).
    n_ranks : int or None
        How many ranks the estimator asks for; None for all.
    out_of_core : bool
        Whether rows should lie on disk.
    classification, supervised, any_shape : bool
        See `summarise`.
    seed : int or None, default None
        Deals rows to ranks at random; None leaves neighbours together.

    Raises
    ------
    InvalidParameterError
        The cluster has another number of ranks.
    IncompatiblePartsError
        Rows of a simulated cluster are always in memory.
    """
    if n_ranks is not None and n_ranks != cluster.ranks:
        raise InvalidParameterError(f"n_jobs={n_ranks} is not what client={cluster!r} has: leave n_jobs at None.")
    if out_of_core:
        raise IncompatiblePartsError(f"out_of_core=True is of real clusters, client={cluster!r} is a simulated one.")
    X, _, weights = rows
    deal = deal_rows(X, weights, cluster.ranks, seed=seed)
    blocks = [deal.block(rows, k) for k in range(cluster.ranks)]
    asked = {"classification": classification, "supervised": supervised, "any_shape": any_shape}
    looks = [summarise(block, **asked) for block in blocks]
    return SimulatedBlocks(cluster, blocks, looks)
