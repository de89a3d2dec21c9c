"""A firewall for the worker processes of a test: what ranks announce cannot be reached.

Functions run on workers by `Client.run`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import Any

from dsgd.comm.sockets import mesh
from dsgd.comm.wires import shm
from dsgd.errors import ClusterError
from dsgd.runtime.worker import rendezvous
from dsgd.runtime.worker.plugin import store_of
from dsgd.runtime.worker.wires import WireOptions


def black_hole(sockets: contextlib.ExitStack) -> str:
    """Return an address at which nothing ever answers: Linux drops who knocks at a full queue."""
    server = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    address = server.getsockname()
    for _ in range(4):
        knocking = sockets.enter_context(socket.socket())
        knocking.setblocking(False)
        knocking.connect_ex(address)
    return f"127.0.0.1:{address[1]}"


class _Firewall:
    """What was put in place of what, and what the log said meanwhile."""

    def __init__(self, how: str) -> None:
        self.logged: list[str] = []
        self._kept = rendezvous.SchedulerLink.join, shm.host_identity, mesh._DIRECT_S
        self._sockets = contextlib.ExitStack()
        self._handler = logging.Handler()
        self._handler.emit = lambda record: self.logged.append(record.getMessage())  # type: ignore[method-assign]
        address = black_hole(self._sockets) if how == "filtered" else "127.0.0.1:1"

        join = self._kept[0]
        rendezvous.SchedulerLink.join = lambda link, _, *rest: join(link, address, *rest)  # type: ignore[method-assign]
        shm.host_identity = lambda: os.urandom(32)  # workers of one host that cannot share memory
        mesh._DIRECT_S = 0.3  # type: ignore[misc]
        logging.getLogger("dsgd.comm.wires.rpc").addHandler(self._handler)

    def take_down(self) -> None:
        rendezvous.SchedulerLink.join, shm.host_identity, mesh._DIRECT_S = self._kept  # type: ignore[misc, method-assign]
        logging.getLogger("dsgd.comm.wires.rpc").removeHandler(self._handler)
        self._sockets.close()


_walls: list[_Firewall] = []


def put_up(how: str) -> None:
    """Block connections to ranks of this process: ``"closed"`` (refused) or ``"filtered"`` (no answer)."""
    _walls.append(_Firewall(how))


def take_down() -> list[str]:
    """Let everybody connect again; returns what the log of the transport said meanwhile."""
    wall = _walls.pop()
    wall.take_down()
    return wall.logged


async def intrude(address: str, dask_worker: Any) -> list[str]:
    """Return what a worker answers to messages that belong to no job of it."""
    peer = dask_worker.rpc(address)
    job = {"job_id": "no such job", "epoch": 0, "token": b"t" * 32}
    to = {"rank": 0, "peer": 1}
    return [
        await peer.dsgd_connect(**job, **to, address=dask_worker.address),
        await peer.dsgd_message(**job, **to, position=0, data=b"x", came=True),
        await peer.dsgd_message(**(job | {"token": "text"}), **to, position=0, data=b"x", came=True),
        await peer.dsgd_message(**(job | {"job_id": 7}), **to, position=-1, data="x", came=1),
    ]


def refused(dask_worker: Any) -> dict[str, int]:
    """Return how many messages this worker has turned away, by what was wrong."""
    plugin = next(p for name, p in dask_worker.plugins.items() if name.startswith("dsgd-jobs"))
    return dict(plugin.relays.refused)


def refuse_own_wire(dask_worker: Any) -> str:
    """Return what a rank on this worker says to a wire of another package, which does not have its certificates."""
    try:
        WireOptions("own_wire:connect").check_cluster(dask_worker.address)
    except ClusterError as error:
        return str(error)
    return ""


def tls_contexts(dask_worker: Any) -> int:
    """Return how many contexts of TLS all ranks of this worker have had so far."""
    found: int = store_of(dask_worker).tls_context.cache_info().misses  # type: ignore[union-attr]
    return found
