"""A `Synchronizer` in a script that torchrun starts: the models of dsgd's own ranks, to the bit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torchrun_program as program  # noqa: E402 - what comes below needs torch
from dsgd.collectives import Group  # noqa: E402
from dsgd.comm.frames import AbortFlag  # noqa: E402
from dsgd.comm.wires import inproc  # noqa: E402
from dsgd.errors import ClusterError, InvalidParameterError  # noqa: E402
from dsgd.runtime.rank import Rank  # noqa: E402
from dsgd.torch.process_group import TorchProcessGroup, current_rank  # noqa: E402
from gangs import raise_first, run_ranks  # noqa: E402


def torchrun(folder: Path) -> list[Any]:
    """Run the script on two ranks of this machine, and return what each has saved."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *where, program.__file__, str(folder)],
        env=os.environ | {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [np.load(folder / f"{number}.npz") for number in range(2)]


def on_threads(strategy: Any) -> list[Any]:
    """Train on two ranks that are threads of this process."""
    transports = inproc.connect(2)
    try:
        ranks = [Rank(Group(transport), AbortFlag()) for transport in transports]
        return raise_first(run_ranks([partial(program.train, strategy, rank) for rank in ranks]))
    finally:
        for transport in transports:
            transport.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback of gloo has another name elsewhere")
@pytest.mark.slow
def test_torchrun_trains_what_our_ranks_train(tmp_path: Path) -> None:
    """Both ranks have the model and the bytes of the same strategy on threads; ranks that part raise errors."""
    before = torch.get_num_threads()
    first, second = torchrun(tmp_path)
    torch.set_num_threads(1)
    try:
        for number, strategy in enumerate(program.STRATEGIES):
            params, name = first[f"arr_{number}"], repr(strategy)
            assert params.tobytes() == second[f"arr_{number}"].tobytes(), name
            expected, sent = on_threads(strategy)[0]
            assert params.tobytes() == expected.tobytes(), name
            assert first["bytes_sent"][number] == sent["bytes_sent"] > 0, name
    finally:
        torch.set_num_threads(before)
    for found in (first, second):
        assert found["hosts"].tolist() == [0, 0]
        assert "must take the same number of steps" in str(found["uneven"])
        assert "bytes, got" in str(found["errors"])


def test_without_torchrun_there_is_no_rank() -> None:
    """The errors name both ways to get one."""
    with pytest.raises(InvalidParameterError, match=r"launch runs, or.*torchrun"):
        current_rank()
    with pytest.raises(ClusterError, match="init_process_group"):
        TorchProcessGroup()
    with pytest.raises(InvalidParameterError, match="deadline_s"):
        TorchProcessGroup(deadline_s=0)
