"""The wires of ranks on worker processes, as the network or the user decides."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.config
import pytest
from distributed import Client, Security
from sklearn.datasets import make_classification

import firewall
import gang_programs as programs
from dsgd import Gang, SGDClassifier
from dsgd.comm.sockets.listener import parse_ports, split_address
from dsgd.errors import ClusterError, InvalidParameterError
from dsgd.runtime.worker.wires import WireOptions, open_listener
from gang_cluster import addresses, assert_clean, client_fixture, cluster_fixture, on_ranks, start_cluster, wait_until
from own_wire import make_folders_in

pytestmark = pytest.mark.cluster

cluster = cluster_fixture(3)
client = client_fixture(3)


def sums(client: Client, **options: Any) -> Any:
    return on_ranks(client, programs.sums_of, (0, 3, 1000, 300_001), **options)


def transports(result: Any) -> list[str]:
    return [stat["transport"] for stat in result.stats]


def test_a_wire_of_another_package_may_carry_the_arrays(client: Client, tmp_path: Path) -> None:
    """With transport="package.module:function" the bits are those of TCP; what cannot be imported is named."""
    X, y = make_classification(600, 20, random_state=0)

    def fitted(transport: str) -> SGDClassifier:
        model = SGDClassifier(max_iter=2, tol=None, sync=32, random_state=0, client=Gang(client, transport=transport))
        return model.fit(X, y)

    client.run(make_folders_in, str(tmp_path))
    try:
        result, model = sums(client, transport="own_wire:connect"), fitted("own_wire:connect")
    finally:
        client.run(make_folders_in, None)
    assert transports(result) == ["files"] * 3
    assert result.value == sums(client, transport="tcp").value
    assert model.fit_report_["transport"] == "files"
    assert model.coef_.tobytes() == fitted("tcp").coef_.tobytes()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    for transport, problem in (("no_such:connect", "No module named 'no_such'"), ("own_wire:nothing", "'nothing'")):
        with pytest.raises(ClusterError, match=f"transport='{transport}' cannot be imported on a worker: .*{problem}"):
            sums(client, transport=transport)
    with pytest.raises(InvalidParameterError, match=r"Gang\(transport=\.\.\.\) must be one of 'auto'"):
        sums(client, transport="gloo")
    assert_clean(client)


@pytest.mark.parametrize("how", ["closed", "filtered"])
def test_where_no_port_can_be_reached_the_detour_is_found_and_logged(client: Client, how: str) -> None:
    """Pairs that cannot connect use the ports of their workers, by themselves, and the log names them."""
    expected = sums(client, transport="tcp").value
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    client.run(firewall.put_up, how)
    try:
        result = sums(client)
    finally:
        logs = client.run(firewall.take_down)
    assert transports(result) == ["rpc"] * 3
    assert result.value == expected
    lines = [line for worker in workers for line in logs[worker]]
    assert len(lines) == 3
    assert any("rank 1 cannot connect to rank 0" in line for line in lines)
    assert all("through the ports of their workers" in line for line in lines)


def test_a_firewall_around_one_worker_concerns_its_pairs_alone(client: Client) -> None:
    """The choice is made pair by pair: the others stay on TCP."""
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    client.run(firewall.put_up, "closed", workers=workers[:1])
    try:
        result = sums(client, algorithm="ring")
    finally:
        client.run(firewall.take_down, workers=workers[:1])
    inside = [stat["worker"] for stat in result.stats].index(workers[0])
    # The rank that connects decides: rank 0 connects to none, so a wall around the last rank has no effect.
    assert ("rpc" in transports(result)[inside]) == (inside < 2)
    assert result.value == sums(client, transport="tcp", algorithm="ring").value


def test_tcp_alone_says_that_it_cannot_be(client: Client) -> None:
    """transport="tcp" takes no detour: its error names the peer that could not be reached."""
    client.run(firewall.put_up, "closed")
    try:
        with pytest.raises(Exception, match=r"rank 0 at 127\.0\.0\.1:1 went away"):
            sums(client, transport="tcp")
    finally:
        client.run(firewall.take_down)


def test_a_message_without_the_credentials_of_its_job_is_refused_and_counted(client: Client) -> None:
    """Messages of another job, another token or none reach no rank."""
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    sums(client, transport="rpc")
    answers = client.run(firewall.intrude, workers[0], workers=workers[1:2])[workers[1]]
    assert len(answers) == 4
    assert all("is not open on this worker" in answer for answer in answers)
    assert client.run(firewall.refused, workers=workers[:1])[workers[0]]["job"] >= len(answers)


def test_a_stranger_is_sent_away_while_ranks_wait_for_each_other(client: Client) -> None:
    """Before all ranks are there a port is open already: garbage and silence end, and are counted."""
    ports = _free_ports()
    results: list[Any] = []

    def run() -> None:
        with dask.config.set({"dsgd.comm.ports": ports}):
            results.append(on_ranks(client, programs.add_up, pack=programs.keep_late))

    runner = threading.Thread(target=run)
    runner.start()
    try:
        wait_until(lambda: not client.run_on_scheduler(addresses))
        address = split_address(client.run_on_scheduler(addresses)[0])
        first, last = parse_ports(ports) or (0, 0)
        assert first <= address[1] <= last
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b""):
            with socket.create_connection(address, timeout=10.0) as stranger:
                stranger.sendall(data)
                assert stranger.recv(100) == b""
    finally:
        runner.join(60.0)
    assert results[0].value[0] == 3
    refused = [stat["refused"] for stat in results[0].stats]
    assert sum(each.get("stranger", 0) for each in refused) == 2
    assert sum(each.get("silent", 0) for each in refused) == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=10.0)


def _free_ports() -> str:
    """Return a range of ports of which some are free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = min(probe.getsockname()[1], 65_000)
    return f"{first}-{first + 100}"


