"""A rank that has no rows and keeps the model that the others send to and get from: the parameter server.

Problem: where everybody waits for everybody, the slowest rank and the slowest link set the pace. Ranks that only talk
to a server wait for nobody else.

A worker posts a letter, a vector with the version of the model that it was made with, and waits for the answer. The
server takes letters as they come, hands each to its desk, the small part that differs from method to method, and
answers those workers that the desk names: at once, later (a worker that is ahead is held back by not answering it) or
never.

At the end of an epoch, where workers wait for the slowest of them anyway (for the control message: losses, the stopping
rule), all meet: the server takes in what is left, and when the last worker has come each gets the model, the same bits.
So it is the model of the server that is scored, kept and returned, and none of the older ones that workers have.
Inside an epoch nothing synchronises, and no state is kept.

Cost per round and worker: one letter to the server and one back, each of the vector and 24 bytes, and as much at the
end of an epoch. The server's port carries the letters of all: P times as much. `letter_bytes` is the closed form.

Source: Li et al. 2014 (parameter server); Dean et al. 2012 (Downpour).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.comm.frames import HEADER_BYTES, OP_POST
from dsgd.comm.mailbox import AbstractMailbox
from dsgd.ledger import COMPUTE
from dsgd.sync.base import AbstractStrategy, AbstractUnderWay
from dsgd.types import AnyArray, FloatVector

__all__ = [
    "AbstractDesk",
    "AbstractServerStrategy",
    "Letter",
    "Model",
    "PushState",
    "finish",
    "letter_bytes",
    "meet",
    "push",
    "serve",
]

StateT = TypeVar("StateT")

_HEAD_BYTES: Final = 24
_QUESTION: Final = 0
_NEWS: Final = 1
_DONE: Final = 2
_MEETING: Final = 3


@final
class Letter:
    """A vector, what it is and which version of the model it belongs to, in one piece of memory.

    Parameters
    ----------
    n : int
        Length of the vector.
    dtype : dtype
        Of the vector.

    Attributes
    ----------
    frame : array of uint8
        All of it, as it travels.
    body : array, shape (n,)
        The vector; a view.
    """

    __slots__ = ("_head", "_score", "body", "frame")

    def __init__(self, n: int, dtype: np.dtype[Any] | type[Any]) -> None:
        self.frame: AnyArray = np.zeros(_HEAD_BYTES + n * np.dtype(dtype).itemsize, dtype=np.uint8)
        self._head = self.frame[:_HEAD_BYTES].view(np.int64)
        self._score = self.frame[_HEAD_BYTES - 8 : _HEAD_BYTES].view(np.float64)
        self.body: FloatVector = self.frame[_HEAD_BYTES:].view(dtype)

    @property
    def is_last(self) -> bool:
        """Whether its sender is done."""
        return bool(self._head[0] == _DONE)

    @property
    def is_at_meeting(self) -> bool:
        """Whether its sender is at the end of an epoch, where all wait for the model; there is no vector."""
        return bool(self._head[0] == _MEETING)

    @property
    def wants_answer(self) -> bool:
        """Whether its sender waits for an answer, as it does unless it says otherwise."""
        return bool(self._head[0] == _QUESTION)

    @property
    def score(self) -> float:
        """What its sender has to say in one number; in an answer, `Model.author`."""
        return float(self._score[0])

    @score.setter
    def score(self, value: float) -> None:
        self._score[0] = value

    def say(self, *, last: bool = False, at_meeting: bool = False, wants_answer: bool = True) -> None:
        """Say whether the sender is done, or at the end of an epoch, and whether it waits for an answer."""
        self._head[0] = _DONE if last else _MEETING if at_meeting else _QUESTION if wants_answer else _NEWS

    @property
    def version(self) -> int:
        """Number of updates that the model had received."""
        return int(self._head[1])

    @version.setter
    def version(self, value: int) -> None:
        self._head[1] = value


def letter_bytes(n: int, itemsize: int) -> int:
    """Return the bytes that a letter with a vector of n elements takes on the wire, header included."""
    return HEADER_BYTES + _HEAD_BYTES + n * itemsize


@dataclass
class PushState:
    """What a worker remembers of its server.

    Parameters
    ----------
    version : array of int64, shape (1,)
        Version of the model that it has.

    Attributes
    ----------
    n_with_rows : float
        How many workers of this gang have rows.
    """

    version: AnyArray

    def __post_init__(self) -> None:
        self.n_with_rows = 1.0


def _nothing() -> None:
    """Leave the model as it is."""


@dataclass
class Model:
    """What a server keeps, and what it works with.

    Parameters
    ----------
    params : array, shape (n_params,)
        The model, updated in place.
    step : callable
        Takes a mean gradient and a factor of the rate, and takes one step, penalty included, as a rank would.
    worked : callable
        Says that the model was passed over once, for the clock of a simulated server.
    n_workers : int
        How many ranks it serves.
    rounds : int
        In how many rounds each of them walks an epoch.
    version : int
        Number of updates that it has received; of gradients, each counts.
    n_letters : int
        Number of vectors that have come.
    author : int
        The worker whose vector the model is, or a negative number: every answer says it.
    settle : callable
        Replaces the model by what it is at the end of an epoch.
    idle : frozenset of int
        Those that have no rows and so no gradients: they ask for the model, and what they send is not looked at.
    """

    params: FloatVector
    step: Callable[[FloatVector, float], None]
    worked: Callable[[], None]
    n_workers: int
    rounds: int
    version: int = 0
    n_letters: int = 0
    author: int = -1
    settle: Callable[[], None] = _nothing
    idle: frozenset[int] = frozenset()

    @property
    def working(self) -> list[int]:
        """The workers that are not idle."""
        return [worker for worker in range(self.n_workers) if worker not in self.idle]


class AbstractDesk(ABC):
    """What a server does with a letter."""

    @abstractmethod
    def accept(self, worker: int, letter: Letter) -> Iterable[int]:
        """Take in a letter.

        Parameters
        ----------
        worker : int
            Who sent it.
        letter : Letter
            The desk's own until it returns, to be overwritten if it likes.

        Returns
        -------
        iterable of int
            The workers that are answered now; each has sent a letter and had no answer yet. Who wants none gets none.
        """

    @abstractmethod
    def answer(self, worker: int, out: FloatVector) -> None:
        """Write into `out`, shape (n_params,), what a worker gets."""

    @abstractmethod
    def settle(self) -> None:
        """Take in what is left, when every worker is at the end of an epoch; a desk that steps ends `Model.settle`."""


class AbstractServerStrategy(AbstractStrategy[StateT], AbstractUnderWay[StateT], Generic[StateT]):
    """A strategy whose ranks talk to a server by post."""

    talks = "by post"
    n_servers = 1
    ends_equal = False

    @final
    def leave(self, group: Group, params: FloatVector, state: StateT) -> None:
        """Tell the server that this worker is done; see `AbstractUnderWay.leave`."""
        finish(group, params)

    @abstractmethod
    def desk(self, model: Model) -> AbstractDesk:
        """Return what a server does with the letters of its workers."""

    @abstractmethod
    def served(self, params: FloatVector, state: StateT) -> tuple[FloatVector, int]:
        """Return the model that a server starts or goes on from, and how many updates it has received.

        Parameters
        ----------
        params : array, shape (n_params,)
            The model of a worker.
        state : StateT
            What it remembers: what `init` has returned, or what a checkpoint has kept of it.
        """


def push(group: Group, vector: FloatVector, state: PushState, *, score: float = 0.0, wants_answer: bool = True) -> int:
    """Send a vector to the server and replace it by the answer, in place, which is waited for.

    Parameters
    ----------
    group : Group
        The workers.
    vector : array, shape (n_params,)
        What the desk of the server takes; afterwards what it gives.
    state : PushState
        The version of the model; updated.
    score : float, default 0
        What else there is to say.
    wants_answer : bool, default True
        Whether there is an answer; without one the vector stays.

    Returns
    -------
    int
        `Model.author`, by the answer.
    """
    letter = Letter(vector.shape[0], vector.dtype)
    letter.body[:] = vector
    letter.version, letter.score = int(state.version[0]), score
    letter.say(wants_answer=wants_answer)
    group.mailbox.post(group.size, letter.frame, OP_POST)
    if not wants_answer:
        return -1
    group.mailbox.take(group.size, letter.frame, OP_POST)
    vector[:] = letter.body
    state.version[0] = letter.version
    return int(letter.score)


def meet(group: Group, params: FloatVector) -> int:
    """Wait at the end of an epoch for the model of the server, the same on every worker; return its version.

    Parameters
    ----------
    group : Group
        The workers.
    params : array, shape (n_params,)
        Overwritten by the model.
    """
    letter = Letter(params.shape[0], params.dtype)
    letter.say(at_meeting=True)
    group.mailbox.post(group.size, letter.frame, OP_POST)
    group.mailbox.take(group.size, letter.frame, OP_POST)
    params[:] = letter.body
    return letter.version


def finish(group: Group, params: FloatVector) -> None:
    """Tell the server that this worker is done; there is no answer."""
    letter = Letter(params.shape[0], params.dtype)
    letter.say(last=True)
    group.mailbox.post(group.size, letter.frame, OP_POST)


def serve(mailbox: AbstractMailbox, desk: AbstractDesk, model: Model) -> None:
    """Answer letters until every worker is done; the loop of a server.

    Parameters
    ----------
    mailbox : AbstractMailbox
        Joins the server with its workers, whose numbers are 0 .. n_workers - 1.
    desk : AbstractDesk
        What is done with a letter.
    model : Model
        What the desk works on.

    Raises
    ------
    AbortedError, GangTimeoutError, ProtocolError
        See `AbstractMailbox`. The limit of a wait is that of the whole gang, and it is for *any* worker: those that
        compute for long may do so as long as others talk.
    """
    ledger = mailbox.ledger
    letter = Letter(model.params.shape[0], model.params.dtype)
    working, n_there = list(range(model.n_workers)), 0
    while working:
        ledger.begin_round("serve")
        worker = mailbox.wait_any(working)
        mailbox.take(worker, letter.frame, OP_POST)
        if letter.is_last:
            working.remove(worker)
        elif letter.is_at_meeting:
            n_there += 1
            if n_there == len(working):
                desk.settle()
                _hand_out(mailbox, model, letter)
                n_there = 0
        else:
            begin = ledger.clock() if ledger.timing else 0.0
            answered: Iterable[int] = (worker,)
            if worker not in model.idle:
                model.n_letters += 1
                answered = desk.accept(worker, letter)
                model.worked()
            if ledger.timing:
                ledger.charge(COMPUTE, ledger.clock() - begin)
            for other in answered:
                desk.answer(other, letter.body)
                letter.version, letter.score = model.version, model.author
                mailbox.post(other, letter.frame, OP_POST)
        ledger.end_round()


def _hand_out(mailbox: AbstractMailbox, model: Model, letter: Letter) -> None:
    """Give every worker the model."""
    letter.body[:] = model.params
    letter.version, letter.score = model.version, model.author
    for worker in range(model.n_workers):
        mailbox.post(worker, letter.frame, OP_POST)
