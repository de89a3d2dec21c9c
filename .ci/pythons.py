"""Run a telling part of the tests on every Python that pyproject.toml lists, beside the one of this environment.

What depends on the version of Python: how processes begin and what they inherit, pickles, closures and signatures, how
compiled functions are cached, threads that share an interpreter, sockets and shared memory. A Python that this machine
does not have is named and skipped. Each has an environment of its own, in build/.

    python .ci/pythons.py -x          # further arguments are those of pytest
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PIP = ("-m", "pip", "-qq", "--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off")
#: The tests on models of torch are left out: a wheel of torch is as large as all the rest together.
LEFT_OUT = ("torch",)
TESTS = (
    "tests/kernels/test_kernels.py",
    "tests/collectives/test_collectives.py",
    "tests/comm/test_shm.py",
    "tests/laws/test_conservation.py",
    "tests/estimators/test_pickles.py",
    "tests/estimators/test_cluster.py",
    "tests/runtime/test_spawned_workers.py",
)


def versions(pyproject: dict[str, object]) -> list[str]:
    """Return the versions of Python that the classifiers name, such as "3.12"."""
    project = pyproject["project"]
    assert isinstance(project, dict)
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text) for text in project["classifiers"])
    return [match[1] for match in found if match]


def find(version: str) -> str | None:
    """Return the interpreter of a version: on the PATH or one of pyenv's; None if none runs."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *map(str, sorted(home.glob(f"{version}.*/bin/python{version}")))]
    for candidate in candidates:
        # The name alone is not enough: pyenv's is there for every version, and runs only those that are switched on.
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2], sys.executable)"
        try:
            done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        except OSError:
            continue
        said, _, path = done.stdout.strip().partition(" ")
        if done.returncode == 0 and said == version:
            return path
    return None


def install(version: str, python: str, requirements: Sequence[str]) -> Path:
    """Return the interpreter of an environment that has what the tests need, new where pyproject.toml has changed."""
    folder = BUILD / f"python{version}-venv"
    inside, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.exists() or stamp.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([inside, *PIP, "-e", ".[dataframe,study]", *requirements], cwd=ROOT, check=True)
        stamp.touch()
    return inside


def begin(version: str, python: Path, arguments: Sequence[str]) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the tests, at the same time as those of other versions; return the process, and where it writes."""
    log = BUILD / f"python{version}.log"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--quick", *TESTS, *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output), log


def main(arguments: Sequence[str]) -> int:
    """Test on each version that is here, and say of each what came of it; return the exit status."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    group = pyproject["dependency-groups"]["test"]
    requirements = [one for one in group if not one.startswith(LEFT_OUT)]
    here, told, failed = f"{sys.version_info[0]}.{sys.version_info[1]}", [], False
    running: list[tuple[str, subprocess.Popen[bytes], Path]] = []
    for version in versions(pyproject):
        python = None if version == here else find(version)
        if python is None:
            told.append(f"{version}: " + ("that of `make test`" if version == here else "SKIPPED, not on this machine"))
            continue
        inside = install(version, python, requirements)
        running.append((version, *begin(version, inside, arguments)))
    for version, process, log in running:
        code = process.wait()
        failed |= code != 0
        text = log.read_text(encoding="utf-8")
        sys.stdout.write(text if code else "")
        told.append(f"{version}: {'FAILED' if code else 'ok'}, {text.splitlines()[-1]}")
    sys.stdout.write("".join(f"Python {line}\n" for line in sorted(told)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
