"""Unchanged scikit-learn scripts, whole processes: as they are, by `dsgd.accel`, and by scikit-learn-intelex.

The scripts below do what people do with these estimators: search for parameters, one machine for each class, find
novelties, draw a learning curve, calibrate a classifier of text. With ``--scripts FOLDER`` every script of a folder
runs too, such as examples of scikit-learn; pictures go nowhere. The ways take turns. Compiled code is on disk, bytecode
as well as kernels, as it is where packages are installed: ``python script.py``, ``python -m dsgd.accel script.py``,
``python -m sklearnex script.py``.

    python -m benchmarks run accel --scripts scikit-learn/examples/svm
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from benchmarks.common.measuring import Options, Rows, table, timed

PAGE = "accel"
QUICK_S = 40
QUICK = "each script once"
REPEATS = (3, 1)

# It takes about two seconds, all of them imports: there is nothing to be faster at, and it is in no mean.
CONTROL = "nothing to gain"
CASES = {
    "search": """
        from sklearn.datasets import make_classification
        from sklearn.model_selection import GridSearchCV
        from sklearn.svm import SVC
        X, y = make_classification(10000, 20, n_informative=10, random_state=0)
        grid = {"C": [1.0, 10.0, 100.0], "gamma": ["scale", 0.1]}
        search = GridSearchCV(SVC(), grid, cv=3).fit(X, y)
        print(search.best_params_, round(search.best_score_, 3))
    """,
    "one-vs-rest": """
        from sklearn.datasets import make_blobs
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.svm import SVC
        X, y = make_blobs(20000, 16, centers=26, cluster_std=7.0, random_state=0)
        model = OneVsRestClassifier(SVC(C=10.0)).fit(X[:15000], y[:15000])
        print(round(model.score(X[15000:], y[15000:]), 3))
    """,
    "novelty": """
        import numpy as np
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import OneClassSVM
        rng = np.random.default_rng(0)
        X = StandardScaler().fit_transform(rng.standard_normal((60000, 10)) @ rng.standard_normal((10, 10)))
        model = OneClassSVM(nu=0.1, gamma=0.05).fit(X[:40000])
        print(round(float((model.predict(X[40000:]) < 0).mean()), 3))
    """,
    "learning curve": """
        from sklearn.datasets import make_friedman1
        from sklearn.model_selection import learning_curve
        from sklearn.svm import SVR
        X, y = make_friedman1(6000, noise=0.5, random_state=0)
        sizes, _, scores = learning_curve(SVR(C=10.0), X, y, train_sizes=[0.25, 0.5, 1.0], cv=5)
        print([round(value, 3) for value in scores.mean(axis=1)])
    """,
    "text": """
        import numpy as np, scipy.sparse as sp
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.svm import LinearSVC
        rng = np.random.default_rng(0)
        X = sp.random(300000, 20000, 0.003, "csr", rng=rng)
        w = rng.standard_normal(20000)
        y = (X @ w + 0.3 * rng.standard_normal(300000)) > 0
        model = CalibratedClassifierCV(LinearSVC(C=1.0), cv=5).fit(X[:200000], y[:200000])
        print(round(model.score(X[200000:], y[200000:]), 3))
    """,
    CONTROL: """
        from sklearn.datasets import load_iris
        from sklearn.model_selection import cross_val_score
        from sklearn.svm import SVC
        print(cross_val_score(SVC(), *load_iris(return_X_y=True), cv=5).mean().round(3))
    """,
}
WAYS = {"scikit-learn": [], "dsgd.accel": ["-m", "dsgd.accel"]}
if find_spec("sklearnex"):
    WAYS["intelex"] = ["-m", "sklearnex"]


OPTIONS = {
    "--scripts": {"type": Path, "metavar": "FOLDER", "help": "run the scripts of this folder too"},
}


def run(options: Options, rows: Rows) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scripts: dict[str, Path] = {}
        for name in options.only:
            path = scripts[name] = Path(folder) / f"{name.replace(' ', '_')}.py"
            path.write_text("\n".join(line[8:] for line in CASES[name].splitlines()), encoding="utf-8")
        if options.scripts is not None:
            scripts |= {path.stem: path for path in sorted(options.scripts.glob("*.py"))}
        _compare(scripts, options.repeats, rows)


def _compare(scripts: dict[str, Path], repeats: int, rows: Rows) -> None:
    ratios: dict[str, list[float]] = {way: [] for way in WAYS if way != "scikit-learn"}
    heads = "script", "scikit-learn (s):.2f", *(f"{way}, times as fast:.2f" for way in ratios), "the same output"
    with table("whole processes, medians", *heads) as line:
        for name, path in scripts.items():
            _seconds(WAYS["dsgd.accel"], path)  # compiles what is new
            found: dict[str, list[float]] = {way: [] for way in WAYS}
            said: dict[str, str] = {}
            for _ in range(repeats):
                for way, start in WAYS.items():
                    seconds, said[way] = _seconds(start, path)
                    found[way].append(seconds)
                    rows.add(script=name, way=way, seconds=seconds)
            plain = median(found["scikit-learn"])
            gains = [plain / median(found[way]) for way in ratios]
            if plain > 2.0 and name != CONTROL:
                for way, gain in zip(ratios, gains, strict=True):
                    ratios[way].append(gain)
            line(name, plain, *gains, "yes" if len(set(said.values())) == 1 else "no")
    for way, gains in ratios.items():
        if gains:
            mean = math.exp(sum(map(math.log, gains)) / len(gains))
            print(f"{way}: {mean:.2f} times as fast, the geometric mean of {len(gains)} scripts that take over 2 s")


def _seconds(start: list[str], script: Path) -> tuple[float, str]:
    environment = {**os.environ, "MPLBACKEND": "agg"}
    # scikit-learn was installed with its bytecode: a checkout would be compiled anew in every process.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, *start, str(script)]
    done = timed(subprocess.run, command, env=environment, capture_output=True, text=True, check=True)
    return done.seconds, done.value.stdout
