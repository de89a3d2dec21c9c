"""How often a rank looks at a socket before it sleeps, and rests after looking in vain."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

import pytest

from dsgd.comm.sockets import link
from dsgd.comm.sockets.link import LOOKS, Link


class FakeSocket:
    """Has nothing for a number of looks, for each frame, and delivers to whoever sleeps."""

    def __init__(self, looks_in_vain: Iterable[int], family: int = socket.AF_INET) -> None:
        self.family = family
        self._in_vain = iter(looks_in_vain)
        self._left = next(self._in_vain)
        self.looks, self.sleeps = [0], [0]

    def recvmsg_into(self, buffers: Any, ancillary: int = 0, flags: int = 0) -> tuple[int, list[Any], int, None]:
        """Look, or sleep until a frame is there."""
        if flags & socket.MSG_DONTWAIT:
            self.looks[-1] += 1
            if self._left:
                self._left -= 1
                raise BlockingIOError
        else:
            self.sleeps[-1] += 1
        return 7, [], 0, None

    def next_frame(self) -> None:
        """Begin with the next frame."""
        self._left = next(self._in_vain, 0)
        self.looks.append(0)
        self.sleeps.append(0)


def heard(sock: Any, n_frames: int) -> Any:
    """Hear so many frames; return the socket."""
    ends = Link(sock, 1, "there", job=0, epoch=0)
    for number in range(n_frames):
        if number:
            sock.next_frame()
        assert ends._hear(memoryview(bytearray(8))) == 7
    return sock


@pytest.mark.parametrize(("family", "n_looks"), [(socket.AF_INET, LOOKS), (socket.AF_UNIX, link._LOCAL_LOOKS)])
def test_a_rank_looks_so_often_and_then_sleeps(family: int, n_looks: int) -> None:
    sock = heard(FakeSocket([0, n_looks - 1, n_looks], family), 3)
    assert sock.looks == [1, n_looks, n_looks]
    assert sock.sleeps == [0, 0, 1]


def test_looks_in_vain_are_followed_by_longer_and_longer_rests() -> None:
    """One frame without a look, then two, four, ...: at most `_MAX_REST`; a frame that was there ends it."""
    in_vain, expected, rest = [], [], 1
    for _ in range(9):
        in_vain += [10**6, *[0] * rest]
        expected += [LOOKS, *[0] * rest]
        rest = min(2 * rest, link._MAX_REST)
    in_vain += [0, 10**6, 0, 0]
    expected += [1, LOOKS, 0, 1]
    sock = heard(FakeSocket(in_vain), len(in_vain))
    assert sock.looks == expected
    assert all(
        bool(looks) != bool(sleeps) or looks == LOOKS for looks, sleeps in zip(sock.looks, sock.sleeps, strict=True)
    )
