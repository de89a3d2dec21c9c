"""What is published of compressors of gradients, and of sums."""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_number, as_percent, as_points, as_times
from dsgd.study.frame.verdict import Margin

__all__ = [
    "ADACOMP",
    "BLINK",
    "BLINK_RINGS",
    "BLINK_TIME",
    "DGC_ACCURACY",
    "DGC_RATIO",
    "ONEBIT_ACCURACY",
    "ONEBIT_BITS",
    "POWERSGD_ACCURACY",
    "POWERSGD_RATIO",
    "QSGD_VARIANCE",
    "RING",
    "TERNGRAD_ACCURACY",
    "TERNGRAD_BITS",
    "THRESHOLD_ACCURACY",
    "THRESHOLD_BYTES",
    "TWO_THRESHOLDS",
    "VOTE",
]

_KEPT: Final = "Half a point below still counts as kept."
_DGC: Final = Source(
    "dgc",
    "DGC",
    (Publication(("Lin", "Han", "Mao", "Wang", "Dally"), "Deep gradient compression", 2018, arxiv="1712.01887"),),
    "dsgd.compress.DGC",
    "sync=MinibatchSGD(compressor=DGC(0.001))",
    "Only the largest entries of a gradient are sent; the others wait in a memory that carries momentum"
    " as dense training would.",
)
_TERNGRAD: Final = Source(
    "terngrad",
    "TernGrad",
    (
        Publication(
            ("Wen", "others"),
            "TernGrad: ternary gradients to reduce communication in distributed deep learning",
            2017,
            arxiv="1705.07878",
        ),
    ),
    "dsgd.compress.TernGrad",
    "sync=MinibatchSGD(compressor=TernGrad())",
    "Entries are rounded at random to minus one, zero or one times a scale that ranks share, so that "
    "sums stay small integers.",
)
_ONEBIT: Final = Source(
    "onebit",
    "1-bit SGD",
    (
        Publication(
            ("Seide", "Fu", "Droppo", "Li", "Yu"),
            "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech "
            "DNNs",
            2014,
        ),
    ),
    "dsgd.compress.OneBit",
    "sync=MinibatchSGD(compressor=ErrorFeedback(OneBit()))",
    "One bit for each entry chooses one of two means, and what is lost is added to the next gradient.",
)
_POWERSGD: Final = Source(
    "powersgd",
    "PowerSGD",
    (
        Publication(
            ("Vogels", "Karimireddy", "Jaggi"),
            "PowerSGD: practical low-rank gradient compression for distributed optimization",
            2019,
            arxiv="1905.13727",
        ),
    ),
    "dsgd.compress.PowerSGD",
    "sync=MinibatchSGD(compressor=ErrorFeedback(PowerSGD(2)))",
    "A gradient is a matrix of low rank, found by one warm step of power iteration, whose factors can be all-reduced.",
)
_THRESHOLD: Final = Source(
    "threshold",
    "Threshold",
    (
        Publication(
            ("Strom",),
            "Scalable distributed DNN training using commodity GPU cloud computing",
            2015,
            venue="Interspeech",
        ),
    ),
    "dsgd.compress.Threshold",
    "sync=MinibatchSGD(compressor=ErrorFeedback(Threshold(0.001)))",
    "Of every entry that has gathered a threshold one quantum is sent, and the rest waits.",
)

