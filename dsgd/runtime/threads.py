"""Ranks as threads of this process, over one copy of the data."""

from __future__ import annotations

import contextlib
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from dsgd.collectives import Algorithm, Group
from dsgd.comm.base import AbstractMailbox, AbstractTransport
from dsgd.comm.frames import AbortFlag
from dsgd.comm.memory.cores import count_cores
from dsgd.comm.wires import inproc
from dsgd.comm.wires.mailboxes import connect_threads
from dsgd.errors import AbortedError
from dsgd.ledger import Ledger, RankLedger
from dsgd.runtime.pools import limit_pools
from dsgd.runtime.progress import heeding
from dsgd.runtime.rank import GangResult, Mail, Rank, RankProgram, Server
from dsgd.stages import carried, stage

_JOIN_SLICE_S: Final = 0.1  # how long the main thread is deaf to ctrl-C


def run_on_threads(
    program: RankProgram,
    data: Sequence[Any],
    args: tuple[Any, ...] = (),
    *,
    timeout_s: float = 300.0,
    algorithm: Algorithm = "auto",
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    mail: Mail | None = None,
    given: Any = None,
) -> GangResult:
    """Run a rank program on threads of this process, one rank per entry of `data`.

    Rank 0 runs in the calling thread, the others in threads of their own; ctrl-C stops them. Several ranks hold the
    pools of BLAS, OpenMP and Numba down to their share of the cores.

    Parameters
    ----------
    program : RankProgram
        Called as ``program(rank, data[r], *args)``.
    data : sequence
        What each rank works on, by rank; usually views of one array.
    args : tuple
        Further arguments, the same objects for every rank.
    timeout_s : float, default 300
        How long a rank waits for a peer.
    algorithm : str, default "auto"
        How vectors are summed.
    on_event : callable, optional
        Receives what rank 0 publishes, in the thread of rank 0. With `StopTraining` it asks the program to end early.
    mail : Mail, optional
        Whether ranks get mailboxes, and which servers come after them, each in a thread of its own.
    given : object, optional
        What rank 0 alone is given; see `Rank`.

    Returns
    -------
    GangResult
        With what rank 0 returned.

    Raises
    ------
    Exception
        Whatever the first rank that failed has raised.
    """
    begin = time.perf_counter()
    gang = ThreadGang(len(data), mail, on_event, given)
    size, abort = gang.size, gang.abort
    ledgers = [RankLedger(r) for r in range(gang.n_ends)]
    transports = inproc.connect(size, timeout_s=timeout_s, ledgers=ledgers[:size], aborts=[abort] * size)
    mailboxes = [] if gang.mail.in_pairs else connect_threads(ledgers, [abort] * gang.n_ends, timeout_s)
    for transport, mailbox in zip(transports, mailboxes, strict=False):
        transport.mailbox = mailbox
    n_threads = max(1, count_cores() // size)
    values: list[Any] = [None] * size

    def work(number: int) -> None:
        if number >= size:
            with gang.watching(number, mailboxes[number]):
                gang.serve(Server(mailboxes[number], size, abort), args)
            return
        transport = transports[number]
        with gang.watching(number, transport, transport.mailbox):
            rank = gang.rank(Group(transport, algorithm), n_threads)
            # A rank alone has all cores, and the pools of its process are as the user has set them.
            with limit_pools(n_threads) if size > 1 else contextlib.nullcontext():
                values[number] = program(rank, data[number], *args)

    with stage("train"):
        run_threads(work, range(gang.n_ends), abort)
    gang.raise_first()
    stats = [
        {
            "rank": r,
            "worker": f"thread {r}",
            "host": platform.node(),
            "rows": getattr(data[r], "n_rows", None),
            "peak_rss_bytes": peak_rss_bytes(),
            "transport": transports[r].wire,
        }
        for r in range(size)
    ]
    ledger = Ledger([keeper.records() for keeper in ledgers], elapsed_s=time.perf_counter() - begin)
    return GangResult(values[0], stats, ledger)


class ThreadGang:
    """What ranks and servers that are threads of this process share: what stops all of them, and their errors."""

    def __init__(
        self, size: int, mail: Mail | None, on_event: Callable[[Mapping[str, Any]], None] | None, given: Any
    ) -> None:
        self.mail = Mail(in_pairs=True) if mail is None else mail
        self.size = size
        self.n_ends = self.size + self.mail.n_servers
        self.abort = AbortFlag()
        self._enough = threading.Event()
        self._of_first: dict[str, Any] = {"given": given}
        if on_event:
            self._of_first["publish"] = heeding(on_event, self._enough)
        self._errors: list[tuple[int, BaseException]] = []

    def raise_first(self) -> None:
        """Raise what the first rank or server that failed has raised, if one has; called when all have ended."""
        if self._errors:
            raise root_cause(self._errors)

    @contextlib.contextmanager
    def watching(self, number: int, *ends: AbstractTransport | AbstractMailbox | None) -> Iterator[None]:
        """Keep the error of a rank or server, which stops the others; always close its transport."""
        try:
            yield
        except BaseException as error:
            self._errors.append((number, error))
            who = "rank" if number < self.size else "server"
            self.abort.set(f"{who} {number} raised {type(error).__name__}: {error}")
        finally:
            for end in ends:
                if end is not None:
                    end.close()

    def rank(self, group: Group, n_threads: int = 1) -> Rank:
        """Return what the program of a rank is given."""
        own = self._of_first if group.rank == 0 else {}
        return Rank(group, self.abort, n_threads=n_threads, enough=self._enough, **own)

    def serve(self, server: Server, args: tuple[Any, ...]) -> None:
        """Run what servers run, with the arguments of the program."""
        assert self.mail.serve is not None  # a gang without it has no servers
        self.mail.serve(server, *args)


#: Whether getrusage counts this process alone.
_counts_alone: bool = False


def peak_rss_bytes() -> int:
    """Return the largest resident memory this process has had, in bytes."""
    global _counts_alone
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if not _counts_alone:
        # It also counts the parent, whose pages a new process holds until it loads its own program, until this process
        # has had more. To ask the system for its own peak takes forty times as long.
        with contextlib.suppress(OSError), open("/proc/self/status", "rb") as status:
            found = status.read().partition(b"VmHWM:")[2].split(maxsplit=1)
            if found:
                _counts_alone = int(found[0]) >= peak
                return int(found[0]) * 1024
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024  # kilobytes everywhere but on macOS


def run_threads(work: Callable[[int], None], ranks: Sequence[int], abort: AbortFlag, *, apart: bool = False) -> None:
    """Call `work` for every rank, the first in this thread and the others in theirs; return when all have ended."""
    here = 0 if apart else 1
    threads = [
        threading.Thread(target=carried(work, leads=k == 0), args=(r,), name=f"dsgd-rank-{r}", daemon=True)
        for k, r in enumerate(ranks)
        if k >= here
    ]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        if not apart:
            work(ranks[0])
        for thread in threads:
            while thread.is_alive():
                thread.join(_JOIN_SLICE_S)
    except BaseException as error:
        abort.set(f"interrupted by {type(error).__name__}")
        for thread in started:
            thread.join()
        raise


def root_cause(errors: list[tuple[int, BaseException]]) -> BaseException:
    """Return the error that came first and is not the echo of another rank's."""
    return next((e for _, e in errors if not isinstance(e, AbortedError)), errors[0][1])
