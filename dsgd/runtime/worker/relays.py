"""Connections between ranks over the RPC of Dask's workers, for `dsgd.comm.wires.rpc`.

Every message carries the credentials of its job (id, epoch, token) and is turned away without it. Its bytes are a plain
field of Dask's message, which is not pickled; on an encrypted cluster it travels encrypted.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from dsgd.comm.wires.rpc import CHUNK_BYTES, Post, Switchboard
from dsgd.errors import DsgdError
from dsgd.runtime.credentials import MemberCredentials
from dsgd.runtime.dask_internals import ask_worker
from dsgd.runtime.worker.store import JobStore

if TYPE_CHECKING:
    from distributed import Worker

CONNECT: Final = "dsgd_connect"
MESSAGE: Final = "dsgd_message"


class RelayHandlers:
    """What a worker answers to the relays of others."""

    def __init__(self, worker: Worker, store: JobStore) -> None:
        self._worker = worker
        self._store = store
        self.refused: Counter[str] = Counter()

    def calls(self) -> dict[str, Callable[..., Coroutine[Any, Any, str]]]:
        """Return what the worker's server calls, by name of the operation."""
        return {CONNECT: self.connect, MESSAGE: self.message}

    async def connect(self, job_id: str, epoch: int, token: bytes, rank: int, peer: int, address: str) -> str:
        """Connect `peer`, which runs on the worker at `address`, with `rank`, which runs here; returns why not."""
        board = self._board(job_id, epoch, token)
        if board is None:
            return self._refuse("job", f"the job of rank {rank} is not open on this worker")
        if not (_is_count(rank) and _is_count(peer) and isinstance(address, str)):
            return self._refuse("malformed", "a request to connect makes no sense")
        credentials = {"job_id": job_id, "epoch": epoch, "token": token}
        try:
            post = _post(self._worker, address, credentials, rank=peer, peer=rank, came=False)
            await board.admit(rank, peer, post)
        except (DsgdError, OSError) as error:
            return str(error)
        return ""

    async def message(
        self, job_id: str, epoch: int, token: bytes, rank: int, peer: int, position: int, data: bytes, came: bool
    ) -> str:
        """Hand bytes of `peer` to `rank`, which it has called (`came`) or which calls it; returns why not."""
        board = self._board(job_id, epoch, token)
        if board is None:
            # The end of a connection may well come after that of the job.
            reason = f"the job of rank {rank} is not open on this worker"
            return reason if data == b"" else self._refuse("job", reason)
        if not (all(map(_is_count, (rank, peer, position))) and isinstance(data, bytes) and isinstance(came, bool)):
            return self._refuse("malformed", "a message makes no sense")
        try:
            await board.deliver(rank, peer, position, data, came=came)
        except (DsgdError, OSError) as error:
            return str(error) or type(error).__name__
        return ""

    def _board(self, job_id: Any, epoch: Any, token: Any) -> Switchboard | None:
        if not (isinstance(job_id, str) and isinstance(token, bytes)):
            return None
        job = self._store.find(job_id, epoch, token)
        return None if job is None else job.relays

    def _refuse(self, kind: str, reason: str) -> str:
        self.refused[kind] += 1
        return reason


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


async def open_relay(
    worker: Worker, board: Switchboard, credentials: MemberCredentials, peer: int, address: str
) -> socket.socket:
    """Return a socket that is connected with a peer through the ports of both workers."""
    job = {"job_id": credentials.job_id, "epoch": credentials.epoch, "token": credentials.token}
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        # As large as the system allows: all bytes that are ready go into one post, and a post takes long.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK_BYTES)

    async def ask() -> None:
        who = {"rank": peer, "peer": credentials.member, "address": worker.address}
        refusal = await ask_worker(worker, address, CONNECT, **job, **who)
        if refusal:
            raise ConnectionRefusedError(f"worker {address} refuses: {refusal}")

    try:
        post = _post(worker, address, job, rank=peer, peer=credentials.member, came=True)
        await board.call(credentials.member, peer, theirs, post, ask)
    except BaseException:
        ours.close()
        raise
    return ours


def _post(worker: Worker, address: str, job: dict[str, Any], *, rank: int, peer: int, came: bool) -> Post:
    """Return what delivers bytes of `peer` to `rank` on the worker at `address`; `came` if `peer` has called it."""
    to = {**job, "rank": rank, "peer": peer, "came": came}

    async def post(position: int, data: bytes) -> None:
        try:
            refusal = await ask_worker(worker, address, MESSAGE, **to, position=position, data=data)
        except OSError:
            raise
        except Exception as error:
            # Any other error of Dask's RPC ends the connection; the rank sees the end of its stream.
            raise ConnectionAbortedError(f"worker {address} failed: {error}") from error
        if refusal:
            raise ConnectionResetError(refusal)

    return post
