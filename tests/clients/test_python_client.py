"""`import driftlog` loads little, and its types, words and rules hold without a cluster.

Shell.
"""

import os
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

import driftlog
from driftlog import Consumer, Producer, Record
from driftlog.common.connection import Connections
from driftlog.common.records import TopicPartition, from_ms, to_ms
from driftlog.common.settings import RESERVED, ConsumerSettings, ProducerSettings
from driftlog.consumer.positions import Positions
from driftlog.errors import (
    AuthorizationError,
    DeliveryError,
    DriftlogError,
    FailedDelivery,
    GroupNotEmptyError,
    OutcomeUnknownError,
    RequestError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
    UnreachableError,
    advice,
    request_error,
)
from driftlog.producer.deliveries import KEPT, Deliveries, DeliveryFuture

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
A0: Final = TopicPartition("a", 0)
A1: Final = TopicPartition("a", 1)


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=dict(os.environ),
    )


# ── Importing ──


def test_importing_driftlog_loads_nothing() -> None:
    """
    Not confluent-kafka, not asyncio; the names are there all the same.
    """
    done = python(
        """
        import sys
        before = set(sys.modules)
        import driftlog
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(sorted(loaded & {"confluent_kafka", "asyncio", "json", "logging", "driftlog_agents"}))
        print(set(driftlog.__all__) <= set(dir(driftlog)))
        """
    )
    assert "[]\nTrue\n" == done.stdout, done.stderr


def test_without_confluent_kafka_the_first_use_says_what_to_install() -> None:
    """
    Records and errors need nothing; another error of an import stays what it is.
    """
    done = python(
        """
        import sys
        sys.modules["confluent_kafka"] = None
        import driftlog
        from driftlog import DriftlogError, Record
        try:
            driftlog.Producer
        except ImportError as error:
            print(error)
        try:
            driftlog.Nothing
        except AttributeError as error:
            print(error)
        """
    )
    told, unknown = done.stdout.splitlines()
    assert "driftlog.Producer needs confluent-kafka: pip install driftlog" in told
    assert "module 'driftlog' has no attribute 'Nothing'" == unknown


def test_every_name_is_there() -> None:
    """
    `__all__` is what can be had.
    """
    for name in driftlog.__all__:
        assert name == getattr(driftlog, name).__name__


def test_a_type_checker_knows_what_comes_out(tmp_path: Path) -> None:
    """
    The types of keys and values follow from the serializers; mypy strict says so, and says so
    where they do not fit.
    """
    file = tmp_path / "program.py"
    file.write_text(
        textwrap.dedent(
            """
            from driftlog import AsyncConsumer, Consumer, Producer, Record
            from driftlog.serializers import SerializationContext

            def length(data: bytes) -> int:
                return len(data)

            def padded(size: int) -> bytes:
                return bytes(size)

            def named(size: int, ctx: SerializationContext) -> bytes:
                return ctx.topic.encode()

            def parsed(data: bytes, ctx: SerializationContext) -> float:
                return float(data)

            plain: Record = next(Consumer("t"))
            reveal_type(plain.value)
            reveal_type(next(Consumer("t", value_deserializer=length)).value)
            reveal_type(next(Consumer("t", key_deserializer=length)).key)
            both = Consumer("t", key_deserializer=bytes.decode, value_deserializer=length)
            reveal_type(both)
            reveal_type(AsyncConsumer("t", value_deserializer=length))
            producer = Producer(value_serializer=padded)
            producer.produce("t", 3, "k")
            producer.produce("t", None, None)
            reveal_type(producer.send("t", 3).result().offset)
            producer.produce("t", "three")
            Producer().produce("t", 3)
            reveal_type(next(Consumer("t", value_deserializer=parsed)).value)
            reveal_type(Producer(key_serializer=lambda key: b"", value_serializer=named))
            """
        )
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--no-color-output"),
            *("--config-file", os.devnull, str(file)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(_REPOSITORY / "client")},
    )
    notes = [line.rpartition("is ")[2] for line in done.stdout.splitlines() if "note:" in line]
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    bytes_or_none = '"bytes | None"'
    assert [
        bytes_or_none,
        '"int | None"',
        '"int | None"',
        '"driftlog.consumer.consumer.Consumer[str, int]"',
        '"driftlog.consumer.aio_consumer.AsyncConsumer[bytes, int]"',
        '"int"',
        '"float | None"',
        '"driftlog.producer.producer.Producer[Any, int]"',
    ] == notes, done.stdout
    assert 2 == len(errors), done.stdout
    assert all("[arg-type]" in error for error in errors)


# ── Records ──


