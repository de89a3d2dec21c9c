"""What a worker loads to train; processes of a host that load more than they need share its cores for seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
