"""The registry, loading by name, downloads, and the commands that do so."""

from __future__ import annotations

import bz2
import json
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

from dsgd.cli.datasets import app
from dsgd.datasets import (
    DataFile,
    DatasetInfo,
    cache_folder,
    fetch,
    find,
    load,
    load_or_generate,
    load_svmlight,
    locate,
)
from dsgd.datasets.files import checksum_of
from dsgd.datasets.loading import split_rows
from dsgd.errors import DatasetError, InvalidDataError, InvalidParameterError

TRAIN = b"".join(b"%d 1:%d 3:0.5\n" % (1 if i % 3 else -1, i) for i in range(1, 41))
TEST = b"-1 2:4\n1 1:2\n"
NOWHERE = "http://127.0.0.1:9/"  # the discard port: nothing listens


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return an empty data folder and an empty cache that this test alone sees."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("DSGD_DATA", str(data))
    monkeypatch.setenv("DSGD_CACHE", str(cache))
    return data, cache


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DatasetInfo]:
    """Return a function that adds a small set to the registry for the length of a test."""
    table = sys.modules["dsgd.datasets.files"]._REGISTRY

    def add(url: str | None = NOWHERE, checksum: str | None = None, test: bool = True) -> DatasetInfo:
        file = partial(DataFile, checksum=checksum)
        parts = [(file(name, f"{url}{name}" if url else None),) for name in ("tiny.bz2", "tiny.t")]
        info = DatasetInfo("tiny", "binary", 40, 2 if test else 0, 4, 2, parts[0], parts[1] if test else ())
        monkeypatch.setitem(table, "tiny", info)
        return info

    return add


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield the address of a web server on this machine, the folder it serves, and the requested paths."""
    asked: list[str] = []

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            asked.append(self.path)

    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "tiny.bz2").write_bytes(bz2.compress(TRAIN))
    (folder / "tiny.t").write_bytes(TEST)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{web.server_address[1]}/", folder, asked
        web.shutdown()
        thread.join()


def test_unknown_name_is_refused_with_close_ones() -> None:
    """A name that is not known is refused, with the names that are like it."""
    with pytest.raises(DatasetError, match=r"'ijcn1'.*ijcnn1"):
        load("ijcn1")
    with pytest.raises(DatasetError, match="no generated twin"):
        load("mnist-like")


def test_cache_folder_order(folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is the folder given, else the one DSGD_CACHE names, else the user's cache folder."""
    assert cache_folder(tmp_path / "mine") == tmp_path / "mine"
    assert cache_folder() == folders[1]
    monkeypatch.delenv("DSGD_CACHE")
    assert cache_folder().name == "dsgd"


