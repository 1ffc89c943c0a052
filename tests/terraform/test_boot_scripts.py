"""A boot script mounts the right disk, installs from the bucket, and says when the agent is ready.

The scripts run whole, with their paths in a folder and with stand-ins for the commands that need
root, a disk or AWS; each stand-in notes how it was called.

Shell.
"""

import hashlib
import os
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.certificates import make_certificates
from tests.support.etcd_server import Certificates
from tests.terraform.checkout import TERRAFORM

AGENT: Final = TERRAFORM / "modules" / "agents" / "files" / "driftlog-boot"
ETCD: Final = TERRAFORM / "modules" / "metadata" / "files" / "etcd-boot"

_PATHS: Final = re.compile(r"(?<![\w/:])/(?:etc|dev/disk|var/lib|opt|tmp)/")
_COMMANDS: Final = (
    *("aws", "blkid", "chown", "curl", "dnf", "install", "mkfs.xfs", "mount"),
    *("mountpoint", "python3.12", "sleep", "systemctl", "useradd", "id", "xfs_growfs"),
)

_STAND_IN: Final = """#!/bin/bash
echo "${0##*/} $*" >>"$CALLS"
case "${0##*/} $*" in
"curl -sf "*" -X PUT "*) echo token ;;
*meta-data/local-ipv4) echo 10.80.0.7 ;;
*meta-data/instance-id) echo i-7 ;;
*meta-data/placement/availability-zone-id) echo euc1-az2 ;;
"curl -sf http"*/readyz)
    # Not ready at first.
    [ -e "$CALLS.ready" ] || { touch "$CALLS.ready"; exit 22; } ;;
"blkid -s UUID"*) echo 1234 ;;
blkid*) [ -n "$HAS_FILE_SYSTEM" ] ;;
mountpoint* | id*) exit 1 ;;
"aws ssm get-parameter"*) cat "$CLIENT_PEM" ;;
"aws autoscaling"*)
    # It is throttled at first.
    [ -e "$CALLS.told" ] || { touch "$CALLS.told"; exit 254; } ;;
"aws s3 cp --only-show-errors s3://a-log/artifacts/etcd"*) cp "$RELEASE_FILE" "${@: -1}" ;;
"python3.12 -m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/pip" ;;
"install -d"*) mkdir -p "${@: -1}" ;;
esac
"""


