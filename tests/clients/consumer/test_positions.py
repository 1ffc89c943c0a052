"""Pause, resume, position, committed and commits of given offsets, on both consumers.

Without these: a program cannot hold back one partition while it works on another, nor commit what
it keeps in a store of its own.
Shell.
"""

import time
import uuid

import pytest

from driftlog import AsyncConsumer, Consumer, TopicPartition
from driftlog.errors import CommitError, NotAssignedError
from tests.clients.python_client import (
    QUICK,
    committed,
    member,
    new_topic,
    numbered,
    values_of,
    write,
)

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]


def two_partitions(servers: str) -> tuple[str, TopicPartition, TopicPartition]:
    """A topic with the values 0–9 in partition 0 and 10–19 in partition 1."""
    topic = new_topic(servers, 2)
    write(servers, topic, numbered(10), 0)
    write(servers, topic, numbered(10, 10), 1)
    return topic, TopicPartition(topic, 0), TopicPartition(topic, 1)


def read_for(consumer: Consumer, seconds: float, count: int) -> list[int]:
    """Values, until there are *count* or the time is over."""
    values: list[int] = []
    deadline = time.monotonic() + seconds
    while len(values) < count and time.monotonic() < deadline:
        records = consumer.read(max_records=count - len(values), timeout_s=0.2)
        values += [int(value or b"") for value in values_of(records)]
    return values


@pytest.mark.parametrize("group", [None, "a group"])
def test_a_paused_partition_is_held_back_and_goes_on_where_it_was(
    servers: str, group: str | None
) -> None:
    """
    Also records that were fetched before the pause; nothing is lost, nothing comes twice, and new
    records of a paused partition wait too.
    """
    topic, zero, one = two_partitions(servers)
    with Consumer(
        topic,
        group=group and uuid.uuid4().hex,
        bootstrap_servers=servers,
        from_beginning=True,
        settings=QUICK,
    ) as consumer:
        first = read_for(consumer, 30, 3)
        while consumer.position(*zero) + consumer.position(*one) < 3:
            consumer.read(1)
        consumer.pause([zero])
        assert [zero] == consumer.paused()
        at = consumer.position(*zero)
        write(servers, topic, [b"100"], 0)
        while_paused = read_for(consumer, 1.5, 100)
        assert [] == [value for value in while_paused if value < 10 or value == 100]
        assert at == consumer.position(*zero)
        consumer.pause([zero])
        consumer.resume([zero, one])
        assert [] == consumer.paused()
        afterwards = read_for(consumer, 30, 21 - len(first) - len(while_paused))

    read = first + while_paused + afterwards
    assert [*range(10), 100] == [value for value in read if value < 10 or value == 100]
    assert [*range(10, 20)] == [value for value in read if 10 <= value < 20]


def test_end_of_topic_waits_for_a_paused_partition(servers: str) -> None:
    """
    The loop has not ended before the held-back records were handed out.
    """
    topic, zero, _ = two_partitions(servers)
    with Consumer(
        topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True
    ) as consumer:
        consumer.pause([zero])
        read = read_for(consumer, 2, 100)
        assert [*range(10, 20)] == read
        consumer.resume([zero])
        read += [int(record.value or b"") for record in consumer]

    assert [*range(20)] == sorted(read)


def test_positions_follow_reads_and_seeks(servers: str) -> None:
    """
    The next record's offset: not what was fetched ahead; paused or not.
    """
    topic = new_topic(servers)
    tp = TopicPartition(topic, 0)
    write(servers, topic, numbered(10))
    with Consumer(topic, bootstrap_servers=servers, from_beginning=True) as consumer:
        assert 0 == consumer.position(*tp)
        next(consumer)
        next(consumer)
        assert 2 == consumer.position(*tp)
        consumer.pause([tp])
        assert 2 == consumer.position(*tp)
        consumer.seek(*tp, 7)
        assert 7 == consumer.position(*tp)
        assert [] == consumer.read(timeout_s=0.5)
        consumer.resume([tp])
        assert 7 == next(consumer).offset
        consumer.seek(*tp, "end")
        assert 10 == consumer.position(*tp)
        with pytest.raises(NotAssignedError, match=f"{topic}-1 is not assigned"):
            consumer.position(topic, 1)
        with pytest.raises(NotAssignedError):
            consumer.pause([tp, TopicPartition(topic, 1)])
        assert [] == consumer.paused()


def test_given_offsets_are_committed(servers: str) -> None:
    """
    Before and behind what was handed out; `committed` asks the coordinator, also before the first
    read.  A partition that is not assigned is refused, and nothing is committed then.
    """
    topic, zero, one = two_partitions(servers)
    group = uuid.uuid4().hex
    with member(servers, topic, group, auto_commit=False) as consumer:
        assert None is consumer.committed(*zero)
        assert 20 == len(read_for(consumer, 30, 20))
        consumer.commit(offsets={zero: 3, one: 8})
        assert (3, 8) == (consumer.committed(*zero), consumer.committed(*one))
        with pytest.raises(CommitError, match="not assigned"):
            consumer.commit(offsets={zero: 5, TopicPartition(topic, 7): 1})
        with pytest.raises(ValueError, match="not negative"):
            consumer.commit(offsets={zero: -1})
        assert 3 == committed(servers, group, topic)
        consumer.commit(offsets={zero: 10})

    assert (10, 8) == (committed(servers, group, topic), committed(servers, group, topic, 1))
    with member(servers, topic, group, end_of_topic=True) as again:
        assert numbered(2, 18) == values_of(list(again))
    with Consumer(topic, bootstrap_servers=servers) as alone:
        with pytest.raises(ValueError, match="only groups commit"):
            alone.committed(*zero)
        with pytest.raises(ValueError, match="only groups commit"):
            alone.commit(offsets={zero: 1})


async def test_asyncio_has_the_same(servers: str) -> None:
    """
    Pause, resume, position, committed, commit of offsets.
    """
    topic, zero, one = two_partitions(servers)
    group = uuid.uuid4().hex
    async with AsyncConsumer(
        topic,
        group=group,
        bootstrap_servers=servers,
        from_beginning=True,
        auto_commit=False,
        settings=QUICK,
    ) as consumer:
        await anext(consumer)
        await consumer.pause([zero, one])
        assert [zero, one] == consumer.paused()
        assert [] == await consumer.read(timeout_s=0.5)
        assert 1 == await consumer.position(*zero) + await consumer.position(*one)
        await consumer.seek(*zero, 9)
        assert 9 == await consumer.position(*zero)
        await consumer.resume([zero])
        assert 9 == (await anext(consumer)).offset
        assert None is await consumer.committed(*zero)
        await consumer.commit(offsets={zero: 4})
        assert 4 == await consumer.committed(*zero)
        with pytest.raises(NotAssignedError):
            await consumer.resume([TopicPartition(topic, 9)])
