"""Object keys are those of design.md's bucket layout, and read back exactly."""

import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.layout import SegmentKind

TOPIC_ID = UUID("6f1d2b7e-0000-4000-8000-00000000002a")
TP = TopicPartition(TOPIC_ID, 7)


def twenty(number: int) -> str:
    """The number as keys have it."""
    return str(number).zfill(20)


topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(layout.is_topic_name)
tps = st.builds(TopicPartition, st.uuids(), st.integers(0, 2**31 - 1))
offsets = st.integers(0, 2**63 - 1)
nonces = st.from_regex(re.compile(r"[0-9A-Za-z]{1,64}", re.ASCII), fullmatch=True)
sessions = st.from_regex(re.compile(r"[0-9A-Za-z_-]{1,64}", re.ASCII), fullmatch=True)
versions = st.integers(0, layout.MAX_VERSION)


def test_keys_are_those_of_the_design() -> None:
    """
    A stored format: these strings are in buckets, and never change.
    """
    folder = "topics/flights/6f1d2b7e-0000-4000-8000-00000000002a"

    assert [
        "cluster.json",
        "flush/s-1/00000000000000000003-n1.flush",
        "flush/s-1/00000000000000000003.2.11-n1.flush",
        "flush/s-1/final-00000000000000000007.json",
        "producer-ids/00000000000000005000.json",
        "cluster/00000000000000000002.json",
        "groups/c-1/99999999999999995288.json",
        f"{folder}/topic/00000000000000000002.json",
        f"{folder}/topic/deleted.json",
        f"{folder}/topic/import.json",
        f"{folder}/00007/manifest/99999999999999999998.json",
        f"{folder}/00007/manifest-lists/{twenty(9)}-1-{twenty(5)}-{twenty(8)}-n2.json",
        f"{folder}/00007/producers/00000000000000000008-n3.snapshot",
        f"{folder}/00007/00000000000000000005-00000000000000000008-n4.parquet",
        f"{folder}/00007/00000000000000000005-00000000000000000008-n4.raw",
    ] == [
        layout.CLUSTER_KEY,
        layout.flush_key("s-1", 3, "n1"),
        layout.flush_key("s-1", 3, "n1", 2, 11),
        layout.final_head_key("s-1", 7),
        layout.producer_ids_key(5_000),
        layout.cluster_key(2),
        layout.group_snapshot_key("c-1", 4_711),
        layout.topic_key("flights", TOPIC_ID, 2),
        layout.deleted_key("flights", TOPIC_ID),
        layout.import_key("flights", TOPIC_ID),
        layout.manifest_key("flights", TP, 1),
        layout.segment_list_key("flights", TP, 9, 1, 5, 8, "n2"),
        layout.producer_snapshot_key("flights", TP, 8, "n3"),
        layout.segment_key("flights", TP, 5, 8, "n4"),
        layout.segment_key("flights", TP, 5, 8, "n4", SegmentKind.RAW),
    ]


places = st.just((0, 0)) | st.tuples(st.integers(1, 9), st.integers(0, 10**9))


@given(sessions, st.integers(0, 2**63 - 1), nonces, places)
def test_flush_keys_parse_back(
    session_id: str, seq: int, nonce: str, place: tuple[int, int]
) -> None:
    """
    The parser inverts the builder, of flushes and of rewrites.
    """
    expected = layout.FlushObjectKey(session_id, seq, nonce, *place)

    assert expected == layout.parse_key(layout.flush_key(session_id, seq, nonce, *place))


@given(sessions, st.integers(0, 2**63 - 1))
def test_final_heads_parse_back(session_id: str, head: int) -> None:
    """
    And sort behind every flush object of the session: the collector relies on it.
    """
    key = layout.final_head_key(session_id, head)

    assert layout.FinalHeadKey(session_id, head) == layout.parse_key(key)
    assert layout.flush_key(session_id, 2**63 - 1, "zz") < key


@given(topics, st.uuids(), versions)
def test_topic_keys_parse_back(topic: str, topic_id: UUID, version: int) -> None:
    """
    The parser inverts the builder, of the versions and of the marks.
    """
    expected = [
        layout.TopicKey(topic, topic_id, version),
        layout.DeletedKey(topic, topic_id),
        layout.ImportKey(topic, topic_id),
    ]

    assert expected == [
        layout.parse_key(layout.topic_key(topic, topic_id, version)),
        layout.parse_key(layout.deleted_key(topic, topic_id)),
        layout.parse_key(layout.import_key(topic, topic_id)),
    ]


@given(topics, tps, st.integers(0, 2**31 - 1))
def test_audit_keys_parse_back(topic: str, tp: TopicPartition, leader_epoch: int) -> None:
    """
    The parser inverts the builder.
    """
    expected = layout.AuditKey(topic, tp, leader_epoch)

    assert expected == layout.parse_key(layout.audit_key(topic, tp, leader_epoch))


