"""The transport and the address that a job's options select.

Ports and interface matter behind firewalls and on hosts with several networks, and belong to the cluster more than to
one call: they can stand in Dask's configuration, on the client or on the workers, as ``dsgd.comm.ports`` and
``dsgd.comm.interface``. What a call says comes first, then what the client's configuration says, then the worker's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import dask.config
from distributed.comm import get_address_host, parse_address

from dsgd.comm.base import AbstractTransport, TransportName, check_transport
from dsgd.comm.sockets.listener import Listener, parse_ports
from dsgd.errors import ClusterError, InvalidParameterError
from dsgd.runtime.dask_internals import interface_address

if TYPE_CHECKING:
    from distributed import Worker

_PORTS = "dsgd.comm.ports"
_INTERFACE = "dsgd.comm.interface"


@dataclass(frozen=True)
class WireOptions:
    """The wires of ranks and where they listen; made by `of_call`."""

    transport: TransportName = "auto"
    ports: str | int | None = None
    interface: str | None = None

    @classmethod
    def of_call(
        cls,
        caller: str,
        transport: TransportName,
        ports: str | int | None = None,
        interface: str | None = None,
    ) -> Self:
        """Check what a user gave, and complete it by the configuration of the client."""
        check_transport(f"{caller}(transport=...)", transport)
        if ports is None:
            ports = dask.config.get(_PORTS, None)
            parse_ports(ports, f"the setting {_PORTS} of dask")
        else:
            parse_ports(ports, f"{caller}(ports=...)")
        interface = dask.config.get(_INTERFACE, None) if interface is None else interface
        if interface is not None and not (isinstance(interface, str) and interface):
            raise InvalidParameterError(f"{caller}(interface=...) must be the name of a network. Got {interface!r}.")
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
    host = data_host(worker.address)
    if interface is not None:
        try:
            host = interface_address(interface)
        except ValueError as error:
            raise ClusterError(f"worker {worker.address} cannot listen on network {interface!r}: {error}.") from error
    return Listener(host, parse_ports(ports, f"the setting {_PORTS} of worker {worker.address}"))


def data_host(address: str) -> str:
    """Return the host on which a rank listens for its peers: that of its Dask worker."""
    scheme, _ = parse_address(address)
    if scheme == "inproc":
        return "127.0.0.1"
    if scheme in ("tcp", "tls"):
        host: str = get_address_host(address)
        return host
    raise ClusterError(f"worker {address} uses {scheme}://; ranks need workers on tcp://, tls:// or inproc://.")
