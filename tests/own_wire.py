"""The wire of docs/extending.rst, for ranks of tests: ``transport="own_wire:connect"``."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import Any

from dsgd.comm.wires import carried

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "examples"))
from files import Files

_PAGE = Path(__file__).parents[1].joinpath("docs", "extending.rst").read_text(encoding="utf-8")
_NAMES: dict[str, Any] = {"Files": Files, "Path": Path, "carried": carried, "tempfile": tempfile}
(_CODE,) = re.findall(r"^ +def connect\(.*?(?=^\S)", _PAGE, re.M | re.S)
exec(dedent(_CODE), _NAMES)  # what the page says
connect: Any = _NAMES["connect"]


def make_folders_in(folder: str | None) -> None:
    """Let this process make its temporary folders in another one; None is the usual one."""
    tempfile.tempdir = folder
