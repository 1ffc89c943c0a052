"""One round trip of each family of clients: none is locked out, and none reads other than it wrote.

Every client with every other one, in every codec and over restarts: `test_every_client.py`.
Shell.
"""

from collections.abc import Callable, Mapping

import pytest

from driftlog import Consumer, Producer
from tests.clients.conftest import make_topic, seal
from tests.clients.peers import Confluent, Java, Kcat, Peer
from tests.clients.records import CORPUS, Read, Record, at_offsets
from tests.clients.test_every_client import same_times
from tests.support.driftlog_process import DriftlogProcess

pytestmark = pytest.mark.xdist_group("round_trips")


class Driftlog:
    """`driftlog.Producer` and `driftlog.Consumer`, the Python client."""

    name = "driftlog"

    @property
    def corpus(self) -> list[Record]:
        """It writes every record."""
        return CORPUS

    def produce(self, bootstrap: str, topics: Mapping[str, str], records: list[Record]) -> None:
        """The codec is the client's default."""
        with Producer(bootstrap_servers=bootstrap) as producer:
            for topic in topics:
                for r in records:
                    producer.produce(
                        topic, r.value, r.key, timestamp=r.timestamp_ms, headers=r.headers
                    )

    def consume(
        self, bootstrap: str, counts: Mapping[str, int], isolation: str = "read_uncommitted"
    ) -> dict[str, list[Read]]:
        """To the end of each topic."""
        reads: dict[str, list[Read]] = {}
        for topic in counts:
            with Consumer(
                topic, bootstrap_servers=bootstrap, from_beginning=True, end_of_topic=True
            ) as consumer:
                reads[topic] = [
                    Read(r.offset, Record(r.key, r.value, r.timestamp_ms, r.headers))
                    for r in consumer
                ]
        return reads


FAMILIES: dict[str, Callable[[], Peer]] = {
    "driftlog": Driftlog,
    "librdkafka": Confluent,
    "java": Java,
    "kcat": Kcat,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_client_reads_what_it_wrote_before_and_after_sealing(
    agent: DriftlogProcess, family: str
) -> None:
    """
    Null and empty keys and values, headers in their order, event times and a megabyte come back at
    their offsets: out of the agent's memory, and out of a segment in the bucket.
    """
    client = FAMILIES[family]()
    topic = make_topic(agent, retention_ms="-1")  # the records are old
    written = at_offsets(client.corpus)
    client.produce(agent.bootstrap, {topic: "zstd"}, client.corpus)

    unsealed = client.consume(agent.bootstrap, {topic: len(written)})[topic]
    assert {0: len(written)} == seal(agent, topic)
    sealed = client.consume(agent.bootstrap, {topic: len(written)})[topic]

    assert same_times(written, unsealed) == unsealed
    assert unsealed == sealed
