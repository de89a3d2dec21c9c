"""Files of checkpoints: which one is read, what damage does, and who may write."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from dsgd import Gang, SGDClassifier
from dsgd.errors import CheckpointError
from dsgd.local import SGD, Objective
from dsgd.runtime import Checkpoint
from dsgd.runtime.checkpoints.checkpoint import SavedState, SupersededError, check_place, read_newest, read_own, write
from dsgd.runtime.checkpoints.container import describe

OWN = "checkpoint-00000000-00000000.dsgd"
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
    "flipped in its header": lambda content: content.replace(b'"world_size": 2', b'"world_size": 3'),
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

    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
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
    half = ("DSGDCKPT", "DSGD", "")
    for name, content in zip((f".{'0f' * 16}.{OWN}", f".{OWN}.0123abcd", f".{'ab' * 16}.{OWN}"), half, strict=True):
        (tmp_path / name).write_text(content)
    (tmp_path / "notes.txt").write_text("mine")
    saved(tmp_path, n=5, keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "checkpoint-00000003-00000000.dsgd",
        "checkpoint-00000004-00000000.dsgd",
        "newest.json",
        "notes.txt",
    ]


#: What others keep in a folder, by name; None is a folder.
THEIRS: dict[str, str | None] = {
    "checkpoint-best.pt": "weights",
    "checkpoint-1000.safetensors": "weights",
    ".checkpoint-notes": "lr 0.1",
    "checkpoint-500": None,
    "checkpoint": "model_checkpoint_path: 7",
    OWN: "not of dsgd",
    f"{OWN}.bak": "DSGDCKPT",
    f".{OWN}.abcd": "DSGDCKPT",
    "newest.json": '{"epoch": 3}',
}


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield a folder of this machine, and one that fsspec opens."""
    url = str(tmp_path) if request.param == "folder" else f"memory://{uuid.uuid4().hex}/job"
    yield url
    system, path = fsspec.core.url_to_fs(url)
    system.rm(path, recursive=True)


def put(place: str, name: str, content: str | None) -> None:
    """Write what another program keeps in a folder."""
    system, path = fsspec.core.url_to_fs(place)
    system.makedirs(path if content is not None else f"{path}/{name}", exist_ok=True)
    system.pipe_file(f"{path}/{name}" if content is not None else f"{path}/{name}/model.bin", (content or "w").encode())


def content_of(place: str) -> dict[str, bytes]:
    """Return all files of a folder."""
    system, path = fsspec.core.url_to_fs(place)
    return {name: system.cat_file(name) for name in system.find(path)}


def test_a_folder_that_others_use_is_refused(place: str) -> None:
    """What is not of dsgd is named before training begins, whatever the options, and is as it was."""
    X = np.random.default_rng(0).standard_normal((20, 2))
    for name, content in THEIRS.items():
        url = f"{place}/{name.strip('.')}"
        put(url, name, content)
        before = content_of(url)
        for gang in (Gang(checkpoint=Checkpoint(url, overwrite=True)), Gang(checkpoint=url, resume_from="auto")):
            with pytest.raises(CheckpointError, match=rf"used by another program: it holds '{re.escape(name)}'.*/dsgd"):
                SGDClassifier(client=gang).fit(X, X[:, 0] > 0)
        assert content_of(url) == before


def test_only_what_we_have_written_goes(place: str) -> None:
    """Files that come to the folder while a fit runs are neither removed nor in its way."""
    write(Checkpoint(place, keep=1), SavedState((0, 1), 2, {}, {"value": np.ones(1)}))
    for name, content in THEIRS.items():
        if name != "newest.json":
            put(place, name, content)
    before = content_of(place)
    for k in range(1, 4):
        write(Checkpoint(place, keep=1), SavedState((k, 0), 2, {}, {"value": np.ones(1)}))
    after = content_of(place)
    gone = {name.rpartition("/")[2] for name in before if name not in after}
    assert gone == {"checkpoint-00000000-00000001.dsgd"}
    assert all(after[name] == content for name, content in before.items() if name in after and "newest" not in name)


def test_a_damaged_file_beside_our_list_is_ours(tmp_path: Path) -> None:
    """A fit that resumes is not refused because of a damaged checkpoint or list; names say which is the newest."""
    files, configuration = saved(tmp_path)
    files[0].write_bytes(b"")
    check_place(Checkpoint(tmp_path), goes_on=True)
    saved(tmp_path)
    for lost in ("[" * 100_000, "{"):
        (tmp_path / "newest.json").write_text(lost)
        check_place(Checkpoint(tmp_path), goes_on=True)
        assert read_newest(tmp_path, configuration).position == (2, 0)
    with pytest.raises(CheckpointError, match="another fit"):
        check_place(Checkpoint(tmp_path), goes_on=False)
    with pytest.raises(CheckpointError, match=r"cannot be read.*Not a directory"):
        check_place(Checkpoint(files[0]), goes_on=False)


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


@pytest.mark.parametrize("later", [("mine", 1), ("another", 0)])
def test_a_gang_that_was_given_up_writes_no_more(later: tuple[str, int], tmp_path: Path) -> None:
    """What a lost gang, or a fit whose folder another one took over, writes late hides nothing of the one after it."""

    def put(epoch: int, job_id: str, formed: int) -> str:
        state = SavedState((epoch, 0), 2, {}, {"value": np.ones(1)}, job_id=job_id, formed=formed)
        return write(Checkpoint(tmp_path, keep=3), state)

    first = [put(epoch, "mine", 0) for epoch in (5, 6)]
    second = put(4, *later)  # may begin further back
    for late in (3, 7):
        with pytest.raises(SupersededError, match="another fit or a later gang"):
            put(late, "mine", 0)
    assert json.loads((tmp_path / "newest.json").read_text())["names"] == [second, *reversed(first)]
    assert sorted(path.name for path in tmp_path.glob("*.dsgd")) == sorted([second, *first])
    found = read_own(tmp_path, later[0], (0, 0))
    assert found is not None
    assert (found.position, found.formed) == ((4, 0), later[1])