@given(offsets)
def test_producer_id_keys_parse_back(first_producer_id: int) -> None:
    """
    The parser inverts the builder.
    """
    expected = layout.ProducerIdsKey(first_producer_id)

    assert expected == layout.parse_key(layout.producer_ids_key(first_producer_id))


@given(st.integers(0, 2**63 - 1))
def test_cluster_keys_parse_back(number: int) -> None:
    """
    The parser inverts the builder; number 0 is the file that the cluster was made with.
    """
    assert layout.ClusterKey(number) == layout.parse_key(layout.cluster_key(number))


@given(sessions, st.integers(0, 2**63 - 2))
def test_group_snapshot_keys_parse_back(cluster_id: str, revision: int) -> None:
    """
    And the newest one is the first of its cluster.
    """
    key = layout.group_snapshot_key(cluster_id, revision)

    assert layout.GroupSnapshotKey(cluster_id, revision) == layout.parse_key(key)
    assert layout.group_snapshot_key(cluster_id, revision + 1) < key
    assert key.startswith(layout.groups_prefix(cluster_id))


@given(topics, tps, versions, st.integers(1, 99), offsets, offsets, nonces)
def test_manifest_keys_parse_back(
    topic: str, tp: TopicPartition, version: int, level: int, base: int, end: int, nonce: str
) -> None:
    """
    The parsers invert the builders, whatever the topic is called ("manifest" too).
    """
    expected = [
        layout.ManifestKey(topic, tp, version),
        layout.SegmentListKey(topic, tp, version, level, base, end, nonce),
        layout.ProducerSnapshotKey(topic, tp, base, nonce),
    ]

    assert expected == [
        layout.parse_key(layout.manifest_key(topic, tp, version)),
        layout.parse_key(layout.segment_list_key(topic, tp, version, level, base, end, nonce)),
        layout.parse_key(layout.producer_snapshot_key(topic, tp, base, nonce)),
    ]


@given(topics, tps, st.lists(offsets, min_size=2, max_size=2, unique=True), nonces)
def test_segment_keys_parse_back(
    topic: str, tp: TopicPartition, bounds: list[int], nonce: str
) -> None:
    """
    The parser inverts the builder, for both kinds.
    """
    base, end = sorted(bounds)
    expected = [layout.SegmentKey(topic, tp, base, end, nonce, kind) for kind in SegmentKind]

    assert expected == [
        layout.parse_key(layout.segment_key(topic, tp, base, end, nonce, kind))
        for kind in SegmentKind
    ]


@given(st.lists(versions, min_size=2))
def test_the_newest_manifest_is_the_first_key(numbers: list[int]) -> None:
    """
    Names count down: ascending keys are descending versions.
    """
    keys = sorted(layout.manifest_key("t", TP, version) for version in numbers)

    assert sorted(numbers, reverse=True) == [layout.parse_manifest_key(key).version for key in keys]


def test_topic_files_sort_by_version_and_the_mark_comes_last() -> None:
    """
    One listing in key order tells the newest version and whether the topic is deleted.
    """
    keys = [layout.topic_key("t", TOPIC_ID, version) for version in (1, 9, 10, 10**19)]
    keys.append(layout.deleted_key("t", TOPIC_ID))

    assert keys == sorted(keys)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "cluster.json ",
        "flush/s/3-n.flush",
        "flush/s/00000000000000000003-.flush",
        "flush/a/b/00000000000000000003-n.flush",
        "topics/../6f1d2b7e-0000-4000-8000-00000000002a/topic/00000000000000000002.json",
        "topics/t/6F1D2B7E-0000-4000-8000-00000000002A/topic/00000000000000000002.json",
        "topics/t/6f1d2b7e-0000-4000-8000-00000000002a/topic/2.json",
        "topics/t/6f1d2b7e-0000-4000-8000-00000000002a/7/manifest/99999999999999999998.json",
        "topics/t/6f1d2b7e-0000-4000-8000-00000000002a/000007/manifest/99999999999999999998.json",
        "topics/t/6f1d2b7e-0000-4000-8000-00000000002a/00007/manifest/99999999999999999998.json\n",
        "topics/t/6f1d2b7e-0000-4000-8000-00000000002a/00007/manifest/9999999999999999999\u0668.json",
        f"topics/t/6f1d2b7e-0000-4000-8000-00000000002a/00007/{twenty(8)}-{twenty(8)}-n.parquet",
        f"topics/t/6f1d2b7e-0000-4000-8000-00000000002a/00007/{twenty(5)}-{twenty(8)}-n.orc",
    ],
)
def test_other_keys_are_refused(key: str) -> None:
    """
    What is not exactly one of our keys is a ValueError.
    """
    with pytest.raises(ValueError, match="not"):
        layout.parse_key(key)
