"""Small requests with answers that are large, long to make, or cannot be said.

Shell.
"""

import contextlib
import struct
import time
from typing import Any, ClassVar, Final
from uuid import UUID

from benchmarks import wire
from benchmarks.batches import encode_batch, set_producer
from driftlog_agents.configs.limits import Limits
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from driftlog_agents.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from driftlog_agents.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from driftlog_agents.protocol.messages.describe_groups import DescribeGroupsRequest
from driftlog_agents.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from driftlog_agents.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    TopicPartitions,
)
from driftlog_agents.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from driftlog_agents.protocol.requests.registry import API
from tests.attack.attacks import Attack, Budget, Target
from tests.attack.members import commit_request, join_request, joined
from tests.attack.produce import sent
from tests.attack.state import VICTIM, make_topic
from tests.attack.wire import GONE
from tests.clients.batches import good

_ANSWER_S: Final = 60.0
"""How long an answer may take to be made, however long it stalls the agent."""


def _frame(key: ApiKey, version: int, request: Any) -> bytes:
    return API[key].encode_request(version, 1, "attack", request)


class UnencodableEcho(Attack):
    """A topic name of 30,000 bytes 0xFF in a Produce beside a good partition: three of them."""

    name = "unencodable-echo"
    item = "1"

    def run(self, target: Target) -> None:
        """Decoded with replacement, the name no longer fits into a string."""
        body = wire.string(None) + struct.pack(">hii", -1, 5_000, 2)
        for topic in (VICTIM.encode(), b"\xff" * 30_000):
            data = bytes(good())
            body += wire.string(topic) + struct.pack(">iii", 1, 0, len(data)) + data
        for _ in range(3):
            target.shoot(wire.request(wire.PRODUCE, 7, 1, body), 10)


class UnencodableMemberId(Attack):
    """Requests of groups with names that no answer can repeat: a client id of 32,767 bytes, and
    ids that are not UTF-8."""

    name = "unencodable-member-id"
    item = "1"

    def run(self, target: Target) -> None:
        """A member id is the client id and a UUID: together they pass 32,767 bytes."""
        for size in (32_767, 32_740, 11_000):
            for letter in ("x", "\udcff"):
                join = join_request("unencodable", session_ms=10_000)
                frame = API[ApiKey.JOIN_GROUP].encode_request(3, 1, "", join)
                client_id = letter.encode("utf-8", "surrogateescape") * size
                body = frame[14:]
                head = frame[4:12] + struct.pack(">h", len(client_id)) + client_id
                target.shoot(struct.pack(">i", len(head) + len(body)) + head + body, 5)


class QuadraticDeletion(Attack):
    """DeleteTopics 6 with 25,000 entries that have both a name and an id (0.6 MB)."""

    name = "quadratic-deletion"
    item = "3"

    def run(self, target: Target) -> None:
        """Each is refused; the refusals were compared with each other."""
        states = [DeleteTopicState(name=f"{n:x}", topic_id=UUID(int=n + 1)) for n in range(25_000)]
        frame = _frame(
            ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=states, timeout_ms=1_000)
        )
        target.shoot(frame, _ANSWER_S)


class _LargeAnswer(Attack):
    """An answer may not be larger than its limit."""

    item = "4"

    def frame(self) -> bytes:
        raise NotImplementedError

    def run(self, target: Target) -> None:
        """Ask once, and see how large the answer would be."""
        size = target.shoot(self.frame(), _ANSWER_S)
        if size > Limits().driftlog_max_response_bytes:
            target.fail(f"an answer of {size >> 20:,} MiB to {len(self.frame()):,} bytes")


class DuplicateOffsetFetch(_LargeAnswer):
    """OffsetFetch 8 that names one group 1,000 times, which has 240 KB of metadata: as much as fits
    the pages of 1,000 partitions."""

    name = "duplicate-offset-fetch"

    def prepare(self, target: Target) -> None:
        """A group that is large and legal."""
        with target.connect() as connection:
            make_topic(connection, "wide", 1_000)
            for start in range(0, 1_000, 200):
                partitions = range(start, start + 200)
                commit = commit_request("d", "wide", partitions, metadata="m" * 240)
                answer = connection.ask(ApiKey.OFFSET_COMMIT, 7, commit)
                codes = {each.error_code for each in answer.topics[0].partitions}
                assert codes == {0}, f"the group's offsets: errors {codes}"
        target.groups.add("d")

    def frame(self) -> bytes:
        groups = [OffsetFetchRequestGroup(group_id="d", topics=None)] * 1_000
        return _frame(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))


class DuplicateConfigs(_LargeAnswer):
    """DescribeConfigs that names one topic 15,000 times, with synonyms and documentation."""

    name = "duplicate-configs"

    def frame(self) -> bytes:
        of = DescribeConfigsResource(resource_type=2, resource_name=VICTIM, configuration_keys=None)
        request = DescribeConfigsRequest(
            resources=[of] * 15_000, include_synonyms=True, include_documentation=True
        )
        return _frame(ApiKey.DESCRIBE_CONFIGS, 3, request)


