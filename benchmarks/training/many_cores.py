"""SGD on 1, 2, 4, ... cores: whole fits on threads and on worker processes, beside one thread and scikit-learn's.

All counts of a way take turns, and each is compared with one rank of the same turn. Workers have their rows already.
Two periods: the usual one, and models that are averaged once an epoch, which shows what waiting for each other costs.

    python -m benchmarks run many_cores [--cores 16] [--only "dense 22"] [--scale 4]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier as Peer

from benchmarks.common.measuring import Options, Rows, in_turns, median_s, ratio, table, timed, waiting_share, workers
from benchmarks.svm.cores import counts
from benchmarks.training.whole_fit import SHAPES, nbytes_of
from dsgd import SGDClassifier
from dsgd.comm.memory.cores import count_cores

PAGE = "performance"
QUICK_S = 60
QUICK = "a twentieth of the rows, two cores, one turn"
REPEATS = (3, 1)

CASES = SHAPES
PERIODS: dict[str, dict[str, Any]] = {"usual": {}, "an epoch": {"sync": "epoch"}}


def blocks_on(client: Any, homes: Sequence[str], X: Any, y: Any) -> list[Any]:
    """Return blocks of as many rows, one on each of some workers."""
    edges = np.linspace(0, len(y), len(homes) + 1).astype(int)
    return [
        client.scatter([(X[start:stop], y[start:stop])], workers=[home], hash=False)[0]
        for home, (start, stop) in zip(homes, pairwise(edges), strict=True)
    ]


OPTIONS = {
    "--cores": {"type": int, "default": max(2, count_cores()), "help": "the most; all by default"},
    "--epochs": {"type": int, "default": 10, "metavar": "N", "help": "epochs of a fit (default: %(default)s)"},
    "--scale": {"type": float, "default": 1.0, "metavar": "K", "help": "times as many rows"},
}


def run(options: Options, rows: Rows) -> None:
    cores = 2 if options.quick else options.cores
    heads = ("way", "period", "cores", "seconds:.3f", "times one:.2f", "times scikit-learn:.1f", "waiting:.1%", "score")
    for case in options.only:
        thousands, build = SHAPES[case]
        X, y = build(int(thousands * (50 if options.quick else 1000 * options.scale)))
        usual = {"max_iter": options.epochs, "tol": None, "random_state": 0}
        peer = timed(Peer(**usual).fit, X, y)
        title = f"{case}: {len(y)} rows, {nbytes_of(X) / 1e6:.0f} MB, {options.epochs} epochs"
        with table(title, *heads) as line:
            line("scikit-learn", None, 1, peer.seconds, None, 1.0, None, _score(peer.value, X, y))
            for (way, period), fits in ways(cores, X, y, usual):
                found = in_turns(fits, options.repeats, warm_up=1)
                one = [turn.seconds for turn in found[1]]
                for k, turns in found.items():
                    seconds, model = [turn.seconds for turn in turns], turns[-1].value
                    waiting = waiting_share(model.ledger_.totals()) if k > 1 else None
                    times, score = ratio(one, seconds), _score(model, X, y)
                    line(way, period, k, median_s(turns), times, peer.seconds / median_s(turns), waiting, score)
                    about = {"case": case, "n": len(y), "nbytes": nbytes_of(X), "epochs": options.epochs}
                    found_out = {"seconds": seconds, "waiting": waiting, "score": score, "peer_s": peer.seconds}
                    rows.add(**about, way=way, period=period, cores=k, **found_out)


def ways(cores: int, X: Any, y: Any, usual: dict[str, Any]) -> Iterator[tuple[tuple[str, str], dict[int, Any]]]:
    """Yield ((way, period), fits by their cores); workers live until the next is asked for."""
    models = {name: partial(SGDClassifier, **usual, **sync) for name, sync in PERIODS.items()}
    for period, model in models.items():
        yield ("threads", period), {k: partial(model(n_jobs=k).fit, X, y) for k in counts(cores)}
    with workers(cores, set_as_default=False) as client:
        homes = sorted(client.nthreads())
        blocks = {k: blocks_on(client, homes[:k], X, y) for k in counts(cores)}
        for period, model in models.items():
            yield (
                ("workers", period),
                {k: partial(model(client=client, n_jobs=k).fit, blocks[k]) for k in counts(cores)},
            )


def _score(model: Any, X: Any, y: Any) -> float:
    return float(np.mean(model.predict(X[:100_000]) == y[:100_000]))
