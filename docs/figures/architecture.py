"""Write the drawing and the tables of docs/architecture.rst.

python docs/figures/architecture.py
"""

from __future__ import annotations

import csv
import io
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent.parent


class Hop(NamedTuple):
    """A function on the way, by its file in the repository and its qualified name, and what it does there."""

    file: str
    function: str
    does: str


#: What any fit on a cluster begins with, once the rows are blocks on the workers.
_SUBMITTED = [
    Hop("dsgd/inputs/placed.py", "ClusterBlocks.run", "passes the blocks and the rank program on"),
    Hop("dsgd/runtime/gang/job.py", "run_on_cluster", "pickles the program, registers the job with the scheduler"),
    Hop("dsgd/runtime/gang/job.py", "_outcomes", "forms the gang, and a new one after a failure"),
    Hop("dsgd/runtime/gang/job.py", "_train", "submits one Dask task for each worker"),
]

#: What a worker does with its task, down to the thread of a rank.
_ON_A_WORKER = [
    Hop("dsgd/runtime/worker/member.py", "run_member", "takes the task, if it belongs to the running gang"),
    Hop("dsgd/runtime/worker/member.py", "_Member.run", "packs the blocks, connects to the other workers"),
    Hop("dsgd/runtime/threads.py", "run_threads", "starts a thread for each rank"),
    Hop("dsgd/runtime/worker/member.py", "_Member.run.<locals>.work", "runs in that thread"),
    Hop("dsgd/runtime/worker/member.py", "_Member._run_rank", "makes the `Rank`, and reports its errors"),
]

_FIT = [
    Hop("dsgd/inputs/callbacks.py", "notifies_callbacks.<locals>.notifying", "calls the callbacks at begin and end"),
    Hop("dsgd/estimators/base.py", "AbstractSGD.fit", "sets where training starts"),
    Hop("dsgd/estimators/base.py", "AbstractSGD._train", "checks parameters; in process or on a cluster?"),
]

_IN_THREADS = [
    Hop("dsgd/runtime/threads.py", "run_on_threads", "connects the ranks of this process"),
    Hop("dsgd/runtime/threads.py", "run_threads", "starts a thread for each rank but the first"),
    Hop("dsgd/runtime/threads.py", "run_on_threads.<locals>.work", "makes the `Rank` and calls the rank program"),
]

#: From the rank program to the kernel.
_RANK_LOOP = [
    Hop("dsgd/runtime/train/loop.py", "train", "the rank program: epochs until training ends"),
    Hop("dsgd/runtime/train/loop.py", "_run_epoch", "cuts an epoch where snapshots may be taken"),
    Hop("dsgd/runtime/train/rounds.py", "Rounds.run", "goes from round to round"),
    Hop("dsgd/runtime/train/rounds.py", "Rounds._run_one", "local steps, then the exchange that is due"),
    Hop("dsgd/runtime/train/visits.py", "RowVisits.over", "calls the kernel, `run_rows` of `dsgd/kernels/sgd.py`"),
]

_SOLVE = [
    Hop(
        "svm/estimators/classifiers.py",
        "AbstractKernelClassifier._fit_rows",
        "merges equal rows, makes pairs of classes",
    ),
    Hop("svm/estimators/kernel_base.py", "AbstractKernelSVM._solve", "chooses the precision"),
    Hop("svm/kernel_solver/solve.py", "solve_dual", "chooses a solver"),
    Hop("svm/kernel_solver/block.py", "_Run.solve", "rounds until the gap over all samples is below `tol`"),
    Hop("svm/kernel_solver/block.py", "_Run._round", "picks a working set, and calls `solve_block` of `smo.py` there"),
]

