"""One model three times: on a thread, on two threads, on two worker processes.

The first line of each block is what changes; everything else is scikit-learn's. Run it with

python docs/examples/quickstart.py
"""

from __future__ import annotations

from distributed import Client, LocalCluster

from dsgd import SGDClassifier
from dsgd.datasets import make_like
from dsgd.progress import ProgressLine


def main() -> None:
    """Train and print."""
    rows = make_like("ijcnn1", n_rows=20_000, seed=0)
    X, y = rows.X, rows.y
    options = {"loss": "log_loss", "alpha": 1e-5, "max_iter": 20, "tol": None, "random_state": 0}

    alone = SGDClassifier(**options).fit(X, y)
    print(f"one rank:               {alone.score(X, y):.4f}")

    threads = SGDClassifier(n_jobs=2, sync=256, **options).fit(X, y)
    print(f"two threads:            {threads.score(X, y):.4f}")

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        # The live line goes to a terminal; the page /dsgd of the dashboard shows the same.
        model = SGDClassifier(client=client, sync=256, **options).set_callbacks(ProgressLine())
        model.fit(X, y)
    print(f"two worker processes:   {model.score(X, y):.4f}")

    print(model.ledger_.summary())


if __name__ == "__main__":
    main()