#: Statements.
DGC_RATIO: Final = Statement(
    "dgc/ratio",
    _DGC,
    "A gradient is compressed 270 to 600 times",
    "270x to 600x",
    "abstract",
    Margin(270.0, 600.0),
    as_times,
)
DGC_ACCURACY: Final = Statement(
    "dgc/accuracy", _DGC, "No accuracy is lost", "no loss", "abstract", Margin(-0.005), as_points, _KEPT
)
TERNGRAD_BITS: Final = Statement(
    "terngrad/bits",
    _TERNGRAD,
    "Three levels: an entry takes log2(3) = 1.58 bits",
    "1.58 bits",
    "section on ternary gradients",
    Margin(most=2.0),
    "{:.3f} bits".format,
    "Two bits are the plain code of three levels.",
)
TERNGRAD_ACCURACY: Final = Statement(
    "terngrad/accuracy",
    _TERNGRAD,
    "Less than 2 points of accuracy are lost",
    "under 2 points (GoogLeNet), none (AlexNet)",
    "abstract",
    Margin(-0.02),
    as_points,
)
ONEBIT_BITS: Final = Statement(
    "onebit/bits",
    _ONEBIT,
    "One bit per value",
    "1 bit",
    "abstract",
    Margin(most=1.25),
    "{:.3f} bits".format,
    "A quarter more for the means of each bucket.",
)
ONEBIT_ACCURACY: Final = Statement(
    "onebit/accuracy",
    _ONEBIT,
    "With error feedback at no or almost no loss of accuracy",
    "almost no loss",
    "abstract",
    Margin(-0.005),
    as_points,
    _KEPT,
)
POWERSGD_RATIO: Final = Statement(
    "powersgd/ratio",
    _POWERSGD,
    "Rank 2 sends 1/136 of the gradient of ResNet-18",
    "136x",
    "table of ResNet-18 on CIFAR-10",
    Margin(0.95 * 136, most=1.05 * 136),
    as_times,
    "A twentieth, for what counts as a matrix.",
)
POWERSGD_ACCURACY: Final = Statement(
    "powersgd/accuracy",
    _POWERSGD,
    "Test accuracy is on par with SGD",
    "on par",
    "abstract",
    Margin(-0.005),
    as_points,
    _KEPT,
)
QSGD_VARIANCE: Final = Statement(
    "qsgd/variance",
    Source(
        "qsgd",
        "QSGD",
        (
            Publication(
                ("Alistarh", "Grubic", "Li", "Tomioka", "Vojnovic"),
                "QSGD: communication-efficient SGD via gradient quantization and encoding",
                2017,
                arxiv="1610.02132",
            ),
        ),
        "dsgd.compress.QSGD",
        "sync=MinibatchSGD(compressor=QSGD(7))",
        "Entries are rounded at random to a few levels of the norm, so that the mean is the gradient and "
        "the variance is bounded.",
    ),
    "The variance is at most min(n / s^2, sqrt(n) / s) times the squared norm",
    "at most 1 of the bound",
    "lemma on the variance of stochastic quantization",
    Margin(most=1.0),
    "{:.3f} of the bound".format,
)
ADACOMP: Final = Statement(
    "adacomp/ratio",
    Source(
        "adacomp",
        "AdaComp",
        (
            Publication(
                ("Chen", "Choi", "Brand", "Agrawal", "Zhang", "Gopalakrishnan"),
                "AdaComp: adaptive residual gradient compression for data-parallel distributed training",
                2018,
                arxiv="1712.02679",
            ),
        ),
        "dsgd.compress.AdaComp",
        "sync=MinibatchSGD(compressor=AdaComp())",
        "Each bin of a gradient sends the entries that one more gradient like the last would make its largest.",
    ),
    "Gradients of fully connected layers are compressed about 200 times",
    "about 200x",
    "abstract",
    Margin(150.0, 250.0),
    as_times,
    "A quarter to each side.",
)
VOTE: Final = Statement(
    "signsgd/bits",
    Source(
        "signsgd",
        "signSGD",
        (
            Publication(
                ("Bernstein", "Wang", "Azizzadenesheli", "Anandkumar"),
                "signSGD: compressed optimisation for non-convex problems",
                2018,
                arxiv="1802.04434",
            ),
        ),
        "dsgd.compress.MajorityVote",
        "sync=MinibatchSGD(compressor=MajorityVote())",
        "Ranks send signs, and the step takes the sign that most of them have sent.",
    ),
    "With a majority vote an entry takes a bit up and a bit down",
    "2 bits",
    "abstract",
    Margin(most=2.2),
    "{:.3f} bits".format,
    "A tenth more for headers and padding.",
)
RING: Final = Statement(
    "ring/bytes",
    Source(
        "ring",
        "Ring all-reduce",
        (
            Publication(
                ("Patarasuk", "Yuan"), "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009
            ),
        ),
        "dsgd.collectives.Group",
        'Group(transport, algorithm="ring")',
        "A sum travels round a ring in pieces, so that every link carries the least that it can.",
    ),
    "A ring sends the least that any all-reduce can, 2 (P - 1) / P of the vector per rank",
    "1x the bound",
    "section on the lower bound",
    Margin(1.0, most=1.02),
    "{:.4f}x".format,
    "A fiftieth for headers.",
)
_BLINK: Final = Source(
    "blink",
    "Blink",
    (
        Publication(
            ("Wang", "others"), "Blink: fast and generic collectives for distributed ML", 2020, arxiv="1910.04940"
        ),
    ),
    "dsgd.collectives.algorithms.packed_trees.tree_allreduce",
    "tree_allreduce(transport, vector, pack_trees(links))",
    "Spanning trees are packed into the links that a job has got, and each carries its share of a sum.",
)
BLINK: Final = Statement(
    "blink/trees",
    _BLINK,
    "A few spanning trees carry all that the links of a DGX-1V can",
    "6 links (6 trees)",
    "section on packing spanning trees",
    Margin(6.0, most=6.0),
    as_number,
)
BLINK_RINGS: Final = Statement(
    "blink/rings",
    _BLINK,
    "Sums over packed trees are up to 8 times as fast as round rings, where links leave no ring",
    "up to 8x (NCCL on DGX machines)",
    "abstract",
    Margin(6.0, most=10.0),
    as_times,
    "A model from nominal rates that is right to within a quarter has explained the figure.",
)
BLINK_TIME: Final = Statement(
    "blink/time",
    _BLINK,
    "Training takes up to 40 % less time, where links leave no ring",
    "up to 40 % less (image classification on DGX machines)",
    "abstract",
    Margin(0.3, published=0.5),
    as_percent,
    "A model from nominal rates that is right to within a quarter has explained the figure; networks differ.",
)
THRESHOLD_BYTES: Final = Statement(
    "threshold/bytes",
    _THRESHOLD,
    "Communication falls by three orders of magnitude",
    "1,000x",
    "abstract",
    Margin(1000.0),
    as_times,
)
THRESHOLD_ACCURACY: Final = Statement(
    "threshold/accuracy",
    _THRESHOLD,
    "No accuracy is lost",
    "no loss",
    "abstract",
    Margin(-0.005),
    as_points,
    _KEPT,
)
TWO_THRESHOLDS: Final = Statement(
    "adaptive-threshold/accuracy",
    Source(
        "adaptive-threshold",
        "Adaptive threshold",
        (
            Publication(
                ("Dryden", "Moon", "Jacobs", "Van Essen"),
                "Communication quantization for data-parallel training of deep neural networks",
                2016,
                venue="MLHPC",
            ),
        ),
        "dsgd.compress.AdaptiveThreshold",
        "sync=MinibatchSGD(compressor=ErrorFeedback(AdaptiveThreshold(0.01)))",
        "A given share of the entries is sent, the largest of either sign, as the mean of their sign.",
    ),
    "Accuracy is not sacrificed",
    "no loss",
    "abstract",
    Margin(-0.005),
    as_points,
    _KEPT,
)
