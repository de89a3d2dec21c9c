"""Known defects, planted one by one: the tests that ought to find each must fail.

``make mutations``, or ``python tests/mutations.py --quick --only NAME --processes 2 --out rows.jsonl``.

A mutation replaces one passage of one file, in a copy of the tree, and names the modules or folders of tests that are
run there: those whose claim it breaks. It is killed by the first test that fails, by a crash, or by a hang. One that
survives is a hole in the tests, or changes nothing that anybody can observe and does not belong here. In the end all
tests that killed one run on the tree as it is, where they must pass.

A mutation goes with the passage that it replaces; ``--check`` says which no longer occur once, and so does a test.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
#: Kernels of mutants are told apart by their code, so that all share a folder and compile only what has changed.
KERNELS: Final = Path(tempfile.gettempdir()) / "dsgd-mutations-kernels"
#: What is copied, and where to: in the copy ``import dsgd`` needs no import hook. Everything else is linked.
COPIED: Final = {
    "dsgd": "dsgd",
    "svm": "dsgd/svm",
    "datasets": "dsgd/datasets",
    "tests": "tests",
    "pyproject.toml": "pyproject.toml",
}


@dataclass(frozen=True)
class Mutation:
    """A defect that somebody could introduce.

    Parameters
    ----------
    name : str
        What is wrong.
    file : str
        Where.
    old, new : str
        The passage, which occurs there once, and what takes its place.
    tests : str
        Modules or folders of tests that ought to find it, below ``tests``, separated by blanks.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str

    @property
    def paths(self) -> list[str]:
        """The tests, from the root of the tree."""
        return [f"tests/{path}" for path in self.tests.split()]


