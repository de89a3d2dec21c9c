"""Fetching the blocks of a rank from Dask, one at a time.

Problem: a task that lists its blocks as inputs has all of them in memory before it begins, those that Dask had spilled
to disk included. Packing needs one at a time.

Method: the rank gets keys, not blocks. To read a block it asks its own worker for it (Dask reads it back from disk if
it was spilled) or, if the block is elsewhere, the worker that has it; the block is released after reading. Dask does
not know of the copies sent between workers, so it keeps none of them. Up to a tenth of the worker's memory (Dask's
limit for data in transit), such copies are kept until the rank has finished with its blocks, so that a second read does
not transfer them again.

Cost: one hop to the event loop of the worker for a block that is here; one look-up at the scheduler and one transfer
for one that is not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, overload

from dsgd.comm.abort import AbortFlag
from dsgd.errors import GangTimeoutError
from dsgd.runtime.dask_internals import fetch_block
from dsgd.runtime.memory import KEPT_SHARE
from dsgd.runtime.worker.rendezvous import on_loop
from dsgd.stages import stage

if TYPE_CHECKING:
    from distributed import Worker

_RETRY_S: Final = 0.1


class HeldBlocks(Sequence[Any]):
    """Blocks that Dask holds somewhere on the cluster; every access fetches one."""

    def __init__(
        self,
        worker: Worker,
        keys: Sequence[Any],
        nbytes: Sequence[int],
        abort: AbortFlag,
        timeout_s: float,
        memory_limit: int = 0,
    ) -> None:
        self._worker = worker
        self._keys = tuple(keys)
        self._nbytes = tuple(nbytes)
        self._abort = abort
        self._timeout_s = timeout_s
        self._kept: dict[int, Any] = {}
        self._room = KEPT_SHARE * memory_limit if memory_limit else float("inf")

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        self._abort.check()
        if index in self._kept:
            return self._kept[index]
        with stage("fetch", self._nbytes[index]):
            return self._fetch(index)

    def close(self) -> None:
        """Let go of the blocks that were kept."""
        self._kept.clear()

    def _fetch(self, index: int) -> Any:
        """Wait for a block: as long as its future is held, Dask computes it again where it was lost."""
        key = self._keys[index]
        deadline = time.monotonic() + self._timeout_s
        while (remaining := deadline - time.monotonic()) > 0:
            problem = f"no worker is known to have block {key!r}"
            found, travelled = on_loop(
                self._worker, fetch_block(self._worker, key), remaining, problem, self._abort.check
            )
            if found:
                if travelled and self._nbytes[index] <= self._room:
                    self._kept[index] = found[0]
                    self._room -= self._nbytes[index]
                return found[0]
            self._abort.check()
            time.sleep(_RETRY_S)
        raise GangTimeoutError(
            f"worker {self._worker.address} waited {self._timeout_s:g} s for block {key!r}, which no worker holds."
        )
