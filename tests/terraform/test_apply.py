"""The complete example is applied to an account, and its machines' own files make a cluster.

By the commands of docs/deploy.md, up to a client's first record: etcd's members and the agents are
started from nothing but what their machines' user data says, against the bucket that Terraform
made, and with its policies enforced.

Shell.
"""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import botocore.session
import pytest

from driftlog_tiering.compaction.rewrite_report import Outcome
from tests.support.components import REPOSITORY, java, kafka_jars, kcat
from tests.support.driftlog_process import driftlog_command
from tests.support.kafka_peer import install_tools
from tests.support.spark_jobs import imported, merged
from tests.terraform import aws_cli
from tests.terraform.checkout import copied, mirror, resources, terraform, typed
from tests.terraform.machine_files import MachineFiles, machine_files
from tests.terraform.machines import Agent, EtcdMembers, client_certificate
from tests.terraform.moto_account import (
    BUCKET,
    REGION,
    applied,
    destroyed,
    moto_account,
    prepared,
)
from tests.terraform.policy_proxy import PolicyProxy, allowed

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("terraform-apply")]

_PAGE: Final = (REPOSITORY / "docs" / "deploy.md").read_text()
_STATE, _APPLY, _KAFKA_TOOLS, _ON_A_MACHINE, _SEAL = re.findall(
    r"^```sh\n(.*?)^```", _PAGE, re.DOTALL | re.MULTILINE
)
"""All its commands that run here."""

[_PRODUCE] = re.findall(r"^.* kcat -P .*$", _KAFKA_TOOLS, re.MULTILINE)

_STATES: Final = "example-terraform-states"

_GROUPS: Final = ("module.agents", "module.seal_agents[0]")
_ALWAYS_CHANGED: Final = {
    f"{group}.{resource}"
    for group in _GROUPS
    for resource in (
        *("aws_autoscaling_group.agents", "aws_autoscaling_policy.cpu"),
        "aws_autoscaling_policy.network",
    )
}
"""moto forgets the warm-up of a group, and answers settings of policies that were not asked for."""

_RULES: Final = re.compile(r"aws_vpc_security_group_(in|e)gress_rule\.")
"""moto forgets descriptions of rules that name another group."""

_COLLECT_SECONDS: Final = 100.0
_SEAL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What `terraform apply` made of the example, and how long the page's lines for it took."""

    example: Path
    account: Mapping[str, str]
    outputs: Mapping[str, Any]
    resources: Mapping[str, Mapping[str, Any]]
    seconds: float

    def member_machines(self) -> list[MachineFiles]:
        found = [
            values["user_data_base64"]
            for address, values in sorted(self.resources.items())
            if address.startswith("module.metadata.aws_instance.this")
        ]
        return [machine_files(user_data) for user_data in found]

    def agent_machines(self) -> list[MachineFiles]:
        """One of those that serve, and one of those that only seal."""
        templates = [self.resources[f"{group}.aws_launch_template.agents"] for group in _GROUPS]
        return [machine_files(template["user_data"]) for template in templates]

    def policy(self, address: str) -> dict[str, Any]:
        policy: dict[str, Any] = json.loads(self.resources[address]["policy"])
        return policy

    def client(self, service: str) -> Any:
        return botocore.session.get_session().create_client(
            service,
            endpoint_url=self.account["AWS_ENDPOINT_URL"],
            region_name=self.account["AWS_REGION"],
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applied]:
    mirror()
    folder = tmp_path_factory.mktemp("apply")
    example = prepared(copied(folder))
    with moto_account(folder) as account:
        for lines, at in ((_STATE, folder), (_APPLY, example.with_name("remote-state"))):
            began = time.monotonic()
            done = typed(lines, at, account)
            assert 0 == done.returncode, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        seconds = time.monotonic() - began
        outputs = json.loads(terraform(example, "output", "-json", environment=account))
        yield Applied(
            example=example,
            account=account,
            outputs={name: output["value"] for name, output in outputs.items()},
            resources=resources(example, account),
            seconds=seconds,
        )


