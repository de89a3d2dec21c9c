"""Reading svmlight files, in this process and in blocks."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import itertools
import lzma
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from dsgd.datasets import load_svmlight, read_svmlight, write_svmlight
from dsgd.datasets.parse import DEFERRED, NUMBER, parse_bytes, power_tables, scan_number
from dsgd.datasets.svmlight import plan_ranges, read_range
from dsgd.errors import DsgdError, InvalidDataError, InvalidParameterError, ParseError

TEXT = b"""# a comment line
+1 1:0.5 3:-1e-3 # comment after values

-1\t2:7
  2.5 qid:3 1:1 4:2.25\r
0
"""


def assert_same(ours: tuple[Any, Any], theirs: tuple[Any, Any]) -> None:
    """Fail unless two (X, y) have the same entries, stored zeros included, bit by bit."""
    (X, y), (X_other, y_other) = ours, theirs
    assert X.shape == X_other.shape
    assert X.dtype == X_other.dtype
    np.testing.assert_array_equal(X.indptr, X_other.indptr)
    np.testing.assert_array_equal(X.indices, X_other.indices)
    assert X.data.tobytes() == X_other.data.tobytes()
    np.testing.assert_array_equal(y, y_other)


def together(blocks: list[Any]) -> tuple[Any, Any]:
    """Compute blocks and stack them."""
    parts = dask.compute(*blocks, scheduler="synchronous")
    return sp.vstack([X for X, _ in parts], format="csr"), np.concatenate([y for _, y in parts])


@pytest.fixture
def memory() -> Iterator[str]:
    """Yield a folder of fsspec's in-memory file system."""
    fs = fsspec.filesystem("memory")
    fs.mkdirs("/svm", exist_ok=True)
    yield "memory://svm"
    fs.rm("/svm", recursive=True)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[sp.csr_matrix, np.ndarray]:
    """Draw a CSR matrix, all-zero rows among its rows, and labels."""
    n_rows, n_features = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    dense = np.zeros((n_rows, n_features))
    number = st.floats(-1e300, 1e300)  # 16 digits of the very largest numbers round up to infinity
    for i in range(n_rows):
        for j in draw(st.sets(st.integers(0, n_features - 1))):
            dense[i, j] = draw(number)
    return sp.csr_matrix(dense), np.array(draw(st.lists(number, min_size=n_rows, max_size=n_rows)))


@settings(max_examples=400)
@given(
    st.one_of(
        st.integers(0, 2**64 - 1).map(lambda bits: repr(struct.unpack("d", struct.pack("Q", bits))[0])),
        st.floats(allow_nan=False, allow_infinity=False).map("{:.16g}".format),
        st.tuples(st.integers(0, 10**25), st.integers(-360, 320)).map(lambda pair: f"{pair[0]}e{pair[1]}"),
        st.decimals(allow_nan=False, allow_infinity=False, places=6).map(str),
    ).filter(lambda text: "inf" not in text and "nan" not in text)
)
def test_numbers_round_as_python_rounds(text: str) -> None:
    """A number that the parser reads itself equals Python's float of the same text, to the bit."""
    value, stop, status = scan_number(np.frombuffer(text.encode(), dtype=np.uint8), 0, *power_tables())
    assert status in (NUMBER, DEFERRED)
    assert stop == len(text)
    if status == NUMBER:
        assert struct.pack("d", value) == struct.pack("d", float(text))


@settings(max_examples=60)
@given(matrices(), st.booleans(), st.sampled_from([np.float32, np.float64]))
def test_reads_what_scikit_learn_reads(
    tmp_path: Path, data: tuple[Any, Any], zero_based: bool, dtype: type[np.floating[Any]]
) -> None:
    """Whatever scikit-learn writes, our reader and theirs read as the same matrix and labels."""
    X, y = data
    if dtype is np.float32:
        X = sp.csr_matrix(np.clip(X.toarray(), -1e30, 1e30))
    path = tmp_path / "x.svm"
    dump_svmlight_file(X, y, str(path), zero_based=zero_based, comment="two\nlines")
    for given_base in (zero_based, "auto"):
        theirs = load_svmlight_file(str(path), dtype=dtype, zero_based=given_base)
        assert_same(load_svmlight(path, dtype=dtype, zero_based=given_base), theirs)


