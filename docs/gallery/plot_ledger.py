"""
Where the seconds of a fit go
=============================

Two worker processes of Dask train a linear SVM, once exchanging after every 16 rows, once
after every 1,024. The ledger of each model says what its ranks did: computing, packing,
moving bytes, or waiting for each other.

A script that starts processes keeps what it does behind ``if __name__ == "__main__"``,
because each of them imports it.
"""

import matplotlib.pyplot as plt
from dask.distributed import Client
from sklearn.base import clone

from dsgd import SGDClassifier
from dsgd.datasets import make_like

PHASES = ("compute_s", "encode_s", "wire_s", "wait_s", "control_s")
PERIODS = (16, 64, 256, 1024)


def train(client, rows):
    """Return the fastest of five fits for each period; on a busy machine, ranks wait longer."""
    linear_svm = SGDClassifier(
        loss="hinge", alpha=1e-4, max_iter=10, tol=None, random_state=0, client=client
    )
    fastest = {}
    for period in PERIODS:
        fits = [clone(linear_svm).set_params(sync=period).fit(rows.X, rows.y) for _ in range(5)]
        fastest[period] = min(fits, key=lambda model: model.ledger_.elapsed_s)
    return fastest


def draw(models):
    """Stack the phases of all ranks, a bar for each period."""
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    names = [f"every {period}" for period in models]
    below = [0.0] * len(models)
    for phase in PHASES:
        seconds = [model.ledger_.totals()[phase] for model in models.values()]
        axis.barh(names, seconds, left=below, label=phase.removesuffix("_s"))
        below = [low + more for low, more in zip(below, seconds, strict=True)]
    axis.set(xlabel="seconds, both ranks together", title="A fit of 10 epochs over 50,000 rows")
    axis.invert_yaxis()
    figure.legend(ncols=len(PHASES), loc="outside lower center", fontsize="small")
    plt.show()


if __name__ == "__main__":
    rows = make_like("ijcnn1", n_rows=50_000, seed=0)
    with Client(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as client:
        models = train(client, rows)
    for period, model in models.items():
        print(f"every {period:>4} rows: {model.score(rows.X, rows.y):.4f} accurate")
    print(models[1024].ledger_.summary())
    draw(models)
