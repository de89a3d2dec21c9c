"""The clusters of docs/deployment.rst, made by the commands that stand there, on hosts with the names of the page.

Hosts are network namespaces of this machine, so the commands run as they stand and no port of the machine is opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.communication.hosts import COMMANDS, Hosts

REPOSITORY = Path(__file__).parents[2]
DEPLOYMENT = REPOSITORY / "docs" / "deployment"
PAGE = (REPOSITORY / "docs" / "deployment.rst").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOYMENT / "compose.yaml").read_text(encoding="utf-8"))
ROLES = ("scheduler", "worker", "client")
DOCKERFILE = (DEPLOYMENT / "Dockerfile").read_text(encoding="utf-8")

on_hosts = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or any(shutil.which(command) is None for command in (*COMMANDS, "openssl")),
        reason="network namespaces need Linux and the commands ip, tc, unshare and nsenter; certificates need openssl",
    ),
    pytest.mark.skipif(sys.platform == "linux" and os.geteuid() != 0, reason="only root may make network cards"),
]

# What all clusters of the page train: its line, on rows of our own. Modules are loaded while the cluster begins.
_CLIENT = """
import json
import numpy as np
from dsgd import SGDClassifier

{code}
X = np.random.default_rng(0).normal(size=(400, 5))
y = X[:, 0] > 0
{line}
told = {{name: clf.fit_report_[name] for name in ("ranks", "transport")}}
print(json.dumps({{**told, "score": clf.score(X, y), "scheduler": client.scheduler.address}}))
client.close()
"""


def blocks(language: str, part: str) -> str:
    """Return the code of a language in one part of the page."""
    text = PAGE[PAGE.index(f".. begin: {part}\n") : PAGE.index(f".. end: {part}\n")]
    return "".join(map(textwrap.dedent, re.findall(rf"code-block:: {language}\n\n((?:   .*\n|\n)+)", text)))


def by_machine(part: str) -> dict[str, str]:
    """Return the command of each machine in one part of the page."""
    commands = re.sub(r"\\\n\s*", "", blocks("console", part))  # a command may go on in the next line
    return dict(re.findall(r"^(\w+)\$ (.*)$", commands, re.MULTILINE))


def train_on(names: Sequence[str], programs: Mapping[str, str], client: str, code: str, folder: Path) -> dict[str, Any]:
    """Start a program on each host, run code and the page's fit on one of them, and return what it says of it."""
    (line,) = re.findall(r"^   (clf = SGDClassifier\(.*\)\.fit\(X, y\))", PAGE, re.MULTILINE)
    # Programs are those of this environment.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    modules = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": modules}
    environment |= COMPOSE["services"].get(client, {}).get("environment", {})
    (folder / "client.py").write_text(_CLIENT.format(code=code, line=line))
    with contextlib.ExitStack() as stack, (folder / "log").open("wb") as log:
        hosts = stack.enter_context(Hosts(len(names), names=names))
        started: list[subprocess.Popen[bytes]] = []

        def start(name: str, command: str, **options: Any) -> subprocess.Popen[bytes]:
            # A process that enters a host begins in its root folder.
            shell = ["sh", "-c", f"cd {shlex.quote(str(folder))} && exec {command}"]
            process = hosts.start(names.index(name), shell, env=environment, stderr=log, **options)
            stack.callback(_end, process)
            started.append(process)
            return process

        for name, command in programs.items():
            start(name, command, stdout=log)
        process = start(client, "python client.py", stdout=subprocess.PIPE)
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 0, (folder / "log").read_text()[-4000:]
        for each in started:
            each.terminate()
    found: dict[str, Any] = json.loads(said)
    assert found.pop("score") > 0.9
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class TestOnHosts:
    """Clusters that train."""

    pytestmark = on_hosts

    @pytest.mark.slow
    def test_by_hand(self, tmp_path: Path) -> None:
        """A scheduler and two workers that are started by hand train."""
        programs = by_machine("by hand")
        found = train_on(tuple(programs), programs, "head", blocks("python", "by hand"), tmp_path)
        assert found["ranks"] == 2 * 8
        assert found["scheduler"].startswith("tcp://")

    @pytest.mark.slow
    def test_with_certificates(self, tmp_path: Path) -> None:
        """The certificates of the page make a cluster that trains with TLS, and keys are for their owner alone."""
        subprocess.run(["sh", DEPLOYMENT / "certificates.sh"], cwd=tmp_path, check=True, capture_output=True)
        assert {path.stat().st_mode & 0o077 for path in tmp_path.glob("*-key.pem")} == {0}
        verify = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", *map("{}.pem".format, ROLES)]
        subprocess.run(verify, cwd=tmp_path, check=True, capture_output=True)
        programs = by_machine("with certificates")
        found = train_on(tuple(programs), programs, "head", blocks("python", "with certificates"), tmp_path)
        assert found["ranks"] == 2 * 8
        assert found["scheduler"].startswith("tls://")

    @pytest.mark.slow
    def test_containers(self, tmp_path: Path) -> None:
        """The services of the compose file train, on hosts with their names; the notebook runs code of the page."""
        services = COMPOSE["services"]
        programs = {name: service["command"] for name, service in services.items() if name != "notebook"}
        code = blocks("python", "in the notebook")
        found = train_on(tuple(services), programs, "notebook", code, tmp_path)
        assert found == {"ranks": 4, "transport": "inproc+tcp", "scheduler": "tcp://scheduler:8786"}


def test_the_image_has_what_its_services_run() -> None:
    """Its Python is a supported one, and it installs extras that exist and the programs of the services."""
    facts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    project = facts["project"]
    (version,) = re.findall(r"^FROM python:(3\.\d+)-slim$", DOCKERFILE, re.MULTILINE)
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    copied = " ".join(re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE)).split()
    needed = {"pyproject.toml", project["readme"], *project["license-files"]}
    assert set(copied) == needed | set(facts["tool"]["setuptools"]["package-dir"].values())
    first_words = {service["command"].split()[0] for service in COMPOSE["services"].values()}
    assert first_words == {"dask", "jupyter"}
    assert re.search(r"^RUN pip install .*\bjupyterlab\b", DOCKERFILE, re.MULTILINE)
