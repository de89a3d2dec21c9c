"""Messages over MPI: two processes of an ``mpiexec`` of their own, which write what they found into a file.

::

    mpiexec -n 2 python -m dsgd.study.transports.over_mpi ORDERS FILE
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from dsgd.study.frame.rows import Row
from dsgd.study.transports.counting import counts_here
from dsgd.study.transports.pairs import Amount, Pair, count_row, digest, time_row, warm_up
from dsgd.study.transports.parties import Work, make_party
from dsgd.study.transports.slots import AbstractChannel
from dsgd.types import AnyArray

_LIMIT_S: Final = 600.0


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
        subprocess.run(command, check=True, timeout=_LIMIT_S, capture_output=True)
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    return rows


@final
class _World(AbstractChannel):
    """The other of two processes."""

    def __init__(self, world: Any, n: int) -> None:
        self._world, self._peer = world, 1 - world.Get_rank()
        self._out, self._in = np.zeros(n, np.float32), np.zeros(n, np.float32)

    def out(self) -> AnyArray:
        """Return the array that is sent."""
        return self._out

    def post(self) -> None:
        """Send it."""
        self._world.Send(self._out, self._peer)

    def get(self) -> AnyArray:
        """Receive one."""
        self._world.Recv(self._in, self._peer)
        return self._in

    def release(self) -> None:
        """Do nothing: the array is this end's."""


def _main(orders: str, path: str) -> None:
    from mpi4py import MPI

    world, given, rows = MPI.COMM_WORLD, json.loads(orders), []
    begins = world.Get_rank() == 0

    def both() -> list[int]:
        total = world.allreduce(np.array(counts_here()))
        return [int(count) for count in total]

    for of_work, of_amount in given["works"]:
        work, amount = Work(**of_work), Amount(**of_amount)
        pair = Pair(_World(world, work.n), make_party(work, begins), begins=begins)
        n = amount.after(world.bcast(min(pair.play(warm_up(work)))))
        before = both() if given["counts"] else []
        seconds = pair.play(n)
        row = count_row(before, both(), n) if given["counts"] else time_row(seconds)
        assert pair.held is not None  # there was a round
        rows.append({**row, "digest": digest(pair.held)})
    if begins:
        Path(path).write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
