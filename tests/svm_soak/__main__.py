"""``make soak-svm``, or ``PYTHONPATH=tests python -m svm_soak --runs 100000 --seed 0 --first 0 --processes 2``.

Problem ``n`` of a seed is the same wherever it is drawn, so ``--first n --runs 1`` replays it alone.
"""

from __future__ import annotations

import argparse
import sys

from svm_soak.soak import soak


def main() -> int:
    """Run the soak; return how many problems failed, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="problems to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--most-seconds", type=float, default=60.0, help="a problem that takes longer hangs")
    asked = parser.parse_args()
    numbers = range(asked.first, asked.first + asked.runs)
    summary = soak(asked.seed, numbers, n_processes=asked.processes, most_s=asked.most_seconds)
    sys.stdout.write(f"{summary}\n")
    return min(1, len(summary.failures))


if __name__ == "__main__":
    sys.exit(main())
