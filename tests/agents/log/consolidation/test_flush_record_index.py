"""A flush record is forgotten exactly when no partition needs it."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.consolidation.flush_record_index import FlushRecordEntry, FlushRecordIndex
from driftlog_metadata.schema.model import FlushRecord, TopicPartition

A, B = UUID(int=1), UUID(int=2)
A0, A1, B0 = TopicPartition(A, 0), TopicPartition(A, 1), TopicPartition(B, 0)
PLACES = [A0, A1, B0]


def record(number: int) -> FlushRecord:
    """A record."""
    return FlushRecord(object_key=f"flush/{number}", size_bytes=10, footer_start=5)


def keys(forgotten: list[FlushRecordEntry]) -> list[str]:
    """Of records."""
    return [known.key for known in forgotten]


def test_a_record_is_forgotten_when_its_last_partition_is_sealed() -> None:
    """
    Up to its own end in each; once; sealing to somewhere inside its slice is not enough.
    """
    index = FlushRecordIndex()
    assert index.add("/1", record(1), [(A0, 10), (B0, 5)]) is None

    assert [] == index.sealed(A0, 9)
    assert [] == index.sealed(A0, 10)
    assert [] == index.sealed(B0, 4)
    assert 1 == len(index)
    (known,) = index.sealed(B0, 100)
    assert ("/1", record(1)) == (known.key, known.record)
    assert ([], [], 0) == (index.sealed(B0, 200), index.sealed(A0, 200), len(index))


def test_records_are_forgotten_in_the_order_of_their_commits() -> None:
    """
    One seal covers many flushes of the partition.
    """
    index = FlushRecordIndex()
    for number in range(1, 5):
        index.add(f"/{number}", record(number), [(A0, 10 * number)])

    assert ["/1", "/2", "/3"] == keys(index.sealed(A0, 39))
    assert ["/4"] == keys(index.sealed(A0, 40))


def test_a_record_that_nobody_needs_is_handed_back_at_once() -> None:
    """
    All of it was sealed or gone when it was read: it can be forgotten now.
    """
    index = FlushRecordIndex()

    known = index.add("/1", record(1), [])

    assert known is not None
    assert ("/1", 0) == (known.key, len(index))


def test_partitions_of_which_nothing_is_known_release_nothing() -> None:
    """
    Sealed by somebody else, or twice.
    """
    assert [] == FlushRecordIndex().sealed(A0, 10)


STEPS = st.one_of(
    st.lists(
        st.tuples(st.sampled_from(PLACES), st.integers(1, 3)), max_size=3, unique_by=lambda p: p[0]
    ),
    st.tuples(st.sampled_from(PLACES), st.integers(0, 9)),
    st.sampled_from([A, B]),
)


GONE = 2**62


@given(st.lists(STEPS, min_size=10, max_size=40), st.data())
def test_exactly_what_is_sealed_or_gone_everywhere_is_forgotten(
    steps: list[list[tuple[TopicPartition, int]] | tuple[TopicPartition, int] | UUID],
    data: st.DataObject,
) -> None:
    """
    Any order of flushes, seals, deletions and rewrites: a record goes in the step in which the
    last of its slices is sealed or of a topic that is gone, and never comes again.
    """
    index = FlushRecordIndex()
    log_end = dict.fromkeys(PLACES, 0)
    sealed_to = dict.fromkeys(PLACES, 0)
    sealed: dict[TopicPartition, int] = {}
    needed: dict[str, list[tuple[TopicPartition, int]]] = {}
    for number, step in enumerate(steps):
        forgotten: list[FlushRecordEntry] = []
        match step:
            case list():
                ends = []
                for tp, records in step:
                    log_end[tp] += records
                    ends.append((tp, log_end[tp]))
                needed[f"/{number}"] = ends
                known = index.add(f"/{number}", record(number), ends, sizes=[1] * len(ends))
                forgotten = [] if known is None else [known]
            case (tp, more):
                end = sealed_to[tp] = min(sealed_to[tp] + more, log_end[tp])
                sealed[tp] = max(end, sealed.get(tp, 0))
                forgotten = index.sealed(tp, end)
            case UUID():
                sealed |= {tp: GONE for tp in PLACES if tp.topic_id == step}
                gone = [tp for tp in index.partitions() if tp.topic_id == step]
                forgotten = [known for tp in gone for known in index.sealed(tp, GONE)]
        left = {
            key: [(tp, end) for tp, end in ends if end > sealed.get(tp, 0)]
            for key, ends in needed.items()
        }
        assert sorted(keys(forgotten)) == sorted(key for key, ends in left.items() if not ends)
        needed = {key: ends for key, ends in needed.items() if left[key]}
        flip: bool = data.draw(st.booleans())
        if needed and flip:
            key = data.draw(st.sampled_from(sorted(needed)))
            index.drop(next(known for known in index if known.key == key))
            del needed[key]  # rewritten
        # What is sealed is remembered as long as a record has something of the partition.
        there = {tp for ends in needed.values() for tp, _ in ends}
        sealed = {tp: end for tp, end in sealed.items() if tp in there}

        assert list(needed) == [known.key for known in index]
        assert [len(left[key]) for key in needed] == [known.unsealed_bytes for known in index]
        unsealed = {tp for ends in needed.values() for tp, end in ends if end > sealed.get(tp, 0)}
        assert unsealed <= set(index.unsealed()) <= there  # more: what a rewrite took along
