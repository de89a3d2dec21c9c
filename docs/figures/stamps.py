"""Which figures and tables of the docs are made of rows, what those rows measure, and whether they are still true.

A stamp records of a figure which code its rows measured, and from which rows its files were drawn by which script. A
figure is stale if code that it measures has changed since its rows were made, or if its files are not those that script
and rows give. Code is compared without comments, docstrings and blanks, and of the
package only what a figure is about: where every change made every figure stale, nobody would look.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import io
import json
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from dsgd.study.claims import MEASURES, Measure
from dsgd.sync import resolve

HERE: Final = Path(__file__).parent
DOCS: Final = HERE.parent
ROOT: Final = DOCS.parent
STAMPS: Final = HERE / "stamps.json"

#: What is measured: for each part of the rows, patterns of files below the repository, or a text that defines the run.
Parts = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Drawn:
    """Figures or tables that one script makes.

    Parameters
    ----------
    name : str
        What it is called: the name of the script, without ``.py``, or ``studies/NAME``.
    files : sequence of str
        What it writes, below ``docs``.
    again : str
        The command that makes the rows.
    parts : callable
        Returns what is measured, by parts of the rows that can be measured alone; the only part of many is ``""``.
    computed : bool, default False
        Whether there are no rows, since it is computed while it is drawn.
    """

    name: str
    files: Sequence[str]
    again: str
    parts: Callable[[], Parts]
    computed: bool = False

    @property
    def rows_file(self) -> Path | None:
        """The file of rows."""
        head, _, study = self.name.partition("/")
        return None if self.computed else HERE / (f"{study}_study.jsonl" if study else f"{head}.jsonl")

    @property
    def script(self) -> Path:
        """What draws."""
        return HERE / f"{self.name.partition('/')[0]}.py"

    @property
    def command(self) -> list[str]:
        """The command that draws."""
        return [sys.executable, str(self.script), *filter(None, [self.name.partition("/")[2]])]


def _one(*patterns: str) -> Callable[[], Parts]:
    return lambda: {"": patterns}


# Strategies by what rows call them with a momentum, a local optimiser or a larger rate.
_FAMILY: Final = {
    "local + momentum": "local", "local + adagrad": "local", "local + adam": "local", "eamsgd": "easgd",
    "slowmo + momentum": "slowmo", "minibatch 512, scaled": "minibatch",
}  # fmt: skip


def _by_strategy() -> Parts:
    """Return the module of each strategy in the rows."""
    rows = map(json.loads, (HERE / "strategies.jsonl").read_text(encoding="utf-8").splitlines())
    names = {row["strategy"]: _FAMILY.get(row["strategy"], row["strategy"]) for row in rows}
    return {name: [_module_of(type(resolve(strategy)))] for name, strategy in names.items()}


# What measures of claims are about beside the classes of their sources.
_ABOUT: Final[Mapping[str, Sequence[str]]] = {
    "auto": ["dsgd/sync/adaptive/communication.py"],
    "collectives": ["dsgd/collectives/model.py"],
    "elimination": ["svm/kernel_solver/elimination.py"],
    "sparse-sums": ["dsgd/study/gtopk/model.py", "dsgd/study/gtopk/timing.py", "dsgd/study/gtopk/networks.py"],
    "thousandths": ["dsgd/study/gtopk/runner.py", "dsgd/study/gtopk/text.py"],
    "speedups": ["dsgd/sim/scaling/*.py"],
    "parts": [
        "dsgd/collectives/algorithms/concurrent.py",
        "dsgd/collectives/algorithms/duplex.py",
        "dsgd/study/collectives/parts.py",
    ],
    "trees": ["dsgd/collectives/algorithms/packing.py"],
    "sums": ["dsgd/collectives/algorithms/ring.py"],
    "transports": [
        "dsgd/study/transports/dask_ways.py",
        "dsgd/study/transports/pairs.py",
        "dsgd/study/transports/parties.py",
        "dsgd/study/transports/slots.py",
    ],
}


def _by_measure() -> Parts:
    """Return the modules of the classes that each measure is about, and the measure's own definition."""
    return {
        name: [*_classes(measure), *_ABOUT.get(name, ()), _definition(measure)] for name, measure in MEASURES.items()
    }


