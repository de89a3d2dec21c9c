"""The row blocks of a job: their sizes and places, and recovery of lost ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dsgd.errors import ClusterError, InvalidParameterError
from dsgd.runtime.gang.job_handle import JobHandle
from dsgd.runtime.plan import Block

if TYPE_CHECKING:
    from distributed import Future

_SLICE_S: Final = 0.5
# Pause between two searches for the blocks of a lost worker.
_LOST_S: Final = 0.02


class JobBlocks:
    """The blocks that a job trains on; see `run_on_cluster`."""

    def __init__(
        self,
        futures: Sequence[Future],
        rows: Sequence[int] | None,
        nbytes: Sequence[int] | None,
        packed: Sequence[int] | None,
        reload: Callable[[int], Future] | None,
    ) -> None:
        self.futures = list(futures)
        self.rows = rows
        self._nbytes, self._packed, self._reload = nbytes, packed, reload
        for name, counts in (("block_rows", rows), ("block_nbytes", nbytes)):
            if counts is not None and len(counts) != len(self.futures):
                raise InvalidParameterError(
                    f"{name}=... must have one entry for each of {len(self.futures)} blocks, got {len(counts)}."
                )

    def described(self, survey: Mapping[str, Any]) -> list[Block]:
        """Return the data of a plan: what the caller knows about each block, and where a survey found it."""
        return [
            Block(
                index,
                block["nbytes"] if self._nbytes is None else int(self._nbytes[index]),
                tuple(block["holders"]),
                None if self.rows is None else int(self.rows[index]),
                None if self._packed is None else self._packed[index],
            )
            for index, block in enumerate(survey["blocks"])
        ]

    def wait(self, handle: JobHandle, missing: Callable[[Mapping[str, Any]], Sequence[int]]) -> dict[str, Any]:
        """Wait until every block that is needed is in memory; return the survey that found them.

        A block that was lost with its worker is computed again by Dask if Dask had computed it. A scattered block is
        forgotten, and the client has to send it again.
        """
        deadline = time.monotonic() + handle.timeout_s
        while True:
            handle.cluster.wait(self._settled, "waiting for rows")
            pending = [future.key for future in self.futures if future.status == "pending"]
            if pending:
                handle.cluster.check_silence("computing rows", keys=pending, limit="peer")
            survey = handle.survey([future.key for future in self.futures])
            lost = missing(survey)
            if not lost:
                return survey
            for index in lost:
                status = self.futures[index].status
                if status == "error":
                    self.futures[index].result()  # raises the error of computing the block
                is_forgotten = status == "cancelled" or not survey["blocks"][index]["known"]
                if is_forgotten and not self._is_sent_again(index, status, deadline):
                    break
            time.sleep(_LOST_S)

    async def _settled(self) -> None:
        """Wait a moment for blocks that are being computed."""
        # Not distributed.wait, which raises if one was cancelled: that block may be sent again.
        waits = [asyncio.ensure_future(future.exception()) for future in self.futures if future.status == "pending"]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=_SLICE_S)
            for wait in pending:
                wait.cancel()

    def _is_sent_again(self, index: int, status: str, deadline: float) -> bool:
        """Send a block that the cluster has forgotten; return False if a new survey is needed first."""
        if self._reload is None:
            raise ClusterError(
                f"block {index} is {status}: it cannot be recovered. It was cancelled, or its worker is gone and it "
                "was not computed by Dask, which could do so again. Load the data again."
            )
        try:
            self.futures[index] = self._reload(index)
        except (KeyError, OSError, ClusterError) as problem:
            # The worker that it was sent to has just left, or there is none for a moment.
            if time.monotonic() >= deadline:
                raise ClusterError(f"block {index} could not be sent to any worker: {problem!r}") from problem
            return False
        return True
