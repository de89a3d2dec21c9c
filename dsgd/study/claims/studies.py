"""Claims that have a study: its grid, small enough for a minute or so, and its own summary and claims.

Where a claim is about time, ranks are simulated if the study allows it: seconds are then the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dsgd.report import Claim, is_busy, origin
from dsgd.study import (
    collectives,
    dnn,
    elimination,
    features,
    gtopk,
    msf,
    scaling,
    speedup,
    strategies,
    transports,
    tuning,
    variance,
)
from dsgd.study.frame.data import DataSource, cluster_of
from dsgd.study.frame.rows import Row
from dsgd.study.frame.study import Study, run_study, study_page
from dsgd.study.published import STATEMENTS, Measure, Say, statements
from dsgd.study.svm_problems import PROBLEMS
from dsgd.study.svm_rounds import RunSettings, check_process_claim, check_round_claims, observe

_SEEDS: Final = (0, 1, 2, 3, 4)
_CALIBRATIONS: Final = 4


def _declared(study: Study, package: str = "", times: int = 1) -> Any:
    """Return what runs a study in a folder, several times if asked, and returns its claims; none without a package."""

    def measured(out: Path, say: Say) -> list[Claim]:
        rows: list[Row] = []
        if package and find_spec(package) is None:
            return []
        for number in range(times):
            head = f"calibration {number + 1} of {times}, " if times > 1 else ""
            for made, run in enumerate(run_study(study, out / str(number) if times > 1 else out), 1):
                rows.append(run.row)
                say(f"{head}{made} of {study.count()} runs")
        return list(study_page(study, rows).claims)

    return measured


_PERIOD: Final = msf.STUDY.replace(
    data=(
        # As many rows of a rank, or more, as the longest period.
        DataSource("ijcnn1-like", 28_000, 7_000), DataSource("webspam-like", 16_384, 4_000),
        DataSource("epsilon-like", 16_384, 2_000),
    ),
    ranks=(32,), every=(1, 16, 64, 512), seeds=_SEEDS, network="InfiniBand",
)  # fmt: skip
_STRATEGIES: Final = strategies.STUDY.demo().replace(data=(DataSource("webspam-like", 4_000, 4_000),), seeds=_SEEDS[:3])
_AUTO: Final = tuning.STUDY.replace(
    data=(DataSource("ijcnn1-like", 14_000, 10_000), DataSource("webspam-like", 8_000, 4_000)),
    every=(16, 64, 256, 1024, 4096), rules=("auto",), network="10GbE", seeds=_SEEDS, repeats=1,
)  # fmt: skip
_SOONER: Final = speedup.STUDY.replace(data=(DataSource("higgs-like", 2_000_000, 50_000),), epochs=(2,), seeds=_SEEDS)
_NOISE: Final = variance.STUDY.replace(sizes=(1_000, 1_000_000), repeats=25)
_FEATURES: Final = features.STUDY.replace(
    data=(DataSource("covtype-subset-clusters", 2_000, 2_000), DataSource("ijcnn1-clusters", 2_000, 2_000)),
    rows_per_agent=(10, 100, 1_600, 6_400), steps=2_000, components=(100, 300, 1_000, 3_000),
    epochs=(40,), seeds=_SEEDS,
)  # fmt: skip
_ZERO_COPY: Final = transports.STUDY.replace(
    ways=("none", "rpc", "ring", "registered"), sizes=(), models=("logistic", "25M"), repeats=7
)
_SUMS: Final = collectives.STUDY.replace(wires=("inproc", "shm"), ranks=(2,), sizes=(8, 4_096, 262_144), repeats=20)
_PRESETS: Final = elimination.STUDY.replace(
    problems=(replace(PROBLEMS["clean"], rows=4_000), replace(PROBLEMS["noisy"], rows=4_000)),
    presets=("none", "multi", "auto"), caches=("small",), cache_share=0.01, ranks=(2,), rank_problems=("clean",),
    rank_presets=("none", "multi"), rank_repeats=3, repeats=4,
)  # fmt: skip
_PAIRWISE_ROWS: Final = 2_000
#: Sets by name and rows whose rounds are measured; the last is predicted from the others.
_ROUNDS: Final = (("clean", 6_000), ("checkerboard", 8_000), ("free-svs", 1_500), ("noisy", 8_000))
_TURNS: Final = 4
_PASSES: Final = gtopk.STUDY.replace(tasks=(), repeats=3)
_COURSES: Final = gtopk.STUDY.replace(ways=("gtop-k",), epochs=16, networks=(), seeds=_SEEDS[:3])
_NETWORKS: Final = dnn.STUDY.replace(
    models=("mlp",), ways=("local", "gtopk"), ranks=(2,), network="10GbE", rows=2_000, test_rows=1_000, looks=(1,),
    batch=16,
)  # fmt: skip


def _many_processes(out: Path, say: Say) -> list[Claim]:
    del out
    say(f"{_PAIRWISE_ROWS:,} rows by pairs")
    settings = RunSettings(replace(PROBLEMS["noisy"], rows=_PAIRWISE_ROWS), solver="pairwise", repeats=1)
    return [check_process_claim(observe(settings, 1).amounts)]


def _rounds(out: Path, say: Say) -> list[Claim]:
    del out
    sets = [RunSettings(replace(PROBLEMS[name], rows=rows), repeats=2) for name, rows in _ROUNDS]
    pairwise = RunSettings(replace(PROBLEMS[_ROUNDS[-1][0]], rows=_PAIRWISE_ROWS), solver="pairwise", repeats=1)
    here = origin()
    turns, pairs = [], []
    with cluster_of(2) as client:
        for turn in range(_TURNS):
            say(f"turn {turn + 1} of {_TURNS}")
            turns.append([observe(one, ranks, client) for one in sets for ranks in (1, 2)])
            pairs.append(observe(pairwise, 1))
    return check_round_claims(turns, pairs, _ROUNDS[-1][0], here["machine"]["cores"], busy=is_busy([here]))


#: For a quick look: what is less of a study; none of it where that is None.
_QUICKLY: Final[Mapping[str, tuple[Study, Row] | None]] = {
    "thousandths": None, "strategies": None, "features": None, "period": (_PERIOD, {"seeds": _SEEDS[:2]}),
    "elimination": (_PRESETS, {"repeats": 2}), "noise": (_NOISE, {"repeats": 5, "seeds": _SEEDS[:2]}),
    "transports": (_ZERO_COPY, {"repeats": 3}), "speedup": (_SOONER, {"seeds": _SEEDS[:3]}),
    "auto": (_AUTO, {"seeds": _SEEDS[:3]}),
}  # fmt: skip


def _with_quick(measure: Measure) -> Measure:
    """Return a measure with what stands for it in a quick look."""
    if measure.name not in _QUICKLY:
        return measure
    needs, found = "Takes minutes: run it without --quick.", _QUICKLY[measure.name]
    if found is None:
        return replace(measure, quick=replace(measure, what="Nothing.", run=lambda out, say: [], needs=needs))
    study, less = found
    what = f"{measure.what} Quickly: {', '.join(f'{name} {value}' for name, value in less.items())}."
    return replace(measure, quick=replace(measure, what=what, run=_declared(study.replace(**less))))


_ALL: Final = (
    Measure(
        "period", statements("msf"),
        "dsgd study msf on 32 simulated ranks, InfiniBand, the three sets generated: every 1, 16, 64 and 512, 5 seeds.",
        _declared(_PERIOD),
    ),
    Measure(
        "sparse-sums", statements("gtopk/dense", "gtopk/topk"),
        "dsgd study gtopk: the cost of messages at 1 GbE, 32 ranks, with the compute times that the authors measured "
        "and those of one thread of this machine, 3 repetitions.",
        _declared(_PASSES), timed=True,
    ),
    Measure(
        "thousandths", statements("gtopk/convergence"),
        "dsgd study gtopk: a small convolutional network on digits and an LSTM on generated text, four simulated "
        "ranks, one entry in a thousand after the published warm-up, 16 epochs, 3 seeds.",
        _declared(_COURSES, "torch"), "Needs torch.",
    ),
    Measure(
        "speedups", statements("pcl"), "dsgd study scaling: the balance of layers, from nominal rates.",
        _declared(scaling.STUDY),
    ),
    Measure(
        "collectives", statements("dsgd/collectives-auto", "dsgd/collectives-model"),
        "dsgd study collectives on this machine: two threads, and two processes over shared memory, 8 B to 256 KiB, "
        "calibrated four times.",
        _declared(_SUMS, times=_CALIBRATIONS), timed=True,
    ),
    Measure(
        "elimination",
        statements(
            "shrinking/sequential", "shrinking/saved", "shrinking/saved-on-ranks", "dsgd/elimination-optimum",
            "dsgd/elimination-values", "dsgd/elimination-slower",
        ),
        "dsgd study elimination on this machine: 4,000 generated rows, clean and noisy, a cache of a hundredth, 4 "
        "repetitions; two worker processes on the clean rows.",
        _declared(_PRESETS), timed=True,
    ),
    Measure(
        "processes", statements("shrinking/processes"),
        "The published algorithm on 2,000 generated rows, noisy, and a model of its steps on 4,096 processes and 11 "
        "million rows.",
        _many_processes,
    ),
    Measure(
        "svm-ranks", statements("dsgd/svm-model", "dsgd/svm-ranks"),
        "The rounds of the kernel SVM in one process and in two worker processes, of four generated sets, 4 turns; the "
        "last set is predicted from the others, and what 4,096 ranks and 11 million rows would take.",
        _rounds, timed=True,
    ),
    Measure(
        "strategies", statements("dsgd/strategies-accuracy", "dsgd/strategies-objective"),
        "dsgd study strategies: all strategies on 16 simulated ranks, 10GbE, generated rows, 3 seeds.",
        _declared(_STRATEGIES),
    ),
    Measure(
        "auto", statements("dsgd/auto-time", "dsgd/auto-time-mean", "dsgd/auto-accuracy"),
        "dsgd study tuning on 2 simulated ranks, 10GbE, two generated sets, periods 16 to 4,096, 5 seeds.",
        _declared(_AUTO),
    ),
    Measure(
        "speedup", statements("dsgd/speedup-one", "dsgd/speedup-peer"),
        "dsgd study speedup on this machine: two worker processes, 2,000,000 generated rows of 28 columns, 2 epochs, 5 "
        "seeds.",
        _declared(_SOONER), timed=True,
    ),
    Measure(
        "noise",
        statements("srg/outliers", "srg/as-good", "srg/draw", "saga/linear", "svrg/linear", "dsgd/draw-step"),
        "dsgd study variance on one thread of this machine: four problems, 5 seeds; steps on a thousand and on a "
        "million rows, 25 repetitions.",
        _declared(_NOISE), timed=True,
    ),
    Measure(
        "features", statements("agents", "rff"),
        "dsgd study features: 25 agents with 10 to 6,400 generated rows each, 300 features, 2,000 steps; two generated "
        "sets of clusters, up to 3,000 features and 40 epochs; 5 seeds.",
        _declared(_FEATURES),
    ),
    Measure(
        "transports", statements("zerocopy/general", "zerocopy/tuned"),
        "dsgd study transports on this machine: training with a parameter server over Dask's RPC, a ring of memory and "
        "registered slots; 254 and 25,557,032 parameters, 7 repetitions.",
        _declared(_ZERO_COPY), timed=True,
    ),
    Measure(
        "digits", tuple(one for key, one in STATEMENTS.items() if key.startswith("dsgd/dnn-")),
        "dsgd study dnn on two simulated ranks: a network with one hidden layer on generated digits.",
        _declared(_NETWORKS, "torch"),
        "Needs torch; accuracies also all digits of MNIST (DSGD_DATA) and `dsgd study dnn`.",
    ),
)  # fmt: skip

#: The measures of this module.
MEASURES: Final = tuple(map(_with_quick, _ALL))
