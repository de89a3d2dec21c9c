"""Secrets of jobs: never printed, and compared in constant time."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dsgd.comm
import dsgd.runtime

_ROOT = Path(dsgd.runtime.__file__).parent.parent
_SECRETS = {"token"}


def _records() -> Iterator[type[Any]]:
    for package in (dsgd.comm, dsgd.runtime):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith((".gloo", ".mpi", ".ucx")):
                continue  # they load libraries that need not be there
            for item in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(item) and item.__module__ == module.name and dataclasses.is_dataclass(item):
                    yield item


def test_no_record_prints_its_token() -> None:
    """What a log or an error shows of a record does not have the secret of its job."""
    fields = [(record.__name__, field) for record in _records() for field in dataclasses.fields(record)]
    secret = [(name, field) for name, field in fields if field.name in _SECRETS]
    assert {name for name, _ in secret} >= {"MemberCredentials", "Job", "JobState", "Entrance"}
    assert not [name for name, field in secret if field.repr]


def test_tokens_are_compared_in_constant_time() -> None:
    """No comparison of a token with another takes less time the sooner they differ."""
    found = []
    for path in [*(_ROOT / "comm").rglob("*.py"), *(_ROOT / "runtime").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                names = {side.attr if isinstance(side, ast.Attribute) else getattr(side, "id", "") for side in sides}
                if names & _SECRETS:
                    found.append(f"{path.name}:{node.lineno}")
    assert not found
