"""If it failed: a sealed range would vanish for readers, for a late read of an older manifest."""

from dataclasses import replace
from uuid import UUID

import pytest

from driftlog_agents.log.partition.known_manifests import COMPACTED_AGE_MS, KnownManifests
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifest import Manifest, empty_manifest

TP = TopicPartition(UUID(int=3), 0)


def log_of() -> PartitionLog:
    """A led partition, whose key names no manifest."""
    return PartitionLog(topic="t", topic_id=TP.topic_id, partition=0, leader_epoch=0)


def manifest(version: int, cleaned_end: int = 0) -> Manifest:
    """One of that version."""
    return replace(empty_manifest("t", TP), version=version, cleaned_end=cleaned_end)


@pytest.mark.parametrize("edited", [True, False])
def test_a_newer_version_stays_when_an_older_one_comes_late(edited: bool) -> None:
    """
    By a read or by another edit, which began before.
    """
    known, log = KnownManifests(), log_of()
    known.was_edited(log, manifest(3), 10)
    (known.was_edited if edited else known.was_read)(log, manifest(2), 5)

    assert manifest(3) == known.newest(log)
    assert 10 == known.read_at_ms(log, 99)


def test_a_manifest_older_than_the_partitions_key_is_not_current() -> None:
    """
    It stays known, for what needs no current one.
    """
    known, log = KnownManifests(), log_of()
    known.was_read(log, manifest(2), 0)
    current = known.current(log, 0)
    log.manifest_version = 3

    assert (manifest(2), None) == (current, known.current(log, 0))
    assert manifest(2) == known.newest(log)


def test_only_a_compacted_partitions_manifest_ages() -> None:
    """
    Its tombstones wait for readers of older versions only so long.
    """
    known, log, compacted = KnownManifests(), log_of(), log_of()
    known.was_read(log, manifest(2), 0)
    known.was_read(compacted, manifest(2, cleaned_end=5), 0)

    for now_ms in (COMPACTED_AGE_MS, COMPACTED_AGE_MS + 1):
        assert known.current(log, now_ms) is not None
        is_current = known.current(compacted, now_ms) is not None
        assert is_current == (now_ms == COMPACTED_AGE_MS)


def test_nothing_is_kept_of_a_closed_partition() -> None:
    """
    A read or an edit may end after `forget`, which would leak its entry.
    """
    known, log = KnownManifests(), log_of()
    known.was_read(log, manifest(2), 1)
    log.close()
    known.forget(log)
    known.was_read(log, manifest(3), 2)
    known.was_edited(log, manifest(4), 3)

    assert (None, 77, 0) == (known.newest(log), known.read_at_ms(log, 77), known.age_ms(log, 77))


def test_edits_are_taken_once_also_late_ones() -> None:
    """
    The first version replaces none, so nothing of it can be superseded.
    """
    known, log = KnownManifests(), log_of()
    known.was_edited(log, manifest(1), 0)
    first = known.take_edited()
    known.was_edited(log, manifest(3), 0)
    known.was_edited(log, manifest(2), 0)

    assert ([], [("t", TP)], []) == (first, known.take_edited(), known.take_edited())
