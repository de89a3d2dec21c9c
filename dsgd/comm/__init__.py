"""How arrays travel between ranks: threads of one process (`inproc`) or processes (`tcp`)."""

from dsgd.comm import inproc, tcp
from dsgd.comm.base import AbortFlag, AbstractTransport
from dsgd.comm.inproc import InprocTransport
from dsgd.comm.tcp import Listener, TCPTransport, Wrap

__all__ = [
    "AbortFlag",
    "AbstractTransport",
    "InprocTransport",
    "Listener",
    "TCPTransport",
    "Wrap",
    "inproc",
    "tcp",
]