def test_download_once_then_from_disk(
    folders: tuple[Path, Path],
    register: Callable[..., DatasetInfo],
    server: tuple[str, Path, list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A set is downloaded once, which can be watched on stderr, its checksum recorded, and read from the cache."""
    url, _, asked = server
    register(url)
    fetch("tiny", progress=True)
    assert capsys.readouterr().out == ""
    train, test = load("tiny", dtype=np.float32), load("tiny", "test")
    assert train.X.shape == (40, 4)
    assert train.X.dtype == np.float32
    assert sp.issparse(train.X)
    assert test.X.toarray().tolist() == [[0, 4, 0, 0], [2, 0, 0, 0]]
    assert test.y.tolist() == [-1, 1]
    assert sorted(asked) == ["/tiny.bz2", "/tiny.t"]
    assert (folders[1] / "tiny.t.sha256").read_text().strip() == checksum_of(folders[1] / "tiny.t")
    assert load("tiny", "all", dense=True).X.shape == (42, 4)
    assert fetch("tiny") == {"train": folders[1] / "tiny.bz2", "test": folders[1] / "tiny.t"}
    assert len(asked) == 2


def test_wrong_checksum_is_refused(
    folders: tuple[Path, Path], register: Callable[..., DatasetInfo], server: tuple[str, Path, list[str]]
) -> None:
    """A download whose checksum is not the known or the recorded one is refused and not kept."""
    url, folder, _ = server
    register(url, checksum="sha256:" + "0" * 64)
    with pytest.raises(DatasetError, match="hash"):
        load("tiny")
    assert locate(find("tiny"), "train") is None
    register(url)
    fetch("tiny")
    (folders[1] / "tiny.t").unlink()
    (folder / "tiny.t").write_bytes(b"1 1:1\n")
    with pytest.raises(DatasetError, match="hash"):
        fetch("tiny")


def test_without_network_the_error_says_what_to_do(
    folders: tuple[Path, Path], register: Callable[..., DatasetInfo]
) -> None:
    """Where a file is neither here nor to be downloaded, the error names the file, the folder and the alternatives."""
    register()
    with pytest.raises(DatasetError, match=r"train part of tiny.*127\.0\.0\.1 does not answer.*tiny\.bz2.*DSGD_DATA"):
        load("tiny")
    (folders[0] / "tiny").write_bytes(TRAIN)
    with pytest.raises(DatasetError, match=r"test part of tiny.*holdout=0\.2"):
        load("tiny", "test")
    with pytest.raises(DatasetError, match="dsgd datasets fetch tiny"):
        load("tiny", "test", download=False)
    register(url=None)
    (folders[0] / "tiny").unlink()
    with pytest.raises(DatasetError, match="not published for download"):
        load("tiny")
    folders[0].rmdir()
    with pytest.raises(DatasetError, match=r"it names .*data now, which is no folder"):
        load("tiny")


def test_data_folder_comes_first_in_any_packing(
    folders: tuple[Path, Path], register: Callable[..., DatasetInfo]
) -> None:
    """Files in the folder DSGD_DATA names win over the cache, also when they are packed in another way."""
    register()
    data, cache = folders
    cache.mkdir()
    (cache / "tiny.bz2").write_bytes(bz2.compress(b"1 1:1\n" * 7))
    assert load("tiny").n_rows == 7
    (data / "tiny").write_bytes(TRAIN)
    assert load("tiny").source == str(data / "tiny")
    assert load("tiny").n_rows == 40


def test_parsed_rows_are_kept_until_the_file_changes(
    folders: tuple[Path, Path], register: Callable[..., DatasetInfo]
) -> None:
    """A second load reads what the first one parsed; a changed file, or a broken cache, is parsed again."""
    register()
    path = folders[0] / "tiny"
    path.write_bytes(TRAIN)
    first = load("tiny")
    (parsed,) = (folders[1] / "parsed").iterdir()
    kept = dict(np.load(parsed))
    np.savez(parsed, **{**kept, "y": kept["y"] * 2})
    np.testing.assert_array_equal(load("tiny").y, first.y * 2)
    parsed.write_bytes(b"cut off")
    np.testing.assert_array_equal(load("tiny").y, first.y)
    path.write_bytes(TRAIN + b"1 1:1\n")
    assert load("tiny").n_rows == 41


def test_split_of_a_set_without_test_part(folders: tuple[Path, Path], register: Callable[..., DatasetInfo]) -> None:
    """The 80:20 split is always the same, keeps the order of the file, and its parts are the whole."""
    register(test=False)
    path = folders[0] / "tiny"
    path.write_bytes(TRAIN)
    whole, train, test = (load("tiny", split, dense=True) for split in ("all", "train", "test"))
    assert (whole.n_rows, train.n_rows, test.n_rows) == (40, 32, 8)
    order = whole.X[:, 0]
    rows = split_rows(40, 0.2)
    np.testing.assert_array_equal(train.X[:, 0], order[rows["train"]])
    assert np.all(np.diff(test.X[:, 0]) > 0)
    assert sorted([*train.X[:, 0], *test.X[:, 0]]) == sorted(order)
    assert "held out" in test.note
    half = load("tiny", "test", holdout=0.5)
    assert half.n_rows == 20


def test_load_or_generate(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The real rows are used if they are here, else the twin, never the web; the answer says which."""
    made = load_or_generate("ijcnn1", n_rows=300)
    assert (made.name, made.generated, made.n_rows, made.bayes_accuracy) == ("ijcnn1-like", True, 300, 0.97)
    line = b"1 " + b" ".join(b"%d:0.5" % column for column in range(1, 23)) + b"\n"
    (folders[0] / "ijcnn1").write_bytes(line * 50)
    train, test = load_or_generate("ijcnn1"), load_or_generate("ijcnn1", "test")
    assert (train.name, train.generated, train.n_rows, test.n_rows) == ("ijcnn1", False, 40, 10)
    assert "held out" in train.note
    (folders[0] / "ijcnn1.t.bz2").write_bytes(bz2.compress(line * 9))
    assert load_or_generate("ijcnn1").n_rows == 50
    assert load_or_generate("ijcnn1", "test").n_rows == 9
    assert load_or_generate("ijcnn1", n_rows=20).n_rows == 20
    with pytest.raises(DatasetError, match="no generated twin"):
        load_or_generate("mushrooms")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "validation"}, "split"),
        ({"dtype": np.int8}, "dtype"),
        ({"holdout": 1.0}, "holdout"),
        ({"n_rows": 0}, "n_rows"),
        ({"n_rows": 41}, "n_rows=41.*40 rows"),
    ],
    ids=str,
)
def test_wrong_arguments(
    folders: tuple[Path, Path], register: Callable[..., DatasetInfo], options: dict[str, Any], message: str
) -> None:
    """An argument out of range is refused by name."""
    register()
    (folders[0] / "tiny").write_bytes(TRAIN)
    with pytest.raises(InvalidParameterError, match=message):
        load("tiny", **options)


