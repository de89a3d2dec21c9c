"""Which figures and tables of the docs there are, and the commands that measure what they show."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
DOCS: Final = HERE.parent
ROOT: Final = DOCS.parent


@dataclass(frozen=True)
class Drawn:
    """Figures or tables that one script makes.

    Parameters
    ----------
    name : str
        What it is called: the name of the script, without ``.py``, or ``studies/NAME``.
    files : sequence of str
        What it writes, below ``docs``.
    again : str
        The command that makes the rows, or that draws what has none.
    """

    name: str
    files: Sequence[str]
    again: str

    @property
    def command(self) -> list[str]:
        """The command that draws."""
        script, _, study = self.name.partition("/")
        return [sys.executable, str(HERE / f"{script}.py"), *filter(None, [study])]


FIGURES: Final = (
    Drawn(
        "claims",
        ["figures/claims-verdicts.csv", "figures/claims-arithmetic.csv"],
        "dsgd claims --only PART --out claims/ && python docs/figures/claims.py claims/",
    ),
    Drawn("comparing", ["_static/comparing.png"], "python docs/figures/comparing.py --run"),
    Drawn(
        "elimination",
        ["_static/elimination-active.png", "_static/elimination-work.png"],
        "dsgd study elimination --demo --repeats 1 --ranks none --no-reference --out "
        "study/ && python docs/figures/elimination.py study/rows.jsonl",
    ),
    Drawn(
        "gangs",
        ["_static/gangs.png", "figures/gangs.csv", "figures/control-plane.csv"],
        "python -m benchmarks run gangs --out docs/figures/gangs.jsonl && sudo python -m benchmarks run "
        "gangs --only hosts --workers 32 64 --out docs/figures/gangs.jsonl && python -m benchmarks run "
        "control_plane --out docs/figures/gangs.jsonl",
    ),
    Drawn("gossip", ["_static/gossip.png"], "python -m benchmarks run gossip --out docs/figures/gossip.jsonl"),
    Drawn("leaders", ["_static/leaders.png"], "python -m benchmarks run leaders --out docs/figures/leaders.jsonl"),
    Drawn(
        "many_ranks",
        ["_static/many-ranks.png", "figures/many-ranks.csv"],
        "python -m benchmarks run many_ranks --out docs/figures/many_ranks.jsonl",
    ),
    Drawn(
        "rounds",
        ["_static/rounds.png", "figures/rounds.csv"],
        "python -m benchmarks run rounds --out docs/figures/rounds.jsonl",
    ),
    Drawn(
        "studies/scaling",
        [
            "_static/scaling-speedup.png",
            "_static/scaling-ratio.png",
            "_static/scaling-groups.png",
            "_static/scaling-step.png",
        ],
        "nothing: it is computed",
    ),
    Drawn(
        "strategies",
        ["figures/strategies-a9a.csv", "figures/strategies-ijcnn1.csv"],
        "python -m benchmarks run strategies --ranks --simulated 2 4 16 --only PART --out "
        "docs/figures/strategies.jsonl",
    ),
    Drawn(
        "studies/collectives",
        ["_static/collectives.png"],
        "dsgd study collectives --demo --out study/ && python docs/figures/studies.py collectives study/rows.jsonl",
    ),
    Drawn(
        "studies/dnn",
        ["_static/dnn.png"],
        "dsgd study dnn --demo --out study/ && python docs/figures/studies.py dnn study/rows.jsonl",
    ),
    Drawn(
        "studies/failures",
        ["_static/failures.png"],
        "dsgd study failures --out study/ && python docs/figures/studies.py failures study/rows.jsonl",
    ),
    Drawn(
        "studies/features",
        ["_static/features-steps.png", "_static/features-speedup.png", "_static/features-machines.png"],
        "dsgd study features --out study/ && python docs/figures/studies.py features study/rows.jsonl",
    ),
    Drawn(
        "studies/gtopk",
        ["_static/gtopk.png"],
        "dsgd study gtopk -s gtop-k --epochs 16 --no-timing --out study/ && python "
        "docs/figures/studies.py gtopk study/rows.jsonl",
    ),
    Drawn(
        "studies/msf",
        ["_static/msf.png"],
        "dsgd study msf --dataset ijcnn1 --out study/ && python docs/figures/studies.py msf study/rows.jsonl",
    ),
    Drawn(
        "studies/speedup",
        ["_static/speedup.png"],
        "dsgd study speedup --demo --out study/ && python docs/figures/studies.py speedup study/rows.jsonl",
    ),
    Drawn(
        "studies/strategies",
        ["_static/strategies.png"],
        "dsgd study strategies --dataset ijcnn1 --rows 8000 --ranks 16 --simulated --network 10GbE "
        "--seeds 1 --out study/ && python docs/figures/studies.py strategies study/rows.jsonl",
    ),
    Drawn(
        "studies/transports",
        ["_static/transports-messages.png", "_static/transports-copies.png", "_static/transports-training.png"],
        "dsgd study transports --demo --out study/ && python docs/figures/studies.py transports study/rows.jsonl",
    ),
    Drawn(
        "studies/tuning",
        ["_static/tuning.png", "figures/tuning-regret.csv"],
        "dsgd study tuning --network 10GbE --every 16,64,256,1024,4096 --seeds 1 --out study/ && python "
        "docs/figures/studies.py tuning study/rows.jsonl",
    ),
    Drawn(
        "studies/variance",
        ["_static/variance.png"],
        "dsgd study variance --out study/ && python docs/figures/studies.py variance study/rows.jsonl",
    ),
    Drawn(
        "svm_scale",
        ["_static/svm-scale.png", "figures/svm-scale.csv"],
        "python -m benchmarks run svm/scale --out docs/figures/svm_scale.jsonl",
    ),
    Drawn(
        "svm_choice", ["_static/svm-choice.png"], "python -m benchmarks run choice --out docs/figures/svm_choice.jsonl"
    ),
)
#: Pictures of what programs show; no rows are behind them. The architecture has a test of its own.
TAKEN: Final = {
    "_static/architecture.svg": "python docs/figures/architecture.py",
    "_static/dashboard.png": "make report-screenshots",
    "_static/progress-line.png": "make report-screenshots",
    "_static/report.png": "python docs/figures/screenshots.py --docs gtopk gtopk",
}
