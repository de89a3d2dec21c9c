"""The versions that all processes of a cluster must share: what this process has."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Final

#: The dsgd that this process runs; another version may be installed by now.
LOADED_VERSION: Final = version("dsgd")


def local_versions() -> dict[str, str]:
    """Return the versions that must agree: dsgd exactly, Python to the minor version, numpy to the major one."""
    return {
        "dsgd": LOADED_VERSION,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": version("numpy").split(".")[0],
    }
