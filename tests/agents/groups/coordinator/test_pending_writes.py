"""A client that sends a long commit again beside a slow store would wait for all copies of it, and
never be answered in time."""

from itertools import count
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.groups.coordinator.pending_writes import Decided, PendingWrites
from driftlog_agents.groups.offsets import Changes, Committed, GroupOffsets
from driftlog_agents.groups.storage_format import CLASSIC
from driftlog_metadata.schema.model import TopicPartition

_TOPICS = 1_000
_KEYS = 100
"""Keys of one write."""


def _pending() -> PendingWrites:
    return PendingWrites(
        group_id="g",
        session_id="s",
        nonce=lambda: "n",
        offsets=GroupOffsets(),
        revision=0,
        revisions={},
    )


def _add(pending: PendingWrites, changes: Changes) -> None:
    for part in pending.parts(changes):
        pending.add(part)


def _written(pending: PendingWrites, revision: int) -> list[Decided]:
    """Gather a write, and store it."""
    taken, write = pending.gather(lambda: (CLASSIC, b"{}"))
    if write is None:
        return taken
    pending.encoded(write.encode())
    stored = pending.stored(revision)
    assert stored == taken
    return stored


def _commit(offset: int, topics: int = _TOPICS) -> dict[TopicPartition, Committed]:
    return {TopicPartition(UUID(int=topic), 0): Committed(offset=offset) for topic in range(topics)}


def test_a_long_commit_that_is_sent_again_needs_no_writes_of_its_own() -> None:
    """
    Each write of the first copy also stores the same part of all others.
    """
    pending = _pending()
    for copy in range(5):
        _add(pending, _commit(copy))
    writes = 0
    while not pending.idle:
        assert 5 == len(_written(pending, writes + 1))
        writes += 1

    assert writes == _TOPICS / _KEYS
    assert _commit(4) == dict(pending.offsets.items())


def test_very_many_copies_are_not_all_looked_at_for_each_write() -> None:
    """
    A look at 100,000 pages kept the agent from all else for 40 to 100 ms, at each write.
    """
    pending = _pending()
    for copy in range(100):
        _add(pending, _commit(copy))

    assert 10 <= len(_written(pending, 1)) < 20
    while not pending.idle:
        _written(pending, 2)
    assert _commit(99) == dict(pending.offsets.items())


def test_offsets_do_not_go_before_a_value_of_the_machine() -> None:
    """
    What a member commits after a rebalance is not stored before the rebalance.
    """
    pending = _pending()
    _add(pending, _commit(1, 2 * _KEYS))
    pending.add(Decided(kind=CLASSIC, puts={"": b"{}"}))
    _add(pending, _commit(2, 1))

    assert 1 == len(_written(pending, 1))
    assert 1 == pending.offsets.get(TopicPartition(UUID(int=0), 0)).offset  # type: ignore[union-attr]


partitions = st.builds(
    TopicPartition, st.integers(0, 120).map(lambda number: UUID(int=number)), st.integers(0, 300)
)
wide = st.integers(60, 110).map(lambda topics: list(_commit(0, topics)))
"""Alone it nearly fills a write."""
places = wide | st.lists(partitions, min_size=1, max_size=5)
decisions = st.lists(st.tuples(places, st.booleans()) | st.none(), max_size=12)
"""Places with whether their offsets are deleted; None: a value of the machine."""


@given(decisions)
def test_every_write_leaves_the_last_word_of_what_it_stores(
    given: list[tuple[list[TopicPartition], bool] | None],
) -> None:
    """
    Whichever decisions join a write: what is stored is what all done decisions say, in the order in
    which they were decided, and nothing of what waits.
    """
    pending, numbers = _pending(), count(1)
    order: list[Decided] = []
    for one in given:
        if one is None:
            order.append(Decided(kind=CLASSIC, puts={"": b'{"a":%d}' % next(numbers)}))
            pending.add(order[-1])
            continue
        places, deleted = one
        changes = {tp: None if deleted else Committed(offset=next(numbers)) for tp in places}
        for part in pending.parts(changes):
            order.append(part)
            pending.add(part)

    done: list[Decided] = []
    for revision in count(1):
        if pending.idle:
            break
        done += _written(pending, revision)
        expected: dict[TopicPartition, Committed] = {}
        for decided in order:
            if not any(decided is one for one in done):
                continue
            for tp, committed in decided.changes.items():
                if committed is None:
                    expected.pop(tp, None)
                else:
                    expected[tp] = committed
        assert expected == dict(pending.offsets.items())
        values = [i for i, decided in enumerate(order) if decided.puts and decided not in done]
        first = min(values, default=len(order))
        assert all(any(decided is one for one in order[:first]) for decided in done)
    assert len(done) == len(order)
