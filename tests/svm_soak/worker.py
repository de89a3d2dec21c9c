"""Judges problems one after the other and says so in lines of JSON: which begins, and what came of it.

``python -m svm_soak.worker SEED FIRST STOP STEP``; the reader of the lines sees when one takes too long.
"""

from __future__ import annotations

import json
import sys
import traceback

from svm_soak.judge import judge
from svm_soak.problems import draw


def main(seed: int, first: int, stop: int, step: int) -> None:
    """Judge every `step`-th problem from `first` to `stop`."""
    for number in range(first, stop, step):
        _tell({"begins": number})
        problem = draw(seed, number)
        try:
            verdict = judge(problem)
        except Exception:  # whatever a fit raises that is not meant to be raised is what the soak looks for
            _tell({"number": number, "outcome": "raised", "failures": [traceback.format_exc()]})
            continue
        found = {"number": number, "outcome": verdict.outcome, "failures": verdict.failures}
        found |= {"seconds": verdict.seconds, "ratio": verdict.ratio, "loose": verdict.is_loose}
        found |= {"rows": verdict.n_rows, "ties": verdict.n_ties, "corrected": verdict.n_corrected}
        _tell(found)


def _tell(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:5]))