def test_times_are_exact() -> None:
    """
    Milliseconds to the time in UTC, and back; a time needs a zone.
    """
    record: Record[bytes, bytes] = Record("t", 0, 1, 1_700_000_000_123, None, b"")
    assert datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC) == record.timestamp
    assert record._replace(timestamp_ms=-1).timestamp is None
    elsewhere = timezone(timedelta(hours=2))
    assert 0 == to_ms(datetime(1970, 1, 1, 2, tzinfo=elsewhere))
    with pytest.raises(ValueError, match="no time zone"):
        to_ms(datetime(1970, 1, 1))  # noqa: DTZ001
    with pytest.raises(OverflowError):
        _ = record._replace(timestamp_ms=1_700_000_000_123_000).timestamp


@given(st.integers(0, 253_402_300_799_999))
def test_no_millisecond_is_lost(timestamp_ms: int) -> None:
    """
    As far as Python's times go: the year 9999.
    """
    assert timestamp_ms == to_ms(from_ms(timestamp_ms))


# ── What may be committed ──


def test_only_what_was_processed_is_committed() -> None:
    """
    Not what was only handed out, and nothing twice.
    """
    positions = Positions()
    positions.assigned(A0, 5, committed=True)
    positions.assigned(A1, 7, committed=False)
    assert {A1: 7} == positions.to_commit()
    positions.hand_out(A0, 5)
    assert {A1: 7} == positions.to_commit()
    positions.processed()
    assert {A0: 6, A1: 7} == positions.to_commit()
    positions.committed({A0: 6})
    assert {A1: 7} == positions.to_commit()
    assert {} == positions.to_commit([A0])


def test_what_was_revoked_is_forgotten() -> None:
    """
    Neither a record that is still at work nor a late commit brings it back.
    """
    positions = Positions()
    positions.assigned(A0, 0, committed=False)
    positions.hand_out(A0, 3)
    positions.forget([A0])
    positions.committed({A0: 9})
    positions.processed_to(A0, 4)
    positions.moved(A0, 4)
    positions.processed()
    assert A0 not in positions
    assert {} == positions.to_commit()
    positions.assigned(A0, 2, committed=True)
    positions.processed()
    assert {} == positions.to_commit()


def test_a_seek_back_is_committed_as_such() -> None:
    """
    The user's word is what counts, also where it goes back.
    """
    positions = Positions()
    positions.assigned(A0, 10, committed=True)
    positions.hand_out(A0, 10)
    positions.moved(A0, 2)
    positions.processed()
    assert {A0: 2} == positions.to_commit()
    positions.hand_out(A0, 2)
    positions.hand_out(A0, 3)
    positions.processed_to(A0, 3)
    assert {A0: 3} == positions.to_commit()
    positions.processed()
    assert {A0: 4} == positions.to_commit()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("read"), st.sampled_from([A0, A1])),
            st.tuples(st.sampled_from(["processed", "commit", "lost"]), st.sampled_from([A0, A1])),
        )
    )
)
def test_no_record_is_committed_before_it_was_processed(events: list[tuple[str, object]]) -> None:
    """
    Whatever the order of reads, commits and losses: what is committed of a partition is at most
    one past its last processed record, and never less than before.
    """
    positions = Positions()
    at = {A0: 0, A1: 0}
    done = {A0: 0, A1: 0}
    stored = {A0: 0, A1: 0}
    for tp in at:
        positions.assigned(tp, 0, committed=True)
    for event, where in events:
        tp = where if isinstance(where, TopicPartition) else A0
        match event:
            case "read":
                positions.hand_out(tp, at[tp])
                at[tp] += 1
            case "processed":
                positions.processed()
                done = dict(at)
            case "commit":
                for of, offset in positions.to_commit().items():
                    assert stored[of] < offset <= done[of]
                    stored[of] = offset
                positions.committed(stored)
            case _:
                positions.forget([tp])
                at[tp] = done[tp] = stored[tp]
                positions.assigned(tp, stored[tp], committed=True)


# ── What is said ──


def test_every_error_code_that_a_client_meets_has_advice() -> None:
    """
    Whatever librdkafka's names are, the message ends with what to do, as a sentence.
    """
    codes = {
        value
        for name, value in vars(KafkaError).items()
        if name.isupper() and isinstance(value, int)
    }
    for code in codes:
        assert advice(code).endswith((".", "?", ")")), code
    told = {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._TRANSPORT,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._FATAL,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.NON_EMPTY_GROUP,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
    }
    for code in told:
        assert "Read the agents' log." != advice(code), code


