"""What this library promises of itself, on the pages of its studies."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from dsgd.study.frame.statement import Source, Statement, as_points, as_times
from dsgd.study.frame.verdict import Margin

__all__ = [
    "AUTO_ACCURACY",
    "AUTO_TIME",
    "AUTO_TIME_MEAN",
    "BEFORE_ONE",
    "BEFORE_PEER",
    "COLLECTIVES_AUTO",
    "COLLECTIVES_MODEL",
    "DNN_ACCURACY",
    "DNN_BYTES",
    "DRAW_STEP",
    "FEWER_VALUES",
    "NEVER_SLOWER",
    "OPTIMUM",
    "SOURCE",
    "STRATEGIES_ACCURACY",
    "STRATEGIES_OBJECTIVE",
    "SVM_MODEL",
    "SVM_RANKS",
]

#: This library.
SOURCE: Final = Source(
    "dsgd",
    "dsgd",
    (),
    "dsgd.SGDClassifier",
    'sync="auto"',
    "What the pages of the studies of this library promise.",
)

_PROMISE: Final = "promise of this library"

#: Of sample elimination.
OPTIMUM: Final = Statement(
    "dsgd/elimination-optimum",
    SOURCE,
    "Every preset ends at the same optimum: dual objectives within 1e-05",
    _PROMISE,
    "dsgd study elimination",
    Margin(most=1e-5),
    "{:.1e}".format,
)
FEWER_VALUES: Final = Statement(
    "dsgd/elimination-values",
    SOURCE,
    "auto, small cache: 2.5x fewer kernel values, 1.3x less time",
    _PROMISE,
    "dsgd study elimination",
    Margin(2.5),
    "{:.2f}x".format,
    "Of kernel values; of seconds the margin is 1.3. For a cache of a hundredth of the kernel matrix.",
)
NEVER_SLOWER: Final = Statement(
    "dsgd/elimination-slower",
    SOURCE,
    "auto is nowhere more than 10 % slower than none",
    _PROMISE,
    "dsgd study elimination",
    Margin(most=0.1),
    "{:+.0%}".format,
)

#: Of kernel SVMs on many ranks.
SVM_MODEL: Final = Statement(
    "dsgd/svm-model",
    SOURCE,
    "The model of the kernel SVM's rounds predicts seconds on two ranks within a quarter",
    "0.75 to 1.25",
    "benchmarks run svm/scale",
    Margin(0.75, most=1.25),
    "{:.2f}".format,
)
SVM_RANKS: Final = Statement(
    "dsgd/svm-ranks",
    SOURCE,
    "On 4,096 ranks and 11 million rows blocks take less time than the published algorithm",
    "more than 1x as fast",
    "benchmarks run svm/scale",
    Margin(1.0),
    as_times,
)

#: Of collectives.
COLLECTIVES_AUTO: Final = Statement(
    "dsgd/collectives-auto",
    SOURCE,
    "auto takes at most a quarter longer than the fastest algorithm",
    "up to 1.25x",
    "dsgd study collectives",
    Margin(most=1.25),
    "{:.2f}x".format,
)
COLLECTIVES_MODEL: Final = Statement(
    "dsgd/collectives-model",
    SOURCE,
    "the calibrated model predicts times within a quarter",
    "0.75 to 1.25",
    "dsgd study collectives",
    Margin(0.75, most=1.25),
    "{:.2f}".format,
)

#: Of strategies.
STRATEGIES_ACCURACY: Final = Statement(
    "dsgd/strategies-accuracy",
    SOURCE,
    "Every strategy is within a point of the sequential accuracy",
    "-1.00 points or better",
    "dsgd study strategies",
    Margin(-0.01),
    as_points,
)
STRATEGIES_OBJECTIVE: Final = Statement(
    "dsgd/strategies-objective",
    SOURCE,
    "Every strategy comes near the sequential objective in as many epochs",
    "all strategies",
    "dsgd study strategies",
    Margin(1.0),
    "{:.0%}".format,
)

#: Of automatic periods.
AUTO_TIME: Final = Statement(
    "dsgd/auto-time",
    SOURCE,
    "auto reaches the target as fast as the best period",
    "at most 1.15x",
    "dsgd study tuning",
    Margin(most=1.15),
    "{:.2f}x".format,
)
AUTO_TIME_MEAN: Final = Statement(
    "dsgd/auto-time-mean",
    SOURCE,
    "auto reaches the target as fast as the best period",
    "at most 1.10x",
    "dsgd study tuning",
    Margin(most=1.10),
    "{:.2f}x".format,
)
AUTO_ACCURACY: Final = Statement(
    "dsgd/auto-accuracy",
    SOURCE,
    "auto ends as accurate as the best period",
    "at most 0.3 points less",
    "dsgd study tuning",
    Margin(-0.003),
    as_points,
)

#: Of several processes on one machine.
BEFORE_ONE: Final = Statement(
    "dsgd/speedup-one",
    SOURCE,
    "Several workers that have their rows are accurate before one thread is",
    "more than 1x as fast",
    "dsgd study speedup",
    Margin(1.0),
    as_times,
)
BEFORE_PEER: Final = Statement(
    "dsgd/speedup-peer",
    SOURCE,
    "Several workers that have their rows are accurate before scikit-learn is",
    "more than 1x as fast",
    "dsgd study speedup",
    Margin(1.0),
    as_times,
)

#: Of drawn rows.
DRAW_STEP: Final = Statement(
    "dsgd/draw-step",
    SOURCE,
    "At a million rows, a step on a row drawn by its gradients takes hardly longer than on one drawn uniformly",
    "at most 1.5x",
    "dsgd study variance",
    Margin(most=1.5),
    as_times,
)

#: Of neural networks, by method: for all digits of MNIST and two worker processes.
DNN_ACCURACY: Final = MappingProxyType(
    {
        way: Statement(
            f"dsgd/dnn-accuracy-{way}",
            SOURCE,
            f"The convolutional network reaches 98.5% under {way}",
            "98.5% or better",
            "dsgd study dnn",
            Margin(0.985),
            "{:.2%}".format,
        )
        for way in ("synchronous", "local", "gtopk", "diloco")
    }
)
#: By method: bytes as a share of those of the synchronous run.
DNN_BYTES: Final = MappingProxyType(
    {
        way: Statement(
            f"dsgd/dnn-bytes-{way}",
            SOURCE,
            f"{way} sends at most 1/{least} of the bytes of the synchronous run",
            f"1/{least} or less",
            "dsgd study dnn",
            Margin(least),
            "1/{:.1f}".format,
        )
        for way, least in (("local", 15), ("gtopk", 30))
    }
)
