"""Data sets: downloads, svmlight readers, and generated sets with a known separator."""

if __name__ != "dsgd.datasets":  # a folder named datasets on sys.path would hide Hugging Face's package
    raise ImportError("this folder installs as dsgd.datasets: run `pip install -e .` and `import dsgd.datasets`")

from dsgd.datasets.files import DataFile, DatasetInfo, cache_folder, catalog, fetch, find, locate, names
from dsgd.datasets.generators import TWINS, GeneratedSet, Twin, make_classification_twin, make_like
from dsgd.datasets.loading import Dataset, load, load_or_generate
from dsgd.datasets.splits import SPLITS, check_split, split_rows
from dsgd.datasets.svmlight import load_svmlight, read_svmlight, write_svmlight

__all__ = [
    "SPLITS",
    "TWINS",
    "DataFile",
    "Dataset",
    "DatasetInfo",
    "GeneratedSet",
    "Twin",
    "cache_folder",
    "catalog",
    "check_split",
    "fetch",
    "find",
    "load",
    "load_or_generate",
    "load_svmlight",
    "locate",
    "make_classification_twin",
    "make_like",
    "names",
    "read_svmlight",
    "split_rows",
    "write_svmlight",
]
