"""Without it an upgrade loses records, or an old agent damages what a new one has written.

Agents of the last release that knows only level 1, from git's history, and of this tree.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifest import empty_manifest
from driftlog_tiering.formats.manifest_codec import encode_manifest
from tests.clients.command import read as told_by
from tests.clients.command import refused, run, said
from tests.clients.conftest import make_topic, seal
from tests.clients.test_etcd_agents import Told, shared_by
from tests.support import etcd_server
from tests.support.components import REPOSITORY
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("etcd_agents")]

_OLD: Final = "6083fba70ad48b92b97dde578e4a8f734ad8e2ac"
_FOLDERS: Final = ("metadata", "tiering", "agents", "spark_reader", "client")
_KERNEL: Final = Path("tiering/driftlog_tiering/batches")
_LEARNED_S: Final = 30.0


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `driftlog` is that of the older release."""
    folder = tmp_path_factory.mktemp("old")
    archive = folder / "old.tar"
    made = subprocess.run(
        ["git", "archive", "-o", str(archive), _OLD, *_FOLDERS],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"git has no commit {_OLD[:7]} (a shallow clone?): {made.stderr.decode()}")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    same = (folder / _KERNEL / "_kernel.pyx").read_bytes()
    if same == (REPOSITORY / _KERNEL / "_kernel.pyx").read_bytes():
        for kernel in (REPOSITORY / _KERNEL).glob("_kernel*.so"):
            shutil.copy(kernel, folder / _KERNEL)  # else its slow twin
    return {"PYTHONPATH": os.pathsep.join(str(folder / name) for name in _FOLDERS)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Options of one cluster: an etcd of one member, and a folder of objects."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    with etcd_server.start(etcd_server.newest_version(), folder, members=1) as etcd:
        yield ("--etcd", ",".join(etcd.endpoints), "--store", str(tmp_path / "objects"))


def agent(
    folder: Path, name: str, store: tuple[str, ...], environment: dict[str, str] | None = None
) -> DriftlogProcess:
    """One of the cluster, which is not started yet."""
    return DriftlogProcess(folder / name, store, environment or {}, command=("agent", "run"))


def newest_manifests(folder: Path, topic: str) -> list[dict[str, Any]]:
    """Of each partition."""
    partitions = (folder / "objects" / "topics" / topic).glob("*/[0-9]*/manifest")
    newest = (min(found.glob("*.json")) for found in sorted(partitions))
    return [json.loads(path.read_text()) for path in newest]


def levels(agent: DriftlogProcess) -> set[int]:
    """The cluster's, as all agents say."""
    found = told_by(agent.bootstrap, "cluster", "upgrade")
    return {at["cluster_level"] for at in found["agents"]}


def test_two_releases_serve_one_cluster_until_its_level_is_raised(
    old: dict[str, str], store: tuple[str, ...], tmp_path: Path
) -> None:
    """
    At level 1 both seal and read what the other wrote.  The old agent holds the raise up; after it
    the new ones write format 2 without a restart, and the old one refuses to start, with a reason.
    """
    with agent(tmp_path, "old", store, old) as first, agent(tmp_path, "new", store) as second:
        both = [first, second]
        topic = make_topic(first, 8)
        shared_by(2, both, topic, 60)
        told = Told(both)
        told.send_for(topic, 1)
        told.check(both, topic)
        for each in both:
            seal(each, topic)
        assert {1} == {m["format_version"] for m in newest_manifests(tmp_path, topic)}
        told.check([first], topic)
        told.check([second], topic)

        seen = told_by(second.bootstrap, "cluster", "upgrade")
        assert (1, None) == (seen["format_level"], seen["can_be_raised_to"])
        assert [1, 2] == sorted(found["knows_level"] for found in seen["agents"])
        why = refused(second.bootstrap, "cluster", "upgrade", "--finalize")
        assert "only supports versions 1-1" in why
        assert {1} == levels(second)

        first.terminate()
        shared_by(1, [second], topic, 60)
        with agent(tmp_path, "newer", store) as third:
            shared_by(2, [second, third], topic, 60)
            assert 2 == told_by(second.bootstrap, "cluster", "upgrade")["can_be_raised_to"]
            table = ("-c", "cleanup.policy=compact")
            made = run("topics", "create", "table", *table, bootstrap=second.bootstrap)
            assert b"note: cleanup.policy: compact does nothing until" in made.stderr
            assert "  [compact does nothing until the format level of the cluster" in said(
                second.bootstrap, "topics", "describe", "table"
            )
            assert 1 == told_by(second.bootstrap, "cluster", "info")["format_level"]
            raised = said(second.bootstrap, "cluster", "upgrade", "--finalize")
            assert "raised from 1 to 2" in raised
            assert "nothing is raised: 2 is" in said(
                second.bootstrap, "cluster", "upgrade", "--finalize"
            )
            until = time.monotonic() + _LEARNED_S
            while levels(third) != {2}:
                assert time.monotonic() < until, "it did not learn of the raise"
            assert "does nothing" not in said(second.bootstrap, "topics", "describe", "table")
            told = Told([second, third])
            told.send_for(topic, 1)
            told.flush()
            for each in (second, third):
                seal(each, topic)
            found = newest_manifests(tmp_path, topic)
            assert {2} == {m["format_version"] for m in found}
            assert 1 == len({m["cluster_id"] for m in found})
            assert [] == told.errors

        first.launch()
        assert 0 != first.wait(60)
        assert "upgrade" in first.log.splitlines()[-1], first.log


def test_an_old_agent_that_sleeps_through_the_raise_serves_nothing_more(
    old: dict[str, str], store: tuple[str, ...], tmp_path: Path
) -> None:
    """
    Its lease is over, so it does not hold up the raise; when it wakes it opens no session.
    """
    with agent(tmp_path, "old", store, old) as first, agent(tmp_path, "new", store) as second:
        topic = make_topic(first, 8)
        shared_by(2, [first, second], topic, 60)
        first.pause()
        try:
            shared_by(1, [second], topic, 60)
            said(second.bootstrap, "cluster", "upgrade", "--finalize")
            told = Told([second])
            told.send_for(topic, 1)
            told.flush()
            seal(second, topic)
        finally:
            first.resume()

        until = time.monotonic() + _LEARNED_S
        while "metadata_store_replaced" not in first.log:
            assert time.monotonic() < until, first.log
        told.send_for(topic, 1)
        told.check([second], topic)
        assert 1 == len(told_by(second.bootstrap, "cluster", "brokers"))
        assert "partition_offline" not in first.log + second.log


def test_old_software_refuses_to_edit_a_manifest_of_format_2(
    old: dict[str, str], tmp_path: Path
) -> None:
    """
    A Spark job or a command of the old release drops no field that it does not know.
    """
    manifest = replace(
        empty_manifest("flights", TopicPartition(UUID(int=1), 0)),
        version=1,
        nonce="a",
        format_version=2,
        cluster_id="a-cluster",
    )
    (tmp_path / "manifest.json").write_bytes(encode_manifest(manifest))
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pathlib, sys\n"
            "from driftlog_tiering.formats.manifest_codec import *\n"
            "from driftlog_tiering.formats import manifest_codec\n"
            "try:\n"
            "    decode_manifest(pathlib.Path(sys.argv[1]).read_bytes())\n"
            "except CorruptManifestError as error:\n"
            "    print(manifest_codec.__file__, error)\n",
            str(tmp_path / "manifest.json"),
        ],
        env=os.environ | old,
        capture_output=True,
        check=True,
        text=True,
    )

    assert done.stdout.startswith(old["PYTHONPATH"].split("/metadata")[0])
    assert "upgrade this one" in done.stdout
