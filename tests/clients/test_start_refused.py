"""An agent that must not start says why, in one line, and ends with an error."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import environ
from pathlib import Path

import pytest

from tests.clients.conftest import make_topic, seal
from tests.clients.peers import Confluent
from tests.clients.records import Record, at_offsets
from tests.support.driftlog_process import DriftlogProcess, driftlog_command
from tests.support.fault_proxy import FaultProxy
from tests.support.process_usage import free_port
from tests.support.s3_servers import S3Server

pytestmark = pytest.mark.xdist_group("start_refused")

RECORDS = [Record(b"k", b"%d" % n, 1_700_000_000_000) for n in range(100)]


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a start ended."""

    code: int
    said: str


def refused(
    directory: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Refusal:
    """Start an agent that shall end by itself."""
    command = driftlog_command()
    assert command is not None
    line = [command, "dev", "--dir", str(directory), *arguments]
    if "--listener" not in arguments:
        line += ["--listener", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(
        line,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
        env={**environ, **(environment or {})},
        text=True,
    )
    assert "ready" not in done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    return Refusal(done.returncode, done.stderr)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an agent that was stopped, with a topic `kept`, sealed in half."""
    directory = tmp_path_factory.mktemp("original") / "data"
    with DriftlogProcess(directory) as agent:
        client = Confluent()
        client.produce(agent.bootstrap, {"kept": "none"}, RECORDS[:50])
        seal(agent, "kept")
        client.produce(agent.bootstrap, {"kept": "zstd"}, RECORDS[50:])
    return directory


@pytest.fixture
def stopped(original: Path, tmp_path: Path) -> Path:
    """A copy of it to break."""
    shutil.copytree(original, tmp_path / "stopped")
    return tmp_path / "stopped"


def test_a_second_agent_on_a_directory_is_refused(agent: DriftlogProcess) -> None:
    """
    The lock says that somebody is there; the first one does not notice.
    """
    topic = make_topic(agent)

    refusal = refused(agent.directory)

    assert refusal.code == 1
    assert "another agent" in refusal.said or "in use" in refusal.said, refusal.said
    assert str(agent.directory) in refusal.said
    client = Confluent()
    client.produce(agent.bootstrap, {topic: "none"}, RECORDS)
    assert client.consume(agent.bootstrap, {topic: 100})[topic] == at_offsets(RECORDS)


def test_a_second_cluster_on_a_prefix_is_refused(agent: DriftlogProcess, tmp_path: Path) -> None:
    """
    cluster.json says whose it is.
    """
    objects = agent.directory / "objects"

    refusal = refused(tmp_path / "other", "--store", str(objects))

    assert refusal.code == 1
    assert "belongs to cluster" in refusal.said
    assert str(objects) in refusal.said
    assert not (tmp_path / "other").exists()


def test_two_clusters_that_know_themselves_cannot_share_a_prefix(
    agent: DriftlogProcess, stopped: Path
) -> None:
    """
    A directory with its own cluster and its own topics, on the prefix of another.
    """
    refusal = refused(stopped, "--store", str(agent.directory / "objects"))

    assert refusal.code == 1
    assert "two clusters cannot share a prefix" in refusal.said


def test_the_directory_of_an_agent_with_etcd_is_refused_without_it(tmp_path: Path) -> None:
    """
    With what was forgotten, and before a cluster is made of it.
    """
    directory = tmp_path / "a1"
    directory.mkdir()
    (directory / "node_id.json").write_text('{"node_id": 1, "cluster_id": "somebody"}')

    refusal = refused(directory)

    assert refusal.code == 1
    assert "--etcd and the --store that it had before" in refusal.said
    assert [] == [*directory.glob("metadata.db*"), *directory.glob("objects")]


def test_a_directory_of_another_cluster_is_refused(agent: DriftlogProcess, stopped: Path) -> None:
    """
    metadata.db and objects of one cluster, node_id.json of another.
    """
    theirs = json.loads((agent.directory / "node_id.json").read_text())
    (stopped / "node_id.json").write_text(json.dumps(theirs))

    refusal = refused(stopped)

    assert refusal.code == 1
    assert theirs["cluster_id"] in refusal.said


def test_a_store_without_the_cluster_s_topics_is_refused(stopped: Path, tmp_path: Path) -> None:
    """
    A mistyped --store does not start an empty log under the old metadata.
    """
    refusal = refused(stopped, "--store", str(tmp_path / "elsewhere"))

    assert refusal.code == 1
    assert "check the location" in refusal.said
    assert not (tmp_path / "elsewhere").exists()


def test_a_bucket_without_its_metadata_is_refused(stopped: Path) -> None:
    """
    metadata.db is gone: no new cluster takes over the old one's objects.
    """
    for file in stopped.glob("metadata.db*"):
        file.unlink()

    refusal = refused(stopped)

    assert refusal.code == 1
    assert "If that store is lost, `driftlog restore` brings the cluster back" in refusal.said


@pytest.mark.parametrize("damage", ["garbage", "truncated", "empty"])
def test_damaged_metadata_is_refused_and_left_alone(stopped: Path, damage: str) -> None:
    """
    What is not a metadata store is not written over; the message names the file.
    """
    database = stopped / "metadata.db"
    whole = database.read_bytes()
    for side in stopped.glob("metadata.db-*"):
        side.unlink()
    left = {"garbage": os.urandom(len(whole)), "truncated": whole[: len(whole) // 2], "empty": b""}
    database.write_bytes(left[damage])

    refusal = refused(stopped)

    assert refusal.code == 1
    if damage == "empty":
        assert "If that store is lost, `driftlog restore` brings the cluster back" in refusal.said
    else:
        assert "metadata.db" in refusal.said
        assert database.read_bytes() == left[damage]


def test_a_damaged_node_id_is_refused(stopped: Path) -> None:
    """
    The message says what to do; done, the agent starts and has its records.
    """
    (stopped / "node_id.json").write_bytes(b"\0" * 40)

    refusal = refused(stopped)

    assert refusal.code == 1
    assert "node_id.json" in refusal.said
    (stopped / "node_id.json").unlink()
    with DriftlogProcess(stopped) as agent:
        reads = Confluent().consume(agent.bootstrap, {"kept": 100})["kept"]
    assert reads == at_offsets(RECORDS)


def test_a_damaged_cluster_file_is_refused(stopped: Path) -> None:
    """
    cluster.json is named.
    """
    (stopped / "objects" / "cluster.json").write_bytes(b"{")

    refusal = refused(stopped)

    assert refusal.code == 1
    assert "cluster.json" in refusal.said


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    """
    Another broker is there: the message names the address and the option.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refusals = [
            refused(tmp_path / "data", option, address)
            for option in ("--listener", "--http-listener")
        ]

    assert [refusal.code for refusal in refusals] == [1, 1]
    assert all(address in refusal.said for refusal in refusals)
    assert all("-listener" in refusal.said for refusal in refusals)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("option", ["--listener", "--http-listener", "--advertised-listener"])
@pytest.mark.parametrize("address", ["localhost:kafka", "127.0.0.1:99999", "127.0.0.1"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, option: str, address: str) -> None:
    """
    With the option that it was given to, and an example or the bound.
    """
    refusal = refused(tmp_path / "data", option, address)

    assert refusal.code == 1
    assert f"{option} '{address}' is not HOST:PORT" in refusal.said
    assert "9092" in refusal.said or "65535" in refusal.said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("option", ["--listener", "--http-listener"])
@pytest.mark.parametrize(
    ("host", "advice"),
    [
        ("192.0.2.1", "no address of this machine"),
        ("nosuchhost.invalid", "check the name"),
        ("no..host", "check the name"),
    ],
)
def test_an_address_of_another_machine_is_refused(
    tmp_path: Path, option: str, host: str, advice: str
) -> None:
    """
    It is no port that is taken: what to do is another thing.
    """
    refusal = refused(tmp_path / "data", option, f"{host}:9092")

    assert refusal.code == 1
    assert f"{option} {host}:9092" in refusal.said
    assert advice in refusal.said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("option", ["--listener", "--advertised-listener"])
def test_an_address_that_clients_cannot_connect_to_is_refused(tmp_path: Path, option: str) -> None:
    """
    0.0.0.0 is every address of the machine that asks.
    """
    refusal = refused(tmp_path / "data", option, "0.0.0.0:0")

    assert refusal.code == 1
    assert "--advertised-listener" in refusal.said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (("--listener", "SSL://127.0.0.1:0"), "no TLS and no SASL yet"),
        (("--listener", "127.0.0.1:0", "--listener", "127.0.0.1:0"), "a name of its own"),
        (
            ("--advertised-listener", "OUTSIDE://a.example.com:9092"),
            "listener OUTSIDE does not exist",
        ),
        (
            ("--listener", "127.0.0.1:0", "--listener", "OUTSIDE://0.0.0.0:0"),
            "--advertised-listener OUTSIDE://HOST:PORT",
        ),
    ],
)
def test_listeners_that_do_not_fit_together_are_refused(
    tmp_path: Path, options: tuple[str, ...], advice: str
) -> None:
    """
    The message names the option, and what to give it.
    """
    refusal = refused(tmp_path / "data", *options)

    assert refusal.code == 1
    assert "-listener" in refusal.said
    assert advice in refusal.said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("store", ["ftp://host/path", "s3:///prefix"])
def test_a_store_that_is_none_is_refused(tmp_path: Path, store: str) -> None:
    """
    The message names the option, and no folder is made of it.
    """
    refusal = refused(tmp_path / "data", "--store", store)

    assert refusal.code == 1
    assert "--store" in refusal.said
    assert not (tmp_path / "data").exists()


def test_a_bucket_that_is_not_there_is_refused(tmp_path: Path, moto_s3: S3Server) -> None:
    """
    NoSuchBucket, by name: agents make no buckets.
    """
    refusal = refused(
        tmp_path / "data", "--store", "s3://no-such-bucket", environment=moto_s3.environment
    )

    assert refusal.code == 1
    assert "no-such-bucket" in refusal.said
    assert not (tmp_path / "data").exists()


def test_a_store_that_does_not_answer_is_refused(tmp_path: Path, moto_s3: S3Server) -> None:
    """
    Nobody listens at the endpoint: what to check, and nothing is left; the next start, with the
    right one, is good.
    """
    endpoint = f"http://127.0.0.1:{free_port()}"
    nobody = {**moto_s3.environment, "AWS_ENDPOINT_URL": endpoint}

    refusal = refused(tmp_path / "data", "--store", moto_s3.location, environment=nobody)

    assert refusal.code == 1
    assert endpoint in refusal.said
    assert "AWS_ENDPOINT_URL" in refusal.said.replace(endpoint, "")
    assert not (tmp_path / "data").exists()
    with DriftlogProcess(
        tmp_path / "data",
        arguments=("--store", moto_s3.location),
        environment=moto_s3.environment,
    ) as agent:
        Confluent().produce(agent.bootstrap, {"kept": "none"}, RECORDS)


def test_a_store_that_does_not_answer_at_a_restart_is_refused(
    tmp_path: Path, moto_s3: S3Server
) -> None:
    """
    With the same advice; what is in the directory stays, and is served when it answers.
    """
    store = ("--store", f"{moto_s3.location}/restart")
    with DriftlogProcess(
        tmp_path / "data", arguments=store, environment=moto_s3.environment
    ) as agent:
        Confluent().produce(agent.bootstrap, {"kept": "none"}, RECORDS)
    nobody = {**moto_s3.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}

    refusal = refused(tmp_path / "data", *store, environment=nobody)

    assert refusal.code == 1
    assert "Check the endpoint" in refusal.said
    with DriftlogProcess(
        tmp_path / "data", arguments=store, environment=moto_s3.environment
    ) as agent:
        reads = Confluent().consume(agent.bootstrap, {"kept": 100})["kept"]
    assert reads == at_offsets(RECORDS)


def test_a_store_that_comes_back_is_waited_for(tmp_path: Path, moto_s3: S3Server) -> None:
    """
    A reset or two while a start looks at the bucket refuse nothing: the log says what it waits for.
    """
    store = ("--store", f"{moto_s3.location}/waited")
    with FaultProxy(moto_s3.environment["AWS_ENDPOINT_URL"]) as proxy:
        proxy.set_mode("refuse")
        environment = {**moto_s3.environment, "AWS_ENDPOINT_URL": proxy.url}
        agent = DriftlogProcess(tmp_path / "data", arguments=store, environment=environment)
        agent.launch()
        with contextlib.closing(agent):
            until(lambda: "start_delayed" in agent.log)
            proxy.set_mode("pass")
            agent.wait_until_ready()
            Confluent().produce(agent.bootstrap, {"kept": "none"}, RECORDS)
            log = agent.log

    assert 1 == log.count("start_delayed")


def test_a_start_that_waits_for_its_store_heeds_sigterm(tmp_path: Path) -> None:
    """
    It does not wait for the store to say what is wrong; and it leaves nothing behind.
    """
    endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    agent = DriftlogProcess(
        tmp_path / "data", arguments=("--store", "s3://bucket"), environment={**endpoint, **keys}
    )
    agent.launch()
    with contextlib.closing(agent):
        until(lambda: "start_delayed" in agent.log)
        agent.terminate()
        said = agent.log

    assert "does not answer" not in said
    assert not (tmp_path / "data").exists()


def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Return when *holds*."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/driftlog"])
def test_a_directory_that_cannot_be_one_is_refused(tmp_path: Path, place: str) -> None:
    """
    --dir names a file, something below one, or where nothing can be made.
    """
    (tmp_path / "file").write_text("not a directory")

    refusal = refused(tmp_path / place)

    assert refusal.code == 1
    assert str(tmp_path / place) in refusal.said
    assert "--dir" in refusal.said


def test_a_start_that_was_refused_for_its_port_leaves_a_prefix_to_others(tmp_path: Path) -> None:
    """
    No cluster.json of a cluster that never was: another directory may use the prefix.
    """
    store = ("--store", str(tmp_path / "objects"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refusal = refused(tmp_path / "first", *store, "--listener", address)

    assert refusal.code == 1
    assert list(tmp_path.iterdir()) == []
    with DriftlogProcess(tmp_path / "second", arguments=store) as agent:
        make_topic(agent)


def test_a_directory_that_was_copied_goes_on_where_it_was(stopped: Path) -> None:
    """
    Objects and all: nothing in it is absolute, and the copies above were good ones.
    """
    with DriftlogProcess(stopped) as agent:
        reads = Confluent().consume(agent.bootstrap, {"kept": 100})["kept"]

    assert reads == at_offsets(RECORDS)
