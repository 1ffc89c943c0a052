"""The fetch sessions of an agent (KIP-227): which request goes on with which, and which stay.

| session id, epoch | the request |
|---|---|
| any, −1 | is a full fetch; its session, if there is one, is closed |
| any, 0 | the same, and a new session begins with its answer |
| that of a session, the next one | goes on with it |
| that of a session, another one | is refused: INVALID_FETCH_SESSION_EPOCH |
| unknown, any other | is refused: FETCH_SESSION_ID_NOT_FOUND |

A session may go on with another connection, and ends with its agent.  A request that goes on with a
session by ids where it began by names, or the reverse, is refused: FETCH_SESSION_TOPIC_ID_ERROR.

A new session needs a slot and memory.  If there are none, it takes those of sessions that no
request has used for `EVICTION_MS`; else those of a smaller session that is as old as that.
Otherwise its id is 0, and the client sends full fetches.  A session that grows beyond what there is
ends.  A session neither begins nor goes on with a name that no topic can have: it may be of 32 KB.
Kafka's privileged sessions are those of followers, and there are none.
Source: org.apache.kafka.server.FetchManager#newContext, FetchSessionCacheShard#tryEvict.

Pure.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from driftlog_agents.handlers.fetch.session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    held_bytes,
    next_epoch,
)
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.fetch import FetchRequest, FetchTopic
from driftlog_agents.protocol.types import MAX_TOPIC_BYTES

SESSIONS_FROM_VERSION: Final = 7
TOPIC_IDS_FROM_VERSION: Final = 13

EVICTION_MS: Final = 120_000
"""Kafka's ``min.incremental.fetch.session.eviction.ms``, which is no config there either."""

MOST_PARTITIONS: Final = 5_000
"""Most partitions of a session, and of one change of it: looking at them takes the event loop some
milliseconds."""

NO_SESSION: Final = 0


class Continued(NamedTuple):
    """What a request goes on with: its session, or an error, or neither for a full fetch."""

    session: FetchSession | None = None
    error: ErrorCode = ErrorCode.NONE


class FetchSessions:
    """See the module.

    Args:
        slots: most sessions (``max.incremental.fetch.session.cache.slots``).
        most_bytes: most memory of all sessions.
        new_id: draws a session id above 0.
    """

    def __init__(self, *, slots: int, most_bytes: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._most_bytes = most_bytes
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """By id; least recently used first."""
        self._held: dict[FetchSession, int] = {}
        self.held_bytes = 0
        self.evicted = 0
        self.full = 0
        """Sessions that did not begin, or ended, for want of memory."""
        self.out_of_slots = 0
        """Sessions that did not begin for want of a slot."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Of all sessions."""
        return sum(session.partitions for session in self._sessions.values())

    # ── Requests ──

    def go_on(self, version: int, request: FetchRequest, now_ms: float) -> Continued:
        """The session of *request*, changed as it asks; its epoch is that of the next request."""
        if version < SESSIONS_FROM_VERSION:
            return Continued()
        session = self._sessions.get(request.session_id)
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._remove(session)
            return Continued()
        if session is None:
            return Continued(None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return Continued(None, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != (version >= TOPIC_IDS_FROM_VERSION):
            return Continued(None, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._change(session, request, now_ms)

    def _change(self, session: FetchSession, request: FetchRequest, now_ms: float) -> Continued:
        named = sum(len(topic.partitions) for topic in request.topics)
        forgotten = sum(len(topic.partitions) for topic in request.forgotten_topics_data)
        if max(named, forgotten) > MOST_PARTITIONS or not _can_exist(request.topics):
            self._remove(session)
            return Continued(None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.update(request.topics, request.forgotten_topics_data)
        if session.partitions == 0:
            self._remove(session)
            return Continued()
        session.epoch = next_epoch(session.epoch)
        session.used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        self._count(session, session.size_bytes)
        if session.partitions > MOST_PARTITIONS or self.held_bytes > self._most_bytes:
            self.full += 1
            self._remove(session)
            return Continued(None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return Continued(session)

    def begin(self, version: int, request: FetchRequest, now_ms: float) -> FetchSession | None:
        """A session for the partitions of a full fetch, if it asks for one and there is room."""
        if version < SESSIONS_FROM_VERSION or request.session_epoch != INITIAL_EPOCH:
            return None
        if not _can_exist(request.topics):
            return None
        partitions = sum(len(topic.partitions) for topic in request.topics)
        size_bytes = held_bytes(len(request.topics), partitions)
        if partitions > MOST_PARTITIONS:
            self.full += 1
            return None
        if not self._make_room(size_bytes, partitions, now_ms):
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        by_id = version >= TOPIC_IDS_FROM_VERSION
        session = self._sessions[session_id] = FetchSession(session_id, by_id=by_id, now_ms=now_ms)
        session.update(request.topics, ())
        self._count(session, session.size_bytes)
        return session

    # ── Room ──

    def _make_room(self, size_bytes: int, partitions: int, now_ms: float) -> bool:
        """Evict sessions until one of *partitions* fits; False: none was evicted, and it does
        not fit, which is counted."""
        slots = self._slots - len(self._sessions)
        room = self._most_bytes - self.held_bytes
        victims: list[FetchSession] = []
        evictable = self._evictable(partitions, now_ms)
        while slots < 1 or room < size_bytes:
            victim = next(evictable, None)
            if victim is None:
                if slots < 1:
                    self.out_of_slots += 1
                else:
                    self.full += 1
                return False
            victims.append(victim)
            slots += 1
            room += self._held[victim]
        for victim in victims:
            self.evicted += 1
            self._remove(victim)
        return True

    def _evictable(self, partitions: int, now_ms: float) -> Iterator[FetchSession]:
        """Sessions that make room for one of *partitions*, in their order."""
        sessions = list(self._sessions.values())
        for session in sessions:
            if now_ms - session.used_ms <= EVICTION_MS:
                break
            yield session
        used = [session for session in sessions if now_ms - session.used_ms <= EVICTION_MS]
        for session in sorted(used, key=lambda session: session.partitions):
            if session.partitions < partitions and now_ms - session.created_ms > EVICTION_MS:
                yield session

    def _count(self, session: FetchSession, size_bytes: int) -> None:
        self.held_bytes += size_bytes - self._held.get(session, 0)
        self._held[session] = size_bytes

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        self.held_bytes -= self._held.pop(session)
        session.close()


def _can_exist(topics: Iterable[FetchTopic]) -> bool:
    """Whether topics can have these names: `TOPIC_BYTES` covers those."""
    return all(len(topic.topic) <= MAX_TOPIC_BYTES and topic.topic.isascii() for topic in topics)
