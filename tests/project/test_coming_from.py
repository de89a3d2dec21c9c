"""The example of each section for those who come from another library runs as it stands."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.rst").read_text(encoding="utf-8")
EXAMPLES = dict(
    re.findall(r"^\.\. _from-([\w-]+):\n(?:.*\n)*?\.\. code-block:: python\n\n((?:   .*\n|\n)+)", PAGE, re.MULTILINE)
)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["sklearn", "dask-ml", "libsvm", "spark", "torch-ddp"])
def test_the_example_runs(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs nothing from the rest of its page, and prints what it found."""
    exec(compile(textwrap.dedent(EXAMPLES[library]), library, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
