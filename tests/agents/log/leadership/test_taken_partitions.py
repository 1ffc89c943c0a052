"""Restoring a log from slices: if it failed, offsets would be given twice, or a gap be served.

An unreadable partition's claim would be lost as well.
"""

from array import array
from itertools import accumulate
from typing import Any, Final, cast
from uuid import UUID

import pytest

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.log.leadership.claims import StoredClaim
from driftlog_agents.log.leadership.taken_partitions import (
    LookedAt,
    TailSlices,
    Taken,
    gap_before,
    restoring,
)
from driftlog_agents.log.partition.partition import PartitionLog, State, TailSlice
from driftlog_metadata.schema.codec import encode_partition_state
from driftlog_metadata.schema.keys import partition_key
from driftlog_metadata.schema.model import (
    FlushRecord,
    Leader,
    PartitionState,
    Topic,
    TopicPartition,
)
from driftlog_metadata.stores.store import KeyValue
from driftlog_metadata.transactions.session_transactions import Claim, Release
from driftlog_tiering.formats.flush_object import Footer

TOPIC: Final = UUID(int=1)
TPS: Final = [TopicPartition(TOPIC, n) for n in range(3)]
MINE, OLD = "mine", "old"


def footer_of(
    *batches: tuple[int, int, int], epoch: int = 1, producer: int = -1, session: str = OLD
) -> Footer:
    """Of batches (partition, base, end), as a flush object has them."""
    count = len(batches)
    columns = (
        array("i", [0] * count),
        array("i", [partition for partition, _, _ in batches]),
        array("i", [epoch] * count),
        array("q", [base for _, base, _ in batches]),
        array("i", [end - base - 1 for _, base, end in batches]),
        array("h", [0] * count),
        array("q", [producer] * count),
        array("h", [0] * count),
        array("i", [base for _, base, _ in batches]),
        array("q", [0] * count),
        array("i", accumulate([10] * (count - 1), initial=0)),
        array("i", [10] * count),
        array("q", [1] * count),
    )
    return Footer(session, 1, 1, (TOPIC,), columns)


def record_of(key: str) -> FlushRecord:
    """The flush record of an object."""
    return FlushRecord(object_key=key, size_bytes=100, footer_start=50)


def stored(tp: TopicPartition, *, same_disk: bool, epoch: int = 3) -> StoredClaim:
    """A claim of *tp* in the metadata store."""
    state = PartitionState(sealed_end=5, sessions=(OLD,))
    leader = Leader(OLD, epoch - 1)
    claim = Claim(
        tp=tp,
        leader=leader,
        leader_revision=6,
        state=state,
        state_revision=6,
        same_disk=same_disk,
    )
    return StoredClaim(claim, 7, 8)


@pytest.mark.parametrize(
    ("sealed_end", "end", "base", "follows"),
    [
        (10, 10, 10, True),
        (10, 10, 7, True),
        (10, 10, 11, False),
        (10, 20, 20, True),
        (10, 20, 21, False),
        (10, 20, 19, False),
        (0, 0, 1, False),
    ],
)
def test_a_slice_follows_what_is_there_and_the_first_may_begin_below_the_sealed_end(
    sealed_end: int, end: int, base: int, follows: bool
) -> None:
    """
    A sealed end may be in the middle of a flush; otherwise slices neither overlap nor leave a gap.
    """
    log = PartitionLog(
        topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=0, sealed_end=sealed_end
    )
    log.high_watermark = log.log_end = end
    tail = TailSlice(base, base + 30, cast(Any, None), 0, 1, 1, cast(Any, None))

    why = gap_before(log, tail)

    assert follows is (why == "")
    assert follows or f"[{base}, {base + 30}) follows {end}" in why


def test_an_unreadable_partition_of_this_disk_keeps_its_claim_and_no_other() -> None:
    """
    The other claim is released; neither log is served.
    """
    taken = Taken(topics={TOPIC: Topic(name="t", topic_id=TOPIC, partitions=3)})
    for n, tp in enumerate(TPS):
        taken.add(stored(tp, same_disk=n < 2), MINE)
    logs = dict(taken.logs)

    taken.retain_claims(TPS[1:])
    released = taken.end(TPS[2])

    assert {TPS[1]: Release(TPS[1], 3, 7)} == taken.retained
    assert Release(TPS[2], 3, 7) == released
    assert [TPS[0]] == list(taken.logs)
    assert [False, True, True] == [logs[tp].state is State.CLOSED for tp in TPS]


def test_the_slices_of_many_objects_restore_each_log_in_order() -> None:
    """
    Those that are sealed or of other partitions are left out, and unreadable partitions are not
    restored; the objects come in any order.
    """
    taken = Taken(topics={TOPIC: Topic(name="t", topic_id=TOPIC, partitions=3)})
    for tp in TPS[:2]:
        taken.add(stored(tp, same_disk=False), MINE)
    slices = TailSlices(taken.logs)
    footers = [
        (record_of("o2"), footer_of((0, 6, 9), (1, 5, 8), (2, 0, 5), epoch=2, producer=7)),
        (record_of("o1"), footer_of((0, 2, 5), (0, 5, 6), (1, 0, 5))),
    ]

    turns = [list(slices.add(*each)) for each in footers]
    restored = {log: list(restoring(log, tails, 0.0)) for log, tails in slices.in_order({TPS[1]})}

    log = taken.logs[TPS[0]]
    assert [[], []] == turns
    assert {log: [(2, []), (1, [7])]} == restored
    assert (9, [(1, 2), (2, 6)]) == (log.high_watermark, log.epochs)
    assert ["o1", "o2"] == [tail.stored_at.object_key for tail in log.slices]


def test_what_is_committed_is_known_only_if_the_key_has_not_changed() -> None:
    """
    Sealing deletes flush records: a log that is read beside it may lack some.
    """
    kvs = {
        partition_key(tp): KeyValue(
            partition_key(tp), encode_partition_state(PartitionState(sealed_end=4)), 1, 5
        )
        for tp in TPS
    }
    topics = {TOPIC: TopicEntry(Topic(name="t", topic_id=TOPIC, partitions=3), 1, 1)}
    unknown = TopicPartition(UUID(int=9), 0)
    missing = TopicPartition(TOPIC, 5)

    looked = LookedAt.by_keys([*TPS, unknown, missing], topics, kvs)
    first = list(looked.logs)
    changed = kvs[partition_key(TPS[0])]
    kvs[changed.key] = KeyValue(changed.key, changed.value, 1, 6)
    looked.restored({TPS[1]: "an object is gone"}, kvs)

    assert TPS == first
    assert [TPS[2]] == list(looked.logs)
    assert {
        unknown: "its topic is unknown",
        missing: "its key is missing",
        TPS[0]: "its key has changed while it was read",
        TPS[1]: "an object is gone",
    } == looked.unknown


def test_a_large_object_lets_others_run_in_between() -> None:
    """
    Keep-alives must not wait for its slices.
    """
    footer = footer_of(*((partition, 0, 1) for partition in range(4_500)))

    assert 2 == len(list(TailSlices({}).add(record_of("o"), footer)))
