"""What must not change while code is moved: bits of models, bytes of fits, and about the seconds.

``make oracle`` keeps all three in build/oracle.json the first time, and compares with them after that. A change that
alters bits on purpose removes the file. Sums of BLAS differ from machine to machine, so that the file is no part of the
tree.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from dask.distributed import Client, LocalCluster

from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.errors import DsgdError
from dsgd.kernel_approximation import Nystroem
from dsgd.linear_model import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge
from dsgd.local import SVRG, Adam
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, OneClassSVM
from dsgd.sync import LocalSGD
from members import MEMBERS

_RNG = np.random.default_rng(0)
X = _RNG.standard_normal((3000, 6)).astype(np.float32)
MARGIN = X @ np.array([2.0, -1.0, 0.5, 0.0, 1.0, -0.5], np.float32) + 0.5 * _RNG.standard_normal(3000)
Y, Y3 = (MARGIN > 0).astype(int), np.digitize(MARGIN, [-1.0, 1.0])
S = sp.random(3000, 400, 0.03, "csr", np.float32, random_state=0)
WIDE = _RNG.standard_normal((20_000, 300)).astype(np.float32)
WIDE_Y = (WIDE[:, :5].sum(1) > 0).astype(int)

FIT: dict[str, Any] = {"max_iter": 3, "tol": None, "random_state": 0}
#: How much longer than before a fit may take without being named; the machine is shared.
SLOWER = 1.25


def digest(model: Any) -> str:
    """Return a short hash of all arrays that a fit has left."""
    code = hashlib.sha256()
    for name in ("coef_", "intercept_", "dual_coef_", "support_", "probA_", "offset_", "n_iter_"):
        value = getattr(model, name, None)
        if value is not None:
            value = value.toarray() if sp.issparse(value) else np.asarray(value)
            code.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return code.hexdigest()[:16]


def told(model: Any) -> dict[str, Any]:
    """Return what is compared of a fitted model."""
    found: dict[str, Any] = {"bits": digest(model)}
    ledger = getattr(model, "ledger_", None)
    if ledger is not None:
        found.update({what: int(ledger.totals()[what]) for what in ("bytes_sent", "messages")})
    return found


def fits(client: Client, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names, and what makes a fitted model."""
    for member in MEMBERS:
        strategy = member.strategy
        waits = strategy.talks != "by mailbox" and type(strategy).__name__ != "Hogwild"
        for where in [{"client": SimulatedCluster(4)}, *([{"n_jobs": 3}] if waits else [])]:
            yield (
                f"{strategy!r}, {next(iter(where))}",
                lambda s=strategy, w=where: SGDClassifier(sync=s, **FIT, **w).fit(X, Y),
            )
    for strategy in (member.strategy for member in MEMBERS[::4]):
        if strategy.talks != "by mailbox" and type(strategy).__name__ != "Hogwild":
            over_tcp = SGDClassifier(sync=strategy, client=Gang(client, transport="tcp"), n_jobs=2, **FIT)
            yield f"{strategy!r}, tcp", lambda model=over_tcp: model.fit(X, Y)
    for loss in ("hinge", "log_loss", "modified_huber", "squared_hinge", "perceptron"):
        yield f"sgd {loss}, sparse", lambda loss=loss: SGDClassifier(loss=loss, **FIT).fit(S, Y)
    for options in (
        {"average": True},
        {"penalty": "elasticnet"},
        {"optimizer": Adam()},
        {"optimizer": SVRG(), "learning_rate": "constant", "eta0": 0.01},
        {"sampling": "importance"},
        {"early_stopping": True},
        {"class_weight": "balanced", "learning_rate": "adaptive", "eta0": 0.1},
    ):
        yield f"sgd {options}", lambda options=options: SGDClassifier(**options, **FIT).fit(X, Y3)
    on_disk = SGDClassifier(client=Gang(out_of_core=True), **FIT)
    yield "sgd {'out_of_core': True}", lambda: on_disk.fit(X, Y3)
    for loss in ("squared_error", "huber", "epsilon_insensitive"):
        yield f"sgd {loss}", lambda loss=loss: SGDRegressor(loss=loss, **FIT).fit(X, MARGIN)
    yield "sgd weights", lambda: SGDClassifier(**FIT).fit(X, Y, sample_weight=1.0 + (Y == 0))
    yield "sgd partial_fit", lambda: SGDClassifier(random_state=0).partial_fit(X, Y, classes=[0, 1]).partial_fit(X, Y)

    def resumed() -> Any:
        options = {**FIT, "sync": LocalSGD(64), "n_jobs": 2}
        SGDClassifier(**options, client=Gang(checkpoint=str(folder / "kept"))).fit(X, Y)
        return SGDClassifier(**{**options, "max_iter": 5}, client=Gang(resume_from=str(folder / "kept"))).fit(X, Y)

    yield "sgd resumed", resumed
    few, few_y, few_3, few_m = X[:800], Y[:800], Y3[:800], MARGIN[:800]
    for name, model, targets in (
        ("svc", SVC(), few_y),
        ("svc three classes", SVC(probability=True, random_state=0), few_3),
        ("svc linear", SVC(kernel="linear"), few_y),
        ("svc poly", SVC(kernel="poly"), few_3),
        ("nu svc", NuSVC(nu=0.2), few_3),
        ("svr", SVR(), few_m),
        ("one class", OneClassSVM(nu=0.1), None),
        ("linear svc", LinearSVC(random_state=0), few_y),
        ("linear svc hinge", LinearSVC(loss="hinge", random_state=0), few_3),
        ("linear svc l1", LinearSVC(penalty="l1", dual=False, random_state=0), few_y),
        ("linear svr", LinearSVR(random_state=0), few_m),
        ("logistic", LogisticRegression(), few_3),
        ("logistic l1", LogisticRegression(l1_ratio=1.0), few_y),
        ("ridge", Ridge(), few_m),
        ("lasso", Lasso(0.01), few_m),
        ("elastic net", ElasticNet(0.01), few_m),
        ("poisson", PoissonRegressor(), np.abs(few_m)),
    ):
        yield name, lambda model=model, targets=targets: model.fit(few, targets)
    yield "svc sparse", lambda: SVC().fit(S[:800], few_y)
    yield "svc on two workers", lambda: SVC(client=client).fit(X, Y)
    yield "linear svc on two workers", lambda: LinearSVC(client=client, random_state=0).fit(X, Y)
    for name, slow in (
        ("seconds: sgd", lambda: SGDClassifier(**FIT).fit(WIDE, WIDE_Y)),
        ("seconds: sgd, two threads", lambda: SGDClassifier(**FIT, n_jobs=2).fit(WIDE, WIDE_Y)),
        ("seconds: sgd, every 16 rows", lambda: SGDClassifier(**FIT, n_jobs=2, sync=16).fit(WIDE, WIDE_Y)),
        ("seconds: sgd, workers", lambda: SGDClassifier(**FIT, client=client, sync=256).fit(WIDE, WIDE_Y)),
        ("seconds: small sgd", lambda: [SGDClassifier(**FIT).fit(X[:200], Y[:200]) for _ in range(50)][-1]),
        ("seconds: svc", lambda: SVC().fit(WIDE[:2000], WIDE_Y[:2000])),
        ("seconds: svc, 3000 x 6", lambda: SVC().fit(X, Y)),
        ("seconds: svr", lambda: SVR().fit(X, MARGIN)),
        ("seconds: linear svc", lambda: LinearSVC(random_state=0).fit(WIDE, WIDE_Y)),
        ("seconds: logistic", lambda: LogisticRegression().fit(WIDE, WIDE_Y)),
        ("seconds: lasso", lambda: Lasso(0.01).fit(WIDE, WIDE[:, 0])),
        ("seconds: features", lambda: Nystroem(n_components=300, random_state=0).fit(WIDE[:2000])),
    ):
        yield name, slow


