"""When the ranks take snapshots and checkpoints, and where they go.

Problem: a snapshot in memory every half second and a file every half minute must be of the same moment on all ranks,
although clocks differ and no rank may wait for a message that a peer does not send.

Method: rank 0 decides by its clock, and its decision is sent with messages that ranks exchange anyway: with the control
message at the end of an epoch and, inside a long epoch, with a short message every so many rounds. Their distance
doubles until they are about a quarter of a second apart, so short rounds are not disturbed.

Cost: an all-gather of a dozen numbers per look, a copy of the model per snapshot, a gathered state per file.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dsgd.errors import CheckpointError, PausedError
from dsgd.kernels import state as places
from dsgd.runtime.checkpoints.checkpoint import (
    AUTO,
    CheckpointWriter,
    SavedState,
    Snapshot,
    find_newest,
    newest_own,
    place_to_resume,
    read_newest,
    share,
)
from dsgd.runtime.checkpoints.container import describe
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.job import TrainData, TrainJob
from dsgd.runtime.train.state import OWN_MEMORY, RETURNED, TrainState, adapted, is_exact, share_of
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import rejoin
from dsgd.types import AnyArray, FloatVector

#: Numbers that ranks add up to agree. Those of rank 0: whether to copy, whether to write, rounds to the next look; and
#: of all ranks: whether the rank was asked to stop.
N_WISHES: Final = 4
_COPY, _WRITE, _STRIDE, _PAUSE = range(N_WISHES)

_LOOK_S: Final = 0.25


class SnapshotSchedule:
    """Keeps the state of one rank, together with its peers."""

    def __init__(self, rank: Rank, job: TrainJob, data: TrainData, rows: list[int]) -> None:
        self._rank, self._rows, self._strategy = rank, rows, job.strategy
        self._keeper, self._target, self._resume_from = rank.keeper, job.checkpoint, job.resume_from
        self._clock = rank.ledger.clock
        self._writer = None if job.checkpoint is None else CheckpointWriter(job.checkpoint, self._clock)
        self._began = self._looked = self._copied = self._clock()
        self._stride = 1
        # Threads that share a model have one, and would take the mean of it in each other's way.
        self._is_shared = job.strategy.shares_memory
        self._differ = job.strategy.exchanges == "model" and not job.strategy.ends_equal and not self._is_shared
        self._mixes = job.strategy.talks != "together" and not job.strategy.n_servers
        # Threads of one process have no job on a cluster; each fit is one.
        self._job_id = rank.job_id or secrets.token_hex(8)
        #: What the user should know when training has ended; mostly nothing.
        self.note = ""
        self._configuration: Mapping[str, Any] = {}
        self._digests: AnyArray = np.zeros(0, dtype=np.int64)
        self._content = np.zeros(1, dtype=np.uint64)
        if job.checkpoint is not None or job.resume_from is not None:
            self._configuration = _configuration(job)
            content = data.shard.content() + (0 if data.validation is None else data.validation.content())
            mine = np.array([data.shard.digest(), content % 2**64], dtype=np.uint64)
            gathered = rank.group.roll_call(mine.view(np.int64))
            self._digests = gathered[:, 0].copy()
            self._content = gathered[:, 1].view(np.uint64).sum(dtype=np.uint64, keepdims=True)

    @property
    def is_on(self) -> bool:
        """Whether anything is kept anywhere; the same on all ranks."""
        return self._keeper is not None or self._target is not None

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, those before it was interrupted among them."""
        return self._clock() - self._began

    @property
    def stride(self) -> int:
        """Rounds from one look to the next; the same on all ranks."""
        return self._stride if self.is_on else sys.maxsize

    def recall(self, at: TrainState) -> str | None:
        """Go on from the newest state there is; called by all ranks.

        That is a snapshot in the memory of a rank, or a checkpoint of this same job that is as new; else the checkpoint
        that `resume_from` names.

        - returned: None if there is no saved state; else a note for the user about it, usually empty.
        """
        group = self._rank.group
        mine = None if self._keeper is None else self._keeper.latest
        note, arrays = "", None
        own = newest_own(self._target, self._rank, mine)
        mine = mine if own is None else Snapshot(own.position, own.arrays)
        root = None if self._keeper is None else find_newest(group, mine)
        if root is not None:
            if mine is not None and group.rank == root:
                note, arrays = "" if own is None else own.note, mine.arrays
        elif self._resumes():
            root = 0
            if self._resume_from is not None and group.rank == root:
                saved = read_newest(self._resume_from, self._configuration)
                self._check_rows(saved)
                note, arrays = saved.note, saved.arrays
        else:
            return None
        per_rank: list[str] = []
        if arrays is not None:
            arrays, per_rank = adapted(arrays, self._rows, at.handovers())
        shared = share(group, arrays, root, per_rank)
        at.take_up(shared, group.rank, self._rows)
        if self._is_shared:
            # Nobody may step on the model that another has yet to write.
            group.barrier()
        if shared["n_ranks"][0] == 1 and self._keeper is not None:
            epoch, number = (int(value) for value in shared["position"][:2])
            self._unite(at, self._keeper.latest, (epoch, int(shared["cut"][0]) + number))
        self._began -= at.elapsed_s
        return note

    def _resumes(self) -> bool:
        """Return whether there is a checkpoint to resume from; refuse a folder of another fit; called by all ranks."""
        group, is_asked = self._rank.group, self._resume_from == AUTO
        if group.rank == 0:
            self._resume_from = place_to_resume(self._target, self._resume_from, formed=self._rank.formed)
        if not is_asked:
            return self._resume_from is not None
        found = np.array([self._resume_from is not None], dtype=np.int64)
        group.broadcast(found, 0)
        return bool(found[0])

    def _unite(self, at: TrainState, mine: Snapshot | None, position: tuple[int, int]) -> None:
        """Replace the ranks' own state by its mean or sum over all copies of the restored moment.

        One copy has the row of its rank alone. Where ranks differ, its model and the memory of its strategy are not
        those of the others, which would be lost though their ranks live.
        """
        of_model = {"params", "received"} if self._differ else set()
        if self._mixes:
            # The model is part of the common state.
            of_model.discard("params")
        names = [name for name in at.own() if name.startswith(OWN_MEMORY) or name in of_model]
        if not names:
            return
        has_copy = mine is not None and mine.position == position and mine.preferred
        copies = np.array([has_copy, mine.n_rows if mine is not None and has_copy else 0], dtype=np.float64)
        n_rows = float(copies[1])
        self._rank.group.allreduce(copies)
        if copies[0] < 2.0:
            return
        share, how = share_of(self._rank.number, self._rows), at.handovers()
        for name in names:
            vector = at.own()[name]
            if how[name] not in ("mean", "sum"):
                continue
            if mine is not None and has_copy:
                vector[...] = mine.arrays[name][0].reshape(vector.shape)
            if how[name] == "mean":
                weighted_mean(self._rank.group, vector.reshape(-1), n_rows / copies[1])
            else:
                if not has_copy:
                    vector.fill(0.0)
                self._rank.group.allreduce(vector.reshape(-1))
                vector *= share
        if "received" in names:
            # With what weights have received goes what has been due.
            weighted_mean(self._rank.group, at.optimizer.counters[places.L1_TOTAL :][:1], n_rows / copies[1])
        rejoin(at.strategy, at.params)

    def look(self, at: TrainState, *, same_model: bool) -> None:
        """Keep the state inside an epoch, if it is time; called by all ranks after a synchronisation."""
        now = self._clock()
        gap_s = now - self._looked
        if gap_s < _LOOK_S / 2:
            self._stride *= 2
        elif gap_s > 2 * _LOOK_S:
            self._stride = max(1, self._stride // 2)
        self._looked = now
        agreed, counters = self.wishes(), None
        self._rank.group.tally(agreed, agreed[:0])
        if agreed[_COPY] or agreed[_WRITE]:
            counters = self._rank.group.roll_call(at.optimizer.counters)
        self._keep(at, agreed, counters, same_model=same_model)

    def wishes(self) -> FloatVector:
        """Return this rank's part of the sum in which ranks agree, shape (N_WISHES,)."""
        wishes = np.zeros(N_WISHES)
        wishes[_PAUSE] = self._keeper is not None and self._keeper.pause_requested
        if self._rank.number == 0:
            now = self._clock()
            wishes[_COPY] = self._keeper is not None and now - self._copied >= self._keeper.every_s
            wishes[_WRITE] = self._writer is not None and self._writer.is_due
            wishes[_STRIDE] = self._stride
        return wishes

    def end_epoch(self, at: TrainState, agreed: FloatVector, *, is_last: bool, same_model: bool) -> None:
        """Keep the state at the end of an epoch, if it is time; called by all ranks."""
        pause = agreed[_PAUSE] > 0 and not is_last
        agreed[_COPY] = (agreed[_COPY] or pause) and not is_last
        agreed[_WRITE] = (agreed[_WRITE] or is_last) and self._target is not None
        self._looked = self._clock()
        counters = None
        if agreed[_COPY] or agreed[_WRITE]:
            counters = self._rank.group.roll_call(at.optimizer.counters)
        self._keep(at, agreed, counters, same_model=same_model, is_last=is_last)
        if pause:
            raise PausedError(f"the ranks stopped before epoch {at.epoch + 1}, as requested")

    def _keep(
        self, at: TrainState, agreed: FloatVector, counters: AnyArray | None, *, same_model: bool, is_last: bool = False
    ) -> None:
        self._stride = int(agreed[_STRIDE])
        if counters is None or not (agreed[_COPY] or agreed[_WRITE]):
            return
        common = at.common(counters, self._rows, self.elapsed_s)
        if self._mixes:
            common[RETURNED] = at.params.copy()
            share = share_of(self._rank.number, self._rows)
            self._strategy.collect(self._rank.group, common[RETURNED], share, at.strategy)
        if agreed[_COPY] and self._keeper is not None:
            n_rows = self._rows[self._rank.number]
            self._keeper.keep(Snapshot(at.position, {**common, **at.copied()}, n_rows))
            self._copied = self._clock()
        vectors: dict[str, AnyArray] = {}
        if agreed[_WRITE] and self._target is not None:
            vectors = at.gathered(self._rank.group, same_model=same_model)
        if self._is_shared:
            # The others would step on while the model is copied.
            self._rank.group.barrier()
        if agreed[_WRITE] and self._writer is not None and self._rank.number == 0:
            arrays = {**common, **vectors, "digests": self._digests, "content": self._content}
            position, size, formed = at.position, self._rank.size, self._rank.formed
            state = SavedState(position, size, self._configuration, arrays, "", self._job_id, formed)
            if is_last:
                self.note = self._writer.write_last(state)
            else:
                self._writer.write(state)

    def _check_rows(self, saved: SavedState) -> None:
        before, now = saved.arrays["rows"].tolist(), self._rows
        where = f"resume_from={self._resume_from!r}"
        # Those held out are of the content too, and how many they are depends on how rows are divided.
        content = saved.arrays.get("content")  # versions before did not write it
        is_same = sum(before) == sum(now) if content is None else np.array_equal(content, self._content)
        if not is_same and sum(before) != sum(now):
            raise CheckpointError(f"{where} was trained on {sum(before)} rows, this fit has {sum(now)}.")
        if is_exact(saved.arrays, now) and (other := np.flatnonzero(saved.arrays["digests"] != self._digests)).size:
            raise CheckpointError(
                f"{where} was trained on other rows: those of rank {other[0]} differ. Fit with the same data, cut the "
                "same way."
            )
        if not is_same:
            raise CheckpointError(f"{where} was trained on other rows, though as many. Fit with the same data.")


def _configuration(job: TrainJob) -> dict[str, Any]:
    """Return what must not change between a checkpoint and the fit that resumes from it."""
    parts = {
        "optimizer": job.optimizer,
        "strategy": job.strategy,
        "initial": job.initial,
        "tol": job.tol,
        "n_iter_no_change": job.n_iter_no_change,
        "early_stopping": job.early_stopping,
        "scoring": job.scoring,
        "t_start": job.t_start,
        "average_start": job.average_start,
        "n_averaged": job.n_averaged,
        **({"restore_best": True} if job.restore_best else {}),
        **job.source,
    }
    return {name: describe(value) for name, value in parts.items()}
