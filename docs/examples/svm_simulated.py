"""What a kernel SVM sends on up to sixteen machines, without having them.

The solver runs on simulated ranks: real arithmetic, exact bytes, and a virtual clock that is charged for messages, not
for the arithmetic of an SVM. Elimination takes samples out of the problem while it is solved, on every rank its own.

python docs/examples/svm_simulated.py
"""

from __future__ import annotations

from dsgd.datasets import make_like
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC


def main() -> None:
    """Train on clusters of several sizes and print."""
    rows = make_like("ijcnn1", n_rows=3_000, seed=0)
    print(f"{'network':>7} {'ranks':>6} {'sending s':>10} {'MB sent':>8} {'eliminated':>11} {'gap':>8}")
    for network in ("1GbE", "10GbE"):
        for ranks in (2, 4, 16):
            cluster = SimulatedCluster(ranks=ranks, network=network, seed=0)
            model = SVC(C=100.0, gamma=1.0, elimination="multi", client=cluster).fit(rows.X, rows.y)
            megabytes = model.ledger_.totals()["bytes_sent"] / 1e6
            print(
                f"{network:>7} {ranks:>6} {model.ledger_.elapsed_s:10.3f} {megabytes:8.1f} "
                f"{model.n_eliminated_:>11,} {model.gap_:8.1e}"
            )
    print(f"{len(model.support_)} support vectors, accuracy on the training rows {model.score(rows.X, rows.y):.4f}")


if __name__ == "__main__":
    main()
