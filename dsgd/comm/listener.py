"""The port on which a rank waits for its peers."""

from __future__ import annotations

import socket
from collections import deque
from typing import Final, Self

from dsgd.errors import ClusterError, InvalidParameterError

__all__ = ["Listener", "split_address"]

_BACKLOG: Final = 128
_KEPT_REFUSALS: Final = 8


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``"host:port"`` or ``"[v6]:port"``, with or without ``tcp://`` before it.

    Raises
    ------
    InvalidParameterError
        It is no such address.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdigit():
        raise InvalidParameterError(f"The address of a rank must read 'host:port'. Got {address!r}.")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Listener:
    """A listening socket, bound to one host only; a context manager.

    Parameters
    ----------
    host : str, default "127.0.0.1"
        Address to bind and to announce. Peers must be able to reach it.
    port_range : tuple of int, optional
        First and last port to try, both included; a free one is chosen by the system by default.

    Attributes
    ----------
    address : str
        ``"host:port"`` for `dsgd.comm.tcp.connect`.
    n_refused : int
        Connections that were turned away.
    refusals : deque of str
        Why, for the last few.

    Raises
    ------
    InvalidParameterError
        `port_range` is not a range of ports.
    ClusterError
        No port can be bound on that host.
    """

    def __init__(self, host: str = "127.0.0.1", port_range: tuple[int, int] | None = None) -> None:
        first, last = (0, 0) if port_range is None else port_range
        if port_range is not None and not 1 <= first <= last <= 65_535:
            raise InvalidParameterError(
                f"Listener(port_range=...) must be (first, last) with 1 <= first <= last <= 65535. Got {port_range}."
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock: socket.socket | None = None
        problem: OSError | None = None
        for port in range(first, last + 1):
            try:
                sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
                break
            except OSError as error:
                problem = error
        if sock is None:
            where = "any port" if port_range is None else f"a port from {first} to {last}"
            raise ClusterError(
                f"A rank cannot listen on {where} of host {host!r}: {problem}. Give a host address of this machine, "
                "or a range with free ports."
            ) from problem
        sock.setblocking(False)
        self.sock = sock
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        self.address = f"{shown}:{sock.getsockname()[1]}"
        self.n_refused = 0
        self.refusals: deque[str] = deque(maxlen=_KEPT_REFUSALS)

    def refuse(self, sock: socket.socket, peer: str, reason: str) -> None:
        """Close a connection that does not belong here, and remember why."""
        sock.close()
        self.n_refused += 1
        self.refusals.append(f"{peer}: {reason}")

    def close(self) -> None:
        """Stop listening; may be called more than once."""
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
