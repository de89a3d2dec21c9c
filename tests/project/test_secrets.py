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

import pytest

import dsgd.comm
import dsgd.runtime

_PACKAGES = (dsgd.comm, dsgd.runtime)
_SECRETS = {"token"}
# What peers show each other: not secret, but compared with what a secret was made into.
_SHOWN = {"proof", "nonce", "config"}


def _sources() -> Iterator[tuple[Path, ast.Module]]:
    for package in _PACKAGES:
        for path in Path(package.__path__[0]).rglob("*.py"):
            yield path, ast.parse(path.read_text())


def _records() -> Iterator[type[Any]]:
    for package in _PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for item in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(item) and item.__module__ == module.name and dataclasses.is_dataclass(item):
                    yield item


def test_no_record_prints_its_token() -> None:
    """What a log or an error shows of a record does not have the secret of its job."""
    fields = [(record.__name__, field) for record in _records() for field in dataclasses.fields(record)]
    secret = [(name, field) for name, field in fields if field.name in _SECRETS]
    assert {name for name, _ in secret} >= {"MemberCredentials", "Job", "JobState", "Entrance"}
    assert not [name for name, field in secret if field.repr]


@pytest.mark.slow
def test_tokens_are_compared_in_constant_time() -> None:
    """No comparison of a token, or of what a peer shows for it, takes less time the sooner the two differ."""
    found = []
    for path, tree in _sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                names = {side.attr if isinstance(side, ast.Attribute) else getattr(side, "id", "") for side in sides}
                is_about_none = any(isinstance(side, ast.Constant) and side.value is None for side in sides)
                if {name.lstrip("_") for name in names} & (_SECRETS | _SHOWN) and not is_about_none:
                    found.append(f"{path.name}:{node.lineno}")
    assert not found


def test_what_runs_on_workers_gets_no_bare_token() -> None:
    """Dask writes the arguments of a function that fails on a worker to its log: tokens come in records that hide."""
    found = []
    for path, tree in _sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
                if "dask_worker" in names and names & _SECRETS:
                    found.append(f"{path.name}:{node.name}")
    assert not found
