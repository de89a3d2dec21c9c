"""What is published of strategies that average models: how rarely, with which momentum and corrections."""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_percent, as_points, as_times
from dsgd.study.frame.verdict import Margin

__all__ = [
    "ADACOMM",
    "BAND",
    "DILOCO_BYTES",
    "DILOCO_OBJECTIVE",
    "DYNAMIC_BYTES",
    "DYNAMIC_OBJECTIVE",
    "EASGD",
    "FEDPROX",
    "LEADER",
    "LOCAL",
    "QSR_ACCURACY",
    "QSR_BYTES",
    "SCAFFOLD",
    "SLOWMO",
]

_AS_LOW: Final = "A training objective within 5 % counts as equal."
_LOWER: Final = "The source gives curves; the statement is their order."

#: Statements.
LOCAL: Final = Statement(
    "local/rounds",
    Source(
        "local",
        "Local SGD",
        (Publication(("Stich",), "Local SGD converges fast and communicates little", 2019, arxiv="1805.09767"),),
        "dsgd.sync.LocalSGD",
        "sync=LocalSGD(every=22)",
        "Ranks average their models rarely; up to the root of the number of steps this costs nothing in the rate.",
    ),
    "With up to sqrt(T) times fewer exchanges the objective is that of an exchange a step",
    "same rate, sqrt(T) times fewer",
    "abstract",
    Margin(most=1.05),
    as_times,
    _AS_LOW,
)
ADACOMM: Final = Statement(
    "adacomm/time",
    Source(
        "adacomm",
        "AdaComm",
        (
            Publication(
                ("Wang", "Joshi"),
                "Adaptive communication strategies to achieve the best error-runtime trade-off in local-update SGD",
                2019,
                arxiv="1810.08313",
            ),
        ),
        "dsgd.sync.adaptive.AdaComm",
        "sync=AutoSync(rule=AdaComm())",
        "The period begins long and shrinks with the root of the loss, so that early epochs cost little and"
        " late ones end low.",
    ),
    "Up to 3x less time than fully synchronous SGD to the same training loss",
    "up to 3x",
    "abstract",
    Margin(1.0, 3.0),
    as_times,
)
BAND: Final = Statement(
    "adpa/time",
    Source(
        "adpa",
        "Adaptive periodic averaging",
        (
            Publication(
                ("Jiang", "Agrawal"),
                "Adaptive periodic averaging: a practical approach to reducing communication in distributed learning",
                2020,
                arxiv="2007.06134",
            ),
        ),
        "dsgd.sync.adaptive.VarianceBand",
        "sync=AutoSync(rule=VarianceBand())",
        "The period is held where the variance of the models between ranks stays in a band.",
    ),
    "1.14x to 1.27x faster than full synchronisation",
    "1.14x to 1.27x",
    "abstract",
    Margin(1.14, 1.27),
    as_times,
)
_QSR: Final = Source(
    "qsr",
    "QSR",
    (
        Publication(
            ("Gu", "Lyu", "Arora", "Zhang", "Huang"),
            "A quadratic synchronization rule for distributed deep learning",
            2024,
            arxiv="2310.14423",
        ),
    ),
    "dsgd.sync.adaptive.QSR",
    "sync=AutoSync(rule=QSR())",
    "The period grows as the inverse square of the rate.",
)
QSR_BYTES: Final = Statement(
    "qsr/bytes",
    _QSR,
    "Communication falls by 75 to 91 % against an exchange a step",
    "75 % to 91 %",
    "tables of communication volume",
    Margin(0.75, 0.91),
    as_percent,
)
QSR_ACCURACY: Final = Statement(
    "qsr/accuracy",
    _QSR,
    "Test accuracy is higher than with an exchange a step",
    "+0.84 to +1.16 points",
    "table of ViT-B",
    Margin(0.0),
    as_points,
    "Higher at all confirms the sign.",
)
_DYNAMIC: Final = Source(
    "dynamic",
    "Dynamic averaging",
    (
        Publication(
            ("Kamp", "others"),
            "Efficient decentralized deep learning by dynamic model averaging",
            2018,
            arxiv="1807.03210",
        ),
    ),
    "dsgd.sync.adaptive.DynamicAveraging",
    "sync=AutoSync(rule=DynamicAveraging())",
    "Ranks average when their models have moved far from the last average, and not before.",
)
DYNAMIC_BYTES: Final = Statement(
    "dynamic/bytes",
    _DYNAMIC,
    "An order of magnitude less communication than periodic averaging",
    "about 10x",
    "abstract",
    Margin(10.0),
    as_times,
)
DYNAMIC_OBJECTIVE: Final = Statement(
    "dynamic/objective",
    _DYNAMIC,
    "The loss is that of periodic averaging",
    "similar loss",
    "abstract",
    Margin(most=1.05),
    as_times,
    _AS_LOW,
)
SLOWMO: Final = Statement(
    "slowmo/objective",
    Source(
        "slowmo",
        "SlowMo",
        (
            Publication(
                ("Wang", "Tantia", "Ballas", "Rabbat"),
                "SlowMo: improving communication-efficient distributed SGD with slow momentum",
                2020,
                arxiv="1910.00643",
            ),
        ),
        "dsgd.sync.SlowMo",
        "sync=SlowMo(every=64)",
        "The change of the model between two averages goes through a momentum of its own.",
    ),
    "The objective is lower than that of local SGD, at no more communication",
    "consistent improvements",
    "abstract",
    Margin(most=1.0),
    "{:.4f}x".format,
    _LOWER,
)
_DILOCO: Final = Source(
    "diloco",
    "DiLoCo",
    (
        Publication(
            ("Douillard", "others"),
            "DiLoCo: distributed low-communication training of language models",
            2023,
            arxiv="2311.08105",
        ),
    ),
    "dsgd.sync.DiLoCo",
    "sync=DiLoCo(every=500)",
    "Hundreds of local steps between two exchanges, and a Nesterov step along the mean change.",
)
DILOCO_BYTES: Final = Statement(
    "diloco/bytes",
    _DILOCO,
    "500 times less communication than an exchange a step",
    "500x",
    "abstract",
    Margin(500.0 * 0.95),
    as_times,
    "A twentieth less for the last, shorter round of an epoch.",
)
DILOCO_OBJECTIVE: Final = Statement(
    "diloco/objective",
    _DILOCO,
    "The loss is that of fully synchronous training",
    "as well as synchronous",
    "abstract",
    Margin(most=1.05),
    as_times,
    _AS_LOW,
)
EASGD: Final = Statement(
    "easgd/downpour",
    Source(
        "easgd",
        "EASGD",
        (
            Publication(
                ("Zhang", "Choromanska", "LeCun"), "Deep learning with elastic averaging SGD", 2015, arxiv="1412.6651"
            ),
        ),
        "dsgd.sync.EASGD",
        "sync=EASGD(every=64)",
        "Models are tied to a centre by springs, and are free to explore in between.",
    ),
    "With 64 steps between exchanges the objective is lower than that of Downpour",
    "Downpour unstable or worse",
    "figures of the communication period 64",
    Margin(most=1.0),
    "{:.3f}x".format,
    _LOWER,
)
LEADER: Final = Statement(
    "lsgd/easgd",
    Source(
        "lsgd",
        "LSGD",
        (
            Publication(
                ("Teng", "others"),
                "Leader stochastic gradient descent for distributed training of deep learning models",
                2019,
                arxiv="1905.10395",
            ),
        ),
        "dsgd.sync.LeaderSGD",
        "sync=LeaderSGD(every=64)",
        "Models are pulled to the one with the lowest loss, of their group and of all, and not to a mean.",
    ),
    "The objective is lower than that of EASGD after as many steps",
    "converges faster than EASGD",
    "abstract, figures of test error",
    Margin(most=1.0),
    "{:.3f}x".format,
    _LOWER,
)
SCAFFOLD: Final = Statement(
    "scaffold/skewed",
    Source(
        "scaffold",
        "SCAFFOLD",
        (
            Publication(
                ("Karimireddy", "others"),
                "SCAFFOLD: stochastic controlled averaging for federated learning",
                2020,
                arxiv="1910.06378",
            ),
        ),
        "dsgd.sync.SCAFFOLD",
        "sync=SCAFFOLD(every=256, stretch=16)",
        "Every rank corrects its steps by how its gradient differs from that of all, so that unlike rows do"
        " not pull models apart.",
    ),
    "On unlike rows the objective after as many rounds is lower than that of local SGD",
    "significantly fewer rounds",
    "abstract",
    Margin(most=1.0),
    "{:.3f}x".format,
    _LOWER,
)
FEDPROX: Final = Statement(
    "fedprox/skewed",
    Source(
        "fedprox",
        "FedProx",
        (
            Publication(
                ("Li", "Sahu", "Zaheer", "others"),
                "Federated optimization in heterogeneous networks",
                2020,
                arxiv="1812.06127",
            ),
        ),
        "dsgd.sync.FedProx",
        "sync=FedProx(every=256, mu=0.001)",
        "A spring to the last average holds the models of ranks with unlike rows near each other.",
    ),
    "On very unlike rows test accuracy is 22 points above that of local SGD",
    "+22 points on average",
    "abstract",
    Margin(0.11, 0.33),
    as_points,
    "Half the figure to one and a half of it: it is a mean over data sets.",
)
