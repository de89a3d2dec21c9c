"""Messages over what others carry: Dask's task graph, its actors and its RPC, and MPI.

The arrays stay on the two workers, and the client only says what to do. Over the graph a turn is a task that takes the
result of the one before from the other worker. An actor lives on one worker, and a task on the other calls it. Over the
RPC a handler of one worker is called by a task on the other, with the array in a frame of its own.

Over MPI there are two processes of an ``mpiexec`` of their own, which write what they found into a file::

    mpiexec -n 2 python -m dsgd.study.transports.others ORDERS FILE
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dsgd.runtime.dask_internals import as_frame, ask_worker, event_loop, serve
from dsgd.study.frame.rows import Row
from dsgd.study.transports.pairs import Pair, Wire
from dsgd.study.transports.parties import AbstractParty, Amount, Work, counts_here, digest, make_party, take_rounds
from dsgd.types import AnyArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed import Client


# A task that is bound to a worker which has left waits for ever.
_TASK_LIMIT_S: Final = 120.0
_PARTIES: dict[str, AbstractParty] = {}


def _turn(name: str, work: Work, begins: bool, got: AnyArray | None) -> AnyArray:
    """Take a turn of a party that lives in this process; the array that leaves is new, as results of tasks must be."""
    if name not in _PARTIES:
        _PARTIES.clear()  # the one before is done
        _PARTIES[name] = make_party(work, begins)
    out = np.empty(work.n, np.float32)
    _PARTIES[name].turn(got, out)
    return out


def _workers(client: Client) -> list[str]:
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def run_graph(client: Client, works: Sequence[tuple[Work, Amount]], counts: bool) -> list[Row]:
    """Return the rows of some works over the task graph; see `dsgd.study.transports.pairs.run_pair`."""
    from distributed import wait

    workers, rows = _workers(client), []

    def counted() -> list[int]:
        found = client.run(counts_here, workers=workers).values()
        return [int(count) for count in np.sum(list(found), axis=0)]

    for number, (work, amount) in enumerate(works):

        def step(held: Any, name: str = f"{number} {time.time_ns()}", work: Work = work) -> Any:
            up = client.submit(_turn, name, work, True, held, workers=workers[:1], pure=False)
            down = client.submit(_turn, name, work, False, up, workers=workers[1:], pure=False)
            with client.as_current():
                wait(down, timeout=_TASK_LIMIT_S)
            return down

        row, held = take_rounds(work, amount, step, counted if counts else None)
        rows.append({**row, "digest": client.submit(digest, held, workers=workers[1:]).result()})
    return rows


class _Partner:
    """The party that answers, as an actor."""

    def __init__(self, work: Work) -> None:
        self._party = make_party(work, is_first=False)
        self._out = np.empty(work.n, np.float32)

    def turn(self, got: AnyArray) -> AnyArray:
        """Take a turn."""
        self._party.turn(got, self._out)
        return self._out

    def counts(self) -> list[int]:
        """Return what this process has counted."""
        return counts_here()


def _call(
    work: Work, amount: Amount, ask: Callable[[AnyArray], AnyArray], count: Callable[[], list[int]] | None
) -> Row:
    """Take turns with a party that is called; a task beside which the other worker answers."""
    party, out = make_party(work, is_first=True), np.empty(work.n, np.float32)

    def step(got: AnyArray | None) -> AnyArray:
        party.turn(got, out)
        return ask(out)

    row, got = take_rounds(work, amount, step, count)
    return {**row, "digest": digest(got)}


def _sum(ours: list[int], theirs: Sequence[int]) -> list[int]:
    return [one + other for one, other in zip(ours, theirs, strict=True)]


def _call_actor(partner: Any, work: Work, amount: Amount, counts: bool) -> Row:
    return _call(
        work,
        amount,
        lambda out: partner.turn(out).result(),
        (lambda: _sum(counts_here(), partner.counts().result())) if counts else None,
    )


def run_actor(client: Client, works: Sequence[tuple[Work, Amount]], counts: bool) -> list[Row]:
    """Return the rows of some works over a Dask actor; see `dsgd.study.transports.pairs.run_pair`."""
    workers, rows = _workers(client), []
    for work, amount in works:
        partner = client.submit(_Partner, work, actor=True, workers=workers[1:], pure=False)
        rows.append(client.submit(_call_actor, partner, work, amount, counts, workers=workers[:1], pure=False).result())
    return rows


def _answer(work: Work, dask_worker: Any) -> None:
    """Let a worker answer calls with the turns of a party."""
    partner = _Partner(work)

    def turn(data: AnyArray) -> Any:
        return as_frame(partner.turn(data))

    serve(dask_worker, {"study_turn": turn, "study_counts": partner.counts})


def _call_worker(address: str, work: Work, amount: Amount, counts: bool) -> Row:
    from distributed import get_worker

    worker = get_worker()
    loop = event_loop(worker)

    def wait(op: str, **arguments: Any) -> Any:
        async def ask() -> Any:
            return await ask_worker(worker, address, op, **arguments)

        return asyncio.run_coroutine_threadsafe(ask(), loop).result()

    return _call(
        work,
        amount,
        lambda out: wait("study_turn", data=as_frame(out)),
        (lambda: _sum(counts_here(), wait("study_counts"))) if counts else None,
    )


def run_rpc(client: Client, works: Sequence[tuple[Work, Amount]], counts: bool) -> list[Row]:
    """Return the rows of some works over the RPC of workers; see `dsgd.study.transports.pairs.run_pair`."""
    workers, rows = _workers(client), []
    for work, amount in works:
        client.run(_answer, work, workers=workers[1:])
        rows.append(
            client.submit(_call_worker, workers[1], work, amount, counts, workers=workers[:1], pure=False).result()
        )
    return rows


_MPI_LIMIT_S: Final = 600.0


def launcher() -> str | None:
    """Return the ``mpiexec`` beside this interpreter or on the PATH; None where that, or mpi4py, is missing."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    return found if find_spec("mpi4py") is not None else None


def run_mpi(works: Sequence[tuple[Work, Amount]], counts: bool) -> list[Row]:
    """Return the rows of some works over MPI; see `dsgd.study.transports.pairs.run_pair`."""
    program = launcher()
    assert program is not None  # the runner has asked
    orders = json.dumps({"works": [[vars(work), vars(amount)] for work, amount in works], "counts": counts})
    with tempfile.TemporaryDirectory(prefix="dsgd-") as folder:
        path = Path(folder) / "rows.json"
        command = [program, "-n", "2", sys.executable, "-m", __name__, orders, str(path)]
        subprocess.run(command, check=True, timeout=_MPI_LIMIT_S, capture_output=True)
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def _main(orders: str, path: str) -> None:
    from mpi4py import MPI

    world, given, rows = MPI.COMM_WORLD, json.loads(orders), []
    begins, peer = world.Get_rank() == 0, 1 - world.Get_rank()

    def both() -> list[int]:
        total = world.allreduce(np.array(counts_here()))
        return [int(count) for count in total]

    for of_work, of_amount in given["works"]:
        work, amount = Work(**of_work), Amount(**of_amount)
        wire = Wire(lambda out: world.Send(out, peer), lambda into: world.Recv(into, peer), work.n)
        pair = Pair(wire, make_party(work, begins), begins=begins)
        row, held = take_rounds(work, amount, pair.step, both if given["counts"] else None, world.bcast)
        rows.append({**row, "digest": digest(held)})
    if begins:
        Path(path).write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
