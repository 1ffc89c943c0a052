"""More topics and partitions than one request, or one cluster, may have.

Shell.
"""

import time
from typing import Any, Final

from driftlog_agents.configs.limits import Limits
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from driftlog_agents.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from driftlog_agents.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.attack.attacks import Attack, Budget, Target
from tests.attack.state import all_topics, make_topic
from tests.attack.wire import GONE

_ANSWER_S: Final = 60.0
_MADE_S: Final = 60.0
_QUIET_S: Final = 2.0


class _Bounded(Attack):
    """After it there are no more than the limits allow."""

    item = "9"
    budget = Budget.CROWD

    def run(self, target: Target) -> None:
        raise NotImplementedError

    def count(self, target: Target, most_topics: int) -> None:
        """Topics and partitions that are there, when no more are being made."""
        topics: list[Any] = []
        deadline = time.monotonic() + _MADE_S
        while time.monotonic() < deadline and target.agent.is_alive():
            before = len(topics)
            try:
                with target.connect(timeout_s=_ANSWER_S) as connection:
                    topics = all_topics(connection)
            except GONE:
                return  # what the agent is then in is measured
            if len(topics) == before:
                break
            time.sleep(_QUIET_S)
        partitions = sum(len(topic.partitions) for topic in topics)
        if partitions > Limits().driftlog_max_partitions:
            target.fail(f"{partitions:,} partitions were made")
        if len(topics) > most_topics:
            target.fail(f"{len(topics):,} topics were made by one request")


class NegativeCount(_Bounded):
    """CreateTopics of 20 topics with 3,000 partitions each, and one with −100,000: the sum is
    below every bound."""

    name = "negative-count"

    def run(self, target: Target) -> None:
        """One request."""
        counts = [3_000] * 20 + [-100_000]
        topics = [
            CreatableTopic(name=f"n-{n}", num_partitions=count, replication_factor=1)
            for n, count in enumerate(counts)
        ]
        with target.connect(timeout_s=_ANSWER_S) as connection:
            request = CreateTopicsRequest(topics=topics, timeout_ms=30_000)
            target.ask(connection, ApiKey.CREATE_TOPICS, 5, request)
        self.count(target, Limits().driftlog_max_topics_per_request)


class GrownPartitions(_Bounded):
    """CreatePartitions of 30 topics to 9,000 partitions each."""

    name = "grown-partitions"

    def prepare(self, target: Target) -> None:
        """The topics, of one partition."""
        with target.connect() as connection:
            for n in range(30):
                make_topic(connection, f"g-{n}")

    def run(self, target: Target) -> None:
        """One request."""
        topics = [
            CreatePartitionsTopic(name=f"g-{n}", count=9_000, assignments=None) for n in range(30)
        ]
        with target.connect(timeout_s=_ANSWER_S) as connection:
            request = CreatePartitionsRequest(topics=topics, timeout_ms=30_000)
            target.ask(connection, ApiKey.CREATE_PARTITIONS, 1, request)
        self.count(target, Limits().driftlog_max_topics_per_request)


class AutomaticTopics(_Bounded):
    """Metadata that names 5,000 topics that are not there, where topics are made by asking."""

    # (`DriftlogProcess` sets auto.create.topics.enable.)

    name = "automatic-topics"

    def run(self, target: Target) -> None:
        """50 KB of names, then a look at what became of them."""
        asked = [MetadataRequestTopic(name=f"auto-{n}") for n in range(5_000)]
        with target.connect(timeout_s=_ANSWER_S) as connection:
            target.ask(connection, ApiKey.METADATA, 8, MetadataRequest(topics=asked))
        self.count(target, Limits().driftlog_max_topics_per_request + 10)


ATTACKS: Final = (NegativeCount, GrownPartitions, AutomaticTopics)
