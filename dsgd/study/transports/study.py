"""The declaration of the study of transports, its tables, figures and claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dsgd.errors import InvalidParameterError
from dsgd.report import Axis, Bars, Claim, Figure, Line, Panel, Table, byte_text, figure_text, seconds_text, series
from dsgd.report.figures import MUTED, TEXT
from dsgd.sim.calibration import run_measurement
from dsgd.study.frame.data import cluster_of
from dsgd.study.frame.report import joined, line_of
from dsgd.study.frame.rows import Cell, Row, Run, cells_of, one_of, only
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.published import STATEMENTS, Interval, Statement, as_times, largest, were_busy
from dsgd.study.transports.others import launcher, run_actor, run_graph, run_mpi, run_rpc
from dsgd.study.transports.pairs import run_pair
from dsgd.study.transports.parties import MODELS, Amount, Work, can_count, counted, run_alone

if TYPE_CHECKING:
    from distributed import Client

#: Ways by name, and what reports call them.
WAYS: Final = MappingProxyType(
    {
        "none": "nothing sent",
        "graph": "task graph",
        "actor": "Dask actor",
        "rpc": "Dask RPC",
        "tls": "TLS",
        "tcp": "TCP",
        "mpi": "MPI",
        "ring": "memory, ring",
        "pulled": "memory, pulled",
        "spin": "memory, spinning",
        "agreed": "slots agreed per message",
        "registered": "slots registered",
    }
)

_PARTS: Final = ("messages", "training", "counts")
_STEPS: Final = {"logistic": 1_000, "cnn": 20, "25M": 2}
# Rounds of tasks take so long that a tenth of the short ones must do.
_STEPS_OF_TASKS: Final = {**_STEPS, "logistic": 100}
# Rounds that are counted: many where other work of the processes would be seen beside the message.
_FEW_FROM_BYTES, _FEW, _MANY = 1_000_000, 5, 50


_ON_CLIENTS: Final = MappingProxyType({"graph": run_graph, "actor": run_actor, "rpc": run_rpc})
#: What the gang of a way goes over, where it is not memory read from the other process.
_TRANSPORTS: Final = MappingProxyType({"tcp": "tcp", "tls": "tcp", "spin": "spin"})


def missing_parts(study: Study) -> dict[str, str]:
    """Return what of a study cannot be run here, by way, model or part, and why."""
    found = {}
    if "tls" in study.ways and find_spec("cryptography") is None:
        found["tls"] = "cryptography is not installed"
    if "mpi" in study.ways and launcher() is None:
        found["mpi"] = "there is no mpi4py here, or no mpiexec beside it"
    if "cnn" in study.models and find_spec("torch") is None:
        found["cnn"] = "torch is not installed"
    if not can_count():
        found["counts"] = "counting needs Linux and a C compiler called cc"
    return found


def _axes(study: Study) -> dict[str, Iterable[Any]]:
    works = [*map(Work.of_model, study.models), *map(Work.of_bytes, sorted(study.sizes))]
    missing = missing_parts(study)
    return {
        "part": [part for part in _PARTS if part not in missing], "repeat": range(study.repeats),
        "way": [way for way in study.ways if way not in missing],
        "_work": [work for work in works if work.kind not in missing],
    }  # fmt: skip


def _is_run(run: Run) -> bool:
    if run.part == "counts" and (run.repeat or run.way == "none"):
        return False
    return bool((run.part == "training") == (run._work.kind in MODELS))


def _derive(run: Run) -> Row:
    amount, work = _amount(run), run._work
    return {
        "work": work.kind, "n_bytes": 4 * work.n, "amount": amount.rounds or f"{amount.seconds:g} s", "ranks": 2,
    }  # fmt: skip


def _amount(run: Run) -> Amount:
    if run.part == "messages":
        return Amount(run.study.seconds)
    if run.part == "training":
        return Amount(0.0, (_STEPS_OF_TASKS if run.way == "graph" else _STEPS)[run._work.kind])
    return Amount(0.0, _FEW if 4 * run._work.n >= _FEW_FROM_BYTES else _MANY)


@contextmanager
def _clusters() -> Iterator[Any]:
    """Give a function that returns a client of two workers which encrypt or count, or do not; they are started once."""
    made: dict[tuple[bool, bool], Client] = {}
    with ExitStack() as stack:

        def client(*, encrypted: bool, counts: bool) -> Client:
            kind = encrypted, counts
            if kind not in made:
                with counted() if counts else nullcontext():
                    made[kind] = stack.enter_context(cluster_of(2, security=encrypted or None))
                # A cluster that has just started may know one of them only.
                made[kind].wait_for_workers(2)
            return made[kind]

        yield client


def _measure(batch: Batch, runs: Sequence[Run]) -> list[Row]:
    """Return the rows of runs of one way."""
    way, counts = runs[0].way, runs[0].part == "counts"
    works = [(run._work, _amount(run)) for run in runs]
    if way == "none":
        return run_alone(works)
    if way == "mpi":
        with counted() if counts else nullcontext():
            return run_mpi(works, counts)
    clients: Any = batch.client
    client = clients(encrypted=way == "tls", counts=counts)
    if way in _ON_CLIENTS:
        return _ON_CLIENTS[way](client, works, counts)
    transport: Any = _TRANSPORTS.get(way, "shm")
    gang = run_measurement(
        run_pair, (way, works, counts), client=client, ranks=2, transport=transport, ranks_per_worker=1
    )
    rows: list[Row] = gang.value
    return rows


_DATA: Final = "a parameter server and a worker, two processes of one machine"
# Of shorter messages bytes are told, not multiples.
_LEAST_BYTES: Final = 4_096
#: Names of models in text.
NAMES: Final = {"logistic": "logistic regression, 254", "cnn": "CNN, 114,314", "25M": "25,557,032, messages only"}
_BY_KERNEL: Final = ("to_kernel", "from_kernel", "pulled")


class WayCell(Cell):
    """What was found of one work over one way; the rows differ in the repetition."""

    #: All cells of the study.
    cells: Sequence[WayCell] = ()

    @property
    def name(self) -> str:
        """What reports call the way."""
        return WAYS[self.way]

    def message_s(self) -> float:
        """Return the seconds of a message, written and read: half a round."""
        return self.median("round_s") / 2

    def beside(self, way: str) -> WayCell | None:
        """Return what was found of the same work over another way; None if it was not run."""
        return one_of(self.cells, part=self.part, way=way, work=self.work, n_bytes=self.n_bytes)

    def slower(self, than: str, by: str | None = None) -> Interval | None:
        """Return how long a round takes over that of another way, repetition by repetition; `by` another one's."""
        ours, other = self.beside(by) if by else self, self.beside(than)
        return ours.over(other, "round_s") if ours and other else None

    def copies(self, *names: str) -> float:
        """Return the sum of some counts of bytes, in messages; all ways of copying by default."""
        return sum(self.median(name) for name in names or ("copied", *_BY_KERNEL)) / int(self.n_bytes)


