"""A client goes on with a session that is not its own, or its sessions take an agent's memory."""

import gc
import tracemalloc
from itertools import count
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.handlers.fetch.session import held_bytes
from driftlog_agents.handlers.fetch.session_cache import (
    EVICTION_MS,
    MOST_PARTITIONS,
    FetchSessions,
)
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.fetch import (
    API,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from driftlog_agents.protocol.requests.registry import decode_request_header

MiB = 1024 * 1024
BY_NAME, BY_ID = 12, 13


def cache(slots: int = 10, most_bytes: int = MiB) -> FetchSessions:
    ids = count(1)
    return FetchSessions(slots=slots, most_bytes=most_bytes, new_id=lambda: next(ids))


def request(
    session_id: int = 0, epoch: int = 0, partitions: int = 1, forget: int = 0, first: int = 0
) -> FetchRequest:
    numbers = range(first, first + partitions)
    topic = FetchTopic(
        topic="t", topic_id=UUID(int=1), partitions=[FetchPartition(partition=n) for n in numbers]
    )
    gone = ForgottenTopic(topic="t", topic_id=UUID(int=1), partitions=list(range(forget)))
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[topic] if partitions else [],
        forgotten_topics_data=[gone] if forget else [],
    )


def begun(sessions: FetchSessions, partitions: int = 1, now_ms: float = 0) -> int:
    """The id of a new session; 0: there was no room."""
    session = sessions.begin(BY_NAME, request(partitions=partitions), now_ms)
    return 0 if session is None else session.session_id


