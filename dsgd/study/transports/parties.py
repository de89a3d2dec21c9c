"""What the two ends of a way do between messages: the same work, whatever carries them.

Each end is a party. Its turn takes the array that came and fills the one that leaves. Two kinds of pairs exist:
messages, which are written and read once at either end and do nothing else; and training with a parameter server, in
which one party computes a gradient on its rows and the other takes a step with it and sends the model back. The work of
both in one process, with nothing sent, is the bound: no way can be faster on this memory.

**Copies and allocations** are counted in calls of the C library, since hardware counters of memory are closed to an
ordinary user. A small library (``counting.c``) is loaded into a process before all others, so that the calls of Python,
numpy, torch, OpenSSL and compiled kernels to ``memcpy``, ``malloc``, ``send``, ``read``, ``process_vm_readv`` and their
relatives pass through it (LD_PRELOAD, ``ld.so(8)``). ``PYTHONMALLOC=malloc`` lets every object of Python be one of
those allocations. The process is slower, so nothing is timed in it. What is not seen: copies of a few bytes that a
compiler wrote out, loops that move numbers one by one, what ``realloc`` moves, and memory that a program maps by
itself. Over TLS the cipher reads and writes all data at both ends, which is not counted as a copy.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import dask
import numpy as np

from dsgd.errors import ClusterError, ProtocolError
from dsgd.study.frame.rows import Row
from dsgd.types import AnyArray, FloatVector

#: What is counted: bytes copied in the process, handed to the kernel, taken from it and read from another process;
#: system calls for these; bytes asked for by allocations, and their number.
COUNTS: Final = ("copied", "to_kernel", "from_kernel", "pulled", "calls", "allocated", "allocations")
_SOURCE: Final = Path(__file__).with_name("counting.c")


def can_count() -> bool:
    """Return whether this system has what counting needs: Linux, and a C compiler called ``cc``."""
    return sys.platform == "linux" and shutil.which("cc") is not None


@contextmanager
def counted() -> Iterator[None]:
    """Let processes that are started inside count, workers of Dask too; this one does not."""
    with tempfile.TemporaryDirectory(prefix="dsgd-") as folder:
        library = Path(folder) / "counting.so"
        command = ["cc", "-O2", "-shared", "-fPIC", "-fno-builtin", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        first = os.environ.get("LD_PRELOAD")
        added = {"LD_PRELOAD": f"{library}:{first}" if first else str(library), "PYTHONMALLOC": "malloc"}
        before = {name: os.environ.get(name) for name in added}
        os.environ.update(added)
        try:
            # A worker that is forked from a server has the libraries of that server.
            with dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}):
                yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def counts_here() -> list[int]:
    """Return what this process has counted since it began, in the order of `COUNTS`."""
    read = getattr(ctypes.CDLL(None), "dsgd_counts", None)
    if read is None:
        raise ClusterError(f"process {os.getpid()} does not count its copies: it was started in another way.")
    found = (ctypes.c_long * len(COUNTS))()
    read(found)
    return list(found)


#: Models that are trained, by name, and their parameters: logistic regression on rows of 254 columns, a small
#: convolutional network, and as many numbers as ResNet-50 has, of which only the messages are made.
MODELS: Final = {"logistic": 254, "cnn": 114_314, "25M": 25_557_032}
_MOST_ROUNDS: Final = 2_000

# Numbers from which one round is enough to touch all pages.
_LONG: Final = 1 << 20
_ROWS: Final = 4_096
_BATCH: Final = 32
_RATE: Final = 0.05
_SIDE: Final = 28

# Values of messages repeat after so many: float32 has them all.
_VALUES: Final = 1_000


@dataclass(frozen=True)
class Work:
    """What two parties do."""

    kind: str
    n: int

    @classmethod
    def of_bytes(cls, n_bytes: int) -> Work:
        """Return messages of so many bytes, a multiple of 4."""
        return cls("messages", n_bytes // 4)

    @classmethod
    def of_model(cls, model: str) -> Work:
        """Return the training of a model."""
        return cls(model, MODELS[model])


class AbstractParty(ABC):
    """One end of a way."""

    @abstractmethod
    def turn(self, got: AnyArray | None, out: AnyArray) -> None:
        """Take what came, and write what is to leave."""


def make_party(work: Work, is_first: bool) -> AbstractParty:
    """Return one of the two parties: the one that begins, or the one that answers."""
    if work.kind in ("messages", "25M"):
        return _Writer(is_first)
    if not is_first:
        return _Server(work.n)
    return _Logistic(work.n) if work.kind == "logistic" else _Network()


@final
class _Writer(AbstractParty):
    """Writes every number of what leaves, and reads every number of what came."""

    def __init__(self, is_first: bool) -> None:
        self._own, self._other = (0.0, 0.5) if is_first else (0.5, 0.0)
        self._number = 0

    def turn(self, got: AnyArray | None, out: AnyArray) -> None:
        """Check that what came was all sent in this turn, and send the next number."""
        if got is not None:
            due = (self._number - 1 if self._own == 0.0 else self._number) % _VALUES + self._other
            if got.max() != due or got[0] != due or got[-1] != due:
                raise ProtocolError(f"message {self._number} should be all {due}; it has {got.max()}.")
        out.fill(self._number % _VALUES + self._own)
        self._number += 1


@final
class _Server(AbstractParty):
    """Holds the model: takes a step with each gradient."""

    def __init__(self, n: int) -> None:
        self._model: FloatVector = np.zeros(n, np.float32)
        self._step: FloatVector = np.empty(n, np.float32)

    def turn(self, got: AnyArray | None, out: AnyArray) -> None:
        """Take a step with the gradient that came, and write the model."""
        if got is not None:
            np.multiply(got, np.float32(-_RATE), out=self._step)
            self._model += self._step
        out[:] = self._model


@final
class _Logistic(AbstractParty):
    """The gradient of logistic regression over a batch of generated rows."""

    def __init__(self, n: int) -> None:
        rng = np.random.default_rng(0)
        self._X = rng.standard_normal((_ROWS, n)).astype(np.float32) / np.float32(np.sqrt(n))
        self._y = (self._X @ rng.standard_normal(n).astype(np.float32) > 0).astype(np.float32)
        self._at = 0

    def turn(self, got: AnyArray | None, out: AnyArray) -> None:
        """Write the gradient of the next batch at the model that came."""
        model = np.zeros(out.shape, np.float32) if got is None else got
        X, y = self._X[self._at : self._at + _BATCH], self._y[self._at : self._at + _BATCH]
        self._at = (self._at + _BATCH) % _ROWS
        np.dot((1.0 / (1.0 + np.exp(-(X @ model))) - y) / np.float32(_BATCH), X, out=out)


@final
class _Network(AbstractParty):
    """The gradient of a network of two convolutions over a batch of generated images."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(1)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self._net = nn.Sequential(
                nn.Conv2d(1, 16, 5, padding=2),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 5, padding=2),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(32 * (_SIDE // 4) ** 2, 64),
                nn.ReLU(),
                nn.Linear(64, 10),
            )
            self._X = torch.randn(_BATCH * 8, 1, _SIDE, _SIDE)
            self._y = torch.randint(0, 10, (_BATCH * 8,))
        self._torch: Any = torch
        self._first = [one.detach().clone() for one in self._net.parameters()]
        self._at = 0

    def turn(self, got: AnyArray | None, out: AnyArray) -> None:
        """Write the gradient of the next batch at the model that came, which is a step from the first one."""
        torch, at = self._torch, 0
        X, y = self._X[self._at : self._at + _BATCH], self._y[self._at : self._at + _BATCH]
        self._at = (self._at + _BATCH) % len(self._y)
        with torch.no_grad():
            for one, first in zip(self._net.parameters(), self._first, strict=True):
                n = one.numel()
                if got is not None:
                    one.copy_(torch.from_numpy(np.array(got[at : at + n])).view_as(one) + first)
                at += n
        self._net.zero_grad()
        torch.nn.functional.cross_entropy(self._net(X), y).backward()
        at = 0
        for one in self._net.parameters():
            n = one.numel()
            out[at : at + n] = one.grad.numpy().reshape(-1)
            at += n


@dataclass(frozen=True)
class Amount:
    """How many rounds are made."""

    seconds: float
    rounds: int = 0

    def after(self, warm_s: float) -> int:
        """Return how many rounds are made after some of which one took so long."""
        return self.rounds or max(3, min(_MOST_ROUNDS, int(self.seconds / max(warm_s, 1e-9))))


def digest(array: AnyArray) -> str:
    """Return what tells this array from other ones."""
    return hashlib.blake2b(array.tobytes(), digest_size=6).hexdigest()


def take_rounds(
    work: Work,
    amount: Amount,
    step: Callable[[Any], Any],
    count: Callable[[], Sequence[int]] | None = None,
    agree: Callable[[float], float] = float,
) -> tuple[Row, Any]:
    """Make rounds, a message each way; return what a row says of them, and what came last.

    - step: makes a round with what came in the one before, and returns what came.
    - count: what both processes have counted, returned for one message; without it rounds are timed (median, lowest,
      n).
    - agree: returns the seconds of a round that both ends go by.
    """
    held = None

    def play(n: int) -> list[float]:
        nonlocal held
        seconds = []
        for _ in range(n):
            begin = time.perf_counter()
            held = step(held)
            seconds.append(time.perf_counter() - begin)
        return seconds

    n = amount.after(agree(min(play(1 if work.n >= _LONG else 3))))
    if count is None:
        seconds = play(n)
        return {"round_s": float(np.median(seconds)), "least_s": min(seconds), "rounds": n}, held
    before = count()
    play(n)
    each = ((late - early) / (2 * n) for early, late in zip(before, count(), strict=True))
    return {"rounds": n, **dict(zip(COUNTS, each, strict=True))}, held


def run_alone(works: Sequence[tuple[Work, Amount]]) -> list[Row]:
    """Return the rows of some works, and in each ``copy_s``, the seconds of a copy of a message."""
    rows = []
    for work, amount in works:
        first, second = make_party(work, True), make_party(work, False)
        up, down = np.zeros(work.n, np.float32), np.zeros(work.n, np.float32)

        def step(got: AnyArray | None, ends: Any = (first, second, up, down)) -> AnyArray:
            begins, answers, there, back = ends
            begins.turn(got, there)
            answers.turn(there, back)
            found: AnyArray = back
            return found

        found, _ = take_rounds(work, amount, step)
        copies = []
        for _ in range(found["rounds"]):
            begin = time.perf_counter()
            np.copyto(up, down)
            copies.append(time.perf_counter() - begin)
        rows.append({**found, "copy_s": float(np.median(copies)), "digest": digest(down)})
    return rows
