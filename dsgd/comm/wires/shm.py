"""The transport between processes: shared memory within a host, TCP between hosts.

Inside a host TCP copies every byte four times and charges two system calls and a wake-up per frame. Ranks connect over
TCP first (`dsgd.comm.sockets.mesh`), then those of one host move to memory they share (`dsgd.comm.memory.neighbours`).
A short frame goes through a local socket, since the kernel's copy costs less than a second wake-up. A long frame
announces itself there and goes through a ring of memory, while a second local socket, the bell, wakes a rank that
sleeps; where processes may read each other's memory a frame of `PULL_FROM_BYTES` is copied from where it is. A closed
socket means that the peer's process has gone, a shutdown wakes this one, deadlines are those of TCP. The memory is open
to processes of this user alone.

With ``wait="spin"`` whole frames go through memory and a rank that waits looks at it for `SPIN_S` before it sleeps.
That takes the wake-up out of a short frame, and a core per rank while it waits: for ranks that have a core each and no
other program beside them. Such ranks may also have a `dsgd.comm.memory.segment`, through which whole rounds run without
frames.

Cost per long frame: one copy, or two of pieces that are still in the cache, and a few wake-ups. Bytes and messages are
counted as the same frames would be on TCP. The sums are bitwise the same.

Source: the two-copy protocol of MPICH's Nemesis (Buntinas, Mercier and Gropp 2006) and its single copies by
``process_vm_readv``; the sleeping side is ours, since their ranks always poll.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from dsgd.comm.base import AbstractTransport
from dsgd.comm.frame_exchange import FrameExchange, drain
from dsgd.comm.memory.neighbours import Neighbourhood, join_neighbours, tell_hosts, warn_of
from dsgd.comm.memory.segment import Window, host_identity
from dsgd.comm.memory.streams import DONE, Ring, pump
from dsgd.comm.sockets.link import Link, charge_exchange, shut_down
from dsgd.comm.sockets.listener import Listener
from dsgd.comm.sockets.mesh import explained_file_limit
from dsgd.comm.wires.tcp import Entrance, TCPTransport
from dsgd.errors import InvalidParameterError
from dsgd.types import AnyArray

Wait = Literal["sleep", "spin"]

# A shorter frame is faster through the local socket (dsgd study transports).
RING_FROM_BYTES: Final = 16 * 1024
# Of each direction: what fits the cache beside the vectors. A pair of ranks shares twice that and a page.
RING_BYTES: Final = 512 * 1024
_POLLS: Final = 500
_SPIN_POLLS: Final = 1000


class SharedTransport(AbstractTransport):
    """A rank that is a process and shares memory with some of its peers; made by `connect`."""

    def __init__(self, mesh: TCPTransport, neighbourhood: Neighbourhood, *, spins: bool, has_window: bool) -> None:
        self.rank = mesh.rank
        self.size = mesh.size
        self.ledger = mesh.ledger
        self.hosts = neighbourhood.hosts
        self.wire = mesh.wire
        self._mesh = mesh
        self._rings = neighbourhood.rings
        self._has_all = mesh.is_complete
        self._abort = mesh.abort
        self.deadline_s = mesh.deadline_s
        self._spins = spins
        self._n_polls = _SPIN_POLLS if spins else _POLLS
        self._from_bytes = 0 if spins else RING_FROM_BYTES
        self.adder = self._add
        mesh.abort.on_set(self._wake)
        if has_window and self.wire == "shm":
            self.window = self._open_window()

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Send `outgoing` while receiving `incoming`; see `AbstractTransport.exchange`."""
        least = self._from_bytes
        if not self._has_all:
            self._reach(to, outgoing, source, incoming)
        ring_out = None if to is None or outgoing is None or outgoing.nbytes < least else self._rings.get(to)
        ring_in = None if source is None or incoming is None or incoming.nbytes < least else self._rings.get(source)
        if ring_out is None and ring_in is None:
            self._mesh.exchange(to, outgoing, source, incoming, op)
            return
        out, inn = self._mesh.announce(to, outgoing, source, incoming, op)
        if ring_out is not None and outgoing is not None:
            ring_out.start_out(outgoing)
        if ring_in is not None and incoming is not None:
            ring_in.start_in(incoming)
        self._finish(out, ring_out, outgoing, inn, ring_in, incoming)

    def _add(self, to: int, outgoing: AnyArray, source: int, total: AnyArray, op: int) -> bool:
        """Send `outgoing` while adding the incoming array to `total`, through memory only; see `AbstractTransport`."""
        if not self._has_all:
            self._reach(to, outgoing, source, total)
        ring_in, take = self._rings.get(source), Ring.adding(total)
        if ring_in is None or not take or total.nbytes < self._from_bytes:
            return False
        ring_out = self._rings.get(to) if outgoing.nbytes >= self._from_bytes else None
        out, inn = self._mesh.announce(to, outgoing, source, total, op)
        if ring_out is not None:
            ring_out.start_out(outgoing)
        ring_in.start_in(total, take)
        self._finish(out, ring_out, outgoing, inn, ring_in, total)
        return True

    def _reach(self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None) -> None:
        """Connect with the peers of an exchange: whether they share memory decides which way frames go."""
        pairs = ((to, outgoing), (source, incoming))
        self._mesh.reach(*(peer for peer, array in pairs if peer is not None and array is not None))
        self._has_all = self._mesh.is_complete

    def _finish(
        self,
        out: Link | None,
        ring_out: Ring | None,
        outgoing: AnyArray | None,
        inn: Link | None,
        ring_in: Ring | None,
        incoming: AnyArray | None,
    ) -> None:
        """Move two frames that have been announced and started."""
        ledger = self.ledger
        code, arrived_at = DONE, 0.0
        if self._spins and not ledger.timing and (out is None or ring_out) and (inn is None or ring_in):
            # A short frame of a spinning gang is over in one call.
            code = pump(ring_out, ring_in, self._n_polls)
            if code == DONE:
                return
        frames = FrameExchange(out, ring_out, outgoing, inn, ring_in, incoming)
        start = ledger.clock()
        try:
            frames.check(code)
            arrived_at = frames.run(ledger, self.deadline_s, self._abort, n_polls=self._n_polls, spins=self._spins)
        except OSError as error:
            self._mesh.raise_for(error, out, inn)
        if ledger.timing:
            charge_exchange(ledger, start, arrived_at, inn)

    def set_deadline(self, deadline_s: float) -> None:
        """Change the longest wait; see `AbstractTransport.set_deadline`."""
        self._mesh.set_deadline(deadline_s)
        self.deadline_s = deadline_s

    def close(self) -> None:
        """Close all connections; peers that wait for this rank see that it went away."""
        if self.window is not None:
            self.window.close()
            self.window = None
        self._mesh.close()
        rings, self._rings = self._rings, {}
        for ring in rings.values():
            ring.close()

    def _open_window(self) -> Window:
        rings = self._rings
        outgoing = [rings[peer].box_out for peer in sorted(rings)]
        incoming = [rings[peer].box_in if peer in rings else outgoing[0] for peer in range(self.size)]
        names = {peer: f"rank {peer} at {ring.link.address}" for peer, ring in rings.items()}
        return Window(
            self.rank,
            outgoing,
            incoming,
            [rings[peer].bell.fileno() if peer in rings else -1 for peer in range(self.size)],
            [names.get(peer, "this rank") for peer in range(self.size)],
            abort=self._abort,
            nap=self._nap,
            memory=list(rings.values()),
        )

    def _nap(self, limit_s: float) -> int | None:
        """Sleep until a bell rings; returns a peer that is found to have gone."""
        rings = {ring.bell.fileno(): peer for peer, ring in self._rings.items()}
        poller = select.poll()
        for bell in rings:
            poller.register(bell, select.POLLIN)
        for bell, _ in poller.poll(limit_s * 1000):
            peer = rings[bell]
            if not drain(self._rings[peer].bell):
                return peer
        return None

    def _wake(self) -> None:
        for ring in list(self._rings.values()):
            shut_down(ring.bell)


