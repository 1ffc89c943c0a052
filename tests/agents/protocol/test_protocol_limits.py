"""A stranger's bytes cost no memory before they are there, and raise one kind of error."""

import contextlib
import struct
import tracemalloc
from typing import Any

import pytest

from driftlog_agents.protocol.api import (
    MAX_REQUEST_ELEMENTS,
    Api,
    ApiKey,
    message_bytes,
    take_apart,
)
from driftlog_agents.protocol.errors import CorruptFrameError, OverLimitError
from driftlog_agents.protocol.messages import describe_groups, fetch, metadata, produce
from driftlog_agents.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from driftlog_agents.protocol.requests.registry import API, decode_request_header
from driftlog_agents.protocol.schema import Array, Struct, all_fields
from driftlog_tiering.foundation.types import Buffer

LARGEST = 0x7FFF_FFFF
COMPACT_LARGEST = b"\xff\xff\xff\xff\x0f"

REQUESTS = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in API.values()
    for version in api.versions
]


@pytest.mark.parametrize(("api", "version"), REQUESTS)
def test_huge_counts_allocate_nothing(api: Api[Any, Any], version: int) -> None:
    """
    A length of 2^31 - 1 (or 2^32 - 2, compact) at every place of a short body, all else zero
    or one: read or refused without a megabyte for it.
    """
    huge = COMPACT_LARGEST if api.is_flexible(version) else struct.pack(">i", LARGEST)
    bodies = [
        bytes([filler]) * at + huge + bytes([filler]) * 12
        for filler in (0, 1, 2)
        for at in range(40)
    ]
    _swallow(api, version, bodies[0])  # compiled before it is measured

    tracemalloc.start()
    try:
        for body in bodies:
            _swallow(api, version, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20


def test_an_answer_is_encoded_up_to_its_limit_and_not_much_further() -> None:
    """
    A group that is named 5,000 times is one object, and would be gigabytes of answer.
    """
    member = DescribedGroupMember(member_id="m", client_id="\N{GRINNING FACE}" * 8_000)
    group = DescribedGroup(group_id="g", members=[member] * 30, authorized_operations=0)
    answer = DescribeGroupsResponse(groups=[group] * 5_000)
    assert len(
        describe_groups.API.encode_response(5, 1, DescribeGroupsResponse(groups=[group]))
    ) <= (2 * message_bytes(group))

    tracemalloc.start()
    try:
        with pytest.raises(OverLimitError, match=r"driftlog\.max\.response\.bytes"):
            describe_groups.API.encode_response(5, 1, answer, 2 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 << 20


def test_a_request_of_21_bytes_cannot_kill_us() -> None:
    """
    Header v1, then a count of two billion topics: the frame that aborts a process of kio's.
    """
    frame = struct.pack(">hhih5si", ApiKey.METADATA, 1, 7, 5, b"abcde", LARGEST) + b"\0\0"
    assert len(frame) == 21

    header = decode_request_header(frame)

    with pytest.raises(CorruptFrameError, match="topics is null, or has more elements than bytes"):
        metadata.API.decode_request(header.api_version, frame, header.body_offset)


def test_counts_are_held_against_what_their_elements_need() -> None:
    """
    1,000 bytes cannot hold 500 partitions, though they could hold 500 bytes: refused at the
    count.
    """
    partitions = struct.pack(">i", 500) + bytes(996)
    body = struct.pack(">iiiibiiih1s", -1, 0, 0, 0, 0, 0, 0, 1, 1, b"t") + partitions

    with pytest.raises(CorruptFrameError, match="partitions is null, or has more elements"):
        fetch.API.decode_request(7, body)


@pytest.mark.parametrize("version", [8, 9])
def test_a_request_has_a_limited_number_of_elements(version: int) -> None:
    """
    A frame that is large enough for any number of empty names: 2^18 in all arrays together
    are read, one more is refused before it is made.
    """

    def names(count: int, nested: int) -> bytes:
        topics = [produce.TopicProduceData() for _ in range(count - nested)]
        topics[-1].partition_data = [produce.PartitionProduceData() for _ in range(nested)]
        return produce.API.encode_request(
            version, 7, None, produce.ProduceRequest(topic_data=topics)
        )[4:]

    offset = decode_request_header(names(10, 1)).body_offset
    most = produce.API.decode_request(version, names(MAX_REQUEST_ELEMENTS, 1000), offset)

    assert len(most.topic_data) == MAX_REQUEST_ELEMENTS - 1000
    with pytest.raises(CorruptFrameError, match="too many"):
        produce.API.decode_request(version, names(MAX_REQUEST_ELEMENTS + 1, 1000), offset)


def test_records_are_views_of_the_frame() -> None:
    """
    A megabyte of records is not copied, and a change through the view (a base offset that is
    assigned) is a change of the frame.
    """
    sent = produce.ProduceRequest(
        topic_data=[
            produce.TopicProduceData(
                name="orders",
                partition_data=[
                    produce.PartitionProduceData(index=3, records=memoryview(bytes(1 << 20)))
                ],
            )
        ]
    )
    frame = bytearray(produce.API.encode_request(9, 7, "c", sent)[4:])
    offset = decode_request_header(frame).body_offset
    produce.API.decode_request(9, frame, offset)

    tracemalloc.start()
    request = produce.API.decode_request(9, frame, offset)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    records = request.topic_data[0].partition_data[0].records
    assert records is not None
    struct.pack_into(">q", records, 0, 0x0123_4567_89AB_CDEF)

    assert peak < 8192
    assert bytes.fromhex("0123456789abcdef") in frame


def test_records_to_send_are_not_copied() -> None:
    """
    The parts of a Fetch response hold the buffers that they were given, in order, and make
    the frame that `encode_response` makes.
    """
    batches: list[Buffer] = [bytes(1000), memoryview(bytearray(2000))]
    response = fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(
                topic="orders",
                partitions=[
                    fetch.PartitionData(partition_index=0, records=batches),
                    fetch.PartitionData(partition_index=1, records=b"one buffer"),
                    fetch.PartitionData(partition_index=2, records=b""),
                    fetch.PartitionData(partition_index=3, records=None),
                ],
            )
        ]
    )

    parts = fetch.API.encode_response_parts(12, 7, response)

    assert [part for part in parts if part is batches[0] or part is batches[1]] == batches
    assert b"".join(parts) == fetch.API.encode_response(12, 7, response)
    assert int.from_bytes(parts[0][:4], "big") == sum(len(part) for part in parts) - 4


