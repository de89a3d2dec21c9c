"""Processes of tests are forked from one server, which has imported what they need and lives as long as the tests."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import dask
import distributed.utils
import pytest


def forking() -> ForkServerContext:
    """Return what starts processes that begin with all of `worker_image`; its server runs."""
    context = multiprocessing.get_context("forkserver")
    if server_pid() is None:
        with pytest.MonkeyPatch.context() as patch:
            # Its path must be right before it imports; Python 3.11 passes ours on only afterwards.
            patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
            context.set_forkserver_preload(["worker_image"])
            forkserver.ensure_running()
    return context


def server_pid() -> int | None:
    """Return the process that others are forked from, if it runs."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def fork_workers() -> None:
    """Let the nannies of this process fork their workers from now on."""
    forking()
    distributed.utils._forkserver_preload_set = True  # Dask would name other modules to import
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
