"""`driftlog.Consumer` in groups commits what was handled, and reads again what was not.

Shell.
"""

import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from driftlog import Consumer, Producer, Record
from driftlog.common.settings import ConsumerSettings
from driftlog.errors import CommitError, DeserializationError
from driftlog.serializers import from_json
from tests.clients.python_client import (
    committed,
    member,
    new_topic,
    numbered,
    values_of,
    wait_until_left,
    write,
)

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]


def test_a_block_that_ends_well_commits_what_was_handed_out(servers: str) -> None:
    """
    The record that the loop broke at is processed; the ones fetched ahead are not.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(10))
    with member(servers, topic, group) as consumer:
        for record in consumer:
            if record.value == b"4":
                break

    assert 5 == committed(servers, group, topic)
    with member(servers, topic, group, end_of_topic=True) as consumer:
        assert numbered(5, 5) == values_of(list(consumer))


def test_a_block_that_fails_does_not_commit_the_record_it_was_at(servers: str) -> None:
    """
    That record comes again, and those before it do not.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(10))
    with (  # noqa: PT012  # the error of the block comes out of its exit
        pytest.raises(ZeroDivisionError),
        member(servers, topic, group) as consumer,
    ):
        for record in consumer:
            if record.value == b"4":
                raise ZeroDivisionError

    assert 4 == committed(servers, group, topic)


def one_by_one(consumer: Consumer, values: list[object]) -> None:
    for record in consumer:
        values.append(record.value)


def in_lists(consumer: Consumer, values: list[object]) -> None:
    while records := consumer.read(timeout_s=30):
        values += values_of(records)


@pytest.mark.parametrize("read", [one_by_one, in_lists])
def test_a_record_that_cannot_be_deserialized_is_committed_once_the_next_is_read(
    servers: str, read: Callable[[Consumer, list[object]], None]
) -> None:
    """
    The records before it are handed out first, though they come in one list; a block that ends with
    the error does not commit the record.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, [b"1", b"2", b"{", b"4"])
    values: list[object] = []
    with (
        pytest.raises(DeserializationError, match="at offset 2"),
        member(servers, topic, group, value_deserializer=from_json) as consumer,
    ):
        read(consumer, values)

    assert ([1, 2], 2) == (values, committed(servers, group, topic))
    with member(servers, topic, group, value_deserializer=from_json) as consumer:
        with pytest.raises(DeserializationError, match="at offset 2"):
            read(consumer, values)
        values += values_of(consumer.read(timeout_s=30))
    assert [1, 2, 4] == values
    assert 4 == committed(servers, group, topic)


def test_end_of_topic_commits_all_of_it(servers: str) -> None:
    """
    Also without a `with`: everything was processed when the loop ended.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(10))
    consumer = member(servers, topic, group, end_of_topic=True)

    assert numbered(10) == values_of(list(consumer))
    assert 10 == committed(servers, group, topic)
    consumer.close()


def test_commits_happen_now_and_then_and_only_of_what_was_processed(servers: str) -> None:
    """
    The record that the user is at is not committed, however long that takes.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(3))
    consumer = member(servers, topic, group)
    assert [b"0", b"1"] == [next(consumer).value for _ in range(2)]
    time.sleep(1.2)  # longer than commit_interval_ms, and than a loop goes without the network
    assert b"2" == next(consumer).value
    wait_until(lambda: committed(servers, group, topic) == 2)
    consumer.close()

    assert 2 == committed(servers, group, topic)


def test_with_auto_commit_off_only_commit_commits(servers: str) -> None:
    """
    All that was handed out, or up to a record of a partition.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(10))
    with member(servers, topic, group, auto_commit=False) as consumer:
        records = [next(consumer) for _ in range(6)]
        assert -1001 == committed(servers, group, topic)
        consumer.commit(records[2])
        assert 3 == committed(servers, group, topic)
        consumer.commit()
        assert 6 == committed(servers, group, topic)
        next(consumer)
        next(consumer)

    assert 6 == committed(servers, group, topic)


class Member(threading.Thread):
    """Reads until told to leave; what it commits, it commits at rebalances and at its end."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        super().__init__()
        self.values: list[bytes | None] = []
        self.partitions = 0
        self._leave = threading.Event()
        settings = ConsumerSettings(
            fetch_wait_max_ms=50, session_timeout_ms=30_000, commit_interval_ms=600_000
        )
        self._consumer = member(servers, topic, group, settings=settings)

    def run(self) -> None:
        with self._consumer as consumer:
            while not self._leave.is_set():
                records = consumer.read(max_records=3, timeout_s=0.2)
                self.values += values_of(records)
                self.partitions = len(consumer.assignment())

    def leave(self) -> None:
        self._leave.set()
        self.join(60)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "not in a minute"
        time.sleep(0.05)


def test_partitions_move_without_loss_and_without_repetition(servers: str) -> None:
    """
    A second member joins, and the first leaves: what was processed is committed as partitions are
    revoked, so that each record is read once.
    """
    topic, group = new_topic(servers, 4), uuid.uuid4().hex
    first, second = Member(servers, topic, group), Member(servers, topic, group)

    def write_more(start: int) -> None:
        for partition in range(4):
            write(servers, topic, numbered(50, 1_000 * partition + start), partition)

    def read() -> int:
        return len(first.values) + len(second.values)

    write_more(0)
    first.start()
    wait_until(lambda: read() >= 150)
    second.start()
    wait_until(lambda: (first.partitions, second.partitions) == (2, 2))
    write_more(50)
    wait_until(lambda: read() >= 350)
    first.leave()
    write_more(100)
    wait_until(lambda: read() >= 600)
    second.leave()

    expected = [b"%d" % (1_000 * partition + n) for partition in range(4) for n in range(150)]
    assert set(expected) == {*first.values, *second.values}
    assert 600 == read()


def test_a_group_without_records_keeps_where_it_began(servers: str) -> None:
    """
    A member that began at the end and read nothing has said where: what came in between is read
    by the next one.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(5))
    with member(servers, topic, group, from_beginning=False) as consumer:
        deadline = time.monotonic() + 30
        while not consumer.assignment() and time.monotonic() < deadline:
            assert [] == consumer.read(timeout_s=0.2)
    write(servers, topic, [b"between"])
    with member(servers, topic, group, from_beginning=False, end_of_topic=True) as consumer:
        assert [b"between"] == values_of(list(consumer))


