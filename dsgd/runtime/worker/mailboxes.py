"""Creating the mailboxes of ranks on worker processes.

Ranks of a worker are threads, and in collectives one of them speaks for all (`dsgd.comm.wires.nested`). By post each
speaks for itself: every rank, and every server, has connections of its own to others, those of its own process
among them. The members of the gang tell each other over the wire between them where their ranks listen; then each rank
joins the mesh in its own thread, by the handshake of every other connection: encrypted where the cluster is, through
the ports of the workers where no other can be reached.

Servers are threads beside the ranks of a worker: server k runs on member k modulo their number.

Cost: a connection for each two ranks or servers between which there is mail, beside those of the collectives; in a
small gang for each two.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import numpy as np

from dsgd.collectives.group import Group
from dsgd.comm.base import AbstractTransport
from dsgd.comm.mailbox import AbstractMailbox
from dsgd.comm.sockets.listener import Listener
from dsgd.comm.wires import inproc_mailbox, link_mailbox
from dsgd.ledger import RankLedger
from dsgd.runtime.rank import Mail
from dsgd.runtime.worker.rendezvous import MemberContext
from dsgd.runtime.worker.wires import open_listener


def wants_mailboxes(mail: Mail | None, ranks_of: Sequence[int]) -> bool:
    """Return whether the ranks of a gang whose members run so many ranks get mailboxes."""
    return mail is not None and not (mail.in_pairs and (len(ranks_of) == 1 or max(ranks_of) == 1))


def servers_of(mail: Mail | None, member: int, ranks_of: Sequence[int]) -> range:
    """Return the numbers of the servers that a member runs."""
    first, n_servers = sum(ranks_of), 0 if mail is None else mail.n_servers
    return range(first + member, first + n_servers, len(ranks_of))


class MemberMailboxes:
    """Where the ranks and servers of one member get their mailboxes; made by all members at once."""

    def __init__(self, context: MemberContext, between: AbstractTransport, ledgers: dict[int, RankLedger]) -> None:
        self._context, self._ledgers, self._n_members = context, ledgers, between.size
        worker, job = context.worker, context.job
        self._listeners: dict[int, Listener] = {}
        self._boxes: dict[int, AbstractMailbox] = {}
        if between.size == 1:
            boxes = inproc_mailbox.connect(list(ledgers.values()), [job.abort] * len(ledgers), context.timeout_s)
            self._boxes = dict(zip(ledgers, boxes, strict=True))
            return
        with contextlib.ExitStack() as cleanup:
            for number in ledgers:
                self._listeners[number] = cleanup.enter_context(open_listener(worker, context.wires))
                job.relays.open_door(self._door(number), self._listeners[number].address)
            mine = {number: (listener.address, worker.address) for number, listener in self._listeners.items()}
            told = Group(between).allgatherv(np.frombuffer(json.dumps(mine).encode(), dtype=np.uint8))
            self._listening = cleanup.pop_all()
        places = {int(number): place for part in told for number, place in json.loads(part.tobytes()).items()}
        self._addresses = [places[number][0] for number in range(len(places))]
        self._workers = [places[number][1] for number in range(len(places))]

    def open(self, number: int) -> AbstractMailbox:
        """Return the mailbox of a rank or server once it is connected with others; called in its thread."""
        if self._boxes:
            return self._boxes[number]
        doors = [self._door(peer) for peer in range(len(self._workers))]
        settings = self._context.settings(self._ledgers[number]) | {
            "job_id": f"{self._context.credentials.job_id}/post",
            "wrap": self._context.wrap(),
            "detour": self._context.detour(doors[number], doors, self._workers),
        }
        return link_mailbox.connect(self._listeners[number], number, self._addresses, **settings)

    def close(self) -> None:
        """Stop listening."""
        if self._listeners:
            for number in self._listeners:
                self._context.job.relays.close_door(self._door(number))
            self._listening.close()

    def _door(self, number: int) -> int:
        # The first numbers are those of the members themselves.
        return self._n_members + number