FAMILIES: Final[Mapping[str, Sequence[Mutation]]] = {
    "kernels": (
        Mutation(
            "a prediction of zero is no mistake of the perceptron",
            "dsgd/kernels/losses.py",
            "active = 1.0 if gap >= 0.0 else 0.0",
            "active = 1.0 if gap > 0.0 else 0.0",
            "local/test_sgd.py",
        ),
        Mutation(
            "the huber loss has no constant beyond its corner",
            "dsgd/kernels/losses.py",
            "loss = slope * (r - 0.5 * slope)",
            "loss = slope * r",
            "local/test_sgd.py kernels/test_kernels.py",
        ),
        Mutation(
            "averaging begins a step late",
            "dsgd/kernels/sgd.py",
            "averages = 0 < codes[AVERAGE] <= t",
            "averages = 0 < codes[AVERAGE] < t",
            "local/test_sgd.py",
        ),
        Mutation(
            "chunks of rows stay where they are",
            "dsgd/kernels/row_order.py",
            "chunks[c], chunks[other] = chunks[other], chunks[c]",
            "chunks[c], chunks[other] = chunks[c], chunks[other]",
            "kernels/test_row_order.py",
        ),
        Mutation(
            "members of one place come by their class",
            "dsgd/local/order.py",
            "np.argsort(offsets)",
            "np.arange(n_classes)",
            "kernels/test_row_order.py",
        ),
        Mutation(
            "rows are dealt to ranks in turn",
            "dsgd/kernels/row_order.py",
            "j = _below(draw(stream, np.uint64(begin)), sizes[level])",
            "j = 0",
            "kernels/test_row_order.py",
        ),
        Mutation(
            "ranks visit neighbours at the same time",
            "dsgd/estimators/packing.py",
            "self.seed + _SEED_STEP * rank_number",
            "self.seed",
            "inputs/test_blocks.py",
        ),
        Mutation(
            "a wipe forgets the row before",
            "dsgd/kernels/sgd.py",
            "was_wiped, before = is_wiped, (first, last)",
            "was_wiped, before = is_wiped, (first, first)",
            "local/test_sgd.py",
        ),
        Mutation(
            "the L1 penalty is charged twice",
            "dsgd/kernels/penalties.py",
            "max(0.0, weight - (owed_total + received))",
            "max(0.0, weight - owed_total)",
            "laws/test_l1.py",
        ),
        Mutation(
            "Adam does not correct the bias of its squares",
            "dsgd/kernels/rules.py",
            "1.0 - beta1 ** steps[0], 1.0 - beta2 ** steps[0]",
            "1.0 - beta1 ** steps[0], 1.0",
            "local/test_rules.py",
        ),
        Mutation(
            "QSGD rounds to the nearest level",
            "dsgd/kernels/quantize.py",
            "np.int64(_chance(key, i) < level - whole)",
            "np.int64(0.5 < level - whole)",
            "compress/test_compress.py",
        ),
        Mutation(
            "rows that are drawn often count in full",
            "dsgd/kernels/importance.py",
            "gain = eta * weight * row_weights[i]",
            "gain = eta * row_weights[i]",
            "local/test_importance.py",
        ),
        Mutation(
            "SAGA forgets the mean slope of the intercept",
            "dsgd/kernels/variance.py",
            "                mean[n_weights + k] += refresh * change\n",
            "",
            "local/test_variance.py",
        ),
        Mutation(
            "fused rounds fold the wrong ranks",
            "dsgd/kernels/rounds.py",
            "rank, part = k + min(k, n_folded), parts[k]",
            "rank, part = k, parts[k]",
            "sync/test_rounds.py",
        ),
        Mutation(
            "a class that came late counts as zero in the average",
            "dsgd/estimators/growth.py",
            "np.maximum(n_averaged - absent, 1)",
            "np.maximum(n_averaged + 0 * absent, 1)",
            "estimators/test_growth.py",
        ),
        Mutation(
            "a step of SMO leaves the box of the second variable",
            "svm/kernel_solver/smo.py",
            "t = min((f[j] - f[i]) / eta, room_i, room_j)",
            "t = min((f[j] - f[i]) / eta, room_i)",
            "svm/test_smo.py",
        ),
        Mutation(
            "the gap of an SVM forgets the variables at zero",
            "svm/kernel_solver/duality.py",
            "return float((upper[wrong] - alpha[wrong]) @ slack[wrong] - alpha[~wrong] @ slack[~wrong])",
            "return float(-alpha[~wrong] @ slack[~wrong])",
            "svm/test_class_pairs.py",
        ),
        Mutation(
            "of equal candidates that of the lower rank wins",
            "svm/kernel_solver/selection.py",
            "if a[i] < b[j] or (a[i] == b[j] and a[size + i] <= b[size + j]):",
            "if a[i] <= b[j]:",
            "svm/test_selection.py",
        ),
        Mutation(
            "screening along a path believes that nothing moves",
            "svm/certify/screening.py",
            "np.sqrt(0.25 * (ratio - 1.0) ** 2 * square + ratio * gap)",
            "np.sqrt(ratio * gap)",
            "svm/test_screening.py",
        ),
        Mutation(
            "rows of variables at a bound stay in the cache as long as others",
            "svm/kernels/cache.py",
            "        self._used[slots] -= _LONG_AGO\n",
            "",
            "svm/test_kernel_matrix.py",
        ),
        Mutation(
            "coefficients at the elimination of a sample are those of later",
            "svm/kernel_solver/elimination.py",
            "is_fresh = ~mask_of(self.changed, n)[changed]",
            "is_fresh = np.ones(len(changed), dtype=np.bool_)",
            "svm/test_elimination.py",
        ),
        Mutation(
            "gamma='scale' of sparse rows forgets their zeros",
            "svm/kernels/functions.py",
            "values = (values - mean) ** 2 - mean * mean",
            "values = (values - mean) ** 2",
            "svm/test_kernel_solver.py",
        ),
        Mutation(
            "sigmoids are fitted to zeros and ones",
            "svm/calibration.py",
            "target = np.where(is_first, (n_first + 1) / (n_first + 2), 1 / (n_second + 2))",
            "target = np.where(is_first, 1.0, 0.0)",
            "svm/test_probability.py",
        ),
        Mutation(
            "pairs of classes are dealt the shortest first",
            "svm/distributed/dealing.py",
            "np.argsort(-np.asarray(costs, dtype=np.float64)",
            "np.argsort(np.asarray(costs, dtype=np.float64)",
            "svm/test_dealing.py",
        ),
        Mutation(
            "the ball of a linear model is around its weights",
            "svm/certify/linear.py",
            "rows.scores(0.5 * (weights + combined), team)",
            "rows.scores(weights, team)",
            "svm/test_screening.py",
        ),
        Mutation(
            "columns are screened with too small a radius",
            "dsgd/linear_model/sparse_newton.py",
            "np.sqrt(2.0 * found.gap) * norms",
            "np.sqrt(0.02 * found.gap) * norms",
            "linear_model/test_linear_models.py",
        ),
        Mutation(
            "every rank adds the penalty to the objective",
            "dsgd/linear_model/problem.py",
            "penalty = self.penalty(weights) if team.leads else 0.0",
            "penalty = self.penalty(weights)",
            "linear_model/test_distributed.py",
        ),
    ),
    "sync": (
        Mutation(
            "the centre of EASGD runs away from the models",
            "dsgd/sync/elastic.py",
            "centre += pull",
            "centre -= pull",
            "laws/test_exchanges.py",
        ),
        Mutation(
            "SGP steps at the mass",
            "dsgd/sync/gossip.py",
            "np.divide(self.mass[:-1], self.mass[-1], out=params)",
            "params[:] = self.mass[:-1]",
            "laws/test_exchanges.py",
        ),
        Mutation(
            "means are weighted by rows whatever the rates were",
            "dsgd/sync/weighing.py",
            "shares[has_rows] = n[has_rows] / sums",
            "shares[has_rows] = n[has_rows]",
            "laws/test_fixed_points.py",
        ),
        Mutation(
            "outer momentum does not decay",
            "dsgd/sync/outer.py",
            "    velocity *= one(beta)\n",
            "",
            "laws/test_trajectories.py",
        ),
        Mutation(
            "compressed outer steps go on from the mean",
            "dsgd/sync/outer.py",
            "state.compression.reference[:] = vector",
            "pass",
            "laws/test_exchanges.py",
        ),
        Mutation(
            "SCAFFOLD keeps the common control in its own",
            "dsgd/sync/federated.py",
            "            own -= state.common\n",
            "",
            "laws/test_exchanges.py",
        ),
        Mutation(
            "prices of ADMM push the wrong way",
            "dsgd/sync/contrib/admm.py",
            "(params - consensus + dual)",
            "(params - consensus - dual)",
            "laws/test_fixed_points.py",
        ),
        Mutation(
            "a late mean overwrites the steps of the round",
            "dsgd/sync/delayed.py",
            "        self._mean -= self._held\n        params += self._mean\n",
            "        params[:] = self._mean\n",
            "sync/test_overlap.py",
        ),
        Mutation(
            "a rank whose loss is no number leads",
            "dsgd/sync/leaders.py",
            "return np.where(np.isnan(scores), np.inf, scores)",
            "return scores",
            "laws/test_exchanges.py",
        ),
        Mutation(
            "shares under way before the first rounds are forgotten",
            "dsgd/sync/async_gossip.py",
            "        for to_come in range(k, self.delay):\n            mass += state.sent[to_come]\n",
            "",
            "laws/test_exchanges.py",
        ),
        Mutation(
            "a late gradient counts in the next round",
            "dsgd/sync/parameter_server.py",
            'if message.head["version"] == model.version:',
            'if message.head["version"] <= model.version:',
            "sync/test_async_handlers.py",
        ),
        Mutation(
            "slack is counted from the fastest worker",
            "dsgd/sync/parameter_server.py",
            "limit = min(self._sent[other] for other in self.model.working) + self._slack",
            "limit = max(self._sent[other] for other in self.model.working) + self._slack",
            "sync/test_async_handlers.py",
        ),
        Mutation(
            "delays are compensated from the first model",
            "dsgd/sync/parameter_server.py",
            "out[:] = self._given[worker] = self.model.params",
            "out[:] = self.model.params",
            "sync/test_async_handlers.py",
        ),
        Mutation(
            "Metropolis weights look at one end of an edge",
            "dsgd/comm/topology/mixing.py",
            "1.0 / (1 + max(degree, d))",
            "1.0 / (1 + degree)",
            "comm/test_topology.py",
        ),
        Mutation(
            "what a compressor leaves out is lost",
            "dsgd/collectives/compressed/encoding.py",
            "        if rest is not None:\n            compressor.decode(payload, rest, -1.0)\n",
            "        if rest is not None:\n            rest.fill(0.0)\n",
            "laws/test_conservation.py",
        ),
        Mutation(
            "error feedback sends the same again",
            "dsgd/compress/feedback.py",
            "        self.compressor.decode(payload, memory.residual, -1.0)\n",
            "",
            "compress/test_compress.py",
        ),
        Mutation(
            "momentum of DGC is not carried on by what waits",
            "dsgd/compress/residual.py",
            "        residual += velocity\n",
            "        residual += gained\n",
            "compress/test_compress.py",
        ),
    ),
    "collectives": (
        Mutation(
            "a ring passes on the chunk before",
            "dsgd/collectives/algorithms/ring.py",
            "sent, received = chunks[(number + 1 - step) % size], chunks[(number - step) % size]",
            "sent, received = chunks[(number - step) % size], chunks[(number - step - 1) % size]",
            "collectives/test_allreduce.py",
        ),
        Mutation(
            "a ring ends one chunk early",
            "dsgd/collectives/algorithms/ring.py",
            'by which the chunks go round from there."""\n    size = len(ranks)\n    for step in range(size - 1):',
            'by which the chunks go round from there."""\n    size = len(ranks)\n    for step in range(size - 2):',
            "collectives/test_allreduce.py",
        ),
        Mutation(
            "a half of Rabenseifner lacks its last chunk",
            "dsgd/collectives/algorithms/rabenseifner.py",
            "return Part(bounds[first], bounds[first + length])",
            "return Part(bounds[first], bounds[first + max(1, length - 1)])",
            "collectives/test_allreduce.py",
        ),
        Mutation(
            "the last step of Bruck sends what is there already",
            "dsgd/collectives/cost.py",
            "yield distance, min(distance, size - distance)",
            "yield distance, distance",
            "collectives/test_allgather.py",
        ),
        Mutation(
            "the price of a ring keeps the wrong chunk",
            "dsgd/collectives/cost.py",
            "first, second = (rank + 1) % size, (rank + 2) % size",
            "first, second = rank, (rank + 1) % size",
            "collectives/test_allreduce.py",
        ),
        Mutation(
            "the price of a tally forgets what leaders pass on",
            "dsgd/collectives/algorithms/tally.py",
            "n_own * (len(block) if leads else 1)",
            "n_own",
            "collectives/test_tally.py",
        ),
        Mutation(
            "frames sent are counted without their headers",
            "dsgd/sim/transport.py",
            "self.ledger.count(HEADER_BYTES + outgoing.nbytes)",
            "self.ledger.count(outgoing.nbytes)",
            "laws/test_bytes.py",
        ),
        Mutation(
            "a barrier holds a process alone",
            "dsgd/collectives/algorithms/hierarchical.py",
            "        if self._above is not None:\n            self._above.barrier()\n",
            "",
            "collectives/test_collectives.py comm/test_nested.py",
        ),
        Mutation(
            "every rank of a butterfly keeps what gTop-k drops",
            "dsgd/collectives/compressed/gtopk.py",
            "keeps=number % (2 * distance) == 0",
            "keeps=True",
            "collectives/test_compressed_mean.py",
        ),
        Mutation(
            "frames carry no number",
            "dsgd/comm/frames.py",
            "MAGIC, VERSION, dtype, op, job, epoch, flags, sequence, nbytes)",
            "MAGIC, VERSION, dtype, op, job, epoch, flags, 0, nbytes)",
            "comm/test_tcp.py",
        ),
        Mutation(
            "headers are not compared",
            "dsgd/comm/sockets/link.py",
            "        self.check_header()\n        self.fill(as_bytes(incoming)",
            "        self.fill(as_bytes(incoming)",
            "comm/test_transports.py",
        ),
        Mutation(
            "counters in shared memory are believed",
            "dsgd/comm/memory/streams.py",
            "    used = state[_WRITTEN] - load(control + _READ_AT)\n    if used < 0 or used > capacity:\n",
            "    used = state[_WRITTEN] - load(control + _READ_AT)\n    if used > capacity:\n",
            "comm/test_fuzz.py comm/test_shm.py",
        ),
        Mutation(
            "the way of a frame counts as wait",
            "dsgd/comm/sockets/link.py",
            "max(arrived_at - start - source.latency_s, 0.0)",
            "arrived_at - start",
            "comm/test_transports.py",
        ),
        Mutation(
            "mail of the lowest rank always comes first",
            "dsgd/comm/mailbox.py",
            "key=lambda rank: (rank - last - 1) % size",
            "key=lambda rank: rank",
            "comm/test_mailbox.py",
        ),
        Mutation(
            "a slow link is slow from one end",
            "dsgd/sim/network.py",
            "if sorted(hosts) == sorted(pair)",
            "if list(hosts) == pair",
            "sim",
        ),
        Mutation(
            "a slow round of a simulated rank slows no later one",
            "dsgd/sim/transport.py",
            "            if number != self._drawn[0]:\n",
            "            if self._drawn[0] < 0:\n",
            "sim/test_predict.py",
        ),
    ),
    "scheduler": (
        Mutation(
            "a queued job waits for a worker that has left",
            "dsgd/runtime/scheduler/registry.py",
            '            if job.phase != "closed":\n                self._fail(job, _failure("lost"',
            '            if job.phase == "granted":\n                self._fail(job, _failure("lost"',
            "runtime/test_registry.py runtime/test_registry_states.py",
        ),
        Mutation(
            "a worker is not released before the last of its gang",
            "dsgd/runtime/scheduler/registry.py",
            "        self._vacate(job, [job.members[member].worker])\n",
            "",
            "runtime/test_registry.py runtime/test_registry_states.py",
        ),
        Mutation(
            "whoever knows a job renews its lease",
            "dsgd/runtime/scheduler/registry.py",
            "        if job is not None and hmac.compare_digest(job.token, token):\n            job.renewed_at",
            "        if job is not None:\n            job.renewed_at",
            "runtime/test_registry.py",
        ),
        Mutation(
            "a job whose lease has ended keeps its workers",
            "dsgd/runtime/scheduler/registry.py",
            '"lapsed", _NOBODY, text))\n                self.close(job.job_id)\n',
            '"lapsed", _NOBODY, text))\n',
            "runtime/test_registry.py",
        ),
        Mutation(
            "a gang that was given up is heard",
            "dsgd/runtime/scheduler/registry.py",
            "if job is None or job.epoch != epoch or not hmac",
            "if job is None or not hmac",
            "runtime/test_registry_states.py",
        ),
        Mutation(
            "a rank that has ended is blamed for its silence",
            "dsgd/runtime/scheduler/registry.py",
            "(wait for wait in waits if wait[1] not in job.ended)",
            "waits",
            "runtime/test_registry.py",
        ),
        Mutation(
            "the last rank that noticed something tells its story",
            "dsgd/runtime/scheduler/registry.py",
            "        if not job.stopped:\n            job.suspicion = record\n",
            "        if job.failure is None:\n            job.suspicion = record\n",
            "runtime/test_registry.py",
        ),
        Mutation(
            "a gang that is formed again wipes the workers that stay",
            "dsgd/runtime/scheduler/registry.py",
            "if worker in job.opened and worker not in staying:",
            "if worker in job.opened:",
            "runtime/test_registry.py",
        ),
        Mutation(
            "a job in the queue has no lease",
            "dsgd/runtime/scheduler/registry.py",
            'if job.phase != "closed" and silence_s',
            'if job.phase == "granted" and silence_s',
            "runtime/test_registry.py",
        ),
        Mutation(
            "a gang that ends under suspicion is done",
            "dsgd/runtime/scheduler/registry.py",
            "if len(job.ended) == len(job.members) and not job.stopped else",
            "if len(job.ended) == len(job.members) else",
            "runtime/test_registry.py",
        ),
        Mutation(
            "whoever knows a job forms it again",
            "dsgd/runtime/scheduler/registry.py",
            "(before.epoch < epoch and before.client == client)",
            "before.epoch < epoch",
            "runtime/test_registry.py",
        ),
        Mutation(
            "jobs of a client that leaves are opened on the way",
            "dsgd/runtime/scheduler/registry.py",
            '        self.stop_of(client, "the client of the job left")\n',
            "",
            "runtime/test_registry.py",
        ),
        Mutation(
            "a later job takes workers that an earlier one waits for",
            "dsgd/runtime/scheduler/registry.py",
            "            taken.update(job.workers)\n",
            "            taken.update(() if is_blocked else job.workers)\n",
            "runtime/test_registry.py",
        ),
        Mutation(
            "the last to come is served first",
            "dsgd/runtime/scheduler/registry.py",
            "        for job in queue:\n",
            "        for job in queue[::-1]:\n",
            "runtime/test_registry.py",
        ),
        Mutation(
            "a scheduler that slept blames the workers",
            "dsgd/runtime/scheduler/vigil.py",
            "self._looked_at - max(heard_at, self._awake_since)",
            "self._looked_at - heard_at",
            "runtime/test_registry.py",
        ),
        Mutation(
            "a driver of before ends the fit of the present one",
            "dsgd/runtime/scheduler/detached.py",
            "if fit is None or fit.is_over or fit.attempts != attempt:",
            "if fit is None or fit.is_over:",
            "runtime/test_detached_fits.py",
        ),
        Mutation(
            "a driver may begin once too often",
            "dsgd/runtime/scheduler/detached.py",
            '        if fit.attempts > fit.restarts:\n            self._lose(fit, "left the cluster")\n',
            '        if fit.attempts > fit.restarts + 1:\n            self._lose(fit, "left the cluster")\n',
            "runtime/test_detached_fits.py",
        ),
        Mutation(
            "checksums of checkpoints are not compared",
            "dsgd/runtime/checkpoints/container.py",
            "if hashlib.sha256(body).digest() != digest:",
            "if len(body) < n_header:",
            "runtime/test_checkpoint_files.py",
        ),
        Mutation(
            "the oldest checkpoint is listed first",
            "dsgd/runtime/checkpoints/checkpoint.py",
            "key=lambda other: (own[other], other), reverse=True)",
            "key=lambda other: (own[other], other))",
            "runtime/test_checkpoint_files.py",
        ),
        Mutation(
            "another number of ranks takes up the state of other rows",
            "dsgd/runtime/train/snapshots.py",
            "if content is None else np.array_equal(content, self._content)",
            "if len(before) != len(now) else np.array_equal(content, self._content)",
            "runtime/test_checkpoints.py",
        ),
        Mutation(
            "partial_fit goes on with the memory of one rank on all",
            "dsgd/runtime/train/partial_fit.py",
            "if (column == column[0]).all() else group.gather(vector)",
            "if len(column) else group.gather(vector)",
            "laws/test_partial_fit.py",
        ),
        Mutation(
            "a resumed epoch begins with its first round",
            "dsgd/runtime/train/state.py",
            "self.cut, self.round, self.n_cut = Cut(tuple(starts), rounds), number, n_cut",
            "self.cut, self.round, self.n_cut = Cut(tuple(starts), rounds), 0, n_cut",
            "runtime/test_checkpoints.py",
        ),
        Mutation(
            "a new gang takes up the oldest snapshot",
            "dsgd/runtime/checkpoints/snapshot.py",
            "best = max(range(group.size), key=lambda rank: (*offers[rank], -rank))",
            "best = min(range(group.size), key=lambda rank: (*offers[rank], -rank))",
            "laws/test_handover.py",
        ),
    ),
}

