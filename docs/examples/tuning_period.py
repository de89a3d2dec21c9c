"""Let the ranks find how often to synchronise, and read in the ledger what that was worth.

Eight simulated machines, so that the numbers are the same wherever this runs; with ``client=Client(...)`` the same code
is about a real cluster.

python docs/examples/tuning_period.py
"""

from __future__ import annotations

from dsgd import SGDClassifier
from dsgd.datasets import make_like
from dsgd.sim import SimulatedCluster


def main() -> None:
    """Train with fixed periods and with one that is found, and print."""
    rows = make_like("ijcnn1", n_rows=40_000, seed=0)
    cluster = SimulatedCluster(ranks=8, network="1GbE", seed=0)
    print(f"{'sync':>6} {'virtual s':>10} {'communication':>14} {'MB sent':>8} {'final loss':>11}")
    for sync in (16, 256, 4096, "auto"):
        model = SGDClassifier(
            loss="log_loss", alpha=1e-4, max_iter=8, tol=None, random_state=0, sync=sync, client=cluster
        ).fit(rows.X, rows.y)
        spent = model.ledger_.totals()
        talk_s = spent["wire_s"] + spent["wait_s"]
        share = talk_s / (spent["compute_s"] + spent["encode_s"] + talk_s)
        print(
            f"{sync!s:>6} {model.ledger_.elapsed_s:10.4f} {share:14.1%} {spent['bytes_sent'] / 1e6:8.2f} "
            f"{model.loss_curve_[-1]:11.5f}"
        )
    print("what auto chose:")
    for step in model.sync_history_:
        print(f"  after {step['rows']:>6} rows of a rank: every {step['period']:>5} rows ({step['why']})")


if __name__ == "__main__":
    main()
