"""The templates of docs/extending.rst: those that stand outside the package work there, the patches work in a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import own_wire
from dsgd import SGDClassifier
from dsgd.cli.options import compressing
from dsgd.compress import QSGD
from dsgd.errors import InvalidParameterError
from dsgd.sync import DPSGD, LocalSGD
from dsgd.testing import check_compressor, check_strategy, check_topology
from gangs import connect_with, raise_first, run_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))
import epochs
from chords import Chords
from eight_bits import EightBits
from rarer import Rarer

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "docs" / "examples"
PAGE = (REPOSITORY / "docs" / "extending.rst").read_text(encoding="utf-8")
TEMPLATES = re.findall(r"literalinclude:: examples/([\w.]+)", PAGE)
PATCHES = [name for name in TEMPLATES if name.endswith(".patch")]


def fitted(sync: Any) -> SGDClassifier:
    X = np.random.default_rng(0).normal(size=(400, 5))
    return SGDClassifier(max_iter=3, tol=None, n_jobs=3, sync=sync, random_state=0).fit(X, X[:, 0] > 0)


def test_the_compressor_keeps_the_laws() -> None:
    """It passes every check, and sends fewer bytes than models are."""
    check_compressor(EightBits())
    sent = [
        fitted(sync).ledger_.totals()["bytes_sent"] for sync in (LocalSGD(64, compressor=EightBits()), LocalSGD(64))
    ]
    assert 0 < sent[0] < sent[1]


def test_the_command_line_takes_the_compressor() -> None:
    """By its module and name; one that does not exist, is none, or has no defaults is refused with the reason."""
    assert compressing(64, "eight_bits:EightBits") == LocalSGD(64, compressor=EightBits())
    for text, reason in [
        ("eight_bits:NineBits", "cannot be imported.*NineBits"),
        ("no_such_module:Name", "cannot be imported.*no_such_module"),
        ("dsgd.compress:Layerwise", "without parameters"),
        ("eight_bits:WORD_BYTES", "is a int, which is not a compressor"),
    ]:
        with pytest.raises(InvalidParameterError, match=reason):
            compressing(64, text)


def test_the_command_line_takes_a_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance of a module there stands for itself, with its parameters."""
    (tmp_path / "coarse_bits.py").write_text("from dsgd.compress import QSGD\n\nthree = QSGD(3)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert compressing(64, "coarse_bits:three") == LocalSGD(64, compressor=QSGD(3))


def test_the_topology_keeps_the_laws() -> None:
    """It passes every check, and a strategy takes it."""
    check_topology(Chords())
    assert fitted(DPSGD(every=64, topology=Chords())).ledger_.totals()["bytes_sent"] > 0


def test_the_period_changes_from_epoch_to_epoch() -> None:
    """It passes every check, and epochs of 134 rows have 8, 4 and 2 averages, and not as many as the first."""
    check_strategy(Rarer(8))
    assert fitted(Rarer(16)).ledger_.totals()["rounds"] == 8 + 4 + 2


@pytest.mark.parametrize("n", [2, 3])
def test_the_wire_sums(n: int, tmp_path: Path) -> None:
    """A sum over it is the sum of the vectors, whatever their length, and no file is left."""
    from dsgd.collectives import Group

    own_wire.make_folders_in(str(tmp_path))
    try:
        transports = raise_first(connect_with(own_wire.connect, n, 20.0, None))
    finally:
        own_wire.make_folders_in(None)

    def summed(transport: Any) -> list[np.ndarray]:
        vectors = [np.arange(size, dtype=np.float64) * (transport.rank + 1) for size in (0, 1, 1000, 70_001)]
        for vector in vectors:
            Group(transport).allreduce(vector)
        return vectors

    try:
        results = raise_first(run_ranks([lambda transport=transport: summed(transport) for transport in transports]))
    finally:
        for transport in transports:
            transport.close()
    factor = n * (n + 1) / 2
    for vectors in results:
        for vector in vectors:
            np.testing.assert_array_equal(vector, np.arange(vector.size) * factor)
    (folder,) = tmp_path.iterdir()
    assert list(folder.iterdir()) == []


def test_the_study_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second call makes only the runs that the first has not made; the page has the table and the figure."""
    first = epochs.main(tmp_path, epochs=(1,))
    again = epochs.main(tmp_path, epochs=(1, 2))
    assert [run.resumed for run in first] == [False] * 3
    assert [run.resumed for run in again] == [True] * 3 + [False] * 3
    assert len(capsys.readouterr().out.splitlines()) == 2
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "of test rows" in page
    assert (tmp_path / "figures" / "accuracy.png").exists()


_USES = """
import numpy as np
from dsgd import SGDClassifier, SGDRegressor
from dsgd.datasets import files
from dsgd.kernels.losses import LOSSES, loss_and_slope
from dsgd.local.rules import Signum
from reference import sgd

code = LOSSES["log_cosh"].code
for r in (-800.0, -3.0, -0.5, 0.0, 1.0, 40.0):
    loss, slope = loss_and_slope(code, 0.0, r, 0.1)
    np.testing.assert_allclose(loss, sgd.loss("log_cosh", 0.0, r, 0.1), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(slope, sgd.slope("log_cosh", 0.0, r, 0.1), rtol=1e-12, atol=1e-15)

X = np.random.default_rng(0).normal(size=(200, 3))
model = SGDRegressor(loss="log_cosh", max_iter=50, tol=None, random_state=0).fit(X, X @ [1.0, 2.0, 3.0])
np.testing.assert_allclose(model.coef_, [1.0, 2.0, 3.0], atol=0.5)

# Signs are as long as the rate: after n steps no weight is further away than n rates.
rule = Signum(batch=200)
signs = SGDClassifier(optimizer=rule, penalty=None, learning_rate="constant", eta0=0.01, max_iter=5, tol=None)
np.testing.assert_allclose(np.abs(signs.fit(X, X[:, 0] > 0).coef_[0, 0]), 0.05)

assert files.find("heart").n_features == 13
print("all three work")
"""


@pytest.mark.slow
def test_the_patches_work_in_a_copy(tmp_path: Path) -> None:
    """They apply to the files as they are, and what they add trains as the page says."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("dsgd", "svm", "datasets", "tests/reference"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=ignored)
    assert len(PATCHES) == 3
    for name in PATCHES:
        subprocess.run(["git", "apply", str(EXAMPLES / name)], cwd=tmp_path, check=True)
    for folder in ("svm", "datasets"):
        (tmp_path / folder).rename(tmp_path / "dsgd" / folder)
    places = os.pathsep.join([str(tmp_path), str(tmp_path / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", _USES],
        # All kernels are compiled anew, for a few rows.
        env=os.environ | {"PYTHONPATH": places, "NUMBA_OPT": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "all three work\n", done.stderr
