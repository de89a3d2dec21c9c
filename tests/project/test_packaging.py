"""The package as it is installed: what is in it, what it is called, and what importing it loads."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dsgd

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAPPED = {"dsgd.svm": ROOT / "svm", "dsgd.datasets": ROOT / "datasets"}


def _modules() -> list[str]:
    found = {
        "dsgd",
        *(module.name for module in pkgutil.walk_packages(dsgd.__path__, "dsgd.")),
        # An editable install maps these by an import hook, which walking dsgd does not ask.
        *(
            module.name
            for name in MAPPED
            for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}.")
        ),
        *MAPPED,
    }
    return sorted(found)


def _in_fresh_python(code: str, *, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def _folders_on_disk() -> set[str]:
    found = set()
    for name, folder in {"dsgd": ROOT / "dsgd", **MAPPED}.items():
        for init in folder.rglob("__init__.py"):
            inner = init.parent.relative_to(folder).parts
            found.add(".".join([name, *inner]))
    return found


def test_package_list_equals_disk() -> None:
    """Every package folder is listed in pyproject.toml, else it works in development and is missing from the wheel."""
    assert set(CONFIG["tool"]["setuptools"]["packages"]) == _folders_on_disk()


@pytest.mark.parametrize("name", ["svm", "datasets"])
def test_bare_import_of_mapped_folder_is_refused(name: str) -> None:
    """From the root of the checkout, `import svm` says that the folder installs as dsgd.svm."""
    outcome = _in_fresh_python(f"import {name}")
    assert outcome.returncode != 0
    assert f"ImportError: this folder installs as dsgd.{name}" in outcome.stderr


def test_version_is_that_of_the_project() -> None:
    """`dsgd.__version__`, the installed metadata and pyproject.toml agree."""
    assert dsgd.__version__ == importlib.metadata.version("dsgd") == CONFIG["project"]["version"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import dsgd", ["torch", "matplotlib", "bokeh", "pandas", "distributed", "sklearn", "numba"]),
        ("from dsgd import Ledger", ["torch", "matplotlib", "bokeh", "pandas", "distributed", "sklearn", "numba"]),
        ("from dsgd import SGDClassifier", ["torch", "matplotlib", "bokeh", "distributed"]),
        ("import dsgd.sync, dsgd.comm, dsgd.collectives, dsgd.local", ["torch", "dask", "distributed", "pandas"]),
        ("from dsgd.svm import SVC", ["distributed", "dsgd.sim.cluster", "dsgd.sync", "dsgd.collectives.group"]),
        ("import dsgd.report.png", ["torch", "bokeh", "dask", "distributed", "sklearn", "scipy", "numba"]),
        ("import dsgd.cli", ["torch", "matplotlib", "bokeh", "pandas", "distributed", "sklearn", "numba", "scipy"]),
    ],
)
def test_import_loads_no_more_than_it_needs(statement: str, absent: list[str]) -> None:
    """Importing a part loads none of the heavy libraries that the part does not use."""
    outcome = _in_fresh_python(f"{statement}\nimport sys\nprint([m for m in {absent!r} if m in sys.modules])")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.strip() == "[]"


def test_modules_say_what_they_are_and_packages_what_is_public() -> None:
    """Every module has a docstring; where there is an `__all__`, it repeats no name, and every name can be had."""
    for name in _modules():
        module = importlib.import_module(name)
        assert module.__doc__, f"{name} has no docstring"
        public = getattr(module, "__all__", ())
        assert len(public) == len(set(public)), f"{name}.__all__ repeats a name"  # their order is ruff's RUF022
        missing = [entry for entry in public if not hasattr(module, entry)]
        assert not missing, f"{name}.__all__ names what the module does not have: {missing}"


def test_unknown_name_is_an_attribute_error() -> None:
    """A name the package does not have raises AttributeError and lists those it has."""
    with pytest.raises(AttributeError, match=r"no attribute 'SGD'; it has CustomLoss, Gang, Ledger"):
        _ = dsgd.SGD  # type: ignore[attr-defined]


def test_no_registry_address_is_committed() -> None:
    """No file that builds or installs the project says where packages come from: that is for the machine to know."""
    files = [ROOT / name for name in ("pyproject.toml", "Makefile", ".ci/run", ".pre-commit-config.yaml")]
    found = [path.name for path in files if "index-url" in path.read_text(encoding="utf-8")]
    assert not found


def test_other_versions_of_python_are_tested_where_they_are() -> None:
    """All that classifiers name are looked for, and the tests that run there exist."""
    pythons = runpy.run_path(str(ROOT / ".ci" / "pythons.py"))
    assert pythons["versions"](CONFIG)[0] == CONFIG["project"]["requires-python"].removeprefix(">=")
    assert all((ROOT / test).is_file() for test in pythons["TESTS"])
