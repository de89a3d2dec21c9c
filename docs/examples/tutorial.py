"""From scikit-learn's SGDClassifier in one process to a cluster of many: the code of the tutorial.

python docs/examples/tutorial.py
"""

from __future__ import annotations

from typing import Any

import dask.array as da
from distributed import Client, LocalCluster
from sklearn.linear_model import SGDClassifier as Plain
from sklearn.model_selection import train_test_split

from dsgd import SGDClassifier
from dsgd.datasets import make_like
from dsgd.progress import ProgressEvent, ProgressLine, StopTraining
from dsgd.sim import SimulatedCluster

OPTIONS: dict[str, Any] = {"loss": "log_loss", "alpha": 1e-4, "max_iter": 10, "tol": None, "random_state": 0}


class GoodEnough:
    """Ends training once the loss is low enough."""

    def on_begin(self, estimator: Any) -> None:
        """Nothing to prepare."""

    def on_event(self, estimator: Any, event: Any) -> None:
        """Look at the loss, at most five times a second."""
        if isinstance(event, ProgressEvent) and event.train_loss < 0.2:
            raise StopTraining

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Nothing to clean up."""


def main() -> None:
    """Go through all steps."""
    # start: data
    rows = make_like("ijcnn1", n_rows=20_000, seed=0)
    X, X_test, y, y_test = train_test_split(rows.X, rows.y, random_state=0)
    # end: data

    # start: plain
    plain = Plain(**OPTIONS).fit(X, y)
    print(f"scikit-learn:          {plain.score(X_test, y_test):.4f}")
    # end: plain

    # start: one
    model = SGDClassifier(**OPTIONS).fit(X, y)
    print(f"dsgd, one rank:        {model.score(X_test, y_test):.4f}")
    # end: one

    # start: threads
    model = SGDClassifier(n_jobs=2, sync=256, **OPTIONS).fit(X, y)
    print(f"two threads:           {model.score(X_test, y_test):.4f}")
    print(model.ledger_.summary())
    # end: threads

    # start: periods
    for every in (4, 64, 1024):
        model = SGDClassifier(n_jobs=2, sync=every, **OPTIONS).fit(X, y)
        spent = model.ledger_.totals()
        talk_s = spent["wire_s"] + spent["wait_s"]
        share = talk_s / (spent["compute_s"] + spent["encode_s"] + talk_s)
        sent = f"{share:4.0%} communication, {spent['bytes_sent'] / 1e6:6.3f} MB sent"
        print(f"every {every:>4} rows:       {model.score(X_test, y_test):.4f}, {sent}")
    # end: periods

    # start: cluster
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        client = Client(cluster)
        model = SGDClassifier(client=client, sync=256, **OPTIONS)
        model.set_callbacks(ProgressLine()).fit(X, y)
        print(f"two worker processes:  {model.score(X_test, y_test):.4f}")
        # end: cluster

        # start: dask
        chunks = da.from_array(X, chunks=(5_000, -1)), da.from_array(y, chunks=5_000)
        model.set_params(max_iter=1000).set_callbacks(GoodEnough()).fit(*chunks)
        print(f"dask arrays:           {model.score(X_test, y_test):.4f}, {model.n_iter_} of 1000 epochs")
        # end: dask
        client.close()

    # start: many
    for network in ("1GbE", "10GbE"):
        many = SimulatedCluster(ranks=16, network=network, seed=0)
        model = SGDClassifier(client=many, sync=256, **OPTIONS).fit(X, y)
        score, seconds = model.score(X_test, y_test), model.ledger_.elapsed_s
        print(f"sixteen on {network:>5}:      {score:.4f}, {1000 * seconds:.0f} virtual ms")
    # end: many

    # start: back
    back = model.to_sklearn()
    print(f"{type(back).__module__}: {back.score(X_test, y_test):.4f}")
    # end: back


if __name__ == "__main__":
    main()
