"""Print the lower bounds of pyproject.toml as constraints for pip, which then installs the oldest of everything."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

# Optional packages whose bounds are not tried: torch is pinned by the tests.
_LEFT_OUT = ("torch",)


def constraints(pyproject: dict[str, object]) -> list[str]:
    """Return one line per requirement, ``name==lower bound``.

    Raises
    ------
    ValueError
        A requirement has no lower bound.
    """
    project = pyproject["project"]
    assert isinstance(project, dict)
    extras = project["optional-dependencies"].values()
    oldest: dict[str, str] = {}
    for requirement in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        found = re.fullmatch(r"([\w-]+)(?:\[[\w,-]+\])?>=([\d.]+)", requirement)
        if found is None:
            raise ValueError(f"{requirement!r} in pyproject.toml has no lower bound of the form name>=1.2")
        name, version = found.groups()
        if name not in _LEFT_OUT:
            oldest[name] = version
    return [f"{name}=={version}" for name, version in oldest.items()]


if __name__ == "__main__":
    file = Path(__file__).resolve().parents[1] / "pyproject.toml"
    sys.stdout.write("\n".join(constraints(tomllib.loads(file.read_text()))) + "\n")
