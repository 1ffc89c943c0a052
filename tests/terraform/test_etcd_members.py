"""Members of etcd form one cluster with TLS, come back after a lost disk, and are backed up.

Shell.
"""

import json
import os
import runpy
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, Final

import botocore.session
import pytest

from tests.support.process_usage import free_port
from tests.support.s3_servers import fresh_bucket, moto_endpoint
from tests.terraform import aws_cli
from tests.terraform.checkout import TERRAFORM
from tests.terraform.machine_files import MachineFiles
from tests.terraform.machines import EtcdMembers

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("etcd-members")]

__all__ = ["moto_endpoint"]

FILES: Final = TERRAFORM / "modules" / "metadata" / "files"
_PARAMETERS: Final = "/members-of-the-test/etcd"


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory, moto_endpoint: str) -> Mapping[str, str]:
    folder = aws_cli.install(tmp_path_factory.mktemp("bin"))
    server = fresh_bucket(moto_endpoint)
    path = f"{folder}:{os.environ['PATH']}"
    return {**server.environment, "PATH": path, "BUCKET": server.bucket}


@pytest.fixture(scope="module")
def members(
    tmp_path_factory: pytest.TempPathFactory, account: Mapping[str, str]
) -> Iterator[EtcdMembers]:
    """Three healthy members; each test leaves them so."""
    folder = tmp_path_factory.mktemp("members")
    names = ["etcd-1", "etcd-2", "etcd-3"]
    machines = [
        MachineFiles(
            contents={
                "/usr/local/bin/driftlog-etcd": (FILES / "driftlog-etcd").read_text(),
                "/etc/driftlog-etcd/member.env": f"CLUSTER=a\nMEMBER={name}\n"
                f"PARAMETERS={_PARAMETERS}\nBACKUPS=s3://{account['BUCKET']}/backups/etcd\n",
            },
            modes={},
            commands=[],
        )
        for name in names
    ]
    with EtcdMembers(folder, machines, account) as started:
        for name in names:
            started.start(name)
        for name in names:
            started.wait_until_healthy(name)
        yield started


def test_the_memory_of_a_member_holds_its_database() -> None:
    """
    m7g.medium has 4 GiB.  A database beyond the memory is read from the disk, page by page.
    """
    script = runpy.run_path(str(FILES / "driftlog-etcd"))

    sizes = [script["quota_bytes"](gib << 30) >> 30 for gib in (4, 16, 64)]

    assert [2, 8, 8] == sizes


