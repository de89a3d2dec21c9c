"""Files that are replaced as a whole: who may read them, links, and what is no file."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dsgd.cli.files import check_model_path, save_model
from dsgd.errors import CheckpointError, InvalidParameterError
from dsgd.files import replacing
from dsgd.kernel_approximation import RandomFeatures
from dsgd.runtime import Checkpoint
from dsgd.runtime.checkpoints.checkpoint import SavedState, write


def checkpoint(path: Path) -> None:
    """Write a checkpoint, whose list has the place of the path."""
    write(Checkpoint(path.parent, keep=1), SavedState((1, 0), 2, {}, {"value": np.ones(1)}))


WRITERS: dict[str, Callable[[Path], None]] = {
    "model.dsgd": lambda path: RandomFeatures().save(path),
    "model.joblib": lambda path: save_model(RandomFeatures(), path),
    "newest.json": checkpoint,
    "checkpoint-00000001-00000000.dsgd": checkpoint,
}


@pytest.fixture(params=WRITERS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the path of a file that is yet to be written."""
    return tmp_path / request.param


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    """Return who may do what with a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_that_is_replaced_keeps_its_mode(target: Path) -> None:
    """Models are made as the umask says and checkpoints for their owner; then the mode is the owner's choice."""
    WRITERS[target.name](target)
    assert mode_of(target) == (0o644 if target.name.startswith("model") else 0o600)
    for mode in (0o600, 0o664, 0o440):
        target.chmod(mode)
        WRITERS[target.name](target)
        assert mode_of(target) == mode
    assert {path.name for path in target.parent.iterdir()} >= {target.name}
    assert not list(target.parent.glob(".*"))


def test_links_stay(target: Path, tmp_path: Path) -> None:
    """A link keeps leading to the file, which is replaced where it is; one that leads nowhere makes it."""
    real = tmp_path / "elsewhere" / "real"
    real.parent.mkdir()
    target.symlink_to(real)
    for _ in range(2):
        WRITERS[target.name](target)
        assert target.is_symlink()
        assert real.stat().st_size > 0
        assert [path.name for path in real.parent.iterdir()] == ["real"]
        real.write_text("before")


def test_what_is_no_file_is_refused(target: Path) -> None:
    """A pipe, as a device or a folder, is neither replaced nor removed."""
    for make in (os.mkfifo, os.mkdir):
        make(target)
        before = target.stat()
        with pytest.raises((OSError, CheckpointError), match=r"no regular file|Is a directory"):
            WRITERS[target.name](target)
        if target.name == "model.dsgd":
            with pytest.raises(InvalidParameterError, match=r"--model .*(no regular file|is a folder)"):
                check_model_path(target)
        assert target.stat().st_ino == before.st_ino
        target.rmdir() if make is os.mkdir else target.unlink()


def test_nobody_else_reads_a_file_while_it_is_written(tmp_path: Path) -> None:
    """The new content of a private file is private from its first byte, and an error leaves the old one alone."""
    (tmp_path / "private").write_text("old")
    (tmp_path / "private").chmod(0o600)
    modes = []
    with suppress(KeyError), replacing(tmp_path / "private") as aside:
        aside.write_text("new")
        modes.append(mode_of(aside))
        raise KeyError
    assert modes == [0o600]
    assert (tmp_path / "private").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["private"]