def torch_model() -> dict[str, Any]:
    """Return what is compared of a network trained on two threads."""
    import torch

    from dsgd.torch import TorchClassifier

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    model = TorchClassifier(network, max_epochs=2, random_state=0, n_jobs=2).fit(X, Y)
    return {"bits": hashlib.sha256(np.ascontiguousarray(model.predict_proba(X[:50])).tobytes()).hexdigest()[:16]}


def measure() -> dict[str, Any]:
    """Return what is compared, of all fits."""
    found: dict[str, Any] = {"torch": torch_model()}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for name, fit in fits(client, Path(folder)):
            times = []
            try:
                for _ in range(4 if name.startswith("seconds") else 1):
                    begin = time.perf_counter()
                    model = fit()
                    times.append(time.perf_counter() - begin)
            except (DsgdError, TypeError) as error:
                found[name] = {"error": type(error).__name__}
                continue
            found[name] = told(model)
            if len(times) > 1:
                found[name]["seconds"] = min(times)
            print(".", end="", flush=True)
    print()
    return found


def main(path: Path) -> int:
    """Keep what there is now, or compare with what was kept; return how many models or bytes differ."""
    warnings.simplefilter("ignore")
    found = measure()
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} fits are kept in {path}")
        return 0
    before, n_other = json.loads(path.read_text()), 0
    for name in [*before, *(found.keys() - before.keys())]:
        old, new = before.get(name, {}), found.get(name, {})
        for what in old.keys() | new.keys():
            if what == "seconds" and new.get(what, 0.0) > SLOWER * old.get(what, 0.0):
                print(f"slower: {name}: {old.get(what)} -> {new.get(what)} s")
            elif what != "seconds" and old.get(what) != new.get(what):
                n_other += 1
                print(f"other {what}: {name}: {old.get(what)} -> {new.get(what)}")
    print(f"{n_other} of {len(found)} fits differ")
    return min(n_other, 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
