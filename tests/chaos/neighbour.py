"""Another user of the cluster, whom faults of a fit must not harm."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from distributed import Client, Future


class Neighbour:
    """Keeps an object on every worker, and knows its process.

    Parameters
    ----------
    client : Client
        Of somebody who has no part in the fits.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.pids: dict[str, int] = client.run(os.getpid)
        self.kept: dict[str, Future] = {
            worker: client.scatter([worker], workers=[worker], hash=False)[0] for worker in self.pids
        }

    def losses(self, hit: Collection[str] = ()) -> list[str]:
        """Return which workers but those that were hit ended, or lost what was kept there."""
        holders = self.client.run_on_scheduler(_holders, [future.key for future in self.kept.values()])
        alive: dict[str, int] = self.client.run(os.getpid, on_error="ignore")
        lost = []
        for worker, pid in self.pids.items():
            if worker in hit:
                continue
            if alive.get(worker) != pid:
                lost.append(f"worker {worker} ended")
            elif not holders[self.kept[worker].key]:
                lost.append(f"worker {worker} lost the data of another user")
        return lost

    def leave(self) -> None:
        """Release what is kept."""
        for future in self.kept.values():
            future.release()
        self.kept.clear()


def _holders(keys: list[str], dask_scheduler: Any) -> dict[str, list[str]]:
    tasks = dask_scheduler.tasks
    return {key: [ws.address for ws in tasks[key].who_has or ()] if key in tasks else [] for key in keys}
