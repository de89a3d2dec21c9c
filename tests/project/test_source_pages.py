"""The pages of sources: one for each, and what they show of the registry works."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd.study.published import SOURCES

DOCS = Path(__file__).parents[2] / "docs"


@cache
def extension() -> dict[str, Any]:
    """Return what the extension of the documentation defines, which imports Sphinx."""
    return runpy.run_path(str(DOCS / "_ext" / "sources.py"))


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in SOURCES if key not in ("ring", "blink", "shrinking", "zerocopy")])
def test_the_lines_of_a_page_switch_its_source_on(key: str) -> None:
    """At most three lines train a model with what the page is about."""
    lines = extension()["lines_of"](SOURCES[key])
    assert len(lines) <= 3
    X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    names = {"X": X, "y": X[:, 0] > 0}
    exec("\n".join(lines).replace(").fit(", ", n_jobs=2, max_iter=1, tol=None).fit("), names)
    assert names["clf"].coef_.shape == (1, 2000 if key == "rff" else 3)