def _classes(measure: Measure) -> list[str]:
    found = []
    for source in dict.fromkeys(statement.source.implemented_by for statement in measure.statements):
        where, _, name = source.rpartition(".")
        # The estimators are what everything runs in, and no measure is about them.
        if name not in ("SGDClassifier", "SVC", "Group"):
            found.append(_module_of(getattr(importlib.import_module(where), name)))
    return found


def _definition(measure: Measure) -> str:
    """Return a text that changes with what a measure runs."""
    owner = getattr(measure.run, "__self__", None)
    if owner is not None:
        return f"= {replace(owner, verdicts=(), what='')}"
    studies = [cell.cell_contents for cell in measure.run.__closure__ or () if is_dataclass(cell.cell_contents)]
    return f"= {without_words(textwrap.dedent(inspect.getsource(measure.run)))} {studies}"


def _module_of(item: Any) -> str:
    path = Path(inspect.getfile(inspect.unwrap(item))).resolve()
    return path.relative_to(ROOT.resolve()).as_posix()


FIGURES: Final = (
    Drawn("claims", ["figures/claims-verdicts.csv"], "dsgd claims --only PART --out claims/ && "
          "python docs/figures/claims.py claims/", _by_measure),
    Drawn("comparing", ["_static/comparing.png"], "python docs/figures/comparing.py --run",
          _one("dsgd/study/comparison/training.py", "dsgd/sync/scaffold.py", "dsgd/sync/diloco.py", "dsgd/sync/sgp.py",
               "dsgd/compress/topk.py")),
    Drawn("elimination", ["_static/elimination-active.png", "_static/elimination-work.png"],
          "dsgd study elimination --demo --repeats 1 --ranks none --simulated none --no-reference --out study/ && "
          "python docs/figures/elimination.py study/rows.jsonl",
          _one("svm/kernel_solver/elimination.py", "dsgd/study/elimination/problems.py")),
    Drawn("gangs", ["_static/gangs.png", "figures/gangs.csv", "figures/control-plane.csv"],
          "python -m benchmarks run gangs --out docs/figures/gangs.jsonl && "
          "sudo python -m benchmarks run gangs --only hosts --workers 32 64 --out docs/figures/gangs.jsonl && "
          "python -m benchmarks run control_plane --out docs/figures/gangs.jsonl",
          _one("benchmarks/communication/gangs.py", "benchmarks/simulation/control_plane.py",
               "dsgd/runtime/scheduler/registry.py", "dsgd/runtime/scheduler/jobs.py", "dsgd/runtime/messages.py")),
    Drawn("gossip", ["_static/gossip.png"], "python -m benchmarks run gossip --out docs/figures/gossip.jsonl",
          _one("benchmarks/training/gossip.py", "dsgd/sync/sgp.py", "dsgd/sync/overlap_sgp.py", "dsgd/sync/dpsgd.py")),
    Drawn("leaders", ["_static/leaders.png"], "python -m benchmarks run leaders --out docs/figures/leaders.jsonl",
          _one("benchmarks/training/leaders.py", "dsgd/sync/leader.py", "dsgd/sync/easgd.py")),
    Drawn("many_ranks", ["_static/many-ranks.png", "figures/many-ranks.csv"],
          "python -m benchmarks run many_ranks --out docs/figures/many_ranks.jsonl",
          _one("benchmarks/simulation/many_ranks.py", "dsgd/sim/*.py")),
    Drawn("rounds", ["_static/rounds.png", "figures/rounds.csv"],
          "python -m benchmarks run rounds --out docs/figures/rounds.jsonl",
          _one("benchmarks/communication/rounds.py", "dsgd/kernels/rounds.py", "dsgd/comm/memory/window.py",
               "dsgd/comm/sockets/link.py")),
    Drawn("studies/scaling", [f"_static/scaling-{name}.png" for name in ("speedup", "ratio", "groups", "step")],
          "nothing: it is computed", _one("dsgd/sim/scaling/*.py", "dsgd/study/scaling/*.py"), computed=True),
    Drawn("strategies", ["figures/strategies-a9a.csv", "figures/strategies-ijcnn1.csv"],
          "python -m benchmarks run strategies --ranks --simulated 2 4 16 --only PART --out "
          "docs/figures/strategies.jsonl", _by_strategy),
    Drawn("studies/collectives", ["_static/collectives.png"], "dsgd study collectives --demo --out study/ && "
          "python docs/figures/studies.py collectives study/rows.jsonl",
          _one("dsgd/collectives/model.py", "dsgd/collectives/algorithms/*.py")),
    Drawn("studies/dnn", ["_static/dnn.png"],
          "dsgd study dnn --demo --out study/ && python docs/figures/studies.py dnn study/rows.jsonl",
          _one("dsgd/study/dnn/grid.py", "dsgd/study/dnn/modules.py", "dsgd/torch/loop.py")),
    Drawn("studies/features", [f"_static/features-{name}.png" for name in ("steps", "speedup", "machines")],
          "dsgd study features --out study/ && python docs/figures/studies.py features study/rows.jsonl",
          _one("dsgd/study/features/agents.py", "dsgd/study/features/grid.py", "dsgd/study/features/machines.py",
               "dsgd/local/features.py")),
    Drawn("studies/gtopk", ["_static/gtopk.png"],
          "dsgd study gtopk -s gtop-k --epochs 16 --no-timing --out study/ && "
          "python docs/figures/studies.py gtopk study/rows.jsonl",
          _one("dsgd/study/gtopk/grid.py", "dsgd/study/gtopk/runner.py", "dsgd/study/gtopk/text.py",
               "dsgd/compress/gtopk.py", "dsgd/compress/dgc.py")),
    Drawn("studies/msf", ["_static/msf.png"], "dsgd study msf --demo --dataset ijcnn1 --out study/ && "
          "python docs/figures/studies.py msf study/rows.jsonl",
          _one("dsgd/sync/local_sgd.py", "dsgd/comm/sockets/link.py")),
    Drawn("studies/speedup", ["_static/speedup.png"],
          "dsgd study speedup --demo --out study/ && python docs/figures/studies.py speedup study/rows.jsonl",
          _one("dsgd/study/speedup/grid.py", "dsgd/study/speedup/runner.py", "dsgd/inputs/placed.py",
               "dsgd/local/ingest.py")),
    Drawn("studies/strategies", ["_static/strategies.png"],
          "dsgd study strategies --dataset ijcnn1 --rows 8000 --ranks 16 --simulated --network 10GbE --seeds 1 --out "
          "study/ && python docs/figures/studies.py strategies study/rows.jsonl",
          _one("dsgd/study/comparison/training.py", "dsgd/study/strategies/grid.py")),
    Drawn("studies/transports", [f"_static/transports-{name}.png" for name in ("messages", "copies", "training")],
          "dsgd study transports --demo --out study/ && python docs/figures/studies.py transports study/rows.jsonl",
          _one("dsgd/study/transports/pairs.py", "dsgd/study/transports/parties.py", "dsgd/study/transports/slots.py",
               "dsgd/study/transports/dask_ways.py", "dsgd/study/transports/over_mpi.py",
               "dsgd/study/transports/counting.py")),
    Drawn("studies/tuning", ["_static/tuning.png", "figures/tuning-regret.csv"],
          "dsgd study tuning --network 10GbE --every 16,64,256,1024,4096 --seeds 1 --out study/ && "
          "python docs/figures/studies.py tuning study/rows.jsonl",
          _one("dsgd/sync/adaptive/communication.py", "dsgd/sync/auto*.py")),
    Drawn("studies/variance", ["_static/variance.png"],
          "dsgd study variance --out study/ && python docs/figures/studies.py variance study/rows.jsonl",
          _one("dsgd/study/variance/courses.py", "dsgd/study/variance/grid.py", "dsgd/study/variance/problems.py",
               "dsgd/kernels/importance.py", "dsgd/kernels/variance.py")),
    Drawn("svm_scale", ["_static/svm-scale.png", "figures/svm-scale.csv"],
          "python -m benchmarks run svm/scale --out docs/figures/svm_scale.jsonl",
          _one("benchmarks/svm/scale.py", "dsgd/study/elimination/rounds.py", "dsgd/study/elimination/observe.py")),
    Drawn("svm_choice", ["_static/svm-choice.png"],
          "python -m benchmarks run choice --out docs/figures/svm_choice.jsonl",
          _one("benchmarks/svm/choice.py", "svm/kernel_solver/block.py", "svm/linear_solver/*.py")),
    Drawn("transports", ["_static/transports.png"],
          "python -m benchmarks run transports --out docs/figures/transports.jsonl",
          _one("benchmarks/communication/transports.py", "dsgd/comm/wires/*.py", "dsgd/comm/sockets/link.py")),
)  # fmt: skip
#: Pictures of what programs show; no rows are behind them. The architecture has a test of its own.
TAKEN: Final = {
    "_static/architecture.svg": "python docs/figures/architecture.py",
    "_static/dashboard.png": "make report-screenshots",
    "_static/progress-line.png": "make report-screenshots",
    "_static/report.png": "python docs/figures/screenshots.py --docs gtopk gtopk",
}