@settings(max_examples=40)
@given(matrices(), st.integers(1, 200), st.booleans())
@pytest.mark.slow
def test_byte_ranges_lose_and_double_no_row(
    tmp_path: Path, data: tuple[Any, Any], step: int, trailing_newline: bool
) -> None:
    """Blocks of any number of bytes hold the rows of the file once each, in order."""
    X, y = data
    path = tmp_path / "x.svm"
    dump_svmlight_file(X, y, str(path))
    if not trailing_newline:
        path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    whole = load_svmlight(path, zero_based=True, n_features=X.shape[1])
    options = {"zero_based": True, "n_features": X.shape[1], "blocksize": step}
    assert_same(together(read_svmlight(path, **options)), whole)
    ranges = plan_ranges(str(path), step)
    assert b"".join(read_range(str(path), *edges) for edges in ranges) == path.read_bytes()


def test_text_by_hand(tmp_path: Path) -> None:
    """Comments, blank lines, tabs, carriage returns, qid and signed labels are read as the format says."""
    path = tmp_path / "hand.svm"
    path.write_bytes(TEXT)
    X, y = load_svmlight(path)
    expected = [[0.5, 0, -1e-3, 0], [0, 7, 0, 0], [1, 0, 0, 2.25], [0, 0, 0, 0]]
    np.testing.assert_array_equal(X.toarray(), expected)
    np.testing.assert_array_equal(y, [1, -1, 2.5, 0])
    assert_same((X, y), load_svmlight_file(str(path)))


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files(tmp_path: Path, suffix: str, compress: Any) -> None:
    """A compressed file reads as its plain text does and is one block; cut off, it is named in the error."""
    plain, packed = tmp_path / "x.svm", tmp_path / f"x.svm{suffix}"
    plain.write_bytes(TEXT * 50)
    packed.write_bytes(compress(TEXT * 50))
    assert_same(load_svmlight(packed), load_svmlight(plain))
    blocks = read_svmlight(packed, blocksize=10)
    assert len(blocks) == 1
    assert_same(together(blocks), load_svmlight(plain))
    for damaged in (packed.read_bytes()[:-15], b"this is no archive at all"):
        packed.write_bytes(damaged)
        with pytest.raises(InvalidDataError, match=rf"x\.svm\{suffix} is cut off or damaged"):
            load_svmlight(packed)


def test_any_file_system(memory: str) -> None:
    """Files on another file system than the local one are read whole, by range, compressed and by pattern."""
    for number in range(3):
        with fsspec.open(f"{memory}/part-{number}.svm", "wb") as stream:
            stream.write(TEXT.replace(b"7", str(number + 5).encode()))
    with fsspec.open(f"{memory}/part-3.svm.gz", "wb") as stream:
        stream.write(gzip.compress(TEXT))
    paths = [f"{memory}/part-{number}.svm" for number in range(3)] + [f"{memory}/part-3.svm.gz"]
    whole = load_svmlight(paths)
    assert whole[0].toarray()[[1, 5, 9, 13], 1].tolist() == [5, 6, 7, 7]
    assert_same(load_svmlight(f"{memory}/part-*"), whole)
    blocks = read_svmlight(f"{memory}/part-*", blocksize=40)
    assert len(blocks) > 6
    assert_same(together(blocks), whole)


def test_blocks_agree_on_width_and_numbering(tmp_path: Path) -> None:
    """Blocks of one call have the same width, and count columns from 1 only if no file has a column 0."""
    first, second = tmp_path / "a.svm", tmp_path / "b.svm"
    first.write_bytes(b"1 1:1\n" * 5)
    for lowest, width in ((2, 7), (0, 8)):
        second.write_bytes(f"1 {lowest}:1 7:1\n".encode() * 5)
        parts = dask.compute(*read_svmlight([first, second], blocksize=12), scheduler="synchronous")
        assert {X.shape[1] for X, _ in parts} == {width}
        assert parts[0][0][0, width - 7] == 1


def test_a_column_without_end_is_refused(tmp_path: Path) -> None:
    """One wrong digit does not ask for gigabytes: so many columns must be asked for; blocks on a cluster agree."""
    path = tmp_path / "wide.svm"
    path.write_bytes(b"1 4294967295:1\n-1 1:1\n")
    with pytest.raises(InvalidDataError, match=r"largest column is 4294967295.* 32 GiB.*n_features=4294967295"):
        load_svmlight(path)
    with pytest.raises(InvalidDataError, match="largest column is 4294967295"):
        together(read_svmlight(path))
    assert load_svmlight(path, n_features=4294967295)[0].shape == (2, 4294967295)


