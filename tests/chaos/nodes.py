"""The processes of a scenario: a scheduler, nannies with their workers, and clients that fit.

All are forked from one server process that has imported this module, so that a scenario which kills and replaces half
of them costs little. Each ends when the pipe to the test closes, whatever becomes of the test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import distributed.utils
import numpy as np
from dask import delayed
from distributed import Client, Nanny, Scheduler
from distributed.core import Status

import dsgd.runtime
import dsgd.runtime.gang.job
import dsgd.runtime.worker.member
from chaos.gates import GatedPack, GatedProgram, Gates, gated_block
from dsgd import Gang, SGDClassifier
from dsgd.errors import DsgdError
from dsgd.runtime import Checkpoint, Timeouts

N_BLOCKS = 6
_ROWS = 1500
_FEATURES = 20


# ---- the cluster


def run_scheduler(orders: Connection) -> None:
    """Run a scheduler until it is told to stop; its address is the first thing sent."""

    async def live() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            orders.send(scheduler.address)
            await _receive(orders)

    asyncio.run(live())


def run_workers(orders: Connection, address: str, n_threads: int) -> None:
    """Run nannies: ``("start", names)`` starts one for each name, ``("names",)`` asks which live."""

    async def live() -> None:
        nannies: list[Nanny] = []
        while (order := await _receive(orders)) is not None:
            nannies = [nanny for nanny in nannies if nanny.status not in (Status.closed, Status.failed)]
            if order[0] == "start":
                options = {"nthreads": n_threads, "host": "127.0.0.1", "dashboard": False, "memory_limit": 0}
                nannies += await asyncio.gather(*(Nanny(address, name=name, **options) for name in order[1]))
            orders.send([nanny.name for nanny in nannies])
        await asyncio.gather(*(nanny.close(timeout=5) for nanny in nannies), return_exceptions=True)

    _fork_workers()
    asyncio.run(live())


def _fork_workers() -> None:
    # Workers are forked from the server that forked this process. Python would start another one, which would have to
    # import everything once more; address and life line of the first are inherited.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    distributed.utils._forkserver_preload_set = True


async def _receive(orders: Connection) -> Any:
    """Return the next order, or None when there are no more."""
    try:
        return await asyncio.get_running_loop().run_in_executor(None, orders.recv)
    except (EOFError, OSError):
        return None


# ---- a client


@dataclass(frozen=True)
class FitOrder:
    """What a client process fits.

    Parameters
    ----------
    gates : Gates
        Where it may be held.
    kind : {"numpy", "array", "delayed"}
        What the rows are passed as.
    max_iter : int
        Epochs.
    hung_after_s, timeout_s, lease_s : float
        See `Timeouts`.
    policy : {"raise", "restart", "shrink"}
        What the fit does when a machine fails.
    transport : str
        How ranks exchange.
    checkpoint : bool
        Whether the fit writes checkpoints, several a second, into the folder of the gates.
    """

    gates: Gates
    kind: str
    max_iter: int
    hung_after_s: float = 3.0
    timeout_s: float = 300.0
    lease_s: float = 60.0
    policy: str = "raise"
    transport: str = "auto"
    checkpoint: bool = False


def rows(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return block `index` of the data, X of shape (1500, 20) and y of shape (1500,): two classes that overlap."""
    rng = np.random.default_rng(index)
    truth = np.random.default_rng(99).standard_normal(_FEATURES)
    X = rng.standard_normal((_ROWS, _FEATURES))
    return X, (X @ truth + rng.standard_normal(_ROWS) > 0).astype(np.int64)


def all_rows() -> tuple[np.ndarray, np.ndarray]:
    """Return all blocks of the data."""
    blocks = [rows(index) for index in range(N_BLOCKS)]
    return np.concatenate([X for X, _ in blocks]), np.concatenate([y for _, y in blocks])


def run_client(say: Connection, address: str, order: FitOrder) -> None:
    """Connect, fit, and say how it went.

    Sends ``("up", time)``, perhaps ``("queued", time)``, and in the end one of ``("model", time, facts)``,
    ``("error", time, name, text)`` and ``("interrupted", time)``.
    """
    # Dask itself waits that long for a scheduler that went away, before it gives up what it computes.
    with Client(address, set_as_default=False, timeout=8) as client:
        _gate(order, say)
        X, y = _input(order)
        try:
            say.send(("up", time.monotonic()))
            model = _estimator(order, client).fit(X, y)
        except KeyboardInterrupt:
            say.send(("interrupted", time.monotonic()))
        except DsgdError as error:
            say.send(("error", time.monotonic(), type(error).__name__, str(error)))
        else:
            finished = time.monotonic()
            facts = {
                "accuracy": _accuracy(model),
                "coef": model.coef_.tobytes(),
                "finite": bool(np.isfinite(model.coef_).all()),
                "ranks": model.fit_report_["ranks"],
                "transport": model.fit_report_["transport"],
                "train_s": model.fit_report_["epochs"][-1]["seconds"],
            }
            say.send(("model", finished, facts))


def _estimator(order: FitOrder, client: Client) -> SGDClassifier:
    folder = Path(order.gates.folder, "checkpoints")
    return SGDClassifier(
        loss="log_loss",
        alpha=1e-3,
        sync=64,
        tol=None,
        max_iter=order.max_iter,
        random_state=0,
        client=Gang(
            client,
            on_failure=order.policy,
            transport=order.transport,
            checkpoint=Checkpoint(folder, every_s=0.1) if order.checkpoint else None,
            timeouts=Timeouts(peer=order.timeout_s, hung=order.hung_after_s, lease=order.lease_s),
        ),
    )


def _accuracy(model: Any) -> float:
    X, y = all_rows()
    return float(np.mean(model.predict(X) == y))


def _input(order: FitOrder) -> tuple[Any, Any]:
    if order.kind == "delayed":
        make = delayed(gated_block, pure=False)
        return [make(order.gates, index, rows) for index in range(N_BLOCKS)], None
    X, y = all_rows()
    if order.kind == "array":
        return da.from_array(X, chunks=(_ROWS, _FEATURES)), da.from_array(y, chunks=_ROWS)
    return X, y


def _gate(order: FitOrder, say: Connection) -> None:
    """Lead the fit of this process through its gates, and say when it waits; nothing else is changed."""
    run_on_cluster = dsgd.runtime.gang.job.run_on_cluster

    def gated(program: Any, blocks: Any, *, pack: Any, on_event: Any = None, **options: Any) -> Any:
        def listen(event: Mapping[str, Any]) -> None:
            if event.get("phase") == "queued":
                say.send(("queued", time.monotonic()))
            if on_event is not None:
                on_event(event)

        return run_on_cluster(
            GatedProgram(program, order.gates), blocks, pack=GatedPack(pack, order.gates), on_event=listen, **options
        )

    dsgd.runtime.run_on_cluster = gated  # type: ignore[attr-defined]
