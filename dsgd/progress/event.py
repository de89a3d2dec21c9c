"""Progress events: what a running fit reports, made by rank 0.

Events are sent as flat mappings of plain values, from the rank to the scheduler and on to the client, where they become
one of two records. A `ProgressEvent` is a number of epochs done; at most five are sent a second, so one may cover many
epochs. A `Notice` is anything else worth a line: a place in the queue, a slow rank, a stage of a solver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class ProgressEvent:
    """How far training is, and where its time goes.

    Parameters
    ----------
    epoch : int
        Epochs done, from 1.
    max_iter : int
        Epochs at most.
    train_loss : float
        Mean loss of a row in the last epoch; the penalty is not in it.
    seconds : float
        Since training began on rank 0.
    rows_per_s : float
        Rows that all ranks together have visited, per second since the event before.
    comm_share : float
        Share of all ranks' time that went into communication (wire and wait) since the event before, from 0 to 1;
        control is no part of it.
    period : int or None
        Rows of a rank between two synchronisations, now; None where ranks do not synchronise.
    strategy : str
        Name of the strategy.
    compute_s, encode_s, wire_s, wait_s, control_s : tuple of float, length n_ranks
        Seconds of each rank so far; see `dsgd.Ledger`.
    validation_score : float or None
        Score of the rows held out or passed for validation after the epoch; None where there are none.
    """

    epoch: int
    max_iter: int
    train_loss: float
    seconds: float
    rows_per_s: float
    comm_share: float
    period: int | None
    strategy: str
    compute_s: tuple[float, ...] = ()
    encode_s: tuple[float, ...] = ()
    wire_s: tuple[float, ...] = ()
    wait_s: tuple[float, ...] = ()
    control_s: tuple[float, ...] = ()
    validation_score: float | None = None

    @property
    def text(self) -> str:
        """The event as a line of a log."""
        parts = [f"training loss {self.train_loss:.6g}", f"{count_text(self.rows_per_s)} rows/s"]
        if len(self.compute_s) > 1:
            parts.append(f"{self.comm_share:.0%} communication")
            parts.append("no synchronisation" if self.period is None else f"period {self.period}")
        return f"epoch {self.epoch}: {', '.join(parts)}, {self.seconds:.2f} s"

    @property
    def short_text(self) -> str:
        """The event in as few columns as it needs; what matters least comes last, where a narrow terminal cuts."""
        rate = f"{count_text(self.rows_per_s)} rows/s"
        parts = [f"epoch {self.epoch}/{self.max_iter}", f"loss {self.train_loss:.5g}", rate]
        if len(self.compute_s) > 1:
            parts += [f"comm {self.comm_share:.0%}", f"period {self.period or '-'}"]
        return "  ".join(parts)

    def as_mapping(self) -> dict[str, Any]:
        """Return the fields as plain values, to be sent."""
        return dict(vars(self))


@dataclass(frozen=True)
class Notice:
    """A message of a fit, such as its place in the queue.

    Parameters
    ----------
    phase : str
        Its subject: ``"queued"``, ``"resumed"``, ``"straggler"``, or a stage of a solver.
    text : str
        The message for users.
    values : mapping
        All values of the event, by name.
    """

    phase: str
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)


_FIELDS = tuple(f.name for f in fields(ProgressEvent))


def read_event(event: Mapping[str, Any]) -> ProgressEvent | Notice:
    """Return the event or notice of a published mapping.

    Parameters
    ----------
    event : mapping
        Plain values as rank 0 has published them; what is not a `ProgressEvent` is a `Notice`.
    """
    if "comm_share" in event:
        values: dict[str, Any] = {name: event[name] for name in _FIELDS if name in event}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return ProgressEvent(**values)
    phase = str(event.get("phase", event.get("stage", "")))
    return Notice(phase, str(event.get("text", phase)), dict(event))


def count_text(n: float) -> str:
    """Return a count for people, ``"1.2M"``."""
    for unit in ("", "k", "M", "G"):
        if n < 999.5:
            return f"{n:.3g}{unit}"
        n /= 1000.0
    return f"{n:.3g}T"