@pytest.mark.parametrize(
    ("session_id", "epoch", "version", "error"),
    [
        (1, 1, BY_NAME, ErrorCode.NONE),
        (1, 2, BY_NAME, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (1, -2, BY_NAME, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (2, 1, BY_NAME, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 1, BY_NAME, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (1, 1, BY_ID, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_a_request_goes_on_with_its_session_alone(
    session_id: int, epoch: int, version: int, error: ErrorCode
) -> None:
    """
    By its id, its epoch, and names or ids; a refused one changes nothing.
    """
    sessions = cache()
    assert 1 == begun(sessions)
    found = sessions.go_on(version, request(session_id, epoch), 0)
    again = sessions.go_on(BY_NAME, request(1, 2 if not error else 1), 0)

    assert error == found.error
    assert (found.session is not None) == (not error)
    assert again.session is not None


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_closes_the_session_that_it_names(epoch: int) -> None:
    """
    It is unknown then, and gave everything back.
    """
    sessions = cache()
    begun(sessions)
    full = sessions.go_on(BY_NAME, request(1, epoch), 0)
    after = sessions.go_on(BY_NAME, request(1, 1), 0)

    assert (None, ErrorCode.NONE) == full
    assert ErrorCode.FETCH_SESSION_ID_NOT_FOUND == after.error
    assert (0, 0) == (len(sessions), sessions.held_bytes)


@pytest.mark.parametrize(("version", "epoch"), [(6, 0), (BY_NAME, -1)])
def test_a_client_that_asks_for_no_session_gets_none(version: int, epoch: int) -> None:
    """
    Versions before 7 know none; the final epoch asks for none.
    """
    sessions = cache()

    assert sessions.begin(version, request(epoch=epoch), 0) is None
    assert 0 == sessions.full


def test_a_session_without_partitions_ends() -> None:
    """
    The request that forgets the last one is a full fetch of nothing, as with Kafka.
    """
    sessions = cache()
    begun(sessions, partitions=3)
    found = sessions.go_on(BY_NAME, request(1, 1, partitions=0, forget=3), 0)

    assert (None, ErrorCode.NONE) == found
    assert 0 == len(sessions)


# ── Room ──


@pytest.mark.parametrize(
    ("held", "wanted", "at_ms", "begins"),
    [
        ((5, 5), 9, EVICTION_MS, 0),  # all were used just now, and are new
        ((5, 5), 1, EVICTION_MS + 1, 3),  # none was used for long
        ((5, 5), 0, EVICTION_MS + 1, 3),
    ],
)
def test_a_session_that_is_not_used_makes_room(
    held: tuple[int, ...], wanted: int, at_ms: float, begins: int
) -> None:
    """
    After two minutes, whatever its size.
    """
    sessions = cache(slots=len(held))
    for partitions in held:
        begun(sessions, partitions)

    assert begins == begun(sessions, wanted, at_ms)
    assert (1 if begins else 0) == sessions.evicted
    assert (0, 0 if begins else 1) == (sessions.full, sessions.out_of_slots)


@pytest.mark.parametrize(("wanted", "gone"), [(4, 0), (5, 0), (6, 2), (20, 2)])
def test_a_larger_session_takes_the_place_of_the_smallest_old_one(wanted: int, gone: int) -> None:
    """
    Of those that are used, the smallest one that is older than two minutes, if it is smaller.
    """
    sessions = cache(slots=3)
    for partitions in (9, 5):
        begun(sessions, partitions)
    old_ms = EVICTION_MS + 1.0
    for session_id in (1, 2):
        sessions.go_on(BY_NAME, request(session_id, 1), old_ms)
    begun(sessions, 1, old_ms)  # the smallest, and new
    made = begun(sessions, wanted, old_ms)
    left = {
        n
        for n in (1, 2, 3)
        if not sessions.go_on(BY_NAME, request(n, 1 if n == 3 else 2), old_ms).error
    }

    assert (gone > 0) == (made > 0)
    assert {1, 2, 3} - {gone} == left


def test_all_sessions_together_hold_no_more_than_they_may() -> None:
    """
    A thousand clients with a thousand partitions each: some get a session, none is thrown out.
    """
    sessions = cache(slots=1_000, most_bytes=4 * MiB)
    made = [begun(sessions, 1_000) for _ in range(1_000)]

    assert 4 * MiB // held_bytes(1, 1_000) == sum(map(bool, made)) == len(sessions) == 5
    assert 5 * held_bytes(1, 1_000) == sessions.held_bytes
    assert (995, 0) == (sessions.full, sessions.out_of_slots)
    assert all(made[:5])


@pytest.mark.parametrize(
    ("most_bytes", "more"), [(held_bytes(1, 10), 11), (64 * MiB, MOST_PARTITIONS)]
)
def test_a_session_that_grows_too_large_ends(most_bytes: int, more: int) -> None:
    """
    Its client begins another one, or sends full fetches.
    """
    sessions = cache(most_bytes=most_bytes)
    assert begun(sessions, 10)
    found = sessions.go_on(BY_NAME, request(1, 1, more, first=10), 0)

    assert (None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND) == found
    assert (0, 0) == (len(sessions), sessions.held_bytes)


def test_one_change_is_not_larger_than_a_session() -> None:
    """
    A request that forgets very many partitions is not walked.
    """
    sessions = cache()
    begun(sessions)
    found = sessions.go_on(BY_NAME, request(1, 1, forget=MOST_PARTITIONS + 1), 0)

    assert ErrorCode.FETCH_SESSION_ID_NOT_FOUND == found.error


@pytest.mark.parametrize("name", ["a" * 250, "\U0001f600" * 10])
def test_no_session_holds_a_name_that_no_topic_can_have(name: str) -> None:
    """
    Neither a new one nor one that has begun; a name on the wire may be of 32 KB.
    """
    sessions = cache()
    begun(sessions)
    strange = FetchTopic(topic=name, partitions=[FetchPartition()])
    grown = request(1, 1)
    grown.topics.append(strange)

    assert sessions.begin(BY_NAME, FetchRequest(session_epoch=0, topics=[strange]), 0) is None
    assert ErrorCode.FETCH_SESSION_ID_NOT_FOUND == sessions.go_on(BY_NAME, grown, 0).error
    assert (0, 0) == (len(sessions), sessions.held_bytes)


@pytest.mark.parametrize(
    ("name_bytes", "topics", "partitions"),
    [(5, 1, 1_000), (249, 1_000, 1), (249, 100, 10), (5, 1, 1), (32_700, 20, 1)],
)
@pytest.mark.parametrize("first", ["", "\U0001f600"])
def test_sessions_count_at_least_the_memory_that_they_take(
    name_bytes: int, topics: int, partitions: int, first: str
) -> None:
    """
    Requests as they come from the wire; a name with one emoji takes four bytes a character.
    """
    names = [f"{first}{n:a>{name_bytes - len(first.encode())}}" for n in range(topics)]
    asked = [FetchPartition(partition=n, fetch_offset=2**40 + n) for n in range(partitions)]
    full = FetchRequest(
        session_epoch=0, topics=[FetchTopic(topic=name, partitions=asked) for name in names]
    )
    frame = memoryview(bytes(API.encode_request(BY_NAME, 1, "c", full)))[4:]
    body = decode_request_header(frame, 1_000).body_offset
    sessions = cache(most_bytes=64 * MiB)
    tracemalloc.start()
    try:
        for _ in range(5):
            sessions.begin(BY_NAME, API.decode_request(BY_NAME, frame, body), 0)
        length, counted_bytes = len(sessions), sessions.held_bytes
        gc.collect()
        with_sessions, _ = tracemalloc.get_traced_memory()
        del sessions
        gc.collect()
        without, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert with_sessions - without <= counted_bytes + 16 * 1024
    assert (0 if first or name_bytes > 249 else 5) == length


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "go on", "full", "wait"]),
            st.integers(0, 12),
            st.integers(0, 30),
        )
    )
)
def test_what_is_counted_is_what_is_held(history: list[tuple[str, int, int]]) -> None:
    """
    Whatever begins, grows, shrinks, and ends; within both limits.
    """
    sessions, now_ms = cache(slots=4, most_bytes=held_bytes(1, 60)), 0.0
    epochs: dict[int, int] = {}
    for step, session_id, number in history:
        match step:
            case "begin":
                epochs[begun(sessions, number, now_ms)] = 1
            case "go on":
                epoch = epochs.get(session_id, 1)
                asked = request(session_id, epoch, number, first=number, forget=number // 2)
                if sessions.go_on(BY_NAME, asked, now_ms).session is not None:
                    epochs[session_id] = epoch + 1
            case "full":
                sessions.go_on(BY_NAME, request(session_id, 0), now_ms)
            case _:
                now_ms += EVICTION_MS * number / 10
        assert len(sessions) <= 4
        assert sessions.held_bytes <= held_bytes(1, 60)
        least = held_bytes(0, 0) * len(sessions) + 768 * sessions.partitions
        assert least <= sessions.held_bytes <= least + 1_024 * len(sessions)