def _cells(rows: Iterable[Row]) -> list[WayCell]:
    """Return the cells of parts, ways and works, in the order in which `WAYS` has them."""
    order = list(WAYS)
    found = cells_of(rows, "part", "way", "work", "n_bytes", make=WayCell)
    for cell in found:
        cell.cells = found
    return sorted(found, key=lambda cell: (cell.part, order.index(cell.way), cell.n_bytes))


def _message_table(cells: Sequence[WayCell]) -> Table:
    """Return the time of a message by way and size."""
    timed = only(cells, part="messages")
    sizes = sorted({cell.n_bytes for cell in timed})
    rows = []
    for way in dict.fromkeys(cell.way for cell in timed):
        found = [one_of(timed, way=way, n_bytes=size) for size in sizes]
        rows.append((WAYS[way], *(seconds_text(cell.message_s()) if cell else "-" for cell in found)))
    note = (
        "Half a round trip, medians over repetitions. One end writes all numbers of a message, the other reads them; "
        "with nothing sent, one process does both. Pieces are read from the other process from 2 MiB on."
    )
    return Table("Time of a message", ("way", *map(byte_text, sizes)), rows, note)


def _copies_table(cells: Sequence[WayCell], n_bytes: int) -> Table:
    """Return what was counted of a message of one size, by way."""
    in_bytes = n_bytes < _LEAST_BYTES

    def text(cell: WayCell, *names: str) -> str:
        return byte_text(cell.copies(*names) * n_bytes) if in_bytes else f"{cell.copies(*names):.2f}"

    columns = (
        f"way = name | {'copied' if in_bytes else 'copies'} = copied | in processes = inside | "
        "by the kernel = kernel | allocated = allocated | allocations = allocations:.0f | system calls = calls:.1f"
    )
    each = "" if in_bytes else ", each as multiples of the message"
    note = (
        "Of both processes, for one message: bytes that memcpy and its relatives moved, that the kernel moved for "
        f"send, receive, read, write and process_vm_readv, and that malloc and its relatives were asked for{each}. "
        "Allocations are all, those of Python objects too; system calls those that move data."
    )
    return Table.of(
        f"Copies and allocations of a message of {byte_text(n_bytes)}",
        only(cells, part="counts", n_bytes=n_bytes),
        columns,
        note,
        copied=text,
        inside=lambda cell: text(cell, "copied"),
        kernel=lambda cell: text(cell, *_BY_KERNEL),
        allocated=lambda cell: text(cell, "allocated"),
    )


