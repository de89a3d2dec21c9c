"""Where the library touches what Dask does not document."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = ROOT / "dsgd" / "runtime" / "dask_internals.py"

#: What may be imported from Dask: what its reference describes.
DOCUMENTED: Final = {
    "dask": None,
    "dask.array": None,
    "dask.config": None,
    "dask.dataframe": None,
    "dask.delayed": {"Delayed"},
    "dask.utils": {"parse_bytes", "parse_timedelta"},
    "distributed": {
        "CancelledError",
        "Client",
        "Future",
        "LocalCluster",
        "Scheduler",
        "Worker",
        "get_worker",
        "rejoin",
        "secede",
        "wait",
        "worker_client",
    },
    "distributed.comm": {"CommClosedError", "get_address_host", "parse_address"},
    "distributed.diagnostics.plugin": {"SchedulerPlugin", "WorkerPlugin"},
}

#: Attributes of schedulers, workers, clients and clusters that Dask does not document. All of them, and no others, are
#: in the one module; where other modules have a name of their own that is also one of these, it belongs to `self`.
INTERNALS: Final = frozenset(
    {
        "_loop_runner",
        "add_application",
        "app_paths",
        "asyncio_loop",
        "batched_send",
        "extensions",
        "get_connection_args",
        "get_listen_args",
        "handle_worker_status_change",
        "handlers",
        "http_application",
        "periodic_callbacks",
        "remove_client",
        "remove_replica",
        "rpc",
        "security",
        "stream_comms",
        "stream_handlers",
        "transitions",
        "processing_on",
        "worker_send",
    }
)
#: Objects of Dask by the names that they have here, for what is documented of some of them only.
SERVERS: Final = frozenset({"client", "_client", "worker", "_worker", "scheduler", "dask_scheduler", "dask_worker"})
FORBIDDEN_ON_SERVERS: Final = frozenset({"scheduler", "loop", "plugins", "memory_manager", "identity"})
# The reference says that a task finds a plugin of its worker so.
ALLOWED: Final = frozenset({"worker.plugins"})
_WORDS: Final = re.compile(rf"\b(dask|distributed|{'|'.join(sorted(INTERNALS | SERVERS))})\b")


def _modules() -> Iterator[Path]:
    for package in ("dsgd", "svm", "datasets"):
        yield from (ROOT / package).rglob("*.py")


def _imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of everything that is imported from Dask, but for annotations."""
    unread = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in unread:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _attributes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every attribute that Dask does not document."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or _last(node.value) == "self":
            continue
        private = node.attr.startswith("_") and not node.attr.startswith("__")
        on_server = _last(node.value) in SERVERS and (private or node.attr in FORBIDDEN_ON_SERVERS)
        if (node.attr in INTERNALS or on_server) and ast.unparse(node) not in ALLOWED:
            yield node.lineno, ast.unparse(node)


def touches(path: Path) -> list[str]:
    """Return what a module touches of Dask that is not documented."""
    text, where = path.read_text(), path.relative_to(ROOT)
    # Most modules name nothing of Dask's, and parsing takes time.
    if not _WORDS.search(text):
        return []
    tree, found = ast.parse(text), []
    for line, module, name in _imports(tree):
        if module.split(".")[0] in ("dask", "distributed"):
            names = DOCUMENTED.get(module, set())
            if names is not None and name not in names:
                found.append(f"{where}:{line}: {module} {name}")
    return found + [f"{where}:{line}: {text}" for line, text in _attributes(tree)]


def test_one_module_touches_what_dask_does_not_document() -> None:
    """Imports and attributes that Dask does not document are in `dsgd.runtime.dask_internals`, and nowhere else."""
    assert [found for path in _modules() if path != HOME for found in touches(path)] == []
