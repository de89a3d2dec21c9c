"""What a fault is, and what it is injected into."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from chaos.gates import Visit
from chaos.harness import Cluster, Fit

STEPS = ("plan", "queue", "load", "rendezvous", "first round", "training", "epoch end", "collect", "after")
RUNNING = ("load", "rendezvous", "first round", "training", "epoch end", "collect")
CONNECTED = ("rendezvous", "first round", "training", "epoch end")
MODEL = frozenset({"model"})

#: Whose workers a fault may end, and with them the data that others keep there.
NONE, VICTIM, ALL = "none", "victim", "all"


@dataclass
class Scene:
    """What a fault is injected into.

    Parameters
    ----------
    cluster : Cluster
        The cluster.
    observer : Client
        A client that has no part in the fit.
    fit : Fit
        The fit that is hit.
    victim : Visit
        The rank, process and worker that are hit.
    held : str
        The step at which it is.
    start : callable
        Starts the fit of another user. It must give its model, unless ``start(killed=True)`` says that its process is
        about to be killed.
    undo : list of callable
        What must be done when the fit has ended, so that the cluster can heal.
    """

    cluster: Cluster
    observer: Client
    fit: Fit
    victim: Visit
    held: str
    start: Callable[..., Fit]
    undo: list[Callable[[], Any]] = field(default_factory=list)

    def end(self) -> None:
        """Undo what must be undone, once."""
        while self.undo:
            self.undo.pop(0)()


@dataclass(frozen=True)
class Fault:
    """One thing that can go wrong.

    Parameters
    ----------
    name : str
        As it appears in the tables.
    inject : callable
        Takes the scene and a generator, and does it.
    steps : tuple of str
        When it makes sense.
    errors : frozenset of str
        Names of the errors a fit may end with; empty if it must return its model.
    outcomes : frozenset of str
        How the fit may end, see `Outcome`.
    survived : bool
        Whether a fit with ``on_failure`` returns its model.
    passes : bool
        Whether a fit may return its model in any case: the fault may be over in time.
    hits : str
        Whose workers may end with it.
    order : mapping
        What else the fit is asked for, see `FitOrder`.
    """

    name: str
    inject: Callable[[Scene, random.Random], None]
    steps: tuple[str, ...] = STEPS
    errors: frozenset[str] = frozenset()
    outcomes: frozenset[str] = frozenset({"model", "error"})
    survived: bool = False
    passes: bool = False
    hits: str = NONE
    order: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_harmless(self) -> bool:
        """Whether fits must not notice."""
        return self.outcomes == MODEL


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