def test_ports_may_come_from_the_configuration_of_dask(client: Client) -> None:
    """A range that is too small for the ranks of a host is an error that names it, wherever it was given."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with dask.config.set({"dsgd.comm.ports": port}), pytest.raises(ClusterError, match=f"a port from {port} to"):
            sums(client)


def test_the_listener_is_bound_to_the_network_and_the_port_asked_for() -> None:
    """What a call says counts before the configuration; by default it is the host of the worker's own address."""
    worker: Any = SimpleNamespace(address="tcp://127.0.0.1:1")
    first, last = parse_ports(_free_ports()) or (0, 0)
    with dask.config.set({"dsgd.comm.ports": f"{first}-{last}", "dsgd.comm.interface": "no-such-network"}):
        with open_listener(worker, WireOptions(interface="lo")) as listener:
            host, port = split_address(listener.address)
            assert (host, first <= port <= last) == ("127.0.0.1", True)
        with pytest.raises(
            ClusterError, match=r"worker tcp://127\.0\.0\.1:1 cannot listen on network 'no-such-network'"
        ):
            open_listener(worker, WireOptions())
    with open_listener(worker, WireOptions()) as listener:
        assert split_address(listener.address)[0] == "127.0.0.1"
    with dask.config.set({"dsgd.comm.interface": 7}), pytest.raises(InvalidParameterError, match="interface"):
        WireOptions.configured("auto")
    with pytest.raises(ClusterError, match="ucx://"):
        open_listener(SimpleNamespace(address="ucx://127.0.0.1:1"), WireOptions())  # type: ignore[arg-type]


def test_an_encrypted_cluster_trains_the_same_model(client: Client) -> None:
    """With certificates made on the fly every wire is tried, and the model has the bits of a plain cluster."""
    pytest.importorskip("cryptography")
    X, y = make_classification(600, 20, random_state=0)

    def train(client: Client, transport: Any) -> SGDClassifier:
        model = SGDClassifier(max_iter=5, tol=None, sync=32, random_state=0, client=Gang(client, transport=transport))
        return model.fit(X, y)

    plain = train(client, "tcp")
    security = Security.temporary()
    with (
        start_cluster(3, security=security, protocol="tls://") as cluster,
        Client(cluster, security=security, set_as_default=False) as encrypted,
    ):
        for transport in ("tcp", "rpc", "auto"):
            model = train(encrypted, transport)
            assert model.coef_.tobytes() == plain.coef_.tobytes()
            assert model.fit_report_["transport"] == {"auto": "shm"}.get(transport, transport)
            assert model.fit_report_["refused"] == {}
        with pytest.raises(ClusterError, match=r"does not encrypt.*Use transport=\"auto\""):
            sums(encrypted, transport="own_wire:connect")
        # Ranks refuse it, too: what a client says is not what protects the cluster.
        refusals = encrypted.run(firewall.refuse_own_wire)
        assert all("does not encrypt" in text for text in refusals.values())
        # One for those that connect and one for those that listen, for all ranks of all jobs.
        assert all(1 <= n <= 2 for n in encrypted.run(firewall.tls_contexts).values())
        long = on_ranks(encrypted, programs.add_long, 300000, transport="tcp")
        assert long.value == 300_000 * 6
        assert all(stat["worker"].startswith("tls://") for stat in long.stats)
        assert_clean(encrypted)


@pytest.mark.parametrize("ports", ["none", "40000-", "-1", "1-2-3", "50-40", "0", 70_000, 1.5, True, "a-b"])
def test_ports_that_are_none_are_refused(ports: Any) -> None:
    """Anything but a port or a rising range of ports is an error of the caller."""
    with dask.config.set({"dsgd.comm.ports": ports}), pytest.raises(InvalidParameterError, match=r"dsgd\.comm\.ports"):
        WireOptions.configured("auto")
