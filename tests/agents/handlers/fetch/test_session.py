"""A consumer with a fetch session misses a record, a high watermark, a log start or an error.

Kafka looks at every partition of a session at each fetch; here only the due ones are looked at.
What is told must be the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from driftlog_agents.handlers.fetch.session import FetchSession, next_epoch
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

TOPICS: Final = (UUID(int=1), UUID(int=2))
PARTITIONS: Final = 3

Place = tuple[UUID, int]


def new_log(place: Place, epoch: int = 1) -> PartitionLog:
    return PartitionLog(
        topic=str(place[0]), topic_id=place[0], partition=place[1], leader_epoch=epoch
    )


def topics_of(asked: Iterable[tuple[Place, int]]) -> list[FetchTopic]:
    """One element for each partition, as a client may send them."""
    return [
        FetchTopic(
            topic_id=topic, partitions=[FetchPartition(partition=number, fetch_offset=offset)]
        )
        for (topic, number), offset in asked
    ]


@dataclass
class Agent:
    """Logs, by partition; those that are not there are led elsewhere."""

    logs: dict[Place, PartitionLog]
    looked: list[Place] = field(default_factory=list)
    room: int = 1_000
    """Partitions of one answer that get records."""

    def commit(self, place: Place, records: int) -> None:
        if (log := self.logs.get(place)) is not None:
            log.high_watermark += records
            log.log_end = log.high_watermark
            for waiter in list(log.waiting_fetches):
                waiter.committed(log)

    def lose(self, place: Place) -> None:
        if (log := self.logs.pop(place, None)) is not None:
            for waiter in log.close():
                waiter.lost(log)

    def read(self, topics: Iterable[FetchTopic]) -> list[FetchableTopicResponse]:
        """What is there of what is asked, as `FetchReads` answers it."""
        room = self.room
        answers: list[FetchableTopicResponse] = []
        for topic in topics:
            answer = FetchableTopicResponse(topic_id=topic.topic_id)
            for asked in topic.partitions:
                data = self._one((topic.topic_id, asked.partition), asked)
                if data.records:
                    room -= 1
                    if room < 0:
                        data.records = []
                answer.partitions.append(data)
            answers.append(answer)
        return answers

    def _one(self, place: Place, asked: FetchPartition) -> PartitionData:
        self.looked.append(place)
        data = PartitionData(
            partition_index=place[1], high_watermark=-1, log_start_offset=-1, records=[]
        )
        log = self.logs.get(place)
        if log is None:
            data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif log.state is State.OFFLINE:
            data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        elif not log.log_start <= asked.fetch_offset <= log.high_watermark:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            data.high_watermark, data.log_start_offset = log.high_watermark, log.log_start
            if asked.fetch_offset < log.high_watermark:
                data.records = [b"records"]
        return data

    def with_logs(
        self, answers: Iterable[FetchableTopicResponse]
    ) -> list[tuple[FetchableTopicResponse, list[PartitionLog | None]]]:
        return [
            (
                answer,
                [self.logs.get((answer.topic_id, d.partition_index)) for d in answer.partitions],
            )
            for answer in answers
        ]


class Kafkas:
    """Kafka's session: every partition is looked at, and told as `maybeUpdateResponseData` says."""

    def __init__(self) -> None:
        self.asked: dict[Place, int] = {}
        self.told: dict[Place, tuple[int, int]] = {}

    def update(self, asked: Iterable[tuple[Place, int]], forgotten: Iterable[Place]) -> None:
        for place, offset in asked:
            self.asked[place] = offset
            self.told.setdefault(place, (-1, -1))
        for place in forgotten:
            self.asked.pop(place, None)
            self.told.pop(place, None)

    def answer(self, agent: Agent) -> dict[Place, tuple[int, int, int, bool]]:
        found: dict[Place, tuple[int, int, int, bool]] = {}
        for answer in agent.read(topics_of(self.asked.items())):
            for data in answer.partitions:
                place = answer.topic_id, data.partition_index
                now = data.high_watermark, data.log_start_offset
                if data.records or data.error_code or now != self.told[place]:
                    found[place] = (data.error_code, *now, bool(data.records))
                self.told[place] = (-1 if data.error_code else now[0], now[1])
        return found


def answer(session: FetchSession, agent: Agent) -> list[tuple[Place, PartitionData]]:
    """One answer of *session*, in its order."""
    told = session.told(agent.with_logs(agent.read(session.due())))
    return [
        ((topic.topic_id, data.partition_index), data)
        for topic in told
        for data in topic.partitions
    ]


