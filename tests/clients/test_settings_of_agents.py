"""A real agent starts with a file, variables and flags, and says so to Kafka's tools."""

from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    ConfigResource,
    ResourceType,
)

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
