"""A flush record that is deleted while a batch of it is needed, or never, fails here.

Pure.
"""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driftlog_agents.log.consolidation.flush_record_index import SessionFlushRecords
from driftlog_agents.log.consolidation.managed_records import GONE, ManagedFlushRecords, reads_of
from driftlog_metadata.schema.codec import encode_partition_state
from driftlog_metadata.schema.keys import flush_key, partition_key
from driftlog_metadata.schema.model import FlushRecord, PartitionState, TopicPartition
from driftlog_metadata.stores.store import MAX_TXN_OPS, KeyValue
from driftlog_tiering.formats.flush_object import Footer
from tests.agents.log.consolidation.test_policy import PLACES, SETTINGS, A, footer_of

MINE, DEAD = "0" * 32, "1" * 32
FEW = replace(SETTINGS, records=3, age_ms=1e12, dead_age_ms=1e12)
Ends = dict[TopicPartition, int]


def record(name: str) -> FlushRecord:
    """One by the name of its object."""
    return FlushRecord(object_key=name, size_bytes=10, footer_start=5)


def managed() -> ManagedFlushRecords:
    """Of the session `MINE`, which sees both."""
    return ManagedFlushRecords(MINE, FEW, {MINE, DEAD})


def dead_records(count: int) -> SessionFlushRecords:
    """Of the session `DEAD`, empty; *count* only names it."""
    return SessionFlushRecords(DEAD if count == 1 else f"{count:032x}", dead=True)


class RecordsMachine(RuleBasedStateMachine):
    """Records with a slice or more, against a plain account of which are needed."""

    def __init__(self) -> None:
        super().__init__()
        self.state = managed()
        self.needed: dict[str, Ends] = {}
        """Key → the slices' ends."""
        self.sealed: Ends = {}
        self.gone: set[UUID] = set()
        self.held: set[str] = set()
        self.seq = 0
        self.next = dict.fromkeys(PLACES, 0)
        self.dead: SessionFlushRecords | None = None

    def _ends(self, places: Sequence[TopicPartition]) -> Ends:
        for tp in places:
            self.next[tp] += 1
        return {tp: self.next[tp] for tp in places}

    @rule(places=st.lists(st.sampled_from(PLACES), min_size=1, unique=True))
    def commit(self, places: list[TopicPartition]) -> None:
        self.seq += 1
        ends = self._ends(places)
        key = flush_key(MINE, self.seq)
        self.needed[key] = ends
        self.state.committed(self.seq, record(key), ends.items(), 0.0)

    @precondition(lambda self: self.dead is None)
    @rule(places=st.lists(st.sampled_from(PLACES), min_size=1, unique=True))
    def load_a_dead_session(self, places: list[TopicPartition]) -> None:
        assert [DEAD] == self.state.managed_here({DEAD}, lambda _: True)
        self.dead = dead_records(1)
        self.state.manage(self.dead)
        ends = self._ends(places)
        batches = [(tp, end - 1, 1, 10) for tp, end in sorted(ends.items(), key=_place)]
        key = flush_key(DEAD, 1)
        self.needed[key] = ends
        self.state.add(self.dead, key, record(key), footer_of(batches), 0.0)

    @rule(tp=st.sampled_from(PLACES), ahead=st.integers(0, 2))
    def seal(self, tp: TopicPartition, ahead: int) -> None:
        end = max(self.next[tp] - ahead, 0)
        self.sealed[tp] = max(self.sealed.get(tp, 0), end)
        self.state.sealed(tp, end)

    @rule(exists=st.booleans())
    def suspect_a_topic(self, exists: bool) -> None:
        self.state.suspect(A)
        gone = self.state.take_suspects() - ({A} if exists and A not in self.gone else set())
        self.gone |= gone
        for tp in self.state.topics_gone(gone):
            self.state.sealed(tp, GONE)

    @precondition(lambda self: not self.held)
    @rule()
    def begin_a_rewrite(self) -> None:
        due = self.state.to_rewrite(0.0)
        if due is not None:
            self.held = {known.key for known in due[1]}
            self.state.hold(due[1])

    @precondition(lambda self: self.held)
    @rule()
    def rewrite_fails(self) -> None:
        self.held = set()
        self.state.hold(())

    @rule()
    def delete(self) -> None:
        batch = self.state.to_delete()
        assert len(batch) <= MAX_TXN_OPS
        self.state.deleted(batch)
        for known in batch:
            del self.needed[known.key]

    def _unneeded(self) -> set[str]:
        """Records all of whose slices are sealed or gone.

        An index forgets a sealed end with the last record that has a slice of its partition, so a
        record that comes later waits for the next notice.
        """
        return {
            key
            for key, ends in self.needed.items()
            if all(
                end <= self.sealed.get(tp, 0) or tp.topic_id in self.gone
                for tp, end in ends.items()
            )
        }

    @invariant()
    def only_unneeded_records_are_deleted(self) -> None:
        due = {known.key for known in self.state.to_delete()}
        assert due <= self._unneeded() - self.held

    @invariant()
    def every_record_is_known_once(self) -> None:
        indexed = [known.key for one in self.state.sessions() for known in one.index]
        assert len(indexed) == len(set(indexed)) == len(self.state)
        assert set(indexed) <= self.needed.keys()

    @invariant()
    def what_is_left_is_needed(self) -> None:
        for tp, end in self.sealed.items():
            self.state.sealed(tp, end)  # the next look reads the keys again
        indexed = {known.key for one in self.state.sessions() for known in one.index}
        assert indexed == self.needed.keys() - self._unneeded()
        assert self.state.has_unneeded == bool(self._unneeded())