def test_a_file_that_is_not_what_it_says(folders: tuple[Path, Path]) -> None:
    """A table with other columns, or a file that is no table, is refused by name."""
    import gzip

    path = folders[0] / "cadata.tsv.gz"
    path.write_bytes(gzip.compress(b"a\tb\ttarget\n1\t2\t3\n4\t5\t6\n"))
    with pytest.raises(InvalidDataError, match=r"cadata\.tsv\.gz has 2 columns beside the target, expected 8"):
        load("cadata")
    path.write_bytes(gzip.compress(b"a\tb\ttarget\n1\tx\t3\n"))
    with pytest.raises(InvalidDataError, match=r"cadata\.tsv\.gz does not read as tsv"):
        load("cadata")
    (folders[0] / "mnist.npz").write_bytes(b"no archive")
    with pytest.raises(InvalidDataError, match=r"mnist\.npz does not read as npz"):
        load("mnist")


LOCAL = {
    "a9a": ((32_561, 123), (16_281, 123), 2),
    "cadata": ((16_512, 8), (4_128, 8), 0),
    "covtype-subset": ((74_370, 54), (18_592, 54), 7),
    "ijcnn1": ((49_990, 22), (91_701, 22), 2),
    "letter": ((15_000, 16), (5_000, 16), 26),
    "mnist": ((60_000, 784), (3_000, 784), 10),
    "news20": ((12_748, 62_061), (3_187, 62_061), 20),
    "reuters-money-fx": ((7_770, 8_315), (3_299, 8_315), 2),
    "usps": ((7_291, 256), (2_007, 256), 10),
    "w8a": ((39_799, 300), (9_950, 300), 2),
}


@pytest.mark.parametrize("name", LOCAL)
def test_real_sets(data_home: Path, tmp_path: Path, name: str) -> None:
    """The real sets load with the shapes and classes the registry states, and are the files whose checksums it has."""
    info = find(name)
    found = locate(info, "train", tmp_path)
    if found is None:
        pytest.skip(f"{name} is not in DSGD_DATA")
    train, test = (load_or_generate(name, split, data_home=tmp_path) for split in ("train", "test"))
    assert (train.X.shape, test.X.shape) == LOCAL[name][:2]
    assert train.X.shape[1] == info.n_features
    assert sp.issparse(train.X) != info.dense
    if info.n_classes:
        assert np.unique(train.y).size == info.n_classes
    file, path = found
    assert file.checksum == checksum_of(path)