#: The stations of a way; those of the tables "process", "cluster" and "exchange" are all there are.
PATHS: dict[str, list[Hop]] = {
    "process": [
        *_FIT,
        Hop("dsgd/estimators/base.py", "AbstractSGD._train_in_process", "packs the rows, makes the `TrainJob`"),
        *_IN_THREADS,
        *_RANK_LOOP,
    ],
    "cluster": [
        *_FIT,
        Hop(
            "dsgd/estimators/base.py", "AbstractSGD._train_on_cluster", "opens the rows as blocks, makes the `TrainJob`"
        ),
        *_SUBMITTED,
        *_ON_A_WORKER,
        *_RANK_LOOP,
    ],
    "exchange": [
        Hop("dsgd/runtime/train/rounds.py", "Rounds._exchange_models", "asks the strategy at the end of a period"),
        Hop("dsgd/sync/compression.py", "AbstractAveraging.sync", "strategy: what is exchanged, and what comes of it"),
        Hop("dsgd/sync/compression.py", "delta_mean", "compresses the change since the last exchange, if asked to"),
        Hop("dsgd/sync/averaging.py", "weighted_mean", "multiplies by the share of the rank"),
        Hop("dsgd/collectives/group.py", "Group.allreduce", "collective: chooses an algorithm by the length"),
        Hop("dsgd/collectives/algorithms/plan.py", "run_plan", "the algorithm: who sends when"),
        Hop("dsgd/comm/wires/inproc.py", "InprocTransport.exchange", "wire: moves the bytes, measures and waits"),
        Hop("dsgd/ledger.py", "RankLedger.count", "ledger: bytes and messages; seconds go to `charge`"),
    ],
    "svc": [
        Hop("svm/estimators/classifiers.py", "AbstractKernelClassifier.fit", "checks; in process or on a cluster?"),
        *_SOLVE,
    ],
    "svc-cluster": [
        Hop("svm/estimators/classifiers.py", "AbstractKernelClassifier.fit", "checks; in process or on a cluster?"),
        Hop("svm/estimators/kernel_base.py", "AbstractKernelSVM._fit_on_cluster", "opens the rows as blocks"),
        *_SUBMITTED,
        *_ON_A_WORKER,
        Hop(
            "svm/distributed/kernel.py",
            "fit_on_rank",
            "the rank program: merges equal samples over ranks, then as alone",
        ),
        *_SOLVE,
        Hop("svm/kernels/peers.py", "Peers.combine", "in a round: finds the worst violators of all ranks"),
        Hop("dsgd/collectives/group.py", "Group.allreduce", "collective; from here on as in the exchange of models"),
    ],
    "torch": [
        Hop("dsgd/torch/estimator.py", "AbstractTorchEstimator.fit", "checks parameters, builds the module"),
        Hop(
            "dsgd/torch/estimator.py", "AbstractTorchEstimator._run", "packs the rows as tensors, makes the `TrainJob`"
        ),
        Hop("dsgd/runtime/threads.py", "run_on_threads", "or `ClusterBlocks.run`, as above"),
        *_RANK_LOOP[:-1],
        Hop("dsgd/runtime/train/rounds.py", "Rounds._exchange_gradients", "for a strategy that averages gradients"),
        Hop("dsgd/torch/oracle.py", "ModuleOptimizer.gradient", "takes the place of the kernel"),
        Hop("dsgd/torch/oracle.py", "ModuleOptimizer._pass", "calls the module and its criterion"),
    ],
}


class Box(NamedTuple):
    """A box of the drawing: its place and size in pixels, a title, and the file and the function that it stands for."""

    x: int
    y: int
    width: int
    height: int
    title: str
    file: str
    function: str
    colour: str = "#ffffff"


_BLUE, _GREEN, _AMBER, _ROSE, _VIOLET = "#dbe8f7", "#dcefdf", "#faecc8", "#f5dcdc", "#e8e3f3"
_TRAIN, _GANG, _MEMBER = "dsgd/runtime/train", "dsgd/runtime/gang/job.py", "dsgd/runtime/worker/member.py"
_ROWS = "dsgd/inputs/blocks.py"
_INPUTS, _WIRES = "dsgd/inputs/placed.py", "wire: queues of threads, shared memory, TCP, RPC, ..."

BOXES = {
    "sgd": Box(20, 20, 240, 62, "SGDClassifier", "dsgd/estimators/base.py", "AbstractSGD._train", _BLUE),
    "torch": Box(290, 20, 240, 62, "TorchClassifier", "dsgd/torch/estimator.py", "AbstractTorchEstimator._run", _BLUE),
    "svc": Box(560, 20, 240, 62, "SVC", "svm/estimators/classifiers.py", "AbstractKernelClassifier.fit", _BLUE),
    "rows": Box(20, 120, 240, 62, "inputs: rows in this process", _ROWS, "pack_for_threads", _GREEN),
    "blocks": Box(290, 120, 510, 62, "inputs: blocks of rows on workers", _INPUTS, "ClusterBlocks.run", _GREEN),
    "threads": Box(20, 220, 240, 62, "job: threads", "dsgd/runtime/threads.py", "run_on_threads", _AMBER),
    "gang": Box(290, 220, 240, 62, "job: client of Dask", _GANG, "run_on_cluster", _AMBER),
    "member": Box(560, 220, 240, 62, "job: task on a worker", _MEMBER, "run_member", _AMBER),
    "loop": Box(40, 348, 350, 62, "rank loop", f"{_TRAIN}/loop.py", "train", _ROSE),
    "program": Box(430, 348, 350, 62, "rank program of kernel SVMs", "svm/distributed/kernel.py", "fit_on_rank", _ROSE),
    "kernel": Box(40, 448, 165, 62, "kernel", "dsgd/kernels/sgd.py", "run_rows"),
    "module": Box(225, 448, 165, 62, "torch module", "dsgd/torch/oracle.py", "ModuleOptimizer"),
    "solver": Box(430, 448, 350, 62, "solver, and its kernel", "svm/kernel_solver/block.py", "solve"),
    "strategy": Box(40, 548, 350, 62, "strategy", "dsgd/sync/base.py", "AbstractStrategy.sync"),
    "peers": Box(430, 548, 350, 62, "what the ranks tell each other", "svm/kernels/peers.py", "Peers"),
    "group": Box(40, 648, 740, 62, "collective", "dsgd/collectives/group.py", "Group.allreduce"),
    "wire": Box(20, 770, 780, 62, _WIRES, "dsgd/comm/base.py", "AbstractTransport.exchange"),
    "ledger": Box(860, 348, 180, 484, "ledger", "dsgd/ledger.py", "RankLedger", _VIOLET),
}  # fmt: skip

