"""A scenario: one fault, at one step, of one kind of fit; how it is drawn, played and judged."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from distributed import Client

from chaos.faults import FAULTS
from chaos.gates import Gates, Visit
from chaos.harness import Cluster, Fit, Outcome
from chaos.neighbour import Neighbour
from chaos.nodes import FitOrder
from chaos.scene import ALL, NONE, STEPS, Fault, Scene
from gang_cluster import addresses, jobs_of, wait_until

KINDS = ("delayed", "array", "numpy")
POLICIES = ("raise", "restart", "shrink")
# A rank that hangs is found after this long.
HUNG_AFTER_S = 3.0
# How far the accuracy of a model may be from that of an undisturbed fit.
_TOLERANCE = 0.005
# Enough of them for a model that more of them do not change much.
_EPOCHS = 50
# The rest of a fit that continues lasts about this long, so that a fault falls into its middle.
_LONG_S = 1.5
# The first fit after a change of a kernel compiles it.
_COMPILE_S = 240.0
# The scheduler may stand still for most of it.
_OUTCOME_S = 150.0


@dataclass(frozen=True)
class Scenario:
    """What happens.

    Parameters
    ----------
    fault, step : str
        What goes wrong, and when.
    policy : str
        ``on_failure`` of the fit.
    kind : str
        What its rows are passed as.
    n_fits : int
        How many fits want the workers at the same time; the first one is hit.
    n_threads : int
        Threads of each worker.
    victim : int
        Which worker is hit, in the order of their ranks.
    delay_s : float
        In the step ``"training"``: how long after the first epochs.
    seed : int
        Of what else the fault draws.
    """

    fault: str
    step: str
    policy: str = "raise"
    kind: str = "delayed"
    n_fits: int = 1
    n_threads: int = 1
    victim: int = 1
    delay_s: float = 0.0
    seed: int = 0


def draw(seed: int, number: int) -> Scenario:
    """Return scenario `number` of a seed; every (seed, number) gives the same one on every machine."""
    rng = random.Random(f"{seed}:{number}")
    step = rng.choice(STEPS)
    fault = rng.choice([fault.name for fault in FAULTS.values() if step in fault.steps])
    return Scenario(
        fault=fault,
        step=step,
        policy=rng.choice(POLICIES),
        kind="delayed" if step == "plan" else rng.choice(KINDS),
        n_fits=rng.choices([1, 2, 3], [6, 3, 1])[0],
        n_threads=1 + number // 10 % 2,  # a cluster serves ten scenarios
        victim=rng.randrange(3),
        delay_s=rng.uniform(0.0, 0.3),
        seed=rng.randrange(2**31),
    )


def measure(cluster: Cluster) -> None:
    """Fit once undisturbed: what a right model is, and how long an epoch takes."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = Fit(cluster, FitOrder(Gates(folder), "delayed", _EPOCHS)).outcome(_COMPILE_S)
    assert outcome.kind == "model", outcome
    assert outcome.facts["ranks"] == cluster.n_ranks, outcome.facts
    assert outcome.facts["accuracy"] > 0.85, outcome.facts
    cluster.accuracy = outcome.facts["accuracy"]
    cluster.epoch_s = outcome.facts["train_s"] / _EPOCHS


def play(cluster: Cluster, scenario: Scenario, **facts: Any) -> dict[str, Any]:
    """Play a scenario, check how it ended and what it left, and return a row of `facts` and what was measured.

    Raises
    ------
    AssertionError
        A fit ended as it must not, something was left, or the cluster does not train any more.
    """
    row: dict[str, Any] = {**asdict(scenario), **facts, "commit": os.environ.get("CHAOS_COMMIT", "")}
    complaint = "wrong end"
    try:
        with tempfile.TemporaryDirectory() as folder, cluster.observer() as observer:
            neighbour = Neighbour(observer)
            performance = _Play(cluster, scenario, observer, Path(folder))
            row |= performance.run()
            if FAULTS[scenario.fault].hits != ALL:
                complaint = "harmed"
                losses = neighbour.losses(performance.hit)
                assert not losses, f"another user was harmed: {losses}"
            neighbour.leave()
            complaint = "left behind"
            if scenario.fault != "scheduler SIGKILL":
                cluster.heal(observer)
                cluster.check_clean(observer)
                complaint = "wrong end"
                _check_after(cluster, observer)
        if scenario.fault == "scheduler SIGKILL":
            cluster.restart()
            with cluster.observer() as observer:
                _check_after(cluster, observer)
    except BaseException as failure:
        _note({**row, "passed": False, "complaint": complaint, "failure": f"{type(failure).__name__}: {failure}"})
        raise
    _note({**row, "passed": True})
    return row


