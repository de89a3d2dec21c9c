"""The parameter server: a rank without rows that keeps the model of the others.

Problem: if all ranks wait for each other, the slowest rank and the slowest link set the pace. Ranks that only exchange
with a server do not wait for each other.

A worker posts a message, a vector with the version of the model that it was made with, and waits for the answer. The
server takes messages as they come, hands each to its handler, the small part that differs from method to method, and
answers those workers that the handler names: at once, later (a worker that is ahead is held back by not answering it)
or never.

At the end of an epoch, where workers wait for the slowest of them anyway (for the control message: losses, the stopping
rule), the server applies the remaining messages, and when the last worker has arrived it sends all of them the same
model. So the model of the server is scored, saved and returned, and not the older ones of the workers. Within an epoch
nothing synchronises, and no snapshot is taken.

Cost per round and worker: one message to the server and one back, each of the vector and 24 bytes, and as much at the
end of an epoch. The server's port carries the messages of all: P times as much. `message_bytes` is the closed form.

Source: Li et al. 2014 (parameter server); Dean et al. 2012 (Downpour).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.comm.base import AbstractMailbox
from dsgd.comm.frames import HEADER_BYTES, OP_POST
from dsgd.ledger import COMPUTE
from dsgd.sync.base import AbstractStrategy, AbstractUnderWay
from dsgd.types import AnyArray, FloatVector

StateT = TypeVar("StateT")

# What a message is: a vector, which its sender wants answered or not; the word that it is done; or, without a vector,
# that it is at the end of an epoch, where all wait for the model.
QUESTION, NEWS, DONE, EPOCH_END = range(4)
_HEAD: Final = np.dtype([("kind", np.int64), ("version", np.int64), ("score", np.float64)])


@final
class ServerMessage:
    """A vector, its kind and the version of the model that it belongs to, in one piece of memory."""

    __slots__ = ("body", "frame", "head")

    def __init__(self, n: int, dtype: np.dtype[Any] | type[Any], kind: int = QUESTION) -> None:
        self.frame: AnyArray = np.zeros(_HEAD.itemsize + n * np.dtype(dtype).itemsize, dtype=np.uint8)
        self.head: Any = self.frame[: _HEAD.itemsize].view(_HEAD)[0]
        self.head["kind"] = kind
        self.body: FloatVector = self.frame[_HEAD.itemsize :].view(dtype)


def message_bytes(n: int, itemsize: int) -> int:
    """Return the bytes that a message with a vector of n elements takes on the wire, header included."""
    return HEADER_BYTES + _HEAD.itemsize + n * itemsize


def _nothing() -> None:
    """Leave the model as it is."""


@dataclass
class Model:
    """The state of a server, and the functions it uses."""

    params: FloatVector
    step: Callable[[FloatVector, float], None]
    worked: Callable[[], None]
    n_workers: int
    rounds: int
    version: int = 0
    n_messages: int = 0
    author: int = -1
    settle: Callable[[], None] = _nothing
    idle: frozenset[int] = frozenset()

    @property
    def working(self) -> list[int]:
        """The workers that are not idle."""
        return [worker for worker in range(self.n_workers) if worker not in self.idle]


class Quorum:
    """The workers that wait for a step, for which a number of them is wanted, or as many as the epoch still has."""

    def __init__(self, model: Model, wanted: int) -> None:
        self._model, self._wanted = model, wanted
        self._sent = [0] * model.n_workers
        self.waiting: list[int] = []

    def count(self, worker: int, *, waits: bool = True) -> bool:
        """Count a message of a worker, which waits; return whether enough of them do."""
        self._sent[worker] += 1
        if waits:
            self.waiting.append(worker)
        return len(self.waiting) >= min(self._wanted, len(self.waiting) + len(self.to_come()))

    def to_come(self) -> list[int]:
        """Return the workers that do not wait and send something more before the epoch of the fastest ends."""
        rounds = self._model.rounds
        end = -(-max(self._sent) // rounds) * rounds
        return [w for w in self._model.working if self._sent[w] < end and w not in self.waiting]

    def release(self) -> list[int]:
        """Return those that wait, who do so no more."""
        released, self.waiting = self.waiting, []
        return released


class AbstractServerHandler(ABC):
    """What a server of a strategy does with a message."""

    def __init__(self, model: Model, strategy: Any) -> None:
        self.model, self.strategy = model, strategy
        self.start()

    def start(self) -> None:  # noqa: B027  # some remember nothing
        """Set up what is remembered between messages: nothing, unless overridden."""

    @abstractmethod
    def accept(self, worker: int, message: ServerMessage) -> Iterable[int]:
        """Take in a message; return the workers that are answered now, which have had none since theirs."""

    def answer(self, worker: int, out: FloatVector) -> None:
        """Write the vector that a worker gets into `out`, shape (n_params,): the model, unless overridden."""
        out[:] = self.model.params

    def settle(self) -> None:
        """Apply what is left when every worker is at the end of an epoch, then call `Model.settle`."""
        self.model.settle()


class AbstractServerStrategy(AbstractStrategy[StateT], AbstractUnderWay[StateT], Generic[StateT]):
    """A strategy whose ranks exchange with a server through mailboxes.

    Attributes
    ----------
    fetch_every : int
        A worker is sent the model after so many of its messages.
    serves_by : type
        The handler of its server.
    """

    talks = "by mailbox"
    n_servers = 1
    ends_equal = False
    collects = False
    fetch_every: int = 1
    serves_by: ClassVar[type[AbstractServerHandler]]

    @property
    @final
    def server(self) -> Self:
        """The strategy."""
        return self

    def wanted(self, n_workers: int) -> int:
        """Return how many of so many workers the server waits for before it answers."""
        return 1

    @final
    def leave(self, group: Group, params: FloatVector, state: StateT) -> None:
        """Tell the server that this worker is done; see `AbstractUnderWay.leave`."""
        finish(group, params)

    @final
    def handler(self, model: Model) -> AbstractServerHandler:
        """Return the handler with which a server applies the messages of its workers."""
        return self.serves_by(model, self)

    @abstractmethod
    def served(self, params: FloatVector, state: StateT) -> tuple[FloatVector, int]:
        """Return the model that a server starts or resumes from, and how many updates it has received."""


def push(group: Group, vector: FloatVector, version: AnyArray, *, score: float = 0.0, wants_answer: bool = True) -> int:
    """Send a vector to the server and replace it by the answer, in place, which is waited for."""
    message = ServerMessage(vector.shape[0], vector.dtype, QUESTION if wants_answer else NEWS)
    message.body[:] = vector
    message.head["version"], message.head["score"] = version[0], score
    group.mailbox.post(group.size, message.frame, OP_POST)
    if not wants_answer:
        return -1
    group.mailbox.take(group.size, message.frame, OP_POST)
    vector[:] = message.body
    version[0] = message.head["version"]
    return int(message.head["score"])


def await_epoch_model(group: Group, params: FloatVector) -> int:
    """Wait at the end of an epoch for the model of the server, the same on every worker; return its version."""
    message = ServerMessage(params.shape[0], params.dtype, EPOCH_END)
    group.mailbox.post(group.size, message.frame, OP_POST)
    group.mailbox.take(group.size, message.frame, OP_POST)
    params[:] = message.body
    return int(message.head["version"])


def finish(group: Group, params: FloatVector) -> None:
    """Tell the server that this worker is done; there is no answer."""
    group.mailbox.post(group.size, ServerMessage(params.shape[0], params.dtype, DONE).frame, OP_POST)


def serve(mailbox: AbstractMailbox, handler: AbstractServerHandler) -> None:
    """Answer messages until every worker is done; the loop of a server."""
    ledger, model = mailbox.ledger, handler.model
    message = ServerMessage(model.params.shape[0], model.params.dtype)
    working, n_there = list(range(model.n_workers)), 0

    def reply(worker: int) -> None:
        message.head["version"], message.head["score"] = model.version, model.author
        mailbox.post(worker, message.frame, OP_POST)

    while working:
        ledger.begin_round("serve")
        worker = mailbox.wait_any(working)
        mailbox.take(worker, message.frame, OP_POST)
        if message.head["kind"] == DONE:
            working.remove(worker)
        elif message.head["kind"] == EPOCH_END:
            n_there += 1
            if n_there == len(working):
                n_there = 0
                handler.settle()
                message.body[:] = model.params
                for other in range(model.n_workers):
                    reply(other)
        else:
            begin = ledger.clock() if ledger.timing else 0.0
            answered: Iterable[int] = (worker,)
            if worker not in model.idle:
                model.n_messages += 1
                answered = handler.accept(worker, message)
                model.worked()
            if ledger.timing:
                ledger.charge(COMPUTE, ledger.clock() - begin)
            for other in answered:
                handler.answer(other, message.body)
                reply(other)
        ledger.end_round()
