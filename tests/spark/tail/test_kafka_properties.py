"""A job's options of Spark's Kafka source would not reach librdkafka, or mean something else."""

import confluent_kafka
import pytest

from driftlog_spark_reader.tail.kafka_properties import librdkafka_properties

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "t", "includeTail": "true"},
            {"bootstrap.servers": "a:1,b:2"},
        ),
        (
            {"KAFKA.Client.Id": "job", "kafka.isolation.level": "read_committed"},
            {"client.id": "job", "isolation.level": "read_committed"},
        ),
        (
            {
                "kafka.security.protocol": "SASL_SSL",
                "kafka.sasl.mechanism": "SCRAM-SHA-512",
                "kafka.sasl.jaas.config": f'{SCRAM} username="ann" password="a";',
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "ann",
                "sasl.password": "a",
            },
        ),
        (
            {
                "kafka.request.timeout.ms": "5000",
                "kafka.receive.buffer.bytes": "65536",
                "kafka.fetch.max.wait.ms": "7",
                "kafka.max.poll.records": "10",
                "kafka.session.timeout.ms": "10000",
            },
            {
                "socket.timeout.ms": "5000",
                "socket.receive.buffer.bytes": "65536",
                "fetch.wait.max.ms": "7",
            },
        ),
    ],
)
def test_properties_have_librdkafkas_names(
    options: dict[str, str], expected: dict[str, str]
) -> None:
    """
    Java's own are translated, or left out where they tune Java's client only.
    """
    assert expected == librdkafka_properties(options)


def test_librdkafka_knows_all_of_them() -> None:
    """
    A consumer is made with properties of Java's documentation.
    """
    options = {
        f"kafka.{name}": value
        for name, value in {
            "bootstrap.servers": "127.0.0.1:1",
            "check.crcs": "true",
            "client.dns.lookup": "use_all_dns_ips",
            "client.rack": "a",
            "connections.max.idle.ms": "540000",
            "fetch.max.bytes": "52428800",
            "fetch.max.wait.ms": "500",
            "fetch.min.bytes": "1",
            "isolation.level": "read_committed",
            "max.partition.fetch.bytes": "1048576",
            "metadata.max.age.ms": "300000",
            "receive.buffer.bytes": "65536",
            "reconnect.backoff.max.ms": "1000",
            "reconnect.backoff.ms": "50",
            "request.timeout.ms": "30000",
            "retry.backoff.ms": "100",
            "send.buffer.bytes": "131072",
            "socket.connection.setup.timeout.ms": "10000",
        }.items()
    }

    confluent_kafka.Consumer({**librdkafka_properties(options), "group.id": "g"}).close()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("auto.offset.reset", "earliest", "use startingOffsets"),
        ("enable.auto.commit", "true", "commits no offsets"),
    ],
)
def test_what_has_no_counterpart_is_refused(name: str, value: str, said: str) -> None:
    """
    Each error names the option and the way out.
    """
    with pytest.raises(ValueError, match=f"kafka.{name.rpartition('.')[0]}.*{said}"):
        librdkafka_properties({f"kafka.{name}": value})