@pytest.mark.parametrize(
    ("api", "version"), [(metadata.API, 12), (fetch.API, 17)], ids=["no tags known", "some known"]
)
def test_a_tagged_field_ends_within_its_frame(api: Api[Any, Any], version: int) -> None:
    """
    An unknown tagged field that claims one byte more than there is is refused, be it in a
    message that has tagged fields of its own or not.
    """
    body = api.encode_request(version, 7, None, api.request())[15:]

    for claimed, there in ((3, 3), (4, 3)):
        tagged = body[:-1] + bytes([1, 99, claimed]) + bytes(there)
        if claimed == there:
            assert api.request() == api.decode_request(version, tagged)
        else:
            with pytest.raises(CorruptFrameError, match="ends behind its frame"):
                api.decode_request(version, tagged)


def test_a_tagged_field_ends_within_its_header() -> None:
    """
    The same in a request header.
    """
    header = struct.pack(">hhih", ApiKey.METADATA, 12, 7, -1) + bytes([1, 99, 4]) + b"abc"

    with pytest.raises(CorruptFrameError, match="ends behind its frame"):
        decode_request_header(header)


@pytest.mark.parametrize("claimed", [1, 3])
def test_a_tagged_field_has_the_size_it_claims(claimed: int) -> None:
    """
    The cluster id "a" takes two bytes; a size that says otherwise is refused.
    """
    body = fetch.API.encode_request(17, 7, None, fetch.FetchRequest())[15:-1]
    tagged = body + bytes([1, 0, claimed, 2]) + b"a" + bytes(3)

    with pytest.raises(CorruptFrameError, match="cluster_id is not as long as its tagged field"):
        fetch.API.decode_request(17, tagged)
    assert "a" == fetch.API.decode_request(17, body + bytes([1, 0, 2, 2]) + b"a").cluster_id


@pytest.mark.parametrize("length", [-2, -32768, 32767])
def test_a_client_id_of_an_impossible_length(length: int) -> None:
    """
    Kafka takes any negative length for null; one that the frame does not have is refused.
    """
    frame = struct.pack(">hhih", ApiKey.METADATA, 0, 7, length) + bytes(4)

    if length < 0:
        assert decode_request_header(frame).client_id is None
    else:
        with pytest.raises(CorruptFrameError):
            decode_request_header(frame)


