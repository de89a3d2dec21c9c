"""The runtime on simulated clusters: whatever happens, and whenever, its promises hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.gangs import play, replay_line, shrunk
from simulation.product import simulated

N_PARTS = 12
N_EACH = int(os.environ.get("DSGD_SCHEDULES", "2000")) // N_PARTS


@pytest.mark.parametrize("part", range(N_PARTS))
def test_promises_hold_under_any_schedule(part: int) -> None:
    """Leases, queue, epochs, causes, ends and what is left are as promised, whatever fails at which moment."""
    with simulated():
        for seed in range(part * N_EACH, (part + 1) * N_EACH):
            _, error = play(seed)
            if error is not None:
                pytest.fail(f"{error}\n{replay_line(seed, shrunk(seed))}")


def test_a_seed_repeats_to_the_byte() -> None:
    """A schedule is the same in every process, also where strings have other hashes."""
    seeds, here = range(7, 10), []
    with simulated():
        for seed in seeds:
            here += play(seed)[0]
    tests = Path(__file__).parents[1]
    imports = "from simulation.gangs import play\nfrom simulation.product import simulated\n"
    code = f"{imports}with simulated():\n  for s in {seeds}: print(*play(s)[0], sep='\\n')"
    environment = os.environ | {"PYTHONHASHSEED": "17", "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.splitlines() == here