def _place(item: tuple[TopicPartition, int]) -> tuple[int, int]:
    return item[0].topic_id.int, item[0].partition


TestRecords = RecordsMachine.TestCase


def test_dead_sessions_are_managed_by_one_agent() -> None:
    """What another agent manages by now is forgotten, and loaded again if it comes back."""
    state = managed()
    here = state.managed_here({DEAD, "2" * 32}, lambda one: one == DEAD)
    state.manage(dead_records(1))
    again = state.managed_here({DEAD}, lambda _: True)
    state.managed_here({DEAD}, lambda _: False)

    assert ([DEAD], []) == (here, again)
    assert [state.own] == state.sessions()
    assert [DEAD] == state.managed_here({DEAD}, lambda _: True)


def test_a_session_without_records_is_not_loaded_again() -> None:
    """Until its head is deleted."""
    state = managed()
    state.finished(DEAD)

    assert [] == state.managed_here({DEAD}, lambda _: True)
    assert [] == state.managed_here(set(), lambda _: True)
    assert [DEAD] == state.managed_here({DEAD}, lambda _: True)


def test_a_session_that_disappears_from_the_view_has_ended() -> None:
    """Once; one that appears has not."""
    state = managed()

    assert [False, True, False] == [
        state.has_ended(seen) for seen in ({MINE, DEAD}, {MINE}, {MINE})
    ]
    assert not state.has_ended({MINE, "2" * 32})


def commits(state: ManagedFlushRecords, count: int) -> list[str]:
    """So many of this session; their keys."""
    for seq in range(1, count + 1):
        state.committed(seq, record(f"{seq}"), [(PLACES[0], seq)], 0.0)
    return [flush_key(MINE, seq) for seq in range(1, count + 1)]


def test_an_unreadable_record_is_left_out_of_rewrites_for_a_while() -> None:
    """And holds no producers back: they do not reduce the number of such records."""
    state = managed()
    keys = commits(state, 4)
    said = [state.unreadable(keys[0], ms) for ms in (0.0, 1.0)]
    due = state.to_rewrite(2.0)

    assert [True, False] == said
    assert due is not None
    assert keys[1:] == [known.key for known in due[1]]
    assert 3 == state.waiting()
    assert state.readable(keys[0])
    assert 4 == state.waiting()


