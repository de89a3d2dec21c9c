"""A worker that never answers for problem 2, to see that the soak continues without it."""

from __future__ import annotations

import json
import sys
import time

if __name__ == "__main__":
    _, first, stop, step = (int(word) for word in sys.argv[1:5])
    for number in range(first, stop, step):
        sys.stdout.write(json.dumps({"begins": number}) + "\n")
        sys.stdout.flush()
        if number == 2:
            time.sleep(60)
        sys.stdout.write(json.dumps({"number": number, "outcome": "converged", "failures": []}) + "\n")
