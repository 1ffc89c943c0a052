"""If it failed: partitions would never be checked for expired segments, or all at each tick."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.retention.checks import RetentionChecks
from driftlog_agents.log.retention.policy import (
    Expiry,
    Known,
    RetentionSettings,
    TopicRetention,
)
from driftlog_tiering.formats.manifest import SegmentList, SegmentRef, list_ref
from tests.agents.log.retention.test_policy import NOW, Store, segment

INTERVAL_S = 300.0
SETTINGS = RetentionSettings(check_interval_ms=INTERVAL_S * 1000)
BY_TIME = TopicRetention(ms=10)
BY_SIZE = TopicRetention(size_bytes=100)


def checks(*phases: float) -> RetentionChecks:
    """With the phases of the partitions, in their order."""
    rest = iter(phases)
    return RetentionChecks(SETTINGS, lambda: next(rest))


def online(store: Store) -> PartitionLog:
    """The partition, which serves."""
    store.log.state = State.ONLINE
    return store.log


def test_each_partition_has_its_own_phase_and_is_due_once_an_interval() -> None:
    """
    The first check waits for half a minute more: an agent that starts has better to do.
    """
    first, second = (online(Store.of(segment(0, 10, 5, NOW))) for _ in range(2))
    found = checks(0.0, 0.5)
    due = {now_s: found.due([first, second], now_s) for now_s in (0, 29, 30, 31, 180, 330)}

    assert {0: [], 29: [], 30: [first], 31: [], 180: [second], 330: [first]} == due


def test_a_partition_that_is_not_led_any_more_is_forgotten() -> None:
    """
    Its check may end afterwards.
    """
    store = Store.of(segment(0, 10, 5, NOW))
    log = online(store)
    found = checks(0.0, 0.0)
    found.due([log], 0)
    found.due([], 1)
    found.checked(log, BY_TIME, Expiry(0, None), store.manifest, Known())

    assert not found.is_needed(log, BY_TIME, NOW)


@pytest.mark.parametrize(
    ("change", "needed"),
    [
        ("none", False),
        ("due", True),
        ("retention", True),
        ("log start", True),
        ("written", False),
        ("written, by size", True),
        ("manifest, by size", True),
    ],
)
def test_a_check_whose_last_result_holds_is_not_needed(change: str, needed: bool) -> None:
    """
    What is written is behind the first segment, whose time is known; by size it counts.
    """
    store = Store.of(segment(0, 10, 5, NOW))
    log = online(store)
    retention = BY_SIZE if change.endswith("by size") else BY_TIME
    found = checks(0.0)
    found.due([log], 0)
    at_first = found.is_needed(log, retention, NOW)
    found.checked(log, retention, Expiry(0, NOW + 10), store.manifest, Known())
    if change == "log start":
        log.log_start = 5
    if change.startswith("written"):
        log.high_watermark = 20
    if change.startswith("manifest"):
        log.manifest_version += 1
    asked = replace(retention, ms=11) if change == "retention" else retention

    assert at_first
    assert needed == found.is_needed(log, asked, NOW + (10 if change == "due" else 9))


def test_a_partition_that_does_not_serve_is_not_checked() -> None:
    """
    An offline one's log start is not known for sure.
    """
    store = Store.of(segment(0, 10, 5, NOW))
    log = online(store)
    found = checks(0.0)
    found.due([log], 0)
    log.state = State.OFFLINE

    assert not found.is_needed(log, BY_TIME, NOW)


def test_a_list_that_log_start_is_in_counts_whole_until_a_check_has_opened_it() -> None:
    """
    Then its segments above log start do; another log start makes it whole again.
    """
    content = SegmentList(1, segments=(segment(0, 10, 5, NOW), segment(10, 20, 7, NOW)))
    ref = list_ref("list", content)
    store = Store.of(segment(20, 30, 100, NOW))
    store.manifest = replace(store.manifest, lists=(ref,))
    log = online(store)
    found = checks(0.0)
    found.due([log], 0)
    log.log_start = 10
    whole = found.size_bytes(log, store.manifest)
    known = Known(lists={"list": content})
    found.checked(log, BY_SIZE, Expiry(10, None), store.manifest, known)
    opened = found.size_bytes(log, store.manifest)
    log.log_start = 15

    assert [112, 107, 112] == [whole, opened, found.size_bytes(log, store.manifest)]
    assert 0 == found.size_bytes(log, None)


class Counted(tuple[SegmentRef, ...]):
    """Segments that count how often they are read."""

    __slots__ = ()
    reads: ClassVar[int] = 0

    def __iter__(self) -> Iterator[SegmentRef]:
        Counted.reads += 1
        return super().__iter__()


def test_the_sealed_size_is_summed_again_only_where_it_may_have_changed() -> None:
    """
    A scrape asks for that of every partition, and a manifest has dozens of segments.
    """
    store = Store.of(segment(0, 10, 5, NOW), segment(10, 20, 7, NOW), segment(20, 30, 9, NOW))
    log, segments = online(store), Counted(store.manifest.segments)
    manifest = replace(store.manifest, segments=segments)
    found = checks(0.0)
    found.due([log], 0)

    def sizes() -> tuple[list[int], int]:
        before = Counted.reads
        return [found.sealed_bytes(log, manifest) for _ in range(3)], Counted.reads - before

    log.sealed_end = 20
    steps = [sizes()]
    log.sealed_end = 30
    steps.append(sizes())
    log.log_start = 10
    steps.append(sizes())
    manifest = replace(manifest, version=manifest.version + 1)
    steps.append(sizes())

    assert [([12] * 3, 1), ([21] * 3, 1), ([16] * 3, 1), ([16] * 3, 1)] == steps