@pytest.mark.parametrize(("start", "encoding"), [(b"\xef\xbb\xbf", "utf-8"), (b"", "utf-16")])
def test_marks_of_editors_are_named(start: bytes, encoding: str, tmp_path: Path) -> None:
    """A file with a byte order mark is refused with what to do."""
    path = tmp_path / "marked.svm"
    path.write_bytes(start + "1 1:1\n".encode(encoding))
    with pytest.raises(ParseError, match=r"line 1: .*(byte order mark.*without BOM|is UTF-16 text.*iconv)"):
        load_svmlight(path)


PROBLEMS = {
    b"one 1:1": "expected a label",
    b"nan 1:1": "label is not finite",
    b"1 1:1 5": r"expected column:value, got '5'; the line may be cut off",
    b"1 1:1 5:": "expected a number after the colon",
    b"1 1:1 5:0.": None,
    b"1 1:1 5:1e": "expected a number after the colon",
    b"1 1:1 5:x": "expected a number after the colon",
    b"1 1:1 5:1:2": "expected a number after the colon",
    b"1 1:1 5:-inf": "not finite",
    b"1 1:1 5:NaN": "not finite",
    b"1 1:1 5:1e999": "not finite",
    b"1 1:1 a:2": "expected column:value",
    b"1 1:1 -3:2": "expected column:value",
    b"1 3:1 3:2": "must increase",
    b"1 3:1 1:2": "must increase",
    b"1 1:1 9999999999:2": "beyond the last, 4294967295; renumber the columns, or hash them",
    b"1 1:1 4294967296:2": "beyond the last, 4294967295; renumber the columns, or hash them",
    b"1 1:1 5:0,5": r"got '5:0,5'; write decimals with a point, 0\.5",
    b"0,5 1:1": r"expected a label \(a number\), got '0,5'; write decimals with a point, 0\.5",
    b"1 qid:x 1:2": "qid",
    b"1:1 2:2": "expected a label",
}


@pytest.mark.parametrize("line", PROBLEMS)
@pytest.mark.parametrize("blocksize", [None, 64])
def test_malformed_lines_name_file_and_line(tmp_path: Path, line: bytes, blocksize: int | None) -> None:
    """A malformed or cut-off line raises an error with the file and the number of the line, by range too."""
    path = tmp_path / "bad.svm"
    path.write_bytes(b"# head\n\n" + b"1 1:0.25 2:3\n" * 40 + line + b"\n" + b"-1 1:2\n" * 40)
    message = PROBLEMS[line]
    if message is None:  # cut off where what is left is still a number: no reader can know
        assert load_svmlight(path)[0][40, 4] == 0
        return
    for read in (lambda: load_svmlight(path), lambda: together(read_svmlight(path, blocksize=blocksize))):
        with pytest.raises(ParseError, match=message) as caught:
            read()
        assert caught.value.line == 43
        assert caught.value.path == str(path)
        assert "line 43" in str(pickle.loads(pickle.dumps(caught.value)))


def test_column_bounds(tmp_path: Path) -> None:
    """Columns beyond n_features, or below the first, are refused with the way out."""
    path = tmp_path / "x.svm"
    path.write_bytes(b"1 0:1 4:1\n")
    with pytest.raises(ParseError, match="line 1: column '0:1' is below the first"):
        load_svmlight(path, zero_based=False)
    with pytest.raises(ParseError, match="pass a larger n_features"):
        load_svmlight(path, n_features=3)
    with pytest.raises(InvalidDataError, match="n_features=4, but the files have 5 columns"):
        load_svmlight(path, n_features=4)
    assert load_svmlight(path, n_features=9)[0].shape == (1, 9)


def test_float32_overflow(tmp_path: Path) -> None:
    """A number that float32 cannot hold is refused rather than read as infinity."""
    path = tmp_path / "x.svm"
    path.write_bytes(b"1 1:1e39\n")
    with pytest.raises(InvalidDataError, match="float64"):
        load_svmlight(path, dtype=np.float32)
    assert load_svmlight(path)[0][0, 0] == 1e39


def test_missing_files(tmp_path: Path, memory: str) -> None:
    """A file that is not there, a folder and a pattern without a match are refused by name, before any task runs."""
    for path, message in {
        str(tmp_path / "none.svm"): r"no such file: .*none\.svm",
        f"{memory}/none.svm": r"no such file: .*none\.svm",
        str(tmp_path): "is a folder",
        str(tmp_path / "*.svm"): "no file matches",
        "nowhere://x": "nowhere://x cannot be read",
    }.items():
        for read in (load_svmlight, read_svmlight):
            with pytest.raises(InvalidDataError, match=message):
                read(path)
    with pytest.raises(InvalidDataError, match="no svmlight file was given"):
        load_svmlight([])