def _training_table(cells: Sequence[WayCell]) -> Table:
    """Return the time of a step of each model by way, and how many times as long it is as over registered slots."""
    models = [name for name in MODELS if only(cells, part="training", work=name)]
    rows = []
    for way in dict.fromkeys(cell.way for cell in only(cells, part="training")):
        texts = []
        for cell in (one_of(cells, part="training", way=way, work=model) for model in models):
            texts += [seconds_text(cell.median("round_s")), _times(cell.slower("registered"))] if cell else ["-", "-"]
        rows.append((WAYS[way], *texts))
    columns = [text for model in models for text in (NAMES[model], "/ registered")]
    note = (
        "A step: the gradient of 32 rows goes to the server, and the model comes back. After as many steps models are "
        "equal, bit by bit, over all ways. With nothing sent, one process is both."
    )
    return Table("Time of a training step", ("way", *columns), rows, note)


def _memory_table(cells: Sequence[WayCell]) -> Table:
    """Return how fast memory is, and what that leaves to gain over the RPC."""
    columns = (
        "message = n_bytes:B | write and read = message | GB/s = rate | a copy = copy_s:s | GB/s of copies = copies | "
        "most to gain over Dask RPC = most"
    )
    note = (
        "One process on memory of its own: a message is written once and read once, which every way must do, and "
        "copied once. No way can be more times faster than the last column says."
    )
    return Table.of(
        "The bound of memory",
        only(cells, part="messages", way="none"),
        columns,
        note,
        message=lambda cell: seconds_text(cell.message_s()),
        rate=lambda cell: figure_text(cell.n_bytes / cell.message_s() / 1e9),
        copies=lambda cell: figure_text(cell.n_bytes / cell.median("copy_s") / 1e9),
        most=lambda cell: _times(cell.slower("none", by="rpc")),
    )


def _verdict(cells: Sequence[WayCell]) -> str:
    """Return the answer of the study, a few sentences."""
    gains, bounds = [], []
    sizes = sorted({cell.n_bytes for cell in only(cells, part="messages")})
    for size in dict.fromkeys((*sizes[:1], *sizes[-1:])):
        rpc = one_of(cells, part="messages", way="rpc", n_bytes=size)
        best, least = (rpc.beside("registered"), rpc.beside("none")) if rpc else (None, None)
        if rpc and best and least:
            gains.append(f"{rpc.message_s() / best.message_s():.3g} times at {byte_text(size)}")
            bounds.append(f"{rpc.message_s() / least.message_s():.3g}")
    gained, allowed = " and ".join(gains), " and ".join(bounds)
    answer = f"Registered slots are faster than Dask's RPC: {gained}, where memory allows {allowed}." if gains else ""
    big = max((cell.n_bytes for cell in only(cells, part="counts")), default=0)
    counted = {cell.way: cell for cell in only(cells, part="counts", n_bytes=big)}
    if {"rpc", "registered"} <= set(counted):
        answer += (
            f" Of {byte_text(big)} they copy {counted['registered'].copies():.1f} times the message, the RPC "
            f"{counted['rpc'].copies():.1f} times."
        )
    return answer.strip() or "Too little was run for an answer."


def _unequal_models(cells: Sequence[WayCell]) -> list[str]:
    """Return sentences about models that are not the same over all ways; there should be none."""
    found = []
    for model in MODELS:
        rows = [row for cell in only(cells, part="training", work=model) for row in cell.rows]
        for steps in sorted({row["rounds"] for row in rows}):
            digests = {row["digest"] for row in rows if row["rounds"] == steps}
            if len(digests) > 1:
                found.append(
                    f"{NAMES[model]}: after as many steps ways have {len(digests)} different models, so one is wrong."
                )
    return found