def connect(
    listener: Listener,
    rank: int,
    addresses: Sequence[str],
    *,
    wait: Wait = "sleep",
    window: bool = False,
    identity: bytes | None = None,
    pulls: bool = True,
    **options: Any,
) -> SharedTransport:
    """Join the gang, and share memory with the peers on this host.

    - returned: connected with the first peers, and with any other rank from the first exchange on. Where memory
      cannot be shared with a peer of this host, a warning is logged, and the two use TCP.
    """
    if wait not in get_args(Wait):
        raise InvalidParameterError(f"connect(wait=...) must be 'sleep' or 'spin'. Got {wait!r}.")
    everybody = tuple(peer for peer in range(len(addresses)) if peer != rank)
    greeting = b"shm %s %d " % (wait.encode(), window)
    entrance = Entrance(listener, rank, addresses, greeting, first=everybody if window else None, **options)
    credentials, spins = entrance.credentials, wait == "spin"
    # What is read from disk needs a file, too.
    with explained_file_limit(rank):
        identity = host_identity() if identity is None else identity
        # Loaded or compiled now, and not while a peer waits for the first frame.
        with listener.attended(entrance.wrap, credentials.job, credentials.epoch):
            pump(None, None)

    def share(links: dict[int, Link]) -> Neighbourhood:
        found = join_neighbours(
            links,
            credentials,
            capacity=RING_BYTES,
            carries_headers=spins,
            has_boxes=window,
            identity=identity,
            pulls=pulls,
        )
        warn_of(found.problems, rank)
        return found

    mesh = entrance.join()
    try:
        with explained_file_limit(rank):
            found = share(mesh.links)
        hosts = found.hosts if mesh.is_complete else tell_hosts(mesh.links, rank, len(addresses), identity)
    except BaseException:
        mesh.close()
        entrance.flag.check()
        raise

    def settle(link: Link) -> Link:
        links = {link.rank: link}
        rings = share(links).rings
        # Before the link is: who finds that looks for the memory beside it.
        found.rings.update(rings)
        return links[link.rank]

    transport = entrance.transport(mesh, settle)
    return SharedTransport(transport, Neighbourhood(hosts, found.rings), spins=spins, has_window=window)