def _check_after(cluster: Cluster, observer: Client) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outcome = Fit(cluster, FitOrder(Gates(folder), "delayed", _EPOCHS)).outcome()
    complaint = _judge_model(outcome, cluster, "the fit after it")
    assert complaint is None, complaint
    assert outcome.facts["ranks"] == cluster.n_ranks, outcome.facts
    cluster.check_clean(observer)


def _judge_model(outcome: Outcome, cluster: Cluster, what: str) -> str | None:
    if outcome.kind != "model":
        return f"{what} gave no model: {outcome}"
    if not outcome.facts["finite"] or abs(outcome.facts["accuracy"] - cluster.accuracy) > _TOLERANCE:
        return f"{what} gave a wrong model: {outcome.facts['accuracy']}, not {cluster.accuracy}"
    return None


def _note(row: dict[str, Any]) -> None:
    """Append the row to the file that CHAOS_ROWS names."""
    if path := os.environ.get("CHAOS_ROWS"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("a") as file:
            file.write(json.dumps(row) + "\n")


class _Play:
    """One performance of a scenario."""

    def __init__(self, cluster: Cluster, scenario: Scenario, observer: Client, folder: Path) -> None:
        self.cluster, self.scenario, self.observer, self.folder = cluster, scenario, observer, folder
        self.fault: Fault = FAULTS[scenario.fault]
        self.rng = random.Random(scenario.seed)
        self.fits: list[Fit] = []
        self._bystanders: list[Fit] = []
        self._killed: list[Fit] = []
        self.hit: set[str] = set()

    def run(self) -> dict[str, Any]:
        scenario = self.scenario
        try:
            occupier = self._fit("occupier", "first round", kind="delayed") if scenario.step == "queue" else None
            if occupier is not None:
                assert occupier.reaches("first round", self.cluster.n_ranks), "the occupier does not train"
            target = self._fit("target", scenario.step, kind=scenario.kind)
            victim = self._await_step(target, occupier)
            self.hit = set() if self.fault.hits == NONE else {victim.worker}
            others = [self._fit(f"other{k}", "", kind="delayed") for k in range(1, scenario.n_fits)]
            assert all(other.says("up") for other in others), "another client did not come"
            self._bystanders += [fit for fit in (occupier, *others) if fit is not None]
            if scenario.step not in ("plan", "after"):
                waited = all(other.says("queued") for other in others)
                # Nothing holds a fit in the middle of its training: on a busy machine it may be over by now.
                assert waited or target.has_ended(), "another fit did not wait its turn"
            scene = Scene(self.cluster, self.observer, target, victim, scenario.step, self._second_user)
            begin = time.monotonic()
            self.fault.inject(scene, self.rng)
            for fit in self.fits:
                fit.gates.open()
            outcome = target.outcome(_OUTCOME_S)
            complaints = [self._judge(outcome, begin)]
            if outcome.kind == "killed":
                wait_until(lambda: self.observer.run_on_scheduler(_jobs_of_dead_clients))
                outcome = replace(outcome, at_s=time.monotonic())
            if not self.fault.is_harmless:
                scene.end()
            complaints += [self._judge_bystander(fit.outcome(_OUTCOME_S)) for fit in self._bystanders]
            for fit in self._killed:
                fit.outcome(_OUTCOME_S)
            scene.end()
            assert not any(complaints), "; ".join(filter(None, complaints))
        finally:
            for fit in self.fits:
                fit.close()
        resumed = [visit.at_s - begin for visit in target.gates.visits("first round") if visit.at_s > begin]
        return {
            **asdict(scenario),
            "outcome": outcome.kind,
            "error": outcome.name,
            "seconds": None if scenario.step == "after" else outcome.at_s - begin,
            "resumed_s": min(resumed, default=None) if outcome.kind == "model" else None,
        }

    def _second_user(self, *, killed: bool) -> Fit:
        fit = self._fit("second user", "", kind="numpy")
        (self._killed if killed else self._bystanders).append(fit)
        return fit

    def _fit(self, name: str, held: str, *, kind: str) -> Fit:
        folder = self.folder / name
        folder.mkdir()
        late = (self.scenario.victim + self.rng.randrange(2)) % self.cluster.n_workers
        epochs = int(min(20_000, max(2 * _EPOCHS, _LONG_S * self.scenario.n_fits / self.cluster.epoch_s)))
        goes_on = name == "target" and self.scenario.step in ("training", "epoch end")
        order = FitOrder(
            Gates(str(folder), held if held != "training" else "", late * self.cluster.n_threads),
            kind,
            epochs if goes_on else _EPOCHS,
            hung_after_s=HUNG_AFTER_S,
            policy=self.scenario.policy if name == "target" else "raise",
        )
        if name == "target":
            order = replace(order, **self.fault.order)
        fit = Fit(self.cluster, order)
        self.fits.append(fit)
        return fit

    def _await_step(self, target: Fit, occupier: Fit | None) -> Visit:
        """Wait until the fit has come to the step, and return who is to be hit."""
        step, number = self.scenario.step, self.scenario.victim
        if step == "after":
            # The process of the client may be gone; the workers are those of its ranks.
            visits = target.reaches("collect", self.cluster.n_ranks)
            target.says("model")
        elif step == "queue":
            assert occupier is not None
            assert target.says("queued"), "the fit did not wait for the one before"
            visits = occupier.gates.visits("first round")
        elif step == "plan":
            visits = target.reaches("plan", 1)
        elif step == "rendezvous":
            visits = target.reaches("load", self.cluster.n_workers)
            wait_until(lambda: not self.observer.run_on_scheduler(addresses))
        elif step in ("training", "epoch end"):
            # Only rank 0 comes by there; the others are where they began.
            assert target.reaches(step, 1), f"nobody came to {step}"
            visits = target.gates.visits("first round")
            time.sleep(self.scenario.delay_s if step == "training" else 0.0)
        else:
            visits = target.reaches(step, self.cluster.n_workers if step == "load" else self.cluster.n_ranks)
        assert visits, f"nobody came to {step}"
        return next((visit for visit in visits if visit.number // self.cluster.n_threads == number), visits[0])

    def _judge(self, outcome: Outcome, begin: float) -> str | None:
        """Return what is wrong with how the fit ended, or None."""
        fault, step = self.fault, self.scenario.step
        survives = self.scenario.policy != "raise" and fault.survived and step not in ("plan", "queue")
        if outcome.kind == "model":
            fine = survives or fault.is_harmless or fault.passes or step in ("plan", "queue", "collect", "after")
            # On a machine that was busy elsewhere the fit may have been over when the fault came.
            fine = fine or outcome.at_s < begin
            return _judge_model(outcome, self.cluster, "the fit") if fine else f"the fit went on: {outcome}"
        if survives and outcome.kind == "error":
            return f"the fit did not survive: {outcome.name} {outcome.text}"
        if outcome.kind not in fault.outcomes:
            return f"the fit ended otherwise than it should: {outcome}"
        if outcome.kind == "error" and outcome.name not in self._errors():
            return f"the fit raised {outcome.name}, not {sorted(self._errors())}: {outcome.text}"
        return None

    def _errors(self) -> set[str]:
        errors = set(self.fault.errors)
        if self.scenario.step in ("plan", "queue") and self.scenario.kind == "numpy":
            errors.add("ClusterError")  # rows that the client sent are gone with their worker
        return errors

    def _judge_bystander(self, outcome: Outcome) -> str | None:
        """Return what is wrong with a fit that was not hit itself but shares the cluster, or None."""
        if outcome.kind == "model":
            return _judge_model(outcome, self.cluster, "another fit")
        # By now it may have the worker that was hit, which goes for good when the fault is over.
        allowed = self.fault.errors | ({"WorkerLostError"} if self.fault.hits != NONE else set())
        if outcome.kind == "error" and outcome.name in allowed:
            return None
        return f"another fit ended otherwise than it should: {outcome}"


def _jobs_of_dead_clients(dask_scheduler: Any) -> list[str]:
    return [job.job_id for job in jobs_of(dask_scheduler) if job.client not in dask_scheduler.clients]
