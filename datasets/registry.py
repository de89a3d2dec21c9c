"""The registry of data sets: shape, task, location and checksum of the files.

Shapes are those of the LIBSVM data page. Checksums are given only if they were published by others, or for the copies
described in the data notes of the project, which hold the same rows in another format. A file without a checksum is
accepted when it is downloaded, and its checksum is recorded beside it for the next time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsgd.datasets.generators import TWINS
from dsgd.errors import DatasetError

BINARY = "binary"
MULTICLASS = "multiclass"
REGRESSION = "regression"

_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
_LICENCE = "not stated by the LIBSVM page; cite the source it names and see there before passing the data on"
_STUDY = "MSF study (arXiv 1905.01219)"
_ACCURACY = "accuracy table"


@dataclass(frozen=True)
class DataFile:
    """One file of a set.

    Parameters
    ----------
    name : str
        File name, which is also its name in the cache.
    url : str or None
        Where to download it; None for a copy that is not published under that name.
    checksum : str or None
        ``"sha256:..."`` or ``"md5:..."``; None if none was published.
    format : {"svmlight", "csv", "tsv", "text", "npz"}
        csv and tsv have a header and the target in the last column; text is blank-separated with the label first; npz
        holds x_train, y_train, x_test and y_test.
    """

    name: str
    url: str | None = None
    checksum: str | None = None
    format: str = "svmlight"


@dataclass(frozen=True)
class DatasetInfo:
    """A set and its files.

    Parameters
    ----------
    name : str
        Its name.
    task : {"binary", "multiclass", "regression"}
        The kind of target.
    n_train : int
        Rows of the published training part; all rows if there is no test part.
    n_test : int
        Rows of the published test part; 0 if there is none.
    n_features : int
        Columns.
    n_classes : int
        Classes; 0 for regression.
    train, test : tuple of DataFile
        Alternatives for each part, the first one found is used; test is empty if none is published.
    dense : bool
        Whether `load` returns an ndarray unless told otherwise.
    used_by : tuple of str
        The published studies and the tables of this project that use it.
    licence : str
        The terms of use, if known.
    note : str
        A warning for comparisons.
    """

    name: str
    task: str
    n_train: int
    n_test: int
    n_features: int
    n_classes: int
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...] = ()
    dense: bool = False
    used_by: tuple[str, ...] = ()
    licence: str = _LICENCE
    note: str = ""

    @property
    def twin(self) -> str | None:
        """Name of the generated twin, or None."""
        return f"{self.name}-like" if self.name in TWINS else None

    def files(self, part: str) -> tuple[DataFile, ...]:
        """Return the alternatives for a part, ``"train"`` or ``"test"``."""
        return self.train if part == "train" else self.test

    @property
    def source(self) -> str:
        """The page that describes the set."""
        page = {BINARY: "binary.html", MULTICLASS: "multiclass.html", REGRESSION: "regression.html"}[self.task]
        return _PAGE + page if any(file.url for file in self.train) else "described in the data notes of the project"


def names() -> list[str]:
    """Return the names of all sets, sorted."""
    return sorted(_REGISTRY)


def catalog() -> Iterator[DatasetInfo]:
    """Yield every set, by name."""
    for name in names():
        yield _REGISTRY[name]


def find(name: str) -> DatasetInfo:
    """Return a set by name.

    Raises
    ------
    DatasetError
        There is no such set; names the closest ones.
    """
    if name in _REGISTRY:
        return _REGISTRY[name]
    from difflib import get_close_matches

    close = get_close_matches(name, [*names(), *(f"{twin}-like" for twin in TWINS)], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise DatasetError(f"no dataset is called {name!r}: {hint}`dsgd datasets list` shows all of them")


def _libsvm(folder: str, *files: str, checksum: str | None = None) -> tuple[DataFile, ...]:
    """Return alternatives for one part, as the LIBSVM page names them over the years."""
    return tuple(DataFile(file, f"{_PAGE}{folder}/{file}", checksum) for file in files)


def _copy(name: str, sha256: str, format: str = "svmlight") -> tuple[DataFile, ...]:  # noqa: A002
    """Return a copy that is only found locally: the same rows in another packing."""
    return (DataFile(name, None, f"sha256:{sha256}", format),)


_TABLE = (
    DatasetInfo(
        "a9a", BINARY, 32_561, 16_281, 123, 2,
        _copy("a9a.bz2", "1dcb2b4aedea0b5a9e964192dd211675d16cf05ab6477ddd0702d87c1d1af8da") + _libsvm("binary", "a9a"),
        _copy("a9a.t.bz2", "e55725b53c3c47f7053bd3ef12e41555539eac4c0fe989e69345cc4dd0ea6e8d")
        + _libsvm("binary", "a9a.t"),
        used_by=(_ACCURACY,), note="24.1 % positive; the test file's largest column is 122",
    ),
    DatasetInfo(
        "cadata", REGRESSION, 20_640, 0, 8, 0,
        _copy("cadata.tsv.gz", "d383fd58bb79760ffaf0b615942fd47d926a19e75a8f980b79fbe9ad479d9cbf", "tsv")
        + _libsvm("regression", "cadata"),
        dense=True, used_by=(_ACCURACY,), note="unscaled, targets in dollars: standardise before SGD",
    ),
    DatasetInfo(
        "cod-rna", BINARY, 59_535, 271_617, 8, 2, _libsvm("binary", "cod-rna"), _libsvm("binary", "cod-rna.t"),
        dense=True, note="unscaled: standardise before SGD",
    ),
    DatasetInfo(
        "covtype", MULTICLASS, 581_012, 0, 54, 7, _libsvm("multiclass", "covtype.scale01.bz2"), dense=True,
        note="scaled to [0, 1]",
    ),
    DatasetInfo(
        "covtype-binary", BINARY, 581_012, 0, 54, 2, _libsvm("binary", "covtype.libsvm.binary.scale.bz2"), dense=True,
        note="scaled to [0, 1]; labels 1 and 2",
    ),
    DatasetInfo(
        "covtype-subset", MULTICLASS, 92_962, 0, 54, 7,
        _copy("covtype-subset.csv.gz", "d1683af154f7279cfb7221e813d44d904346d4965779c56bfbe7c5c74cebf8fd", "csv"),
        dense=True, used_by=(_ACCURACY,), note="16 % of covtype, scaled to [0, 1]",
    ),
    DatasetInfo(
        "epsilon", BINARY, 400_000, 100_000, 2_000, 2,
        _libsvm("binary", "epsilon_normalized.bz2", "epsilon_normalized.xz"),
        _libsvm("binary", "epsilon_normalized.t.bz2", "epsilon_normalized.t.xz"),
        dense=True, used_by=(_STUDY,), note="rows of length 1; about 12 GB of text",
    ),
    DatasetInfo(
        "gisette", BINARY, 6_000, 1_000, 5_000, 2,
        _libsvm("binary", "gisette_scale.bz2"), _libsvm("binary", "gisette_scale.t.bz2"), dense=True,
    ),
    DatasetInfo("higgs", BINARY, 11_000_000, 0, 28, 2, _libsvm("binary", "HIGGS.xz", "HIGGS.bz2"), dense=True),
    DatasetInfo(
        "ijcnn1", BINARY, 49_990, 91_701, 22, 2,
        _copy("ijcnn1.bz2", "b38a4198ce142d43e96fb86d17b87211feec1f909ac344fa057455c69de29de3")
        + _libsvm("binary", "ijcnn1.bz2"),
        _copy("ijcnn1.t.bz2", "acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24")
        + _libsvm("binary", "ijcnn1.t.bz2"),
        dense=True, used_by=(_STUDY, _ACCURACY),
        note="9.7 % positive: the majority class alone scores 90.3 % on the training part, 90.5 % on the test part",
    ),
    DatasetInfo(
        "kdda", BINARY, 8_407_752, 510_302, 20_216_830, 2,
        _libsvm("binary", "kdda.bz2"), _libsvm("binary", "kdda.t.bz2"), note="KDD Cup 2010, algebra",
    ),
    DatasetInfo(
        "kddb", BINARY, 19_264_097, 748_401, 29_890_095, 2,
        _libsvm("binary", "kddb.bz2"), _libsvm("binary", "kddb.t.bz2"), note="KDD Cup 2010, bridge to algebra",
    ),
    DatasetInfo(
        "letter", MULTICLASS, 15_000, 5_000, 16, 26,
        _copy("letter.scale.bz2", "5abf952504d60cf57a75f663735d73a963c76e4a60d09115736e09ca841e29a9")
        + _libsvm("multiclass", "letter.scale"),
        _copy("letter.scale.t.bz2", "4fe53b480de7b2501fae6df8a92a879e98c434af9166e8b62e1b43f1ad2f9507")
        + _libsvm("multiclass", "letter.scale.t"),
        dense=True,
    ),
    DatasetInfo(
        "mnist", MULTICLASS, 60_000, 10_000, 784, 10,
        _copy("mnist.npz", "b2793453ba2321fcc4b4670a8b8f10fc50f45ba7b9040a82827a13c22afa3dc0", "npz")
        + _libsvm("multiclass", "mnist.bz2"),
        _copy("mnist.npz", "b2793453ba2321fcc4b4670a8b8f10fc50f45ba7b9040a82827a13c22afa3dc0", "npz")
        + _libsvm("multiclass", "mnist.t.bz2"),
        dense=True, note="pixels 0 to 255; the test part of mnist.npz holds the first 3,000 of 10,000 rows",
    ),
    DatasetInfo("mushrooms", BINARY, 8_124, 0, 112, 2, _libsvm("binary", "mushrooms"), note="labels 1 and 2"),
    DatasetInfo(
        "news20", MULTICLASS, 15_935, 3_993, 62_061, 20,
        _copy("news20.bz2", "8c79851f6f5fdc5540a0d04a5ab728353c42d26b84e73f93bda301c06c15ffe9")
        + _libsvm("multiclass", "news20.bz2"),
        _libsvm("multiclass", "news20.t.bz2"),
        used_by=(_ACCURACY,), note="word counts, not normalised",
    ),
    DatasetInfo("news20-binary", BINARY, 19_996, 0, 1_355_191, 2, _libsvm("binary", "news20.binary.bz2")),
    DatasetInfo("phishing", BINARY, 11_055, 0, 68, 2, _libsvm("binary", "phishing"), note="labels 0 and 1"),
    DatasetInfo(
        "rcv1", BINARY, 20_242, 677_399, 47_236, 2,
        _libsvm("binary", "rcv1_train.binary.bz2"), _libsvm("binary", "rcv1_test.binary.bz2"),
    ),
    DatasetInfo("real-sim", BINARY, 72_309, 0, 20_958, 2, _libsvm("binary", "real-sim.bz2")),
    DatasetInfo(
        "reuters-money-fx", BINARY, 7_770, 3_299, 8_315, 2,
        _copy("reuters-money-fx.bz2", "e77a3368662c02caebe0d9cbcc97d856019bcfb33a8e9b7c48e0b51ee4cdfb60"),
        _copy("reuters-money-fx.t.bz2", "3d699b9644a38160bf3228059d18fbfc07474057d8e82d512576a2b82d72e211"),
        note="6.9 % positive",
    ),
    DatasetInfo("susy", BINARY, 5_000_000, 0, 18, 2, _libsvm("binary", "SUSY.xz", "SUSY.bz2"), dense=True),
    DatasetInfo(
        "url", BINARY, 2_396_130, 0, 3_231_961, 2, _libsvm("binary", "url_combined.bz2"),
        note="in the order of 120 days: a random split mixes past and future",
    ),
    DatasetInfo(
        "usps", MULTICLASS, 7_291, 2_007, 256, 10,
        _copy("usps.zip.train.gz", "66ebf231ab51f2cf6ac1a892d0f98ccffee1079d7a5db638c1f11f366046ca16", "text")
        + _libsvm("multiclass", "usps.bz2", checksum="md5:ec16c51db3855ca6c91edd34d0e9b197"),
        _copy("usps.zip.test.gz", "8dacc3c6e136af6c3488de9e5113a7daf140c8c2f1f0b61c54ee02f03f1a962f", "text")
        + _libsvm("multiclass", "usps.t.bz2", checksum="md5:8ea070ee2aca1ac39742fdd1ef5ed118"),
        dense=True, used_by=(_ACCURACY,), note="labels 0 to 9 in the text files, 1 to 10 in LIBSVM's",
    ),
    DatasetInfo(
        "w8a", BINARY, 49_749, 14_951, 300, 2,
        _copy("w8a.bz2", "d7fe0ec5079fb8fb0901f85ecbbf87e05698600dc0326e0edbe222426b438801") + _libsvm("binary", "w8a"),
        _libsvm("binary", "w8a.t"),
        used_by=(_ACCURACY,), note="3 % positive; has rows of zeros only",
    ),
    DatasetInfo(
        "webspam", BINARY, 350_000, 0, 254, 2,
        _libsvm("binary", "webspam_wc_normalized_unigram.svm.xz", "webspam_wc_normalized_unigram.svm.bz2"),
        dense=True, used_by=(_STUDY,), note="unigrams; 60.6 % positive; rows of length 1",
    ),
    DatasetInfo(
        "year", REGRESSION, 463_715, 51_630, 90, 0,
        _libsvm("regression", "YearPredictionMSD.bz2"), _libsvm("regression", "YearPredictionMSD.t.bz2"), dense=True,
        note="unscaled: standardise before SGD",
    ),
)  # fmt: skip

_REGISTRY = {info.name: info for info in _TABLE}
