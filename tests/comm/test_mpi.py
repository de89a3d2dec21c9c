"""Ranks that mpiexec has started, where there is one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gangs import run_gang, sum_of

HERE = Path(__file__).parents[1]


def _mpiexec() -> str:
    """Return the command, or skip: it must be that of the MPI which mpi4py loads."""
    beside = Path(sys.executable).with_name("mpiexec")
    command = str(beside) if beside.exists() else shutil.which("mpiexec")
    loads = subprocess.run([sys.executable, "-c", "from mpi4py import MPI"], capture_output=True, check=False)
    if command is None or loads.returncode:
        pytest.skip("needs mpi4py, an MPI library and mpiexec")
    return command


@pytest.mark.slow
def test_arrays_that_mpi_carries_have_the_bits_of_any_other_wire() -> None:
    """Three processes of one mpiexec sum vectors as threads do, and notice when they are not at the same point."""
    sizes = (0, 1, 7, 1000, 100_000)
    outcome = subprocess.run(
        [_mpiexec(), "-n", "3", sys.executable, str(HERE / "mpi_ranks.py"), *map(str, sizes)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    expected = run_gang("inproc", 3, lambda group: [sum_of(group, n, seed).hex() for seed, n in enumerate(sizes)])
    assert found["sums"] == expected[0]
    assert found["error"].startswith("ProtocolError")
    assert "size 32 bytes, got 40 bytes" in found["error"]


def test_processes_of_different_worlds_are_told_what_is_missing() -> None:
    """Without mpi4py, or without one mpiexec for all workers, the error says so."""
    # In a process of its own: MPI opens sockets that it keeps to the end.
    code = (
        "import gangs, dsgd.comm.wires.mpi as m; print([repr(r) for r in gangs.connect_with(m.connect, 2, 10.0, None)])"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )
    assert outcome.stdout.count('transport="mpi" needs') == 2