def test_a_seek_before_the_assignment_is_where_it_begins(servers: str) -> None:
    """
    Over what is committed; a time after the last record is the end, as a number.  What is no place
    is refused at once, and not by the assignment, which would leave the partition unread.
    """
    topic, group = new_topic(servers, 2), uuid.uuid4().hex
    for partition in range(2):
        write(servers, topic, numbered(5), partition)
    with member(servers, topic, group, end_of_topic=True) as consumer:
        consumer.seek(topic, 0, 3)
        with pytest.raises(ValueError, match="not negative"):
            consumer.seek(topic, 0, -5)
        with pytest.raises(ValueError, match="time zone"):
            consumer.seek(topic, 0, datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(ValueError, match="not 'start'"):
            consumer.seek(topic, 0, "start")  # type: ignore[arg-type]
        consumer.seek(topic, 1, datetime.now(UTC) + timedelta(hours=1))
        assert [b"3", b"4"] == values_of(list(consumer))

    assert [5, 5] == [committed(servers, group, topic, partition) for partition in range(2)]


def test_slow_processing_does_not_cost_the_membership(servers: str) -> None:
    """
    Records of one fetch that together take longer than `max_poll_interval_ms`: librdkafka is
    polled in between, so the member stays.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(10))
    settings = ConsumerSettings(
        fetch_wait_max_ms=50,
        session_timeout_ms=6_000,
        max_poll_interval_ms=6_000,
        commit_interval_ms=600_000,
    )
    # The session cannot be longer than the interval: many heartbeats in it, not two.
    config = {"heartbeat.interval.ms": 500}
    with member(servers, topic, group, settings=settings, config=config) as consumer:
        read = []
        for record in consumer:
            read.append(record.value)
            if len(read) == 10:
                break
            time.sleep(0.8)
    assert numbered(10) == read
    assert 10 == committed(servers, group, topic)


def test_a_member_that_was_too_slow_says_so_and_commits_nothing(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    What it read comes again; the log says what to change.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(3))
    settings = ConsumerSettings(
        fetch_wait_max_ms=50,
        session_timeout_ms=6_000,
        max_poll_interval_ms=6_000,
        commit_interval_ms=600_000,
    )
    with member(servers, topic, group, settings=settings) as consumer:
        first = next(consumer)
        wait_until_left(servers, group)
        again = next(consumer)
        while again.offset != 0:
            again = next(consumer)

    assert 0 == first.offset
    assert "max_poll_interval_ms" in caplog.text


def test_an_error_says_what_to_do_about_groups(servers: str) -> None:
    """
    No group, an unknown partition, a member that is gone.
    """
    topic = new_topic(servers)
    with pytest.raises(ValueError, match="give the consumer a group"):
        Consumer(topic, bootstrap_servers=servers).commit()
    with pytest.raises(ValueError, match="not both"):
        Consumer(topic, group="g", partitions=[0], bootstrap_servers=servers)
    with (
        member(servers, topic, uuid.uuid4().hex) as consumer,
        pytest.raises(CommitError, match="not assigned to this member"),
    ):
        consumer.commit(Record(topic, 5, 0, 0, None, None))


def test_the_new_protocol_of_groups_works(servers: str) -> None:
    """
    `group.protocol=consumer` (KIP-848): incremental assignments.
    """
    topic, group = new_topic(servers, 3), uuid.uuid4().hex
    for partition in range(3):
        write(servers, topic, [b"%d" % partition], partition)
    config = {"group.protocol": "consumer"}
    with member(servers, topic, group, config=config) as consumer:
        assert {b"0", b"1", b"2"} == {next(consumer).value for _ in range(3)}
    with member(servers, topic, group, end_of_topic=True) as consumer:
        assert [] == list(consumer)


def test_patterns_and_static_members(servers: str) -> None:
    """
    ``^`` makes a pattern; librdkafka's own configs pass through.
    """
    prefix = uuid.uuid4().hex[:8]
    topics = [f"{prefix}-{name}" for name in ("a", "b")]
    with Producer(bootstrap_servers=servers) as producer:
        for topic in topics:
            producer.produce(topic, topic)
    config = {"group.instance.id": "me"}
    with member(servers, f"^{prefix}-.*", uuid.uuid4().hex, config=config) as consumer:
        read = {next(consumer).value for _ in range(2)}

    assert {topic.encode() for topic in topics} == read