@pytest.mark.parametrize(
    "options",
    [{"n_features": 0}, {"zero_based": "maybe"}, {"dtype": np.int32}, {"blocksize": 0}, {"blocksize": "many"}],
    ids=str,
)
def test_wrong_arguments(tmp_path: Path, options: dict[str, Any]) -> None:
    """An argument no file can satisfy is refused by name."""
    path = tmp_path / "x.svm"
    path.write_bytes(TEXT)
    with pytest.raises(InvalidParameterError, match=next(iter(options))):
        read_svmlight(path, **options)


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_write_then_read(tmp_path: Path, suffix: str, rng: np.random.Generator) -> None:
    """What is written comes back, packed or not."""
    X = sp.random(50, 12, density=0.3, format="csr", random_state=rng)
    y = rng.integers(0, 3, 50).astype(float)
    path = tmp_path / f"x.svm{suffix}"
    write_svmlight(X, y, path)
    read, labels = load_svmlight(path, n_features=12)
    np.testing.assert_allclose(read.toarray(), X.toarray(), rtol=1e-15)
    np.testing.assert_array_equal(labels, y)
    with pytest.raises(InvalidParameterError, match="zip is not one of"):
        write_svmlight(X, y, tmp_path / "x.zip")


REAL = ["a9a.t.bz2", "ijcnn1.bz2", "letter.scale.bz2", "news20.bz2", "reuters-money-fx.t.bz2", "w8a.bz2"]


@pytest.mark.parametrize("name", REAL)
def test_real_files_read_as_scikit_learn_reads_them(real_file: Any, name: str) -> None:
    """On real files the reader agrees with scikit-learn's to the bit."""
    path = str(real_file(name))
    assert_same(load_svmlight(path), load_svmlight_file(path))


@pytest.mark.cluster
def test_blocks_are_read_by_worker_processes(tmp_path: Path, rng: np.random.Generator) -> None:
    """Worker processes read the ranges of a file, and an error on a worker names file and line on the client."""
    from distributed import Client

    from gang_cluster import start_cluster

    X = sp.random(3000, 40, density=0.2, format="csr", random_state=rng)
    path, bad = tmp_path / "x.svm", tmp_path / "bad.svm"
    write_svmlight(X, np.arange(3000), path)
    bad.write_bytes(b"1 1:1\n" * 500 + b"1 1:\n")
    with start_cluster(2) as cluster, Client(cluster) as client:
        futures = client.compute(read_svmlight(path, blocksize=20_000))
        parts = client.gather(futures)
        assert len(parts) > 4
        with pytest.raises(ParseError, match="line 501"):
            client.gather(client.compute(read_svmlight(bad, blocksize=700)))
        del futures
    assert np.concatenate([y for _, y in parts]).tolist() == list(range(3000))


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(st.sampled_from([*PROBLEMS, b"1 1:1", b"", b"# x", b"1 1:" + b"9" * 400]), st.binary(max_size=40))
    ),
    st.sampled_from([b"\n", b"\r\n", b" "]),
    st.sampled_from([True, False, "auto"]),
)
def test_any_bytes_are_read_or_refused(tmp_path: Path, lines: list[bytes], end: bytes, zero_based: Any) -> None:
    """Whatever lines a file has, it is read, or refused with an error of ours."""
    path = tmp_path / "any.svm"
    path.write_bytes(end.join(lines))
    with contextlib.suppress(DsgdError):
        X, y = load_svmlight(path, zero_based=zero_based)
        assert X.shape[0] == len(y)


@given(st.lists(st.integers(0, 60), max_size=8), st.binary(max_size=60))
def test_ranges_partition_any_bytes(tmp_path: Path, cuts: list[int], text: bytes) -> None:
    """Ranges with any edges, empty ones too, read every byte of a file exactly once."""
    path = tmp_path / "bytes"
    path.write_bytes(text)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [read_range(str(path), a, b) for a, b in itertools.pairwise(edges) if a < b]
    assert b"".join(pieces) == text


def test_numbers_left_to_python_are_many() -> None:
    """More long numbers than the parser sets room aside for are still all read right."""
    texts = [f"0.{i}234567890123456789012345" for i in range(1, 3001)]
    parsed = parse_bytes("\n".join(f"{text} 0:{text}" for text in texts).encode())
    expected = [float(text) for text in texts]
    assert parsed.values.tolist() == expected
    assert parsed.targets.tolist() == expected
