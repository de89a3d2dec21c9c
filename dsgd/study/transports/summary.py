"""Summary of the study of transports: messages, placements, copies and training by way, and the bound of memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dsgd.report import Claim, Table, byte_text, figure_text, seconds_text
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import AbstractCell, grouped
from dsgd.study.published import STATEMENTS, Statement, as_times
from dsgd.study.transports.grid import WAYS
from dsgd.study.transports.parties import MODELS
from dsgd.study.verdict import Interval, largest, ratio, were_busy

__all__ = [
    "WayCell",
    "check_transport_claims",
    "copies_table",
    "memory_table",
    "message_table",
    "placement_table",
    "summarise_transports",
    "training_table",
    "transport_verdict",
    "unequal_models",
]

_DATA: Final = "a parameter server and a worker, two processes of one machine"
# Of shorter messages bytes are told, not multiples.
_LEAST_BYTES: Final = 4_096
#: Names of models in text.
NAMES: Final = {"logistic": "logistic regression, 254", "cnn": "CNN, 114,314", "25M": "25,557,032, messages only"}


@dataclass(frozen=True)
class WayCell(AbstractCell):
    """What was found of one work over one way; the rows differ in the repetition.

    Parameters
    ----------
    part : {"messages", "training", "counts"}
        What was done.
    way : str
        Over which way.
    work : str
        ``"messages"``, or the model.
    n_bytes : int
        Bytes of a message.
    rows : sequence of dict
        Its rows.
    """

    part: str
    way: str
    work: str
    n_bytes: int
    rows: Sequence[Row]

    @property
    def name(self) -> str:
        """What reports call the way."""
        return WAYS[self.way]

    def message_s(self) -> float:
        """Return the seconds of a message, written and read: half a round."""
        return self.median("round_s") / 2

    def over(self, other: WayCell | None) -> Interval | None:
        """Return how long a round takes over that of another cell, repetition by repetition."""
        return ratio(self.column("round_s", "repeat"), other.column("round_s", "repeat")) if other else None

    def copies(self, *names: str) -> float:
        """Return the sum of some counts of bytes, in messages; all three ways of copying by default."""
        return sum(self.median(name) for name in names or ("copied", "kernel")) / self.n_bytes


def summarise_transports(rows: Iterable[Row]) -> list[WayCell]:
    """Return one entry per part, way and work, in the order in which `WAYS` has them.

    Parameters
    ----------
    rows : iterable of dict
        Rows of one study.
    """
    made = [_with_kernel(row) for row in rows]
    found = [
        WayCell(part, way, work, n_bytes, own)
        for (part, way, work, n_bytes), own in grouped(made, "part", "way", "work", "n_bytes").items()
    ]
    order = list(WAYS)
    return sorted(found, key=lambda cell: (cell.part, order.index(cell.way), cell.n_bytes))


def _with_kernel(row: Row) -> Row:
    if row["part"] != "counts":
        return row
    return {**row, "kernel": row["to_kernel"] + row["from_kernel"] + row["pulled"]}


def _of(cells: Sequence[WayCell], part: str, **fixed: object) -> list[WayCell]:
    return [
        cell for cell in cells if cell.part == part and all(getattr(cell, name) == to for name, to in fixed.items())
    ]


def _one(cells: Sequence[WayCell], part: str, **fixed: object) -> WayCell | None:
    return next(iter(_of(cells, part, **fixed)), None)


def message_table(cells: Sequence[WayCell]) -> Table:
    """Return the time of a message by way and size."""
    timed = _of(cells, "messages")
    sizes = sorted({cell.n_bytes for cell in timed})
    rows = []
    for way in dict.fromkeys(cell.way for cell in timed):
        found = [_one(timed, "messages", way=way, n_bytes=size) for size in sizes]
        rows.append((WAYS[way], *(seconds_text(cell.message_s()) if cell else "-" for cell in found)))
    note = (
        "Half a round trip, medians over repetitions. One end writes all numbers of a message, the other reads them; "
        "with nothing sent, one process does both. Pieces are read from the other process from 2 MiB on."
    )
    return Table("Time of a message", ("way", *map(byte_text, sizes)), rows, note)


def placement_table(cells: Sequence[WayCell]) -> Table:
    """Return registered slots beside slots agreed per message and a ring, by size."""
    rows = []
    for static in _of(cells, "messages", way="registered"):
        dynamic, ring, least = (
            _one(cells, "messages", way=way, n_bytes=static.n_bytes) for way in ("agreed", "ring", "none")
        )
        rows.append(
            (
                byte_text(static.n_bytes), seconds_text(static.message_s()),
                seconds_text(dynamic.message_s()) if dynamic else "-",
                _times(dynamic.over(static) if dynamic else None), _times(ring.over(static) if ring else None),
                _times(static.over(least)),
            )
        )  # fmt: skip
    columns = ("message", "registered", "agreed", "agreed / registered", "ring / registered", "registered / bound")
    note = (
        "Registered: written where the other process reads it, in a slot made once. Agreed: address and size come with "
        "the message, the other process allocates and reads. The bound is what it takes with nothing sent."
    )
    return Table("Static and dynamic placement", columns, rows, note)


def copies_table(cells: Sequence[WayCell], n_bytes: int) -> Table:
    """Return what was counted of a message of one size, by way."""
    in_bytes = n_bytes < _LEAST_BYTES

    def text(cell: WayCell, *names: str) -> str:
        return byte_text(cell.copies(*names) * n_bytes) if in_bytes else f"{cell.copies(*names):.2f}"

    columns = {
        "way": lambda cell: cell.name,
        "copied" if in_bytes else "copies": text,
        "in processes": lambda cell: text(cell, "copied"),
        "by the kernel": lambda cell: text(cell, "kernel"),
        "allocated": lambda cell: text(cell, "allocated"),
        "allocations": lambda cell: f"{cell.median('allocations'):.0f}",
        "system calls": lambda cell: f"{cell.median('calls'):.1f}",
    }
    each = "" if in_bytes else ", each as multiples of the message"
    note = (
        "Of both processes, for one message: bytes that memcpy and its relatives moved, that the kernel moved for "
        f"send, receive, read, write and process_vm_readv, and that malloc and its relatives were asked for{each}. "
        "Allocations are all, those of Python objects too; system calls those that move data."
    )
    return Table.of(
        f"Copies and allocations of a message of {byte_text(n_bytes)}",
        _of(cells, "counts", n_bytes=n_bytes), columns, note,
    )  # fmt: skip


def training_table(cells: Sequence[WayCell]) -> Table:
    """Return the time of a step of each model by way, and how many times as long it is as over registered slots."""
    models = [name for name in MODELS if _of(cells, "training", work=name)]
    rows = []
    for way in dict.fromkeys(cell.way for cell in _of(cells, "training")):
        texts = []
        for model in models:
            cell, best = (_one(cells, "training", way=one, work=model) for one in (way, "registered"))
            texts += [seconds_text(cell.median("round_s")) if cell else "-", _times(cell.over(best) if cell else None)]
        rows.append((WAYS[way], *texts))
    columns = [text for model in models for text in (NAMES[model], "/ registered")]
    note = (
        "A step: the gradient of 32 rows goes to the server, and the model comes back. After as many steps models are "
        "equal, bit by bit, over all ways. With nothing sent, one process is both."
    )
    return Table("Time of a training step", ("way", *columns), rows, note)


def memory_table(cells: Sequence[WayCell]) -> Table:
    """Return how fast memory is, and what that leaves to gain over the RPC."""
    rows = []
    for cell in _of(cells, "messages", way="none"):
        rpc = _one(cells, "messages", way="rpc", n_bytes=cell.n_bytes)
        both, copy = (cell.n_bytes / seconds / 1e9 for seconds in (cell.message_s(), cell.median("copy_s")))
        rows.append(
            (
                byte_text(cell.n_bytes), seconds_text(cell.message_s()), figure_text(both),
                seconds_text(cell.median("copy_s")), figure_text(copy), _times(rpc.over(cell) if rpc else None),
            )
        )  # fmt: skip
    columns = ("message", "write and read", "GB/s", "a copy", "GB/s of copies", "most to gain over Dask RPC")
    note = (
        "One process on memory of its own: a message is written once and read once, which every way must do, and "
        "copied once. No way can be more times faster than the last column says."
    )
    return Table("The bound of memory", columns, rows, note)


def transport_verdict(cells: Sequence[WayCell]) -> str:
    """Return the answer of the study, a few sentences."""
    gains, bounds = [], []
    sizes = sorted({cell.n_bytes for cell in _of(cells, "messages")})
    for size in dict.fromkeys((*sizes[:1], *sizes[-1:])):
        rpc, best, least = (_one(cells, "messages", way=way, n_bytes=size) for way in ("rpc", "registered", "none"))
        if rpc and best and least:
            gains.append(f"{rpc.message_s() / best.message_s():.3g} times at {byte_text(size)}")
            bounds.append(f"{rpc.message_s() / least.message_s():.3g}")
    gained, allowed = " and ".join(gains), " and ".join(bounds)
    answer = f"Registered slots are faster than Dask's RPC: {gained}, where memory allows {allowed}." if gains else ""
    big = max((cell.n_bytes for cell in _of(cells, "counts")), default=0)
    counted = {cell.way: cell for cell in _of(cells, "counts", n_bytes=big)}
    if {"rpc", "registered"} <= set(counted):
        answer += (
            f" Of {byte_text(big)} they copy {counted['registered'].copies():.1f} times the message, the RPC "
            f"{counted['rpc'].copies():.1f} times."
        )
    return answer.strip() or "Too little was run for an answer."


def unequal_models(cells: Sequence[WayCell]) -> list[str]:
    """Return sentences about models that are not the same over all ways; there should be none."""
    found = []
    for model in MODELS:
        rows = [row for cell in _of(cells, "training", work=model) for row in cell.rows]
        for steps in sorted({row["rounds"] for row in rows}):
            digests = {row["digest"] for row in rows if row["rounds"] == steps}
            if len(digests) > 1:
                found.append(
                    f"{NAMES[model]}: after as many steps ways have {len(digests)} different models, so one is wrong."
                )
    return found


def check_transport_claims(cells: Sequence[WayCell]) -> list[Claim]:
    """Return what is published of messages without copies, and whether it holds here.

    Parameters
    ----------
    cells : sequence of WayCell
        From `summarise_transports`.
    """
    return [
        _gain(STATEMENTS["zerocopy/general"], cells, "rpc", 0.0),
        _gain(STATEMENTS["zerocopy/tuned"], cells, "ring", 1.0),
    ]


def _gain(statement: Statement, cells: Sequence[WayCell], way: str, less: float) -> Claim:
    """Return a claim about the training time over a way over that of registered slots, less a number."""
    found: dict[str, Interval] = {}
    bounds: list[str] = []
    for model in MODELS:
        other, best, least = (_one(cells, "training", way=one, work=model) for one in (way, "registered", "none"))
        over = other.over(best) if other else None
        if over is not None:
            found[model] = over.mapped(lambda value: value - less)
            bound = other.over(least) if other and least else None
            bounds.append(
                f"{NAMES[model]}: {statement.form(found[model].estimate)}"
                + (f", at most {statement.form(bound.estimate - less)} with nothing sent" if bound else "")
            )
    if not found:
        return statement.not_run(_DATA, f"Train over {WAYS[way]} and registered slots.")
    rows = [row for cell in _of(cells, "training") for row in cell.rows]
    return statement.judged(_DATA, largest(found.values()), f"{'; '.join(bounds)}.", busy=were_busy(rows))


def _times(found: Interval | None) -> str:
    return "-" if found is None else as_times(found.estimate)
