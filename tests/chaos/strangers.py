"""Faults of the network: strangers at the ports of ranks, and two ranks that cannot hear each other."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Any

from chaos.scene import Scene
from gang_cluster import addresses

_TIMEVAL_BYTES = 16


def knock(scene: Scene, words: list[bytes]) -> None:
    """Connect to every data port, say something, and stay."""
    listening = scene.observer.run_on_scheduler(addresses)
    assert listening, "no rank listens"
    for address in listening:
        host, _, port = address.rpartition(":")
        for said in words:
            with contextlib.suppress(OSError):
                stranger = socket.create_connection((host, int(port)), timeout=2.0)
                scene.undo.append(stranger.close)
                stranger.sendall(said)


def half_open(scene: Scene, rng: random.Random) -> None:
    """Say next to nothing."""
    knock(scene, [b"", b"\x00"])


def garbage(scene: Scene, rng: random.Random) -> None:
    """Say what no rank says."""
    knock(scene, [rng.randbytes(rng.choice([1, 64, 100_000])), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096])


def partition(scene: Scene, rng: random.Random) -> None:
    """Let what the victim and one other worker send each other get lost, while both hear everybody else."""
    info = scene.observer.scheduler_info(n_workers=-1)
    workers = info["workers"]
    other = rng.choice([worker for worker in workers if worker != scene.victim.worker])
    ports = scene.observer.run(_open_ports, workers=[other])[other]
    of_dask = [info["address"], *workers, *(worker["nanny"] for worker in workers.values())]
    dask = [int(address.rsplit(":", 1)[1]) for address in of_dask]
    lost = scene.observer.run(_silence, ports, dask, workers=[scene.victim.worker])[scene.victim.worker]
    assert lost, "the two ranks are not connected"
    scene.undo.append(lambda: scene.observer.run(_forget_silenced))


def _open_ports() -> list[int]:
    import psutil

    return [connection.laddr.port for connection in psutil.Process().net_connections("tcp") if connection.raddr]


def _silence(ports: list[int], dask: list[int]) -> int:
    """Put a hole into the place of each connection to one of these ports: it swallows everything and never answers."""
    import os

    import psutil

    _silenced: list[Any] = vars(os).setdefault("_chaos_silenced", [])
    found = 0
    for connection in psutil.Process().net_connections("tcp"):
        mine, theirs = connection.laddr.port, connection.raddr.port if connection.raddr else 0
        if theirs not in ports or {mine, theirs} & set(dask):
            continue
        # The peer must not see it closed.
        before = socket.socket(fileno=os.dup(connection.fd))
        inside, outside = socket.socketpair()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            inside.setsockopt(socket.SOL_SOCKET, option, before.getsockopt(socket.SOL_SOCKET, option, _TIMEVAL_BYTES))
        # A mode of the socket and not of its descriptor.
        os.set_blocking(inside.fileno(), os.get_blocking(connection.fd))
        os.dup2(inside.fileno(), connection.fd)
        inside.close()
        _silenced += [before.detach(), outside.detach()]
        found += 1
    return found


def _forget_silenced() -> None:
    import os

    for descriptor in vars(os).pop("_chaos_silenced", []):
        os.close(descriptor)
