"""Row blocks on the workers of a cluster: placement, summaries, and training by a gang."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.inputs import blocks as row_blocks
from dsgd.inputs.rows import KeptPacks, Rows
from dsgd.inputs.shared import look, make_spooled_block
from dsgd.inputs.sources import check_room, is_distributed, scatter_block, scatter_rows, to_delayed_blocks
from dsgd.runtime.rank import GangResult
from dsgd.stages import stage
from dsgd.types import AnyArray, IndexVector

if TYPE_CHECKING:
    from distributed import Client, Future

    from dsgd.runtime.gang.cluster import Cluster


@dataclass(frozen=True)
class ClusterBlocks:
    """Row blocks on the workers of a cluster; `order` is None where blocks have consecutive rows."""

    cluster: Cluster
    futures: Sequence[Future]
    summaries: Sequence[row_blocks.BlockSummary]
    n_ranks: int | None = None
    ranks_per_worker: int | None = None
    resend: Callable[[int], Future] | None = None
    packed: KeptPacks | None = None
    order: IndexVector | None = None

    def targets(self) -> AnyArray:
        """Return the targets of all rows, in the order of the blocks; they come here from the workers."""
        with released([]) as held:
            held += self.cluster.map(row_blocks.targets_of, self.futures)
            return np.concatenate(self.cluster.gather(held, "reading targets"))

    def run(self, work: row_blocks.Work, terms: row_blocks.Terms) -> GangResult:
        """Run a rank program over the blocks; see `run_on_cluster`."""
        from dsgd.runtime import run_on_cluster
        from dsgd.runtime.worker.store import PackedAs

        name, is_packed = self._name_packed(work)
        with released([]) as held:
            beside = work.beside if work.beside is not None else self._starts() if work.numbered else None
            futures, resend = (self.futures, self.resend) if beside is None else self._extended(beside, held)
            result = run_on_cluster(
                work.program,
                futures,
                client=replace(terms.gang, client=self.cluster.client),
                pack=work.pack,
                # Rows sent from here are already cut for the ranks, in the same way wherever these run.
                cut=work.cut if self.resend is None else None,
                args=work.args,
                n_ranks=self.n_ranks,
                ranks_per_worker=self.ranks_per_worker,
                block_rows=[s.rows for s in self.summaries],
                block_nbytes=[s.nbytes for s in self.summaries],
                reload=resend,
                # Workers are asked for the memory of the blocks that they will pack.
                demand=None if is_packed else work.demand,
                mail=work.mail,
                given=work.given,
                packed_as=PackedAs(name, self.packed.anchors) if self.packed is not None and name else None,
                on_event=terms.on_event,
                title=terms.title,
            )
        if self.packed is not None and name:
            self.packed.add(name)
        return result

    def _name_packed(self, work: row_blocks.Work) -> tuple[str, bool]:
        """Return the name under which workers keep packed blocks, if they do, and whether they have them."""
        # What is beside them makes other blocks of them at every fit.
        if self.packed is None or work.numbered or work.beside is not None:
            return "", False
        from dsgd.runtime.worker.member import forget_packed

        name = self.packed.name_of(work.pack)
        for gone in self.packed.make_room(name):
            self.cluster.run(forget_packed, gone)
        return name, name in self.packed

    def is_there(self, client: Client) -> bool:
        """Return whether these are blocks of that client, and none is lost."""
        return self.cluster.client is client and all(future.status == "finished" for future in self.futures)

    def _starts(self) -> list[int]:
        """Return the number of the first row of each block."""
        return list(np.cumsum([0, *(s.rows for s in self.summaries)])[:-1].tolist())

    def _extended(
        self, beside: Sequence[Any], held: list[Future]
    ) -> tuple[Sequence[Future], Callable[[int], Future] | None]:
        """Return blocks with an object at the end of each, and a function that resends one; `held` gets all."""
        futures = self.cluster.map(_extend, self.futures, beside)
        held += futures
        resend = self.resend
        if resend is None:
            return futures, None

        def resend_extended(k: int) -> Future:
            held.append(self.cluster.submit(_extend, resend(k), beside[k]))
            return held[-1]

        return futures, resend_extended


def place_blocks(
    cluster: Cluster,
    given: row_blocks.Block,
    check: Callable[[], row_blocks.Block],
    expected: row_blocks.Expected,
    spread: row_blocks.Spread,
    advice: str,
    held: list[Future],
) -> ClusterBlocks:
    """Return rows as checked and summarised blocks on the workers."""
    resend: Callable[[int], Future] | None = None
    rows, partition = given, None
    if is_distributed(given[0]):
        if not spread.on_disk:
            check_room(cluster, given[0], advice)
        with stage("hand over"):
            futures = _computed(cluster, *given, expected, spread)
        held += futures
    else:
        rows = check()
        futures, partition, resend = _scattered(cluster, rows, spread, held)
        expected = replace(expected, rows_are_checked=True)
    summaries: list[row_blocks.BlockSummary]
    with stage("look") as it:
        if partition is None or spread.on_disk:
            looks = _looks(cluster, futures, expected, on_disk=spread.on_disk)
            held += looks
            summaries = cluster.gather(looks, "computing the rows", "peer")
        else:
            summaries = _seen_here(rows, partition, expected)
        it.nbytes = sum(s.nbytes for s in summaries)
    row_blocks.check_summaries(summaries)
    order = None if partition is None else partition.order
    return ClusterBlocks(cluster, futures, summaries, spread.n_ranks, spread.ranks_per_worker, resend, order=order)


def kept_blocks(
    rows: Rows,
    cluster: Cluster,
    place: Callable[[list[Any]], ClusterBlocks],
    expected: row_blocks.Expected,
    spread: row_blocks.Spread,
) -> ClusterBlocks:
    """Return the blocks that `Rows` keep on the workers, after placing them if needed."""

    def make() -> tuple[ClusterBlocks, Callable[[], object]]:
        held: list[Any] = []
        try:
            blocks = place(held)
        except BaseException:
            release(held)
            raise
        anchors = {
            address: cluster.submit(_anchor, workers=[address], allow_other_workers=False)
            for address in cluster.threads
        }
        held += anchors.values()
        cluster.settle(list(anchors.values()), "asking workers to keep rows")
        packs = KeptPacks(rows.keep, {address: future.key for address, future in anchors.items()})
        return replace(blocks, packed=packs), partial(release, held)

    # Rows of the cluster stay where they are; those of this process are cut for its ranks, by a seed.
    where = (spread.on_disk,) if is_distributed(rows.X) else (spread, tuple(sorted(cluster.threads.items())))
    return rows.opened((expected, *where), make, lambda blocks: blocks.is_there(cluster.client))


def _anchor() -> str:
    return "packed rows stay as long as this"


def _computed(
    cluster: Cluster, X: Any, y: Any, sample_weight: Any, expected: row_blocks.Expected, spread: row_blocks.Spread
) -> list[Future]:
    """Have Dask compute the blocks of a collection."""
    parts = to_delayed_blocks(
        X,
        y,
        sample_weight,
        supervised=expected.supervised,
        build=make_spooled_block if spread.on_disk else row_blocks.make_block,
        compute=lambda values: cluster.gather(cluster.compute(values), "counting the rows", "peer"),
    )
    return cluster.compute(parts)


def _scattered(
    cluster: Cluster, rows: row_blocks.Block, spread: row_blocks.Spread, held: list[Future]
) -> tuple[list[Future], row_blocks.Partition, Callable[[int], Future]]:
    """Send arrays of this process; return the blocks, their rows, and a function that sends one again."""
    X, y, weights = rows
    futures, partition = scatter_rows(cluster, X, y, weights, spread)
    held += futures

    def send_again(k: int) -> Future:
        held.append(scatter_block(cluster, X, y, weights, partition, k, on_disk=spread.on_disk))
        return held[-1]

    return futures, partition, send_again


def _seen_here(
    rows: row_blocks.Block, partition: row_blocks.Partition, expected: row_blocks.Expected
) -> list[row_blocks.BlockSummary]:
    """Summarise blocks of arrays of this process: workers need not be asked what they have just been sent."""
    return row_blocks.side_by_side(
        lambda k: row_blocks.summarise_part(rows, partition.rows(k), **asdict(expected)), partition.n_blocks
    )


def _looks(
    cluster: Cluster, futures: Sequence[Future], expected: row_blocks.Expected, *, on_disk: bool
) -> list[Future]:
    """Summarise each block where it is."""
    if not on_disk:
        return cluster.map(look, futures, expected=expected)
    # Dask takes a block on disk for a small object and would move it to any idle worker.
    cluster.settle(futures, "writing the rows to disk", "peer")
    found = cluster.survey([future.key for future in futures])["blocks"]
    return [
        cluster.submit(look, future, expected, workers=holders or None, allow_other_workers=bool(holders))
        for future, holders in zip(futures, (block["holders"] for block in found), strict=True)
    ]


def _extend(block: row_blocks.Block, beside: Any) -> tuple[Any, Any, Any, Any]:
    return (*block, beside)


@contextlib.contextmanager
def released(held: list[Any]) -> Iterator[list[Any]]:
    """Release futures when the block ends, however it ends."""
    try:
        yield held
    finally:
        release(held)


def release(held: Sequence[Any]) -> None:
    """Let go of futures."""
    for future in held:
        future.release()
