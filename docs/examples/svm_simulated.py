"""What an SVM would send on sixteen machines, without having them.

The solver runs on sixteen simulated ranks: real arithmetic, virtual seconds, exact bytes. Run it with

python docs/examples/svm_simulated.py
"""

from __future__ import annotations

from dsgd.datasets import make_like
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC


def main() -> None:
    """Train with and without elimination and print."""
    rows = make_like("ijcnn1", n_rows=1_500, seed=0)
    print(f"{'network':>8} {'elimination':>12} {'virtual s':>10} {'MB sent':>8} {'kernel values':>14} {'support':>8}")
    for network in ("1GbE", "10GbE"):
        for elimination in ("none", "aggressive"):
            cluster = SimulatedCluster(ranks=16, network=network, seed=0)
            model = SVC(C=10.0, gamma=1.0, elimination=elimination, client=cluster).fit(rows.X, rows.y)
            sent = model.ledger_.totals()["bytes_sent"] / 1e6
            print(
                f"{network:>8} {elimination:>12} {model.ledger_.elapsed_s:10.3f} {sent:8.1f} "
                f"{model.n_kernel_evaluations_:14,} {len(model.support_):8}"
            )
    # Elimination changes what it costs, not what comes out.
    print(f"accuracy on the training rows: {model.score(rows.X, rows.y):.4f}, gap {model.gap_:.1e}")


if __name__ == "__main__":
    main()