#: The thread of a rank, around its boxes.
_FRAME = (20, 312, 780, 418, "one rank: a thread")

_STRAIGHT = [
    ("sgd", "rows"), ("torch", "blocks"), ("svc", "blocks"), ("rows", "threads"), ("blocks", "gang"),
    ("threads", "loop"), ("member", "program"), ("loop", "kernel"), ("loop", "module"), ("program", "solver"),
    ("kernel", "strategy"), ("module", "strategy"), ("solver", "peers"), ("strategy", "group"), ("peers", "group"),
    ("group", "wire"),
]  # fmt: skip
_BENT = [
    [(230, 82), (320, 118)],  # SGDClassifier, on a cluster
    [(320, 82), (230, 118)],  # TorchClassifier, in process
    [(530, 251), (558, 251)],  # from the client to a worker
    [(590, 282), (375, 346)],  # from a worker to the rank loop
    [(800, 51), (822, 51), (822, 470), (782, 470)],  # SVC, in process: no gang
]
#: What is charged to the ledger, by the height where the arrow enters it.
_CHARGES = {490: "seconds of work", 579: "seconds of encoding", 801: "bytes; seconds of\nmoving and waiting"}


def _text(x: float, y: float, text: str, size: int, *, code: bool = False, bold: bool = False) -> str:
    font, weight = "monospace" if code else "sans-serif", ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-family="{font}" font-size="{size}"{weight} text-anchor="middle" '
        f'fill="#222222">{escape(text)}</text>'
    )


def _arrow(points: list[tuple[float, float]], *, dashed: bool = False) -> str:
    places, dash = " ".join(f"{x:g},{y:g}" for x, y in points), ' stroke-dasharray="5 4"' if dashed else ""
    return f'<polyline points="{places}" fill="none" stroke="#555555"{dash} marker-end="url(#head)"/>'


def _down(first: Box, second: Box) -> str:
    """Return an arrow straight down from a box to a lower one, in the middle of where they overlap."""
    x = (max(first.x, second.x) + min(first.x + first.width, second.x + second.width)) / 2
    return _arrow([(x, first.y + first.height), (x, second.y - 2)])


def _drawn(box: Box) -> list[str]:
    middle = box.x + box.width / 2
    return [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" fill="{box.colour}" '
        'stroke="#666666"/>',
        _text(middle, box.y + 20, box.title, 14, bold=True),
        _text(middle, box.y + 37, box.file, 11, code=True),
        _text(middle, box.y + 52, box.function, 11, code=True),
    ]


def drawing() -> str:
    """Return the drawing as SVG."""
    x, y, width, height, title = _FRAME
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1060 852" width="1060" height="852">',
        '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0,0 L9,4 L0,8 z" fill="#555555"/></marker></defs>',
        '<rect x="0" y="0" width="1060" height="852" fill="#ffffff"/>',
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="#f6f6f6" stroke="#888888" '
        'stroke-dasharray="6 4"/>',
    ]
    for box in BOXES.values():
        parts += _drawn(box)
    parts.append(_text(x + width / 2 - 140, y + 20, title, 13, bold=True))
    parts += [_down(BOXES[first], BOXES[second]) for first, second in _STRAIGHT]
    parts += [_arrow(points) for points in _BENT]
    ledger = BOXES["ledger"]
    middle = ledger.x + ledger.width / 2
    for place, text in _CHARGES.items():
        parts.append(_arrow([(800, place), (ledger.x - 2, place)]))
        lines = text.split("\n")
        parts += [_text(middle, place + 4 + 16 * k - 8 * (len(lines) - 1), line, 12) for k, line in enumerate(lines)]
    parts.append(_arrow([(middle, ledger.y), (middle, 34), (802, 34)], dashed=True))
    parts.append(_text(middle - 62, 26, "ledger_ of the model", 12))
    return "\n".join([*parts, "</svg>", ""])


def table(hops: list[Hop]) -> str:
    """Return a table of hops as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for number, (file, function, does) in enumerate(hops, 1):
        short = function.replace(".<locals>", "")
        writer.writerow([number, f"``{file}``", f"``{short}``", does.replace("`", "``")])
    return out.getvalue()


def files() -> dict[Path, str]:
    """Return the text of every file that this script writes."""
    tables = {DOCS / "figures" / f"architecture-{name}.csv": table(hops) for name, hops in PATHS.items()}
    return {DOCS / "_static" / "architecture.svg": drawing(), **tables}


def main() -> None:
    """Write them."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