MUTATIONS: Final = [mutation for members in FAMILIES.values() for mutation in members]


def faults() -> list[str]:
    """Return what is wrong with the list: passages that do not occur once, changes that are none, tests not there."""
    names = [mutation.name for mutation in MUTATIONS]
    found = [f"{name}: there are several of this name" for name in sorted(set(names)) if names.count(name) > 1]
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text(encoding="utf-8")
        if (n := text.count(mutation.old)) != 1:
            found.append(f"{mutation.name}: what it replaces occurs {n} times in {mutation.file}")
        elif _program(text) == _program(text.replace(mutation.old, mutation.new)):
            found.append(f"{mutation.name}: the program stays the same")
        found += [f"{mutation.name}: there is no {path}" for path in mutation.paths if not (ROOT / path).exists()]
    return found


def _program(text: str) -> str:
    """Return what Python reads; a SyntaxError is no defect that tests have to find."""
    return ast.dump(ast.parse(text))


class Tree:
    """A copy of the tree in a folder of its own, where tests run on what is planted there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        names = [name for name in listed.split("\0") if (ROOT / name).is_file()]
        for name in names:
            if name.split("/")[0] in COPIED:
                self.place(name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.place(name))
        for name in {name.split("/")[0] for name in names} - COPIED.keys():
            (folder / name).symlink_to(ROOT / name)
        # Before the folders of the editable install, whose import hook is asked last.
        paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        self._environment = {"NUMBA_CACHE_DIR": str(KERNELS), **os.environ, "PYTHONPATH": paths}
        code = "import dsgd, dsgd.datasets, dsgd.svm; print(dsgd.__path__, dsgd.datasets.__path__, dsgd.svm.__path__)"
        command = [sys.executable, "-c", code]
        said = subprocess.run(command, cwd=folder, env=self._environment, capture_output=True, text=True, check=True)
        if said.stdout.count(str(folder)) != 3:
            raise RuntimeError(f"imports find another tree: {said.stdout}")

    def place(self, name: str) -> Path:
        """Return where a file of the repository is in the copy."""
        top, _, rest = name.partition("/")
        return self._folder / COPIED[top] / rest

    @contextlib.contextmanager
    def planted(self, mutation: Mutation) -> Iterator[None]:
        """Have a defect for as long as the context lasts."""
        place, original = self.place(mutation.file), ROOT / mutation.file
        place.write_text(original.read_text(encoding="utf-8").replace(mutation.old, mutation.new), encoding="utf-8")
        try:
            yield
        finally:
            shutil.copy2(original, place)

    def test(self, *arguments: str, limit_s: float) -> tuple[int | None, list[str]]:
        """Run pytest; return how it has exited, None if it had to be stopped, and the tests that failed."""
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
        # Not a pipe, which a process that is left behind would keep open.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            process = self._running = subprocess.Popen(
                command, cwd=self._folder, env=self._environment, stdout=said, stderr=said, start_new_session=True
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None, []
            finally:
                self.stop()
            said.seek(0)
            summary = said.read().rpartition("short test summary info")[2]
        return code, re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", summary, re.MULTILINE)

    def stop(self) -> None:
        """End pytest, and what its tests have started: they are in its session."""
        running, self._running = self._running, None
        if running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def try_one(mutation: Mutation, tree: Tree, *, quick: bool, limit_s: float) -> dict[str, Any]:
    """Return a row: what has killed a mutation, None if nothing has, and after how long."""
    began = time.monotonic()
    with tree.planted(mutation):
        code, failed = tree.test("-x", *["--quick"] * quick, *mutation.paths, limit_s=limit_s)
    if code is None:
        killer: str | None = f"no end within {limit_s:g} s"
    elif code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"{mutation.name}: pytest finds no test in {', '.join(mutation.paths)} (exit {code})")
    elif code == pytest.ExitCode.OK:
        killer = None
    else:
        killer = failed[0] if failed else f"a crash (exit {code})"
    seconds = round(time.monotonic() - began, 1)
    test = failed[0] if failed else None
    return {"name": mutation.name, "quick": quick, "killed_by": killer, "test": test, "seconds": seconds}


def main() -> int:
    """Plant the defects; return 1 if one survives, or if a test that killed one fails without it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say what is wrong with the list")
    parser.add_argument("--quick", action="store_true", help="run the tests of `make test`, not all of them")
    parser.add_argument("--only", action="append", default=[], help="part of a name; may be given several times")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds until a run counts as a hang")
    parser.add_argument("--out", type=Path, help="a file to which a line of JSON is appended for each")
    asked = parser.parse_args()
    if wrong := faults():
        _say("\n".join(wrong))
    if wrong or asked.check:
        return int(bool(wrong))
    chosen = [m for m in MUTATIONS if not asked.only or any(part in m.name for part in asked.only)]
    if not chosen:
        parser.error(f"no mutation is named {' or '.join(asked.only)}")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dsgd-mutations-") as folder:
        trees = [Tree(Path(folder, str(k))) for k in range(asked.processes)]
        idle: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for tree in trees:
            idle.put(tree)

        def run(mutation: Mutation) -> dict[str, Any]:
            tree = idle.get()
            try:
                return try_one(mutation, tree, quick=asked.quick, limit_s=asked.limit)
            finally:
                idle.put(tree)

        with ThreadPoolExecutor(asked.processes) as pool:
            try:
                for future in as_completed([pool.submit(run, mutation) for mutation in chosen]):
                    rows.append(row := future.result())
                    _say(f"{row['name']}: {row['killed_by'] or 'SURVIVED'} ({row['seconds']} s)")
                    if asked.out:
                        with asked.out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(row) + "\n")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for tree in trees:
                    tree.stop()
                raise
        killers = sorted({row["test"] for row in rows if row["test"]})
        code, anyway = trees[0].test(*killers, limit_s=asked.limit) if killers else (0, [])
    survivors = [row["name"] for row in rows if row["killed_by"] is None]
    _say("; ".join([f"{len(rows)} mutations, {len(survivors)} survived", *survivors]))
    if code != 0:
        _say(f"killers fail on the tree as it is, too (exit {code}): {', '.join(anyway)}")
    return int(bool(survivors or code != 0))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
