"""Whether a job fits into the memory of its workers, checked before any data move.

A worker uses some memory already, including the blocks that Dask holds there. In addition it needs room for its packed
blocks, for the largest of them once more while it is copied, for blocks from other workers as far as they are kept
(`dsgd.runtime.worker.member`), and for the training of its ranks. It may fill its limit up to where Dask pauses it.

All of it is known before: rows, entries and types of the blocks from the look that was taken at each, limits and use
from the workers' heartbeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dsgd.errors import MemoryLimitError

#: What a Dask worker may fill before it pauses (distributed.worker.memory.pause).
USABLE: Final = 0.8
#: Blocks from other workers are kept up to this share of the limit (as distributed.worker.memory.transfer).
KEPT_SHARE: Final = 0.1


@dataclass(frozen=True)
class MemoryDemand:
    """What a job needs of the memory of its workers."""

    packed: tuple[int, ...] | None = None
    per_worker: int = 0
    per_rank: int = 0
    advice: str = "Give workers more memory, or use more of them."


def needed_bytes(
    demand: MemoryDemand, packed: int, block_nbytes: Sequence[int], moved: int, memory_limit: int, n_ranks: int
) -> int:
    """Return the bytes that a worker needs beyond what it uses now."""
    kept = min(moved, int(KEPT_SHARE * memory_limit)) if memory_limit else moved
    return packed + max(block_nbytes, default=0) + kept + demand.per_worker + n_ranks * demand.per_rank


def refuse(who: str, needed: int, *, used: int, memory_limit: int, advice: str) -> None:
    """Raise if a worker has less memory left than it needs."""
    available = max(0, int(USABLE * memory_limit) - used)
    if memory_limit and needed > available:
        raise MemoryLimitError(
            f"{who} needs {_mib(needed)} ({needed:,} bytes) and has {_mib(available)} ({available:,} bytes) available: "
            f"{USABLE:.0%} of its limit of {_mib(memory_limit)}, less {_mib(used)} in use. {advice}"
        )


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB" if nbytes < 10 * 2**30 else f"{nbytes / 2**30:,.1f} GiB"