def without_words(source: str) -> str:
    """Return code without comments, docstrings and blanks."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                for number in range(first.lineno, (first.end_lineno or first.lineno) + 1):
                    lines[number - 1] = ""
    return " ".join(" ".join(lines).split())


def digest(content: str | bytes) -> str:
    """Return what tells this content from other."""
    raw = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(raw, digest_size=6).hexdigest()


def code_of(patterns: Sequence[str], root: Path = ROOT) -> dict[str, str]:
    """Return the digest of each file that some patterns name, and of a text that begins with ``=``."""
    found = {}
    for pattern in patterns:
        if pattern.startswith("="):
            found["definition"] = digest(pattern)
            continue
        paths = sorted(root.glob(pattern))
        if not paths:
            raise FileNotFoundError(f"{pattern} names no file: correct docs/figures/stamps.py")
        for path in paths:
            found[path.relative_to(root).as_posix()] = digest(without_words(path.read_text(encoding="utf-8")))
    return found


def read() -> dict[str, Any]:
    """Return all stamps by the name of their figure."""
    found: dict[str, Any] = json.loads(STAMPS.read_text(encoding="utf-8")) if STAMPS.exists() else {}
    return found


def write(stamps: Mapping[str, Any]) -> None:
    """Write all stamps."""
    STAMPS.write_text(json.dumps(stamps, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def drawn_of(one: Drawn) -> dict[str, Any]:
    """Return what a stamp says of the files of a figure: from which rows, by which script, and what came of it."""
    rows = one.rows_file
    return {
        "rows": "" if rows is None else digest(rows.read_bytes()),
        "script": digest(without_words(one.script.read_text(encoding="utf-8"))),
        "files": {name: digest((DOCS / name).read_bytes()) for name in one.files},
    }


def stale(figures: Sequence[Drawn] = FIGURES, stamps: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield what is not true of figures any more, and what to do."""
    known = read() if stamps is None else stamps
    for one in figures:
        stamp = known.get(one.name, {})
        before = stamp.get("measured", {})
        for part, patterns in one.parts().items():
            now, then = code_of(patterns), before.get(part, {})
            changed = sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
            if changed:
                yield _measure_again(one, part, changed)
        if stamp.get("drawn") != drawn_of(one):
            yield f"{one.name}: {', '.join(one.files)} are not what its script makes of its rows: run `make figures`"


