"""What `driftlog` says of configs that do nothing, and the one notation of topic ids.

Broken: a retention is set, nothing is said, and nothing is ever deleted.
"""

from uuid import UUID

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from driftlog.cli.common.topic_names import topic_id_text
from tests.clients.command import read, run, said
from tests.clients.conftest import make_topic
from tests.support.driftlog_process import DriftlogProcess

pytestmark = pytest.mark.xdist_group("command")

NOTE = "driftlog: note: flush.ms: Accepted and kept for tools; it changes nothing here."


def test_a_config_that_does_nothing_is_accepted_and_said_to(agent: DriftlogProcess) -> None:
    """
    Where it is set, whichever command sets it, and where it is described; as the agent's
    DescribeConfigs documents it.
    """
    at, topic = agent.bootstrap, make_topic(agent)
    config = ("flush.ms=5", "segment.bytes=2000000")
    new = f"{topic}-new"
    by = [
        ("topics", "create", new, "--config", config[0], "--config", config[1]),
        ("topics", "alter", topic, "--config", config[0], "--config", config[1]),
        ("configs", "alter", "--topic", topic, "--add-config", ",".join(config)),
    ]
    for line in by:
        done = run(*line, bootstrap=at)
        assert (0, NOTE) == (done.returncode, done.stderr.decode().strip())

    (described,) = read(at, "topics", "describe", topic)
    (entity,) = read(at, "configs", "describe", "--topic", topic)
    notes = {config["name"]: config["note"] for config in entity["configs"]}

    sentence = NOTE.removeprefix("driftlog: note: flush.ms: ")
    assert {"flush.ms": "5", "segment.bytes": "2000000"} == described["configs"]
    assert {"flush.ms": sentence} == described["config_notes"]
    assert {"flush.ms": sentence, "segment.bytes": None} == notes
    assert f"flush.ms=5  [{sentence}]" in said(at, "topics", "describe", topic)
    assert sentence in said(at, "configs", "describe", "--topic", topic)


def test_a_reset_config_is_not_mentioned(agent: DriftlogProcess) -> None:
    """
    What does nothing is of no interest where it is taken away.
    """
    topic = make_topic(agent, flush_ms="5")
    done = run("topics", "alter", topic, "--delete-config", "flush.ms", bootstrap=agent.bootstrap)

    assert (0, b"") == (done.returncode, done.stderr)


def test_a_topic_id_is_kafkas_wherever_it_is_shown(agent: DriftlogProcess) -> None:
    """
    Base64 for URLs, as Kafka's own tools print it: `grep` finds it in every output.
    """
    topic = make_topic(agent)
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id
    halves = (found.get_most_significant_bits(), found.get_least_significant_bits())
    expected = topic_id_text(UUID(bytes=b"".join((n % (1 << 64)).to_bytes(8) for n in halves)))

    (described,) = read(agent.bootstrap, "topics", "describe", topic)
    (sealed,) = read(agent.bootstrap, "segments", "describe", topic, "--dir", str(agent.directory))

    assert [expected] * 2 == [described["topic_id"], sealed["topic_id"]]
