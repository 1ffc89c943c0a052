"""Whatever one client wrote, every client reads: before and after sealing and restarts.

written by 5 clients with 5 codecs ──▶ read ──▶ sealed ──▶ read ──▶ SIGTERM ──▶ read ──▶ …
"""

from dataclasses import replace

import pytest
from _pytest.outcomes import Skipped

from tests.clients.conftest import make_topics, seal
from tests.clients.peers import Aiokafka, Confluent, Java, KafkaPython, Kcat, Peer
from tests.clients.records import CODECS, Read, at_offsets
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.xdist_group("every_client"), pytest.mark.timeout(240)]

PEERS = ("confluent", "aiokafka", "kafka-python", "java", "kcat")
STAGES = ("as produced", "sealed", "after SIGTERM", "after SIGKILL")


def peer(name: str) -> Peer:
    """The client of that name, or a skip that says what is missing."""
    match name:
        case "confluent":
            return Confluent()
        case "aiokafka":
            return Aiokafka()
        case "kafka-python":
            return KafkaPython()
        case "java":
            return Java()
        case _:
            return Kcat()


class Log:
    """An agent, the topics that each client wrote, and what must be in them."""

    def __init__(self, agent: DriftlogProcess) -> None:
        self.agent = agent
        self.expected: dict[str, list[Read]] = {}
        self._stage = 0

    def write(self, writer: str) -> None:
        """Let a client write its corpus with every codec."""
        client = peer(writer)
        topics = {f"{writer}.{codec}": codec for codec in CODECS}
        make_topics(self.agent, dict.fromkeys(topics, 1))
        client.produce(self.agent.bootstrap, topics, client.corpus)
        for topic in topics:
            self.expected[topic] = at_offsets(client.corpus)

    def advance_to(self, stage: int) -> None:
        """Seal, restart or kill the agent until that stage is reached."""
        while self._stage < stage:
            self._stage += 1
            match STAGES[self._stage]:
                case "sealed":
                    for topic, reads in self.expected.items():
                        assert seal(self.agent, topic) == {0: len(reads)}
                case "after SIGTERM":
                    assert self.agent.terminate() == 0
                    self.agent.start()
                case "after SIGKILL":
                    self.agent.kill()
                    self.agent.start()
                case other:
                    raise AssertionError(other)


@pytest.fixture(scope="module")
def log(agent: DriftlogProcess) -> Log:
    written = Log(agent)
    for writer in PEERS:
        try:
            written.write(writer)
        except Skipped:
            continue  # a client that is not here; its own tests say so
    return written


@pytest.mark.parametrize("reader", PEERS)
@pytest.mark.parametrize("stage", range(len(STAGES)), ids=STAGES)
def test_every_client_reads_what_every_client_wrote(log: Log, stage: int, reader: str) -> None:
    """
    Keys, values, null and empty, headers in their order, event times, one byte and one
    megabyte, in every codec: the same records at the same offsets, whatever happened since.
    """
    client = peer(reader)
    log.advance_to(stage)
    counts = {topic: len(reads) for topic, reads in log.expected.items()}

    reads = client.consume(log.agent.bootstrap, counts)

    for topic, expected in log.expected.items():
        assert same_times(expected, reads[topic]) == reads[topic], topic


def same_times(expected: list[Read], reads: list[Read]) -> list[Read]:
    """*expected*, where kcat's records, which have the time of writing, take the time read."""
    return [
        replace(e, record=replace(e.record, timestamp_ms=r.record.timestamp_ms))
        if e.record.timestamp_ms < 0
        else e
        for e, r in zip(expected, reads, strict=True)
    ]