def _client(service: str, account: Mapping[str, str]) -> Any:
    return botocore.session.get_session().create_client(
        service,
        endpoint_url=account["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


def _put(members: EtcdMembers, name: str, key: str, value: str) -> None:
    members.answer(name, "/v3/kv/put", json.dumps({"key": key, "value": value}))


def _get(members: EtcdMembers, name: str, key: str) -> str | None:
    found = json.loads(members.answer(name, "/v3/kv/range", json.dumps({"key": key})))
    return found["kvs"][0]["value"] if "kvs" in found else None


def _ids(members: EtcdMembers, name: str) -> set[str]:
    listed = json.loads(members.answer(name, "/v3/cluster/member/list"))["members"]
    return {member["ID"] for member in listed}


def test_a_member_that_lost_its_disk_joins_as_a_new_one(
    members: EtcdMembers, account: Mapping[str, str]
) -> None:
    """
    It votes under another id, so nothing that it had promised before is broken; its data is back.

    Without a quorum it waits: alone it would begin an empty cluster, and take a vote it has cast.
    """
    _put(members, "etcd-1", "a2V5", "b25l")
    before = _ids(members, "etcd-1")
    members.stop("etcd-3")
    shutil.rmtree(members.home("etcd-3") / "data")

    members.start("etcd-3")
    members.wait_until_healthy("etcd-3")

    after = _ids(members, "etcd-1")
    assert (2, 1, 1) == (len(before & after), len(before - after), len(after - before))
    assert "b25l" == _get(members, "etcd-3", "a2V5")

    members.stop("etcd-2")
    members.stop("etcd-3")
    shutil.rmtree(members.home("etcd-3") / "data")
    # etcd was killed before it had a log.
    (members.home("etcd-3") / "data" / "member" / "snap").mkdir(parents=True)
    members.start("etcd-3")

    assert 1 == members.ended("etcd-3")
    assert "it waits for them" in members.log("etcd-3")

    members.start("etcd-2")
    members.wait_until_healthy("etcd-2")
    members.start("etcd-3")
    members.wait_until_healthy("etcd-3")
    assert "b25l" == _get(members, "etcd-3", "a2V5")

    # The authority was made once, and its key is in no file of a machine.
    parameters = _client("ssm", account).get_parameters_by_path(
        Path=_PARAMETERS, WithDecryption=True
    )
    values = {entry["Name"]: entry["Value"] for entry in parameters["Parameters"]}
    assert {f"{_PARAMETERS}/{name}" for name in ("authority", "client", "formed")} == set(values)
    authority_key = values[f"{_PARAMETERS}/authority"].partition("-----BEGIN CERTIFICATE")[0]
    for name in members.names:
        files = (members.home(name) / "certificates").iterdir()
        assert [] == [file for file in files if authority_key in file.read_text()]


def test_a_member_with_data_starts_while_the_parameter_store_is_away(
    members: EtcdMembers,
) -> None:
    """
    With the certificates of its last start: an outage of SSM must not take etcd's quorum.
    """
    members.stop("etcd-1")

    members.start("etcd-1", AWS_ENDPOINT_URL=f"http://127.0.0.1:{free_port()}")
    members.wait_until_healthy("etcd-1")

    last = members.log("etcd-1").rpartition("starts with the certificates that it has: ")[2]
    assert last.startswith("aws ssm get-parameter: ")
    assert "starts as etcd-1, state existing" in last

    members.stop("etcd-1")
    members.start("etcd-1")
    members.wait_until_healthy("etcd-1")


def test_a_backup_restores_all_members(members: EtcdMembers, account: Mapping[str, str]) -> None:
    """
    The snapshot that a member wrote to the bucket, on each of three new disks.

    A backup that was killed leaves nothing behind once there is another one.
    """
    _put(members, "etcd-1", "a2V5", "b25l")
    leftover = members.home("etcd-2") / "backup"
    leftover.mkdir()
    (leftover / "snapshot.db").write_text("half of one")
    done = members.run("etcd-2", "backup")
    assert 0 == done.returncode, done.stderr
    assert not leftover.exists()
    s3 = _client("s3", account)
    [listed, *_] = s3.list_objects_v2(Bucket=account["BUCKET"], Prefix="backups/etcd/etcd-2/hour-")[
        "Contents"
    ]
    snapshot = members.home("etcd-2") / "snapshot.db"
    snapshot.write_bytes(s3.get_object(Bucket=account["BUCKET"], Key=listed["Key"])["Body"].read())
    _put(members, "etcd-1", "a2V5", "dHdv")

    for name in members.names:
        members.stop(name)
        shutil.rmtree(members.home(name) / "data")
        restored = members.run(name, "restore", str(snapshot))
        assert 0 == restored.returncode, restored.stderr
    for name in members.names:
        members.start(name)
    for name in members.names:
        members.wait_until_healthy(name)

    assert ["b25l"] * 3 == [_get(members, name, "a2V5") for name in members.names]
    metrics = _client("cloudwatch", account).list_metrics(Namespace="driftlog")["Metrics"]
    sent = [(m["MetricName"], {d["Name"]: d["Value"] for d in m["Dimensions"]}) for m in metrics]
    assert [("EtcdBackups", {"Cluster": "a", "Member": "etcd-2"})] == sent
