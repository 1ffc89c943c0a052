"""An agent answers requests that hardly any client sends as Apache Kafka does, field by field.

`test_kafka_says_so_to_clients.py` and `test_kafka_says_so_to_admins.py` ask Kafka the same.
"""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import consumer_group_describe as cgd
from driftlog_agents.protocol.messages import delete_records as dr
from driftlog_agents.protocol.messages import fetch as fe
from driftlog_agents.protocol.messages import find_coordinator as fc
from driftlog_agents.protocol.messages import metadata as md
from driftlog_agents.protocol.messages import sasl_handshake as sh
from driftlog_agents.protocol.types import NULL_UUID
from tests.agents.handlers.test_kafka_says_so import STRANGE, metadata
from tests.agents.handlers.test_offsets_api import batch
from tests.agents.network.serving import Client, Serving, fetched, fetching
from tests.clients.batches import COUNT, good, with_field

TOPIC: Final = "t"

UNCOMMITTED, COMMITTED = 0, 1

DELETED, NEXT = 1, 3
"""Log start and end of the topic's partition."""


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of an agent whose topic begins at `DELETED` and ends at `NEXT`."""
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create(TOPIC, retention_ms="-1")
        assert 0 == (await client.produce(TOPIC, {0: batch(1, 2, 3)}))[0].error_code
        asked = dr.DeleteRecordsPartition(partition_index=0, offset=DELETED)
        topic = dr.DeleteRecordsTopic(name=TOPIC, partitions=[asked])
        request = dr.DeleteRecordsRequest(topics=[topic], timeout_ms=20_000)
        (told,) = (await client.call(dr.API, 2, request)).topics
        assert DELETED == told.partitions[0].low_watermark
        yield client


@pytest.mark.parametrize("version", [4, 6, 11, 12])
@pytest.mark.parametrize(
    ("topic", "offset", "level", "expected"),
    [
        (TOPIC, NEXT, UNCOMMITTED, (ErrorCode.NONE, NEXT, DELETED, None)),
        (TOPIC, NEXT, COMMITTED, (ErrorCode.NONE, NEXT, DELETED, [])),
        (TOPIC, 0, UNCOMMITTED, (ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, None)),
        (TOPIC, 99, COMMITTED, (ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, None)),
        ("nope", 0, UNCOMMITTED, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, [])),
        ("nope", 0, COMMITTED, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, [])),
        (TOPIC, NEXT, 2, (ErrorCode.INVALID_REQUEST, -1, -1, None)),
        (TOPIC, NEXT, -1, (ErrorCode.INVALID_REQUEST, -1, -1, None)),
    ],
)
async def test_a_fetch_tells_offsets_and_aborted_transactions_where_kafka_does(
    client: Client,
    topic: str,
    offset: int,
    level: int,
    expected: tuple[ErrorCode, int, int, list[object] | None],
    version: int,
) -> None:
    """
    Else a consumer takes the offsets of an error for those of the log, or an isolation level that
    nobody knows for read_uncommitted.
    """
    request = fetching(topic, {0: offset})
    request.isolation_level = level
    told = fetched(await client.call(fe.API, version, request))[0]
    code, end, start, aborted = expected

    assert (code, end, end) == (told.error_code, told.high_watermark, told.last_stable_offset)
    assert (start if version >= 5 else -1) == told.log_start_offset
    assert aborted == told.aborted_transactions


async def test_aborted_transactions_of_a_topic_that_no_id_has_are_none(client: Client) -> None:
    """
    As of a name that no topic has.
    """
    topic = fe.FetchTopic(topic_id=STRANGE, partitions=[fe.FetchPartition()])
    answer = await client.call(fe.API, 13, fe.FetchRequest(topics=[topic]))
    told = fetched(answer)[0]

    assert (ErrorCode.UNKNOWN_TOPIC_ID, []) == (told.error_code, told.aborted_transactions)


FIRST: Final = batch(1, producer_id=10, producer_epoch=3, base_sequence=0)

REFUSED: Final[Mapping[str, tuple[bytes | bytearray, tuple[ErrorCode, int, bool]]]] = {
    "a gap": (
        batch(1, producer_id=10, producer_epoch=3, base_sequence=9),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, DELETED, False),
    ),
    "an old epoch": (
        batch(1, producer_id=10, producer_epoch=1, base_sequence=1),
        (ErrorCode.INVALID_PRODUCER_EPOCH, DELETED, False),
    ),
    "a wrong count": (with_field(batch(1), COUNT, 5), (ErrorCode.INVALID_RECORD, DELETED, True)),
    "a wrong CRC": (
        with_field(batch(1), COUNT, 5, crc=False),
        (ErrorCode.CORRUPT_MESSAGE, -1, True),
    ),
    "too much": (good(b"x" * 2_000_000), (ErrorCode.MESSAGE_TOO_LARGE, -1, True)),
}


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_batch_is_answered_with_the_log_start(
    client: Client, case: str, partitions: int
) -> None:
    """
    Where the log refuses it, alone in its request or not.  A code without a message of its own has
    none: clients have a better one than its name.
    """
    data, expected = REFUSED[case]
    await client.produce(TOPIC, {0: FIRST})
    told = (await client.produce(TOPIC, dict.fromkeys(range(partitions), data)))[0]

    assert expected == (told.error_code, told.log_start_offset, told.error_message is not None)
    assert -1 == told.base_offset


@pytest.mark.parametrize("version", [8, 9, 13])
async def test_metadata_tells_the_operations_on_a_topic_that_is_named(
    client: Client, version: int
) -> None:
    """
    Also where it is not there: without an authorizer everything is allowed.
    """
    answer = await client.call(md.API, version, metadata(TOPIC, "nope", "b b", operations=True))
    unasked = await client.call(md.API, version, metadata("nope"))
    by_id = await client.call(md.API, 13, metadata(ids=[STRANGE], operations=True))

    there, *missing = sorted(answer.topics, key=lambda topic: topic.error_code)
    assert there.topic_authorized_operations > 0
    assert {there.topic_authorized_operations} == {t.topic_authorized_operations for t in missing}
    assert -(1 << 31) == unasked.topics[0].topic_authorized_operations
    assert -(1 << 31) == by_id.topics[0].topic_authorized_operations
    assert NULL_UUID != there.topic_id or version < 10


async def test_a_consumer_group_is_described_as_often_as_it_is_named(client: Client) -> None:
    """
    As a classic group is.
    """
    request = cgd.ConsumerGroupDescribeRequest(group_ids=["a", "b", "a"])
    answer = await client.call(cgd.API, 1, request)

    assert ["a", "b", "a"] == [group.group_id for group in answer.groups]


async def test_a_coordinator_of_share_groups_is_refused_for_good(client: Client) -> None:
    """
    An error that clients retry would let them wait for share groups, which there are none of.
    """
    request = fc.FindCoordinatorRequest(coordinator_keys=["g"], key_type=2)
    (told,) = (await client.call(fc.API, 5, request)).coordinators

    assert ErrorCode.INVALID_REQUEST == told.error_code


@pytest.mark.parametrize("version", [0, 1])
async def test_a_client_that_wants_to_authenticate_is_told_that_it_cannot(
    client: Client, version: int
) -> None:
    """
    Where the connection is closed instead, Java's clients blame the network, and try for ever.
    """
    answer = await client.call(sh.API, version, sh.SaslHandshakeRequest(mechanism="PLAIN"))

    assert (ErrorCode.ILLEGAL_SASL_STATE, []) == (answer.error_code, answer.mechanisms)
