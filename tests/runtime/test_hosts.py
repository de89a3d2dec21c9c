"""Training across several hosts, which are network namespaces of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOSTS = [sys.executable, "-m", "benchmarks", "run", "hosts"]
COMMANDS = ("ip", "tc", "unshare", "nsenter")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or any(shutil.which(command) is None for command in COMMANDS),
        reason="network namespaces need Linux and the commands ip, tc, unshare and nsenter",
    ),
]


def links() -> list[str]:
    """Return the names of the network cards that this process sees."""
    shown = subprocess.run(["ip", "-json", "link"], capture_output=True, check=True)
    return sorted(link["ifname"] for link in json.loads(shown.stdout))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network cards")
@pytest.mark.parametrize(
    ("hosts", "workers_per_host", "network", "wire"),
    [(2, 1, [], "tcp"), (2, 2, ["--protect", "tls"], "shm+tcp"), (2, 1, ["--only-worker-port"], "rpc")],
    ids=["two hosts", "two hosts of two with TLS", "two hosts behind firewalls"],
)
def test_ranks_on_several_hosts_give_the_model_of_threads(tmp_path, hosts, workers_per_host, network, wire):
    """Ranks on several hosts train over 1 Gbit/s, past firewalls and with TLS, to the bits of threads."""
    before, out = links(), tmp_path / "rows.jsonl"
    options = ["--quick", "--check", "--hosts", str(hosts), "--workers-per-host", str(workers_per_host), *network]
    subprocess.run([*HOSTS, *options, "--out", out], cwd=ROOT, check=True, timeout=240)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["every"] for row in rows] == [16, 256]
    assert all(
        row["ranks"] == hosts * workers_per_host and row["transport"] == wire and row["same_as_threads"] for row in rows
    )
    assert rows[0]["mb_sent_per_epoch"] > rows[1]["mb_sent_per_epoch"]
    assert links() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may make network cards")
def test_without_root_the_reason_is_named():
    """A user who may not make network cards is told what to do."""
    done = subprocess.run(HOSTS, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "sudo" in done.stderr