class DuplicateGroups(_LargeAnswer):
    """DescribeGroups that names one group 1,500 times, whose member has sent 1 MB of metadata."""

    name = "duplicate-groups"

    def prepare(self, target: Target) -> None:
        """A group that is large and legal."""
        with target.connect() as connection:
            member, _ = joined(connection, "d", b"m" * 1_000_000)
            assert member, "the large group"
        target.groups.add("d")

    def frame(self) -> bytes:
        return _frame(ApiKey.DESCRIBE_GROUPS, 3, DescribeGroupsRequest(groups=["d"] * 1_500))


class DuplicateProducers(_LargeAnswer):
    """DescribeProducers that names one partition 60,000 times, which has 150 producers."""

    name = "duplicate-producers"

    def prepare(self, target: Target) -> None:
        """A partition with many producers."""
        with target.connect() as connection:
            make_topic(connection, "produced")
            for producer in range(150):
                batch = encode_batch([b"p"], timestamp_ms=1).data
                set_producer(batch, 5_000 + producer, 0, 0)
                code, _ = sent(connection, "produced", batch, acks=1)
                assert code == 0, f"a producer: error {code}"

    def frame(self) -> bytes:
        of = TopicRequest(name="produced", partition_indexes=[0] * 60_000)
        return _frame(ApiKey.DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(topics=[of]))


class _LongName(_LargeAnswer):
    """Messages repeat the name of a topic that does not exist: eight requests at once."""

    budget = Budget.CROWD
    topic: ClassVar = "x" * 32_000
    partitions: ClassVar = range(19_000)

    def run(self, target: Target) -> None:
        """They are sent together; each answer would have 600 MB."""
        frame = self.frame()
        with target.crowd(8, timeout_s=_ANSWER_S) as crowd:
            for connection in crowd:
                target.sent += 1
                connection.send(frame)
            for connection in crowd:
                with contextlib.suppress(*GONE):
                    target.fail(f"an answer of {connection.receive_size() >> 20:,} MiB")


class LongNameElections(_LongName):
    """ElectLeaders of 19,000 partitions of a topic with a name of 32,000 characters."""

    name = "long-name-elections"

    def frame(self) -> bytes:
        of = TopicPartitions(topic=self.topic, partitions=list(self.partitions))
        request = ElectLeadersRequest(election_type=0, timeout_ms=1_000, topic_partitions=[of])
        return _frame(ApiKey.ELECT_LEADERS, 2, request)


class LongNameReassignments(_LongName):
    """AlterPartitionReassignments of 19,000 partitions of a topic with such a name."""

    name = "long-name-reassignments"

    def frame(self) -> bytes:
        each = [ReassignablePartition(partition_index=n, replicas=None) for n in self.partitions]
        of = ReassignableTopic(name=self.topic, partitions=each)
        request = AlterPartitionReassignmentsRequest(timeout_ms=1_000, topics=[of])
        return _frame(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, request)


class LongNameProducers(_LongName):
    """DescribeProducers of 19,000 partitions of a topic with such a name."""

    name = "long-name-producers"

    def frame(self) -> bytes:
        of = TopicRequest(name=self.topic, partition_indexes=list(self.partitions))
        return _frame(ApiKey.DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(topics=[of]))


class WideFetches(Attack):
    """Ten Fetches that wait, each of 260,000 partitions (one thousand, named again and again),
    while others produce into one of them."""

    name = "wide-waiting-fetches"
    budget = Budget.CROWD
    item = "11"

    def prepare(self, target: Target) -> None:
        """A topic with a thousand partitions."""
        with target.connect() as connection:
            make_topic(connection, "wide", 1_000)

    def run(self, target: Target) -> None:
        """They wait for as long as they may."""
        frame = _wide_fetch()
        until = target.deadline + 5
        with target.crowd(10, timeout_s=30) as crowd:
            for connection in crowd:
                target.sent += 1
                try:
                    connection.send(frame)
                except GONE:
                    continue
            while time.monotonic() < until and target.agent.is_alive():
                with target.connect(timeout_s=60) as producer:
                    try:
                        sent(producer, "wide", good())
                    except GONE:
                        continue
                time.sleep(0.02)


def _wide_fetch() -> bytes:
    """Fetch 4, which waits for as long as it may."""
    partitions = b"".join(struct.pack(">iqi", n, 0, 1 << 20) for n in range(1_000)) * 260
    body = struct.pack(">iiiib", -1, 30_000, 1 << 30, 50 << 20, 0)
    body += struct.pack(">i", 1) + wire.string(b"wide") + struct.pack(">i", 260_000) + partitions
    return wire.request(wire.FETCH, 4, 1, body)


ATTACKS: Final = (
    UnencodableEcho,
    UnencodableMemberId,
    QuadraticDeletion,
    DuplicateOffsetFetch,
    DuplicateConfigs,
    DuplicateGroups,
    DuplicateProducers,
    LongNameElections,
    LongNameReassignments,
    LongNameProducers,
    WideFetches,
)