def _claims(cells: Sequence[WayCell]) -> list[Claim]:
    return [
        _gain(STATEMENTS["zerocopy/general"], cells, "rpc", 0.0),
        _gain(STATEMENTS["zerocopy/tuned"], cells, "ring", 1.0),
    ]


def _gain(statement: Statement, cells: Sequence[WayCell], way: str, less: float) -> Claim:
    """Return a claim about the training time over a way over that of registered slots, less a number."""
    found: dict[str, Interval] = {}
    bounds: list[str] = []
    for other in only(cells, part="training", way=way):
        over, bound = other.slower("registered"), other.slower("none")
        if over is not None:
            found[other.work] = over.mapped(lambda value: value - less)
            bounds.append(
                f"{NAMES[other.work]}: {statement.form(found[other.work].estimate)}"
                + (f", at most {statement.form(bound.estimate - less)} with nothing sent" if bound else "")
            )
    if not found:
        return statement.not_run(_DATA, f"Train over {WAYS[way]} and registered slots.")
    rows = [row for cell in only(cells, part="training") for row in cell.rows]
    baseline = f"{statement.form(1.0 - less)}: {WAYS[way]}"
    return statement.judged(
        _DATA, largest(found.values()), f"{'; '.join(bounds)}.", busy=were_busy(rows), baseline=baseline
    )


def _times(found: Interval | None) -> str:
    return "-" if found is None else as_times(found.estimate)


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


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    cells = _cells(rows)
    parts = {cell.part for cell in cells}
    sizes = sorted({cell.n_bytes for cell in cells if cell.part == "counts"})
    there = {value for cell in cells for value in (cell.part, cell.way, cell.work)}
    gone = {name: why for name, why in missing_parts(study).items() if name not in there}
    left_out = [f"{WAYS.get(name, NAMES.get(name, name))} was left out: {why}." for name, why in gone.items()]
    return {
        "answer": _verdict(cells),
        "ran": [
            ("Ways", joined(WAYS[way] for way in dict.fromkeys(cell.way for cell in cells))),
            ("Messages", f"{joined(byte_text(size) for size in sorted(set(study.sizes)))}, float32"),
            ("Repetitions", f"{study.repeats}, in which ways take turns; copies are counted once, in other processes"),
        ],
        "doubts": [*left_out, *_unequal_models(cells)],
        "claims": _claims(cells),
        "figures": [
            *([_messages(cells)] if "messages" in parts else []),
            *([_copies(cells, sizes[-1])] if sizes else []),
            *([_training(cells)] if "training" in parts else []),
        ],
        "tables": [
            *([_message_table(cells), _memory_table(cells)] if "messages" in parts else []),
            *(_copies_table(cells, size) for size in dict.fromkeys((*sizes[-1:], *sizes[:1]))),
            *([_training_table(cells)] if "training" in parts else []),
        ],
    }


def _messages(cells: Sequence[WayCell]) -> Figure:
    """Return the time of a message against its size: what goes through the kernel, and what goes through memory."""
    timed = only(cells, part="messages")
    least = only(timed, way="none")
    sizes = sorted({cell.n_bytes for cell in timed})
    x = Axis("bytes of a message", "log", ticks={float(size): byte_text(size) for size in sizes})
    panels = []
    for title, inside in (("through Dask, sockets and libraries", False), ("through memory of both", True)):
        ways = [way for way in dict.fromkeys(cell.way for cell in timed) if (way in _MEMORY) is inside]
        marks = [_line(least, WAYS["none"], 0)] if least else []
        for number, way in enumerate(way for way in ways if way != "none"):
            marks.append(_line(only(timed, way=way), WAYS[way], 1 + number + 9 * inside))
        panels.append(Panel(title, x, Axis("time of a message", "log", "s"), marks))
    return Figure("transports_messages", "Time of a message", _MESSAGES, panels, columns=2, height=360, share="xy")


def _line(cells: Sequence[WayCell], label: str, number: int) -> Line:
    style: dict[str, Any] = {} if number else {"colour": MUTED, "marker": "", "dash": "dotted"}
    times = [cell.message_s() for cell in cells]
    return line_of(label, [float(cell.n_bytes) for cell in cells], times, max(0, number - 1), **style)


