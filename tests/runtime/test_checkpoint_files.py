"""Files of checkpoints: which one is read, what damage does, and who may write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd.errors import CheckpointError
from dsgd.local import SGD, Objective
from dsgd.runtime import Checkpoint
from dsgd.runtime.checkpoints.checkpoint import SavedState, SupersededError, read_newest, read_own, write
from dsgd.runtime.checkpoints.description import describe

HINGE = Objective(loss="hinge", alpha=1e-3)


def saved(tmp_path: Path, n: int = 3, keep: int = 3) -> tuple[list[Path], dict[str, Any]]:
    """Write n checkpoints; return their files, newest first, and their configuration."""
    configuration = {"optimizer": describe(SGD(HINGE))}
    for k in range(n):
        state = SavedState((k, 0), 2, configuration, {"value": np.array([float(k)])})
        write(Checkpoint(tmp_path, keep=keep), state)
    return sorted(tmp_path.glob("*.dsgd"), reverse=True), configuration


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "flipped": lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
    "foreign": lambda content: b"PK" + content[2:],
    "newer format": lambda content: content[:8] + b"\x02" + content[9:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(damage: str, tmp_path: Path) -> None:
    """Whatever happened to the newest file, the one before is used, and a note says so."""
    files, configuration = saved(tmp_path)
    files[0].write_bytes(DAMAGES[damage](files[0].read_bytes()))
    state = read_newest(tmp_path, configuration)
    assert state.position == (1, 0)
    assert state.arrays["value"].tolist() == [1.0]
    assert files[0].name in state.note
    for file in files[1:]:
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.raises(CheckpointError, match="no checkpoint there is intact"):
        read_newest(tmp_path, configuration)


def test_a_write_that_fails_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up while a checkpoint is written is an error, and the files of before are as they were."""
    files, configuration = saved(tmp_path)

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(CheckpointError, match="No space left"):
            write(Checkpoint(tmp_path), SavedState((9, 0), 2, configuration, {"value": np.ones(1)}))
    assert {path.name for path in tmp_path.iterdir()} == {"newest.json", *(file.name for file in files)}
    assert read_newest(tmp_path, configuration).position == (2, 0)


def test_a_checkpoint_holds_its_arrays_and_no_objects(tmp_path: Path) -> None:
    """What is read are the arrays that were written, with any numpy; Python objects are refused before they are."""
    _, configuration = saved(tmp_path, n=1)
    write(Checkpoint(tmp_path), SavedState((9, 0), 2, configuration, {"value": np.ones(1)}))
    assert list(read_newest(tmp_path, configuration).arrays) == ["value"]
    with pytest.raises(CheckpointError, match="but name hold Python objects"):
        write(Checkpoint(tmp_path), SavedState((9, 1), 2, configuration, {"name": np.array([None])}))


def test_old_and_half_written_files_go(tmp_path: Path) -> None:
    """Only the given number of files stays, and the remains of a killed process are removed."""
    (tmp_path / ".checkpoint-00000000-00000000.dsgd.abcd").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    saved(tmp_path, n=5, keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "checkpoint-00000003-00000000.dsgd",
        "checkpoint-00000004-00000000.dsgd",
        "newest.json",
        "notes.txt",
    ]


def test_a_lost_list_is_made_up_for(tmp_path: Path) -> None:
    """Without the list of files their names say which is the newest."""
    _, configuration = saved(tmp_path)
    (tmp_path / "newest.json").write_text("{")
    assert read_newest(tmp_path, configuration).position == (2, 0)


def test_a_job_finds_what_it_has_written_itself(tmp_path: Path) -> None:
    """Only whole files of this job that are new enough count; a folder that cannot be read is no empty one."""

    def put(epoch: int, job_id: str) -> Path:
        name = write(Checkpoint(tmp_path, keep=9), SavedState((epoch, 0), 2, {}, {"value": np.ones(1)}, job_id=job_id))
        return tmp_path / name

    assert read_own(tmp_path / "missing", "mine", (0, 0)) is None
    put(1, "other")
    assert read_own(tmp_path, "mine", (0, 0)) is None
    put(2, "mine")
    newest = put(3, "mine")
    found = read_own(tmp_path, "mine", (3, 0))
    assert found is not None
    assert (found.position, found.note) == ((3, 0), "")
    assert read_own(tmp_path, "mine", (3, 1)) is None
    newest.write_bytes(newest.read_bytes()[:-1])
    found = read_own(tmp_path, "mine", (0, 0))
    assert found is not None
    assert found.position == (2, 0)
    assert newest.name in found.note
    (tmp_path / "checkpoint-00000002-00000000.dsgd").unlink()
    assert read_own(tmp_path, "mine", (0, 0)) is None
    newest.unlink()
    newest.mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_own(tmp_path, "mine", (0, 0))


def test_a_list_names_no_file_of_another_folder(tmp_path: Path) -> None:
    """A list that somebody has written leads neither out of the folder nor to files that are no checkpoints."""
    files, configuration = saved(tmp_path / "ours")
    outside, _ = saved(tmp_path / "theirs", n=9)
    listed = tmp_path / "ours" / "newest.json"
    names = [f"../theirs/{outside[0].name}", str(outside[0]), "notes.txt", files[1].name]
    listed.write_text(json.dumps({"version": 1, "names": names}))
    assert read_newest(tmp_path / "ours", configuration).position == (1, 0)


def test_a_gang_that_was_given_up_writes_no_more(tmp_path: Path) -> None:
    """What a lost gang writes late hides nothing of the one in its place, and that one may begin further back."""

    def put(epoch: int, formed: int) -> str:
        state = SavedState((epoch, 0), 2, {}, {"value": np.ones(1)}, job_id="mine", formed=formed)
        return write(Checkpoint(tmp_path, keep=3), state)

    def listed() -> list[str]:
        return list(json.loads((tmp_path / "newest.json").read_text())["names"])

    first = [put(epoch, formed=0) for epoch in (5, 6)]
    second = put(4, formed=1)
    assert listed() == [second, *reversed(first)]
    for late in (3, 7):
        with pytest.raises(SupersededError, match="another fit or a later gang"):
            put(late, formed=0)
    assert listed() == [second, *reversed(first)]
    assert sorted(path.name for path in tmp_path.glob("*.dsgd")) == sorted([second, *first])
    found = read_own(tmp_path, "mine", (0, 0))
    assert found is not None
    assert (found.position, found.formed) == ((4, 0), 1)


def test_a_fit_whose_folder_another_one_took_over_writes_no_more(tmp_path: Path) -> None:
    """A fit that was given up, though it still runs, does not hide what the fit that resumed from it has written."""

    def put(epoch: int, job_id: str) -> str:
        return write(Checkpoint(tmp_path), SavedState((epoch, 0), 2, {}, {"value": np.ones(1)}, job_id=job_id))

    put(5, "before")
    newest = put(6, "after")
    with pytest.raises(SupersededError, match="another fit or a later gang"):
        put(7, "before")
    assert read_newest(tmp_path, {}).position == (6, 0)
    assert json.loads((tmp_path / "newest.json").read_text())["names"][0] == newest
