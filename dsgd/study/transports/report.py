"""The report of the study of transports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsgd.report import Axis, Bars, Figure, Line, Page, Panel, byte_text, series
from dsgd.report.theme import MUTED, TEXT
from dsgd.study.frame.report import doubts, facts, joined
from dsgd.study.frame.rows import Row, check_rows
from dsgd.study.published import SOURCES, as_times, citations
from dsgd.study.transports.grid import WAYS, TransportStudy
from dsgd.study.transports.summary import (
    NAMES,
    WayCell,
    check_transport_claims,
    copies_table,
    memory_table,
    message_table,
    placement_table,
    summarise_transports,
    training_table,
    transport_verdict,
    unequal_models,
)

__all__ = ["transport_page"]

_MEMORY: Final = ("ring", "pulled", "spin", "agreed", "registered")
_MESSAGES: Final = (
    "Half a round trip against the size of a message, medians. One end writes a message and the other reads it; grey: "
    "the same in one process, with nothing sent, which is as fast as memory allows."
)
_COPIES: Final = (
    "Bytes that were copied for a message, as multiples of it, counted in calls of the C library of both processes. "
    "Rings: bytes allocated for it."
)
_TRAINING: Final = (
    "How many times as fast as over Dask's RPC a step of training with a parameter server is, to the right is faster. "
    "With nothing sent: the bound."
)


def transport_page(study: TransportStudy, rows: Sequence[Row], missing: dict[str, str] | None = None) -> Page:
    """Return the report of a study from its finished runs.

    Parameters
    ----------
    study : TransportStudy
        The study.
    rows : sequence of dict
        Its rows.
    missing : dict of str to str, optional
        What could not be run, and why; see `missing_parts`.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    check_rows(rows)
    cells = summarise_transports(rows)
    left_out = missing or {}
    counted = sorted({cell.n_bytes for cell in cells if cell.part == "counts"})
    gone = [f"{WAYS.get(name, NAMES.get(name, name))} was left out: {why}." for name, why in left_out.items()]
    asked = len(rows) if gone else study.count()
    parts = {cell.part for cell in cells}
    return Page(
        title="What do copies cost between two processes?",
        answer=transport_verdict(cells),
        ran=facts(
            rows,
            ("Ways", joined(WAYS[way] for way in dict.fromkeys(cell.way for cell in cells))),
            ("Messages", f"{joined(byte_text(size) for size in sorted(set(study.sizes)))}, float32"),
            ("Repetitions", f"{study.repeats}, in which ways take turns; copies are counted once, in other processes"),
        ),
        doubts=doubts(rows, [*gone, *unequal_models(cells)], asked=asked),
        claims=check_transport_claims(cells),
        source=SOURCES["zerocopy"].reference + ".",
        figures=[
            *([_messages(cells)] if "messages" in parts else []),
            *([_copies(cells, counted[-1])] if counted else []),
            *([_training(cells)] if "training" in parts else []),
        ],
        tables=[
            *([message_table(cells), placement_table(cells), memory_table(cells)] if "messages" in parts else []),
            *(copies_table(cells, size) for size in dict.fromkeys((*counted[-1:], *counted[:1]))),
            *([training_table(cells)] if "training" in parts else []),
        ],
        rows=rows,
        citations=citations([SOURCES["zerocopy"]]),
    )


def _messages(cells: Sequence[WayCell]) -> Figure:
    """Return the time of a message against its size: what goes through the kernel, and what goes through memory."""
    timed = [cell for cell in cells if cell.part == "messages"]
    least = [cell for cell in timed if cell.way == "none"]
    sizes = sorted({cell.n_bytes for cell in timed})
    x = Axis("bytes of a message", "log", ticks={float(size): byte_text(size) for size in sizes})
    panels = []
    for title, inside in (("through Dask, sockets and libraries", False), ("through memory of both", True)):
        ways = [way for way in dict.fromkeys(cell.way for cell in timed) if (way in _MEMORY) is inside]
        marks = [_line(least, WAYS["none"], 0)] if least else []
        for number, way in enumerate(way for way in ways if way != "none"):
            marks.append(_line([cell for cell in timed if cell.way == way], WAYS[way], 1 + number + 9 * inside))
        panels.append(Panel(title, x, Axis("time of a message", "log", "s"), marks))
    return Figure("transports_messages", "Time of a message", _MESSAGES, panels, columns=2, height=360, share="xy")


def _line(cells: Sequence[WayCell], label: str, number: int) -> Line:
    at = [float(cell.n_bytes) for cell in cells]
    times = [cell.message_s() for cell in cells]
    if number == 0:
        return Line(label, at, times, MUTED, dash="dotted")
    colour, marker, dash = series(number - 1)
    return Line(label, at, times, colour, marker, dash)


def _places(ways: Sequence[str]) -> tuple[dict[str, float], Axis]:
    """Return the height of each way, the first at the top, and the axis that names them."""
    places = {way: float(len(ways) - 1 - number) for number, way in enumerate(ways)}
    ticks = {place: WAYS[way] for way, place in reversed(places.items())}
    return places, Axis("", low=-0.6, high=len(ways) - 0.4, ticks=ticks, grid=False)


def _copies(cells: Sequence[WayCell], n_bytes: int) -> Figure:
    own = [cell for cell in cells if cell.part == "counts" and cell.n_bytes == n_bytes]
    places, y = _places([cell.way for cell in own])
    marks, floor = [], [0.0] * len(own)
    for number, (name, label) in enumerate((("copied", "copied in the processes"), ("kernel", "copied by the kernel"))):
        right = [at + cell.copies(name) for at, cell in zip(floor, own, strict=True)]
        down, up = ([places[cell.way] + side for cell in own] for side in (-0.3, 0.3))
        names = [f"{cell.name}, {label}: {cell.copies(name):.2f}" for cell in own]
        marks.append(Bars(label, floor, right, down, up, series(number)[0], names))
        floor = right
    spent = Line(
        "allocated", [cell.copies("allocated") for cell in own], [places[cell.way] for cell in own], TEXT,
        "circle", width=0.0, hollow=True,
        names=[f"{cell.name}, allocated: {cell.copies('allocated'):.2f}" for cell in own],
    )  # fmt: skip
    panel = Panel("", Axis(f"multiples of a message of {byte_text(n_bytes)}", low=0.0), y, [*marks, spent])
    return Figure("transports_copies", "Copies of a message", _COPIES, [panel], columns=1, height=60 + 28 * len(own))


def _training(cells: Sequence[WayCell]) -> Figure:
    own = [cell for cell in cells if cell.part == "training"]
    places, y = _places(list(dict.fromkeys(cell.way for cell in own)))
    marks = []
    for number, model in enumerate(model for model in NAMES if any(cell.work == model for cell in own)):
        rpc = next((cell for cell in own if cell.work == model and cell.way == "rpc"), None)
        found = [(cell, over) for cell in own if cell.work == model and rpc and (over := rpc.over(cell)) is not None]
        colour, marker, _ = series(number)
        marks.append(
            Line(
                NAMES[model], [over.estimate for _, over in found], [places[cell.way] for cell, _ in found], colour,
                marker, width=0.0, names=[f"{cell.name}: {as_times(over.estimate)}" for cell, over in found],
            )
        )  # fmt: skip
    panel = Panel("", Axis("times as fast as over Dask RPC", "log", "x"), y, marks)
    return Figure(
        "transports_training", "Training over each way", _TRAINING, [panel], columns=1, height=60 + 28 * len(places)
    )
