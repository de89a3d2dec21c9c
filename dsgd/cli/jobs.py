"""``dsgd jobs``: the jobs of a scheduler, of all users."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dsgd.cli.options import as_text, connected, examples, print_facts, print_table
from dsgd.errors import ClusterError
from dsgd.printing import printable

if TYPE_CHECKING:
    from distributed import Client

    from dsgd.jobs import JobInfo


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

_LIST_EXAMPLES: Final = examples(
    "dsgd jobs list --scheduler tcp://10.0.0.5:8786", "dsgd jobs list --scheduler tcp://10.0.0.5:8786 --json"
)
_SHOW_EXAMPLES: Final = examples("dsgd jobs show 3f2a --scheduler tcp://10.0.0.5:8786")
_CANCEL_EXAMPLES: Final = examples("dsgd jobs cancel 3f2a --scheduler tcp://10.0.0.5:8786")
_FORGET_EXAMPLES: Final = examples("dsgd jobs forget 3f2a --scheduler tcp://10.0.0.5:8786")

_Scheduler = Annotated[str, typer.Option(help="The cluster at this address.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="The id of a job, or its first digits.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_COLUMNS: Final = ("id", "title", "state", "detached", "place", "ranks", "epoch", "strategy", "started", "owner")
_SHORT: Final = 8  # digits of an id in a table


@app.command("list", epilog=_LIST_EXAMPLES)
def list_(scheduler: _Scheduler, as_json: _Json = False) -> None:
    """List the jobs that run or wait, and detached fits until they are forgotten."""
    from dsgd.jobs import list_jobs

    with _client(scheduler) as client:
        jobs = list_jobs(client)
    if as_json:
        typer.echo(json.dumps([asdict(job) for job in jobs]))
        return
    print_table(_COLUMNS, [_cells(job) for job in jobs], numbers=range(4, 7))


@app.command("show", epilog=_SHOW_EXAMPLES)
def show(job_id: _Id, scheduler: _Scheduler, as_json: _Json = False) -> None:
    """Show everything that the scheduler knows about a job."""
    from dsgd.jobs import find_job

    with _client(scheduler) as client:
        job = find_job(job_id, client)
    if as_json:
        typer.echo(json.dumps(asdict(job)))
        return
    facts = asdict(job) | {"submitted": _clock(job.submitted), "started": _clock(job.started)}
    print_facts({name.replace("_", " "): value for name, value in facts.items()})


@app.command("cancel", epilog=_CANCEL_EXAMPLES)
def cancel(job_id: _Id, scheduler: _Scheduler) -> None:
    """Stop a job, of whichever user."""
    from dsgd.jobs import cancel as cancel_job
    from dsgd.jobs import find_job

    with _client(scheduler) as client:
        job = find_job(job_id, client)
        if not cancel_job(job.id, client):
            raise ClusterError(f"job {job.id} of {job.owner} has ended: it is {find_job(job.id, client).state}.")
    typer.echo(printable(f"stopped {job.title} {job.id} of {job.owner}"))


@app.command("forget", epilog=_FORGET_EXAMPLES)
def forget(job_id: _Id, scheduler: _Scheduler) -> None:
    """Release the result of a detached fit on the cluster; one that has not ended is stopped."""
    from dsgd.jobs import attach

    with _client(scheduler) as client:
        fit = attach(job_id, client=client)
        fit.forget()
    typer.echo(f"forgot {fit.id}")


@contextmanager
def _client(scheduler: str) -> Iterator[Client]:
    with connected(0, scheduler) as client:
        assert client is not None  # there is an address
        yield client


def _cells(job: JobInfo) -> list[str]:
    epoch = None if job.epoch is None else f"{job.epoch:,}/{job.max_iter:,}"
    values = (job.id[:_SHORT], job.title, job.state, job.detached, job.place, job.ranks, epoch, job.strategy)
    return [*map(as_text, values), _clock(job.started), job.owner]


def _clock(seconds: float | None) -> str:
    """Return a time of day, with its date, where the command runs."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
