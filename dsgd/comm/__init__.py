"""How arrays travel between ranks: threads of one process (`inproc`) or processes (`tcp`)."""

from dsgd.comm.base import AbortFlag, AbstractTransport

__all__ = ["AbortFlag", "AbstractTransport"]
