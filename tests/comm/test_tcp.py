"""Joining over TCP: who gets in, who does not, and what happens to processes that die or hang.

Exchanges and waits over TCP are in `test_transports`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import firewall
from dsgd.comm.frames import HEADER_BYTES, AbortFlag
from dsgd.comm.sockets.handshake import RECORD_BYTES
from dsgd.comm.sockets.listener import split_address
from dsgd.comm.wires import tcp
from dsgd.errors import AbortedError, ClusterError, GangTimeoutError, InvalidParameterError, ProtocolError
from gangs import TOKEN, connect_tcp, gang, raise_first, run_ranks


def join_two(first: tcp.Listener, second: tcp.Listener, addresses: list[list[str]] | None = None) -> list[Any]:
    """Return what two ranks with these listeners get when they join; each may have addresses of its own."""
    ways = addresses or [[first.address, second.address]] * 2
    settings: dict[str, Any] = {"job_id": "j", "epoch": 0, "token": TOKEN, "connect_timeout_s": 5.0}
    return run_ranks([partial(tcp.connect, end, k, ways[k], **settings) for k, end in enumerate((first, second))])


def test_the_latency_of_every_link_is_measured() -> None:
    """Joining measures half a round trip to every peer, a positive number far below a second on loopback."""
    with gang("tcp", 3) as transports:
        for transport in transports:
            for peer in {0, 1, 2} - {transport.rank}:
                assert 0.0 < transport.latency_s(peer) < 0.5


@contextlib.contextmanager
def counting_path(address: str) -> Iterator[tuple[str, list[int]]]:
    """Give an address that leads to another one, and how many bytes have passed on the way there and back."""
    counts, held = [0, 0], []

    def forward(source: socket.socket, to: socket.socket, way: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                counts[way] += len(data)
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def accept() -> None:
        near, far = server.accept()[0], socket.create_connection(split_address(address))
        held.extend([near, far])
        back = threading.Thread(target=forward, args=(far, near, 1), daemon=True)
        back.start()
        forward(near, far, 0)
        back.join(10.0)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", counts
        thread.join(10.0)
        for sock in held:
            sock.close()


@pytest.mark.parametrize("n", [0, 1, 2043, 70_000])
def test_the_ledger_counts_every_byte_on_the_wire(n: int) -> None:
    """Joining takes four records and eight pings each way; then a frame is its header and its array, and no more."""
    with contextlib.ExitStack() as cleanup:
        listeners = [cleanup.enter_context(tcp.Listener()) for _ in range(2)]
        path, counts = cleanup.enter_context(counting_path(listeners[0].address))
        options: dict[str, Any] = {"job_id": "test", "epoch": 0, "token": TOKEN, "timeout_s": 20.0}
        addresses = [path, listeners[1].address]
        calls = [lambda rank=rank: tcp.connect(listeners[rank], rank, addresses, **options) for rank in range(2)]
        zero, one = raise_first(run_ranks(calls))
        cleanup.callback(zero.close)
        cleanup.callback(one.close)
        assert counts == [2 * RECORD_BYTES + 8] * 2
        one.ledger.begin_round("sync")
        raise_first(run_ranks([lambda: zero.recv(1, np.empty(n)), lambda: one.send(0, np.ones(n))]))
        one.ledger.end_round()
        assert counts[0] - (2 * RECORD_BYTES + 8) == one.ledger.records().totals["bytes_sent"] == HEADER_BYTES + 8 * n


@pytest.mark.parametrize(
    ("different", "says"),
    [
        ({"job_id": ["one", "two"]}, "another job"),
        ({"epoch": [3, 2]}, "another incarnation"),
        ({"token": [TOKEN, TOKEN[::-1]]}, "token"),
    ],
)
def test_a_stranger_is_turned_away_and_the_gang_goes_on_waiting(different: dict[str, Any], says: str) -> None:
    """A rank of another job, incarnation or token is told so, and does not stop those who wait."""
    waiting, stranger = connect_tcp(2, connect_timeout_s=0.5, **different)
    assert isinstance(stranger, ProtocolError)
    assert says in str(stranger)
    assert "rank 0 at 127.0.0.1:" in str(stranger)
    assert isinstance(waiting, GangTimeoutError)
    assert "rank(s) 1 to join" in str(waiting)
    assert says in str(waiting)


def test_other_settings_are_an_error_on_both_sides() -> None:
    """Ranks of one job that do not agree on its settings, or on how many they are, both say so at once."""
    results = [(result, "settings") for result in connect_tcp(2, config=[b"float32", b"float64"])]
    with tcp.Listener() as first, tcp.Listener() as second:
        addresses = [first.address, second.address]
        results += [
            (result, "number of ranks") for result in join_two(first, second, [addresses, addresses + addresses])
        ]
    for result, says in results:
        assert isinstance(result, ProtocolError)
        assert says in str(result)


@settings(max_examples=8)
@given(garbage=st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_garbage_on_the_port_is_dropped_and_counted(garbage: list[bytes]) -> None:
    """Whatever strangers send, the gang comes together, and the listener counts whom it turned away."""
    with tcp.Listener() as first, tcp.Listener() as second:
        strangers = [socket.create_connection(split_address(first.address)) for _ in garbage]
        for stranger, data in zip(strangers, garbage, strict=True):
            stranger.sendall(data)
        silent = socket.create_connection(split_address(first.address))
        transports = raise_first(join_two(first, second))
        assert first.refused.total() == len(garbage) + 1
        for end in (*transports, *strangers, silent):
            end.close()


def test_the_token_does_not_travel() -> None:
    """A peer that only listens to the handshake sees neither the token nor a proof that fits another handshake."""
    seen: list[bytes] = []
    with tcp.Listener() as real, socket.create_server(("127.0.0.1", 0)) as tap, tcp.Listener() as own:
        tap_address = f"127.0.0.1:{tap.getsockname()[1]}"
        options: dict[str, Any] = {"job_id": "j", "epoch": 0, "token": TOKEN, "connect_timeout_s": 1.0}

        def forward() -> None:
            with tap.accept()[0] as client, socket.create_connection(split_address(real.address)) as server:
                for source, target in ((client, server), (server, client), (client, server), (server, client)):
                    data = source.recv(RECORD_BYTES, socket.MSG_WAITALL)
                    seen.append(data)
                    target.sendall(data)
            with socket.create_connection(split_address(real.address)) as again:
                again.sendall(seen[0])
                again.recv(RECORD_BYTES, socket.MSG_WAITALL)
                again.sendall(seen[2])
                again.recv(RECORD_BYTES, socket.MSG_WAITALL)

        results = run_ranks(
            [
                lambda: tcp.connect(real, 0, [real.address, own.address], **options),
                lambda: tcp.connect(own, 1, [tap_address, own.address], **options),
                forward,
            ]
        )
        for result in results:
            if isinstance(result, tcp.TCPTransport):
                result.close()
    assert len(seen) == 4
    assert TOKEN not in b"".join(seen)
    assert isinstance(results[0], GangTimeoutError)
    assert "the token of the job is not the same" in str(results[0])


def test_an_abort_ends_joining() -> None:
    """A flag set while a rank waits for its peers ends the wait with its reason."""
    for rank in (0, 1):
        abort = AbortFlag()
        timer = threading.Timer(0.2, lambda abort=abort: abort.set("ctrl-C"))
        timer.start()
        with tcp.Listener() as listener, socket.create_server(("127.0.0.1", 0)) as mute:
            addresses = [listener.address, listener.address]
            addresses[1 - rank] = f"127.0.0.1:{mute.getsockname()[1]}"
            begin = time.monotonic()
            with pytest.raises(AbortedError, match="ctrl-C"):
                tcp.connect(listener, rank, addresses, job_id="j", epoch=0, token=TOKEN, abort=abort)
            assert time.monotonic() - begin < 10.0
        timer.join()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1"])
def test_a_stranger_need_not_wait_until_a_rank_has_connected(said: bytes) -> None:
    """While a rank tries to reach a peer whose port drops all packets, strangers on its own port are sent away."""
    abort = AbortFlag()
    with tcp.Listener() as listener, contextlib.ExitStack() as sockets:
        addresses = [firewall.black_hole(sockets), listener.address]

        def join() -> None:
            tcp.connect(listener, 1, addresses, job_id="j", epoch=0, token=TOKEN, abort=abort)

        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.extend(run_ranks([join])))
        thread.start()
        with socket.create_connection(split_address(listener.address), timeout=20.0) as stranger:
            stranger.sendall(said)
            assert stranger.recv(10) == b""
        assert not results, "the rank has stopped connecting"
        abort.set("enough")
        thread.join(30.0)
        assert isinstance(results[0], AbortedError)
        assert list(listener.refused) == ["stranger" if said else "silent"]


def test_nobody_can_come_once_all_ranks_have_joined() -> None:
    """The port is closed as soon as the last peer is there, not when the gang ends."""
    with tcp.Listener() as first, tcp.Listener() as second:
        addresses = [first.address, second.address]
        transports = raise_first(join_two(first, second))
        for address in addresses:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(split_address(address), timeout=10.0)
        for transport in transports:
            transport.close()


def test_frames_of_another_count_are_refused() -> None:
    """A frame that was lost or sent twice shows by its number, even if it looks right otherwise."""
    with gang("tcp", 2) as (zero, one):
        one._links[0]._n_sent = 5  # type: ignore[attr-defined]
        one.send(0, np.zeros(4))
        with pytest.raises(ProtocolError, match="frame number 0, got 5"):
            zero.recv(1, np.zeros(4))


def test_the_listener_binds_one_host_and_the_ports_it_may() -> None:
    """A range is tried in order, a full or impossible one is an error with the reason."""
    with tcp.Listener() as taken:
        host, port = split_address(taken.address)
        assert host == "127.0.0.1"
        with pytest.raises(ClusterError, match=f"a port from {port} to {port}"):
            tcp.Listener("127.0.0.1", (port, port))
        if port < 65_000:
            with tcp.Listener("127.0.0.1", (port, port + 50)) as other:
                assert port < split_address(other.address)[1] <= port + 50
    with pytest.raises(InvalidParameterError, match="port_range"):
        tcp.Listener("127.0.0.1", (10, 5))
    with pytest.raises(ClusterError, match=r"192\.0\.2\.1"):
        tcp.Listener("192.0.2.1")
    taken.close()


def test_addresses_are_read_with_or_without_scheme_and_brackets() -> None:
    """host:port and [v6]:port are understood, anything else is refused."""
    assert split_address("tcp://10.0.0.1:80") == ("10.0.0.1", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    for bad in ("host", "host:", ":80", "host:http"):
        with pytest.raises(InvalidParameterError, match="host:port"):
            split_address(bad)


def test_a_rank_cannot_join_twice() -> None:
    """The second one that says it is rank 1 is turned away, and so the mix-up is found."""
    with tcp.Listener() as listener:
        addresses = [listener.address, "127.0.0.1:1", "127.0.0.1:1"]
        options: dict[str, Any] = {"job_id": "j", "epoch": 0, "token": TOKEN, "connect_timeout_s": 1.0}

        def join_as_one() -> Any:
            with tcp.Listener() as own:
                return tcp.connect(own, 1, addresses, **options)

        zero, *ones = run_ranks([lambda: tcp.connect(listener, 0, addresses, **options), join_as_one, join_as_one])
    assert isinstance(zero, ProtocolError)
    assert "already joined" in str(zero)
    assert all(isinstance(result, Exception) for result in ones)


def test_impossible_settings_are_refused_by_name() -> None:
    """Rank, token, epoch and time limits are checked before anything is opened."""
    with tcp.Listener() as listener:
        good: dict[str, Any] = {"rank": 0, "job_id": "j", "epoch": 0, "token": TOKEN}
        for bad in ({"rank": 1}, {"token": b"short"}, {"epoch": -1}, {"timeout_s": 0.0}, {"connect_timeout_s": -1.0}):
            with pytest.raises(InvalidParameterError, match=next(iter(bad))):
                tcp.connect(listener, addresses=[listener.address], **(good | bad))
