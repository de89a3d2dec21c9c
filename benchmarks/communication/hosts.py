"""Several hosts on one machine: what a training run costs on networks of 100 Mbit/s and 1 Gbit/s.

Every host is a set of namespaces with an address, a name, shared memory and a network card of its own: a veth pair to
one bridge, limited by a token bucket in both directions. A real Dask scheduler and a client run on a host of their own,
worker processes on the others, and `dsgd.SGDClassifier` trains across them once for every period of synchronisation;
with ``--overlap`` also sending while it works. Of several repeats, which take turns, the run of median time is shown.
The namespaces have no names and no way out of the machine, and they end with the processes that hold them, so nothing
is left behind however the program ends.

    sudo python -m benchmarks run hosts --quick
    sudo python -m benchmarks run hosts --hosts 4 --rate 100mbit 1gbit --every 8 64 800 --out rows.jsonl
    sudo python -m benchmarks run hosts --only-worker-port        # a firewall that drops every other connection
    sudo python -m benchmarks run hosts --hosts 2 --rate 100mbit --every 32 64 128 --overlap --repeats 5
    sudo python -m benchmarks run hosts --protect tls             # what ranks of one host share is as without

Needs Linux, the commands of iproute2 and util-linux, and root, because only root may create network cards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.measuring import Options, Rows, table, waiting_share
from benchmarks.common.suite import ROOT, UnavailableError, child

PAGE = "synchronisation"
QUICK_S = 60
QUICK = "few rows, one rate"
REPEATS = (1, 1)

# Private addresses, which exist inside the namespaces alone.
SUBNET = "10.213.0"
SCHEDULER_PORT = 8786
WORKER_PORT = 9000
# A bucket must hold a segment that the sender has left whole for its network card to cut, which is up to 64 KB.
BURST = "128kb"
QUEUE = "50ms"
START_S = 300.0
LEAVE_S = 10.0
COMMANDS = ("ip", "tc", "unshare", "nsenter", "mount", "hostname")


class Hosts:
    """Network namespaces joined by one bridge; a context manager.

    Parameters
    ----------
    n : int
        How many hosts; they are numbered from 0.
    rate : str or None
        Bits per second of every network card in either direction, as ``tc`` reads it (``"100mbit"``); None: no limit.
    open_ports : sequence of int, optional
        Packets of TCP that neither come from one of these ports nor go to one are dropped on arrival.
    names : sequence of str, optional
        What hosts are called, and call each other; by default they are numbered, and know addresses alone.
    """

    def __init__(
        self, n: int, rate: str | None = None, open_ports: Sequence[int] = (), names: Sequence[str] = ()
    ) -> None:
        self.n, self.rate, self.open_ports, self.names = n, rate, tuple(open_ports), tuple(names)
        self._stack = contextlib.ExitStack()
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        with contextlib.ExitStack() as stack:
            switch = self._hold(stack)
            self._in(switch, "ip link add bridge type bridge")
            self._in(switch, "ip link set bridge up")
            for number in range(self.n):
                holder = self._hold(stack)
                self._holders.append(holder)
                self._in(switch, f"ip link add host{number} type veth peer name eth0 netns {holder.pid}")
                self._in(switch, f"ip link set host{number} master bridge up")
                self._in(holder, f"hostname {self.names[number] if self.names else f'host{number}'}")
                self._in(holder, "mount -t tmpfs shm /dev/shm")
                self._in(holder, "ip link set lo up")
                self._in(holder, f"ip address add {self.address(number)}/24 dev eth0")
                self._in(holder, "ip link set eth0 up")
                if self.rate is not None:
                    bucket = f"root tbf rate {self.rate} burst {BURST} latency {QUEUE}"
                    self._in(switch, f"tc qdisc add dev host{number} {bucket}")
                    self._in(holder, f"tc qdisc add dev eth0 {bucket}")
                if self.open_ports:
                    self._close_ports(holder)
            if self.names:
                self._tell_names(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
        self._holders.clear()

    def address(self, number: int) -> str:
        """Return the address of a host."""
        return f"{SUBNET}.{number + 1}"

    def start(self, number: int, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process on a host; the caller ends it."""
        return subprocess.Popen([*self._enter(self._holders[number]), *command], **options)

    def _hold(self, stack: contextlib.ExitStack) -> subprocess.Popen[bytes]:
        # The namespace lives as long as this process, and the process as long as its input is open.
        holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "sh", "-c", "echo ready; read line"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.callback(_end, holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ready\n":
            raise UnavailableError("this kernel or container allows no network namespaces.")
        return holder

    def _enter(self, holder: subprocess.Popen[bytes]) -> list[str]:
        return ["nsenter", "--target", str(holder.pid), "--net", "--mount", "--uts", "--"]

    def _in(self, holder: subprocess.Popen[bytes], command: str) -> None:
        done = subprocess.run([*self._enter(holder), *command.split()], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"`{command}` failed: {done.stderr.strip()}")

    def _tell_names(self, stack: contextlib.ExitStack) -> None:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "hosts"
        lines = [f"{self.address(number)} {name}\n" for number, name in enumerate(self.names)]
        file.write_text("".join(["127.0.0.1 localhost\n", *lines]))
        for holder in self._holders:
            self._in(holder, f"mount --bind {file} /etc/hosts")

    def _close_ports(self, holder: subprocess.Popen[bytes]) -> None:
        # Rules of routing are a firewall that every kernel has. The table of local addresses is asked after them.
        self._in(holder, "ip rule add pref 100 lookup local")
        self._in(holder, "ip rule del pref 0")
        for number, port in enumerate(self.open_ports):
            self._in(holder, f"ip rule add pref {10 + number} iif eth0 ipproto tcp dport {port} lookup local")
            self._in(holder, f"ip rule add pref {30 + number} iif eth0 ipproto tcp sport {port} lookup local")
        self._in(holder, "ip rule add pref 50 iif eth0 ipproto tcp blackhole")


def protection(protect: str, folder: Path) -> dict[str, str]:
    """Return the configuration of Dask, as environment, that protects what hosts send; certificates go to a folder."""
    if protect != "tls":
        return {}
    from distributed.security import Security

    made, prefix = Security.temporary(), "DASK_DISTRIBUTED__COMM__TLS__"
    found = {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True", f"{prefix}CA_FILE": str(folder / "ca.pem")}
    (folder / "ca.pem").write_text(str(made.tls_ca_file))
    for role in ("client", "scheduler", "worker"):
        for part in ("cert", "key"):
            file = folder / f"{role}-{part}.pem"
            file.write_text(str(getattr(made, f"tls_{role}_{part}")))
            found[f"{prefix}{role.upper()}__{part.upper()}"] = str(file)
    return found


@contextlib.contextmanager
def cluster(
    hosts: Hosts, workers_per_host: int, threads: int, protect: str = "none"
) -> Iterator[tuple[str, dict[str, str]]]:
    """Start a scheduler on host 0, workers on all others; yield its address and the environment, and end them all."""
    # What workers unpickle may lie in a module of the benchmarks.
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
    scheduler = f"{'tls' if protect == 'tls' else 'tcp'}://{hosts.address(0)}:{SCHEDULER_PORT}"
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        environment |= protection(protect, Path(folder))
        log = stack.enter_context(open(Path(folder) / "log", "wb"))
        options: dict[str, Any] = {"env": environment, "cwd": folder, "stdout": log, "stderr": log}

        def start(number: int, module: str, *arguments: str) -> None:
            command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments]
            stack.callback(_end, hosts.start(number, command, **options))

        start(0, "dask_scheduler", "--host", scheduler, "--no-dashboard")
        for number in range(1, hosts.n):
            for worker in range(workers_per_host):
                start(
                    number,
                    "dask_worker",
                    scheduler,
                    *("--host", hosts.address(number), "--worker-port", str(WORKER_PORT + worker)),
                    *("--nthreads", str(threads), "--no-nanny", "--no-dashboard", "--death-timeout", str(START_S)),
                )
        try:
            yield scheduler, environment
        except BaseException:
            sys.stderr.write((Path(folder) / "log").read_text()[-4000:])
            raise


def inside(args: Options) -> None:
    """Train on the cluster at the address given, once per period; print one JSON line for each. Runs on host 0."""
    import numpy as np
    from distributed import Client

    from dsgd import SGDClassifier
    from dsgd.sync import LocalSGD

    with Client(args.inside[0], timeout=START_S) as client:
        client.wait_for_workers(args.hosts * args.workers_per_host, timeout=START_S)
        X, y = rows_on_workers(client, args.rows, args.features)
        settings: dict[str, Any] = {"max_iter": args.epochs, "tol": None, "random_state": 0, "loss": "log_loss"}
        # In the order given, so that each of the threads gets the rows of one worker.
        settings |= {"learning_rate": "invscaling", "eta0": 0.01, "power_t": 0.25, "shuffle": False}
        SGDClassifier(sync="epoch", client=client, **{**settings, "max_iter": 1}).fit(X, y)  # loads the kernels
        if args.check:
            X_here, y_here = X.compute(), y.compute()
        overlaps = (False, True) if args.overlap else (False,)
        kinds = [LocalSGD(every, overlap=overlap) for every in args.every for overlap in overlaps]
        runs: dict[LocalSGD, list[SGDClassifier]] = {kind: [] for kind in kinds}
        for _ in range(args.repeats):
            for kind, fitted in runs.items():
                fitted.append(SGDClassifier(sync=kind, client=client, **settings).fit(X, y))
        for kind, fitted in runs.items():
            model = sorted(fitted, key=_train_s)[len(fitted) // 2]
            totals = model.ledger_.totals()
            row = {
                "every": kind.every,
                "overlap": kind.overlap,
                "ranks": model.fit_report_["ranks"],
                "transport": model.fit_report_["transport"],
                "epoch_s": _train_s(model) / args.epochs,
                "epoch_s_all": sorted(_train_s(each) / args.epochs for each in fitted),
                "compute_s_per_epoch": totals["compute_s"] / model.fit_report_["ranks"] / args.epochs,
                "communication_share": waiting_share(totals),
                "mb_sent_per_epoch": totals["bytes_sent"] / args.epochs / 1e6,
                "rounds_per_epoch": totals["rounds"] / args.epochs,
                "train_loss": model.loss_curve_[-1],
                "model": hashlib.sha256(model.coef_.tobytes() + model.intercept_.tobytes()).hexdigest()[:16],
            }
            if args.check:
                twin = SGDClassifier(sync=kind, n_jobs=row["ranks"], **settings).fit(X_here, y_here)
                row["same_as_threads"] = bool(
                    np.array_equal(twin.coef_, model.coef_) and np.array_equal(twin.intercept_, model.intercept_)
                )
            print(json.dumps(row), flush=True)


def _train_s(model: Any) -> float:
    return float(model.fit_report_["epochs"][-1]["seconds"])


def rows_on_workers(client: Any, n_rows: int, n_features: int) -> tuple[Any, Any]:
    """Return a dense two-class problem in float32, made where it is used: block k on worker k, hosts in a row."""
    import dask.array as da
    import numpy as np
    from dask import delayed

    separator = np.random.default_rng(0).standard_normal(n_features, dtype=np.float32)
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"], key=_by_host)
    n_block = n_rows // len(workers)

    def make(number: int) -> Any:
        return np.random.default_rng((1, number)).standard_normal((n_block, n_features), dtype=np.float32)

    def label(rows: Any) -> Any:
        return (rows @ separator > 0).astype(np.int64)

    X, y = [], []
    for number, worker in enumerate(workers):
        rows = client.submit(make, number, workers=[worker], pure=False)
        targets = client.submit(label, rows, workers=[worker], pure=False)
        X.append(da.from_delayed(delayed(rows), (n_block, n_features), dtype=np.float32))
        y.append(da.from_delayed(delayed(targets), (n_block,), dtype=np.int64))
    return da.concatenate(X), da.concatenate(y)


def _by_host(worker: str) -> tuple[int, int]:
    host, port = worker.partition("://")[2].rsplit(":", 1)
    return int(host.rsplit(".", 1)[1]), int(port)


def measure(args: Options, rate: str | None, rows: Rows, line: Callable[..., None]) -> None:
    """Build the hosts for one rate, train across them, and remove them."""
    ports = [SCHEDULER_PORT, *(WORKER_PORT + k for k in range(args.workers_per_host))] if args.only_worker_port else []
    shape = {"rate": rate or "unlimited", "hosts": args.hosts, "workers_per_host": args.workers_per_host}
    shape |= {
        "protect": args.protect,
        "threads": args.threads,
        "rows": args.rows,
        "features": args.features,
        "firewall": args.only_worker_port,
    }
    with (
        Hosts(args.hosts + 1, rate, ports) as hosts,
        cluster(hosts, args.workers_per_host, args.threads, args.protect) as (scheduler, environment),
    ):
        command = child(__name__, [scheduler], *inner_options(args))
        client = hosts.start(0, command, stdout=subprocess.PIPE, env=environment)
        try:
            assert client.stdout is not None
            for text in client.stdout:
                row = json.loads(text)
                rows.add(**shape, **row)
                show(shape["rate"], row, line)
        finally:
            _end(client)
        if client.returncode:
            raise RuntimeError(f"The client on host 0 ended with status {client.returncode}.")


def inner_options(args: Options) -> list[str]:
    """Return the options that the process on host 0 needs."""
    options = ["--hosts", str(args.hosts), "--workers-per-host", str(args.workers_per_host)]
    options += ["--rows", str(args.rows), "--features", str(args.features), "--epochs", str(args.epochs)]
    options += ["--every", *map(str, args.every), "--repeats", str(args.repeats)]
    options += [f"--{flag}" for flag in ("check", "overlap") if getattr(args, flag)]
    return options


def show(rate: str, row: dict[str, Any], line: Callable[..., None]) -> None:
    """Print one line of the table."""
    same = {True: "as threads", False: "NOT AS THREADS", None: ""}[row.get("same_as_threads")]
    figures = (row[key] for key in ("epoch_s", "mb_sent_per_epoch", "communication_share", "train_loss"))
    overlap = "yes" if row["overlap"] else ""
    line(rate, row["ranks"], row["transport"], row["every"], overlap, *figures, same)


def check_machine() -> None:
    """Say what is missing, if anything is."""
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if platform.system() != "Linux" or missing:
        need = f"the commands {', '.join(missing)}" if missing else "Linux, whose namespaces it uses"
        raise UnavailableError(f"needs {need}. On other machines train across real hosts instead.")
    if os.geteuid() != 0:
        raise UnavailableError(
            "makes network cards, which only root may do: run `sudo python -m benchmarks run hosts ...`, or run "
            "it in a container started with --cap-add=NET_ADMIN --cap-add=SYS_ADMIN."
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    process.terminate()
    try:
        process.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


OPTIONS = {
    "--hosts": {"type": int, "default": 4, "help": "hosts with workers (default: %(default)s)"},
    "--workers-per-host": {"type": int, "default": 1, "help": "worker processes on each (%(default)s)"},
    "--threads": {"type": int, "default": 1, "help": "threads of each worker (default: %(default)s)"},
    "--rate": {"nargs": "+", "default": ["100mbit", "1gbit"], "help": "rates of the network cards, or 'none'"},
    "--every": {"nargs": "+", "type": int, "default": [8, 64, 800], "help": "periods of synchronisation"},
    "--rows": {"type": int, "default": 3_200, "help": "rows in all (default: %(default)s)"},
    "--features": {"type": int, "default": 10_000, "help": "columns (default: %(default)s)"},
    "--epochs": {"type": int, "default": 3, "help": "epochs of each run (default: %(default)s)"},
    "--only-worker-port": {"action": "store_true", "help": "drop connections to any port but Dask's own"},
    "--protect": {"choices": ("none", "tls"), "default": "none", "help": "what hosts send each other"},
    "--check": {"action": "store_true", "help": "train the same with threads of one process, and compare"},
    "--overlap": {"action": "store_true", "help": "also send models while the next round is worked on"},
}


def run(args: Options, rows: Rows) -> None:
    if args.hosts < 1 or args.workers_per_host < 1:
        raise SystemExit("--hosts and --workers-per-host must be at least 1")
    if args.quick:
        args.rows, args.features, args.epochs, args.rate, args.every = 4_000, 200, 2, ["1gbit"], [16, 256]
    check_machine()
    heads = ("s/epoch:.3f", "MB/epoch:.2f", "communication:.1%", "loss:.4f", "model")
    with table("over networks", "rate", "ranks", "wire", "every", "overlap", *heads) as line:
        for rate in args.rate:
            measure(args, None if rate == "none" else rate, rows, line)