def test_apply_makes_what_a_client_needs(cluster: Applied) -> None:
    """
    By the page's commands, with its state in a bucket: where to connect in each zone, what to read
    with Spark, and as whom.
    """
    outputs = cluster.outputs
    zones = outputs["bootstrap_servers_by_zone"]

    assert cluster.seconds < 240, "on a busy machine; alone it takes 80 s"
    assert [f"{REGION}a", f"{REGION}b", f"{REGION}c"] == sorted(zones)
    assert all(zones[zone] == f"{zone}.{outputs['bootstrap_servers']}" for zone in zones)
    lines = outputs["client_properties"].splitlines()
    assert [
        f"bootstrap.servers={outputs['bootstrap_servers']}",
        "security.protocol=PLAINTEXT",
    ] == lines
    assert f"s3://{BUCKET}/log" == outputs["location"]
    assert outputs["reader_role_arn"].endswith(f":role/{BUCKET}-reader")


def test_both_groups_grow_by_the_network_that_was_given(cluster: Applied) -> None:
    """
    At 60 % of 1000 Mbit/s, in bytes a minute.
    """
    policies = [cluster.resources[f"{group}.aws_autoscaling_policy.network"] for group in _GROUPS]

    targets = [policy["target_tracking_configuration"][0]["target_value"] for policy in policies]

    assert [4_500_000_000] * 2 == targets


