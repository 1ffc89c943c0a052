"""A real agent starts with a file, variables and flags, and says so to Kafka's tools."""

from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    ConfigResource,
    ResourceType,
)

from driftlog.cli import main
from tests.support.driftlog_process import DriftlogProcess


def test_an_agent_takes_its_file_its_variables_and_its_flags(tmp_path: Path) -> None:
    """
    Each wins where it stands last, and DescribeConfigs shows what the agent does.
    """
    file = tmp_path / "agent.toml"
    file.write_text(
        f'dir = "{tmp_path}/not-this"\nhttp-listener = "127.0.0.1:0"\nrack = "zone-a"\n'
        "num.partitions = 2\nlog.retention.ms = 5000\nauto.create.topics.enable = false\n"
    )
    environment = {"DRIFTLOG_CONFIG_FILE": str(file), "DRIFTLOG_NUM_PARTITIONS": "3"}
    environment |= {"DRIFTLOG_LOG_RETENTION_MS": "6000"}
    with DriftlogProcess(
        tmp_path / "data",
        ("--config", "log.retention.ms=7000"),
        environment,
        command=("agent", "run"),
    ) as agent:
        admin = AdminClient({"bootstrap.servers": agent.bootstrap})
        node = next(iter(admin.list_topics(timeout=10).brokers))
        resource = ConfigResource(ResourceType.BROKER, str(node))
        (future,) = admin.describe_configs([resource]).values()
        found = future.result(10)

        names = ("num.partitions", "log.retention.ms", "broker.rack")
        assert ["3", "7000", "zone-a"] == [found[name].value for name in names]
        assert not (tmp_path / "not-this").exists()


def test_the_command_alters_what_all_brokers_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    In driftlog's form and in that of Kafka's scripts; and shows it with its source.
    """
    with DriftlogProcess(tmp_path / "data") as agent:

        def run(*line: str) -> tuple[int, str]:
            status = main(["configs", *line, "--bootstrap-server", agent.bootstrap])
            done = capsys.readouterr()
            return status, done.out + done.err

        change = ("--add-config", "log.retention.ms=5000")
        kafkas = ("--entity-type", "brokers", "--entity-default")
        assert (0, "all brokers could be altered\n") == run(
            "alter", "--all-brokers", *change, "--dry-run"
        )
        assert "log.retention.ms" not in run("describe", "--all-brokers")[1]
        assert (0, "all brokers are altered\n") == run("alter", *kafkas, *change)
        for shown in (run("describe", "--all-brokers")[1], run("describe", "--broker", "1")[1]):
            (row,) = [line for line in shown.splitlines() if line.startswith("log.retention.ms ")]
            assert ["log.retention.ms", "5000", "all", "brokers"] == row.split()
        status, said = run("alter", "--all-brokers", "--add-config", "num.partitions=3")
        assert 1 == status
        assert "Cannot update these configs dynamically: [num.partitions]" in said
        assert 0 == run("alter", "--all-brokers", "--delete-config", "log.retention.ms")[0]
        assert "all brokers  0 configs set\n" == run("describe", *kafkas)[1]
        assert 2 == run("describe", "--entity-default")[0]