places = st.tuples(st.sampled_from(TOPICS), st.integers(0, PARTITIONS - 1))
steps = st.one_of(
    st.tuples(st.just("commit"), places, st.integers(1, 2)),
    st.tuples(st.just("log start"), places, st.integers(0, 2)),
    st.tuples(st.just("offline"), places, st.just(0)),
    st.tuples(st.just("lose"), places, st.just(0)),
    st.tuples(st.just("lead"), places, st.integers(0, 3)),
    st.tuples(st.just("ask"), places, st.integers(0, 4)),
    st.tuples(st.just("ask at the end"), places, st.just(0)),
    st.tuples(st.just("forget"), places, st.just(0)),
    st.tuples(st.just("fetch"), places, st.just(0)),
)


@given(st.lists(steps, max_size=60))
@settings(max_examples=300, deadline=None)
def test_what_is_told_is_what_kafka_tells(history: list[tuple[str, Place, int]]) -> None:
    """
    Whatever happens to the logs and is asked between two fetches.
    """
    agent = Agent({(topic, n): new_log((topic, n)) for topic in TOPICS for n in range(PARTITIONS)})
    session, kafkas = FetchSession(1, by_id=True, now_ms=0), Kafkas()
    for step, place, number in [*history, ("fetch", (TOPICS[0], 0), 0)]:
        log = agent.logs.get(place)
        match step:
            case "commit":
                agent.commit(place, number)
            case "log start" if log is not None:
                log.log_start = min(log.log_start + number, log.high_watermark)
            case "offline" if log is not None:
                log.state = State.OFFLINE
            case "lose":
                agent.lose(place)
            case "lead" if log is None:
                agent.logs[place] = new_log(place, epoch=2)
                agent.commit(place, number)
            case "ask" | "ask at the end":
                end = 0 if log is None else log.high_watermark
                asked = [(place, number if step == "ask" else end)]
                session.update(topics_of(asked), ())
                kafkas.update(asked, ())
            case "forget":
                session.update((), [ForgottenTopic(topic_id=place[0], partitions=[place[1]])])
                kafkas.update((), [place])
            case _:
                expected = kafkas.answer(agent)
                got = {
                    at: (d.error_code, d.high_watermark, d.log_start_offset, bool(d.records))
                    for at, d in answer(session, agent)
                }
                assert expected == got
        assert len(kafkas.asked) == session.partitions

    session.close()
    assert not any(log.waiting_fetches for log in agent.logs.values())


def test_idle_partitions_are_not_looked_at() -> None:
    """
    Of two thousand, a fetch looks at the one that moved, once, and at the one with an error each
    time.
    """
    all_places = [(TOPICS[0], n) for n in range(2_000)]
    agent = Agent({place: new_log(place) for place in all_places[1:]})
    session = FetchSession(1, by_id=True, now_ms=0)
    session.update(topics_of((place, 0) for place in all_places), ())
    first = answer(session, agent)
    agent.looked.clear()
    agent.commit(all_places[7], 1)
    second = answer(session, agent)
    looked = list(agent.looked)
    session.update(topics_of([(all_places[7], 1)]), ())
    answer(session, agent)
    agent.looked.clear()
    last = answer(session, agent)

    assert len(all_places) == len(first)
    assert {all_places[0], all_places[7]} == set(looked)
    assert {all_places[0], all_places[7]} == {place for place, _ in second}
    assert [all_places[0]] == agent.looked
    assert [all_places[0]] == [place for place, _ in last]


def test_each_partition_gets_its_records_in_turn() -> None:
    """
    Where an answer has room for one of three, three answers have all of them.
    """
    three = [(TOPICS[0], n) for n in range(3)]
    agent = Agent({place: new_log(place) for place in three}, room=1)
    for place in three:
        agent.commit(place, 10)
    session = FetchSession(1, by_id=True, now_ms=0)
    session.update(topics_of((place, 0) for place in three), ())
    served = []
    for offset in range(1, 4):
        got = [place for place, data in answer(session, agent) if data.records]
        served += got
        session.update(topics_of((place, offset) for place in got), ())

    assert three == served


def test_an_idle_log_tells_its_session_once() -> None:
    """
    A session that no request uses any more costs nothing at each commit.
    """
    place = TOPICS[0], 0
    agent = Agent({place: new_log(place)})
    session = FetchSession(1, by_id=True, now_ms=0)
    session.update(topics_of([(place, 0)]), ())
    answer(session, agent)
    waits = len(agent.logs[place].waiting_fetches)
    agent.commit(place, 1)

    assert 1 == waits
    assert not agent.logs[place].waiting_fetches


def test_epochs_are_kafkas() -> None:
    """
    They go on with 1 behind the largest, and the final one stays.
    """
    assert [1, 2, 1, -1] == [next_epoch(e) for e in (0, 1, 0x7FFF_FFFF, -1)]
