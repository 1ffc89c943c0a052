"""Apache Kafka's own command-line tools, unmodified, against an agent.

Shell.
"""

import subprocess
from pathlib import Path

import pytest

from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import java_command, kafka_jars

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.slow,
]

_QUIET = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    "-XX:TieredStopAtLevel=1",
)
_TOPICS = "org.apache.kafka.tools.TopicCommand"
_CONFIGS = "kafka.admin.ConfigCommand"


def tool(agent: DriftlogProcess, main_class: str, *arguments: str) -> str:
    """What the tool prints; it must succeed."""
    done = subprocess.run(
        java_command(main_class, *arguments, "--bootstrap-server", agent.bootstrap, jvm=_QUIET),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=90,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_kafkas_tools_administer_an_agent(tmp_path: Path) -> None:
    """
    Topics are created, described, extended, configured, measured and deleted, and the tools print
    what they print of Kafka.
    """
    with DriftlogProcess(tmp_path / "data") as agent:
        tool(
            agent,
            _TOPICS,
            *("--create", "--topic", "flights", "--partitions", "2"),
            *("--replication-factor", "3", "--config", "cleanup.policy=compact"),
        )
        described = tool(agent, _TOPICS, "--describe")
        tool(agent, _TOPICS, "--alter", "--topic", "flights", "--partitions", "3")
        tool(
            agent,
            _CONFIGS,
            *("--entity-type", "topics", "--entity-name", "flights", "--alter"),
            *("--add-config", "retention.ms=1000", "--delete-config", "cleanup.policy"),
        )
        configured = tool(
            agent, _CONFIGS, "--entity-type", "topics", "--entity-name", "flights", "--describe"
        )
        offsets = tool(agent, "org.apache.kafka.tools.GetOffsetShell", "--topic", "flights")
        sizes = tool(agent, "org.apache.kafka.tools.LogDirsCommand", "--describe")
        tool(agent, _TOPICS, "--delete", "--topic", "flights")
        listed = tool(agent, _TOPICS, "--list")

    assert "PartitionCount: 2\tReplicationFactor: 1\tConfigs: cleanup.policy=compact" in described
    assert 2 == described.count("Leader: 1\tReplicas: 1\tIsr: 1")
    assert [
        "Dynamic configs for topic flights are:",
        "  retention.ms=1000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=1000}",
    ] == configured.splitlines()
    assert ["flights:0:0", "flights:1:0", "flights:2:0"] == offsets.splitlines()
    assert 3 == sizes.count('"partition":"flights-')
    assert [] == listed.split()
