"""An option of Spark's Kafka sink has its effect here, or is refused with the reason.

If it failed: a job that is moved over would write with other guarantees than it asks for, or wait
for ever, without a word.
Pure.
"""

from collections.abc import Mapping

import confluent_kafka
import pytest
from confluent_kafka import KafkaException

from driftlog.common.settings import ProducerSettings
from driftlog_spark_reader.common.kafka_security import SECURITY
from driftlog_spark_reader.sink.producer_options import (
    JAVA_CONFIGS,
    Renamed,
    SinkOptions,
    in_options,
    sink_options,
)

SERVERS = "a:9092,b:9092"
LEVEL = "compression.level"

KAFKA_3_9 = """
acks auto.include.jmx.reporter batch.size bootstrap.servers buffer.memory client.dns.lookup
client.id compression.gzip.level compression.lz4.level compression.type compression.zstd.level
connections.max.idle.ms delivery.timeout.ms enable.idempotence enable.metrics.push
interceptor.classes key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
max.request.size metadata.max.age.ms metadata.max.idle.ms metadata.recovery.strategy
metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
partitioner.ignore.keys receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites
ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type transaction.timeout.ms
transactional.id value.serializer
""".split()
"""Every config of Java's producer 3.9, which Spark 4.2 uses: ProducerConfig.configNames()."""


def options(**configs: str) -> SinkOptions:
    """With ``a__b`` for the option ``kafka.a.b``."""
    given = {f"kafka.{name.replace('__', '.')}": value for name, value in configs.items()}
    return sink_options({"topic": "t", "kafka.bootstrap.servers": SERVERS, **given})


def known(name: str) -> bool:
    """Whether librdkafka has a config of that name."""
    try:
        confluent_kafka.Producer({name: "?", "log_level": 0})
    except KafkaException as error:
        reason = error.args[0].str()
        return "No such configuration" not in reason and "not supported" not in reason
    return True


def test_every_config_of_java_s_producer_has_a_verdict() -> None:
    """
    It is in the table, or librdkafka has it under the same name; a new name of it exists.
    """
    missing = [
        name for name in KAFKA_3_9 if name not in {*JAVA_CONFIGS, *SECURITY} and not known(name)
    ]
    renamed = [rule.name for rule in JAVA_CONFIGS.values() if isinstance(rule, Renamed)]

    assert [] == missing
    assert [] == [name for name in renamed if not known(name)]
    assert set() == JAVA_CONFIGS.keys() - set(KAFKA_3_9)


def test_the_defaults_are_kafka_s_guarantees() -> None:
    """
    Idempotent, all acknowledgements, murmur2, two minutes for a record; and a bounded queue.
    """
    found = options()

    assert SinkOptions(SERVERS, "t", found.settings, {}) == found
    assert found.settings.configs() == {
        **ProducerSettings().configs(),
        "acks": "all",
        "enable.idempotence": True,
        "delivery.timeout.ms": 120_000,
        "partitioner": "murmur2_random",
        "queue.buffering.max.kbytes": 65_536,
        "queue.buffering.max.messages": 200_000,
    }
    assert 60_000 == found.settings.max_block_ms


def test_configs_go_to_librdkafka_under_its_names() -> None:
    """
    Names have no case; what librdkafka has itself stays as it is.
    """
    found = options(
        LINGER__MS="5",
        send__buffer__bytes="-1",
        receive__buffer__bytes="65536",
        connections__max__idle__ms="-1",
        partitioner__ignore__keys="true",
        ssl__endpoint__identification__algorithm="",
        ssl__keystore__key="PEM",
        queue__buffering__max__messages="10",
    )

    assert found.config == {
        "linger.ms": "5",
        "socket.send.buffer.bytes": "0",
        "socket.receive.buffer.bytes": "65536",
        "connections.max.idle.ms": "0",
        "partitioner": "random",
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.key.pem": "PEM",
        "queue.buffering.max.messages": "10",
    }


def test_memory_blocking_and_record_size_are_settings() -> None:
    """
    buffer.memory, max.block.ms, max.request.size.
    """
    settings = options(
        buffer__memory="33554432", max__block__ms="2500", max__request__size="2000000"
    ).settings

    assert 33_554_432 == settings.queue_max_bytes
    assert (2_500, 2_500) == (settings.max_block_ms, settings.connect_timeout_ms)
    assert 2_000_000 == settings.max_message_bytes


