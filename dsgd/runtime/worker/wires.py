"""The wires of ranks on worker processes, and connections over the RPC of Dask's workers.

Ports and interface matter behind firewalls and on hosts with several networks, and belong to the cluster: they stand in
Dask's configuration, on the client or on the workers, as ``dsgd.comm.ports`` and ``dsgd.comm.interface``. What the
client's configuration says comes first, then the worker's.

Every message carries the credentials of its job (id, epoch, token) and is turned away without it. Its bytes are a plain
field of Dask's message, which is not pickled; on an encrypted cluster it travels encrypted.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Self

import dask.config
from distributed.comm import get_address_host, parse_address

from dsgd.comm.base import AbstractTransport, TransportName
from dsgd.comm.sockets.listener import Listener, parse_ports
from dsgd.comm.wires.carried import CHUNK_BYTES, Post, Switchboard
from dsgd.errors import ClusterError, DsgdError, InvalidParameterError
from dsgd.runtime.dask_internals import ask_worker, interface_address
from dsgd.runtime.messages import MemberCredentials
from dsgd.runtime.worker.store import JobStore

if TYPE_CHECKING:
    from distributed import Worker


_PORTS = "dsgd.comm.ports"
_INTERFACE = "dsgd.comm.interface"


@dataclass(frozen=True)
class WireOptions:
    """The wires of ranks and where they listen; made by `configured`."""

    transport: TransportName = "auto"
    ports: str | int | None = None
    interface: str | None = None

    @classmethod
    def configured(cls, transport: TransportName) -> Self:
        """Return the wires of a job, as Dask's configuration of the client has them."""
        ports, interface = dask.config.get(_PORTS, None), dask.config.get(_INTERFACE, None)
        parse_ports(ports, f"the setting {_PORTS} of dask")
        if interface is not None and not (isinstance(interface, str) and interface):
            raise InvalidParameterError(
                f"the setting {_INTERFACE} of dask must be the name of a network. Got {interface!r}."
            )
        return cls(transport, ports, interface)

    @property
    def is_foreign(self) -> bool:
        """Whether the wire is one of another package."""
        return ":" in self.transport

    def load(self) -> Callable[..., AbstractTransport]:
        """Return what connects ranks over the wire of another package; `dsgd.comm.wires.tcp.connect` is like it."""
        module, _, name = self.transport.partition(":")
        try:
            found: Callable[..., AbstractTransport] = getattr(import_module(module), name)
        except Exception as error:  # a module may raise anything at all
            raise ClusterError(f"transport={self.transport!r} cannot be imported on a worker: {error}.") from error
        return found

    def check_cluster(self, address: str) -> None:
        """Refuse a wire of another package where it would send arrays past the encryption of a cluster."""
        if self.is_foreign and address.startswith("tls://"):
            raise ClusterError(
                f"transport={self.transport!r} does not encrypt with the certificates of this cluster, which uses TLS. "
                'Use transport="auto", "tcp" or "rpc": they use the certificates of the workers.'
            )


def open_listener(worker: Worker, options: WireOptions) -> Listener:
    """Return the open data socket of a rank on `worker`."""
    ports: Any = dask.config.get(_PORTS, None) if options.ports is None else options.ports
    interface = dask.config.get(_INTERFACE, None) if options.interface is None else options.interface
    scheme, _ = parse_address(worker.address)
    if scheme not in ("tcp", "tls", "inproc"):
        raise ClusterError(
            f"worker {worker.address} uses {scheme}://; ranks need workers on tcp://, tls:// or inproc://."
        )
    # A rank listens for its peers on the host of its Dask worker.
    host = "127.0.0.1" if scheme == "inproc" else get_address_host(worker.address)
    if interface is not None:
        try:
            host = interface_address(interface)
        except ValueError as error:
            raise ClusterError(f"worker {worker.address} cannot listen on network {interface!r}: {error}.") from error
    return Listener(host, parse_ports(ports, f"the setting {_PORTS} of worker {worker.address}"))


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
