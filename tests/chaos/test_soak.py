"""Scenarios drawn at random: ``make soak``, or ``SOAK_RUNS=200 SOAK_SEED=0 pytest -m soak tests/chaos``.

Run ``n`` of a seed is the same wherever it runs; ``SOAK_FIRST=n SOAK_RUNS=1`` replays it alone. ``CHAOS_ROWS`` names a
file to which every run appends a line: the scenario, how it ended, and after how many seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from chaos.scenarios import draw

_RUNS = int(os.environ.get("SOAK_RUNS", "1"))
_SEED = int(os.environ.get("SOAK_SEED", "0"))
_FIRST = int(os.environ.get("SOAK_FIRST", "0"))

pytestmark = [pytest.mark.cluster, pytest.mark.soak]


@pytest.mark.parametrize("number", range(_FIRST, _FIRST + _RUNS))
def test_soak(stage: Callable[..., None], number: int) -> None:
    """Whatever is drawn, the fit ends as it must, nothing is left, and the cluster trains on."""
    print(f"SOAK_SEED={_SEED} SOAK_FIRST={number} SOAK_RUNS=1")  # noqa: T201
    stage(draw(_SEED, number), seed_of_soak=_SEED, number=number)