def test_a_topic_is_trimmed_and_optional() -> None:
    """
    As Spark does; options without "kafka." are not the sink's.
    """
    given = {
        "Topic": " t ",
        "KAFKA.Bootstrap.Servers": "a:1",
        "includeHeaders": "true",
        "path": "/x",
    }

    assert "t" == sink_options(given).topic
    assert {} == sink_options(given).config
    assert None is sink_options({"kafka.bootstrap.servers": "a:1"}).topic


@pytest.mark.parametrize(
    ("configs", "idempotent"),
    [
        ({}, True),
        ({"enable__idempotence": "TRUE"}, True),
        ({"enable__idempotence": "false"}, False),
        ({"acks": "-1"}, True),
        ({"acks": "1"}, False),
        ({"acks": "0"}, False),
        ({"retries": "0"}, False),
        ({"max__in__flight__requests__per__connection": "6"}, False),
        ({"max__in__flight__requests__per__connection": "5"}, True),
        ({"acks": "1", "enable__idempotence": "false"}, False),
    ],
)
def test_idempotence_gives_way_as_in_java(configs: dict[str, str], idempotent: bool) -> None:
    """
    A config that excludes it turns the default off.
    """
    assert idempotent is options(**configs).settings.idempotence


@pytest.mark.parametrize(
    ("configs", "level"),
    [
        (
            {"compression__type": "zstd", "compression__zstd__level": "3"},
            {"compression.level": "3"},
        ),
        ({"compression__type": "zstd", "compression__gzip__level": "3"}, {}),
        ({"compression__lz4__level": "9"}, {LEVEL: "9"}),
    ],
)
def test_a_level_is_of_its_codec(configs: dict[str, str], level: Mapping[str, str]) -> None:
    """
    Levels of other codecs are ignored, as in Java.
    """
    found = dict(options(**configs).config)
    found.pop("compression.type", None)

    assert level == found


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        (
            {"key__serializer": "x"},
            "Kafka option 'key.serializer' is not supported as keys are serialized with "
            "ByteArraySerializer.",
        ),
        (
            {"value__serializer": "x"},
            "Kafka option 'value.serializer' is not supported as value are serialized with "
            "ByteArraySerializer.",
        ),
        ({"transactional__id": "x"}, "is not supported as the sink writes without transactions"),
        ({"partitioner__class": "x.Y"}, "fill the column 'partition'"),
        ({"ssl__truststore__location": "x.jks"}, "or give kafka.ssl.ca.location"),
        ({"metric__reporters": "x"}, "leave it out"),
        ({"buffer__memory": "32m"}, "Kafka option 'buffer.memory' is a number, not '32m'"),
        ({"max__block__ms": "-1"}, "Kafka option 'max.block.ms' is a number, not '-1'"),
        ({"delivery__timeout__ms": "0"}, "Kafka option 'delivery.timeout.ms' is 0"),
        ({"enable__idempotence": "yes"}, "is true or false, not 'yes'"),
        (
            {"enable__idempotence": "true", "acks": "1"},
            "Must set acks to all in order to use the idempotent producer. Otherwise we cannot "
            "guarantee idempotence.",
        ),
        (
            {"enable__idempotence": "true", "retries": "0"},
            "Must set retries to non-zero when using the idempotent producer.",
        ),
        (
            {
                "enable__idempotence": "true",
                "max__in__flight__requests__per__connection": "6",
            },
            "Must set max.in.flight.requests.per.connection to at most 5 to use the idempotent "
            "producer.",
        ),
        ({"sasl__jaas__config": "x.Krb5LoginModule required;"}, "PlainLoginModule"),
        (
            {"bootstrap__servers": " "},
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer",
        ),
    ],
)
def test_other_options_are_refused_with_the_reason(configs: dict[str, str], message: str) -> None:
    """
    In the words of Spark and of Java's producer where they have some.
    """
    with pytest.raises(ValueError) as raised:
        options(**configs)

    assert message in str(raised.value)


def test_an_empty_topic_is_refused() -> None:
    """
    Spark's Kafka sink fails in a task, with an empty message.
    """
    with pytest.raises(ValueError) as raised:
        sink_options({"topic": " ", "kafka.bootstrap.servers": "a:1"})

    assert str(raised.value).startswith("option 'topic' is empty")


def test_messages_of_the_client_name_options() -> None:
    """
    A job has no `delivery_timeout_ms`.
    """
    assert "raise kafka.delivery.timeout.ms or kafka.buffer.memory" == in_options(
        "raise delivery_timeout_ms or queue_max_bytes"
    )
