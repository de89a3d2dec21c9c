"""What is published of strategies whose ranks talk to neighbours, to servers, or do not wait."""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_points, as_times
from dsgd.study.frame.verdict import Margin

__all__ = [
    "ADPSGD",
    "ASYNC_LEADER",
    "BACKUP",
    "CHOCO",
    "DC_ASYNCHRONOUS",
    "DC_SYNCHRONOUS",
    "DPSGD",
    "SGP_ACCURACY",
    "SGP_TIME",
    "SSP",
    "STALENESS",
]

_LOWER: Final = "The source gives curves; the statement is their order."
_SGP: Final = Source(
    "sgp",
    "SGP",
    (
        Publication(
            ("Assran", "Loizou", "Ballas", "Rabbat"),
            "Stochastic gradient push for distributed deep learning",
            2019,
            arxiv="1811.10792",
        ),
    ),
    "dsgd.sync.SGP",
    "sync=SGP(every=8)",
    "Every rank pushes half its model to a peer that changes from step to step, and divides by a weight"
    " that travels along.",
)

#: Statements.
SGP_TIME: Final = Statement(
    "sgp/time",
    _SGP,
    "90 epochs of ResNet-50 on 32 nodes and 10 GbE take 1.6 hours, by all-reduce more than 5",
    "3.1x or more",
    "abstract of the first version",
    Margin(3.1),
    as_times,
)
SGP_ACCURACY: Final = Statement(
    "sgp/accuracy",
    _SGP,
    "Test accuracy is within 1.2 points of all-reduce",
    "within 1.2 points",
    "abstract of the first version",
    Margin(-0.012),
    as_points,
)
DPSGD: Final = Statement(
    "dpsgd/time",
    Source(
        "dpsgd",
        "D-PSGD",
        (
            Publication(
                ("Lian", "others"),
                "Can decentralized algorithms outperform centralized algorithms?",
                2017,
                arxiv="1705.09056",
            ),
        ),
        "dsgd.sync.DPSGD",
        "sync=DPSGD(every=8)",
        "Ranks average with their neighbours in a fixed graph, and none carries the messages of all.",
    ),
    "On a slow network a step is up to an order of magnitude faster than with a central server",
    "up to 10x",
    "abstract",
    Margin(1.0, 10.0),
    as_times,
)
ADPSGD: Final = Statement(
    "adpsgd/time",
    Source(
        "adpsgd",
        "AD-PSGD",
        (
            Publication(
                ("Lian", "Zhang", "Zhang", "Liu"),
                "Asynchronous decentralized parallel stochastic gradient descent",
                2018,
                arxiv="1710.06952",
            ),
        ),
        "dsgd.sync.ADPSGD",
        "sync=ADPSGD(every=8)",
        "Ranks average in pairs whenever they are ready, and wait for nobody.",
    ),
    "An epoch is 4 to 8 times as fast as with all-reduce on a shared network",
    "4x to 8x",
    "abstract",
    Margin(4.0, 8.0),
    as_times,
)
CHOCO: Final = Statement(
    "choco/bytes",
    Source(
        "choco",
        "CHOCO-SGD",
        (
            Publication(
                ("Koloskova", "Stich", "Jaggi"),
                "Decentralized stochastic optimization and gossip algorithms with compressed communication",
                2019,
                arxiv="1902.00340",
            ),
        ),
        "dsgd.sync.ChocoSGD",
        "sync=ChocoSGD(every=8, compressor=TopK(0.01), gamma=0.04)",
        "Neighbours keep public copies of each other's models and send compressed differences to them.",
    ),
    "Two orders of magnitude fewer bytes than gossip of whole models",
    "100x or more",
    "abstract",
    Margin(100.0),
    as_times,
)
_DC: Final = Source(
    "dcasgd",
    "DC-ASGD",
    (
        Publication(
            ("Zheng", "others"),
            "Asynchronous stochastic gradient descent with delay compensation",
            2017,
            arxiv="1609.08326",
        ),
    ),
    "dsgd.sync.DelayCompensatedASGD",
    "sync=DelayCompensatedASGD(compensation=2.0, decay=0.95)",
    "A server corrects late gradients for how far its model has moved, by the squares of their entries.",
)
DC_ASYNCHRONOUS: Final = Statement(
    "dcasgd/asynchronous",
    _DC,
    "The objective is lower than that of asynchronous SGD",
    "outperforms both",
    "abstract",
    Margin(most=1.0),
    "{:.3f}x".format,
    _LOWER,
)
DC_SYNCHRONOUS: Final = Statement(
    "dcasgd/synchronous",
    _DC,
    "The objective is lower than that of synchronous SGD",
    "outperforms both",
    "abstract",
    Margin(most=1.0),
    "{:.3f}x".format,
    _LOWER,
)
STALENESS: Final = Statement(
    "staleness/objective",
    Source(
        "staleness",
        "Staleness-aware ASGD",
        (
            Publication(
                ("Zhang", "Gupta", "Lian", "Liu"),
                "Staleness-aware async-SGD for distributed deep learning",
                2016,
                arxiv="1511.05950",
            ),
        ),
        "dsgd.sync.StalenessAware",
        "sync=StalenessAware(usual=1)",
        "A server divides the rate of a gradient by how many steps old it is.",
    ),
    "Divided by their staleness, late gradients give a lower objective than in full",
    "better than constant rates",
    "figures of test error",
    Margin(most=1.0),
    "{:.3f}x".format,
    _LOWER,
)
SSP: Final = Statement(
    "ssp/time",
    Source(
        "ssp",
        "SSP",
        (
            Publication(
                ("Ho", "others"),
                "More effective distributed ML via a stale synchronous parallel parameter server",
                2013,
                venue="NIPS",
            ),
        ),
        "dsgd.sync.StaleSynchronous",
        "sync=StaleSynchronous(slack=3)",
        "Fast workers may be some rounds ahead of the slowest, and no more.",
    ),
    "With stragglers training is faster than when all wait for all",
    "faster than BSP",
    "abstract",
    Margin(1.0),
    as_times,
    _LOWER,
)
BACKUP: Final = Statement(
    "backup/time",
    Source(
        "backup",
        "Backup workers",
        (
            Publication(
                ("Chen", "Pan", "Monga", "Bengio", "Jozefowicz"),
                "Revisiting distributed synchronous SGD",
                2016,
                arxiv="1604.00981",
            ),
        ),
        "dsgd.sync.BackupWorkers",
        "sync=BackupWorkers(backups=1)",
        "A step takes the gradients that come first and drops those of the slowest workers.",
    ),
    "With stragglers training is faster than when a step waits for all workers",
    "faster than waiting for all",
    "section on backup workers",
    Margin(1.0),
    as_times,
    _LOWER,
)
ASYNC_LEADER: Final = Statement(
    "async-lsgd/easgd",
    Source(
        "async-lsgd",
        "Asynchronous LSGD",
        (
            Publication(
                ("Teng", "others"),
                "Leader stochastic gradient descent for distributed training of deep learning models",
                2019,
                arxiv="1905.10395",
            ),
        ),
        "dsgd.sync.AsyncLeaderSGD",
        "sync=AsyncLeaderSGD(every=64, n_groups=2)",
        "The steps of all workers are counted together, and at multiples of a number there are new leaders, of groups"
        " and of all.",
    ),
    "With several leaders the objective is lower than that of asynchronous EASGD after as many steps",
    "converges faster than EASGD",
    "abstract, figures of test error",
    Margin(most=1.0),
    "{:.3f}x".format,
    _LOWER,
)
