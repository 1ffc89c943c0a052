"""Stored values keep their bytes, read back as written, and are refused when malformed."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_metadata.schema import codec
from driftlog_metadata.schema.model import (
    CLOSED,
    FORMAT_VERSION,
    Agent,
    AgentRelease,
    Cluster,
    EndedHead,
    FlushRecord,
    Leader,
    Listener,
    LiveSession,
    PartitionState,
    ProducerIdBlock,
    Restore,
    Role,
    SessionStage,
    Topic,
)
from driftlog_metadata.stores.errors import CorruptError, UnsupportedFormatError

TOPIC_ID = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
SESSION_ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"

CLUSTER = Cluster("d41d8c", 1)
AGENT = Agent(
    node_id=3,
    session_id="5e55",
    listeners=(Listener("PLAINTEXT", "10.0.0.1", 9092), Listener("Ü", "::1", 65535)),
    http_address="10.0.0.1:8080",
    rack=None,
    started_at_ms=1_700_000_000_000,
)
FLUSH = FlushRecord(object_key="flush/5e55/x.flush", size_bytes=8_388_608, footer_start=8_380_000)
TOPIC = Topic(name="clicks", topic_id=TOPIC_ID, partitions=12, configs={"b": "2", "a": 'über "1"'})
AGENT_OF_ROLES = (
    b'{"v":2,"node_id":3,"session_id":"s","listeners":[],"http_address":"","rack":null,'
    b'"started_at_ms":0,"roles":%s}'
)
WRONG_ROLES = (
    b'["serve","seal"]',  # what there is of version 1
    b"[]",
    b'["lead"]',
    b'["seal","seal"]',
    b'["seal","lead"]',
    b'"seal"',
    b"[1]",
)
TOPIC_OF_REPLICAS = (
    b'{"v":2,"name":"t","topic_id":"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0","partitions":1,'
    b'"replicas":%d,"configs":{}}'
)
STATE = PartitionState(sealed_end=9, manifest_version=2, log_start=4, sessions=("a", "b"))
BLOCK = ProducerIdBlock(first_producer_id=1000, size=500, node_id=3)

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], object]

GOLDEN: list[tuple[Encode, Decode, object, str]] = [
    (
        codec.encode_cluster,
        codec.decode_cluster,
        CLUSTER,
        '{"v":1,"cluster_id":"d41d8c","format_version":1}',
    ),
    (
        codec.encode_cluster,
        codec.decode_cluster,
        Cluster("d41d8c", 2),
        '{"v":2,"cluster_id":"d41d8c","format_version":2,"release":"0.2.0"}',
    ),
    (
        codec.encode_cluster,
        codec.decode_cluster,
        Cluster("d41d8c", FORMAT_VERSION + 1, "1.2.3"),
        f'{{"v":2,"cluster_id":"d41d8c","format_version":{FORMAT_VERSION + 1},"release":"1.2.3"}}',
    ),
    (
        codec.encode_agent_release,
        codec.decode_agent_release,
        AgentRelease("1.2.3", 2),
        '{"v":1,"release":"1.2.3","level":2}',
    ),
    (codec.encode_secret, codec.decode_secret, "5ec7e7", '{"v":1,"secret":"5ec7e7"}'),
    (
        codec.encode_agent,
        codec.decode_agent,
        AGENT,
        (
            '{"v":1,"node_id":3,"session_id":"5e55","listeners":'
            '[["PLAINTEXT","10.0.0.1",9092],["Ü","::1",65535]],'
            '"http_address":"10.0.0.1:8080","rack":null,"started_at_ms":1700000000000}'
        ),
    ),
    (
        codec.encode_agent,
        codec.decode_agent,
        replace(AGENT, listeners=(), roles=frozenset({Role.SEAL})),
        (
            '{"v":2,"node_id":3,"session_id":"5e55","listeners":[],'
            '"http_address":"10.0.0.1:8080","rack":null,"started_at_ms":1700000000000,'
            '"roles":["seal"]}'
        ),
    ),
    (
        codec.encode_live_session,
        codec.decode_live_session,
        LiveSession(node_id=3, stage=SessionStage.SERVING, topics_revision=41),
        '{"v":1,"node_id":3,"stage":"serving","topics":41}',
    ),
    (
        codec.encode_live_session,
        codec.decode_live_session,
        LiveSession(node_id=3, stage=SessionStage.SERVING, topics_revision=41, asks=True, proofs=2),
        '{"v":2,"node_id":3,"stage":"serving","topics":41,"asks":1,"proofs":2}',
    ),
    (codec.encode_head, codec.decode_head, 41, '{"v":1,"head":41}'),
    (codec.encode_head, codec.decode_head, CLOSED, '{"v":1,"head":"closed"}'),
    (
        codec.encode_ended_head,
        codec.decode_ended_head,
        EndedHead(41, 1_700_000_000_000),
        '{"v":2,"head":41,"ended_ms":1700000000000}',
    ),
    (
        codec.encode_ended_head,
        codec.decode_ended_head,
        EndedHead(CLOSED, 0),
        '{"v":2,"head":"closed","ended_ms":0}',
    ),
    (
        codec.encode_flush_record,
        codec.decode_flush_record,
        FLUSH,
        '{"v":1,"object":"flush/5e55/x.flush","size":8388608,"footer":8380000}',
    ),
    (
        codec.encode_topic,
        codec.decode_topic,
        TOPIC,
        (
            '{"v":1,"name":"clicks","topic_id":"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",'
            '"partitions":12,"configs":{"a":"über \\"1\\"","b":"2"}}'
        ),
    ),
    (
        codec.encode_configs,
        codec.decode_configs,
        {"b": "2", "a": "ü"},
        '{"v":1,"configs":{"a":"ü","b":"2"}}',
    ),
    (
        codec.encode_topic,
        codec.decode_topic,
        Topic(name="t", topic_id=TOPIC_ID, partitions=1, replication_factor=3),
        (
            '{"v":2,"name":"t","topic_id":"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",'
            '"partitions":1,"replicas":3,"configs":{}}'
        ),
    ),
    (
        codec.encode_leader,
        codec.decode_leader,
        Leader("5e55", 8),
        '{"v":1,"session_id":"5e55","epoch":8}',
    ),
    (
        codec.encode_leader,
        codec.decode_leader,
        Leader(None, 8),
        '{"v":1,"session_id":null,"epoch":8}',
    ),
    (
        codec.encode_partition_state,
        codec.decode_partition_state,
        STATE,
        '{"v":1,"sealed_end":9,"manifest":2,"log_start":4,"sessions":["a","b"]}',
    ),
    (
        codec.encode_producer_id_block,
        codec.decode_producer_id_block,
        BLOCK,
        '{"v":1,"first":1000,"size":500,"node_id":3}',
    ),
    (
        codec.encode_restore,
        codec.decode_restore,
        Restore("a", "b", 1, "r", 17),
        '{"v":1,"from":"a","to":"b","file":1,"run":"r","listed_ms":17}',
    ),
    (
        codec.encode_restore,
        codec.decode_restore,
        Restore("a", "b", 1, "r"),
        '{"v":1,"from":"a","to":"b","file":1,"run":"r","listed_ms":null}',
    ),
]

texts = st.text(st.characters(exclude_categories=["Cs"]))
int32s = st.integers(0, 2**31 - 1)
int64s = st.integers(0, 2**63 - 1)
listeners = st.builds(Listener, texts, texts, st.integers(0, 65535))

VALUES: list[tuple[Encode, Decode, st.SearchStrategy[Any]]] = [
    (
        codec.encode_cluster,
        codec.decode_cluster,
        st.builds(Cluster, texts, st.integers(1, FORMAT_VERSION)),
    ),
    (
        codec.encode_agent_release,
        codec.decode_agent_release,
        st.builds(AgentRelease, texts, int64s),
    ),
    (codec.encode_secret, codec.decode_secret, texts),
    (
        codec.encode_agent,
        codec.decode_agent,
        st.builds(
            Agent,
            node_id=int32s,
            session_id=texts,
            listeners=st.lists(listeners).map(tuple),
            http_address=texts,
            rack=st.none() | texts,
            started_at_ms=int64s,
            roles=st.frozensets(st.sampled_from(Role), min_size=1),
        ),
    ),
    (
        codec.encode_live_session,
        codec.decode_live_session,
        st.builds(
            LiveSession,
            node_id=int32s,
            stage=st.sampled_from(SessionStage),
            topics_revision=int64s,
            asks=st.booleans(),
            proofs=int64s,
        ),
    ),
    (codec.encode_head, codec.decode_head, st.just(CLOSED) | int64s),
    (
        codec.encode_ended_head,
        codec.decode_ended_head,
        st.builds(EndedHead, st.just(CLOSED) | int64s, int64s),
    ),
    (
        codec.encode_flush_record,
        codec.decode_flush_record,
        st.tuples(int64s, int64s).flatmap(
            lambda ends: st.builds(
                FlushRecord,
                object_key=texts,
                size_bytes=st.just(max(ends)),
                footer_start=st.just(min(ends)),
            )
        ),
    ),
    (
        codec.encode_topic,
        codec.decode_topic,
        st.builds(
            Topic,
            name=texts,
            topic_id=st.uuids(),
            partitions=int32s,
            replication_factor=st.integers(1, 2**15 - 1),
            configs=st.dictionaries(texts, texts),
        ),
    ),
    (
        codec.encode_leader,
        codec.decode_leader,
        st.builds(Leader, st.none() | texts, int32s),
    ),
    (
        codec.encode_partition_state,
        codec.decode_partition_state,
        st.builds(
            PartitionState,
            sealed_end=int64s,
            manifest_version=int64s,
            log_start=int64s,
            sessions=st.lists(texts).map(tuple),
        ),
    ),
    (
        codec.encode_producer_id_block,
        codec.decode_producer_id_block,
        st.builds(ProducerIdBlock, first_producer_id=int64s, size=int64s, node_id=int32s),
    ),
    (
        codec.encode_restore,
        codec.decode_restore,
        st.builds(Restore, texts, texts, int64s, texts, st.none() | int64s),
    ),
]


@pytest.mark.parametrize(("encode", "decode", "value", "golden"), GOLDEN)
def test_values_are_stored_as_format_version_1_says(
    encode: Encode, decode: Decode, value: object, golden: str
) -> None:
    """
    A stored format: add a version, never edit these bytes.
    """
    assert golden.encode() == encode(value)
    assert value == decode(golden.encode())


@pytest.mark.parametrize(("encode", "decode", "values"), VALUES)
@given(data=st.data())
def test_decoders_invert_their_encoders(
    encode: Encode, decode: Decode, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    """
    Every value comes back as it was.
    """
    value = data.draw(values)

    assert value == decode(encode(value))


@pytest.mark.parametrize(
    "data", [b'{"v":2,"secret":"5ec7e7"}', b'{"v":1,"was":"5ec7e7"}', b'"5ec7e7']
)
def test_what_is_wrong_with_a_secret_does_not_tell_it(data: bytes) -> None:
    """
    Errors are logged.
    """
    with pytest.raises(CorruptError) as refused:
        codec.decode_secret(data)

    assert "5ec7e7" not in str(refused.value)


def test_a_flush_record_takes_150_bytes_at_most() -> None:
    """
    etcd holds thousands of them; this is one with the longest names that agents give.
    """
    record = FlushRecord(
        object_key=f"flush/{SESSION_ID}/{41:020d}-0123456789abcdef.flush",
        size_bytes=64 * 1024 * 1024,
        footer_start=64 * 1024 * 1024 - 65_536,
    )

    assert len(codec.encode_flush_record(record)) <= 150


def test_configs_in_any_order_are_stored_alike() -> None:
    """
    A value has one encoding, so that transactions can compare it by its bytes.
    """
    one = Topic(name="t", topic_id=TOPIC_ID, partitions=1, configs={"a": "1", "b": "2"})
    other = Topic(name="t", topic_id=TOPIC_ID, partitions=1, configs={"b": "2", "a": "1"})

    assert codec.encode_topic(one) == codec.encode_topic(other)


@pytest.mark.parametrize(("encode", "decode", "value", "golden"), GOLDEN)
def test_a_newer_version_is_refused_as_newer(
    encode: Encode, decode: Decode, value: object, golden: str
) -> None:
    """
    Whatever else stands in it; the message says which versions these are.
    """
    of_two = {"head", "topic_id", "stage", "format_version", "listeners"}
    known = 2 if of_two & json.loads(golden).keys() else 1
    newer = json.dumps(json.loads(golden) | {"v": known + 1, "new": []}).encode()

    with pytest.raises(UnsupportedFormatError, match=rf"version {known + 1}.*reads up to {known}"):
        decode(newer)


@pytest.mark.parametrize(("encode", "decode", "value", "golden"), GOLDEN)
def test_each_field_is_needed_and_typed_and_no_other_allowed(
    encode: Encode, decode: Decode, value: object, golden: str
) -> None:
    """
    A field removed, of a wrong type or unknown is corruption.
    """
    fields = json.loads(golden)
    for name in fields:
        without = {k: v for k, v in fields.items() if k != name}
        for changed in (without, fields | {name: True}, fields | {name: 1.5}, fields | {name: -2}):
            with pytest.raises(CorruptError):
                decode(json.dumps(changed).encode())
    with pytest.raises(CorruptError):
        decode(json.dumps(fields | {"unknown": 1}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"{}",
        b'{"v":0,"head":1}',
        b'{"v":"1","head":1}',
        b'{"v":true,"head":1}',
        b'{"v":1,"head":9223372036854775808}',
        b'{"v":1,"head":"open"}',
        b'{"v":1,"head":NaN}',
        b'{"v":1,"head":' + b"9" * 5000 + b"}",
        b'{"v":1,"head":' + b"[" * 100_000,
        b'\xff{"v":1,"head":1}',
    ],
)
def test_malformed_values_are_corrupt(data: bytes) -> None:
    """
    Nothing but CorruptError comes out, whatever goes in.
    """
    with pytest.raises(CorruptError):
        codec.decode_head(data)


def test_an_ended_head_says_what_it_said_before() -> None:
    """
    A commit without an answer is resolved by it; one that is not marked has no end.
    """
    for head in (CLOSED, 0, 41):
        ended = codec.encode_ended_head(EndedHead(head, 5))
        assert head == codec.decode_head(ended)
        assert EndedHead(head, 5) == codec.decode_ended_head(ended)
        assert codec.decode_ended_head(codec.encode_head(head)) is None


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (codec.decode_flush_record, b'{"v":1,"object":"o","size":5,"footer":6}'),
        (codec.decode_cluster, b'{"v":1,"cluster_id":"\\ud800","format_version":1}'),
        (codec.decode_leader, b'{"v":1,"session_id":"s","epoch":2147483648}'),
        (codec.decode_topic, TOPIC_OF_REPLICAS % 1),  # what there is of version 1
        *((codec.decode_agent, AGENT_OF_ROLES % roles) for roles in WRONG_ROLES),
        (codec.decode_topic, TOPIC_OF_REPLICAS % 32_768),
        (codec.decode_live_session, b'{"v":1,"node_id":3,"stage":"asleep","topics":0}'),
        (
            codec.decode_partition_state,
            b'{"v":1,"sealed_end":0,"manifest":0,"log_start":0,"sessions":[1]}',
        ),
        (
            codec.decode_topic,
            (
                b'{"v":1,"name":"t","topic_id":"0F1E2D3C-4B5A-6978-8796-A5B4C3D2E1F0",'
                b'"partitions":1,"configs":{}}'
            ),
        ),
        (
            codec.decode_topic,
            (
                b'{"v":1,"name":"t","topic_id":"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",'
                b'"partitions":1,"configs":{"a":1}}'
            ),
        ),
    ],
)
def test_values_out_of_range_are_corrupt(decode: Decode, data: bytes) -> None:
    """
    What no encoder writes is refused where it is read, and does not travel on.
    """
    with pytest.raises(CorruptError):
        decode(data)


@pytest.mark.parametrize(("encode", "decode", "value", "golden"), GOLDEN)
@given(data=st.data())
def test_damage_is_corrupt_or_another_value(
    encode: Encode, decode: Decode, value: object, golden: str, data: st.DataObject
) -> None:
    """
    Any change of the bytes gives CorruptError or a value that can be stored again.
    """
    damaged = bytearray(golden.encode())
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        decoded = decode(bytes(damaged))
    except CorruptError:
        return

    assert decoded == decode(encode(decoded))
