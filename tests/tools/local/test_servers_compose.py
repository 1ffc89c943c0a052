"""localstack/docker-compose.yml starts agents with settings that they take, and mounts files."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from driftlog.cli import main
from driftlog_agents.network.listeners import read_listeners
from tests.support.components import REPOSITORY

FOLDER: Final = REPOSITORY / "localstack"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "docker-compose.yml").read_text())
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
AGENTS: Final = [name for name in SERVICES if name.startswith("agent-")]


def test_it_has_all_parts() -> None:
    """
    Three agents in three zones, each with a volume of its own, and what they need and are seen by.
    """
    others = {"etcd", "localstack", "prometheus", "grafana"}

    assert others | {"agent-1", "agent-2", "agent-3"} == SERVICES.keys()
    assert "localstack/localstack:4.14.0" == SERVICES["localstack"]["image"]
    assert 3 == len({SERVICES[name]["environment"]["DRIFTLOG_RACK"] for name in AGENTS})
    volumes = [volume.partition(":")[0] for name in AGENTS for volume in SERVICES[name]["volumes"]]
    assert {*volumes, "etcd"} == COMPOSE["volumes"].keys()
    assert len(AGENTS) == len(set(volumes))


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_takes_its_variables(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    `driftlog agent config` accepts them, its listeners are advertised, and its ports are published.
    """
    service = SERVICES[name]
    for variable, text in service["environment"].items():
        monkeypatch.setenv(variable, text)

    assert set() == {"entrypoint", "command"} & service.keys()
    dockerfile = (REPOSITORY / service["build"]["dockerfile"]).read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)
    assert ["agent", "run"] == json.loads(entry)[1:]
    status = main(["agent", "config", "--json"])
    done = capsys.readouterr()
    assert 0 == status, done.err
    found = {row["name"]: row["source"] for row in json.loads(done.out)}
    assert {"env"} == {found[n] for n in ("dir", "store", "etcd", "listener", "rack", "dev")}
    listening, told = (
        service["environment"][f"DRIFTLOG_{what}"].split(",")
        for what in ("LISTENER", "ADVERTISED_LISTENER")
    )
    inside, outside = read_listeners(listening, told)
    assert (name, "127.0.0.1") == (inside.advertised_host, outside.advertised_host)
    published = {port.rpartition(":")[2]: port for port in service["ports"]}
    assert {str(outside.port), "9644"} == published.keys()
    assert f"127.0.0.1:{outside.advertised_port}:{outside.port}" == published[str(outside.port)]


def test_every_port_is_of_this_machine_alone() -> None:
    """
    Listeners are plaintext.
    """
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert [] == [port for port in ports if not port.startswith("127.0.0.1:")]
    assert len(ports) == len(set(ports))


def test_each_file_that_is_mounted_or_built_exists() -> None:
    """
    A mount of a missing file makes an empty folder in its place.
    """
    wanted = {SERVICES["agent-1"]["build"]["dockerfile"]}
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                path = (FOLDER / source).resolve()
                wanted.add(path.relative_to(REPOSITORY).as_posix())

    assert len(wanted) >= 8
    assert [] == [path for path in sorted(wanted) if not (REPOSITORY / path).is_file()]


def test_prometheus_scrapes_each_agent() -> None:
    """
    By the job's name that the alerts and the dashboard have.
    """
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]

    assert "driftlog" == job["job_name"]
    assert [f"{name}:9644" for name in AGENTS] == job["static_configs"][0]["targets"]


def test_the_init_hook_makes_the_bucket_of_the_agents(tmp_path: Path) -> None:
    """
    As LocalStack runs it, with awslocal replaced by one that says what it is asked.
    """
    fake = tmp_path / "awslocal"
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    hook = FOLDER / "init-bucket.sh"
    ran = subprocess.run(
        [str(hook)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "s3api create-bucket --bucket driftlog\n") == (ran.returncode, ran.stdout)
    stores = {SERVICES[name]["environment"]["DRIFTLOG_STORE"] for name in AGENTS}
    assert {"s3://driftlog/log"} == stores