@pytest.mark.parametrize(
    ("key", "version"),
    [(0, 2), (0, 14), (1, 3), (1, 18), (2, 0), (4, 0), (8, 99), (-1, 0), (999, 0), (3, -1)],
)
def test_what_is_not_served_is_hung_up_on(key: int, version: int) -> None:
    """
    Unknown keys and versions end the connection, as in Kafka: also Produce 0 to 2, which are
    advertised.
    """
    with pytest.raises(CorruptFrameError, match="not served"):
        decode_request_header(struct.pack(">hhih", key, version, 7, -1) + bytes(8))


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_api_versions_of_any_version_is_let_through(version: int) -> None:
    """
    A client of the future learns what we speak (KIP-511), so its header must be readable.
    """
    frame = struct.pack(">hhih2s", ApiKey.API_VERSIONS, version, 7, 2, b"me") + b"\0" + b"body"

    header = decode_request_header(frame)

    assert header.api_key is ApiKey.API_VERSIONS
    assert (header.api_version, header.client_id, header.body_offset) == (version, "me", 13)


def test_text_that_is_not_utf8_is_replaced() -> None:
    """
    Java's decoder replaces what it cannot read, and so Kafka answers such a request.
    """
    body = struct.pack(">ih4s", 1, 4, b"a\xff\xfeb")

    request = metadata.API.decode_request(0, body)

    assert request.topics is not None
    assert [topic.name for topic in request.topics] == ["a��b"]


def test_a_response_that_cannot_be_said_is_a_bug() -> None:
    """
    Null where a version has no null, and a number out of range: an assertion, not a frame.
    """
    nameless = metadata.MetadataResponse(topics=[metadata.MetadataResponseTopic(name=None)])
    huge = metadata.MetadataResponse(controller_id=1 << 31)

    with pytest.raises(AssertionError, match="MetadataResponse v9"):
        metadata.API.encode_response(9, 7, nameless)
    with pytest.raises(AssertionError, match="MetadataResponse v9"):
        metadata.API.encode_response(9, 7, huge)
    assert metadata.API.encode_response(12, 7, nameless)


def test_no_message_is_recursive() -> None:
    """
    So that no frame can be nested deeper than its definition is.
    """

    def depth(cls: type[Any], above: tuple[type[Any], ...]) -> int:
        assert cls not in above
        inner = [
            field.type.element if isinstance(field.type, Array) else field.type
            for field in all_fields(cls)
        ]
        structs = [kind.cls for kind in inner if isinstance(kind, Struct)]
        return 1 + max((depth(nested, (*above, cls)) for nested in structs), default=0)

    assert max(depth(api.response, ()) for api in API.values()) < 8


def _swallow(api: Api[Any, Any], version: int, body: bytes) -> None:
    with contextlib.suppress(CorruptFrameError):
        api.decode_request(version, body)


@pytest.mark.parametrize("topics", [1, 5_000])
def test_a_message_that_is_taken_apart_is_freed_some_elements_at_a_time(topics: int) -> None:
    """
    Wherever its many elements are: all threads wait while one array is freed.
    """
    freed: list[int] = []
    asked = [
        fetch.FetchTopic(
            topic="t",
            partitions=[fetch.FetchPartition(partition=n) for n in range(5_000 // topics)],
        )
        for _ in range(topics)
    ]

    class Noting(list[Any]):
        def __delitem__(self, at: Any) -> None:
            freed.append(len(self[at]))
            super().__delitem__(at)

    longest = asked[0].partitions if topics == 1 else asked
    noting = Noting(longest)
    take_apart(noting)

    assert not noting
    assert 5_000 == sum(freed)
    assert 1_000 == max(freed)


def test_long_arrays_of_a_message_that_is_taken_apart_are_freed_before_it() -> None:
    """
    A topic of very many partitions, behind one of few.
    """
    few = [fetch.FetchPartition(partition=0)]
    many = [fetch.FetchPartition(partition=n) for n in range(2_000)]
    asked = [fetch.FetchTopic(topic="a", partitions=few)]
    asked.append(fetch.FetchTopic(topic="b", partitions=many))

    take_apart(asked)

    assert ([], []) == (asked, many)
