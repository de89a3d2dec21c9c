"""``python -m simulation SEED`` replays a schedule; ``--runs 1000`` plays that many from there on, in silence."""

import argparse
import sys
import time

from simulation.gangs import play, replay_line, shrunk
from simulation.product import simulated

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("seed", type=int)
parser.add_argument("--runs", type=int, default=1)
parser.add_argument("--first", action="store_true", help="end with the first that fails")
parser.add_argument("--without", type=int, action="append", default=[], help="leave out this client or fault")
asked = parser.parse_args()
n_failed, began = 0, time.monotonic()
with simulated():
    for seed in range(asked.seed, asked.seed + asked.runs):
        trace, error = play(seed, asked.without)
        if asked.runs == 1:
            sys.stdout.write("\n".join(trace) + "\n")
        if error is not None:
            n_failed += 1
            sys.stdout.write(f"{replay_line(seed, asked.without or shrunk(seed))}: {error}\n")
            sys.stdout.flush()
            if asked.first:
                break
rate = (seed - asked.seed + 1) / (time.monotonic() - began)
sys.stdout.write(f"{seed - asked.seed + 1} schedules, {n_failed} failed, {rate:.0f} a second\n")
sys.exit(n_failed > 0)