def replaced(state: ManagedFlushRecords, footer: Footer | None) -> tuple[list[str], list[str]]:
    """A rewrite of three flushes, by one record or none; the new keys, and those in the index."""
    commits(state, 3)
    due = state.to_rewrite(0.0)
    assert due is not None
    keys = state.new_keys(due[0], due[1], 1)
    new = [] if footer is None else [((keys[0], record("new")), footer)]
    state.replaced(due[0], due[1], new, 0.0)
    return keys, [known.key for known in state.own.index]


def test_a_rewrite_puts_one_record_in_the_place_of_others() -> None:
    """Under the last sequence that it replaces; a later one of that name gets the next index."""
    state = managed()
    footer = footer_of([(PLACES[0], n, 1, 10) for n in range(3)])
    keys, indexed = replaced(state, footer)

    assert [flush_key(MINE, 3, 1, 0)] == keys == indexed
    (entry,) = state.own.index
    assert [flush_key(MINE, 3, 2, 0)] == state.new_keys(state.own, [entry], 1)


def test_a_rewrite_of_what_is_sealed_deletes_the_records() -> None:
    """It writes no object."""
    state = managed()
    _, indexed = replaced(state, None)

    assert [] == indexed
    assert 3 == len(state.to_delete())


def test_own_records_are_read_again_after_a_lost_answer() -> None:
    """The rewrite may have succeeded: its records are loaded, those that are gone are dropped."""
    state = managed()
    keys = commits(state, 3)
    before = list(state.own.index)
    state.committed(4, record("4"), [(PLACES[0], 4)], 0.0)  # while the read is on its way
    rewritten = flush_key(MINE, 2, 1, 0)

    new = state.reread_own(before, {keys[2], rewritten})

    assert {rewritten} == new
    assert [keys[2], flush_key(MINE, 4)] == [known.key for known in state.own.index]


def test_sealed_ends_may_be_asked_for_while_sessions_come_and_go() -> None:
    """A worker thread lays a rewrite out beside the event loop."""
    state = managed()
    commits(state, 1)
    state.sealed(PLACES[0], 0)

    class Disturbing(SessionFlushRecords):
        def __init__(self) -> None:
            super().__init__(DEAD, dead=True)
            self.index.sealed_end = self.disturb  # type: ignore[method-assign]

        def disturb(self, tp: TopicPartition) -> int:
            state.manage(dead_records(2 + len(state.sessions())))
            return 7

    state.manage(Disturbing())

    assert 7 == state.sealed_end(PLACES[0])


def test_keys_of_one_topic_are_read_as_one_range_from_so_many_on() -> None:
    """Others are read together, a transaction's worth at a time; each key once."""
    many = [TopicPartition(A, n) for n in range(MAX_TXN_OPS)]
    few = [TopicPartition(UUID(int=9 + n % 3), n) for n in range(MAX_TXN_OPS + 2)]
    reads = reads_of(many + few)

    assert [A, None, None] == [topic_id for topic_id, _ in reads]
    assert [MAX_TXN_OPS, MAX_TXN_OPS, 2] == [len(tps) for _, tps in reads]
    assert {*many, *few} == {tp for _, tps in reads for tp in tps}


def test_a_key_that_is_gone_makes_its_topic_suspect() -> None:
    """The other keys show sealed ends; one that cannot be read shows nothing."""
    state = managed()
    for seq, tp in enumerate(PLACES, 1):
        state.committed(seq, record(f"{seq}"), [(tp, 5)], 0.0)
    sealed, gone, damaged = PLACES[0], PLACES[2], PLACES[1]
    kvs = [
        KeyValue(partition_key(sealed), encode_partition_state(PartitionState(sealed_end=5)), 1, 1),
        KeyValue(partition_key(damaged), b"noise", 1, 1),
    ]
    state.keys_read(PLACES, kvs)

    assert [0, 0] == [state.sealed_end(tp) for tp in (damaged, gone)]
    assert [flush_key(MINE, 1)] == [known.key for known in state.to_delete()]
    assert {gone.topic_id} == state.take_suspects()