class Machine:
    """A folder in place of the root of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[str] = []
        for folder in ("etc", "dev/disk/by-id", "var/lib", "opt", "bin", "tmp"):
            (root / folder).mkdir(parents=True)
        (root / "etc" / "fstab").touch()
        for name in _COMMANDS:
            command = root / "bin" / name
            command.write_text(_STAND_IN)
            command.chmod(0o755)

    def boot(self, script: Path, variables: Mapping[str, str]) -> int:
        """Run *script* here; its exit status."""
        text = _PATHS.sub(lambda found: f"{self.root}{found[0]}", script.read_text())
        calls = self.root / "calls"
        done = subprocess.run(
            ["bash", "-c", text],
            env={
                **variables,
                "CALLS": str(calls),
                "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        self.calls = calls.read_text().replace(str(self.root), "").splitlines()
        self.told = done.stderr
        return done.returncode

    def called(self, command: str) -> list[str]:
        return [call for call in self.calls if call.startswith(f"{command} ")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path, "authority")


def _agent(machine: Machine, certificates: Certificates, has_file_system: str = "") -> int:
    folder = machine.root / "etc" / "driftlog"
    folder.mkdir()
    (folder / "boot.env").write_text(
        "CLUSTER=a\nWHEELS=s3://a-log/artifacts/driftlog/1/\nCLIENT_CERTIFICATE=/a/etcd/client\n"
        "GROUP=a-agents\nHOOK=ready\nVOLUME_DEVICE=/dev/sdf\n"
        "export AWS_DEFAULT_REGION=eu-central-1\n"
    )
    pem = machine.root / "client.pem"
    files = (certificates.key_file, certificates.certificate_file, certificates.ca_file)
    parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    pem.write_text(parameters + "subject=a\n".join(file.read_text() for file in files))
    given = {"CLIENT_PEM": str(pem), "HAS_FILE_SYSTEM": has_file_system}
    return machine.boot(AGENT, given)


def test_an_agent_starts_with_what_its_machine_knows(
    machine: Machine, certificates: Certificates
) -> None:
    """
    Its address and its zone; the key, the certificate and the authority in files of their own.
    """
    code = _agent(machine, certificates)

    assert 0 == code, machine.told
    etc = machine.root / "etc" / "driftlog"
    variables = dict(line.split("=") for line in (etc / "agent.env").read_text().splitlines())
    assert {
        "DRIFTLOG_LISTENER": "10.80.0.7:9092",
        "DRIFTLOG_HTTP_LISTENER": "10.80.0.7:9644",
        "DRIFTLOG_RACK": "euc1-az2",
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "CLUSTER": "a",
    } == variables
    for name, file in {
        "client-key.pem": certificates.key_file,
        "client.pem": certificates.certificate_file,
        "ca.pem": certificates.ca_file,
    }.items():
        assert file.read_text() == (etc / "tls" / name).read_text()
        assert 0o640 == (etc / "tls" / name).stat().st_mode & 0o777


def test_an_agent_is_in_the_group_once_it_is_ready(
    machine: Machine, certificates: Certificates
) -> None:
    """
    It is started after all that it needs, and installed from the bucket alone.  The group is told
    again where it did not hear: a machine that it is not told of is ended.
    """
    _agent(machine, certificates)

    [pip] = machine.called("pip")
    assert "install -q --no-index --find-links /opt/driftlog-wheels driftlog[agent]" in pip
    assert [
        "aws autoscaling complete-lifecycle-action --auto-scaling-group-name a-agents "
        "--lifecycle-hook-name ready --instance-id i-7 --lifecycle-action-result CONTINUE"
    ] * 2 == machine.called("aws autoscaling")
    order = [
        next(i for i, call in enumerate(machine.calls) if call.startswith(start))
        for start in ("mount -o", "pip", "aws ssm", "systemctl enable", "aws autoscaling")
    ]
    assert sorted(order) == order
    assert 3 == sum(call.endswith("/readyz") for call in machine.calls)


@pytest.mark.parametrize("own_disk", [True, False])
def test_buffers_are_on_the_disk_of_the_machine_if_it_has_one(
    machine: Machine, certificates: Certificates, own_disk: bool
) -> None:
    """
    Else on the volume; a file system that is there is kept.
    """
    nvme = machine.root / "dev" / "disk" / "by-id" / "nvme-Amazon_EC2_NVMe_Instance_Storage_AWS1"
    if own_disk:
        nvme.touch()
    code = _agent(machine, certificates, has_file_system="yes" if own_disk else "")

    assert 0 == code, machine.told
    device = f"/{nvme.relative_to(machine.root)}" if own_disk else "/dev/sdf"
    assert ([] if own_disk else [f"mkfs.xfs -q {device}"]) == machine.called("mkfs.xfs")
    assert [f"mount -o noatime {device} /var/lib/driftlog"] == machine.called("mount")
    mounts = (machine.root / "etc" / "fstab").read_text().replace(str(machine.root), "")
    assert "UUID=1234 /var/lib/driftlog xfs noatime,nofail 0 2\n" == mounts


@pytest.mark.parametrize("has_data", [True, False])
def test_a_member_of_etcd_keeps_the_file_system_of_its_volume(
    machine: Machine, tmp_path: Path, has_data: bool
) -> None:
    """
    A machine that replaces another one finds the data of the member.
    """
    release = tmp_path / "release.tar.gz"
    binary = tmp_path / "etcd"
    binary.write_text("etcd")
    with tarfile.open(release, "w:gz") as archive:
        archive.add(binary, "etcd-v3.6.16-linux-arm64/etcd")
    (machine.root / "etc" / "driftlog-etcd").mkdir()
    volume = "dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0abc"
    (machine.root / volume).touch()
    (machine.root / "etc" / "driftlog-etcd" / "boot.env").write_text(
        "RELEASE=s3://a-log/artifacts/etcd/etcd-v3.6.16-linux-arm64.tar.gz\n"
        f"RELEASE_SHA256={hashlib.sha256(release.read_bytes()).hexdigest()}\nVOLUME=vol-0abc\n"
        "export AWS_DEFAULT_REGION=eu-central-1\n"
    )
    given = {"RELEASE_FILE": str(release), "HAS_FILE_SYSTEM": "yes" if has_data else ""}

    code = machine.boot(ETCD, given)

    assert 0 == code, machine.told
    assert ([] if has_data else [f"mkfs.xfs -q /{volume}"]) == machine.called("mkfs.xfs")
    assert ["mount /var/lib/etcd"] == machine.called("mount")
    assert ["xfs_growfs /var/lib/etcd"] == machine.called("xfs_growfs")
    mounts = (machine.root / "etc" / "fstab").read_text().replace(str(machine.root), "")
    assert f"/{volume} /var/lib/etcd xfs" in mounts
    assert "etcd" == (machine.root / "opt" / "etcd" / "etcd").read_text()
    units = "driftlog-etcd.service driftlog-etcd-backup.timer"
    assert f"systemctl enable --now {units}" == machine.calls[-1]


def test_a_release_that_was_changed_is_not_installed(machine: Machine, tmp_path: Path) -> None:
    """
    Terraform said which one it uploaded.
    """
    release = tmp_path / "release.tar.gz"
    release.write_text("something else")
    (machine.root / "etc" / "driftlog-etcd").mkdir()
    (machine.root / "dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0abc").touch()
    (machine.root / "etc" / "driftlog-etcd" / "boot.env").write_text(
        f"RELEASE=s3://a-log/artifacts/etcd/e.tar.gz\nRELEASE_SHA256={'0' * 64}\nVOLUME=vol-0abc\n"
    )

    code = machine.boot(ETCD, {"RELEASE_FILE": str(release), "HAS_FILE_SYSTEM": "yes"})

    assert 0 != code
    assert not (machine.root / "opt" / "etcd").exists()
    assert [] == machine.called("systemctl enable")