def run(*args: str) -> Any:
    """Run a datasets command in this process."""
    return CliRunner().invoke(app, list(args))


def test_command_list(folders: tuple[Path, Path]) -> None:
    """The list has a line per set and twin, and says which are on this machine."""
    (folders[0] / "a9a").write_bytes(b"1 1:1\n")
    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}
    assert rows["a9a"]["here"] == ["train"]
    assert rows["ijcnn1"]["here"] == []
    assert rows["epsilon-like"]["n_features"] == 2000


def test_command_info(folders: tuple[Path, Path]) -> None:
    """The description has the source and licence, and checks the files found against known checksums."""
    (folders[0] / "a9a.bz2").write_bytes(bz2.compress(b"1 1:1\n"))
    facts = json.loads(run("info", "a9a", "--json").stdout)
    assert facts["n_train"] == 32_561
    assert facts["here"]["train"]["checksum_is"] == "differs from the known one"
    assert json.loads(run("info", "webspam-like", "--json").stdout)["best_accuracy"] == 0.96
    assert isinstance(run("info", "nothing").exception, DatasetError)


def test_command_fetch(
    folders: tuple[Path, Path], register: Callable[..., DatasetInfo], server: tuple[str, Path, list[str]]
) -> None:
    """Fetch prints where the files are, and fails with the library's error when they are not to be had."""
    register(server[0])
    assert json.loads(run("fetch", "tiny", "--json").stdout) == {
        "train": str(folders[1] / "tiny.bz2"),
        "test": str(folders[1] / "tiny.t"),
    }
    register(NOWHERE + "other/", test=False)
    (folders[1] / "tiny.bz2").unlink()
    assert isinstance(run("fetch", "tiny").exception, DatasetError)


@pytest.mark.parametrize("suffix", ["svm", "svm.gz", "npz"])
@pytest.mark.parametrize("twin", ["ijcnn1-like", "rcv1-like"])
def test_command_make(tmp_path: Path, suffix: str, twin: str) -> None:
    """What make writes reads back as the rows the library makes, in every format, and nothing else is left."""
    from dsgd.datasets import make_like
    from dsgd.datasets.files import read_npz

    path = tmp_path / f"x.{suffix}"
    result = run("make", twin, "--rows", "1500", "--seed", "4", "--split", "test", "--out", str(path))
    assert result.exit_code == 0, result.output
    assert "1,500 rows" in result.stdout
    made = make_like(twin, 1500, split="test", seed=4)
    n_features = made.X.shape[1]
    X, y = read_npz(path) if suffix == "npz" else load_svmlight(path, n_features=n_features, zero_based=False)
    difference = abs(sp.csr_matrix(X) - sp.csr_matrix(made.X))
    assert X.shape == made.X.shape
    assert difference.max() <= 1e-14  # svmlight text has 16 digits
    np.testing.assert_array_equal(y, made.y)
    assert list(tmp_path.iterdir()) == [path]


def test_command_make_refuses(tmp_path: Path) -> None:
    """A twin that is not there, a folder that is not there and a wrong split or dtype are refused, nothing written."""
    for args in (
        ["nothing", "--out", str(tmp_path / "x")],
        ["ijcnn1-like", "--out", str(tmp_path / "no" / "x")],
        ["ijcnn1-like", "--split", "all", "--out", str(tmp_path / "x")],
        ["ijcnn1-like", "--dtype", "int8", "--out", str(tmp_path / "x.npz")],
    ):
        assert isinstance(run("make", *args).exception, InvalidParameterError)
    assert list(tmp_path.iterdir()) == []


def test_generated_on_request(folders: tuple[Path, Path]) -> None:
    """The twin can be requested by name or by flag, with all its rows in either part."""
    train, test = load("ijcnn1", generate=True), load("ijcnn1-like", "test")
    assert (train.n_rows, test.n_rows) == (49_990, 91_701)
    assert train.coef is not None
    assert test.intercept == train.intercept
    everything = load("a9a-like", "all")
    assert everything.X.shape == (48_842, 123)
    assert sp.issparse(everything.X)