def _measure_again(one: Drawn, part: str, changed: Sequence[str]) -> str:
    name = f"{one.name} {part!r}".replace(" ''", "")
    what = f"{name}: {', '.join(changed)} changed since it was measured"
    if one.computed:
        return f"{what}: run `make figures`"
    stamp = f"python docs/figures measured {name}"
    again = one.again.replace("PART", part)
    return f"{what}: run `{again}` and `{stamp}`, or say why its rows stay true: `{stamp} --because '...'`"


def measured(one: Drawn, parts: Sequence[str] = (), because: str = "") -> dict[str, Any]:
    """Return the stamp of a figure whose rows are of the code as it is.

    Parameters
    ----------
    one : Drawn
        The figure.
    parts : sequence of str, optional
        Which parts of its rows; all by default.
    because : str, default ""
        Why rows that were not made anew are true even so.
    """
    stamp: dict[str, Any] = read().get(one.name, {})
    rows = one.rows_file
    new = rows is None or stamp.get("drawn", {}).get("rows") != digest(rows.read_bytes())
    if not (new or because):
        sys.exit(
            f"{one.name}: its rows are those of the last stamp; measure again, or say why they stay true: --because"
        )
    patterns = one.parts()
    chosen = [part for part in patterns if not parts or part in parts]
    found = {part: then for part, then in stamp.get("measured", {}).items() if part in patterns}
    found |= {part: code_of(patterns[part]) for part in chosen}
    reasons = {part: text for part, text in stamp.get("because", {}).items() if part in patterns and part not in chosen}
    reasons |= dict.fromkeys(chosen, because) if because else {}
    return {**stamp, "measured": found, "because": reasons}