def _places(ways: Sequence[str]) -> tuple[dict[str, float], Axis]:
    """Return the height of each way, the first at the top, and the axis that names them."""
    places = {way: float(len(ways) - 1 - number) for number, way in enumerate(ways)}
    ticks = {place: WAYS[way] for way, place in reversed(places.items())}
    return places, Axis("", low=-0.6, high=len(ways) - 0.4, ticks=ticks, grid=False)


def _copies(cells: Sequence[WayCell], n_bytes: int) -> Figure:
    own = only(cells, part="counts", n_bytes=n_bytes)
    places, y = _places([cell.way for cell in own])
    marks, floor = [], [0.0] * len(own)
    for number, (label, *names) in enumerate(
        (("copied in the processes", "copied"), ("copied by the kernel", *_BY_KERNEL))
    ):
        right = [at + cell.copies(*names) for at, cell in zip(floor, own, strict=True)]
        down, up = ([places[cell.way] + side for cell in own] for side in (-0.3, 0.3))
        told = [f"{cell.name}, {label}: {cell.copies(*names):.2f}" for cell in own]
        marks.append(Bars(label, floor, right, down, up, series(number)[0], told))
        floor = right
    spent = Line(
        "allocated",
        [cell.copies("allocated") for cell in own],
        [places[cell.way] for cell in own],
        TEXT,
        "circle",
        width=0.0,
        hollow=True,
        names=[f"{cell.name}, allocated: {cell.copies('allocated'):.2f}" for cell in own],
    )
    panel = Panel("", Axis(f"multiples of a message of {byte_text(n_bytes)}", low=0.0), y, [*marks, spent])
    return Figure("transports_copies", "Copies of a message", _COPIES, [panel], columns=1, height=60 + 28 * len(own))


def _training(cells: Sequence[WayCell]) -> Figure:
    own = only(cells, part="training")
    places, y = _places(list(dict.fromkeys(cell.way for cell in own)))
    marks = []
    for number, model in enumerate(model for model in NAMES if any(cell.work == model for cell in own)):
        same = only(own, work=model)
        found = [(cell, over) for cell in same if (over := cell.slower(cell.way, by="rpc")) is not None]
        x, heights = [over.estimate for _, over in found], [places[cell.way] for cell, _ in found]
        names = [f"{cell.name}: {as_times(over.estimate)}" for cell, over in found]
        marks.append(line_of(NAMES[model], x, heights, number, dash="solid", width=0.0, names=names))
    panel = Panel("", Axis("times as fast as over Dask RPC", "log", "x"), y, marks)
    return Figure(
        "transports_training", "Training over each way", _TRAINING, [panel], columns=1, height=60 + 28 * len(places)
    )


def _check_size(size: int) -> None:
    if size % 4:
        raise InvalidParameterError(f"the study transports: sizes must be multiples of 4 bytes. Got {size}.")


#: The study.
STUDY: Final = Study(
    "transports",
    "What do copies cost between two processes?",
    ("zerocopy",),
    options={
        "ways": Option(tuple(WAYS), "Ways, as rpc,tcp,registered; a wrong name lists them.", choices=tuple(WAYS)),
        "sizes": Option(
            (4, 1_000, 64_000, 1_000_000, 16_000_000, 256_000_000), "Bytes of messages, as 4,64000,16000000.",
            (4, 64_000, 1_000_000, 16_000_000), least=4, may_be_empty=True, check=_check_size,
        ),
        "models": Option(
            tuple(MODELS), "What is trained: logistic, cnn, 25M.", choices=tuple(MODELS), may_be_empty=True
        ),
        "repeats": Option(5, "Repetitions of what is timed.", 3, least=1),
        "seconds": Option(0.2, demo=0.1, least=0.0),
    },
    grids=[
        Grid(_axes, _measure, where=_is_run, derive=_derive, together=("part", "repeat", "way"), opens=_clusters)
    ],
    report=_report,
    columns=("part", "way"),
    about="Ways that need a package which is not here are left out, and the report says so.",
    examples=(
        "dsgd study transports --demo --out demo/",
        "dsgd study transports --ways rpc,tcp,ring,registered --sizes 4,64000,16000000 --out study/",
        "dsgd study transports --models logistic,25M --repeats 9 --out study/",
    ),
)  # fmt: skip
