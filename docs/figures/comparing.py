"""Draw docs/_static/comparing.png from comparing.jsonl, rows of `dsgd.compare` on rows that differ from rank to rank.

python docs/figures/comparing.py          # draws
python docs/figures/comparing.py --run    # makes the rows again; a9a must be in the folder that DSGD_DATA names
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from shutil import copy

import dsgd
from dsgd import SGDClassifier
from dsgd.compress import TopK
from dsgd.datasets import load
from dsgd.sim import SimulatedCluster
from dsgd.study import read_rows
from dsgd.study.comparison import Comparison
from dsgd.sync import LocalSGD

HERE = Path(__file__).parent
ROWS = HERE / "comparing.jsonl"
METHODS = {
    "local": LocalSGD(64),
    "local, top-k": LocalSGD(64, compressor=TopK(0.05)),
    "SCAFFOLD": "scaffold:every=64",
    "DiLoCo": "diloco:every=64",
    "gossip": "sgp:every=64",
}


def measure() -> None:
    """Run the comparison of docs/comparing.rst."""
    data = load("a9a", "train", n_rows=16_000)
    with tempfile.TemporaryDirectory() as folder:
        dsgd.compare(
            METHODS, data.X, data.y, cluster=SimulatedCluster(16, "1GbE"), partition="dirichlet:0.3", epochs=4,
            estimator=SGDClassifier(learning_rate="constant", eta0=0.02), target_excess=0.05, name=data.name,
            out=folder,
        )  # fmt: skip
        copy(Path(folder) / "rows.jsonl", ROWS)


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="make the rows again")
    if parser.parse_args().run:
        measure()
    found = Comparison(read_rows(ROWS), [], 0.05)
    found.plot(HERE.parent / "_static" / "comparing.png")


if __name__ == "__main__":
    main()