@pytest.mark.parametrize(
    "code, kind",
    [
        (KafkaError.TOPIC_ALREADY_EXISTS, TopicExistsError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, UnknownTopicError),
        (KafkaError._UNKNOWN_PARTITION, UnknownTopicError),
        (KafkaError.NON_EMPTY_GROUP, GroupNotEmptyError),
        (KafkaError.GROUP_ID_NOT_FOUND, UnknownGroupError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AuthorizationError),
        (KafkaError._TIMED_OUT, OutcomeUnknownError),
        (KafkaError.REQUEST_TIMED_OUT, OutcomeUnknownError),
        (KafkaError._ALL_BROKERS_DOWN, UnreachableError),
        (KafkaError.INVALID_REQUEST, RequestError),
    ],
)
def test_a_code_becomes_the_error_of_what_to_do(code: int, kind: type[DriftlogError]) -> None:
    """
    And keeps the code.
    """
    error = request_error("do it", KafkaError(code))

    assert (kind, code) == (type(error), error.code)
    assert str(error).startswith("could not do it: ")


def failed(number: int, code: int = 10) -> FailedDelivery:
    return FailedDelivery(
        topic="t",
        partition=None if number == 0 else number,
        key=None if number == 0 else b"k" * 100,
        value=b"secret",
        code=code,
        reason="Broker: Message size too large",
        advice=advice(code),
        outcome_unknown=False,
    )


def test_many_failures_are_counted_and_some_are_shown() -> None:
    """
    Where each was going, its key (not all of a long one), and no values.
    """
    error = DeliveryError([failed(n) for n in range(7)], 1234)

    lines = str(error).splitlines()
    assert "1,234 records were not acknowledged" == lines[0]
    assert "  t, no key: not written: Broker: Message size too large. " + advice(10) == lines[1]
    assert lines[2].startswith("  t-1, key b'kkk")
    assert "… (100 bytes): not written: Broker" in lines[2]
    assert "  … (of the first 7: Broker: Message size too large: 7)" == lines[-1]
    assert "secret" not in str(error) + repr(error.failures)


def test_no_failure_is_forgotten_where_there_are_many() -> None:
    """
    The count is right, and futures that nobody looks at do not pile up: they are raised.
    """
    deliveries = Deliveries(Connections("nowhere"))
    for _ in range(KEPT + 5):
        deliveries.add(failed(1))
    with pytest.raises(DeliveryError) as raised:
        deliveries.raise_pending()
    assert (KEPT + 5, KEPT) == (raised.value.count, len(raised.value.failures))
    deliveries.raise_pending()

    futures = [DeliveryFuture() for _ in range(KEPT + 7)]
    for future in futures:
        deliveries.add_unseen(lambda future=future: future.seen, failed(1))  # type: ignore[misc]
    with pytest.raises(DeliveryError) as raised:
        deliveries.raise_pending()
    assert 7 == raised.value.count
    futures[0].set_result(None)  # type: ignore[arg-type]
    futures[0].result()
    with pytest.raises(DeliveryError) as raised:
        deliveries.raise_all()
    assert KEPT - 1 == raised.value.count


# ── Settings ──


@pytest.mark.parametrize("settings", [ProducerSettings(), ProducerSettings(idempotence=True)])
def test_librdkafka_takes_what_settings_make(settings: ProducerSettings) -> None:
    """
    All of them, also with other values than the defaults.
    """
    Producer(settings=settings).close()
    Producer(settings=ProducerSettings(acks=1, linger_ms=0.5, compression="zstd")).close()
    Consumer("t", settings=ConsumerSettings(read_committed=False)).close()
    Consumer("t", group="g", config={"group.protocol": "consumer"}).close()


@pytest.mark.parametrize("config", sorted(RESERVED))
def test_a_config_that_the_client_sets_is_refused(config: str) -> None:
    """
    And the error says which argument there is for it.
    """
    with pytest.raises(ValueError, match="is set by the client: use"):
        Producer(config={config: "x"})
    with pytest.raises(ValueError, match="is set by the client: use"):
        Consumer("t", config={config: "x"})


def test_configs_that_make_no_sense_are_refused() -> None:
    """
    At once, in librdkafka's words.
    """
    with pytest.raises(ValueError, match=r'No such configuration property: "no\.such"'):
        Producer(config={"no.such": 1})
    with pytest.raises(ValueError, match="librdkafka refuses"):
        Consumer("t", config={"session.timeout.ms": "soon"})
    with pytest.raises(ValueError, match="name at least one topic"):
        Consumer([])
    with pytest.raises(ValueError, match="a group needs a name"):
        Consumer("t", group="")