def test_machines_get_the_units_of_this_checkout(cluster: Applied) -> None:
    """
    What is tested of deploy/systemd is what runs; the configuration is TOML that agents know.
    """
    machine, seals = cluster.agent_machines()
    tested = cluster.example.parents[2] / "deploy" / "systemd"
    settings, others = (
        tomllib.loads(each.contents["/etc/driftlog/agent.toml"]) for each in (machine, seals)
    )
    options = subprocess.run(
        [str(driftlog_command()), "agent", "run", "--help"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    for unit in ("driftlog.service", "driftlog-metrics.service", "driftlog-metrics.timer"):
        assert (tested / unit).read_text() == machine.contents[f"/etc/systemd/system/{unit}"]
    assert [["/usr/local/sbin/driftlog-boot"]] == machine.commands
    configs = ("auto.create.topics.enable", "max.connections", "max.connections.per.ip")
    assert (True, 5000, 500) == tuple(settings.pop(name) for name in configs)
    assert [] == [name for name in settings if f"--{name} " not in options]
    assert (["serve"], ["seal"]) == (settings.pop("roles"), others.pop("roles"))
    assert settings == {name: others[name] for name in settings}


def test_a_second_plan_shows_what_moto_forgets_and_nothing_else(
    cluster: Applied, tmp_path: Path
) -> None:
    """
    Nothing is replaced, and nothing changes by itself.

    The plan has the agents' configuration where the page reads it, and an agent takes it.
    """
    plan = str(cluster.example / "second.tfplan")
    terraform(cluster.example, "plan", f"-out={plan}", environment=cluster.account)
    shown = json.loads(
        terraform(cluster.example, "show", "-json", plan, environment=cluster.account)
    )
    changes = {
        change["address"]: change["change"]["actions"]
        for change in shown["resource_changes"]
        if change["change"]["actions"] not in (["no-op"], ["read"])
    }

    planned = tmp_path / "agent.toml"
    planned.write_text(shown["planned_values"]["outputs"]["agent_toml"]["value"])
    checked = subprocess.run(
        [str(driftlog_command()), "agent", "config", "--config-file", str(planned)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (0, "") == (checked.returncode, checked.stderr)
    assert ".planned_values.outputs.agent_toml.value" in _PAGE
    assert {("update",)} == {tuple(actions) for actions in changes.values()}
    assert set() == {a for a in changes if not _RULES.search(a)} - _ALWAYS_CHANGED


def test_machines_make_a_cluster_that_takes_records_with_its_role_alone(
    cluster: Applied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Members form etcd with certificates, agents join, clients write and read by the page's commands;
    each action of the agents' policy is used, and none beside it; a reader's role reads what is
    sealed, by the agent that only seals; so does a writer's, which imports a topic and merges;
    SIGTERM drains each agent in its time.
    """
    java(), kcat(), kafka_jars()
    machine, seals = cluster.agent_machines()
    command = machine.exec_start("driftlog.service")
    assert ["/opt/driftlog/bin/driftlog", "agent", "run"] == command[:3]
    path = {"PATH": f"{aws_cli.install(tmp_path / 'bin')}:/usr/local/bin:/usr/bin:/bin"}
    policy = cluster.policy("module.bucket.aws_iam_policy.agent")
    reader, writer = (
        cluster.policy(f'module.bucket.aws_iam_role_policy.user["{role}"]')
        for role in ("reader", "writer")
    )
    location, moto = cluster.outputs["location"], cluster.account["AWS_ENDPOINT_URL"]
    with (
        PolicyProxy(moto, policy) as proxy,
        EtcdMembers(tmp_path, cluster.member_machines(), {**cluster.account, **path}) as etcd,
    ):
        for name in etcd.names:
            etcd.start(name)
        for name in etcd.names:
            etcd.wait_until_healthy(name)
        certificates = tmp_path / "tls"
        parameter = machine.variables("/etc/driftlog/boot.env")["CLIENT_CERTIFICATE"]
        ssm = cluster.client("ssm")
        pem = ssm.get_parameter(Name=parameter, WithDecryption=True)["Parameter"]["Value"]
        client_certificate(machine, pem, certificates)
        environment = {
            **cluster.account,
            "AWS_ENDPOINT_URL": proxy.url,
            "DRIFTLOG_ETCD": ",".join(etcd.endpoints),
            "DRIFTLOG_ETCD_CACERT": str(certificates / "ca.pem"),
            "DRIFTLOG_ETCD_CERT": str(certificates / "client.pem"),
            "DRIFTLOG_ETCD_KEY": str(certificates / "client-key.pem"),
            "DRIFTLOG_NEW_CLUSTER_GRACE_MS": "5000",
        }
        agents = [
            Agent(tmp_path / zone, of, environment, zone)
            for zone, of in (("euc1-az1", machine), ("euc1-az2", machine), ("euc1-az3", seals))
        ]
        with agents[0], agents[1], agents[2]:
            type_here = _shell(cluster, agents[0], tmp_path / "bin")
            type_there = _shell(cluster, agents[1], tmp_path / "bin")
            for type_at, lines in (
                (type_here, _KAFKA_TOOLS),
                (type_there, _ON_A_MACHINE.replace("greetings", "others")),
            ):
                done = type_at(lines)
                assert (0, "hello") == (done.returncode, done.stdout.splitlines()[-1]), done.stderr
            for value in ("first", "second"):
                done = type_here(f"{_PRODUCE.replace('hello', value)} -p 0")
                assert 0 == done.returncode, done.stderr
                # Refused while a partition is on its way to another agent.
                _wait_until(lambda: 0 == type_here(_SEAL).returncode, _SEAL_SECONDS, pause_s=3.1)
            sealed = [_metric(agent, "driftlog_sealed_bytes_total") for agent in agents]
            with PolicyProxy(moto, writer) as writers:
                for name, setting in {**cluster.account, "AWS_ENDPOINT_URL": writers.url}.items():
                    monkeypatch.setenv(name, setting)
                imported(location, agents[0].listener, "history", [b"old"])
                _wait_until(lambda: merged(location, "greetings").outcome is Outcome.DONE, 60)
            with PolicyProxy(moto, reader) as readers:
                under = {**cluster.account, "AWS_ENDPOINT_URL": readers.url}
                tables = [_read(under, location, topic) for topic in ("greetings", "history")]
            _wait_until(lambda: "s3:DeleteObject" in proxy.used, _COLLECT_SECONDS)
            codes = [agent.stop() for agent in agents]
    made = ssm.get_parameters_by_path(Path="/log", Recursive=True)["Parameters"]
    [deleted] = re.findall(r"`aws ssm delete-parameters --names ([^`]+)`", _PAGE)

    assert [0, 0, 0] == codes
    assert ([], [], []) == (proxy.refused, readers.refused, writers.refused)
    assert ["first hello second", "old"] == tables
    assert sealed[0] == sealed[1] == 0 < sealed[2]
    for granting, used in ((policy, proxy.used), (reader, readers.used), (writer, writers.used)):
        assert _granted(granting) == used
    assert {parameter["Name"] for parameter in made} == set(deleted.split())


def test_roles_may_not_leave_their_prefixes(cluster: Applied) -> None:
    """
    By the policies as they were applied: what an agent, a reader and a writer try beside them.
    """
    agent = cluster.policy("module.bucket.aws_iam_policy.agent")
    reader = cluster.policy('module.bucket.aws_iam_role_policy.user["reader"]')
    writer = cluster.policy('module.bucket.aws_iam_role_policy.user["writer"]')
    bucket = f"arn:aws:s3:::{BUCKET}"
    foreign = [
        (agent, "s3:DeleteObject", f"{bucket}/log/cluster.json"),
        (agent, "s3:DeleteObject", f"{bucket}/log/producer-ids/00000000000000000000.json"),
        (agent, "s3:GetObject", f"{bucket}/backups/etcd/etcd-1/hour-00.db"),
        (agent, "s3:PutObject", f"{bucket}/artifacts/driftlog/a/driftlog.whl"),
        (agent, "s3:PutBucketPolicy", bucket),
        (reader, "s3:PutObject", f"{bucket}/log/topics/a/b/00000/c.parquet"),
        (reader, "s3:GetObject", f"{bucket}/log/groups/a/b.json"),
        (writer, "s3:PutObject", f"{bucket}/log/flush/a/b.flush"),
        (writer, "s3:DeleteObject", f"{bucket}/log/topics/a/b/00000/c.parquet"),
    ]

    assert [] == [(action, arn) for policy, action, arn in foreign if allowed(policy, action, arn)]
    assert allowed(writer, "s3:PutObject", f"{bucket}/log/topics/a/b/00000/c.parquet")


def test_another_size_is_applied_in_place(cluster: Applied) -> None:
    """
    Four agents in place of three: the group changes, and nothing is replaced.
    """
    told = applied(cluster.example, cluster.account, "min_size=4", "max_size=8")

    [name] = re.findall(r"describe-auto-scaling-groups --auto-scaling-group-names (\S+)", _PAGE)
    [seals] = re.findall(r"a second group, `(\S+)`", _PAGE)
    answer = cluster.client("autoscaling").describe_auto_scaling_groups()
    groups = {group["AutoScalingGroupName"]: group for group in answer["AutoScalingGroups"]}
    group = groups[name]
    assert {name, seals} == set(groups)
    assert (4, 8) == (group["MinSize"], group["MaxSize"])
    assert re.search(r"Resources: 0 added, \d+ changed, 0 destroyed", told)


def test_destroy_leaves_nothing(cluster: Applied) -> None:
    """
    But its state, once the bucket is empty: a bucket that holds a log is not destroyed.
    """
    s3 = cluster.client("s3")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="log/"):
        for found in page.get("Contents", ()):
            s3.delete_object(Bucket=BUCKET, Key=found["Key"])

    destroyed(cluster.example, cluster.account)

    assert [_STATES] == [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    assert [] == cluster.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]


def _shell(
    cluster: Applied, agent: Agent, tools: Path
) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Types lines of the page beside the example, as on the machine of *agent*.

    The load balancer's name is its address.
    """
    install_tools(tools)
    variables = tools / f"{agent.listener}.env"
    variables.write_text(f"DRIFTLOG_LISTENER={agent.listener}\n")
    ours = Path(str(driftlog_command())).parent
    environment = {**cluster.account, "PATH": f"{tools}:{ours}:{os.environ['PATH']}"}

    def type_here(lines: str) -> subprocess.CompletedProcess[str]:
        for written, real in {
            "$(terraform output -raw bootstrap_servers)": agent.listener,
            "/etc/driftlog/agent.env": str(variables),
            "/opt/driftlog/bin": str(ours),
        }.items():
            lines = lines.replace(written, real)
        return typed(lines, cluster.example, environment)

    return type_here


def _granted(policy: Mapping[str, Any]) -> set[str]:
    """The actions that *policy* allows."""
    actions = [statement["Action"] for statement in policy["Statement"]]
    return {a for each in actions for a in ([each] if isinstance(each, str) else each)}


def _metric(agent: Agent, name: str) -> float:
    """A figure of an agent, which has no labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{agent.http}/metrics", timeout=60) as answer:
        [value] = re.findall(rf"(?m)^{name} (\S+)$", answer.read().decode())
    return float(value)


def _read(environment: Mapping[str, str], location: str, topic: str) -> str:
    """The values of the topic in their order, read from its files as Spark's driver does."""
    code = (
        "import sys, driftlog_spark_reader as d;"
        "t = d.read_arrow(*sys.argv[1:]);"
        "print(*sorted(value.decode() for value in t.column('value').to_pylist()))"
    )
    command = [sys.executable, "-c", code, location, topic]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout.strip()


def _wait_until(condition: Callable[[], bool], seconds: float, pause_s: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not after {seconds:.0f} s"
        time.sleep(pause_s)
