"""What the import of an estimator loads, and what a worker loads to train: everybody waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What scikit-learn has loaded of these is forgotten, so that nobody of ours loads it unseen.
LOADS = """
import sys
{peer}
others = "bokeh", "dask", "distributed", "matplotlib", "pandas", "pyarrow", "rich", "torch"
for name in [name for name in sys.modules if name.startswith(others)]:
    del sys.modules[name]
before = set(sys.modules)
{ours}
print(*sorted(set(sys.modules) - before))
"""
ESTIMATORS = {
    "from dsgd import SGDClassifier": "from sklearn.linear_model import SGDClassifier",
    "from dsgd.linear_model import LogisticRegression": "from sklearn.linear_model import LogisticRegression",
    "from dsgd.svm import LinearSVC": "from sklearn.svm import LinearSVC",
    "from dsgd.svm import SVC": "from sklearn.svm import SVC",
}
# More of scikit-learn and scipy is theirs; PyYAML is for the settings of Numba.
PACKAGES = {"_yaml", "dsgd", "llvmlite", "numba", "scipy", "sklearn", "yaml"}
# Few fits need any of these.
SELDOM = tuple(
    f"dsgd.{name}" for name in ("collectives.means", "comm.topology", "preprocessing", "sim", "study", "sync.names")
)


@pytest.mark.parametrize("ours", ESTIMATORS)
def test_an_import_loads_numba_and_no_other_package_beside_those_of_scikit_learn(ours: str) -> None:
    """An estimator is imported without pandas, Dask and matplotlib, and without what few fits need."""
    program = LOADS.format(peer=ESTIMATORS[ours], ours=ours)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    loaded = done.stdout.split()
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names <= PACKAGES
    assert [name for name in loaded if name.startswith(SELDOM)] == []


# In a process of its own: new workers load the main module of their parent, and what that has imported.
FITS = """
import sys, warnings
import numpy as np
from distributed import Client, LocalCluster
from dsgd import SGDClassifier, SGDRegressor
from dsgd.svm import LinearSVC, LinearSVR

HEAVY = ("sklearn", "pandas", "scipy.stats", "scipy.optimize", "scipy.special", "dsgd.sim", "rich", "pyarrow")
warnings.simplefilter("ignore")
X = np.random.default_rng(0).standard_normal((200, 4))
with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
    for kind in (SGDClassifier, SGDRegressor, LinearSVC, LinearSVR):
        kind(client=client, max_iter=20).fit(X, X[:, 0] > 0)
        (loaded,) = client.run(lambda: set(sys.modules)).values()
        print(kind.__name__, "dsgd.kernels" in loaded, *loaded.intersection(HEAVY))
"""


@pytest.mark.slow
def test_a_worker_that_trains_loads_no_estimators() -> None:
    """New workers train linear models and linear machines without scikit-learn, pandas, scipy.stats and simulators."""
    done = subprocess.run([sys.executable, "-c", FITS], capture_output=True, text=True, timeout=120, check=True)
    kinds = ("SGDClassifier", "SGDRegressor", "LinearSVC", "LinearSVR")
    assert done.stdout.splitlines() == [f"{kind} True" for kind in kinds]
