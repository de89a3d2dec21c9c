"""How arrays travel between ranks: threads of one process (`inproc`) or processes (`tcp`, `shm`)."""

from dsgd.comm import inproc, shm, tcp
from dsgd.comm.base import AbortFlag, AbstractTransport, TransportName
from dsgd.comm.inproc import InprocTransport
from dsgd.comm.shm import SharedTransport
from dsgd.comm.tcp import Listener, TCPTransport, Wrap

__all__ = [
    "AbortFlag",
    "AbstractTransport",
    "InprocTransport",
    "Listener",
    "SharedTransport",
    "TCPTransport",
    "TransportName",
    "Wrap",
    "inproc",
    "shm",
    "tcp",
]
